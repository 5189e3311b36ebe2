"""The object graph, and its life: check, bind, load, warm up, serve, drain, stop.

`serve(settings)` is the process's whole run and returns its exit status. The root nursery is in `Server.run`; every task
of the server is in it or below.
"""

from __future__ import annotations

import errno
import gc
import os
import secrets
import signal
import socket
import sys
import time
from typing import TypeVar

import trio

from trio_server import __version__, listeners
from trio_server.admission import Cut, Running
from trio_server.app import create_app
from trio_server.config import Settings, is_loopback
from trio_server.engines.text.engine import TextEngine
from trio_server.engines.text.llama import route_native_log
from trio_server.engines.thread import EngineError
from trio_server.models.load import Load
from trio_server.models.plan import StartRefused, TextPlan, plan_start
from trio_server.observe import events, log
from trio_server.wire import errors

E = TypeVar("E", bound=BaseException)

LAST_FRAMES_S = 2.0
"""How long cut requests get to write their error."""

WATCH_EVERY_S = 5.0
GC_THRESHOLD = 20_000
SWITCH_INTERVAL_S = 100e-6


def serve(settings: Settings) -> int:
    """Run the server until it is told to stop. Returns the exit status: 0, or 1 for a start that failed (2 for a setting)."""
    options = log.LogOptions(
        level=settings.log.level, format=settings.log.format, path=settings.log.path, requests=settings.log.requests
    )
    # The engine thread wants Python's lock for microseconds between two decodes; by default it would wait for it until the
    # trio side blocks or five milliseconds are over.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with log.running(options):
            route_native_log(lambda level, text: log.dependency("llama.cpp", level, text))
            return trio.run(Server(settings).run)
    except StartRefused as refusal:
        sys.stderr.write(f"trio-server: {refusal}\n")
        return refusal.exit_status


