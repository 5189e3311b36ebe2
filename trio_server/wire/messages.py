"""The `messages` of a chat request: roles, content, earlier tool calls (chat page, sections 7.1 and 7.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from trio_server.wire import errors
from trio_server.wire.checks import invalid, kind_of, shown, unsupported
from trio_server.wire.errors import ApiError
from trio_server.wire.kinds import STRING, Kind
from trio_server.wire.tools import parse_tool_calls
from trio_server.wire.unserved import refuse_image

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, its text parts joined. `tool_calls` are an assistant's earlier calls with parsed arguments.

    `index` is the place in the request, for later errors that name it; `name` is inert.
    """

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    index: int = 0

    def as_template_input(self) -> dict[str, Any]:
        """The message as chat templates know it; what is absent has no key."""
        # Templates join the content to other text, so a message that has none is given as an empty one.
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _messages(value: Any, param: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        invalid(param, f"expected an array, got {kind_of(value)}")
    if not value:
        invalid(param, "expected at least one message, got an empty array")
    return tuple(_message(entry, index, f"{param}[{index}]") for index, entry in enumerate(value))


MESSAGES: Final = Kind(
    _messages,
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "role": {"enum": list(ROLES)},
                "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object"}}]},
                "name": {"type": ["string", "null"]},
                "reasoning_content": {"type": ["string", "null"]},
                "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
                "tool_call_id": {"type": ["string", "null"]},
            },
            "required": ["role"],
        },
    },
)


def _message(value: Any, index: int, path: str) -> Message:
    if not isinstance(value, dict):
        invalid(path, f"expected an object, got {kind_of(value)}")
    role = value.get("role")
    if role not in ROLES:
        expected = 'use "tool"' if role == "function" else f"expected one of {', '.join(ROLES)}"
        invalid(f"{path}.role", f"{expected}, got {shown(role)}")
    calls: tuple[Mapping[str, Any], ...] = ()
    reasoning = tool_call_id = None
    if role == "assistant":
        for field, instead in (("audio", "chat takes no audio; omit it"), ("function_call", "use tool_calls")):
            if value.get(field) is not None:
                unsupported(f"{path}.{field}", instead)
        calls = parse_tool_calls(value.get("tool_calls"), f"{path}.tool_calls")
        reasoning = _text(value, "reasoning_content", path)
    elif role == "tool":
        tool_call_id = _text(value, "tool_call_id", path)
        if not tool_call_id:
            invalid(f"{path}.tool_call_id", "expected a non-empty string; it names the call that is answered")
    content = value.get("content")
    if content is None:
        if role != "assistant" or not (calls or reasoning is not None):
            invalid(f"{path}.content", "missing; send a string or an array of parts")
    elif isinstance(content, list):
        content = _join(content, role, f"{path}.content")
    elif not isinstance(content, str):
        invalid(f"{path}.content", f"expected a string or an array of parts, got {kind_of(content)}")
    return Message(role, content, reasoning, calls, tool_call_id, _text(value, "name", path), index)


def _text(value: Mapping[str, Any], field: str, path: str) -> str | None:
    return None if value.get(field) is None else STRING.read(value[field], f"{path}.{field}")


def _join(parts: Sequence[Any], role: str, path: str) -> str:
    if not parts:
        invalid(path, "expected at least one part, got an empty array")
    return "".join([_part(part, role, f"{path}[{index}]") for index, part in enumerate(parts)])


def _part(part: Any, role: str, path: str) -> str:
    if not isinstance(part, dict):
        invalid(path, f"expected an object, got {kind_of(part)}")
    match part.get("type"):
        case "text":
            return STRING.read(part.get("text"), f"{path}.text")
        case "refusal" if role == "assistant":
            return STRING.read(part.get("refusal"), f"{path}.refusal")
        case "image_url":
            if role in ("system", "developer"):
                invalid(path, f"a {role} message takes text only")
            return refuse_image(path)
        case "video_url":
            return _refuse(errors.VIDEO_UNSUPPORTED, path, "video is not served; send text parts")
        case str(other):
            where = f"in a {role} message"
            return _refuse(errors.UNSUPPORTED_CONTENT_PART, path, f"parts of type {shown(other)} are not taken {where}")
        case other:
            return invalid(f"{path}.type", f"expected a string, got {kind_of(other)}")


def _refuse(code: errors.ErrorCode, path: str, message: str) -> NoReturn:
    raise ApiError(code, f"{path}: {message}", path)
