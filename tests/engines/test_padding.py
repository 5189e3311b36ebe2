"""Which tokens nobody wants are added to a batch, and in which order lanes stand in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.engines.text.padding import BLOCK_TOKENS, measure, riders, stragglers_first, tail


@pytest.mark.parametrize(
    ("decoding", "free", "expected"),
    [
        ([0, 1, 2], {3, 4}, [3]),
        ([1, 2, 3], {0, 4}, [4]),
        ([5, 6, 7], {4}, [4]),
        ([0, 1, 3], {2, 4}, [2]),
        ([0, 1, 2, 3, 4, 5], {6, 7}, [6, 7]),
        ([0, 1, 2, 3, 4, 5, 6], {7}, [7]),
        ([0, 1, 2], set(), []),
        ([0, 1], {2, 3}, []),
        ([0], {1, 2, 3}, []),
        ([0, 1, 2, 3], {4}, []),
        ([0, 1, 2, 3, 4], {5, 6, 7}, []),
        ([0, 3, 7], {1, 2, 4, 5, 6}, []),
    ],
)
def test_riders(decoding: list[int], free: set[int], expected: list[int]) -> None:
    assert sorted(riders(decoding, free, 8, BLOCK_TOKENS)) == expected
    assert riders(decoding, free, 8, 1) == []


@given(st.sets(st.integers(0, 15), min_size=1), st.sets(st.integers(0, 15)))
def test_riders_are_free_and_never_more_than_half_a_block(busy: set[int], others: set[int]) -> None:
    free = others - busy
    extra = riders(sorted(busy), free, 16, BLOCK_TOKENS)
    assert set(extra) <= free
    assert len(set(extra)) == len(extra) <= BLOCK_TOKENS // 2


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [([0], [0]), ([0, 1], [1, 0]), ([0, 1, 2, 3, 4], [4, 0, 1, 2, 3]), ([2, 3, 4, 5], [2, 3, 4, 5]), ([], [])],
)
def test_stragglers_stand_where_they_share_no_pass(decoding: list[int], expected: list[int]) -> None:
    assert stragglers_first(decoding, BLOCK_TOKENS) == expected


@pytest.mark.parametrize(("tokens", "added"), [(20, 0), (21, 0), (22, 2), (23, 1), (24, 0), (1, 0), (2, 2)])
def test_the_tail_of_a_prompt(tokens: int, added: int) -> None:
    assert tail(tokens, BLOCK_TOKENS) == added
    assert tail(tokens, 1) == 0


class TimedContext:
    """A stand-in that takes as long as it is told for a batch of each size."""

    def __init__(self, cost_s: dict[int, float]) -> None:
        self.cost_s = cost_s
        self.now_s = 0.0
        self.tokens_per_sequence = 64
        self.batch = self
        self.capacity = 128
        self.size = 0
        self.held = 0

    def clear(self) -> None:
        self.size = 0

    def extend(self, tokens: list[int], position: int, sequence: int, *, want_last: bool) -> int:
        self.size = len(tokens)
        return self.size - 1

    def decode(self) -> None:
        self.now_s += self.cost_s.get(self.size, 1.0)
        self.held += self.size

    def cut(self, sequence: int, keep: int) -> bool:
        self.held = keep
        return True


@pytest.mark.parametrize(("three_s", "four_s", "block"), [(9, 6, BLOCK_TOKENS), (6, 8, 1), (6, 6, 1)])
def test_blocks_are_used_where_they_are_measured(three_s: float, four_s: float, block: int) -> None:
    context = TimedContext({3: three_s, 4: four_s, 64: 32.0})
    measured = measure(context, clock=lambda: context.now_s)  # type: ignore[arg-type]
    assert measured == (block, 0.5)
    assert context.held == 0
