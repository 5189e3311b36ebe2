"""A native engine on a thread of its own, with two doors.

Commands go in through a FIFO queue; events come back to the trio side in one `run_sync_soon` call per engine step. No lock is
shared: the engine's state is touched by its thread alone. As the queue is FIFO, whatever is given up and handed to somebody
else at once on the trio side is seen in that order by the engine. Text, speech and image engines all run on this.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

C = TypeVar("C")
E = TypeVar("E")

JOIN_LIMIT_S = 10.0


class EngineError(Exception):
    """The engine cannot do what was asked, now or ever again; the message is fit for a client."""


class Engine(Protocol[C, E]):
    """What an engine thread runs. Every method is called on that thread."""

    @property
    def busy(self) -> bool:
        """Whether there is a step to do without a new command."""
        ...

    def step(self, commands: list[C], deliver: Callable[[list[E]], None]) -> None:
        """Take `commands` in order and do one bounded piece of work. What happened goes to `deliver`, in one call as a
        rule, best right before a native call that releases the GIL, so that the trio side runs beside it.
        """
        ...

    def close(self) -> None:
        """Free everything native."""
        ...


class _Stop:
    """The last command."""


_STOP = _Stop()


class EngineThread(Generic[C, E]):
    """Runs one `Engine`. Made and used on the trio side; `run` is its life."""

    def __init__(
        self,
        name: str,
        open_engine: Callable[[], Engine[C, E]],
        deliver: Callable[[list[E]], None],
        *,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`open_engine` makes the engine, on its thread. `deliver` takes each step's events, on the trio side; it must
        not raise. `interrupt` may be called from the trio side to cut a long native call short when the thread is to end.
        """
        self._name = name
        self._open_engine = open_engine
        self._deliver = deliver
        self._interrupt = interrupt
        self._commands: queue.SimpleQueue[C | _Stop] = queue.SimpleQueue()
        self._opened = trio.Event()
        self._ended = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._working_since: float | None = None
        self._stopping = False  # written on the trio side, read by the thread
        self.error: BaseException | None = None
        """Why the thread ended, when it was not asked to."""

    @property
    def alive(self) -> bool:
        """Whether commands are taken. False as soon as the thread is told to stop, even while it sits in a native call."""
        return self._opened.is_set() and not self._ended.is_set() and not self._stopping

    async def ended(self) -> None:
        """Wait until the thread has ended, for whatever reason."""
        await self._ended.wait()

    def stuck_for_s(self) -> float:
        """How long the step now running has been running; 0 between steps."""
        since = self._working_since  # one read: the thread writes it
        return 0.0 if since is None else time.monotonic() - since

    def post(self, command: C) -> None:
        """Put a command in. Never blocks. Commands to a thread that has ended are dropped; `alive` tells."""
        self._commands.put(command)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the thread, wait until it has ended. `started()` once the engine is open; an error while it opens is raised.

        If the engine crashes later, `error` says why and this returns. When cancelled, the thread is told to stop and is
        joined for at most `JOIN_LIMIT_S`; a thread that sits longer in a native call is left behind (it is a daemon).
        """
        self._token = trio.lowlevel.current_trio_token()
        thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        thread.start()
        try:
            await self._opened.wait()
            if self.error is not None:
                raise self.error
            task_status.started()
            await self._ended.wait()
        finally:
            self._stopping = True
            self._commands.put(_STOP)
            self._interrupt()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + JOIN_LIMIT_S):
                await self._ended.wait()

    def _main(self) -> None:
        engine: Engine[C, E] | None = None
        try:
            engine = self._open_engine()
            self._call_trio(self._opened.set)
            self._loop(engine)
        except BaseException as error:  # noqa: BLE001 - nothing may die silently on this thread: `run` reports it
            self._failed(error)
        finally:
            self._working_since = None
            try:
                if engine is not None:
                    engine.close()
            except BaseException as error:  # noqa: BLE001 - as above
                self._failed(error)
            finally:
                self._call_trio(self._end)

    def _loop(self, engine: Engine[C, E]) -> None:
        while True:
            commands: list[C] = []
            if not engine.busy:
                first = self._commands.get()  # blocks without a timer: an idle engine costs nothing
                if isinstance(first, _Stop):
                    return
                commands.append(first)
            while True:
                try:
                    command = self._commands.get_nowait()
                except queue.Empty:
                    break
                if isinstance(command, _Stop):
                    return
                commands.append(command)
            self._working_since = time.monotonic()
            engine.step(commands, self._send)
            self._working_since = None

    def _failed(self, error: BaseException) -> None:
        # A step that `interrupt` cut short raises; that is no crash. The first error is the cause of the others.
        if not self._stopping and self.error is None:
            self.error = error

    def _send(self, events: list[E]) -> None:
        self._call_trio(self._deliver, events)

    def _end(self) -> None:
        self._ended.set()
        self._opened.set()

    def _call_trio(self, function: Callable[..., object], *arguments: object) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):  # the server is gone; nobody is left to tell
            self._token.run_sync_soon(function, *arguments)
