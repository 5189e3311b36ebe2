"""Lanes under trio's mock clock: granted or refused at once, released once, and what a refusal says."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_server.admission import EngineFull, Lanes, LanesStatistics


async def hold(lanes: Lanes, hold_s: float, *, failed: bool = False) -> None:
    with lanes.lease_nowait() as lease:
        await trio.sleep(hold_s)
        if failed:
            lease.engine_failed()


def refusal(lanes: Lanes) -> int:
    with pytest.raises(EngineFull) as caught:
        lanes.lease_nowait()
    return caught.value.retry_after_s


async def test_lanes_are_granted_until_there_are_none(autojump_clock: MockClock) -> None:
    lanes = Lanes(2)
    with lanes.lease_nowait():
        assert lanes.statistics() == LanesStatistics(2, 1, None)
        with lanes.lease_nowait():
            assert lanes.statistics().held == 2
            assert refusal(lanes) == 1  # nothing has ended yet
            assert lanes.statistics().held == 2
        assert lanes.statistics().held == 1
        with lanes.lease_nowait():
            refusal(lanes)
    assert lanes.statistics().held == 0


@pytest.mark.parametrize(
    ("average_s", "age_s", "wait_s"),
    [(4.0, 0.0, 5), (4.0, 1.2, 4), (4.0, 4.0, 5), (0.3, 0.4, 2), (12.4, 20.0, 14), (58.2, 0.0, 60), (240.0, 238.6, 3)],
)
async def test_a_refusal_is_by_the_average_and_the_oldest_hold(
    autojump_clock: MockClock, average_s: float, age_s: float, wait_s: int
) -> None:
    lanes = Lanes(2)
    await hold(lanes, average_s)
    with lanes.lease_nowait():
        await trio.sleep(age_s)
        with lanes.lease_nowait():
            assert refusal(lanes) == wait_s


async def test_the_oldest_is_whoever_is_oldest_now(autojump_clock: MockClock) -> None:
    lanes = Lanes(2)
    await hold(lanes, 10.0)
    first = lanes.lease_nowait()
    first.__enter__()
    await trio.sleep(6.0)
    with lanes.lease_nowait():
        assert refusal(lanes) == 5  # the first one has 4 s left
        first.__exit__(None, None, None)  # after 6 s; the average is 9.5 now
        with lanes.lease_nowait():
            await trio.sleep(1.5)
            assert refusal(lanes) == 9  # of 9.5 s, 8 are left


async def test_the_average_follows_the_holds_of_the_page(autojump_clock: MockClock) -> None:
    lanes = Lanes(1)
    averages = []
    for hold_s in (8, 16, 4, 0.2, 120):
        await hold(lanes, hold_s)
        averages.append(lanes.statistics().average_hold_s)
    assert averages == pytest.approx([8, 9, 8.375, 7.353125, 21.433984375], abs=1e-9)


async def test_an_engine_failure_does_not_move_the_average(autojump_clock: MockClock) -> None:
    lanes = Lanes(1)
    await hold(lanes, 100.0, failed=True)
    assert lanes.statistics() == LanesStatistics(1, 0, None)
    with lanes.lease_nowait():
        assert refusal(lanes) == 1
    lanes = Lanes(1)
    await hold(lanes, 4.0)
    await hold(lanes, 100.0, failed=True)
    assert lanes.statistics().average_hold_s == 4.0


async def test_refusals_do_not_move_the_average(autojump_clock: MockClock) -> None:
    lanes = Lanes(1)
    with lanes.lease_nowait():
        for _ in range(5):
            await trio.sleep(1.0)
            refusal(lanes)
    assert lanes.statistics().average_hold_s == 5.0


async def test_however_the_block_is_left_the_lane_is_free(autojump_clock: MockClock) -> None:
    lanes = Lanes(1)
    with contextlib.suppress(KeyError), lanes.lease_nowait():
        raise KeyError
    assert lanes.statistics().held == 0
    with trio.move_on_after(3.0):
        await hold(lanes, 1000.0)
    assert lanes.statistics().held == 0
    assert lanes.statistics().average_hold_s == pytest.approx(3.0 / 8)  # a cancelled hold counts

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, lanes, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        assert lanes.statistics().held == 1
        nursery.cancel_scope.cancel()
    assert lanes.statistics().held == 0


async def test_a_lane_is_released_once(autojump_clock: MockClock) -> None:
    lanes = Lanes(2)
    with lanes.lease_nowait():
        with lanes.lease_nowait() as lease:
            pass
        with pytest.raises(KeyError):
            lease.__exit__(None, None, None)
        assert lanes.statistics() == LanesStatistics(2, 1, 0.0)


async def test_a_grant_is_no_checkpoint(autojump_clock: MockClock) -> None:
    """The lane that a cancelled request gives up is granted again in the same scheduling pass."""
    lanes = Lanes(1)
    with trio.testing.assert_no_checkpoints():
        with lanes.lease_nowait():
            refusal(lanes)
        with lanes.lease_nowait():
            assert lanes.statistics().held == 1
