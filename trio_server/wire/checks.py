"""What is wrong with a value, as an `ApiError` in OpenAI's shape. Used by every request parser of this room.

Messages begin with the path of the field and never quote more of a request than a short word of it.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from trio_server.wire import errors
from trio_server.wire.errors import ApiError

LONGEST_QUOTE: Final = 40
_NAMES: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
}


def invalid(param: str, message: str) -> NoReturn:
    """The plain 400: a wrong type, a missing field, a conflict."""
    raise ApiError(errors.INVALID_REQUEST, f"{param}: {message}", param)


def unsupported(param: str, message: str) -> NoReturn:
    """The 400 for a value that has a meaning elsewhere and is not served here."""
    raise ApiError(errors.UNSUPPORTED_VALUE, f"{param}: {message}", param)


def bad_sampling(param: str, message: str) -> NoReturn:
    """The 400 for a sampling field outside its range (chat page, section 9.1)."""
    raise ApiError(errors.INVALID_SAMPLING_PARAMETER, f"{param}: {message}", param)


def kind_of(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _NAMES.get(type(value), "null")


def shown(value: Any) -> str:
    """A value for a message: a number or a short string as it is, of anything else its type."""
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST_QUOTE else repr(value[:LONGEST_QUOTE] + "…")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Past the interpreter's limit on digits `str` raises; no value that this long comes from a parsed body.
        return str(value) if -(10**LONGEST_QUOTE) < value < 10**LONGEST_QUOTE else "an integer of many digits"
    if isinstance(value, float):
        return f"{value:.6g}"
    return kind_of(value)
