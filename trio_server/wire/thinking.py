"""The request's word on thinking: two switches, an effort and a budget, and where they contradict each other.

Chat page, section 12.2, as far as it needs no model. What the model can do is asked later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trio_server.wire.checks import invalid, kind_of, shown
from trio_server.wire.kinds import BOOLEAN, Kind, integer, word

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SWITCHES: Final = ("enable_thinking", "preserve_thinking")

EFFORT: Final = word(*EFFORTS)
BUDGET: Final = integer(0)


@dataclass(frozen=True, slots=True)
class ThinkingFields:
    """`None` where the request says nothing. A `thinking_budget` of 0 asks for none."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: str | None = None
    thinking_budget: int | None = None


def _template_switches(value: Any, param: str) -> Mapping[str, bool | None]:
    if not isinstance(value, dict):
        invalid(param, f"expected an object, got {kind_of(value)}")
    for key, switch in value.items():
        if key not in SWITCHES:
            invalid(param, f"{shown(key)} is not a key this server knows; it takes {' and '.join(SWITCHES)}")
        if switch is not None:
            BOOLEAN.read(switch, f"{param}.{key}")
    return value


TEMPLATE_SWITCHES: Final = Kind(
    _template_switches,
    {
        "type": "object",
        "properties": {name: {"type": ["boolean", "null"]} for name in SWITCHES},
        "additionalProperties": False,
    },
)
"""`chat_template_kwargs`, which vLLM's clients use for the same two switches."""


def resolve_thinking(
    enable: bool | None,
    preserve: bool | None,
    kwargs: Mapping[str, bool | None] | None,
    effort: str | None,
    budget: int | None,
) -> ThinkingFields:
    """The fields as one. Raises `ApiError` 400 where two of them contradict each other."""
    kwargs = kwargs or {}
    enable = _agreed("enable_thinking", enable, kwargs)
    preserve = _agreed("preserve_thinking", preserve, kwargs)
    if effort is not None and enable is not None and (effort != "none") != enable:
        invalid(
            "reasoning_effort",
            f'reasoning_effort "{effort}" and enable_thinking {shown(enable)} contradict each other; send one of them',
        )
    return ThinkingFields(enable, preserve, effort, budget)


def _agreed(name: str, outer: bool | None, kwargs: Mapping[str, bool | None]) -> bool | None:
    inner = kwargs.get(name)
    if outer is None or inner is None:
        return inner if outer is None else outer
    if outer != inner:
        invalid(
            name,
            f"{shown(outer)} contradicts chat_template_kwargs.{name}, which is {shown(inner)}; send one of them",
        )
    return outer
