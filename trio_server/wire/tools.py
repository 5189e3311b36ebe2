"""Tool definitions, the choice among them, and earlier calls in the history: their shapes (chat page, section 13.1, 13.2).

No schema is compiled here and nothing is said about a model; `unserved.py` says what this version does with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from trio_server.wire.checks import invalid, kind_of, shown, unsupported
from trio_server.wire.errors import ApiError
from trio_server.wire.json_body import parse_object
from trio_server.wire.kinds import BOOLEAN, STRING, Kind

_SHAPE: Final = 'expected {"type": "function", "function": {"name": …}}'


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. `definition` is the whole entry as templates know it, with `parameters` and `strict` filled in."""

    name: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` are the callable tools, `None` for all of them."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None


AUTO: Final = ToolChoice()


def _tools(value: Any, param: str) -> tuple[Tool, ...]:
    if not isinstance(value, list):
        invalid(param, f"expected an array, got {kind_of(value)}")
    tools: dict[str, Tool] = {}
    for index, entry in enumerate(value):
        path = f"{param}[{index}]"
        tool = _tool(entry, path)
        if tool.name in tools:
            invalid(f"{path}.function.name", f"an earlier tool is named {shown(tool.name)} as well")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(value: Any, path: str) -> Tool:
    if not isinstance(value, dict):
        invalid(path, f"{_SHAPE}, got {kind_of(value)}")
    kind = value.get("type")
    if isinstance(kind, str) and kind != "function":
        unsupported(path, f"tools of type {shown(kind)} are not served; send function tools")
    name = _function_name(value)
    if name is None:
        invalid(path, _SHAPE)
    function = dict(value["function"])
    parameters = function.get("parameters")
    if parameters is None:
        function["parameters"] = {"type": "object", "properties": {}}
    elif not isinstance(parameters, dict):
        invalid(f"{path}.function.parameters", f"expected a JSON schema, got {kind_of(parameters)}")
    for field, kind_of_field in (("description", STRING), ("strict", BOOLEAN)):
        if function.get(field) is not None:
            kind_of_field.read(function[field], f"{path}.function.{field}")
    if function.get("strict") is None:
        function["strict"] = False
    return Tool(name, {**value, "function": function})


def _function_name(value: Any) -> str | None:
    """The name in `{"type": "function", "function": {"name": …}}`; `None` when it is something else."""
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(value.get("function"), dict):
        return None
    name = value["function"].get("name")
    return name if isinstance(name, str) and name else None


TOOLS: Final = Kind(
    _tools,
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "minLength": 1},
                        "description": {"type": ["string", "null"]},
                        "parameters": {"type": ["object", "null"]},
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["name"],
                },
            },
            "required": ["type", "function"],
        },
    },
)


def _tool_choice(value: Any, param: str) -> ToolChoice:
    if value in ("auto", "none", "required"):
        return ToolChoice(value)
    if isinstance(value, dict):
        if value.get("type") == "function":
            name = _function_name(value)
            if name is not None:
                return ToolChoice("required", (name,))
        elif value.get("type") == "allowed_tools" and isinstance(value.get("allowed_tools"), dict):
            allowed = value["allowed_tools"]
            mode, entries = allowed.get("mode"), allowed.get("tools")
            if mode in ("auto", "required") and isinstance(entries, list) and entries:
                names = [_function_name(entry) for entry in entries]
                if None not in names:
                    return ToolChoice(mode, tuple(name for name in names if name is not None))
    return invalid(
        param,
        'expected "auto", "none", "required", {"type": "function", "function": {"name": …}} or'
        ' {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}',
    )


TOOL_CHOICE: Final = Kind(
    _tool_choice,
    {
        "anyOf": [
            {"enum": ["auto", "none", "required"]},
            {"type": "object", "properties": {"type": {"enum": ["function", "allowed_tools"]}}, "required": ["type"]},
        ]
    },
)


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Whether the choice can be kept with these tools. Raises `ApiError` 400."""
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            invalid("tool_choice", f"{shown(name)} is not among the tools of this request")
    if choice.mode == "required" and not tools:
        invalid("tool_choice", '"required" needs tools')


# Earlier calls in the history.


def parse_tool_calls(value: Any, path: str) -> tuple[Mapping[str, Any], ...]:
    """An assistant message's `tool_calls`, null for none, as templates know them: with parsed arguments."""
    if value is None:
        return ()
    if not isinstance(value, list):
        invalid(path, f"expected an array, got {kind_of(value)}")
    return tuple(_tool_call(call, f"{path}[{index}]") for index, call in enumerate(value))


def _tool_call(call: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(call, dict):
        invalid(path, f"expected an object, got {kind_of(call)}")
    if call.get("type", "function") != "function":
        invalid(f"{path}.type", f'expected "function", got {shown(call["type"])}')
    function = call.get("function")
    if not isinstance(function, dict):
        invalid(f"{path}.function", f"expected an object, got {kind_of(function)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        invalid(f"{path}.function.name", "expected a non-empty string")
    if not isinstance(arguments, str):
        invalid(f"{path}.function.arguments", f"expected a string of JSON, got {kind_of(arguments)}")
    return {
        "id": STRING.read(call["id"], f"{path}.id") if call.get("id") is not None else "",
        "type": "function",
        "function": {"name": name, "arguments": _parsed(arguments)},
    }


def _parsed(arguments: str) -> Any:
    """The object that the string spells, else the string: an agent that echoes a malformed call must be able to go on.

    As strict as with a body: half of a surrogate pair or bottomless nesting would break the template's rendering later.
    """
    try:
        return parse_object(arguments.encode("utf-8"))
    except (ApiError, UnicodeEncodeError):
        return arguments
