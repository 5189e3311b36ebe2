"""Finding stop sequences in text that arrives in pieces (chat page, section 11). Pure; `pipeline.py` calls it.

The rule, wherever the pieces are cut: the answer ends where a stop sequence first *begins* in the text ("the earliest match
in the text wins, at the same position the longest"). Three things follow for a matcher that sees the text grow:

- A sequence that is complete ends the answer at once when no other sequence that began before it can still be completed.
  That is nearly always so, and then generation stops with the token that completes the match.
- While one that began earlier may still be completed (`"abcd"` and `"bc"` after `"abc"`), the answer is not decided: both are
  held, and the token that decides is the one generation stops with. If generation ends first, the complete one stands.
- A longer sequence that begins at the same place (`"ab"` and `"abc"` after `"ab"`) is not waited for: the answer is the
  same whichever it is. `Matched.stop` names the longest that is there by then.

One Knuth-Morris-Pratt automaton per sequence says how much of it the text now ends with, so the work is linear in the text
for any sequences; the tables grow with the match, so a long sequence costs nothing until text looks like it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matched:
    """`stop` ended the answer; `text_before` is what may still be delivered of it."""

    text_before: str
    stop: str


class _Progress:
    """How much of one stop sequence the text so far ends with."""

    __slots__ = ("_borders", "_stop", "length")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = [0, 0]  # [n]: the longest proper prefix of stop[:n] that it also ends with, as far as needed
        self.length = 0  # of the longest proper prefix of the sequence that the text ends with

    def advance(self, character: str) -> bool:
        """Take one more character of the text; whether the sequence is complete with it."""
        stop, borders, length = self._stop, self._borders, self.length
        while length and stop[length] != character:
            length = borders[length]
        if stop[length] == character:
            length += 1
            if length == len(borders):
                border = borders[length - 1]
                while border and stop[border] != character:
                    border = borders[border]
                borders.append(border + (stop[border] == character))
        complete = length == len(stop)
        self.length = 0 if complete else length  # where it begins again is behind where it began, and of no interest
        return complete


class StopMatcher:
    """Feed it text; it gives back what may be delivered, or `Matched`, and is spent then."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty; none at all lets everything through."""
        if not all(stops):
            raise ValueError("a stop sequence is not empty")
        self._stops = tuple(stops)
        self._progress = [_Progress(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held: deque[str] = deque()
        self._held_length = 0
        self._complete: int | None = None  # where in the held text the earliest complete sequence begins

    def feed(self, text: str) -> str | Matched:
        """What may be delivered now. The longest tail that is a proper prefix of a stop sequence is held back."""
        if not text or (not self._held_length and self._firsts.isdisjoint(text)):
            return text
        longest = 0
        read = self._held_length
        self._held.append(text)
        self._held_length += len(text)
        for character in text:
            read += 1
            longest = 0
            for progress, stop in zip(self._progress, self._stops, strict=True):
                if progress.advance(character):
                    begins = read - len(stop)
                    self._complete = begins if self._complete is None else min(self._complete, begins)
                longest = max(longest, progress.length)
            if self._complete is not None and read - longest >= self._complete:
                return self._match(self._complete)
        decided = self._held_length - longest
        if self._complete is not None:
            self._complete -= decided
        return self._take(decided)

    def flush(self) -> str | Matched:
        """Generation has ended: what was held back is text, unless a sequence in it is complete."""
        if self._complete is not None:
            return self._match(self._complete)
        return self._take(self._held_length)

    def _match(self, begins: int) -> Matched:
        before = self._take(begins)
        rest = "".join(self._held)
        self._held.clear()
        self._held_length = 0
        return Matched(before, max((stop for stop in self._stops if rest.startswith(stop)), key=len))

    def _take(self, length: int) -> str:
        """The first `length` characters of what is held."""
        self._held_length -= length
        taken: list[str] = []
        while length:
            piece = self._held.popleft()
            if len(piece) > length:
                self._held.appendleft(piece[length:])
                piece = piece[:length]
            taken.append(piece)
            length -= len(piece)
        return "".join(taken)
