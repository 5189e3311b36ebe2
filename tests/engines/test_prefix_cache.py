"""The choice of a sequence for a prompt: section 25 of the chat page, row by row, and what must hold in any history."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_server.engines.text.prefix_cache import (
    Placement,
    PrefixCache,
    common_prefix,
    token_array,
)

CHUNK = 128


def cache_of(*held: range | list[int], busy: tuple[int, ...] = (), agents: tuple[int, ...] = ()) -> PrefixCache:
    """A cache whose sequences hold `held`, used in that order (the first is the least recent)."""
    cache = PrefixCache(len(held), enabled=True, copy_at_least=CHUNK)
    for sequence, tokens in enumerate(held):
        kept = cache.kept[sequence]
        kept.tokens = token_array(tokens)
        kept.busy = sequence in busy
        kept.agent = sequence in agents
        cache.release(sequence)
        kept.busy = sequence in busy
    return cache


def other(count: int, at: int = 10_000) -> range:
    """Tokens that no prompt of these tests shares."""
    return range(at, at + count)


# The rows of section 25


def test_the_longest_match_among_free_sequences() -> None:
    cache = cache_of(range(100), range(200), range(150))
    assert cache.place(range(300)) == Placement(1, 200)


def test_the_match_ends_where_the_texts_part() -> None:
    cache = cache_of([*range(50), 7, 7, 7], other(80))
    assert cache.place(range(60)) == Placement(0, 50)
    assert list(cache.kept[0].tokens) == list(range(50)), "what comes after the match is dropped"


def test_at_least_one_prompt_token_is_evaluated_again() -> None:
    cache = cache_of(range(100))
    assert cache.place(range(100)) == Placement(0, 99)
    cache = cache_of(range(200))
    assert cache.place(range(100)) == Placement(0, 99)
    cache = cache_of([5], [6])
    assert cache.place([5]).keep == 0


def test_a_busy_sequence_with_a_match_a_chunk_longer_is_copied() -> None:
    cache = cache_of(range(40), range(40 + CHUNK), other(50), busy=(1,))
    assert cache.place(range(300)) == Placement(0, 40 + CHUNK, copy_from=1)
    assert list(cache.kept[0].tokens) == list(range(40 + CHUNK))
    assert list(cache.kept[1].tokens) == list(range(40 + CHUNK))


def test_a_busy_sequence_one_token_short_of_a_chunk_longer_is_not_copied() -> None:
    cache = cache_of(range(40), range(40 + CHUNK - 1), other(50), busy=(1,))
    assert cache.place(range(300)) == Placement(0, 40)


def test_nothing_is_copied_when_a_free_sequence_matches_as_well() -> None:
    cache = cache_of(range(200), range(250), busy=(1,))
    assert cache.place(range(300)) == Placement(0, 200)


def test_the_copy_goes_to_the_least_valuable_free_sequence() -> None:
    cache = cache_of(range(40), range(400), other(50), [], busy=(1,))
    # Sequence 0 is the running one's neighbour, which outweighs the 40 tokens it holds.
    assert cache.place(range(300)) == Placement(0, 299, copy_from=1)
    cache = cache_of(range(10_000, 12_000), range(400), other(2000), [], busy=(1,))
    assert cache.place(range(300)) == Placement(3, 299, copy_from=1)


def test_a_kept_conversation_is_not_given_up_for_a_short_match() -> None:
    cache = cache_of([*range(40), *other(2000)], [])
    assert cache.place(range(300)) == Placement(1, 0)


def test_a_match_is_worth_the_short_rest_it_drops() -> None:
    cache = cache_of([*range(24), *other(60)], [])
    assert cache.place(range(300)) == Placement(0, 24)


def test_of_equals_the_one_used_longest_ago_goes() -> None:
    cache = cache_of(other(90, 20_000), other(90, 30_000), other(90, 40_000))
    assert cache.place(range(300)).sequence == 0


def test_a_recent_conversation_outlives_an_older_longer_one() -> None:
    cache = cache_of(other(1500, 20_000), other(900, 30_000))
    assert cache.place(range(300)).sequence == 0


def test_an_agents_sequence_goes_before_an_interactive_one() -> None:
    cache = cache_of(other(90, 20_000), other(90, 30_000), agents=(1,))
    cache.kept[0].last_used, cache.kept[1].last_used = 1, 1
    assert cache.place(range(300)).sequence == 1


def test_an_empty_sequence_goes_before_all() -> None:
    cache = cache_of(other(90), other(90, 20_000), [], agents=(0,))
    assert cache.place(range(300)).sequence == 2


def test_a_neighbour_of_the_running_ones_is_preferred_to_one_apart() -> None:
    cache = cache_of(other(50, 20_000), other(90, 30_000), [], [], busy=(0,))
    assert cache.place(range(300)).sequence == 1
    cache = cache_of(other(50, 20_000), other(2000, 30_000), [], [], busy=(0,))
    assert cache.place(range(300)).sequence == 2, "but not at the price of a long conversation"


def test_empty_sequences_are_taken_in_order_so_that_running_ones_are_neighbours() -> None:
    cache = PrefixCache(4, enabled=True, copy_at_least=CHUNK)
    assert [cache.place([1, 2, 3]).sequence for _ in range(4)] == [0, 1, 2, 3]


def test_a_busy_sequence_is_never_chosen() -> None:
    cache = cache_of(range(300), other(10), busy=(0,))
    placement = cache.place(range(100))
    assert placement.sequence == 1
    with pytest.raises(LookupError):
        cache.place(range(100))


def test_switched_off_nothing_is_reused_or_copied() -> None:
    cache = PrefixCache(2, enabled=False, copy_at_least=1)
    first = cache.place(range(500))
    cache.append(first.sequence, range(500))
    second = cache.place(range(500))
    assert (second.keep, second.copy_from) == (0, None)
    cache.release(first.sequence)
    assert cache.place(range(500)) == Placement(first.sequence, 0)


# Eviction


def test_eviction_takes_the_least_worth_first_and_never_a_busy_or_empty_sequence() -> None:
    cache = cache_of(other(5), other(5), [], other(5), other(50), busy=(0,), agents=(0, 3, 4))
    assert [cache.evict() for _ in range(4)] == [1, 3, 4, None]
    assert [len(kept.tokens) for kept in cache.kept] == [5, 0, 0, 0, 0]


def test_the_next_prompt_after_an_eviction_finds_nothing() -> None:
    cache = cache_of(range(100))
    assert cache.evict() == 0
    assert cache.place(range(100)) == Placement(0, 0)


# Arithmetic and invariants

tokens = st.lists(st.integers(0, 2), max_size=12)


@given(tokens, tokens)
def test_common_prefix_is_that_of_lists(left: list[int], right: list[int]) -> None:
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_prefix(token_array(left), token_array(right)) == expected


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_invariants_in_any_history(data: st.DataObject) -> None:
    sequences = data.draw(st.integers(1, 4), label="sequences")
    chunk = data.draw(st.integers(1, 6), label="chunk")
    cache = PrefixCache(sequences, enabled=data.draw(st.booleans(), label="enabled"), copy_at_least=chunk)
    memory: list[list[int]] = [[] for _ in range(sequences)]  # what a real KV memory would hold
    busy: dict[int, list[int]] = {}  # sequence -> the rest of its prompt
    long_prompt = st.lists(st.integers(0, 1), min_size=1, max_size=80) | st.integers(1, 80).map(lambda n: [0] * n)
    for _ in range(data.draw(st.integers(1, 25), label="operations")):
        operation = data.draw(st.sampled_from(["place", "feed", "release", "evict"]))
        if operation == "place" and len(busy) < sequences:
            prompt = data.draw(long_prompt, label="prompt")
            placement = cache.place(prompt, agent=data.draw(st.booleans()))
            assert placement.sequence not in busy
            assert 0 <= placement.keep <= len(prompt) - 1
            source = placement.sequence
            if placement.copy_from is not None:
                source = placement.copy_from
                assert source in busy
                assert placement.keep >= chunk
                memory[placement.sequence] = list(memory[source])
            assert memory[source][: placement.keep] == prompt[: placement.keep], (
                "what is kept is the prompt's own start"
            )
            del memory[placement.sequence][placement.keep :]
            busy[placement.sequence] = prompt[placement.keep :]
        elif operation == "feed" and busy:
            sequence = data.draw(st.sampled_from(sorted(busy)))
            size = data.draw(st.integers(1, 40))
            part, busy[sequence] = busy[sequence][:size], busy[sequence][size:]
            memory[sequence] += part
            cache.append(sequence, part)
        elif operation == "release" and busy:
            sequence = data.draw(st.sampled_from(sorted(busy)))
            del busy[sequence]
            cache.release(sequence)
        elif operation == "evict":
            victim = cache.evict()
            if victim is None:
                assert not any(memory[s] for s in range(sequences) if s not in busy)
            else:
                assert victim not in busy
                memory[victim] = []
        assert [list(kept.tokens) for kept in cache.kept] == memory
        assert {kept.sequence for kept in cache.kept if kept.busy} == set(busy)


def common_prefix_of(left: list[int], right: list[int]) -> int:
    return common_prefix(token_array(left), token_array(right))
