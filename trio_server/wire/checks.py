"""Checks of single JSON values, with the errors that the routes share. Used by the request parsers of this room."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from trio_server.wire import errors
from trio_server.wire.errors import ApiError

SIGNED_64_BITS = range(-(2**63), 2**63)


def invalid(param: str, message: str) -> NoReturn:
    """The plain 400: a wrong type, a missing field, a conflict."""
    raise ApiError(errors.INVALID_REQUEST, f"{param}: {message}", param)


def unsupported(param: str, message: str) -> NoReturn:
    """The 400 for a value that OpenAI documents and this server does not serve."""
    raise ApiError(errors.UNSUPPORTED_VALUE, f"{param}: {message}", param)


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
    }
    return names.get(type(value), "null")


def boolean(body: Mapping[str, Any], field: str, default: bool = False) -> bool:
    """A boolean field; absent and null give `default`."""
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        invalid(field, f"expected a boolean, got {kind(value)}")
    return value


def text(body: Mapping[str, Any], field: str, param: str | None = None) -> str | None:
    """A string field; absent and null give `None`."""
    value = body.get(field)
    if value is not None and not isinstance(value, str):
        invalid(param or field, f"expected a string, got {kind(value)}")
    return value


def positive_integer(body: Mapping[str, Any], field: str) -> int | None:
    """An integer of at least 1; absent and null give `None`."""
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        invalid(field, f"expected an integer of at least 1, got {kind(value)}")
    if value < 1:
        invalid(field, f"expected an integer of at least 1, got {shown(value)}")
    return value


def shown(value: float) -> str:
    """A number for a message, however long it is."""
    digits = f"{value:.6g}" if isinstance(value, float) else str(value)
    return digits if len(digits) <= 24 else digits[:24] + "…"


def sampling_number(
    body: Mapping[str, Any], field: str, low: float, high: float, *, above_low: bool = False
) -> float | None:
    """A finite number within `low..high` (without `low` itself if `above_low`). Never clamped."""
    value = body.get(field)
    if value is None:
        return None
    accepted = f"above {low:g} and at most {high:g}" if above_low else f"within {low:g}..{high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        bad_sampling(field, f"expected a number {accepted}, got {kind(value)}")
    # Compared before it becomes a float: a JSON integer can be too large for one.
    if not (low <= value <= high) or (above_low and value == low):
        bad_sampling(field, f"expected a number {accepted}, got {shown(value)}")
    number = float(value)
    if not math.isfinite(number) or (number != 0 and struct.unpack("f", struct.pack("f", number))[0] == 0):
        bad_sampling(field, f"{number!r} is too small to be told from 0; send 0 or a larger number")
    return number


def sampling_integer(body: Mapping[str, Any], field: str, accepted: range) -> int | None:
    """An integer in `accepted`; a whole float is not one."""
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in accepted:
        got = shown(value) if isinstance(value, int | float) and not isinstance(value, bool) else kind(value)
        bad_sampling(field, f"expected an integer within {accepted.start}..{accepted.stop - 1}, got {got}")
    return value


def bad_sampling(field: str, message: str) -> NoReturn:
    raise ApiError(errors.INVALID_SAMPLING_PARAMETER, f"{field}: {message}", field)


def stop_sequences(value: Any) -> tuple[str, ...]:
    """`stop`: a non-empty string, or up to four of them."""
    if value is None or value == []:
        return ()
    stops: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(stop, str) and stop for stop in stops):
        invalid("stop", "expected a non-empty string, or an array of 1 to 4 non-empty strings")
    return tuple(stops)
