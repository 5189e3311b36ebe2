"""Writing to clients that read slowly, or not at all."""

from __future__ import annotations

import pytest
import trio

from tests.listeners.support import UPGRADE, frame, parse, read_until, served
from trio_server.listeners import connection

STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("size", [20, 100_000])
async def test_a_client_that_stops_reading_loses_its_request(size: int) -> None:
    async with served(write_timeout_s=0.5) as server:
        stream = await server.connect(receive_buffer=4096)
        await stream.send_all(b"GET /stream?size=%d HTTP/1.1\r\nHost: x\r\n\r\n" % size)
        await server.watch.until_entered()
        started = trio.current_time()
        assert await server.watch.until_left() == "stream cancelled"
        assert 0.4 < trio.current_time() - started < 2.0
        # Reset, not closed: the kernel keeps nothing for it.
        with pytest.raises(trio.BrokenResourceError):
            await _read_all(stream)
        await server.assert_serves()


async def test_a_client_that_takes_a_little_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel calls a socket writable when a good part of its buffer is free; below that, what counts is that the
    backlog shrinks."""
    backlog = iter([1000, 900, 800, 800])
    monkeypatch.setattr(connection, "_unacknowledged", lambda _: next(backlog))
    async with served(write_timeout_s=0.3) as server:
        stream = await server.connect(receive_buffer=4096)
        await stream.send_all(b"GET /stream?size=1000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await server.watch.until_entered()
        started = trio.current_time()
        assert await server.watch.until_left() == "stream cancelled"
        assert 0.8 < trio.current_time() - started < 2.0
        await stream.aclose()


async def test_others_are_served_while_one_client_stalls() -> None:
    async with served(write_timeout_s=1.0) as server:
        stalled = await server.connect(receive_buffer=4096)
        await stalled.send_all(STREAM)
        await server.watch.until_entered()
        slowest, answered = 0.0, 0
        while server.watch.active:
            started = trio.current_time()
            await server.assert_serves()
            slowest = max(slowest, trio.current_time() - started)
            answered += 1
        assert answered > 20
        assert slowest < 0.9


async def test_a_socket_client_that_stops_reading_is_closed() -> None:
    async with served(write_timeout_s=0.5) as server:
        stream = await server.connect(receive_buffer=4096)
        await stream.send_all(UPGRADE % b"/echo")
        await server.watch.until_entered()

        async def talk() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await _send_for_ever(stream, frame(2, b"z" * 50_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            assert await server.watch.until_left() == "echo cancelled"


async def test_a_slow_reader_is_served_whole() -> None:
    """It takes longer than the write timeout by far, but never pauses for so long."""
    size = 400_000
    async with served(write_timeout_s=0.3) as server:
        stream = await server.connect(receive_buffer=4096)
        request = b"GET /big?size=%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % size
        await stream.send_all(request)
        started, data = trio.current_time(), b""
        while piece := await stream.receive_some(4096):
            data += piece
            await trio.sleep(0.01)  # the client's pace, which is what is tested
        (answer,) = parse(data)
        assert answer.body == b"y" * size
        assert trio.current_time() - started > 0.6


async def test_a_request_that_is_cancelled_in_a_stuck_write_ends_soon() -> None:
    async with served(write_timeout_s=60.0) as server:
        stream = await server.connect(receive_buffer=4096)
        started = trio.current_time()
        await stream.send_all(b"GET /deadline-stream HTTP/1.1\r\nHost: x\r\n\r\n")
        with trio.fail_after(4):
            await read_until(stream, b"200")
            with pytest.raises(trio.BrokenResourceError):
                await _send_for_ever(stream, b"x", pause_s=0.05)
        assert trio.current_time() - started < 3.0


async def _read_all(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


async def _send_for_ever(stream: trio.SocketStream, data: bytes, pause_s: float = 0.0) -> None:
    """Learns of the server's reset without taking a byte of what it sent."""
    while True:
        await stream.send_all(data)
        await trio.sleep(pause_s)


async def test_a_large_answer_arrives_whole_and_fast() -> None:
    async with served() as server:
        (answer,) = await server.exchange(b"GET /big?size=20000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert len(answer.body) == 20_000_000
