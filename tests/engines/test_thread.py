"""`EngineThread`: the two doors, the life and the deaths of an engine thread, driven with a stand-in engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from trio_server.engines import thread as thread_module
from trio_server.engines.thread import EngineThread

NAME = "engine-under-test"


class StandIn:
    """An engine that does what the test says. `on_step` gets each step's commands and returns its events."""

    def __init__(self, on_step: Callable[[list[int]], list[int]] = lambda commands: commands) -> None:
        self.on_step = on_step
        self.steps_left = 0
        self.steps: list[list[int]] = []
        self.threads: set[str] = set()
        self.closed = 0
        self.on_close: Callable[[], None] = lambda: None

    @property
    def busy(self) -> bool:
        return self.steps_left > 0

    def step(self, commands: list[int], deliver: Callable[[list[int]], None]) -> None:
        self.steps_left = max(0, self.steps_left - 1)
        self.steps.append(commands)
        self.threads.add(threading.current_thread().name)
        if events := self.on_step(commands):
            deliver(events)

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed += 1
        self.on_close()


class Received:
    """The trio side's door: every delivery, and a way to wait for a number of events."""

    def __init__(self) -> None:
        self.deliveries: list[list[int]] = []
        self.threads: set[threading.Thread] = set()
        self._changed = trio.Event()

    def __call__(self, events: list[int]) -> None:
        self.deliveries.append(events)
        self.threads.add(threading.current_thread())
        self._changed.set()
        self._changed = trio.Event()

    @property
    def events(self) -> list[int]:
        return [event for delivery in self.deliveries for event in delivery]

    async def wait_for(self, count: int) -> None:
        while len(self.events) < count:
            await self._changed.wait()


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def test_commands_and_events_keep_their_order() -> None:
    engine, received = StandIn(), Received()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        for number in range(2000):
            engine_thread.post(number)
            if number % 400 == 0:
                await trio.lowlevel.checkpoint()
        await received.wait_for(2000)
        nursery.cancel_scope.cancel()
    assert received.events == list(range(2000))
    assert engine.threads == {NAME}
    assert received.threads == {threading.current_thread()}


async def test_a_step_takes_everything_that_waits_and_its_events_come_in_one_delivery() -> None:
    gate = threading.Event()

    def first_waits(commands: list[int]) -> list[int]:
        if commands == [0]:
            gate.wait()
        return [*commands, 100]

    engine, received = StandIn(first_waits), Received()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(0)
        while not engine.steps:  # the first step has begun, so the others wait at the door
            await trio.lowlevel.checkpoint()
        for number in (1, 2, 3):
            engine_thread.post(number)
        gate.set()
        await received.wait_for(6)
        nursery.cancel_scope.cancel()
    assert received.deliveries == [[0, 100], [1, 2, 3, 100]]


async def test_a_busy_engine_steps_without_commands_and_then_rests() -> None:
    engine, received = StandIn(lambda commands: [len(commands)]), Received()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine.steps_left = 5
        engine_thread.post(7)
        await received.wait_for(5)
        engine_thread.post(8)
        await received.wait_for(6)
        nursery.cancel_scope.cancel()
    assert engine.steps == [[7], [], [], [], [], [8]]


async def test_a_step_without_events_delivers_nothing() -> None:
    engine, received = StandIn(lambda commands: commands if commands == [2] else []), Received()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
        while len(engine.steps) < 1:
            await trio.lowlevel.checkpoint()
        engine_thread.post(2)
        await received.wait_for(1)
        nursery.cancel_scope.cancel()
    assert received.deliveries == [[2]]


async def test_a_crash_ends_run_and_says_why_after_the_events_before_it() -> None:
    def crash_at_three(commands: list[int]) -> list[int]:
        if 3 in commands:
            raise ValueError("the third one")
        return commands

    engine, received = StandIn(crash_at_three), Received()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
        await received.wait_for(1)
        engine_thread.post(3)
        await engine_thread.ended()
    assert received.events == [1]
    assert isinstance(engine_thread.error, ValueError)
    assert not engine_thread.alive
    assert engine.closed == 1
    engine_thread.post(4)  # dropped, harmless
    assert engine_thread.stuck_for_s() == 0.0


async def test_even_a_system_exit_on_the_thread_is_reported() -> None:
    def leave(commands: list[int]) -> list[int]:
        raise SystemExit(3)

    engine_thread = EngineThread[int, int](NAME, lambda: StandIn(leave), Received())
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
    assert isinstance(engine_thread.error, SystemExit)


async def test_a_failed_opening_is_raised() -> None:
    def open_engine() -> StandIn:
        raise OSError("no such model")

    engine_thread = EngineThread[int, int](NAME, open_engine, Received())
    with pytest.raises(OSError, match="no such model"):
        await engine_thread.run()
    assert not engine_thread.alive
    assert not engine_threads()


