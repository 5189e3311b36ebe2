"""What a caller sets for its listeners: limits, and how refusals look. The top `server.py` fills it from the configuration."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from trio_server.listeners.refusals import Refusal, error_body

LOG = logging.getLogger("trio_server.listeners")

_RETRY_AFTER_S = b"5"


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Limits of one `serve` call; all connections of its sockets share them.

    write_timeout_s: a client that takes no byte for so long is gone: the connection is reset, the request cancelled.
    head_timeout_s: from a request head's first byte to its last; past it 408.
    keep_alive_timeout_s: how long a connection may be silent between requests (or before the first) until it is closed.
    max_connections: above it the longest silent connection is closed; if none is silent, new ones wait to be accepted.
    max_sockets: WebSockets open at once; one more is refused before the upgrade with 503.
    drain_limit_s: how long running requests may go on after `stopping`; a callable is asked when `stopping` is set.
    error_body: makes the body of the listener's own error answers from (status, one sentence).
    error_headers: header fields that these answers carry besides the necessary ones.
    """

    write_timeout_s: float = 60.0
    head_timeout_s: float = 15.0
    keep_alive_timeout_s: float = 75.0
    max_connections: int = 1024
    max_sockets: int = 256
    drain_limit_s: float | Callable[[], float] = 15.0
    error_body: Callable[[int, str], bytes] = error_body
    error_headers: tuple[tuple[bytes, bytes], ...] = ((b"access-control-allow-origin", b"*"),)

    def drain_limit(self) -> float:
        """Seconds, as they are now."""
        return self.drain_limit_s() if callable(self.drain_limit_s) else self.drain_limit_s

    def answer(self, refusal: Refusal) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Header fields and body of a refusal.

        It always closes: after a fault in the framing nobody can say where the next request begins. No app sees the
        request, so it is given its id, and its line in the log, here.
        """
        request_id = secrets.token_hex(16)
        LOG.debug("refused a request: %d, %s (req_%s)", refusal.status, refusal.reason, request_id)
        body = self.error_body(refusal.status, refusal.reason)
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", f"req_{request_id}".encode()),
            *self.error_headers,
        ]
        if refusal.status == 503:
            fields.append((b"retry-after", _RETRY_AFTER_S))
        return fields, body
