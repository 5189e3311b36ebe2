"""Accepting connections and stopping: `serve`, the one way to run an app on sockets.

Takes the place of Hypercorn's trio `worker_serve`; the app's ASGI lifespan is still Hypercorn's.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext

from trio_server.listeners import framing
from trio_server.listeners.binding import url_of
from trio_server.listeners.connection import Connection, Shared
from trio_server.listeners.options import ListenerOptions

LOG = logging.getLogger("trio_server.listeners")

WEBSOCKET_MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
# How long accepting pauses after accept() failed, unless a connection ends before.
ACCEPT_PAUSE_S = 1.0
# A state that lasts, or comes and goes, is told at most so often.
REPEAT_S = 10.0

AsgiApp = Callable[..., Awaitable[None]]


async def serve(
    app: AsgiApp,
    sockets: Sequence[socket.socket],
    options: ListenerOptions | None = None,
    *,
    stopping: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI app on listening sockets until `stopping` is set and the last connection is gone.

    Owns and closes the sockets. Runs the app's lifespan around it all: a failed start-up raises Hypercorn's
    `LifespanFailureError` (in an exception group). Tells `task_status` the base URLs once connections are accepted.

    `stopping` closes the listeners and the silent connections at once; running requests go on, with `Connection: close`,
    until they end or `options.drain_limit_s` is over, and are then cancelled. Returns as soon as none is left. Cancelling
    the call closes everything at once and runs no lifespan shutdown.
    """
    options = options or ListenerOptions()
    config = _hypercorn_config()
    wrapped = ASGIWrapper(app)
    try:
        lifespan = Lifespan(wrapped, config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            shared = Shared(wrapped, config, options, WorkerContext(None))
            await _Server(shared).run(sockets, stopping, task_status)
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()


def _hypercorn_config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = LOG
    config.include_server_header = False
    config.h11_max_incomplete_size = framing.HEAD_LIMIT_BYTES
    config.keep_alive_max_requests = sys.maxsize
    config.websocket_max_message_size = WEBSOCKET_MESSAGE_LIMIT_BYTES
    return config


class _Server:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told_at: dict[str, float] = {}

    async def run(
        self, sockets: Sequence[socket.socket], stopping: trio.Event, task_status: trio.TaskStatus[list[str]]
    ) -> None:
        urls = [url_of(sock) for sock in sockets]
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, connections)
                task_status.started(urls)
                await stopping.wait()
                accepting.cancel_scope.cancel()
            await self._shared.context.terminated.set()
            for connection in list(self._shared.connections):
                connection.stop()
            limit_s = self._shared.options.drain_limit()
            connections.cancel_scope.deadline = trio.current_time() + limit_s
        if connections.cancel_scope.cancelled_caught:
            LOG.warning("requests that still ran %g s after the stop were cancelled", limit_s)

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    # Room is made only for a peer that waits, and before accept(): at the limit it waits in the kernel.
                    await trio.lowlevel.wait_readable(listener.socket)
                    await self._wait_for_room()
                    stream = await listener.accept()
                except OSError as error:
                    await self._pause(error)
                else:
                    connections.start_soon(Connection(self._shared, stream).run)

    async def _wait_for_room(self) -> None:
        limit = self._shared.options.max_connections
        while len(self._shared.connections) >= limit:
            if not self._shared.close_longest_idle():
                self._tell(logging.WARNING, "all %d connections are busy; new ones wait until one ends", limit)
            await self._shared.room.park()

    async def _pause(self, error: OSError) -> None:
        """accept() failed: mostly out of descriptors. The peer keeps its place in the kernel's queue."""
        name = errno.errorcode.get(error.errno or 0, "an error")
        self._tell(logging.ERROR, "accepting connections is paused: %s (%s)", name, os.strerror(error.errno or 0))
        self._shared.close_longest_idle()
        with trio.move_on_after(ACCEPT_PAUSE_S):
            await self._shared.room.park()

    def _tell(self, level: int, message: str, *args: Any) -> None:
        now = trio.current_time()
        if now - self._told_at.get(message, -REPEAT_S) >= REPEAT_S:
            self._told_at[message] = now
            LOG.log(level, message, *args)
