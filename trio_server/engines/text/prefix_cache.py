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

KEPT_WORTH = 0.2
"""What a kept token is worth against one that need not be prefilled now, on the sequence used last; it falls evenly to
next to nothing on the one used longest ago, and an agent's is worth half."""

EXTRA_PASS_TOKENS = 64
"""What a sequence away from the running ones costs, in prompt tokens: llama.cpp puts only neighbours into one pass."""


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
        matches = self._matches(prompt)
        chosen = max(
            free, key=lambda kept: (self._score(kept, matches[kept.sequence]), -kept.last_used, -kept.sequence)
        )
        placement = Placement(chosen.sequence, matches[chosen.sequence])
        tokens = chosen.tokens[: placement.keep]
        donor = max((kept for kept in self.kept if kept.busy), key=lambda kept: matches[kept.sequence], default=None)
        if donor is not None and matches[donor.sequence] >= placement.keep + self._copy_at_least:
            chosen = max(free, key=lambda kept: (self._score(kept, 0), -kept.last_used, -kept.sequence))
            placement = Placement(chosen.sequence, matches[donor.sequence], donor.sequence)
            tokens = donor.tokens[: placement.keep]
        chosen.tokens = tokens
        chosen.busy = True
        chosen.agent = agent
        chosen.last_used = next(self._clock)
        return placement

    def _matches(self, prompt: Sequence[int]) -> list[int]:
        """How much of the prompt each sequence holds, the last prompt token left out: it is always evaluated."""
        if not self._enabled:
            return [0] * len(self.kept)
        wanted = token_array(prompt[:-1])
        return [common_prefix(kept.tokens, wanted) for kept in self.kept]

    def _score(self, kept: Kept, match: int) -> float:
        """How good a place a free sequence is, in prompt tokens: saved, less what is given up, less an extra pass."""
        return match - self._worth(kept) * (len(kept.tokens) - match) - EXTRA_PASS_TOKENS * self._apart(kept.sequence)

    def _worth(self, kept: Kept) -> float:
        older = sum(1 for other in self.kept if other.last_used < kept.last_used)
        return KEPT_WORTH * (older + 1) / len(self.kept) * (0.5 if kept.agent else 1.0)

    def _apart(self, sequence: int) -> int:
        """1 when sequences run and none of them is a neighbour of this one."""
        neighbours = self.kept[max(0, sequence - 1) : sequence + 2]
        return int(any(kept.busy for kept in self.kept) and not any(kept.busy for kept in neighbours))

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
        victim = min(candidates, key=lambda kept: (self._worth(kept) * len(kept.tokens), kept.last_used))
        del victim.tokens[:]
        return victim.sequence
