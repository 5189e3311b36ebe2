"""The `messages` of a chat request: roles, content, earlier tool calls (chat page, sections 7.1 and 7.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trio_server.wire import errors
from trio_server.wire.checks import invalid, kind, text, unsupported
from trio_server.wire.errors import ApiError

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, its text parts joined. `tool_calls` are an assistant's earlier calls with parsed arguments."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def as_template_input(self) -> dict[str, Any]:
        """The message as chat templates know it; what is absent has no key."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def parse_messages(value: Any) -> tuple[Message, ...]:
    """Raises `ApiError` 400 with the path of the first fault in `param`."""
    if value is None:
        invalid("messages", "missing; send an array of at least one message")
    if not isinstance(value, list):
        invalid("messages", f"expected an array, got {kind(value)}")
    if not value:
        invalid("messages", "expected at least one message, got an empty array")
    return tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(value))


def _message(value: Any, path: str) -> Message:
    if not isinstance(value, dict):
        invalid(path, f"expected an object, got {kind(value)}")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = 'use "tool"' if role == "function" else f"expected one of {', '.join(ROLES)}"
        got = f"got {role[:64]!r}" if isinstance(role, str) else f"got {kind(role)}"
        invalid(f"{path}.role", f"{hint}, {got}")
    text(value, "name", f"{path}.name")
    calls: tuple[Mapping[str, Any], ...] = ()
    reasoning = tool_call_id = None
    if role == "assistant":
        for field in ("audio", "function_call"):
            if value.get(field) is not None:
                unsupported(f"{path}.{field}", "not served; omit it")
        calls = _tool_calls(value.get("tool_calls"), f"{path}.tool_calls")
        reasoning = text(value, "reasoning_content", f"{path}.reasoning_content")
    elif role == "tool":
        tool_call_id = text(value, "tool_call_id", f"{path}.tool_call_id")
        if not tool_call_id:
            invalid(f"{path}.tool_call_id", "missing; a tool message names the call it answers")
    content = value.get("content")
    if content is None:
        if role != "assistant" or not (calls or reasoning is not None):
            invalid(f"{path}.content", "missing; send a string or an array of parts")
    elif isinstance(content, list):
        content = _join(content, role, f"{path}.content")
    elif not isinstance(content, str):
        invalid(f"{path}.content", f"expected a string or an array of parts, got {kind(content)}")
    return Message(role, content, reasoning, calls, tool_call_id)


def _join(parts: Sequence[Any], role: str, path: str) -> str:
    if not parts:
        invalid(path, "expected at least one part, got an empty array")
    return "".join(_part(part, role, f"{path}[{index}]") for index, part in enumerate(parts))


def _part(part: Any, role: str, path: str) -> str:
    if not isinstance(part, dict):
        invalid(path, f"expected an object, got {kind(part)}")
    match part.get("type"):
        case "text":
            return _part_text(part, "text", path)
        case "refusal" if role == "assistant":
            return _part_text(part, "refusal", path)
        case "image_url":
            if role in ("system", "developer"):
                invalid(path, f"a {role} message takes text only")
            raise ApiError(errors.VISION_DISABLED, f"{path}: this version of the server takes no images", path)
        case "video_url":
            raise ApiError(errors.VIDEO_UNSUPPORTED, f"{path}: video is not served", path)
        case str(other):
            return _unknown_part(path, f"parts of type {other[:64]!r} are not served here; send text parts")
        case other:
            return invalid(f"{path}.type", f"expected a string, got {kind(other)}")


def _unknown_part(path: str, message: str) -> NoReturn:
    raise ApiError(errors.UNSUPPORTED_CONTENT_PART, f"{path}: {message}", path)


def _part_text(part: Mapping[str, Any], field: str, path: str) -> str:
    value = part.get(field)
    if not isinstance(value, str):
        invalid(f"{path}.{field}", f"expected a string, got {kind(value)}")
    return value


def _tool_calls(value: Any, path: str) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        invalid(path, f"expected an array, got {kind(value)}")
    return tuple(_tool_call(call, f"{path}[{index}]") for index, call in enumerate(value))


def _tool_call(call: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(call, dict):
        invalid(path, f"expected an object, got {kind(call)}")
    function = call.get("function")
    if not isinstance(function, dict):
        invalid(f"{path}.function", f"expected an object, got {kind(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        invalid(f"{path}.function.name", "expected a non-empty string")
    if not isinstance(arguments, str):
        invalid(f"{path}.function.arguments", f"expected a string of JSON, got {kind(arguments)}")
    identifier = text(call, "id", f"{path}.id")
    return {
        "id": identifier or "",
        "type": "function",
        "function": {"name": name, "arguments": _parsed_arguments(arguments)},
    }


def _parsed_arguments(arguments: str) -> Any:
    """The object that the string spells, else the string: an agent that echoes a malformed call must be able to go on."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
