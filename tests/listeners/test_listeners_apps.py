"""Between the guard and the app: faults of the app, answers given early, interim answers, order of what is written."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.listeners.support import CLOSE_GET, GET, UPGRADE, make_app, parse, read_to_end, read_until, served


async def test_a_bug_of_the_app_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    """Quart answers what its handlers raise; what leaves Quart is answered by the guard."""

    async def broken(scope: dict[str, object], receive: object, send: object) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("no lifespan")
        raise RuntimeError("a bug")

    async with served() as server:
        (answer,) = await server.exchange(b"GET /boom HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.status == 500
        await server.assert_serves()
    app, _ = make_app()
    broken.extensions = app.extensions  # type: ignore[attr-defined]
    async with served(app=broken) as server:
        for request in (GET, UPGRADE % b"/echo"):
            (answer,) = await server.exchange(request)
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert "bug" not in answer.body.decode()
        (head,) = await server.exchange(GET.replace(b"GET", b"HEAD"))
        assert (head.status, head.body) == (500, b"")
    assert {"the app failed on a request"} <= {record.getMessage() for record in caplog.records}


async def test_an_answer_before_the_body_was_read_says_close() -> None:
    """And what the client goes on sending is dropped, so that it can read the answer."""
    async with served() as server:
        stream = await server.connect()
        await stream.send_all(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(40):
            await stream.send_all(b"z" * 100_000)
        (answer,) = parse(await read_to_end(stream))
        assert (answer.status, answer.headers["connection"]) == (404, "close")


async def test_an_expectation_is_met() -> None:
    async with served() as server:
        head = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        stream = await server.send(head)
        assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"abc")
        (answer,) = parse(await read_to_end(stream))
        assert answer.body == b"3"


async def test_connection_close_closes() -> None:
    """Under Hypercorn with Quart-Trio it does not: see test_listeners_hypercorn.py."""
    async with served() as server:
        stream = await server.send(CLOSE_GET)
        (answer,) = parse(await read_to_end(stream, limit_s=1.0))
        assert (answer.body, answer.headers["connection"]) == (b"hello", "close")


async def test_a_cancelled_write_leaves_the_framing_whole() -> None:
    """A task that is cancelled while it writes to a client that reads again soon: what it wrote is whole, and another task
    may say a last word (the error frame of a stream that the server ends)."""
    cancelled = trio.Event()

    async def app(scope: dict[str, Any], receive: object, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with trio.move_on_after(0.2):
            while True:
                await send({"type": "http.response.body", "body": b"a" * 20_000, "more_body": True})
        cancelled.set()
        await send({"type": "http.response.body", "body": b"END", "more_body": False})

    app.extensions = {"release": trio.Event()}  # type: ignore[attr-defined]
    async with served(app=app) as server:
        stream = await server.connect(receive_buffer=4096)
        await stream.send_all(CLOSE_GET)
        await trio.sleep(0.5)  # past the app's deadline, within its last words
        assert not cancelled.is_set()
        (answer,) = parse(await read_to_end(stream))
        assert cancelled.is_set()
        assert answer.body.endswith(b"aEND")
        assert (len(answer.body) - 3) % 20_000 == 0


@pytest.mark.parametrize("request_bytes", [GET, CLOSE_GET])
async def test_http_1_0_is_served_and_closed(request_bytes: bytes) -> None:
    async with served() as server:
        (answer,) = await server.exchange(request_bytes.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
