"""Server-sent events as OpenAI's streams use them: `data:` lines, no event names, no ids."""

from __future__ import annotations

from typing import Final

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a whole answer; its absence means a broken one."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients pass over."""


def event(payload: bytes) -> bytes:
    """One event around a payload without line breaks."""
    return b"data: " + payload + b"\n\n"
