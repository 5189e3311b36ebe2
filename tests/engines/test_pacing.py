"""How a step is divided: pure arithmetic on step times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.engines.text.pacing import (
    ALONE_STEP_S,
    BURST_OWED_S,
    ROUNDS_PER_STALL,
    SHORT_PROMPT_TOKENS,
    STALL_FACTOR,
    TILE_TOKENS,
    UNFELT_STALL_S,
    Pacing,
    Share,
)

ROUND_S = 0.013


def pacing(
    *, chunk: int = 128, share: int = 25, token_s: float = 0.001, round_s: float = ROUND_S, lanes: int = 4
) -> Pacing:
    """One that has seen rounds of `lanes`."""
    made = Pacing(chunk, share, token_s)
    for _ in range(3):
        made.record(lanes, 0, 0, round_s)
    return made


def test_nobody_decodes_whole_tiles_within_the_chunk() -> None:
    assert Pacing(128, 25, 0.001).divide(0, 4000, 0) == Share(False, 128)
    assert Pacing(1024, 25, 0.001).divide(0, 4000, 0) == Share(False, 448)
    assert Pacing(1024, 25, 0.1).divide(0, 4000, 0) == Share(False, TILE_TOKENS)
    assert Pacing(1024, 25, 0.001).divide(0, 7, 0) == Share(False, 7)


def test_nothing_to_read_everybody_decodes() -> None:
    assert pacing().divide(4, 0, 0) == Share(True, 0)


def test_a_share_of_0_is_one_round_per_full_chunk() -> None:
    assert pacing(share=0).divide(4, 4000, 0) == Share(True, 128)


def test_a_burst_of_short_prompts_comes_whole_and_is_paid_for_in_rounds() -> None:
    made = pacing()
    taken = []
    for _ in range(40):
        share = made.divide(4, 30, 0)
        assert share in (Share(False, 30), Share(True, 0))
        taken.append(share.decode)
        made.record(4 if share.decode else 0, share.prompt_tokens, 0, ROUND_S if share.decode else 0.030)
    first = taken.index(True)
    assert first * 0.030 / 3 == pytest.approx(BURST_OWED_S, abs=0.011), "the share owes a third of what prompts took"
    rounds_s, prompts_s = taken.count(True) * ROUND_S, taken.count(False) * 0.030
    assert rounds_s / (rounds_s + prompts_s) == pytest.approx(0.25, abs=0.08)  # some is still owed


def test_a_long_prompt_is_read_in_small_pieces_beside_the_lanes() -> None:
    share = pacing().divide(4, 4000, 0)
    assert share.decode
    assert share.prompt_tokens == 16  # 16 ms, which are 1.25 rounds


def test_far_behind_in_the_context_tiles_are_faster_and_stalls_rare() -> None:
    made = pacing()
    for _ in range(20):
        made.record(4, 8, 3000, ROUND_S + 8 * 0.012)
        made.record(0, TILE_TOKENS, 3000, TILE_TOKENS * 0.0045)
    sizes = []
    for _ in range(3 * ROUNDS_PER_STALL):
        share = made.divide(4, 900, 3000)
        assert share.decode
        sizes.append(share.prompt_tokens)
        made.record(4, share.prompt_tokens, 3000, ROUND_S + share.prompt_tokens * 0.0045)
    assert set(sizes) == {0, TILE_TOKENS}
    assert 1 <= sizes.count(TILE_TOKENS) <= 3


@given(
    ready=st.integers(0, 64),
    remaining=st.integers(0, 5000),
    position=st.integers(0, 100_000),
    chunk=st.integers(1, 16).map(lambda n: n * 128),
    share=st.integers(0, 99),
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 300), st.integers(0, 9000), st.floats(1e-6, 5.0)).filter(
            lambda step: step[0] + step[1] > 0
        ),
        max_size=30,
    ),
)
def test_a_step_always_gets_somewhere_and_never_takes_more_than_a_chunk(
    ready: int, remaining: int, position: int, chunk: int, share: int, steps: list[tuple[int, int, int, float]]
) -> None:
    if not ready and not remaining:
        remaining = 1
    made = Pacing(chunk, share, 0.001)
    for step in steps:
        made.record(*step)
    divided = made.divide(ready, remaining, position)
    assert 0 <= divided.prompt_tokens <= min(remaining, chunk)
    assert divided.decode or divided.prompt_tokens > 0
    if not ready:
        assert divided.prompt_tokens > 0


@given(st.floats(1e-4, 0.1), st.floats(1e-4, 0.02), st.integers(5, 60))
def test_no_gap_grows_far_and_the_lanes_keep_their_share(round_s: float, token_s: float, share: int) -> None:
    """A prompt of 2,000 tokens beside four lanes: at most one gap in twenty is long."""
    made = pacing(round_s=round_s, token_s=token_s, share=share)
    gaps, decode_s, prompt_s, left = [], 0.0, 0.0, 2000
    while left > SHORT_PROMPT_TOKENS:
        divided = made.divide(4, left, 0)
        assert divided.decode
        elapsed_s = round_s + divided.prompt_tokens * token_s
        made.record(4, divided.prompt_tokens, 0, elapsed_s)
        gaps.append(elapsed_s)
        decode_s += round_s
        prompt_s += elapsed_s - round_s
        left -= divided.prompt_tokens
    long = [gap for gap in gaps if gap > round_s + max(round_s * STALL_FACTOR, UNFELT_STALL_S, token_s) + 1e-9]
    assert len(long) <= len(gaps) / 20 + 1
    piece_is_one_token = token_s > round_s * (100 - share) / share
    if len(gaps) > 2 * ROUNDS_PER_STALL and not piece_is_one_token:
        assert decode_s / (decode_s + prompt_s) >= share / 100 - 0.08


@pytest.mark.parametrize("lanes", [1, 3, 7, 64])
def test_a_round_never_seen_is_judged_by_its_nearest(lanes: int) -> None:
    made = pacing(lanes=4)
    guess = made.decode_step_s(lanes)
    assert guess is not None
    assert (guess < ROUND_S) == (lanes < 4)
    assert Pacing(128).decode_step_s(lanes) is None


def test_alone_steps_stay_near_their_aim() -> None:
    made = Pacing(4096, 25, 0.001)
    made.record(0, 1024, 2000, 1024 * 0.003)
    size = made.divide(0, 4000, 2000).prompt_tokens
    assert size % TILE_TOKENS == 0
    assert size * made.prompt_token_s(2000, tiles=True) <= ALONE_STEP_S + TILE_TOKENS * 0.003
