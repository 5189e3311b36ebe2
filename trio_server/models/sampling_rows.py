"""The sampling a request gets for the fields it did not send: one row per model, each field on its own (chat page 9.2, 9.3).

Pure. A row comes from the GGUF's own sampling metadata where it has a value, else from the fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Defaults for absent fields."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


FALLBACK = SamplingRow(temperature=0.8, top_p=0.95, top_k=40, min_p=0.05)
NEUTRAL = SamplingRow(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


def model_row(default: Callable[[str], float | None]) -> SamplingRow:
    """The row of a model; `default(name)` gives the GGUF's `general.sampling.<name>` or `None`.

    A value outside the range a request may ask for is passed over: a file is not trusted more than a client.
    """

    def pick(name: str, low: float, high: float, otherwise: float) -> float:
        value = default(name)
        return value if value is not None and low <= value <= high else otherwise

    return SamplingRow(
        temperature=pick("temp", 0.0, 2.0, FALLBACK.temperature),
        top_p=pick("top_p", 0.0, 1.0, FALLBACK.top_p),
        top_k=int(pick("top_k", 0, 2**31 - 1, FALLBACK.top_k)),
        min_p=pick("min_p", 0.0, 1.0, FALLBACK.min_p),
        repetition_penalty=pick("penalty_repeat", 1e-3, 2.0, FALLBACK.repetition_penalty),
    )


def resolve(row: SamplingRow, asked: dict[str, Any]) -> SamplingRow:
    """`asked` over `row`, field by field; with a temperature of 0 the fields not asked for are neutral instead."""
    named = {name: value for name, value in asked.items() if value is not None}
    greedy = named.get("temperature", row.temperature) == 0
    return replace(NEUTRAL if greedy else row, **named)
