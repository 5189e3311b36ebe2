"""An exception as the log may tell it: without any local's value, and with every message cut, since a message may quote
what a client sent. Python's own formatting gives messages whole, so it is done here. `log.py` is the caller.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

LONGEST_MESSAGE: Final = 500
LONGEST_STACKTRACE: Final = 16384
_MOST_EXCEPTIONS: Final = 32
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n"


def message_of(error: BaseException) -> str:
    """The exception's message, cut."""
    try:
        return str(error)[:LONGEST_MESSAGE]
    except Exception:  # noqa: BLE001 - a message that cannot be had must not hide the exception
        return "<no message: str() failed>"


def stacktrace_of(error: BaseException) -> str:
    """The traceback with those of its causes and, for a group, of its members; the end of it when it is very long."""
    return "\n".join(_lines(error, set()))[-LONGEST_STACKTRACE:] + "\n"


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before, link = error.__cause__, _CAUSE
    if before is None and not error.__suppress_context__:
        before, link = error.__context__, _CONTEXT
    if before is not None and id(before) not in seen and len(seen) < _MOST_EXCEPTIONS:
        yield from _lines(before, seen)
        yield link
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield from (frame.rstrip("\n") for frame in traceback.format_tb(error.__traceback__))
    yield f"{type(error).__qualname__}: {message_of(error)}".removesuffix(": ")
    if isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, 1):
            if id(member) not in seen and len(seen) < _MOST_EXCEPTIONS:
                yield f"  member {number}:"
                for text in _lines(member, seen):
                    yield from (f"    {line}" for line in text.split("\n"))
