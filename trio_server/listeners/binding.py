"""From an address to listening sockets, before anything is loaded: a port in use is found in the first second."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

_BACKLOG = 512
# A free port found for one address family may be taken for the other.
_PORT_TRIES = 8
# A name may resolve to a family that this machine has no address for.
_FAMILY_MISSING = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


def bind(address: str) -> list[socket.socket]:
    """Listening, non-blocking sockets for `host:port` or `[::1]:port`; one per address that the host name has.

    Port 0 takes a free port, the same for all of them (`getsockname()` tells). IPv6 sockets take no IPv4. Raises OSError:
    the port is in use, the name is unknown (`socket.gaierror`), or the text is no address (EINVAL). Blocks while a name is
    looked up, so call it before the event loop matters.
    """
    host, port = _split(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = list(dict.fromkeys((family, target) for family, _, _, _, target in found))
    for _ in range(_PORT_TRIES - 1):
        try:
            return _bind_all(families)
        except OSError as error:
            if port != 0 or error.errno != errno.EADDRINUSE:
                raise
    return _bind_all(families)


def url_of(sock: socket.socket) -> str:
    """`http://host:port` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


def _split(address: str) -> tuple[str | None, int]:
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise OSError(errno.EINVAL, f"{address!r} is not host:port")
    return host or None, int(port)


def _bind_all(families: Sequence[tuple[int, tuple[object, ...]]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, target in families:
            # All share the port that the first one was given.
            if sockets:
                target = (target[0], sockets[0].getsockname()[1], *target[2:])
            try:
                sockets.append(_listen(family, target))
            except OSError as error:
                if error.errno not in _FAMILY_MISSING:
                    raise
                missing = error
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _listen(family: int, target: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(target)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
