"""Time and number: heads, silent connections, connections, sockets, descriptors."""

from __future__ import annotations

import logging
import os
import resource
import socket

import pytest
import trio

from tests.listeners.support import GET, UPGRADE, frame, parse, read_to_end, read_until, served
from trio_server.listeners import ListenerOptions

WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"


def test_defaults() -> None:
    options = ListenerOptions()
    assert (options.write_timeout_s, options.head_timeout_s, options.keep_alive_timeout_s) == (60.0, 15.0, 75.0)
    assert (options.max_connections, options.max_sockets) == (1024, 256)
    assert ListenerOptions(drain_limit_s=lambda: 3.0).drain_limit() == 3.0


async def test_an_unfinished_head_is_cut() -> None:
    """However slowly it trickles in, and also on a connection that was used before."""
    async with served(head_timeout_s=0.3, keep_alive_timeout_s=30.0) as server:
        for before in (b"", GET):
            stream = await server.send(before)
            if before:
                await read_until(stream, b"hello")
            started = trio.current_time()
            async with trio.open_nursery() as nursery:

                async def trickle(stream: trio.SocketStream = stream) -> None:
                    for byte in b"GET /hello HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 1000:
                        await stream.send_all(bytes([byte]))
                        await trio.sleep(0.02)

                nursery.start_soon(trickle)
                (answer,) = parse(await read_until(stream, b"}}"))
                nursery.cancel_scope.cancel()
            assert (answer.status, answer.error["code"]) == (408, "body_timeout")
            assert 0.2 < trio.current_time() - started < 1.5
            assert await read_to_end(stream) == b""


async def test_a_head_in_pieces_is_served_in_time() -> None:
    async with served(head_timeout_s=5.0) as server:
        stream = await server.connect()
        for byte in GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"):
            await stream.send_all(bytes([byte]))
        (answer,) = parse(await read_to_end(stream))
        assert answer.body == b"hello"


async def test_a_silent_connection_is_closed_without_a_word() -> None:
    async with served(keep_alive_timeout_s=0.3) as server:
        started = trio.current_time()
        fresh, used = await server.connect(), await server.send(GET)
        await read_until(used, b"hello")
        assert await read_to_end(fresh) == b""
        assert await read_to_end(used) == b""
        assert 0.2 < trio.current_time() - started < 1.5


async def test_a_running_request_is_not_idle() -> None:
    async with served(keep_alive_timeout_s=0.1, head_timeout_s=0.1) as server:
        stream = await server.send(WAIT)
        with trio.move_on_after(0.4):
            await stream.receive_some()
            pytest.fail("answered or closed")
        server.release.set()
        assert b"released" in await read_to_end(stream)


async def test_keep_alive_serves_many_requests_on_one_connection() -> None:
    async with served() as server:
        stream = await server.connect()
        for _ in range(1500):
            await stream.send_all(GET)
            answers = parse(await read_until(stream, b"hello"))
            assert "connection" not in answers[0].headers
        await stream.aclose()


async def test_at_the_limit_the_longest_silent_connection_makes_room() -> None:
    async with served(max_connections=3) as server:
        streams = []
        for _ in range(3):
            streams.append(await server.send(GET))
            await read_until(streams[-1], b"hello")
        first, second, third = streams
        # Used again, so the second is now the longest silent one.
        await first.send_all(GET)
        await read_until(first, b"hello")
        await server.assert_serves()
        assert await read_to_end(second) == b""
        for stream in (first, third):
            await stream.send_all(GET)
            await read_until(stream, b"hello")
            await stream.aclose()


async def test_when_all_are_busy_new_connections_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with served(max_connections=2) as server:
        busy = [await server.send(WAIT) for _ in range(2)]
        for _ in busy:
            await server.watch.until_entered()
        waiting = await server.send(GET)
        with trio.move_on_after(0.2):
            await waiting.receive_some()
            pytest.fail("served above the limit")
        await busy[0].aclose()
        await read_until(waiting, b"hello")
        await waiting.aclose()
        await busy[1].aclose()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "all 2 connections are busy; new ones wait until one ends"
    ]


async def test_one_socket_too_many_is_refused_before_the_upgrade() -> None:
    async with served(max_sockets=2) as server:
        sockets = [await server.send(UPGRADE % b"/echo") for _ in range(2)]
        for _ in sockets:
            await server.watch.until_entered()
        (answer,) = await server.exchange(UPGRADE % b"/echo")
        assert (answer.status, answer.error["code"]) == (503, "engine_full")
        assert answer.headers["retry-after"] == "5"
        await sockets[0].aclose()
        await server.watch.until_left()
        third = await server.send(UPGRADE % b"/echo")
        await read_until(third, b"101")
        await third.send_all(frame(1, b"hi"))
        await read_until(third, b"hi")
        for stream in (sockets[1], third):
            await stream.aclose()


async def test_out_of_descriptors_pauses_accepting_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        silent = await server.send(GET)
        await read_until(silent, b"hello")
        client = trio.socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            await client.connect(("127.0.0.1", server.ports[0]))
            # The silent connection is closed, and its descriptor serves the one that waits.
            stream = trio.SocketStream(client)
            await stream.send_all(GET)
            await read_until(stream, b"hello")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await read_to_end(silent) == b""
        await stream.aclose()
        await server.assert_serves()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (record.levelno, record.name) == (logging.ERROR, "trio_server.listeners")
    assert record.getMessage().startswith("accepting connections is paused: EMFILE")


class _Wakes(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_an_idle_server_does_not_wake() -> None:
    """With a silent connection, a running request and an open socket."""
    async with served() as server:
        streams = [await server.send(data) for data in (GET, WAIT, UPGRADE % b"/echo")]
        await read_until(streams[0], b"hello")
        for _ in range(2):
            await server.watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.05)
        wakes = _Wakes()
        trio.lowlevel.add_instrument(wakes)
        await trio.sleep(1.2)
        trio.lowlevel.remove_instrument(wakes)
        assert wakes.count <= 2
        for stream in streams:
            await stream.aclose()


async def test_dead_peers_are_looked_for_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = trio.SocketStream.setsockopt

    def spy(self: trio.SocketStream, level: int, option: int, *args: object) -> None:
        seen.append((level, option))
        original(self, level, option, *args)  # type: ignore[call-overload]

    monkeypatch.setattr(trio.SocketStream, "setsockopt", spy)
    async with served() as server:
        await server.assert_serves()
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE) in seen
