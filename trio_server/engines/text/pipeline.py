"""From a generation's bytes to deliverable text. Pure; one per request, for the streamed and the plain answer alike.

The order is the contract's (chat page, section 11):

    bytes -> UTF-8 -> channel split -> tool scanner -> stop sequences -> delta

of which the channel split and the tool scanner come with thinking and tools; each stage takes text and gives back the text
it no longer doubts. `models/turn.py` calls this with one token at a time.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from trio_server.engines.text.stops import Matched, StopMatcher

T = TypeVar("T")


class Delta(NamedTuple, Generic[T]):
    """`text` to deliver (possibly none), and the `entries` of the tokens whose text begins to come out with it.

    No entries without text. `stopped`: a stop sequence has ended the answer, nothing comes after this. A named tuple, as
    one is made for every token.
    """

    text: str
    entries: tuple[T, ...] = ()
    stopped: bool = False


class TextPipeline(Generic[T]):
    """Feed it each token's bytes, and with them an entry (its log-probabilities) to be delivered with the token's text.

    The text is what `bytes.decode("utf-8", "replace")` makes of all bytes, up to the stop sequence, however they were cut
    into tokens. An entry leaves, in order and once, with the delta in which the first of its token's text comes out: a
    later part may yet be taken by a stop sequence, and then no text would be left for the entry to go with. A character
    that several tokens make up brings the entries of all of them. A token none of whose text comes out has none.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._matcher = StopMatcher(stops) if stops else None
        self._partial = b""  # the first bytes of a character
        self._waiting: deque[tuple[int, T]] = deque()  # where in the text an entry's token begins, and the entry
        self._decoded = 0  # characters out of the decoder
        self._delivered = 0  # characters of them given away; both count only where something waits or may be held
        self._stopped = False

    def feed(self, piece: bytes, entry: T | None = None) -> Delta[T]:
        """The text that this token makes deliverable."""
        if self._matcher is None and not self._partial and piece.isascii():
            # Nothing is held anywhere, and nothing will be.
            return Delta(piece.decode("ascii"), (entry,) if piece and entry is not None else ())
        if self._stopped:
            return Delta("", (), True)
        if piece and entry is not None:
            self._waiting.append((self._decoded + self._breaks_off(piece), entry))
        text, used = utf_8_decode(self._partial + piece, "replace", False)
        self._partial = (self._partial + piece)[used:]
        self._decoded += len(text)
        return self._deliver(text if self._matcher is None else self._matcher.feed(text))

    def finish(self) -> Delta[T]:
        """What was held when generation ended by itself. An unfinished character becomes U+FFFD."""
        if self._stopped:
            return Delta("", (), True)
        text, _ = utf_8_decode(self._partial, "replace", True)
        self._partial = b""
        self._decoded += len(text)
        if self._matcher is None:
            return self._deliver(text)
        fed = self._matcher.feed(text)
        if isinstance(fed, Matched):
            return self._deliver(fed)
        rest = self._matcher.flush()
        return self._deliver(Matched(fed + rest.text_before, rest.stop) if isinstance(rest, Matched) else fed + rest)

    def _breaks_off(self, piece: bytes) -> bool:
        """Whether `piece` does not go on with the partial character, which is a U+FFFD then and no text of this token's."""
        return bool(self._partial) and len((self._partial + piece[:1]).decode("utf-8", "replace")) > 1

    def _deliver(self, fed: str | Matched) -> Delta[T]:
        if isinstance(fed, Matched):
            self._stopped = True
            fed = fed.text_before
        self._delivered += len(fed)
        if not self._waiting or not fed:
            return Delta(fed, (), self._stopped)
        entries: list[T] = []
        while self._waiting and self._waiting[0][0] < self._delivered:
            entries.append(self._waiting.popleft()[1])
        return Delta(fed, tuple(entries), self._stopped)
