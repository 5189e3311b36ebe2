"""Where system and developer messages go, before the template sees them (chat page, section 7.2). Pure.

Out come messages of the roles system, user, assistant and tool alone, as templates know no developer. Checking the messages
themselves (roles, content) is the wire's business and done by then. `models/load.py` calls both functions in a worker thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from trio_server.engines.text.template_limits import RENDER_LIMIT_S
from trio_server.engines.text.templates import RenderFailed

SYSTEM_POLICIES: Final = ("merge", "strict")
DEVELOPER_POLICIES: Final = ("inplace", "into-system", "after-system", "one-after-system", "reject")

_BLANK_LINE = "\n\n"


class PolicyRefused(Exception):
    """A policy refuses the message at `index` of the conversation."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Renderer(Protocol):
    """What `render_with_fallback` needs of a `ChatTemplate`."""

    def render(self, messages: Sequence[Mapping[str, Any]], *, limit_s: float, **options: Any) -> str: ...


def apply_policies(
    messages: Sequence[Mapping[str, Any]], system_policy: str, developer_policy: str
) -> list[dict[str, Any]]:
    """The conversation as the template is to see it: at most one system prompt in front, then blocks, then the rest in order.

    The first message, when it is a system or developer message, and the system messages right behind it are the system
    prompt; every other one is a later one. An empty text adds no blank line. Raises `PolicyRefused`; `ValueError` for a
    policy that does not exist. The input is left as it is.
    """
    if system_policy not in SYSTEM_POLICIES or developer_policy not in DEVELOPER_POLICIES:
        raise ValueError(f"no such message policy: {system_policy!r}, {developer_policy!r}")
    _refuse(messages, system_policy, developer_policy)

    leading = 0
    while leading < len(messages) and messages[leading]["role"] in (
        ("system",) if leading else ("system", "developer")
    ):
        leading += 1
    prompt = [_text(message) for message in messages[:leading]]
    blocks: list[str] = []
    rest: list[dict[str, Any]] = []
    for message in messages[leading:]:
        role = message["role"]
        if role == "system" or (role == "developer" and developer_policy == "inplace"):
            rest.append(_system([_text(message)]))
        elif role != "developer":
            rest.append(dict(message))
        elif developer_policy == "into-system":
            prompt.append(_text(message))
        else:
            blocks.append(_text(message))
    head = [prompt] if prompt else []
    if developer_policy == "one-after-system":
        head += [blocks] if blocks else []
    else:
        head += [[block] for block in blocks]
    return [*map(_system, head), *rest]


def _refuse(messages: Sequence[Mapping[str, Any]], system_policy: str, developer_policy: str) -> None:
    for index, message in enumerate(messages):
        if message["role"] == "developer" and developer_policy == "reject":
            raise PolicyRefused(
                f"messages[{index}]: this server takes no developer messages; send a system message", index
            )
        if message["role"] == "system" and index > 0 and system_policy == "strict":
            raise PolicyRefused(
                f"messages[{index}]: this server takes a system message only as the first message; "
                "move its text there, or into a user message",
                index,
            )


def render_with_fallback(
    template: Renderer,
    messages: Sequence[Mapping[str, Any]],
    *,
    limit_s: float = RENDER_LIMIT_S,
    **options: Any,
) -> str:
    """Render what `apply_policies` gave. When the template refuses it, with an exception of its own, and there are system
    blocks behind the first message, each one's text goes to the end of the next user message instead, and it is rendered
    once more within the same `limit_s`.

    Raises `RenderFailed`: the first refusal when there is no later block or one has no user message behind it, else what
    became of the second render. `options` are `ChatTemplate.render`'s.
    """
    ends_s = time.monotonic() + limit_s
    try:
        return template.render(messages, limit_s=limit_s, **options)
    except RenderFailed as failure:
        moved = _without_later_blocks(messages) if failure.refused else None
        if moved is None:
            raise
    return template.render(moved, limit_s=ends_s - time.monotonic(), **options)


def _without_later_blocks(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """`messages` with the text of each later system block at the end of the next user message. `None` when there is no such
    block, or no such user message.
    """
    result: list[dict[str, Any]] = []
    waiting: list[str] = []
    moved = False
    for index, message in enumerate(messages):
        if index > 0 and message["role"] == "system":
            waiting.append(_text(message))
            moved = True
        elif waiting and message["role"] == "user":
            result.append({**message, "content": _joined([_text(message), *waiting])})
            waiting = []
        else:
            result.append(dict(message))
    return result if moved and not waiting else None


def _system(texts: Sequence[str]) -> dict[str, Any]:
    return {"role": "system", "content": _joined(texts)}


def _joined(texts: Sequence[str]) -> str:
    return _BLANK_LINE.join(text for text in texts if text)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