class Server:
    """What the routes share. Made before anything runs; `run` is its life. Trio side only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.running = Running()
        self.load: Load | None = None
        self.status = "loading"
        self.reason = ""
        self.stopping = trio.Event()
        self.api_key = settings.server.api_key
        self.bound_to_loopback = is_loopback(settings.server.bind)
        self._stop_asked = trio.Event()
        self._starting = trio.CancelScope()
        self._started_s = time.monotonic()
        self._cut = 0
        self._load_ms: float | None = None
        self._engine: TextEngine | None = None

    @property
    def healthy(self) -> bool:
        """Whether every engine that was started is alive and makes steps."""
        return self.status != "failed" and not (self._engine is not None and self._engine.wedged)

    @property
    def unready_reason(self) -> str | None:
        """Why a request would be refused for another reason than full lanes, or `None`."""
        if self.stopping.is_set():
            return "stopping"
        if self.status in ("loading", "failed"):
            return self.status
        if self._engine is not None and self._engine.wedged:
            return "engine_wedged"
        return None

    def stop(self) -> None:
        """Ask for a graceful stop, as the first SIGTERM does. A start that is still under way is given up."""
        self._stop_asked.set()
        self._starting.cancel()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED, signals: bool = True) -> int:
        """Serve until stopped, then return 0; `started(url)` once requests are served. Raises `StartRefused`.

        When cancelled, everything is cut at once. `signals`: watch SIGINT and SIGTERM (main thread only).
        """
        try:
            async with trio.open_nursery() as nursery:
                if signals:
                    await nursery.start(self._watch_signals)
                await self._live(task_status)
                nursery.cancel_scope.cancel()
        except* StartRefused as group:
            raise _first(group) from None
        log.emit(events.PROCESS_STOPPED, drained=self._cut == 0, cut=self._cut, uptime_ms=self._uptime_ms())
        return 0

    async def _live(self, task_status: trio.TaskStatus[str]) -> None:
        plan: TextPlan | None = None
        with self._starting:
            plan = await plan_start(self.settings)
        if self._stop_asked.is_set():
            return
        self._starting = trio.CancelScope()  # a scope is entered once; this one covers the load
        sockets = self._bind()
        url = listeners.url_of(sockets[0])
        async with trio.open_nursery() as nursery:
            closed = trio.Event()
            await nursery.start(self._listen, sockets, closed)
            self._announce_start(url)
            with self._starting:
                await self._start_engine(plan, nursery)
                # What the start made stays; a collection later should not walk it, nor run at every few requests.
                gc.collect()
                gc.freeze()
                gc.set_threshold(GC_THRESHOLD, 20, 20)
                self._announce_ready(url)
                task_status.started(url)
            await self._stop_asked.wait()
            await self._drain(closed)
            nursery.cancel_scope.cancel()

    def _bind(self) -> list[socket.socket]:
        address = self.settings.server.bind
        try:
            return listeners.bind(address)
        except OSError as error:
            reason = "already in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            verb = "is " if error.errno == errno.EADDRINUSE else "cannot be bound: "
            raise StartRefused(f"`{self.settings.spelling('server.bind')}`: {address} {verb}{reason}") from None

    async def _listen(
        self, sockets: list[socket.socket], closed: trio.Event, *, task_status: trio.TaskStatus[list[str]]
    ) -> None:
        server = self.settings.server
        options = listeners.ListenerOptions(
            write_timeout_s=server.write_timeout,
            max_connections=server.max_connections,
            max_sockets=server.max_sockets,
            # The listener's own refusals come before any route: they allow every origin, or none.
            error_headers=((b"access-control-allow-origin", b"*"),) if server.cors_origins == "*" else (),
            drain_limit_s=lambda: self.settings.server.shutdown_grace + 2 * LAST_FRAMES_S,
        )
        try:
            await listeners.serve(create_app(self), sockets, options, stopping=self.stopping, task_status=task_status)
        finally:
            closed.set()

    # The engine

    async def _start_engine(self, plan: TextPlan | None, nursery: trio.Nursery) -> None:
        if plan is None:
            self.status = "unloaded"
            self.reason = (
                "no model is configured and the starter model is not installed; name one with --model-artifact"
            )
            return
        await nursery.start(self._run_engine, plan)

    async def _run_engine(self, plan: TextPlan, *, task_status: trio.TaskStatus[None]) -> None:
        """Load, serve, and when the engine dies by itself say so and stay up, so that the page and the log can be read."""
        started_s = time.monotonic()
        log.emit(events.MODEL_LOAD_STARTED, model=plan.id, kind="text")
        engine = self._engine = TextEngine(plan.options)
        try:
            async with trio.open_nursery() as nursery:
                loaded = await nursery.start(engine.run)
                self.load = Load(plan, engine, loaded)
                self.status = "serving"
                self._load_ms = (time.monotonic() - started_s) * 1000  # warm-up included
                log.emit(
                    events.MODEL_LOADED,
                    model=plan.id,
                    kind="text",
                    duration_ms=self._load_ms,
                    memory_bytes=loaded.size_bytes,
                    adapted=plan.adapted,
                    context=loaded.max_context,
                    lanes=loaded.lanes,
                )
                task_status.started()
                nursery.start_soon(self._watch_engine, engine)
        except* EngineError as group:
            error = _first(group)
            log.emit(events.MODEL_LOAD_FAILED, model=plan.id, kind="text", reason=str(error))
            raise StartRefused(f"{plan.options.path} cannot be loaded: {error}") from None

    async def _watch_engine(self, engine: TextEngine) -> None:
        """Say once in the log that the engine has died, or that it has been sitting in one step for too long."""
        said = False
        while engine.alive:
            if engine.wedged and not said:
                said = True
                log.emit(events.ENGINE_WEDGED, engine="text")
            elif not engine.wedged:
                said = False
            with trio.move_on_after(WATCH_EVERY_S):
                await engine.ended()
        self.status = "failed"
        self.reason = "the text engine failed; see the server log"
        if engine.error is not None:
            log.emit_exception(events.ENGINE_FAILED, engine.error, engine="text")

    # Starting and stopping

    def _announce_start(self, url: str) -> None:
        server = self.settings.server
        if server.api_key == "auto":
            self.api_key = f"sk-trio-{secrets.token_hex(32)}"
            log.announce(f"trio-server: generated API key: {self.api_key}")
        if not self.bound_to_loopback and self.api_key is None:
            log.emit(events.ACCESS_OPEN_BIND, bind=server.bind)
        log.emit(
            events.PROCESS_STARTED,
            version=__version__,
            bind=url,
            api_key_required=self.api_key is not None,
            log_format=self.settings.log.format,
        )

    def _announce_ready(self, url: str) -> None:
        log.emit(events.PROCESS_READY, startup_ms=self._uptime_ms(), load_ms=self._load_ms, url=f"{url}/v1")
        serving = f"serving {self.load.id}, {self.load.lanes.capacity} lanes" if self.load else "no model is loaded"
        log.announce(f"trio-server ready: {url}/v1 ({serving})")

    async def _watch_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                if self._stop_asked.is_set():
                    os._exit(128 + number)  # asked twice: no drain, no flush
                log.emit(events.PROCESS_STOPPING, signal=signal.Signals(number).name, in_flight=len(self.running))
                self.stop()

    async def _drain(self, closed: trio.Event) -> None:
        """Let running requests finish within the grace, cut the rest, and give their last frames a moment."""
        self.stopping.set()
        with trio.move_on_after(self.settings.server.shutdown_grace):
            while self.running:
                with trio.move_on_after(WATCH_EVERY_S):
                    await self.running.drained()
                if self.running:
                    log.emit(events.PROCESS_DRAINING, remaining=len(self.running))
        self._cut = self.running.cut(
            Cut(
                errors.SERVER_SHUTTING_DOWN.code,
                "the server is shutting down and its grace for running requests is over",
            )
        )
        with trio.move_on_after(LAST_FRAMES_S):
            await closed.wait()
        # The engine is about to be stopped, in the middle of a decode if need be: what llama.cpp says to that is no error.
        route_native_log(lambda _level, text: log.dependency("llama.cpp", "debug", text))

    def _uptime_ms(self) -> float:
        return (time.monotonic() - self._started_s) * 1000


def _first(group: BaseExceptionGroup[E]) -> E:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error  # type: ignore[return-value]
