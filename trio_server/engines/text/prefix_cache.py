"""Which sequence a prompt should run on, so that as little of it as possible has to be prefilled again.

Pure bookkeeping over token ids (section 25 of the chat page); `loop.py` applies the answer to the KV memory. Reuse is by
content alone: nothing here knows a session, a user or a cache key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

SMALLEST_MATCH_TOKENS = 32
"""A shorter match is not worth giving up a better-kept sequence for."""


def common_prefix(held: array[int], prompt: array[int]) -> int:
    """How many leading tokens two int32 arrays share."""
    length = min(len(held), len(prompt))
    if length == 0:
        return 0
    different = np.frombuffer(held, np.int32, length) != np.frombuffer(prompt, np.int32, length)
    first = int(different.argmax())
    return first if different[first] else length


def token_array(tokens: Iterable[int] = ()) -> array[int]:
    """Token ids as the int32 array that `Kept.tokens` holds."""
    return array("i", tokens)


@dataclass(slots=True)
class Kept:
    """What one sequence of the KV memory holds, and who used it last."""

    sequence: int
    tokens: array[int] = field(default_factory=token_array)
    busy: bool = False
    agent: bool = False
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Run on `sequence`, keeping its first `keep` tokens; first copy them from `copy_from` when that is given."""

    sequence: int
    keep: int
    copy_from: int | None = None


class PrefixCache:
    """The sequences of one context and what they hold. Not thread-safe: the engine thread owns it."""

    def __init__(self, sequences: int, *, enabled: bool, copy_at_least: int) -> None:
        self.kept = [Kept(sequence) for sequence in range(sequences)]
        self._enabled = enabled
        self._copy_at_least = copy_at_least
        self._clock = count(1)

    def place(self, prompt: Sequence[int], *, agent: bool = False) -> Placement:
        """Choose a free sequence for `prompt` and mark it busy. At least one prompt token is left to evaluate.

        Raises `LookupError` when no sequence is free, which the lanes on the trio side make impossible.
        """
        free = [kept for kept in self.kept if not kept.busy]
        if not free:
            raise LookupError("no sequence is free")
        best, best_match = free[0], 0
        donor, donor_match = None, 0
        if self._enabled:
            wanted = token_array(prompt[:-1])
            for kept in self.kept:
                match = common_prefix(kept.tokens, wanted)
                if not kept.busy and match > best_match:
                    best, best_match = kept, match
                elif kept.busy and match > donor_match:
                    donor, donor_match = kept, match
        if best_match < SMALLEST_MATCH_TOKENS:
            best = min(free, key=self._eviction_order)
            best_match = common_prefix(best.tokens, wanted) if self._enabled else 0
        if donor is not None and donor_match >= best_match + self._copy_at_least:
            target = min(free, key=self._eviction_order)
            placement = Placement(target.sequence, donor_match, donor.sequence)
            chosen, tokens = target, donor.tokens[:donor_match]
        else:
            placement = Placement(best.sequence, best_match)
            chosen, tokens = best, best.tokens[:best_match]
        chosen.tokens = tokens
        chosen.busy = True
        chosen.agent = agent
        chosen.last_used = next(self._clock)
        return placement

    @staticmethod
    def _eviction_order(kept: Kept) -> tuple[bool, bool, int, int]:
        # Empty ones first, in order, so that running sequences stay neighbours (separate KV streams batch only
        # neighbours); then an agent's before an interactive one's, then the least recently used.
        return (len(kept.tokens) > 0, not kept.agent, kept.last_used, kept.sequence)

    def append(self, sequence: int, tokens: Iterable[int]) -> None:
        """`tokens` are in the KV memory of `sequence` now."""
        self.kept[sequence].tokens.extend(tokens)

    def truncate(self, sequence: int, keep: int) -> None:
        """`sequence` holds only its first `keep` tokens any more."""
        del self.kept[sequence].tokens[keep:]

    def release(self, sequence: int) -> None:
        """The request on `sequence` is over; what it holds may serve a later prompt."""
        kept = self.kept[sequence]
        kept.busy = False
        kept.last_used = next(self._clock)

    def evict(self) -> int | None:
        """Forget what the least valuable free sequence holds, and say which; `None` when no free one holds anything."""
        candidates = [kept for kept in self.kept if not kept.busy and kept.tokens]
        if not candidates:
            return None
        victim = min(candidates, key=self._eviction_order)
        del victim.tokens[:]
        return victim.sequence
