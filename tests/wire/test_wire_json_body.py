"""Bodies that are not JSON objects, or not quite: always the same 400, always saying where."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.refusals import refused
from trio_server.wire.errors import ApiError
from trio_server.wire.json_body import DEEPEST_NESTING, parse_object

MIB = 1024 * 1024


def nested(depth: int) -> bytes:
    """An object whose arrays bring it to `depth` levels."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b' \r\n\t{"a": 1} ', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        ('{"ключ": "日本😀"}'.encode(), {"ключ": "日本😀"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (rb'{"a": "\\ud800"}', {"a": r"\ud800"}),
        (rb'{"a": "\\\ud83d\ude00\\\\"}', {"a": "\\😀\\\\"}),
        (b'{"a": "' + b"[" * 500 + b'"}', {"a": "[" * 500}),
        (b'{"a": "\\"' + b"[" * 500 + b'"}', {"a": '"' + "[" * 500}),
        (b'{"a": [' + b"[]," * 500 + b"[]]}", {"a": [[]] * 501}),
        (b'{"a": 1e308, "b": 1e-999, "c": -0.0}', {"a": 1e308, "b": 0.0, "c": -0.0}),
        (b'{"a": ' + b"9" * 4300 + b"}", {"a": 10**4300 - 1}),
        (b'{"a": -' + b"9" * 4300 + b"}", {"a": 1 - 10**4300}),
    ],
)
def test_what_is_json_is_taken(raw: bytes, value: dict[str, Any]) -> None:
    assert parse_object(raw) == value


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (b"", "character 0"),
        (b" \n ", "character 0"),
        (b"hello", "character 0"),
        (b'{"a": 1', "character 7"),
        (b'{"a": 1,}', "character 8"),
        (b'{"a": 1} x', "character 9"),
        (b'{"a": "b', "character 6"),
        (b'{"a": "\n"}', "character 7"),
        (b'{"a": "\x00"}', "character 7"),
        (rb'{"a": "\x41"}', "character 7"),
        (rb'{"a": "\u12"}', "character 8"),
        (b"{'a': 1}", "character 1"),
        (b'{"a": 01}', "character 7"),
        (b'{"a": +1}', "character 6"),
        (b'{"a": .5}', "character 6"),
        (b'{"a": "\xff"}', "byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "byte 7"),
        (b'{"a": "\xf0\x9f\x98', "byte 7"),
        ("{}".encode("utf-16"), "byte 0"),
        (b"\xef\xbb\xbf{}", "character 0"),
        (b"  []", "character 2"),
        (b"null", "character 0"),
        (b'"x"', "character 0"),
        (b"1", "character 0"),
        (b"true", "character 0"),
        (b'{"NaN": [1, NaN]}', "character 12"),
        (b'{"a": Infinity}', "character 6"),
        (b'{"a": -Infinity}', "character 6"),
        (b'{"a": "1e999", "b": 1e999}', "character 20"),
        (b'{"a": -1.5E+400}', "character 6"),
        (b'{"a": ' + b"9" * 400 + b".0}", "character 6"),
        (b'{"a": ["\\"", 1.5, ' + b"1" * 4301 + b"]}", "character 18"),
        (b'{"a": -' + b"1" * 4301 + b"}", "character 6"),
        (nested(DEEPEST_NESTING + 1), f"character {5 + DEEPEST_NESTING - 1}"),
        (b'{"a": "\\"[", "b": ' + b'[{"c":' * 70 + b"1" + b"}]" * 70 + b"}", "character 397"),
        (b"[" * 100_000, f"character {DEEPEST_NESTING}"),
        (b'{"a":' * 100_000, f"character {5 * DEEPEST_NESTING}"),
        (rb'{"a": "\ud800"}', "character 7"),
        (rb'{"a": "x\udfff"}', "character 8"),
        (rb'{"\uDC00\uD800": 1}', "character 2"),
        (rb'{"a": "\ud83d\ud83d\ude00"}', "character 7"),
        (rb'{"a": "\ud83d\\ude00"}', "character 7"),
        (rb'{"a": "\ud83d x", "a": 1}', "character 7"),
    ],
)
def test_what_is_not_is_refused_with_its_place(raw: bytes, where: str) -> None:
    error = refused(parse_object, raw)
    assert (error.code.code, error.status, error.param) == ("invalid_json", 400, None)
    assert error.message.startswith("the request body is not valid JSON: ")
    assert f"at {where}" in error.message.replace(",", "")


