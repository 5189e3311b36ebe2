"""How many tokens a request may generate: its own cap, the server's default, and the context (chat page, section 10).

Pure. Nothing is ever truncated or shifted to make a prompt fit.
"""

from __future__ import annotations


class ContextLengthExceeded(Exception):
    """The prompt, or the prompt with its explicit cap, is longer than the context. `by_cap` tells which."""

    def __init__(self, message: str, *, by_cap: bool) -> None:
        super().__init__(message)
        self.by_cap = by_cap


def token_cap(prompt_tokens: int, asked: int | None, default: int, max_context: int, cap_name: str) -> int:
    """The cap in force, at least 1. `default` 0 means none; `cap_name` is the field that `asked` came in."""
    room = max_context - prompt_tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt is {prompt_tokens} tokens, and the model's context is {max_context} with at least one token to"
            " generate; shorten the prompt",
            by_cap=False,
        )
    if asked is None:
        return min(default, room) if default else room
    if asked > room:
        raise ContextLengthExceeded(
            f"prompt ({prompt_tokens} tokens) plus {cap_name} ({asked}) is {prompt_tokens + asked}, over the model's"
            f" {max_context}-token context; lower {cap_name} or shorten the prompt",
            by_cap=True,
        )
    return asked
