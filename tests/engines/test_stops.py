"""Stop sequences: the worked example of the chat page, the rule of the earliest match, and every way to cut the text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_server.engines.text.stops import Matched, StopMatcher


def reference(stops: Sequence[str], text: str) -> tuple[str, bool]:
    """The answer that the whole text gives, and whether a stop sequence ended it."""
    begins = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(begins)], True) if begins else (text, False)


def run(stops: Sequence[str], pieces: Iterable[str]) -> tuple[list[str], str | None]:
    """What each piece delivers, and last what the end does; the stop sequence that matched."""
    matcher = StopMatcher(stops)
    delivered: list[str] = []
    for piece in pieces:
        fed = matcher.feed(piece)
        if isinstance(fed, Matched):
            return [*delivered, fed.text_before], fed.stop
        delivered.append(fed)
    rest = matcher.flush()
    if isinstance(rest, Matched):
        return [*delivered, rest.text_before], rest.stop
    return [*delivered, rest], None


def cut(text: str, places: Iterable[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(at)]


def test_the_worked_example() -> None:
    delivered, stop = run(["\nEND", "STOP"], ["ok", "\nE", "N", "T\n", "ST", "OP it"])
    assert delivered == ["ok", "", "", "\nENT", "\n", ""]
    assert stop == "STOP"


@pytest.mark.parametrize(
    ("stops", "pieces", "delivered", "stop"),
    [
        ([], ["any", "thing"], ["any", "thing", ""], None),
        (["END"], ["no", "thing"], ["no", "thing", ""], None),
        (["END"], ["a E", "ND b"], ["a ", ""], "END"),
        (["END"], ["a ", "E", "N", "D"], ["a ", "", "", ""], "END"),
        (["abcde"], ["xa", "b", "c", "d", "e"], ["x", "", "", "", ""], "abcde"),
        (["END"], ["a EN"], ["a ", "EN"], None),
        (["END"], ["a EN", "EN", "E"], ["a ", "EN", "EN", "E"], None),
        (["END"], ["END"], [""], "END"),
        # Two that overlap: the one that begins first wins, whichever comes first in the list.
        (["abc", "bcd"], ["xabcd"], ["x"], "abc"),
        (["bcd", "abc"], ["xabcd"], ["x"], "abc"),
        (["bcd", "abc"], ["xab", "d", "bcd"], ["x", "abd", ""], "bcd"),
        # The same place: the longest that is there.
        (["ab", "abc"], ["xabcd"], ["x"], "abc"),
        (["ab", "abc"], ["xab", "cd"], ["x"], "ab"),
        # One inside another: the inner one waits while the outer one may still come.
        (["bc", "abcd"], ["xabcd"], ["x"], "abcd"),
        (["bc", "abcd"], ["xab", "c", "d"], ["x", "", ""], "abcd"),
        (["bc", "abcd"], ["xab", "c", "e"], ["x", "", "a"], "bc"),
        (["bc", "abcd"], ["xab", "c"], ["x", "", "a"], "bc"),
        (["b", "abc", "aabcd"], ["aab", "c", "e"], ["", "", "a"], "abc"),
        # One that overlaps itself.
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], "aab"),
        (["abab!"], ["ababab!"], ["ab"], "abab!"),
        (["aabaaa!"], ["aabaaa", "baaa!"], ["", "aaba"], "aabaaa!"),
        # Characters beyond ASCII and beyond the basic plane.
        (["ß🙂"], ["Spaß", "🙂"], ["Spa", ""], "ß🙂"),
        (["🙂🙂"], ["a🙂", "b🙂", "🙂"], ["a", "🙂b", ""], "🙂🙂"),
        (["END", "END"], ["aEN", "D"], ["a", ""], "END"),
    ],
)
def test_what_is_delivered_when(stops: list[str], pieces: list[str], delivered: list[str], stop: str | None) -> None:
    assert run(stops, pieces) == (delivered, stop)


@pytest.mark.parametrize("text", ["xabcabcdy", "aabaabaaab", "bcabcab", "a\nb\n\nc\n\n\nd"])
@pytest.mark.parametrize(
    "stops", [["abcd", "bc"], ["aab", "b"], ["aaab", "ab", "ba"], ["\n\n\n", "c\n"], ["abcabcd", "cab", "bca", "z"]]
)
def test_every_pair_of_cuts(stops: list[str], text: str) -> None:
    expected = reference(stops, text)
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            delivered, stop = run(stops, [text[:first], text[first:second], text[second:]])
            assert ("".join(delivered), stop is not None) == expected


texts = st.text("ab\nß🙂", max_size=40)
stop_lists = st.lists(st.text("ab\nß🙂", min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=1500, deadline=None)
@given(stop_lists, texts, st.lists(st.integers(0, 1000), max_size=12))
def test_cuts_do_not_matter(stops: list[str], text: str, places: list[int]) -> None:
    delivered, stop = run(stops, cut(text, places))
    assert ("".join(delivered), stop is not None) == reference(stops, text)
    if stop is not None:
        assert text.startswith(stop, len("".join(delivered)))


@settings(max_examples=700, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=4), st.text("ab", max_size=60))
def test_sequences_that_overlap_themselves(stops: list[str], text: str) -> None:
    stops = [f"{stop}!" for stop in stops]
    text = f"{text}{stops[0]}"
    delivered, stop = run(stops, text)
    assert ("".join(delivered), stop is not None) == reference(stops, text)


@settings(max_examples=500, deadline=None)
@given(stop_lists, texts)
def test_only_what_may_become_a_stop_sequence_is_held(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    delivered = ""
    for end in range(1, len(text) + 1):
        fed = matcher.feed(text[end - 1])
        if isinstance(fed, Matched):
            break
        delivered += fed
        held = text[len(delivered) : end]
        # The longest tail that is a proper prefix of a sequence: it is one, and no longer tail is.
        assert not held or any(len(held) < len(stop) and stop.startswith(held) for stop in stops)
        assert not any(
            text[:end].endswith(stop[:length]) for stop in stops for length in range(len(held) + 1, len(stop))
        )


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_long_sequences_that_never_match_cost_linear_time() -> None:
    stops = ["a" * 100_000 + end for end in "bcde"]
    began = time.process_time()
    matcher = StopMatcher(stops)
    delivered = 0
    for _ in range(50_000):
        fed = matcher.feed("aaaa")
        assert isinstance(fed, str)
        delivered += len(fed)
    assert delivered == 100_000
    # About half a second; a matcher that looks through what it holds at each piece needs minutes.
    assert time.process_time() - began < 10
