"""One answer from a script of engine events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.engines.text.generation import Event, Failed, Finished, Started, Token, TokenLogprobs
from trio_server.engines.thread import EngineError
from trio_server.models.turn import Turn


def token(number: int, piece: bytes, *, logprobs: bool = False) -> Token:
    return Token(1, number, piece, TokenLogprobs(-0.5, ((number, -0.5),)) if logprobs else None)


def played(stop: Sequence[str], events: Iterable[Event]) -> tuple[Turn, str, list[Token]]:
    """Feed events as the routes do: until there is a finish reason."""
    turn = Turn(stop)
    text: list[str] = []
    entries: list[Token] = []
    for event in events:
        delta = turn.feed(event)
        text.append(delta.text)
        entries.extend(delta.entries)
        if turn.finish_reason is not None:
            break
    return turn, "".join(text), entries


def script(*pieces: str | bytes, cached: int = 0, end: str = "stop", logprobs: bool = False) -> list[Event]:
    tokens = [
        token(number, piece.encode() if isinstance(piece, str) else piece, logprobs=logprobs)
        for number, piece in enumerate(pieces)
    ]
    return [Started(1, cached), *tokens, Finished(1, end)]


@pytest.mark.parametrize("end", ["stop", "length"])
def test_a_plain_answer(end: str) -> None:
    turn, text, entries = played((), script("Oslo", " is", b"", " it", cached=16, end=end))
    assert (text, turn.finish_reason) == ("Oslo is it", end)
    assert (turn.cached_tokens, turn.completion_tokens) == (16, 4)  # control tokens count, the end token does not
    assert entries == []


def test_an_empty_answer() -> None:
    turn, text, _ = played((), script())
    assert (text, turn.finish_reason, turn.completion_tokens) == ("", "stop", 0)


def test_a_stop_sequence_ends_it_and_its_token_counts() -> None:
    turn, text, _ = played(["\nEND", "STOP"], script("ok", "\nE", "N", "T\n", "ST", "OP it", "never", end="length"))
    assert (text, turn.finish_reason, turn.completion_tokens) == ("ok\nENT\n", "stop", 6)


def test_what_was_held_comes_out_at_the_end() -> None:
    for end in ("stop", "length"):
        turn, text, _ = played(["STOP"], script("a S", "TO", end=end))
        assert (text, turn.finish_reason) == ("a STO", end)
    assert played((), script(b"caf\xc3"))[1] == "caf\ufffd"


def test_a_stop_sequence_that_is_complete_when_the_cap_comes_is_why_it_ended() -> None:
    """`"bc"` is complete while `"abcd"`, which began earlier, may still become so; the cap settles it."""
    turn, text, _ = played(["abcd", "bc"], script("x ab", "c", end="length"))
    assert (text, turn.finish_reason) == ("x a", "stop")


def test_entries_are_the_tokens_whose_text_came_out() -> None:
    _, text, entries = played(["END"], script("a", b"\xc3", b"\xa9", "E", "x", "E", "ND", logprobs=True))
    assert text == "aéEx"
    assert [entry.token for entry in entries] == [0, 1, 2, 3, 4]


def test_a_failure_is_an_error_fit_for_the_client() -> None:
    turn = Turn(())
    turn.feed(Started(1, 0))
    turn.feed(token(0, b"half"))
    with pytest.raises(EngineError, match="no room"):
        turn.feed(Failed(1, "no room"))
    assert turn.finish_reason is None


@given(
    st.text(alphabet="abc\n é😀", max_size=40),
    st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 80), max_size=20),
    st.sampled_from(["stop", "length"]),
)
def test_however_it_is_cut_into_tokens_the_answer_is_the_same(
    text: str, stop: list[str], cuts: list[int], end: str
) -> None:
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[start:until] for start, until in pairwise(edges)]
    turn, made, _ = played(stop, script(*pieces, end=end))
    ends = [text.index(sequence) for sequence in stop if sequence in text]
    assert made == (text[: min(ends)] if ends else text)
    assert turn.finish_reason == ("stop" if ends else end)
