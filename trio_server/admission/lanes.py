"""The lanes of a load: a lease is the only way to work.

`lease_nowait` grants a lane or raises `EngineFull`, synchronously on the trio thread, so there is neither a wait nor a
race. Leaving the `with` block, however it is left, gives the lane back. What runs on the lane is stopped by an inner block
(the engine's `generating`), whose stop command is therefore posted before the lane can be granted again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import trio

from trio_server.admission.retry_after import HoldAverage, retry_after_s


class EngineFull(Exception):
    """Every lane is in use; ask again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"every lane is in use; retry after {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class LanesStatistics:
    """A look at the lanes: how many there are, how many are held, and the average hold in seconds."""

    capacity: int
    held: int
    average_hold_s: float | None


class Lease:
    """The right to one lane while its block runs. Made by `Lanes.lease_nowait`; enter it once."""

    def __init__(self, lanes: Lanes, started_s: float) -> None:
        self._lanes = lanes
        self._counts = True
        self.started_s = started_s

    def engine_failed(self) -> None:
        """This hold ends by an engine fault, so it says nothing about how long holds are."""
        self._counts = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lanes._release(self, self._counts)


class Lanes:
    """A fixed number of lanes. Trio side only; never blocks.

    Invariant: a lease is in `_held` from its grant to its release, and `len(_held) <= capacity`.
    """

    def __init__(self, capacity: int, *, clock: Callable[[], float] = trio.current_time) -> None:
        self.capacity = capacity
        self._clock = clock
        self._held: dict[Lease, None] = {}  # in the order of their grants, so the first is the oldest
        self._average = HoldAverage()

    def lease_nowait(self) -> Lease:
        """A lane, to be entered at once with `with`. Raises `EngineFull` when every lane is held."""
        now_s = self._clock()
        if len(self._held) >= self.capacity:
            oldest = next(iter(self._held))
            raise EngineFull(retry_after_s(now_s, oldest.started_s, self._average.value_s))
        lease = Lease(self, now_s)
        self._held[lease] = None
        return lease

    def _release(self, lease: Lease, counts: bool) -> None:
        del self._held[lease]
        if counts:
            self._average.record(self._clock() - lease.started_s)

    def statistics(self) -> LanesStatistics:
        return LanesStatistics(self.capacity, len(self._held), self._average.value_s)
