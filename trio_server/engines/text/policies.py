"""Where system and developer messages go, before the template sees them (chat page, section 7.2). Pure.

Out come messages of the roles system, user, assistant and tool alone, since templates know no developer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trio_server.engines.text.templates import ChatTemplate, RenderFailed

BLANK_LINE = "\n\n"


class PolicyRefused(Exception):
    """A policy refuses the message at `index`."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


def apply_policies(
    messages: Sequence[Mapping[str, Any]], system_policy: str, developer_policy: str
) -> list[dict[str, Any]]:
    """`system_policy` and `developer_policy` are the settings' words. Raises `PolicyRefused`."""
    for index, message in enumerate(messages):
        if message["role"] == "developer" and developer_policy == "reject":
            raise PolicyRefused("this server takes no developer messages", index)
        if message["role"] == "system" and index > 0 and system_policy == "strict":
            raise PolicyRefused("this server takes a system message only as the first", index)

    leading: list[str] = []
    rest = list(messages)
    # A leading developer message is the system prompt, and so is the run of system messages it stands in.
    while rest and (rest[0]["role"] == "system" or (rest[0]["role"] == "developer" and not leading)):
        leading.append(_text(rest.pop(0)))

    appended: list[str] = []
    following: list[str] = []
    placed: list[dict[str, Any]] = []
    for message in rest:
        if message["role"] != "developer":
            placed.append(dict(message))
        elif developer_policy == "into-system":
            appended.append(_text(message))
        elif developer_policy in ("after-system", "one-after-system"):
            following.append(_text(message))
        else:
            placed.append(_system(_text(message)))
    if developer_policy == "one-after-system" and following:
        following = [BLANK_LINE.join(following)]
    prompt = BLANK_LINE.join([*leading, *appended])
    head = [_system(prompt)] if leading or appended else []
    return [*head, *(_system(text) for text in following), *placed]


def render_with_fallback(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
    """Render; when the template refuses a system block that is not first, put its text before the next user message.

    Raises `RenderFailed`: the template's first refusal when there is no such block or no user message after it.
    """
    try:
        return template.render(messages, **template_kwargs)
    except RenderFailed:
        folded = _fold_later_system(messages)
        if folded is None:
            raise
        return template.render(folded, **template_kwargs)


def _fold_later_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """`messages` with each later system block in front of the following user message; `None` when that cannot be done."""
    folded: list[dict[str, Any]] = []
    carried: list[str] = []
    moved = False
    for index, message in enumerate(messages):
        if message["role"] == "system" and index > 0:
            carried.append(_text(message))
            moved = True
        elif message["role"] == "user" and carried:
            folded.append({**message, "content": BLANK_LINE.join([*carried, _text(message)])})
            carried = []
        else:
            folded.append(dict(message))
    return folded if moved and not carried else None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}
