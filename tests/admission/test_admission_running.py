"""The requests now running: counted, cut together, drained."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_server.admission import Cut, Running

SHUTDOWN = Cut("server_shutting_down", "the server is shutting down")
SWITCH = Cut("model_switched", "the model was switched")


async def test_requests_are_counted_while_their_block_lasts() -> None:
    running = Running()
    assert len(running) == 0
    with running.request():
        with running.request():
            assert len(running) == 2
        assert len(running) == 1
    assert len(running) == 0


async def test_a_cut_cancels_what_may_be_cut_and_says_why(autojump_clock: MockClock) -> None:
    running = Running()
    ended: list[tuple[str, Cut | None]] = []

    async def request(name: str) -> None:
        with running.request() as work:
            with work.cancellable() as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            await trio.sleep(1.0)  # what follows, such as writing the error, is not cut
            ended.append((name, work.cut))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, "a")
        nursery.start_soon(request, "b")
        await wait_all_tasks_blocked()
        assert running.cut(SHUTDOWN) == 2
    assert sorted(ended) == [("a", SHUTDOWN), ("b", SHUTDOWN)]
    assert len(running) == 0


async def test_what_is_entered_after_the_cut_is_cancelled_at_once() -> None:
    running = Running()
    with running.request() as work:
        running.cut(SHUTDOWN)
        with work.cancellable() as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        with work.cancellable() as scope:
            pass  # no checkpoint, so nothing to cancel
        assert not scope.cancelled_caught


async def test_a_request_that_is_not_in_such_a_scope_is_not_cancelled() -> None:
    running = Running()
    with running.request() as work:
        with work.cancellable():
            pass
        running.cut(SHUTDOWN)
        await trio.lowlevel.checkpoint()
        assert work.cut is SHUTDOWN


async def test_all_scopes_of_a_request_are_cut_nested_or_side_by_side() -> None:
    running = Running()
    with running.request() as work:

        async def part() -> None:
            with work.cancellable(), work.cancellable():
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(part)
            nursery.start_soon(part)
            await wait_all_tasks_blocked()
            running.cut(SHUTDOWN)


async def test_the_first_cut_stands() -> None:
    running = Running()
    with running.request() as work:
        assert running.cut(SWITCH) == 1
        assert running.cut(SHUTDOWN) == 1
        assert work.cut is SWITCH


async def test_a_later_request_is_not_cut() -> None:
    running = Running()
    assert running.cut(SHUTDOWN) == 0
    with running.request() as work, work.cancellable() as scope:
        await trio.lowlevel.checkpoint()
    assert work.cut is None
    assert not scope.cancel_called


async def test_scopes_that_were_left_are_forgotten() -> None:
    with Running().request() as work:
        for _ in range(3):
            with work.cancellable():
                assert len(work._scopes) == 1
        assert not work._scopes


async def test_other_cancellations_pass_through() -> None:
    running = Running()
    reached = False
    with trio.CancelScope() as client_gone:
        client_gone.cancel()
        with running.request() as work:
            with work.cancellable():
                await trio.sleep_forever()
            reached = True
    assert client_gone.cancelled_caught
    assert not reached
    assert len(running) == 0


async def test_drained_waits_for_the_last_also_when_others_come_meanwhile(autojump_clock: MockClock) -> None:
    running = Running()
    await running.drained()  # nothing runs

    async def request(start_s: float, end_s: float) -> None:
        await trio.sleep(start_s)
        with running.request():
            await trio.sleep(end_s - start_s)

    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for start_s, end_s in ((0, 3), (1, 2), (2, 7)):
            nursery.start_soon(request, start_s, end_s)
        await wait_all_tasks_blocked()
        await running.drained()
        assert trio.current_time() - begun_s == 7
    with trio.move_on_after(1) as scope, running.request():
        await running.drained()
    assert scope.cancelled_caught
