"""The limits of a chat template's render: its time, and the size of whatever it makes, measured before it is made.

`templates.py` calls these from the sandbox's hooks. Pure but for the clock; the deadline belongs to the rendering thread.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

RENDER_LIMIT_S = 5.0
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
LARGEST_TEXT = OUTPUT_LIMIT_BYTES
"""Characters of any text a template builds on the way."""
LARGEST_LIST = 1_000_000
LARGEST_NUMBER_BITS = 4096
JINJA_NAMED = ("_loop_vars", "_block_vars")  # what Jinja adds to a call for itself
_ITEM_CHARACTERS = 16  # what an item of a container is counted for beside its text

# A field as wide as five digits say, or as wide as an argument says. No template for a person's eyes has one.
_WIDE_PERCENT = re.compile(r"%(?:\([^)]*\))?[^%a-zA-Z]*?(?:\d{5}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\d{5}|\{)")


class Limit(Exception):
    """The render ran into a limit."""


class _Running(threading.local):
    """The render that this thread is at. A render never leaves its thread and never starts another."""

    limit_s = RENDER_LIMIT_S
    ends_s = float("inf")


_running = _Running()


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    _running.limit_s, _running.ends_s = limit_s, time.monotonic() + limit_s
    try:
        yield
    finally:
        _running.ends_s = float("inf")


def check_time() -> None:
    if time.monotonic() > _running.ends_s:
        raise Limit(f"it ran for more than {_running.limit_s:g} s")


def check_size(size: int, limit: int = LARGEST_TEXT) -> None:
    if size > limit:
        raise Limit("it builds a value that is too large")


# Sizes, each at least what the operation makes.


def printed(value: Any) -> int:
    """At least the length of `str(value)`. A container shared many times over counts each time, as it prints each time."""
    if isinstance(value, str | bytes):
        return len(value)
    size, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        size += _ITEM_CHARACTERS
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        else:
            continue
        check_time()
        check_size(size + len(waiting) * _ITEM_CHARACTERS)
    return size


def _padded(text: Any, width: int = 80, *_: Any) -> int:
    return max(printed(text), width)


def _indented(text: Any, width: int | str = 4, *_: Any, **__: Any) -> int:
    return printed(text) + (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else width)


def _tabbed(text: Any, tabsize: int = 8) -> int:
    return len(text) * max(tabsize, 1)


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    text = text if isinstance(text, str | bytes) else str(text)
    return len(text) + int(text.count(old)) * printed(new)


def _joined(separator: Any, items: Any) -> int:
    if isinstance(items, str):
        return len(items) * (1 + printed(separator))
    return sum((printed(item) + printed(separator) for item in items), 0) if isinstance(items, Collection) else 0


def _joined_filter(items: Any, d: Any = "", *_: Any, **__: Any) -> int:
    return _joined(d, items)


def _wrapped(text: Any, *arguments: Any, wrapstring: str | None = None, **_: Any) -> int:
    wrapstring = arguments[2] if len(arguments) > 2 else wrapstring
    return len(text) * (1 + len(wrapstring or "\n"))


def _summed(items: Any, attribute: Any = None, start: Any = 0) -> int:
    # Python adds lists up one by one, copying what it has: the cost of a sum of lists is the square of their number.
    return 0 if isinstance(start, int | float) else len(items) ** 2


def percent(layout: Any, *values: Any, **named: Any) -> int:
    return _filled(layout, "%", _WIDE_PERCENT.search(str(layout)), (*values, *named.values()))


def _braces(layout: Any, *values: Any, **named: Any) -> int:
    return _filled(layout, "{", _WIDE_BRACES.search(str(layout).replace("{{", "")), (*values, *named.values()))


def _filled(layout: Any, mark: str, wide: object, values: Iterable[Any]) -> int:
    if wide:
        raise Limit("it formats with a very wide field")
    return printed(layout) + str(layout).count(mark) * max(map(printed, values), default=0)


METHODS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "expandtabs": _tabbed,
    "format": _braces,
    "format_map": _braces,
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "zfill": _padded,
}

FILTERS: dict[str, Callable[..., int]] = {
    "batch": lambda _, linecount, *__, **___: int(linecount) * _ITEM_CHARACTERS,
    "center": _padded,
    "format": percent,
    "indent": _indented,
    "join": _joined_filter,
    "pprint": lambda value: printed(value) * 4,
    "replace": _replaced,
    "slice": lambda _, slices, *__, **___: int(slices) * _ITEM_CHARACTERS,
    "string": printed,
    "sum": _summed,
    "wordwrap": _wrapped,
}


def measured_call(
    size: Callable[..., int] | None, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """Check what a call would make. Gives its arguments back, with iterators, which cannot be looked into, as lists."""
    if size is None:
        return arguments
    arguments = tuple(list(value) if isinstance(value, Iterator) else value for value in arguments)
    check_size(size(*arguments, **named))
    return arguments


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at the clock, at the size of what it is about to make, and at the size of what it made."""
    size = FILTERS.get(name)
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own first argument

    @functools.wraps(function)  # carries Jinja's marks over too
    def guarded(*arguments: Any, **named: Any) -> Any:
        check_time()
        result = function(*arguments[:skipped], *measured_call(size, arguments[skipped:], named), **named)
        if isinstance(result, str):
            check_size(len(result))
        return result

    return guarded
