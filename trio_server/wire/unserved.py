"""What this version does not serve yet: the refusals that later issues take out, and nothing else.

The shapes are checked by the modules that will serve them (`tools.py`, `thinking.py`, `messages.py`); what is refused here
is a valid request that would change the answer. A value that asks for what the server does anyway passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from trio_server.wire import errors
from trio_server.wire.checks import unsupported
from trio_server.wire.errors import ApiError
from trio_server.wire.thinking import ThinkingFields
from trio_server.wire.tools import Tool, ToolChoice


def refuse_image(path: str) -> NoReturn:
    raise ApiError(
        errors.VISION_DISABLED, f"{path}: images are not served by this version yet; send text parts only", path
    )


def refuse_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Tools that no one may call are as no tools; all others are refused."""
    if choice.mode == "required" or choice.names is not None:
        unsupported("tool_choice", 'tool calls are not served by this version yet; send "auto" or "none", or omit it')
    if tools and choice.mode != "none":
        unsupported("tools", 'tool calls are not served by this version yet; omit them, or send tool_choice "none"')


def refuse_response_format(kind: str) -> None:
    if kind != "text":
        unsupported(
            "response_format",
            'structured output is not served by this version yet; send {"type": "text"} or omit it',
        )


def refuse_thinking(thinking: ThinkingFields) -> None:
    """As for a model whose template has no thinking (section 12.2)."""
    if thinking.enable_thinking:
        raise ApiError(
            errors.THINKING_UNSUPPORTED,
            "enable_thinking: thinking is not served by this version yet; send false or omit it",
            "enable_thinking",
        )
    if thinking.reasoning_effort not in (None, "none", "minimal"):
        raise ApiError(
            errors.REASONING_EFFORT_UNSUPPORTED,
            'reasoning_effort: thinking is not served by this version yet; send "none" or omit it',
            "reasoning_effort",
        )
