"""Stopping: listeners and silent connections at once, requests in their time."""

from __future__ import annotations

import pytest
import trio
from hypercorn.utils import LifespanFailureError

from tests.listeners.support import CLOSE_GET, GET, UPGRADE, Served, make_app, parse, read_to_end, read_until, served
from trio_server.listeners import bind, serve

WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"


async def _stopped_within(server: Served, limit_s: float) -> None:
    with trio.fail_after(limit_s):
        await server.stopped.wait()


async def test_an_idle_server_stops_at_once() -> None:
    async with served() as server:
        fresh, used = await server.connect(), await server.send(GET)
        await read_until(used, b"hello")
        server.stopping.set()
        await _stopped_within(server, 1.5)
        assert await read_to_end(fresh) == b""
        assert await read_to_end(used) == b""
        with pytest.raises(OSError):
            await server.connect()


async def test_a_running_request_is_finished_and_says_close() -> None:
    async with served(drain_limit_s=30.0) as server:
        waiting = await server.send(WAIT)
        streaming = await server.send(b"GET /quiet-stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_until(streaming, b"first")
        for _ in range(2):
            await server.watch.until_entered()
        server.stopping.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(OSError):
            await server.connect()
        assert not server.stopped.is_set()
        server.release.set()
        await _stopped_within(server, 1.5)
        (answer,) = parse(await read_to_end(waiting))
        assert (answer.body, answer.headers["connection"]) == (b"released", "close")
        assert b"last" in await read_to_end(streaming)


async def test_what_outlasts_the_drain_limit_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async with served(drain_limit_s=lambda: 0.3) as server:
        waiting = await server.send(WAIT)
        socket = await server.send(UPGRADE % b"/echo")
        for _ in range(2):
            await server.watch.until_entered()
        server.stopping.set()
        started = trio.current_time()
        assert {await server.watch.until_left() for _ in range(2)} == {"wait cancelled", "echo cancelled"}
        assert 0.2 < trio.current_time() - started < 2.0
        await _stopped_within(server, 1.0)
        (answer,) = parse(await read_to_end(waiting))
        assert (answer.status, answer.error["code"]) == (503, "server_shutting_down")
        (upgraded,) = parse(await read_to_end(socket))
        assert upgraded.body.endswith(b"\x88\x02" + (1001).to_bytes(2, "big"))
    assert "requests that still ran 0.3 s after the stop were cancelled" in caplog.messages


async def test_a_stalled_client_does_not_hold_up_the_stop() -> None:
    async with served(drain_limit_s=0.1) as server:
        stream = await server.connect(receive_buffer=4096)
        await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await server.watch.until_entered()
        await trio.testing.wait_all_tasks_blocked(0.1)
        server.stopping.set()
        await _stopped_within(server, 4.0)


async def test_an_unfinished_head_is_told_of_the_stop() -> None:
    async with served() as server:
        stream = await server.send(b"GET /hello HTTP/1.1\r\nHo")
        await trio.testing.wait_all_tasks_blocked(0.05)
        server.stopping.set()
        (answer,) = parse(await read_to_end(stream))
        assert (answer.status, answer.error["code"]) == (503, "server_shutting_down")
        await _stopped_within(server, 1.5)


async def test_a_pipelined_request_is_not_begun_after_the_stop() -> None:
    async with served() as server:
        stream = await server.send(WAIT + CLOSE_GET)
        await server.watch.until_entered()
        server.stopping.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        server.release.set()
        (answer,) = parse(await read_to_end(stream))
        assert answer.body == b"released"
        await _stopped_within(server, 3.0)


async def test_cancelling_serve_closes_everything() -> None:
    app, watch = make_app()
    (sock,) = bind("127.0.0.1:0")
    port = sock.getsockname()[1]
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
            await serve(app, [sock], stopping=trio.Event(), task_status=task_status)

        (url,) = await nursery.start(run)
        assert url == f"http://127.0.0.1:{port}"
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(WAIT)
        await watch.until_entered()
        nursery.cancel_scope.cancel()
    stream.socket.close()
    assert await watch.until_left() == "wait cancelled"
    assert sock.fileno() == -1
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_the_lifespan_of_the_app_is_run() -> None:
    app, _ = make_app()
    steps = []

    @app.before_serving
    async def before() -> None:
        steps.append("before")
        app.add_background_task(trio.sleep, 0)  # needs the nursery that the lifespan opens

    @app.after_serving
    async def after() -> None:
        steps.append("after")

    async with served(app=app) as server:
        await server.assert_serves()
        assert steps == ["before"]
    assert steps == ["before", "after"]


async def test_a_failed_start_up_is_raised_and_closes_the_sockets() -> None:
    app, _ = make_app()

    @app.before_serving
    async def before() -> None:
        raise RuntimeError("no model")

    sockets = bind("127.0.0.1:0")
    with pytest.raises(ExceptionGroup) as caught:
        await serve(app, sockets, stopping=trio.Event())
    assert caught.value.subgroup(LifespanFailureError) is not None
    assert sockets[0].fileno() == -1
