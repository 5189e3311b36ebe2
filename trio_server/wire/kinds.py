"""Kinds of field values: how one is read out of JSON, and the JSON schema that says the same in the API document.

`chat_fields.py` makes its table of these; `tokenize.py` reads its few own fields with them. A kind is given values that
are there: what an absent field or `null` means is its caller's question.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from trio_server.wire.checks import bad_sampling, invalid, kind_of, shown, unsupported

T = TypeVar("T")
Schema = Mapping[str, Any]

LARGEST_INTEGER: Final = 2**63 - 1
MOST_STOPS: Final = 4
MOST_BIASES: Final = 300
LARGEST_BIAS: Final = 100
LONGEST_TOKEN_ID: Final = 10


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """`read` takes a value that is not null and the path for `param`; it raises `ApiError`."""

    read: Callable[[Any, str], T]
    schema: Schema

    def of(self, body: Mapping[str, Any], name: str) -> T | None:
        """The field `name` of a body; `None` when it is absent or null."""
        value = body.get(name)
        return None if value is None else self.read(value, name)


def _boolean(value: Any, param: str) -> bool:
    if not isinstance(value, bool):
        invalid(param, f"expected a boolean, got {kind_of(value)}")
    return value


def _string(value: Any, param: str) -> str:
    if not isinstance(value, str):
        invalid(param, f"expected a string, got {kind_of(value)}")
    return value


BOOLEAN: Final = Kind(_boolean, {"type": "boolean"})
STRING: Final = Kind(_string, {"type": "string"})
ANYTHING: Final[Kind[Any]] = Kind(lambda value, param: value, {})


def integer(low: int, high: int = LARGEST_INTEGER, refuse: Callable[[str, str], NoReturn] = invalid) -> Kind[int]:
    """An integer within `low..high`; neither a boolean nor a whole float is one."""

    def read(value: Any, param: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            got = shown(value) if isinstance(value, float) else kind_of(value)
            refuse(param, f"expected an integer {accepted}, got {got}")
        if not low <= value <= high:
            refuse(param, f"expected an integer {accepted}, got {shown(value)}")
        return value

    accepted = f"of at least {low}" if high == LARGEST_INTEGER and low >= 0 else f"within {low}..{high}"
    return Kind(read, {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float, *, above_low: bool = False) -> Kind[float]:
    """A sampling number within `low..high`, without `low` itself if `above_low`. Never clamped."""

    def read(value: Any, param: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            bad_sampling(param, f"expected a number {accepted}, got {kind_of(value)}")
        # Compared before it becomes a float: a JSON integer can be too large for one. NaN fails as well.
        if not low <= value <= high or (above_low and value == low):
            bad_sampling(param, f"expected a number {accepted}, got {shown(value)}")
        # The engine takes 32-bit floats; there a tiny number would silently mean the special value 0.
        if value != 0 and struct.unpack("f", struct.pack("f", value))[0] == 0:
            bad_sampling(param, f"{value!r} is too small to be told from 0; send 0 or a larger number")
        return float(value) or 0.0  # -0.0 is 0

    accepted = f"above {low:g} and at most {high:g}" if above_low else f"within {low:g}..{high:g}"
    return Kind(read, {"type": "number", "exclusiveMinimum" if above_low else "minimum": low, "maximum": high})


def word(*vocabulary: str) -> Kind[str]:
    """One of a few words."""

    def read(value: Any, param: str) -> str:
        if _string(value, param) not in vocabulary:
            invalid(param, f"expected one of {', '.join(vocabulary)}, got {shown(value)}")
        return str(value)

    return Kind(read, {"type": "string", "enum": list(vocabulary)})


def only(instead: str, *values: Any) -> Kind[None]:
    """A field that changes nothing at the values given (and at null), and is refused at every other."""

    def read(value: Any, param: str) -> None:
        # `1 == True` in Python and not in JSON.
        if not any(value == inert and type(value) is type(inert) for inert in values):
            unsupported(param, instead)

    return Kind(read, {"enum": [*values, None]})


def _stop(value: Any, param: str) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        got = f"{len(stops)} of them" if isinstance(stops, list) else kind_of(value)
        invalid(param, f"expected a non-empty string, or an array of 1 to {MOST_STOPS} of them, got {got}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            invalid(param, f"every stop sequence is a non-empty string, got {shown(stop)}")
    return tuple(stops)


STOP: Final = Kind(
    _stop,
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "maxItems": MOST_STOPS, "items": {"type": "string", "minLength": 1}},
        ]
    },
)
"""A stop sequence, or up to four of them; an empty array is none."""


def _logit_bias(value: Any, param: str) -> Mapping[int, float]:
    if not isinstance(value, dict):
        invalid(param, f"expected an object, got {kind_of(value)}")
    if len(value) > MOST_BIASES:
        invalid(param, f"expected at most {MOST_BIASES} entries, got {len(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        # One spelling per id, so that two entries never mean one token.
        if not (isinstance(key, str) and key.isascii() and key.isdigit()) or (key[0] == "0" and key != "0"):
            invalid(param, f"expected token ids in decimal as keys, got {shown(key)}")
        if len(key) > LONGEST_TOKEN_ID:
            invalid(param, f"token id {shown(key)} is outside every vocabulary")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -LARGEST_BIAS <= bias <= LARGEST_BIAS:
            invalid(param, f"expected a number within -100..100 for token {key}, got {shown(bias)}")
        biases[int(key)] = float(bias)
    return biases


LOGIT_BIAS: Final = Kind(
    _logit_bias,
    {
        "type": "object",
        "maxProperties": MOST_BIASES,
        "additionalProperties": {"type": "number", "minimum": -LARGEST_BIAS, "maximum": LARGEST_BIAS},
    },
)
"""Token ids to biases. Whether the ids exist is known once the model is."""
