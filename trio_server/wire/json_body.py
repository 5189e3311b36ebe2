"""A request body's bytes as a JSON object, with hostile JSON answered by a 400 that says where. Section 3.2 of the chat page.

The standard library's parser does the work. What it accepts beyond JSON (NaN, halves of surrogate pairs, numbers out of
range), or would fail on in another way (depth, huge integers), is caught around it. Every pass over the text takes time in
proportion to its length whatever is in it, and memory that does not grow with the number of tokens: the patterns below
are possessive, since a backtracking one keeps a frame per character of a long string.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import numpy as np

from trio_server.wire import errors
from trio_server.wire.checks import kind_of
from trio_server.wire.errors import ApiError

DEEPEST_NESTING: Final = 128
LONGEST_INTEGER_DIGITS: Final = 4300
# A string, a quote that opens one without an end, a bracket, or a number (the parser decides whether it is well formed).
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[\[\]{}]|-?(?:NaN|Infinity)|-?[0-9][0-9.eE+-]*+', re.DOTALL)
# As far as the escapes of valid JSON make whole characters: it ends at the first half of a surrogate pair.
_WHOLE_CHARACTERS: Final = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+", re.DOTALL
)
_QUOTE: Final = ord('"')
# With the bit 0x20 set, `[` and `{` are one byte and `]` and `}` another; no other byte becomes either.
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")


class _Fault(Exception):
    """A number that is not JSON's, from inside the parser, which does not say where."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises `ApiError` 400 `invalid_json`, and nothing else."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"not UTF-8 at byte {error.start}")
    if text.startswith("\ufeff"):
        _refuse("a byte order mark at character 0; send the JSON without it")
    if not text or text.isspace():
        _refuse("the body is empty, so there is nothing at character 0; send a JSON object")
    if _may_be_too_deep(raw):
        _check_depth(text)
    try:
        value = json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_integer_hook())
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" starting at").removesuffix(" at")
        _refuse(f"{reason} at character {error.pos} (line {error.lineno}, column {error.colno})")
    except (_Fault, ValueError):
        _refuse_number(text)
    except RecursionError:  # the caller's own stack was all but used up
        _refuse("it is nested too deeply, from character 0")
    if not isinstance(value, dict):
        _refuse(f"the top level is {kind_of(value)}, not an object, at character {len(text) - len(text.lstrip())}")
    if "\\u" in text:  # a surrogate can only come from an escape: UTF-8 has none
        _check_surrogates(text)
    return value


def _refuse(reason: str) -> NoReturn:
    raise ApiError(errors.INVALID_JSON, f"the request body is not valid JSON: {reason}")


def _may_be_too_deep(raw: bytes) -> bool:
    """Whether more brackets are open at some point than may be. Exact for what is JSON; other text may go either way.

    Over arrays, because a body of brackets alone has sixteen million of them.
    """
    if raw.count(b"[") + raw.count(b"{") <= DEEPEST_NESTING:
        return False
    if b"\\" in raw:  # quotes that end no string; from the left, so that `\\"` still ends one
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(raw, np.uint8)
    in_string = np.bitwise_xor.accumulate((codes == _QUOTE).view(np.uint8)).view(np.bool_)
    folded = codes | 0x20
    steps = (folded == _OPENING).view(np.int8) - (folded == _CLOSING).view(np.int8)
    steps[in_string] = 0
    depths = np.add.accumulate(steps[steps != 0], dtype=np.int32)
    return depths.size > 0 and int(depths.max()) > DEEPEST_NESTING


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Brackets and numbers with their positions, up to a string without an end (the parser stops there as well)."""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == '"':
            return
        if token[0] != '"':
            yield match.start(), token


def _check_depth(text: str) -> None:
    depth = 0
    for position, token in _tokens(text):
        if token in "[{":
            depth += 1
            if depth > DEEPEST_NESTING:
                _refuse(f"nested deeper than {DEEPEST_NESTING} levels at character {position}")
        elif token in "]}":
            depth -= 1


def _constant(name: str) -> NoReturn:
    raise _Fault


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _Fault
    return value


def _integer_hook() -> Any:
    # The interpreter's own limit is the same figure; only where somebody moved it is ours put in its place.
    return None if sys.get_int_max_str_digits() == LONGEST_INTEGER_DIGITS else _integer


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > LONGEST_INTEGER_DIGITS:
        raise _Fault
    return int(digits)


def _refuse_number(text: str) -> NoReturn:
    """Find the first number that the parser could not take, and say what is wrong with it."""
    for position, token in _tokens(text):
        if token in "[]{}":
            continue
        if token[-1] in "yN":
            _refuse(f"{token} is not a JSON number, at character {position}")
        if token.lstrip("-").isdigit():
            if len(token.lstrip("-")) > LONGEST_INTEGER_DIGITS:
                _refuse(f"an integer of more than {LONGEST_INTEGER_DIGITS} digits at character {position}")
        elif _is_infinite(token):
            _refuse(f"a number out of range at character {position}")
    _refuse("an integer has too many digits")


def _is_infinite(token: str) -> bool:
    try:
        return math.isinf(float(token))
    except ValueError:
        return False


def _check_surrogates(text: str) -> None:
    match = _WHOLE_CHARACTERS.match(text)
    assert match is not None  # it matches the empty text
    if match.end() < len(text):
        _refuse(f"half of a surrogate pair at character {match.end()}")
