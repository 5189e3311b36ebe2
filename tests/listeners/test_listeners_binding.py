"""From an address to sockets."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.listeners.support import read_until, served
from trio_server.listeners import bind, url_of


def test_port_zero_takes_a_free_port() -> None:
    (sock,) = bind("127.0.0.1:0")
    with sock:
        port = sock.getsockname()[1]
        assert port > 0
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert not sock.getblocking()


def test_a_port_in_use_is_an_error() -> None:
    (sock,) = bind("127.0.0.1:0")
    with sock, pytest.raises(OSError) as caught:
        bind(f"127.0.0.1:{sock.getsockname()[1]}")
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    "address", ["8000", "", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80", "a:-1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(OSError) as caught:
        bind(address)
    assert caught.value.errno == errno.EINVAL


def test_an_unknown_name() -> None:
    with pytest.raises(OSError):
        bind("no-such-host.invalid:0")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 loopback here")
def test_ipv6() -> None:
    (sock,) = bind("[::1]:0")
    with sock:
        assert url_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"


def test_a_name_with_several_addresses_gets_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "localhost"
        missing = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", port, 0, 0))
        return [missing] + [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.1", "127.0.0.2")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    sockets = bind("localhost:0")
    assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1", "127.0.0.2"]
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


def test_the_empty_host_is_every_address() -> None:
    sockets = bind(":0")
    assert "0.0.0.0" in {sock.getsockname()[0] for sock in sockets}
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


async def test_all_sockets_are_served() -> None:
    async with served(":0") as server:
        for port in server.ports:
            stream = await server.connect(port=port)
            await stream.send_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            await read_until(stream, b"hello")
            await stream.aclose()
