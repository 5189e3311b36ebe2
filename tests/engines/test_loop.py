"""The batching loop over a stand-in for llama.cpp: what goes into each batch, in which order, and how a generation ends."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.loop_driver import (
    END,
    Course,
    Driver,
    FakeContext,
    FakeSampler,
    FakeVocabulary,
    Operation,
    operations,
    perform,
)
from trio_server.engines.text.generation import Failed, Finished, Sampling, Started, Token
from trio_server.engines.text.llama import LlamaError
from trio_server.engines.text.loop import PACKED_PROMPT_TOKENS, TextLoop
from trio_server.engines.text.pacing import Pacing, Share
from trio_server.engines.text.prefix_cache import PrefixCache


class FixedPacing(Pacing):
    """A chunk is a chunk, whatever was measured."""

    def divide(self, ready: int, remaining: int, position: int) -> Share:
        return Share(True, min(self.prefill_chunk, remaining))


class Bench:
    """A loop over a stand-in context, with everything at hand."""

    def __init__(self, context: FakeContext | None = None, *, chunk: int = 10, **options: Any) -> None:
        self.context = context or FakeContext()
        self.cache = PrefixCache(self.context.sequences, enabled=options.pop("reuse", True), copy_at_least=128)
        self.samplers = FakeSampler()
        self.now_s = 0.0
        self.loop = TextLoop(
            cast(Any, self.context),
            cast(Any, FakeVocabulary()),
            pacing=options.pop("pacing", FixedPacing(chunk)),
            cache=self.cache,
            sampler=self.samplers,
            clock=self._clock,
            **options,
        )
        self.driver = Driver(self.loop, self.context, self.cache)
        self.submit, self.cancel, self.step, self.run = (
            self.driver.submit,
            self.driver.cancel,
            self.driver.step,
            self.driver.run,
        )

    def _clock(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def course(self, id: int) -> Course:
        return self.driver.courses[id]


def prompt(length: int, start: int = 100) -> range:
    return range(start, start + length)


# One generation


def test_one_generation_from_first_to_last_token() -> None:
    bench = Bench(chunk=10)
    id = bench.submit(prompt(25), 3)
    assert bench.step() == [Started(id, 0)]
    assert bench.step() == []
    assert bench.step() == [Token(id, 1025, b"<1025>", None)]
    assert bench.step() == [Token(id, 1026, b"<1026>", None)]
    assert bench.step() == [Token(id, 1027, b"<1027>", None), Finished(id, "length")]
    assert bench.context.decoded == [[(0, 10)], [(0, 10)], [(0, 5)], [(0, 1)], [(0, 1)]]
    assert bench.context.tokens(0) == [*prompt(25), 1025, 1026]
    assert not bench.loop.busy
    assert bench.step() == []
    assert bench.samplers.open == 0


def test_a_cap_of_one_takes_no_decode_step() -> None:
    bench = Bench()
    id = bench.submit(prompt(5), 1)
    assert bench.step() == [Started(id, 0), Token(id, 1005, b"<1005>", None), Finished(id, "length")]


def test_the_end_token_ends_it_and_is_no_token() -> None:
    bench = Bench(FakeContext(answer=lambda tokens: END if len(tokens) == 7 else 1000))
    id = bench.submit(prompt(5), 50)
    bench.run()
    assert bench.course(id).tokens == [1000, 1000]
    assert bench.course(id).end == Finished(id, "stop")


def test_an_end_token_as_the_first_one_gives_an_empty_answer() -> None:
    bench = Bench(FakeContext(answer=lambda tokens: END))
    id = bench.submit(prompt(5), 50)
    bench.run()
    assert bench.course(id).tokens == []
    assert bench.course(id).end == Finished(id, "stop")


def test_ignore_eos_goes_on_to_the_cap() -> None:
    bench = Bench(FakeContext(answer=lambda tokens: END))
    id = bench.submit(prompt(5), 6, ignore_eos=True)
    bench.run()
    assert bench.course(id).tokens == [END] * 6
    assert bench.course(id).end == Finished(id, "length")


def test_logprobs_are_those_of_the_raw_logits() -> None:
    context = FakeContext(answer=lambda tokens: 1)
    context.logits = lambda index: np.log(np.array([0.5, 0.3, 0.2], np.float32))  # type: ignore[attr-defined]
    bench = Bench(context)
    id = bench.submit(prompt(5), 1, top_logprobs=2)
    bench.run()
    (logprobs,) = bench.course(id).logprobs
    assert logprobs.logprob == pytest.approx(np.log(0.3), abs=1e-6)
    assert [token for token, _ in logprobs.top] == [0, 1]


def test_the_sampler_is_made_of_the_request() -> None:
    bench = Bench()
    bench.submit(prompt(5), 6, sampling=Sampling(temperature=0.5))
    bench.run()
    assert bench.samplers.made == [(Sampling(temperature=0.5), tuple(prompt(5)), 6, FakeVocabulary.size)]


# Refused at the door


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "reason"),
    [
        ([], 5, "empty"),
        ([100], 0, "no token may be generated"),
        ([100], -3, "no token may be generated"),
        (range(100, 190), 11, "do not fit the context"),
        ([100, -1], 5, "outside the vocabulary"),
        ([100, FakeVocabulary.size], 5, "outside the vocabulary"),
        ([2**40], 5, "outside the vocabulary"),
    ],
)
def test_a_request_that_cannot_be_served_fails_alone(tokens: list[int], max_tokens: int, reason: str) -> None:
    bench = Bench(FakeContext(2, tokens_per_sequence=100))
    good = bench.submit(prompt(90), 10)
    bad = bench.submit(tokens, max_tokens)
    bench.run()
    end = bench.course(bad).end
    assert isinstance(end, Failed)
    assert reason in end.message
    assert bench.course(good).end == Finished(good, "length")
    assert bench.samplers.open == 0


def test_a_sampler_error_fails_its_lane_alone() -> None:
    bench = Bench()
    bench.samplers.fail_after = {500: 2}
    bad = bench.submit(prompt(5, 500), 9)
    good = bench.submit(prompt(5), 9)
    bench.run()
    assert bench.course(bad).tokens == [1005, 1006]
    assert isinstance(bench.course(bad).end, Failed)
    assert len(bench.course(good).tokens) == 9
    assert bench.samplers.open == 0


def test_an_error_of_the_decode_is_a_crash_and_closing_frees_everything() -> None:
    closed: list[bool] = []
    bench = Bench(on_close=lambda: closed.append(bench.context.closed))
    bench.submit(prompt(5), 9)
    bench.step()
    bench.context.fail = LlamaError("llama_decode answered -3")
    with pytest.raises(LlamaError):
        bench.step()
    bench.loop.close()
    assert bench.samplers.open == 0
    assert closed == [True], "the model goes after its context"


# Cancelling


def test_after_a_cancel_in_the_first_of_fifty_chunks_no_other_is_evaluated() -> None:
    bench = Bench(chunk=10)
    id = bench.submit(prompt(500), 9)
    bench.step()
    bench.cancel(id)
    for _ in range(60):
        assert bench.step() == []
    assert bench.context.decoded == [[(0, 10)]]
    assert not bench.loop.busy
    assert bench.samplers.open == 0


def test_what_a_cancelled_prompt_left_serves_the_next() -> None:
    bench = Bench(chunk=40)
    id = bench.submit(prompt(500), 9)
    bench.step()
    bench.cancel(id)
    again = bench.submit(prompt(500), 9)
    bench.run()
    assert bench.course(again).cached_tokens == 40


def test_cancel_in_the_same_step_as_submit_evaluates_nothing() -> None:
    bench = Bench()
    id = bench.submit(prompt(50), 9)
    bench.cancel(id)
    assert bench.step() == [Started(id, 0)]
    assert bench.context.decoded == []
    assert bench.samplers.open == 0


def test_a_lane_given_up_and_handed_on_within_one_step() -> None:
    bench = Bench(FakeContext(sequences=1))
    first = bench.submit(prompt(50), 9)
    bench.step()
    for _ in range(5):  # each submits where the one before was just cancelled: there is only one sequence
        bench.cancel(first)
        first = bench.submit(prompt(50, 700), 9)
    bench.run()
    assert bench.course(first).end == Finished(first, "length")


def test_cancelling_what_has_ended_or_never_was_is_passed_over() -> None:
    bench = Bench()
    id = bench.submit(prompt(5), 1)
    bench.run()
    bench.cancel(id)
    assert bench.step() == []


def test_cancelling_a_decoding_lane_leaves_the_others() -> None:
    bench = Bench()
    ids = [bench.submit(prompt(5, 100 * place), 20) for place in (1, 2, 3)]
    for _ in range(6):
        bench.step()
    bench.cancel(ids[1])
    bench.run()
    assert [len(bench.course(id).tokens) for id in (ids[0], ids[2])] == [20, 20]


# Order and packing


def first_tokens(bench: Bench) -> list[int]:
    """Ids in the order of their first tokens."""
    order: list[int] = []
    while bench.loop.busy or not order:
        for event in bench.step():
            if isinstance(event, Token) and event.id not in order:
                order.append(event.id)
    return order


def test_decoding_lanes_and_one_chunk_share_a_batch_in_order_of_sequences() -> None:
    bench = Bench(chunk=100)
    bench.submit(prompt(5), 50)
    bench.submit(prompt(300, 1000), 50)
    bench.submit(prompt(6, 2000), 50)
    bench.step()
    bench.step()
    assert bench.context.decoded[-1] == [(0, 1), (1, 100), (2, 1)]


def test_the_shortest_rest_comes_first() -> None:
    bench = Bench(chunk=10)
    long, short = bench.submit(prompt(400), 2), bench.submit(prompt(60, 1000), 2)
    assert first_tokens(bench) == [short, long]


def test_a_reused_prompt_counts_by_what_is_left_of_it() -> None:
    bench = Bench(chunk=10)
    bench.submit(prompt(400), 1)
    bench.run()
    cold, warm = bench.submit(prompt(60, 1000), 2), bench.submit(prompt(410), 2)
    assert first_tokens(bench) == [warm, cold]


def test_a_short_prompt_overtakes_a_long_one_that_is_under_way() -> None:
    bench = Bench(chunk=10)
    long = bench.submit(prompt(400), 2)
    bench.step()
    short = bench.submit(prompt(20, 1000), 2)
    assert first_tokens(bench) == [short, long]


def test_a_long_prompt_does_not_starve_under_a_stream_of_short_ones() -> None:
    bench = Bench(chunk=10)
    long = bench.submit(prompt(400), 2)
    steps, place = 0, 0
    while not bench.course(long).tokens:
        if bench.driver.free_lanes:
            place += 1
            bench.submit([1000 + place, *prompt(19, 2000)], 1)
        bench.now_s += 0.02  # a step takes its time
        bench.step()
        steps += 1
        assert steps < 500, "starved"


def test_interactive_prompts_come_before_an_agents() -> None:
    bench = Bench(chunk=10)
    agent = bench.submit(prompt(40), 2, agent=True)
    person = bench.submit(prompt(400, 1000), 2)
    assert first_tokens(bench) == [person, agent]


def test_an_agents_tokens_are_decoded_beside_an_interactive_prompt() -> None:
    bench = Bench(chunk=10)
    agent = bench.submit(prompt(5), 30, agent=True)
    bench.step()
    bench.submit(prompt(100, 1000), 2)
    for _ in range(9):
        bench.step()
    assert len(bench.course(agent).tokens) == 10


def test_small_prompts_share_a_step() -> None:
    bench = Bench(chunk=100)
    half = PACKED_PROMPT_TOKENS // 2
    ids = [bench.submit(prompt(half, 1000 * place), 1) for place in (1, 2, 3)]
    bench.step()
    assert [bool(bench.course(id).tokens) for id in ids] == [True, True, False]
    assert bench.context.decoded == [[(0, half), (1, half)]]


def test_a_large_prompt_shares_a_step_with_no_other() -> None:
    bench = Bench(chunk=100)
    bench.submit(prompt(PACKED_PROMPT_TOKENS), 1)
    bench.submit(prompt(PACKED_PROMPT_TOKENS + 1, 1000), 1)
    bench.step()
    assert bench.context.decoded == [[(0, PACKED_PROMPT_TOKENS)]]


def test_a_chunk_leaves_room_for_the_decoding_lanes() -> None:
    bench = Bench(FakeContext(4, batch_tokens=20), chunk=500)
    for place in (1, 2, 3):
        bench.submit(prompt(3, 1000 * place), 40)
    bench.step()
    bench.submit(prompt(100, 200), 2)
    bench.step()
    assert bench.context.decoded[-1] == [(3, 17), (0, 1), (1, 1), (2, 1)]


# Reuse


def test_the_second_time_all_but_one_token_is_there() -> None:
    bench = Bench()
    bench.submit(prompt(90), 5)
    bench.run()
    again = bench.submit(prompt(90), 5)
    bench.run()
    assert bench.course(again).cached_tokens == 89


def test_the_next_turn_of_a_conversation_reuses_the_answer_too() -> None:
    bench = Bench()
    first = bench.submit(prompt(50), 5)
    bench.run()
    second = bench.submit([*prompt(50), *bench.course(first).tokens, 7, 8, 9], 5)
    bench.run()
    # The last generated token was never evaluated, so it is not in the memory.
    assert bench.course(second).cached_tokens == 50 + 4


def test_a_busy_lanes_prefix_is_copied() -> None:
    bench = Bench(chunk=500)
    bench.submit(prompt(400), 50)
    bench.step()
    other = bench.submit([*prompt(300), 7, 8], 5)
    bench.run()
    assert bench.course(other).cached_tokens == 300
    assert "copy 0 1" in bench.context.calls


def test_a_memory_that_cannot_be_cut_starts_over() -> None:
    bench = Bench(memory_can_be_cut=False)
    bench.submit(prompt(90), 5)
    bench.run()
    again = bench.submit(prompt(90), 5)
    bench.run()
    assert bench.course(again).cached_tokens == 0
    assert bench.course(again).tokens == [1090, 1091, 1092, 1093, 1094]


def test_a_cut_that_fails_starts_over() -> None:
    bench = Bench(FakeContext(1))
    bench.submit(prompt(90), 5)
    bench.run()
    bench.context.can_cut = False
    again = bench.submit([*prompt(60), 7, 8], 5)
    bench.run()
    assert bench.course(again).cached_tokens == 0
    assert bench.course(again).tokens == [1062, 1063, 1064, 1065, 1066]


# Full memory


def test_first_what_nobody_uses_is_given_up() -> None:
    bench = Bench(FakeContext(3, 100, pool_tokens=100))
    bench.submit(prompt(60), 1)
    bench.run()
    id = bench.submit(prompt(90, 1000), 5)
    bench.run()
    assert bench.course(id).end == Finished(id, "length")
    assert bench.course(id).cached_tokens == 0


def test_then_prompts_wait_while_the_others_decode() -> None:
    bench = Bench(FakeContext(2, 100, pool_tokens=100), chunk=50)
    first = bench.submit(prompt(60), 20)
    bench.step()
    bench.step()
    second = bench.submit(prompt(60, 1000), 20)
    bench.run()
    assert bench.course(first).end == Finished(first, "length")
    assert bench.course(second).end == Finished(second, "length")


def test_at_last_the_newest_fails() -> None:
    bench = Bench(FakeContext(3, 100, pool_tokens=100), chunk=50)
    ids = [bench.submit(prompt(30, 1000 * place), 60) for place in (1, 2, 3)]
    bench.run()
    first, *others = ids
    assert bench.course(first).end == Finished(first, "length")
    for id in others:
        end = bench.course(id).end
        assert isinstance(end, Failed)
        assert "full" in end.message
    assert len(bench.course(others[0]).tokens) > len(bench.course(others[1]).tokens), "the newest went first"
    assert bench.samplers.open == 0


def test_two_prompts_that_fit_only_one_at_a_time() -> None:
    bench = Bench(FakeContext(2, 100, pool_tokens=100), chunk=8)
    ids = [bench.submit(prompt(80, 1000 * place), 10) for place in (1, 2)]
    bench.run()
    assert isinstance(bench.course(ids[0]).end, Finished)
    assert bench.course(ids[1]).end is not None


# Any history


@settings(max_examples=150, deadline=None)
@given(
    todo=operations(longest_prompt=120, longest_answer=30, vocabulary=300),
    sequences=st.integers(1, 4),
    chunk=st.integers(1, 140),
    pool=st.none() | st.integers(60, 300),
    reuse=st.booleans(),
    share=st.sampled_from([0, 25, 99]),
    end_every=st.integers(3, 40),
)
def test_any_history_ends_with_everything_free(
    todo: list[Operation], sequences: int, chunk: int, pool: int | None, reuse: bool, share: int, end_every: int
) -> None:
    context = FakeContext(
        sequences,
        128,
        batch_tokens=chunk + sequences,
        pool_tokens=pool,
        answer=lambda tokens: END if len(tokens) % end_every == 0 else 1000 + len(tokens),
    )
    context.logits = lambda index: np.arange(5000, dtype=np.float32)  # type: ignore[attr-defined]
    bench = Bench(context, pacing=Pacing(chunk, share), reuse=reuse)
    perform(bench.driver, todo)
    assert bench.samplers.open == 0
