"""Tokens that nobody wants, added to a batch because it is faster with them.

llama.cpp's repacked CPU kernels multiply four rows at a time and take what is left over one by one, each at nearly the price
of four: a batch of 7 tokens costs more than one of 8, and one of 3 about what 4 cost. And separate KV streams are put
into one pass only while their numbers follow each other. So free sequences ride along with the decoding ones where that
closes a gap or fills a block; `loop.py` takes their token out of the KV memory again right after. `measure` finds out whether
this holds for a model on this machine. docs/adr/0005-padded-batches.md has the figures.

`riders`, `stragglers_first` and `tail` are pure; `measure` runs a context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, TypeVar

from trio_server.engines.text.llama import Context

T = TypeVar("T")

BLOCK_TOKENS = 4
PROMPT_TOKENS = 64
_REPEATS = 3
_WORTH_IT = 0.97


def riders(decoding: Sequence[int], free: Container[int], sequences: int, block: int) -> list[int]:
    """Which free sequences should add a token to a step of the `decoding` ones (rising numbers), in no order.

    None, unless at most half a block is missing to whole blocks: each rider costs a little itself. Two decoding sequences
    are better left alone.
    """
    count = len(decoding)
    spare = tail(count, block)
    if count < block - 1 or not spare:
        return []
    first, last = decoding[0], decoding[-1]
    members = set(decoding)
    gaps = [sequence for sequence in range(first, last) if sequence not in members]
    if len(gaps) > spare or not all(gap in free for gap in gaps):
        return []
    result = gaps
    while len(result) < spare and last + 1 < sequences and last + 1 in free:
        last += 1
        result.append(last)
    while len(result) < spare and first > 0 and first - 1 in free:
        first -= 1
        result.append(first)
    return result


def stragglers_first(decoding: Sequence[T], block: int) -> list[T]:
    """Rising neighbours reordered for llama.cpp: those that fill no block in falling order, then the rest in rising order.

    What follows its predecessor shares a pass with it; a pass of its own costs a lane less than being left over.
    """
    whole = len(decoding) - len(decoding) % block
    return [*reversed(decoding[whole:]), *decoding[:whole]]


def tail(tokens: int, block: int) -> int:
    """How many tokens to add behind a run of `tokens`: up to half a block, since each costs a little itself."""
    spare = -tokens % block
    return spare if spare <= block // 2 else 0


class Measured(NamedTuple):
    """What a context told about itself: tokens per block (1: no blocks), and seconds per token of a fresh prompt."""

    block: int
    prompt_token_s: float


def measure(context: Context, *, clock: Callable[[], float] = time.perf_counter) -> Measured:
    """Time a few decodes of up to `PROMPT_TOKENS` tokens on sequence 0, which is empty afterwards."""

    def fastest(tokens: int, *, repeats: int = _REPEATS) -> float:
        best = float("inf")
        for _ in range(repeats):
            context.cut(0, 0)
            context.batch.clear()
            context.batch.extend([0] * tokens, 0, 0, want_last=True)
            start = clock()
            context.decode()
            best = min(best, clock() - start)
        context.cut(0, 0)
        return best

    most = min(context.batch.capacity, context.tokens_per_sequence, PROMPT_TOKENS)
    fastest(1, repeats=1)  # the first decode also builds graphs
    prompt_token_s = fastest(most, repeats=1) / most
    if most < BLOCK_TOKENS:
        return Measured(1, prompt_token_s)
    pays = fastest(BLOCK_TOKENS) < fastest(BLOCK_TOKENS - 1) * _WORTH_IT
    return Measured(BLOCK_TOKENS if pays else 1, prompt_token_s)
