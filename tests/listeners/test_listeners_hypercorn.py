"""What Hypercorn 0.18 does without the guard. A test that fails here says that the stack has changed: read
docs/adr/0002-guarded-listener.md, and see whether the part of the guard that answers this fact can go.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from tests.listeners.support import CLOSE_GET, GET, UPGRADE, Watch, make_app, parse, read_until


@asynccontextmanager
async def _bare() -> AsyncIterator[tuple[int, Watch, trio.Nursery]]:
    app, watch = make_app()
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = logging.getLogger("bare")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(serve, app, config)
            yield int(url.rpartition(":")[2]), watch, nursery
            nursery.cancel_scope.cancel()


async def _send(port: int, data: bytes) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(data)
    return stream


async def test_an_upgrade_with_a_trailing_byte_ends_the_server() -> None:
    """Hypercorn issue 225."""

    async def send_one_byte_too_many() -> None:
        async with _bare() as (port, _, _nursery):
            async with await _send(port, UPGRADE % b"/echo" + b"x"):
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await send_one_byte_too_many()
    assert caught.value.subgroup(h11.LocalProtocolError) is not None


async def test_a_pipelined_request_hides_the_disconnect() -> None:
    """Chat page 23.6."""
    async with _bare() as (port, watch, _):
        stream = await _send(port, b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.aclose()
        with trio.move_on_after(0.5):
            await watch.until_left()
            pytest.fail("seen")


async def test_h2c_is_taken_up_or_hides_the_disconnect() -> None:
    """Without a body the connection becomes HTTP/2, which the app is served by; with one, chat page 23.6."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    async with _bare() as (port, watch, _):
        stream = await _send(port, b"GET /wait HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        (answer,) = parse(await read_until(stream, b"\r\n\r\n"))
        assert (answer.status, answer.headers["upgrade"]) == (101, "h2c")
        await watch.until_entered()
        await stream.aclose()
        assert await watch.until_left(1.0) == "wait cancelled"

        stream = await _send(port, b"POST /wait HTTP/1.1\r\nHost: x\r\n" + offer + b"Content-Length: 2\r\n\r\n{}")
        await watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.aclose()
        with trio.move_on_after(0.5):
            await watch.until_left()
            pytest.fail("seen")


async def test_a_client_that_does_not_read_cannot_be_cancelled() -> None:
    async with _bare() as (port, watch, nursery):
        stream = await _send(port, b"GET /stream?size=100000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.2)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.move_on_after(0.5):
            await watch.until_left()
            pytest.fail("cancelled")
        await stream.aclose()


async def test_a_bad_handshake_leaves_the_connection_open() -> None:
    async with _bare() as (port, _, _nursery):
        stream = await _send(port, (UPGRADE % b"/echo").replace(b"Version: 13", b"Version: 8"))
        await read_until(stream, b" 400 ")
        with trio.move_on_after(0.5):
            assert await stream.receive_some() != b""
            pytest.fail("closed")
        await stream.aclose()


async def test_a_target_without_a_path_is_a_500() -> None:
    async with _bare() as (port, _, _nursery):
        stream = await _send(port, b"GET ?x HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_until(stream, b" 500 ")
        await stream.aclose()


async def test_connection_close_does_not_close() -> None:
    """Hypercorn reports the end of the request to the app before it closes; Quart-Trio then cancels the task that would."""
    async with _bare() as (port, _, _nursery):
        stream = await _send(port, CLOSE_GET)
        await read_until(stream, b"hello")
        with trio.move_on_after(0.5):
            assert await stream.receive_some() != b""
            pytest.fail("closed")
        await stream.aclose()
