"""The tasks that an app runs in: Hypercorn's trio `TaskGroup`, so that no app and no message can hold a connection.

Used by `connection.py` only; Hypercorn's streams call `spawn_app`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

LOG = logging.getLogger("trio_server.listeners")

# How long a task that was cancelled may still write: the end of what it was sending, or its one error answer.
LAST_WORDS_S = 1.0

Send = Callable[[ASGISendEvent | None], Awaitable[None]]
Put = Callable[[ASGIReceiveEvent], Awaitable[None]]


class AppTasks(TaskGroup):
    """Runs apps in the nursery of one connection, which the caller opens.

    Differs from Hypercorn's in three points. A message for an app that has ended is dropped, where Hypercorn may wait for
    ever. A disconnect never waits behind unread messages: an app that does not read is cancelled; `attend` (see `Link`)
    is what sees the peer go while a full mailbox holds up the reading. And no exception of an app leaves its task.
    """

    def __init__(
        self, nursery: trio.Nursery, attend: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._nursery: trio.Nursery = nursery
        self._attend = attend

    async def spawn_app(self, app: AppWrapper, config: Config, scope: Scope, send: Send) -> Put:
        """Start the app; returns what puts a message into its mailbox."""
        sender, mailbox = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)
        running = trio.CancelScope()

        async def put(message: ASGIReceiveEvent) -> None:
            try:
                # No checkpoint here: Hypercorn says "disconnect" from within the app's last send, before it closes the
                # connection, and Quart-Trio cancels that send at its next checkpoint. Then it was never closed.
                sender.send_nowait(message)
            except trio.BrokenResourceError:
                pass  # the app has ended
            except trio.WouldBlock:
                if message["type"] in {"http.disconnect", "websocket.disconnect"}:
                    running.cancel()
                else:
                    await self._attend(partial(deliver, message))

        async def deliver(message: ASGIReceiveEvent) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await sender.send(message)

        async def run() -> None:
            try:
                with running:
                    await app(scope, mailbox.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
            except* Exception as group:
                LOG.error("the app failed on a request", exc_info=group)
            finally:
                mailbox.close()
                # Tells Hypercorn that the app has ended, which then answers 500 if nothing was sent yet.
                with trio.move_on_after(LAST_WORDS_S, shield=True):
                    await send(None)

        self._nursery.start_soon(run)
        return put
