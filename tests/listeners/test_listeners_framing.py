"""Request heads: what is refused, as pure functions and over a socket."""

from __future__ import annotations

import h11
import pytest

from tests.listeners.support import CLOSE_GET, read_to_end, served
from trio_server.listeners import framing, refusals
from trio_server.listeners.refusals import Refusal


def _fault(head: bytes) -> Refusal | None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=100_000)
    connection.receive_data(head)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    return framing.fault_in(head, request)


def _head(*lines: bytes, first: bytes = b"POST /length HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: x", *lines, b"", b""])


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (_head(), None),
        (_head(b"Content-Length: 5"), None),
        (_head(b"Transfer-Encoding: chunked"), None),
        (_head(b"Content-Length: 5", b"Transfer-Encoding: chunked"), refusals.TWO_FRAMINGS),
        (_head(b"transfer-encoding: chunked", b"CONTENT-LENGTH: 0"), refusals.TWO_FRAMINGS),
        (_head(b"Content-Length: 5", b"content-length: 5"), refusals.TWO_LENGTHS),
        (_head(b"Content-Length: 5, 5"), refusals.TWO_LENGTHS),
        (_head(b"X-Content-Length: 5", b"Content-Length: 5"), None),
        (_head(b"Transfer-Encoding: chunked", first=b"POST /length HTTP/1.0"), refusals.MALFORMED),
        (_head(first=b"GET / HTTP/2.0"), refusals.HTTP_VERSION),
        (_head(b"A: " + b"a" * 17_000), refusals.HEAD_TOO_LARGE),
        (_head(b"A: " + b"a" * 16_000), None),
        (_head(first=b"GET x HTTP/1.1"), refusals.BAD_TARGET),
        (_head(first=b"OPTIONS * HTTP/1.1"), refusals.BAD_TARGET),
    ],
)
def test_fault_in(head: bytes, fault: Refusal | None) -> None:
    assert _fault(head) == fault


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/", b"/"),
        (b"//v1/models", b"//v1/models"),
        (b"/a?b=http://c/d", b"/a?b=http://c/d"),
        (b"http://host", b"/"),
        (b"http://host?q=/", b"/?q=/"),
        (b"HTTPS://host:1/a/b?c", b"/a/b?c"),
        (b"ftp://host/a", None),
        (b"host:443", None),
        (b"*", None),
        (b"?x", None),
    ],
)
def test_origin_form(target: bytes, path: bytes | None) -> None:
    assert framing.origin_form(target) == path


_POST = b"POST /length HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (_POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request_error"),
        (_POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, "invalid_request_error"),
        (_POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, "invalid_request_error"),
        (_POST + b"Content-Length: -5\r\n\r\n", 400, "invalid_request_error"),
        (_POST + b"Content-Length: 0x5\r\n\r\n", 400, "invalid_request_error"),
        (_POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400, "invalid_request_error"),
        (_POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "not_implemented"),
        (_POST + b"A: " + b"a" * 20_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (_POST + b"A: " + b"a" * 2_000_000, 431, "headers_too_large"),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400, "invalid_request_error"),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid_request_error"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_request_error"),
    ],
)
async def test_refusals_are_openai_errors_and_close(request_bytes: bytes, status: int, code: str) -> None:
    async with served() as server:
        (answer,) = await server.exchange(request_bytes)
        assert (answer.status, answer.error["code"]) == (status, code)
        await server.assert_serves()


async def test_a_refusal_never_quotes_the_request() -> None:
    async with served() as server:
        (answer,) = await server.exchange(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization Bearer sk-secret\r\n\r\n")
        assert answer.status == 400
        assert b"secret" not in answer.body


async def test_a_refused_head_request_has_no_body() -> None:
    async with served() as server:
        stream = await server.send(b"HEAD x HTTP/1.1\r\nHost: x\r\n\r\n")
        received = await read_to_end(stream)
        assert received.startswith(b"HTTP/1.1 400")
        assert received.endswith(b"\r\n\r\n")


async def test_an_absolute_target_is_served() -> None:
    async with served() as server:
        (answer,) = await server.exchange(CLOSE_GET.replace(b"/hello", b"http://example.org/hello"))
        assert answer.body == b"hello"


async def test_the_body_of_refusals_can_be_replaced() -> None:
    options = {"error_body": lambda status, reason: b"%d!" % status, "error_headers": ((b"x-own", b"yes"),)}
    async with served(**options) as server:
        (answer,) = await server.exchange(b"nonsense\r\n\r\n")
        assert (answer.body, answer.headers["x-own"]) == (b"400!", "yes")
        assert "access-control-allow-origin" not in answer.headers
