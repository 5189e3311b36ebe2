"""The answers that no route gives: the listener's own 400, 408, 431, 500, 501 and 503, in OpenAI's shape.

Pure. The error codes are the catalogue's (`wire/errors.py`); this module only says which of them a refusal of the HTTP
stack is. `options.py` makes an answer of it, `protocol.py` and `streams.py` send it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from trio_server.wire import errors


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP status and one sentence for the client. The sentence never quotes what the client sent: a header line that
    does not parse may hold its key."""

    status: int
    reason: str


MALFORMED: Final = Refusal(400, "the request is not well-formed HTTP/1.1")
BAD_TARGET: Final = Refusal(400, "the request target must be a path that starts with '/'")
HTTP_VERSION: Final = Refusal(400, "only HTTP/1.1 and HTTP/1.0 are spoken here")
TWO_LENGTHS: Final = Refusal(400, "Content-Length must be given once, as one number")
TWO_FRAMINGS: Final = Refusal(400, "a request has either Content-Length or Transfer-Encoding, not both")
EARLY_SOCKET_DATA: Final = Refusal(400, "a WebSocket client must wait for the handshake's answer before it sends data")
HEAD_TIMEOUT: Final = Refusal(408, "the request's head did not arrive in time")
HEAD_TOO_LARGE: Final = Refusal(431, "the request's line and headers are larger than 16 KiB")
TRANSFER_CODING: Final = Refusal(501, "chunked is the only Transfer-Encoding that is understood")
STOPPING: Final = Refusal(503, "the server is shutting down")
SOCKETS_IN_USE: Final = Refusal(503, "as many WebSockets are open as this server allows; try again in a moment")

# Said where Hypercorn itself answers with a bare status: the app failed, or refused a handshake without a body.
_PLAIN_REASONS: Final = {
    400: "the WebSocket handshake is not valid",
    403: "the WebSocket was refused",
    500: "the server failed while it worked on this request",
}

_CODES: Final = {
    400: errors.INVALID_REQUEST,
    404: errors.NOT_FOUND,
    408: errors.BODY_TIMEOUT,
    413: errors.REQUEST_TOO_LARGE,
    431: errors.HEADERS_TOO_LARGE,
    500: errors.INTERNAL_ERROR,
    501: errors.NOT_IMPLEMENTED,
    503: errors.SERVER_SHUTTING_DOWN,
}


def plain(status: int) -> Refusal:
    """The refusal for a bare status of Hypercorn's."""
    return Refusal(status, _PLAIN_REASONS.get(status, "the request was refused"))


def error_body(status: int, reason: str) -> bytes:
    """The default `ListenerOptions.error_body`: JSON with the catalogue's code for this status."""
    # Two causes share 503. A client out of sockets is in the place of one that found every lane taken: it may come back.
    if reason == SOCKETS_IN_USE.reason:
        code = errors.ENGINE_FULL
    else:
        code = _CODES.get(status) or (errors.INTERNAL_ERROR if status >= 500 else errors.INVALID_REQUEST)
    return json.dumps(errors.ApiError(code, reason).body(), separators=(",", ":")).encode()
