"""WebSockets through the guard, with a real client and with raw frames."""

from __future__ import annotations

import resource
from functools import partial

import pytest
import trio
import trio_websocket

from tests.listeners.support import CLOSE_GET, UPGRADE, frame, parse, read_to_end, read_until, served


async def test_messages_and_a_clean_close() -> None:
    async with served() as server:
        async with trio_websocket.open_websocket("127.0.0.1", server.ports[0], "/echo", use_ssl=False) as socket:
            for message in ("hello", b"\x00\x01", "x" * 300_000):
                await socket.send_message(message)
                assert await socket.get_message() == message
        assert socket.closed is not None
        assert socket.closed.code == 1000
        assert await server.watch.until_left() == "echo cancelled"


async def test_compression_is_not_negotiated() -> None:
    offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"
    async with served() as server:
        stream = await server.send((UPGRADE % b"/echo").replace(b"\r\n\r\n", b"\r\n" + offer))
        (answer,) = parse(await read_until(stream, b"\r\n\r\n"))
        assert answer.status == 101
        assert "sec-websocket-extensions" not in answer.headers
        await stream.send_all(frame(1, b"plain"))
        await read_until(stream, b"\x81\x05plain")
        await stream.aclose()


@pytest.mark.parametrize("upgrade", [b"WebSocket", b"websocket"])
async def test_a_ping_is_answered(upgrade: bytes) -> None:
    async with served() as server:
        stream = await server.send((UPGRADE % b"/echo").replace(b"Upgrade: websocket", b"Upgrade: " + upgrade))
        await server.watch.until_entered()
        await stream.send_all(frame(9, b"there?"))
        await read_until(stream, b"\x8a\x06there?")
        await stream.aclose()


async def test_a_message_over_the_limit_ends_the_socket() -> None:
    """Hypercorn sends 1009 and then goes on collecting: 200 MB sent were 200 MB held."""
    async with served() as server:
        stream = await server.send(UPGRADE % b"/echo")
        await server.watch.until_entered()
        await read_until(stream, b"\r\n\r\n")
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        megabyte = b"z" * 1024 * 1024

        async def pour() -> None:
            await stream.send_all(frame(2, megabyte, final=False))
            for _ in range(100):
                await stream.send_all(frame(0, megabyte, final=False))

        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await pour()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            received = await read_until(stream, b"\x88\x02")
            assert received.endswith((1009).to_bytes(2, "big"))
            assert await server.watch.until_left() == "echo cancelled"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
        await server.assert_serves()


async def test_a_refused_upgrade_is_an_answer_of_the_app() -> None:
    async with served() as server:
        (answer,) = await server.exchange(UPGRADE % b"/nope")
        assert answer.status == 404


async def test_a_bad_handshake_closes() -> None:
    """Hypercorn answers 400 and leaves the connection open for ever."""
    async with served() as server:
        (answer,) = await server.exchange((UPGRADE % b"/echo").replace(b"Version: 13", b"Version: 8"))
        assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")


async def test_data_before_the_handshake_was_answered() -> None:
    """In the same packet, and after it, while an app that takes its time has not accepted yet."""
    accept = trio.Event()
    left = trio.Event()

    async def slow(scope: dict[str, object], receive: object, send: object) -> None:
        if scope["type"] != "websocket":
            raise NotImplementedError
        try:
            await accept.wait()
        finally:
            left.set()

    slow.extensions = {"release": trio.Event()}  # type: ignore[attr-defined]
    async with served(app=slow) as server:
        (answer,) = await server.exchange(UPGRADE % b"/" + b"x")
        assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
        assert not left.is_set()
        stream = await server.send(UPGRADE % b"/")
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send_all(b"x")
        (answer,) = parse(await read_to_end(stream))
        assert answer.status == 400
        with trio.fail_after(1):
            await left.wait()


async def test_many_sockets_at_once() -> None:
    async with served() as server:

        async def talk(number: int) -> None:
            url = partial(trio_websocket.open_websocket, "127.0.0.1", server.ports[0], "/echo", use_ssl=False)
            async with url() as socket:
                await socket.send_message(str(number))
                assert await socket.get_message() == str(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(talk, number)
        (answer,) = await server.exchange(CLOSE_GET)
        assert answer.status == 200