def test_the_deepest_nesting_is_taken() -> None:
    assert parse_object(nested(DEEPEST_NESTING))
    wide = b'{"a":[' + nested(DEEPEST_NESTING - 2) + b"," + b"[]," * 200 + b"1]}"
    assert parse_object(wide)


@pytest.mark.parametrize("limit", [0, 640, 100_000])
def test_the_limit_on_digits_does_not_depend_on_the_interpreters(limit: int) -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit)
    try:
        assert refused(parse_object, b'{"a": ' + b"1" * 4301 + b"}").message.endswith("at character 6")
        assert parse_object(b'{"a": 12}') == {"a": 12}
    finally:
        sys.set_int_max_str_digits(before)


def test_a_stack_that_is_all_but_used_up_is_a_refusal() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        with contextlib.suppress(ApiError):  # newer interpreters keep a stack of their own for the parser
            parse_object(nested(100))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "raw",
    [
        b'"' + b'\\"' * (MIB // 2) + b"[" * 200,
        b"[" * 100 + b'"' + b'\\"' * (MIB // 2) + b"[" * 200,
        b"\\" * MIB + b"[" * 200,
        b'"' * MIB + b"[" * 200,
        b"1" * MIB,
        b"-" * MIB,
        b'{"a": 0.' + b"1" * MIB + b"x}",
    ],
)
def test_hostile_bodies_take_time_in_proportion_to_their_length(raw: bytes) -> None:
    """Each of these took a backtracking pattern, or one tried anew at every quote, many minutes."""
    refused(parse_object, raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"a":[' + b"[]," * 200 + b'"' + b"x" * MIB + b'"]}', b'{"a":"\\u0041' + b"x\\n" * (MIB // 3) + b'"}'],
)
def test_a_long_string_takes_memory_in_proportion_to_its_length(raw: bytes) -> None:
    tracemalloc.start()
    try:
        parse_object(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * MIB


# Against the standard library's parser, with what it lets through taken out.


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def is_clean(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_clean(key) and is_clean(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_clean, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or not any("\ud800" <= character <= "\udfff" for character in value)


def expected(raw: bytes) -> dict[str, Any] | None:
    try:
        text = raw.decode()
        value = json.loads(text)
        # Pairs keep what a duplicate key overwrites, so that it is looked at as well.
        everything = json.loads(text, object_pairs_hook=lambda pairs: [list(pair) for pair in pairs])
    except ValueError:
        return None
    return value if isinstance(value, dict) and is_clean(everything) and depth_of(value) <= DEEPEST_NESTING else None


def check(raw: bytes) -> None:
    value = expected(raw)
    if value is None:
        assert refused(parse_object, raw).code.code == "invalid_json"
    else:
        assert parse_object(raw) == value


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs"]) | st.characters(max_codepoint=127), max_size=6),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=4),
    max_leaves=12,
)
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            b'{"a":',
            b"{",
            b"}",
            b"[",
            b"]",
            b'"',
            b"\\",
            b"\\\\",
            b'\\"',
            b",",
            b":",
            b"1",
            b"-1.5e3",
            b"1e400",
            b"NaN",
            b"-Infinity",
            b"true",
            b'"k":',
            b"\\ud800",
            b"\\udc00",
            b"\\u0041",
            b"\xff",
            "ж".encode(),
            b" ",
            b"[" * 130,
            b"]" * 130,
        ]
    ),
    max_size=30,
).map(b"".join)


@given(st.binary(max_size=200))
def test_bytes(raw: bytes) -> None:
    check(raw)


@given(FRAGMENTS, st.booleans())
@example(b"[" * 130 + b"]" * 130, True)
@example(b'"\\\\' + b"[" * 130, True)
def test_fragments_of_json(middle: bytes, wrapped: bool) -> None:
    check(b'{"a":' + middle + b"}" if wrapped else middle)


@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4), st.booleans(), st.integers(0, 126))
def test_objects(value: dict[str, Any], ascii_only: bool, levels: int) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    check(raw)
    check(b'{"a":' * levels + raw + b"}" * levels)


@given(st.text(st.sampled_from('\\ud8cf0"na')).map(lambda text: f'{{"a":"{text}"}}'.encode()))
@example(rb'{"a":"\ud800\ud800\udc00"}')
@example(rb'{"a":"\\\ud800"}')
def test_escapes(raw: bytes) -> None:
    check(raw)
