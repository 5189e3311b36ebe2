"""The rules a declaration may have: a range, a multiple, one of some words. None is the fourth.

A rule checks a parsed value and says what it is, for people (`text`) and for programs (`constraint`, the shape of the
configuration page's section 3.3). Reading text is the kind's work, not a rule's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trio_server.config.kinds import quoted


class Rule(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def constraint(self) -> dict[str, Any]: ...

    def fault(self, value: object, typed: str) -> str | None:
        """Why `value` is refused, or `None`. `typed` is the text it was read from."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `min` to `max`, both included; a missing end is open. A word that the kind let through passes."""

    min: int | None = None
    max: int | None = None

    @property
    def text(self) -> str:
        if self.max is None:
            return f">= {self.min}"
        if self.min is None:
            return f"<= {self.max}"
        return f"{self.min}..{self.max}"

    @property
    def constraint(self) -> dict[str, Any]:
        return {"type": "range", "min": self.min, "max": self.max}

    def fault(self, value: object, typed: str) -> str | None:
        if not isinstance(value, int | float):
            return None
        too_low = self.min is not None and value < self.min
        too_high = self.max is not None and value > self.max
        if not (too_low or too_high):
            return None
        if self.max is None:
            return f"{value} is below {self.min}"
        if self.min is None:
            return f"{value} is above {self.max}"
        return f"{value} is not in {self.text}"


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """Whole numbers above 0 that `step` divides."""

    step: int

    @property
    def text(self) -> str:
        return f"nonzero multiple of {self.step}"

    @property
    def constraint(self) -> dict[str, Any]:
        return {"type": "multiple_of", "step": self.step}

    def fault(self, value: object, typed: str) -> str | None:
        assert isinstance(value, int)
        if value > 0 and value % self.step == 0:
            return None
        return f"{value} is not a {self.text}"


class OneOf:
    """One of the words given."""

    def __init__(self, *values: str) -> None:
        self.values = values

    @property
    def text(self) -> str:
        return f"one of {', '.join(self.values)}"

    @property
    def constraint(self) -> dict[str, Any]:
        return {"type": "one_of", "values": list(self.values)}

    def fault(self, value: object, typed: str) -> str | None:
        if value in self.values:
            return None
        return f"{quoted(typed)} is none of {', '.join(self.values)}"
