"""A client that goes away, in every manner, ends its request at once."""

from __future__ import annotations

import pytest
import trio

from tests.listeners.support import (
    CLOSE_GET,
    GET,
    UPGRADE,
    Served,
    frame,
    parse,
    read_to_end,
    read_until,
    reset,
    served,
)

# The bound of the test, not of the server: it is about half a millisecond.
SOON_S = 2.0

WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
STREAM = b"GET /quiet-stream HTTP/1.1\r\nHost: x\r\n\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


async def _leave(stream: trio.SocketStream, manner: str) -> None:
    if manner == "fin":
        await stream.aclose()
    elif manner == "rst":
        reset(stream)
    else:
        await stream.send_eof()


async def _assert_cancelled(server: Served, name: str) -> None:
    assert await server.watch.until_left(SOON_S) == f"{name} cancelled"
    await server.assert_serves()
    assert server.watch.active == 0


@pytest.mark.parametrize("manner", ["fin", "rst", "half-close"])
async def test_leaving_while_waiting(manner: str) -> None:
    async with served() as server:
        stream = await server.send(WAIT)
        await server.watch.until_entered()
        await _leave(stream, manner)
        await _assert_cancelled(server, "wait")


@pytest.mark.parametrize("manner", ["fin", "rst", "half-close"])
async def test_leaving_while_streaming(manner: str) -> None:
    async with served() as server:
        stream = await server.send(STREAM)
        await read_until(stream, b"first")
        await _leave(stream, manner)
        await _assert_cancelled(server, "quiet")


@pytest.mark.parametrize("manner", ["fin", "rst", "half-close"])
async def test_leaving_before_the_body_ends(manner: str) -> None:
    async with served() as server:
        stream = await server.send(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        await server.watch.until_entered()
        await _leave(stream, manner)
        await _assert_cancelled(server, "wait")


@pytest.mark.parametrize("manner", ["fin", "rst", "half-close"])
async def test_leaving_a_socket(manner: str) -> None:
    async with served() as server:
        stream = await server.send(UPGRADE % b"/echo")
        await server.watch.until_entered()
        await _leave(stream, manner)
        await _assert_cancelled(server, "echo")


async def test_leaving_a_socket_whose_messages_nobody_reads() -> None:
    """Quart queues ten messages and then stops reading its mailbox, and with it the disconnect."""
    async with served() as server:
        stream = await server.send(UPGRADE % b"/deaf")
        await server.watch.until_entered()
        await stream.send_all(frame(1, b"unread") * 15)
        await trio.testing.wait_all_tasks_blocked(0.01)
        reset(stream)
        await _assert_cancelled(server, "deaf")


# Chat page 23.6: with Hypercorn 0.18 these two pause the parser until the answer is out, and the client is not seen to go.
# test_listeners_hypercorn.py pins that; here is what the guard makes of it.


@pytest.mark.parametrize("manner", ["fin", "rst", "half-close"])
@pytest.mark.parametrize("first", [WAIT, STREAM], ids=["waiting", "streaming"])
async def test_leaving_with_a_second_request_pipelined(first: bytes, manner: str) -> None:
    async with served() as server:
        stream = await server.send(first + GET)
        name = await server.watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await _leave(stream, manner)
        await _assert_cancelled(server, name)


@pytest.mark.parametrize("head", [b"GET /wait", b"POST /wait"])
async def test_leaving_after_an_offer_of_h2c(head: bytes) -> None:
    async with served() as server:
        body = b"Content-Length: 2\r\n\r\n{}" if head.startswith(b"POST") else b"\r\n"
        stream = await server.send(head + b" HTTP/1.1\r\nHost: x\r\n" + H2C + body)
        await server.watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.aclose()
        await _assert_cancelled(server, "wait")


async def test_an_offer_of_h2c_is_passed_over() -> None:
    async with served() as server:
        offer = GET.replace(b"Host: x\r\n", b"Host: x\r\n" + H2C)
        first, second = await server.exchange(offer + CLOSE_GET)
        assert (first.status, first.body, second.body) == (200, b"hello", b"hello")


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async with served() as server:
        stream = await server.send(WAIT + GET * 100)
        await server.watch.until_entered()
        for _ in range(100):
            await stream.send_all(GET)
        await stream.send_all(CLOSE_GET)
        server.release.set()
        answers = parse(await read_to_end(stream))
        assert [answer.body for answer in answers] == [b"released"] + [b"hello"] * 201


async def test_leaving_with_more_pipelined_than_is_read_ahead() -> None:
    """Past READ_AHEAD_BYTES nothing is read; the client is seen to go by a look once a second."""
    async with served() as server:
        stream = await server.send(WAIT)
        await server.watch.until_entered()
        await stream.send_all(GET * (150 * 1024 // len(GET)))
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send_eof()
        assert await server.watch.until_left(3.0) == "wait cancelled"


async def test_leaving_a_socket_with_a_full_mailbox() -> None:
    async with served() as server:
        stream = await server.send(UPGRADE % b"/deaf")
        await server.watch.until_entered()
        await stream.send_all(frame(1, b"unread") * 500)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send_eof()
        assert await server.watch.until_left(3.0) == "deaf cancelled"