async def test_an_error_while_closing_is_reported_and_run_returns() -> None:
    engine = StandIn()

    def broken_step(commands: list[int]) -> list[int]:
        raise ValueError("first")

    def broken_close() -> None:
        raise KeyError("second")

    engine.on_step, engine.on_close = broken_step, broken_close
    engine_thread = EngineThread[int, int](NAME, lambda: engine, Received())
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
    assert isinstance(engine_thread.error, ValueError)  # the cause, not what came of it


async def test_cancelling_run_closes_the_engine_and_joins_the_thread() -> None:
    engine = StandIn()
    engine_thread = EngineThread[int, int](NAME, lambda: engine, Received())
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        assert engine_thread.alive
        nursery.cancel_scope.cancel()
    assert engine.closed == 1
    assert engine_thread.error is None
    assert not engine_thread.alive
    for thread in engine_threads():  # it has told trio that it ends; its last instructions may still run
        thread.join(1)
    assert not engine_threads()


async def test_cancelling_run_while_the_engine_opens_closes_it_too() -> None:
    engine, opening, gate = StandIn(), trio.Event(), threading.Event()

    def open_engine() -> StandIn:
        trio.from_thread.run_sync(opening.set, trio_token=token)
        gate.wait()
        return engine

    token = trio.lowlevel.current_trio_token()
    engine_thread = EngineThread[int, int](NAME, open_engine, Received(), interrupt=gate.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine_thread.run)
        await opening.wait()
        nursery.cancel_scope.cancel()
    assert engine.closed == 1
    assert engine_thread.error is None


async def test_stop_overtakes_a_long_native_call_through_interrupt() -> None:
    interrupted, begun = threading.Event(), threading.Event()

    def native(commands: list[int]) -> list[int]:
        begun.set()
        interrupted.wait()
        raise RuntimeError("aborted")  # what a decode that was cut short does

    engine = StandIn(native)
    engine_thread = EngineThread[int, int](NAME, lambda: engine, Received(), interrupt=interrupted.set)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
        await trio.to_thread.run_sync(begun.wait)
        assert engine_thread.stuck_for_s() > 0
        nursery.cancel_scope.cancel()
    assert engine.closed == 1
    assert engine_thread.error is None, "an engine that was told to stop has not crashed"


async def test_a_command_behind_the_stop_is_never_seen() -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(commands: list[int]) -> list[int]:
        begun.set()
        gate.wait()
        return commands

    def interrupt() -> None:
        engine_thread.post(2)
        gate.set()

    engine = StandIn(slow)
    engine_thread = EngineThread[int, int](NAME, lambda: engine, Received(), interrupt=interrupt)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
    assert engine.steps == [[1]]


async def test_a_thread_that_never_comes_back_is_left_behind_after_the_join_limit(autojump_clock: MockClock) -> None:
    begun, gate = threading.Event(), threading.Event()

    def wedged(commands: list[int]) -> list[int]:
        begun.set()
        gate.wait()
        return [1]

    received = Received()
    engine_thread = EngineThread[int, int](NAME, lambda: StandIn(wedged), received)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(1)
        begun.wait()
        before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - before == pytest.approx(thread_module.JOIN_LIMIT_S)
    assert not engine_thread.alive, "nobody may be given work for a thread that was told to stop"
    gate.set()
    await engine_thread.ended()
    assert engine_thread.error is None


def test_a_thread_that_outlives_trio_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Event(), threading.Event()
    loud: list[object] = []
    monkeypatch.setattr(threading, "excepthook", loud.append)
    monkeypatch.setattr(thread_module, "JOIN_LIMIT_S", 0.01)

    def wedged(commands: list[int]) -> list[int]:
        begun.set()
        gate.wait()
        return [1]

    engine = StandIn(wedged)

    async def main() -> None:
        engine_thread = EngineThread[int, int](NAME, lambda: engine, lambda events: None)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine_thread.run)
            engine_thread.post(1)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
    (thread,) = engine_threads()
    gate.set()
    thread.join(5)
    assert not thread.is_alive()
    assert engine.closed == 1
    assert not loud


async def test_an_idle_engine_costs_nothing() -> None:
    engine_thread = EngineThread[int, int](NAME, lambda: StandIn(), Received())
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        before = time.process_time()
        await trio.sleep(1)  # the measurement itself, not a wait for something
        spent = time.process_time() - before
        nursery.cancel_scope.cancel()
    assert spent < 0.01


async def test_a_command_posted_from_a_delivery_is_served() -> None:
    """What a lane that ends and is handed on at once does: post from inside the callback."""
    received = Received()

    def deliver(events: list[int]) -> None:
        received(events)
        if events[-1] < 50:
            engine_thread.post(events[-1] + 1)

    engine_thread = EngineThread[int, int](NAME, StandIn, deliver)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine_thread.run)
        engine_thread.post(0)
        await received.wait_for(51)
        nursery.cancel_scope.cancel()
    assert received.events == list(range(51))
