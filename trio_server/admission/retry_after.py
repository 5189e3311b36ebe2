"""How long a refused client should wait before it asks again, guessed from how long lanes have been held lately.

Pure arithmetic, the whole of section 21 of the chat page; `lanes.py` keeps the state. Times are seconds on any monotonic
clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NOTHING_ENDED_S = 1
LONGEST_WAIT_S = 59
OVERDUE_WAIT_S = 15
MARGIN_S = 1
_WEIGHT = 8


@dataclass(slots=True)
class HoldAverage:
    """The running average of lane holds; `value_s` is `None` until one has ended."""

    value_s: float | None = None

    def record(self, hold_s: float) -> None:
        """A request that held a lane for `hold_s` finished, was cancelled or was stopped."""
        if self.value_s is None:
            self.value_s = hold_s
        else:
            self.value_s += (hold_s - self.value_s) / _WEIGHT


def retry_after_s(now_s: float, oldest_start_s: float, average_hold_s: float | None) -> int:
    """Whole seconds for `Retry-After`, at least 1.

    `oldest_start_s` is when the request that has held a lane longest got it. While that one is due, the wait is what it
    still needs by the average; once it is overdue the prediction has failed and the wait is kept short.
    """
    if average_hold_s is None:
        return NOTHING_ENDED_S
    left_s = round(oldest_start_s + average_hold_s - now_s, 6)  # float noise must not add a second
    if left_s > 0:
        return _clamp(left_s, LONGEST_WAIT_S) + MARGIN_S
    return _clamp(average_hold_s, OVERDUE_WAIT_S) + MARGIN_S


def _clamp(seconds: float, most: int) -> int:
    return min(max(math.ceil(min(seconds, most)), 1), most)
