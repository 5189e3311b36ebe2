"""What must be true of a request head before an app may see it. Pure functions over h11's events; no I/O.

h11 already refuses what it cannot parse, lengths that differ and codings other than chunked. This module refuses what h11
takes and a proxy in front might read otherwise (two framings, a repeated length), and what breaks further up: request
targets that are no path make Quart raise.
"""

from __future__ import annotations

import h11

from trio_server.listeners import refusals
from trio_server.listeners.refusals import Refusal

# Hypercorn gives this figure to h11, which applies it to incomplete heads only; a head that arrives whole is measured here.
HEAD_LIMIT_BYTES = 16 * 1024

_VERSIONS = {b"1.0", b"1.1"}


def fault_in(head: bytes, request: h11.Request) -> Refusal | None:
    """Why this request is refused, or None. `head` is the request as it came, from its line to the blank line."""
    if request.http_version not in _VERSIONS:
        return refusals.HTTP_VERSION  # the HTTP/2 preface is a request of version 2.0 to h11
    if len(head) > HEAD_LIMIT_BYTES:
        return refusals.HEAD_TOO_LARGE
    lengths = [value for name, value in _raw_fields(head) if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if lengths and chunked:
        return refusals.TWO_FRAMINGS
    # h11 folds equal lengths into one, so they are counted in the bytes as they came.
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        return refusals.TWO_LENGTHS
    if chunked and request.http_version == b"1.0":
        return refusals.MALFORMED
    if origin_form(request.target) is None:
        return refusals.BAD_TARGET
    return None


def fault_behind(error: h11.RemoteProtocolError) -> Refusal:
    """The refusal for an error that h11 raised while it read."""
    if error.error_status_hint == 431:
        return refusals.HEAD_TOO_LARGE
    if error.error_status_hint == 501:
        return refusals.TRANSFER_CODING
    return refusals.MALFORMED


def origin_form(target: bytes) -> bytes | None:
    """The path and query of a request target; None if it has no path.

    A server must understand `http://host/path` too, though only proxies are sent it.
    """
    if target.startswith(b"/"):
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in {b"http", b"https"}:
        return None
    slash = rest.find(b"/")
    query = rest.find(b"?")
    if slash >= 0 and (query < 0 or slash < query):
        return rest[slash:]
    return b"/" + rest[query:] if query >= 0 else b"/"


def is_websocket(request: h11.Request) -> bool:
    """Whether the request asks for a WebSocket. Any other `Upgrade` (h2c, which some Java clients ask for by default) is an
    offer that a server is free to pass over, so such a request is served as the HTTP/1.1 request that it is."""
    upgrades, options = set[bytes](), set[bytes]()
    for name, value in request.headers:
        if name == b"upgrade":
            upgrades.update(token.strip() for token in value.lower().split(b","))
        elif name == b"connection":
            options.update(token.strip() for token in value.lower().split(b","))
    return request.method == b"GET" and b"websocket" in upgrades and b"upgrade" in options


def _raw_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = head.split(b"\n")[1:]
    fields = (line.partition(b":") for line in lines if line[:1] not in {b" ", b"\t"})
    return [(name.strip().lower(), value.strip()) for name, _, value in fields]
