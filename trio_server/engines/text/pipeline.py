"""From a generation's bytes to deliverable text: bytes -> UTF-8 -> stop sequences -> delta (chat page, section 11).

Pure; one per request. The streamed and the plain answer both come out of it. The channel split and the tool scanner have
their place between UTF-8 and the stop sequences.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trio_server.engines.text.stops import StopMatcher

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delta(Generic[T]):
    """Text to deliver and the entries of the tokens it came from. `stopped`: a stop sequence ended the answer."""

    text: str
    entries: tuple[T, ...] = ()
    stopped: bool = False


class TextPipeline(Generic[T]):
    """Feed it each token's bytes and an entry to be delivered with the token's text (or `None`).

    An entry leaves with the delta that carries the last of its token's text; a token that ends inside a character, or has
    no text, goes with the next text. A token none of whose text is delivered, because a stop sequence took it, has none.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopMatcher(stops) if stops else None
        self._waiting: list[tuple[int, int, T]] = []  # where the text begins, where it has to be out to, the entry
        self._decoded = 0  # characters out of the decoder
        self._delivered = 0  # characters given away

    def feed(self, piece: bytes, entry: T | None = None) -> Delta[T]:
        """The text that this token makes deliverable."""
        text = self._decoder.decode(piece)
        if self._stops is None and entry is None:
            return Delta(text)
        begins = self._decoded
        self._decoded += len(text)
        if entry is not None:
            open_ended = not piece or bool(self._decoder.getstate()[0])
            self._waiting.append((begins, self._decoded + open_ended, entry))
        if self._stops is None:
            return self._deliver(text)
        return self._deliver(self._stops.feed(text), stopped=self._stops.stopped)

    def finish(self) -> Delta[T]:
        """What was held back when generation ended by itself; an unfinished character becomes U+FFFD."""
        text = self._decoder.decode(b"", True)
        self._decoded += len(text)
        if self._stops is None:
            return self._deliver(text, last=True)
        text = self._stops.feed(text) + self._stops.flush()
        return self._deliver(text, stopped=self._stops.stopped, last=True)

    def _deliver(self, text: str, *, stopped: bool = False, last: bool = False) -> Delta[T]:
        self._delivered += len(text)
        if stopped:
            # What the stop sequence took is not delivered: only tokens that begin before it are.
            due = sum(1 for begins, _, _ in self._waiting if begins < self._delivered)
        elif last:
            due = len(self._waiting)
        else:
            due = sum(1 for _, ends, _ in self._waiting if ends <= self._delivered) if self._waiting else 0
        entries = tuple(entry for _, _, entry in self._waiting[:due])
        del self._waiting[:due]
        return Delta(text, entries, stopped)
