"""Tool definitions and the choice among them; what this version refuses is refused after the shape is known to be right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.refusals import parsed, refused_chat
from trio_server.wire.chat import parse_tools
from trio_server.wire.tools import Tool, ToolChoice

F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
G: dict[str, Any] = {
    "type": "function",
    "function": {"name": "g", "parameters": {"type": "object"}, "strict": True, "x": 1},
}
NAMED_G = {"type": "function", "function": {"name": "g"}}


def allowed(mode: Any, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def test_definitions_are_filled_in_and_the_rest_rides_through() -> None:
    empty_schema = {"type": "object", "properties": {}}
    assert parse_tools({"tools": [F, {**G, "y": 2}]})[0] == (
        Tool("f", {"type": "function", "function": {"name": "f", "parameters": empty_schema, "strict": False}}),
        Tool("g", {**G, "y": 2}),
    )
    null = {"type": "function", "function": {"name": "f", "parameters": None, "strict": None, "description": None}}
    function = parse_tools({"tools": [null]})[0][0].definition["function"]
    assert (function["parameters"], function["strict"]) == (empty_schema, False)
    assert "strict" not in F["function"]  # the request itself is left as it was


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (NAMED_G, ToolChoice("required", ("g",))),
        (allowed("auto", F, NAMED_G), ToolChoice("auto", ("f", "g"))),
        (allowed("required", NAMED_G), ToolChoice("required", ("g",))),
    ],
)
def test_choices(choice: Any, meaning: ToolChoice) -> None:
    assert parse_tools({"tools": [F, G], "tool_choice": choice})[1] == meaning


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([F], "unsupported_value", "tools"),
        ([F, 5], "invalid_request_error", "tools[1]"),
        ([F, {"type": "function"}], "invalid_request_error", "tools[1]"),
        ([F, {"type": "function", "function": {"name": ""}}], "invalid_request_error", "tools[1]"),
        ([F, {"type": "function", "function": {"name": 5}}], "invalid_request_error", "tools[1]"),
        ([F, {"function": {"name": "g"}}], "invalid_request_error", "tools[1]"),
        ([{"type": 5, "function": {"name": "g"}}], "invalid_request_error", "tools[0]"),
        ([{"type": "web_search"}], "unsupported_value", "tools[0]"),
        ([{"type": "custom", "custom": {"name": "x"}}], "unsupported_value", "tools[0]"),
        ([F, G, F], "invalid_request_error", "tools[2].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": []}}],
            "invalid_request_error",
            "tools[0].function.parameters",
        ),
        (
            [{"type": "function", "function": {"name": "f", "strict": 1}}],
            "invalid_request_error",
            "tools[0].function.strict",
        ),
        (
            [{"type": "function", "function": {"name": "f", "description": 1}}],
            "invalid_request_error",
            "tools[0].function.description",
        ),
    ],
)
def test_refused_tools(tools: list[Any], code: str, param: str) -> None:
    assert refused_chat(tools=tools) == (code, param)
    if param != "tools":
        assert refused_chat(tools=tools, tool_choice="none") == (code, param)


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ("required", "unsupported_value"),
        (NAMED_G, "unsupported_value"),
        (allowed("auto", F), "unsupported_value"),
        ("any", "invalid_request_error"),
        (5, "invalid_request_error"),
        ([], "invalid_request_error"),
        ({"type": "function"}, "invalid_request_error"),
        ({"type": "custom", "custom": {"name": "g"}}, "invalid_request_error"),
        ({"type": "function", "function": {"name": "h"}}, "invalid_request_error"),
        (allowed("none", F), "invalid_request_error"),
        (allowed("auto"), "invalid_request_error"),
        (allowed("auto", {"type": "function", "function": {"name": "h"}}), "invalid_request_error"),
        (allowed(["auto"], F), "invalid_request_error"),
        (allowed("auto", 5), "invalid_request_error"),
        ({"type": "allowed_tools"}, "invalid_request_error"),
    ],
)
def test_refused_choices(choice: Any, code: str) -> None:
    assert refused_chat(tools=[F, G], tool_choice=choice) == (code, "tool_choice")


@pytest.mark.parametrize("choice", ["required", NAMED_G, allowed("auto", F)])
def test_a_choice_that_needs_tools(choice: Any) -> None:
    assert refused_chat(tool_choice=choice) == ("invalid_request_error", "tool_choice")
    assert refused_chat(tools=[], tool_choice=choice) == ("invalid_request_error", "tool_choice")


def test_tools_that_no_one_may_call_are_as_none() -> None:
    assert parsed(tools=[F, G], tool_choice="none", parallel_tool_calls=False) == parsed()
