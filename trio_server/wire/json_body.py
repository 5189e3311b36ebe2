"""A request body's bytes as a JSON object, with hostile JSON answered by a 400 that says where. Section 3.2 of the chat page.

The standard library's parser does the work; what it accepts beyond JSON, or would fail on in other ways (depth, huge
integers, lone surrogates), is caught around it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

from trio_server.wire import errors
from trio_server.wire.errors import ApiError

DEEPEST_NESTING: Final = 128
LONGEST_INTEGER_DIGITS: Final = 4300
# Strings are skipped whole; what is left to look at is brackets.
_STRUCTURE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class _Fault(Exception):
    """A value that is not JSON, from inside the parser, which does not say where."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises `ApiError` 400 `invalid_json`, and nothing else."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"not UTF-8 at byte {error.start}")
    if not text.strip():
        _refuse("the body is empty; send a JSON object")
    if text.startswith("\ufeff"):
        _refuse("it begins with a byte order mark, at character 0")
    _check_depth(text)
    try:
        value = json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_integer)
    except json.JSONDecodeError as error:
        _refuse(f"{error.msg} at character {error.pos} (line {error.lineno}, column {error.colno})")
    except _Fault as fault:
        _refuse(str(fault))
    except (RecursionError, ValueError):
        _refuse("it cannot be parsed")
    if not isinstance(value, dict):
        _refuse(f"the top level is {_kind(value)}, not an object, at character {len(text) - len(text.lstrip())}")
    if "\\" in text:  # a surrogate can only come from an escape: UTF-8 has none
        _check_surrogates(text)
    return value


def _refuse(reason: str) -> NoReturn:
    raise ApiError(errors.INVALID_JSON, f"the request body is not valid JSON: {reason}")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")


def _check_depth(text: str) -> None:
    depth = 0
    if text.count("[") + text.count("{") <= DEEPEST_NESTING:
        return
    for match in _STRUCTURE.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > DEEPEST_NESTING:
                _refuse(f"nested deeper than {DEEPEST_NESTING} levels at character {match.start()}")
        elif token in "]}":
            depth -= 1


def _constant(name: str) -> NoReturn:
    raise _Fault(f"{name} is not a JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Fault(f"the number {digits[:40]} is out of range")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > LONGEST_INTEGER_DIGITS:
        raise _Fault(f"an integer has more than {LONGEST_INTEGER_DIGITS} digits")
    return int(digits)


_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_LONE: Final = re.compile("[\ud800-\udfff]")


def _check_surrogates(text: str) -> None:
    for match in _STRING.finditer(text):
        if "\\u" in match.group() and _LONE.search(json.loads(match.group())):
            _refuse(f"a string holds half of a surrogate pair, at character {match.start()}")
