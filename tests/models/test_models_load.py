"""A lane with a generation on it: the order of commands, and what moves the average."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.models.fakes import fake_load, generation
from trio_server.admission import EngineFull
from trio_server.engines.text.generation import Failed
from trio_server.engines.thread import EngineError
from trio_server.models.load import Load
from trio_server.models.turn import Turn


async def generate(load: Load, id: int) -> None:
    turn = Turn(())
    with load.generating(generation(id)) as events:
        async for event in events:
            turn.feed(event)


async def test_the_stop_of_a_lane_precedes_the_start_of_whoever_gets_it_next(autojump_clock: MockClock) -> None:
    load, engine = fake_load(1)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, load, 1)
            await wait_all_tasks_blocked()
            with pytest.raises(EngineFull):
                load.generating(generation(2)).__enter__()
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    with load.generating(generation(2)):  # no await between the release and this grant
        assert engine.commands == [("start", 1), ("stop", 1), ("start", 2)]
        assert load.lanes.statistics().held == 1
    assert load.lanes.statistics().held == 0


async def test_at_the_moment_a_lane_becomes_free_the_stop_is_posted() -> None:
    load, engine = fake_load(1)
    told: list[tuple[str, int]] = []
    release = load.lanes._release

    def watched(*arguments: object) -> None:
        told.extend(engine.commands)
        release(*arguments)

    load.lanes._release = watched
    with load.generating(generation(1)):
        pass
    assert told == [("start", 1), ("stop", 1)]


async def test_a_refused_request_tells_the_engine_nothing() -> None:
    load, engine = fake_load(1)
    with load.generating(generation(1)):
        with pytest.raises(EngineFull) as refusal, load.generating(generation(2)):
            raise AssertionError
        assert refusal.value.retry_after_s == 1
        assert engine.commands == [("start", 1)]


async def test_a_failure_of_the_engine_frees_the_lane_and_does_not_move_the_average(autojump_clock: MockClock) -> None:
    load, engine = fake_load(1)

    async def fail() -> None:
        await trio.sleep(50)
        engine.sends[1].send_nowait(Failed(1, "no room"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(EngineError, match="no room"):
            await generate(load, 1)
    assert load.lanes.statistics().held == 0
    assert load.lanes.statistics().average_hold_s is None
    engine.alive = False
    with pytest.raises(EngineError), load.generating(generation(2)):
        raise AssertionError
    assert load.lanes.statistics().held == 0
    assert load.lanes.statistics().average_hold_s is None


@pytest.mark.parametrize("ending", ["finish", "error", "cancel"])
async def test_every_other_ending_does(autojump_clock: MockClock, ending: str) -> None:
    load, _ = fake_load(1)
    with trio.move_on_after(5.0 if ending == "cancel" else 1000.0):
        try:
            with load.generating(generation(1)):
                await trio.sleep(1000.0 if ending == "cancel" else 5.0)
                if ending == "error":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert load.lanes.statistics().average_hold_s == 5.0
    assert load.lanes.statistics().held == 0
