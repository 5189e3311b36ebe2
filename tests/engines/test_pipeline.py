"""The text pipeline: every scripted output cut at every byte, random bytes, and where the entries of tokens go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trio_server.engines.text.pipeline import Delta, TextPipeline

SCRIPTED: list[tuple[bytes, list[str]]] = [
    (b"", []),
    (b"plain text", []),
    ("naïve – “quoted” 🙂🏽 日本語".encode(), []),
    ("naïve – “quoted” 🙂🏽 日本語".encode(), ["本", "🏽 "]),
    (b"ok\nENT\nSTOP it", ["\nEND", "STOP"]),
    (b"ok\nENT\nSTO", ["\nEND", "STOP"]),
    ("Größe: 5 µm\n\nUser: ß".encode(), ["\n\nUser:", "ß\n", "µm!"]),
    (b"xabcabcdy", ["abcd", "bc"]),
    (b"xabcabc", ["abcabcd", "bc", "cab"]),
    (b"\xff\xfe bad \xe2\x82 worse \xf0\x9f\x99", []),
    (b"\xe2\x82STOP\xf0\x9f", ["STOP"]),
    (b"a\xf0\x9f\x99\x82b\xf0\x9f\x99", ["🙂b"]),
    (b"a\xe2\x82", ["a\ufffd!", "\ufffd?"]),
    (b"a\xe2\x82", ["\ufffd"]),
    (b"\xed\xa0\x80 surrogate \xc0\x80 overlong \xf5 \xf8\x88", ["over"]),
]


def reference(data: bytes, stops: Sequence[str]) -> tuple[str, bool]:
    text = data.decode("utf-8", "replace")
    begins = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(begins)], True) if begins else (text, False)


def run(pieces: Iterable[bytes], stops: Sequence[str], *, entries: bool = False) -> list[Delta[int]]:
    """Every delta up to the end. The entry of a piece is its number."""
    pipeline: TextPipeline[int] = TextPipeline(stops)
    deltas: list[Delta[int]] = []
    for number, piece in enumerate(pieces):
        deltas.append(pipeline.feed(piece, number if entries else None))
        if deltas[-1].stopped:
            return deltas
    return [*deltas, pipeline.finish()]


def answer(deltas: Iterable[Delta[int]]) -> tuple[str, bool]:
    deltas = list(deltas)
    return "".join(delta.text for delta in deltas), deltas[-1].stopped


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    return [data[begin:end] for begin, end in pairwise([0, *sorted(places), len(data)])]


@pytest.mark.parametrize(("data", "stops"), SCRIPTED)
def test_scripted_outputs_at_every_pair_of_bytes(data: bytes, stops: list[str]) -> None:
    expected = reference(data, stops)
    assert answer(run([data], stops)) == expected
    assert answer(run([bytes([byte]) for byte in data], stops)) == expected
    for places in combinations(range(len(data) + 1), 2):
        for entries in (False, True):
            assert answer(run(cut(data, places), stops, entries=entries)) == expected


def test_the_worked_example() -> None:
    tokens = [b"ok", b"\nE", b"N", b"T\n", b"ST", b"OP it"]
    deltas = run(tokens, ["\nEND", "STOP"], entries=True)
    assert [delta.text for delta in deltas] == ["ok", "", "", "\nENT", "\n", ""]
    assert [delta.entries for delta in deltas] == [(0,), (), (), (1, 2, 3), (), ()]
    assert [delta.stopped for delta in deltas] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        # Each token's entry comes with its text.
        ([b"a", b"b"], [], [("a", (0,)), ("b", (1,)), ("", ())]),
        # A character in three tokens brings all three.
        ([b"\xe2", b"\x82", b"\xac", b"!"], [], [("", ()), ("", ()), ("€", (0, 1, 2)), ("!", (3,)), ("", ())]),
        # A token that ends one character and begins the next leaves with the first.
        ([b"\xe2\x82", b"\xac\xe2", b"\x82\xac"], [], [("", ()), ("€", (0, 1)), ("€", (2,)), ("", ())]),
        # An unfinished character at the end is text.
        ([b"a\xe2", b"\x82"], [], [("a", (0,)), ("", ()), ("\ufffd", (1,))]),
        # A token without text has no entry.
        ([b"a", b"", b"b"], [], [("a", (0,)), ("", ()), ("b", (2,)), ("", ())]),
        # One that is taken by the stop sequence in part has an entry, one that is taken whole has none.
        ([b"a", b"bST", b"OP"], ["STOP"], [("a", (0,)), ("b", (1,)), ("", ())]),
        ([b"a", b"ST", b"OP"], ["STOP"], [("a", (0,)), ("", ()), ("", ())]),
        ([b"a", b"ST", b"AY"], ["STOP"], [("a", (0,)), ("", ()), ("STAY", (1, 2)), ("", ())]),
        ([b"a", b"ST"], ["STOP"], [("a", (0,)), ("", ()), ("ST", (1,))]),
        ([b"a\xe2\x82", b"\xacSTOP"], ["STOP"], [("a", (0,)), ("€", (1,))]),
        # A token that breaks a character off has no part in the U+FFFD that is left of it.
        ([b"\xe2\x82", b"STOP"], ["STOP"], [("", ()), ("\ufffd", (0,))]),
        ([b"\xe2\x82", b"\xe2\x82"], [], [("", ()), ("\ufffd", (0,)), ("\ufffd", (1,))]),
        ([b"\xe0", b"\x80"], [], [("", ()), ("\ufffd\ufffd", (0, 1)), ("", ())]),
        # Whichever of two sequences it will be, neither is delivered; the end of generation decides.
        ([b"xab", b"c"], ["bc", "abcd"], [("x", (0,)), ("", ()), ("a", ())]),
    ],
)
def test_where_entries_go(pieces: list[bytes], stops: list[str], expected: list[tuple[str, tuple[int, ...]]]) -> None:
    assert [(delta.text, delta.entries) for delta in run(pieces, stops, entries=True)] == expected


def test_a_sequence_left_standing_at_the_end_has_stopped_the_answer() -> None:
    pipeline: TextPipeline[int] = TextPipeline(["bc", "abcd"])
    assert pipeline.feed(b"xabc") == Delta("x", (), False)
    assert pipeline.finish() == Delta("a", (), True)


def test_nothing_comes_after_a_stop() -> None:
    pipeline: TextPipeline[int] = TextPipeline(["STOP"])
    assert pipeline.feed(b"a STOP b", 0) == Delta("a ", (0,), True)
    assert pipeline.feed(b"more", 1) == Delta("", (), True)
    assert pipeline.finish() == Delta("", (), True)


stop_lists = st.lists(st.text("abß🙂\ufffd", min_size=1, max_size=4), max_size=4)
some_bytes = st.one_of(
    st.binary(max_size=24),
    st.lists(
        st.sampled_from([b"a", b"b", "ß".encode(), "🙂".encode(), b"\xe2", b"\x82", b"\xf0\x9f"]), max_size=16
    ).map(b"".join),
)


@settings(max_examples=1500, deadline=None)
@given(some_bytes, stop_lists, st.lists(st.integers(0, 24), max_size=8))
@example(b"\xf0\x80\x80", [], [1, 2])
@example(b"\xed\xa0", ["\ufffd\ufffd"], [1])
def test_random_bytes_however_cut(data: bytes, stops: list[str], places: list[int]) -> None:
    pieces = cut(data, [min(place, len(data)) for place in places])
    expected, stopped = reference(data, stops)
    deltas = run(pieces, stops, entries=True)
    assert answer(deltas) == (expected, stopped)

    # The entries are those of the tokens with text in the answer, each once, in order, and none without text.
    assert all(delta.text or not delta.entries for delta in deltas)
    got = [entry for delta in deltas for entry in delta.entries]
    assert got == sorted(set(got))
    assert got == [number for number, (begin, piece) in enumerate(_placed(pieces)) if piece and begin < len(expected)]
    if data.decode("utf-8", "replace").encode() == data and not stopped:
        assert b"".join(pieces[entry] for entry in got) == expected.encode()


def _placed(pieces: Sequence[bytes]) -> Iterable[tuple[int, bytes]]:
    """Each piece and the number of the character that its first byte is part of."""
    before = b""
    for piece in pieces:
        yield len((before + piece[:1]).decode("utf-8", "replace")) - 1, piece
        before += piece
