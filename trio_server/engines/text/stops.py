"""Finding stop sequences in text that arrives in pieces (chat page, section 11). Pure.

The earliest match wins, and of those that begin at the same place the longest, as far as that can be said when a piece
arrives: a match that is complete with the text at hand ends the answer at once, since generation stops with the token that
completes it. Text that might still become a match is held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feed it text; it gives back what may be delivered. After `stopped` is true it gives nothing more."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self.stopped = False

    @property
    def held(self) -> str:
        """Text that is neither delivered nor known to be a stop sequence."""
        return self._held

    def feed(self, text: str) -> str:
        """What may be delivered now. A stop sequence never is, nor anything behind it."""
        if self.stopped:
            return ""
        pending = self._held + text
        found = [(at, -len(stop)) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return pending[: min(found)[0]]
        keep = self._possible_start(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _possible_start(self, pending: str) -> int:
        """The length of the longest tail that is a proper prefix of a stop sequence."""
        for length in range(min(len(pending), self._longest - 1), 0, -1):
            tail = pending[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def flush(self) -> str:
        """The held text: generation has ended, so it was no stop sequence."""
        held, self._held = self._held, ""
        return "" if self.stopped else held
