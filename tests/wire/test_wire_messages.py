"""Roles, content parts and earlier tool calls: sections 7.1 and 7.3."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.refusals import parsed, refused_chat
from trio_server.wire.messages import Message

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def message(**fields: Any) -> Message:
    return parsed(messages=[fields]).messages[0]


def fault(**fields: Any) -> tuple[str, str | None]:
    return refused_chat(messages=[{"role": "user", "content": "first"}, fields])


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_text(role: str) -> None:
    assert message(role=role, content="hi", name="n") == Message(role, "hi", name="n")
    assert message(role=role, content="").content == ""
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "", "cache_control": {}},
        {"type": "text", "text": "b"},
    ]
    assert message(role=role, content=parts).content == "ab"


def test_assistant() -> None:
    parts = [{"type": "text", "text": "I "}, {"type": "refusal", "refusal": "cannot"}]
    assert message(role="assistant", content=parts).content == "I cannot"
    called = message(role="assistant", content=None, tool_calls=[CALL])
    assert called.content is None
    assert called.tool_calls == (
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
    )
    assert message(role="assistant", reasoning_content="hm").as_template_input() == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
    }
    # What the SDK's own message object dumps to goes back in.
    assert message(
        role="assistant", content="x", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None
    ) == Message("assistant", "x")


def test_tool() -> None:
    assert message(role="tool", content="42", tool_call_id="never seen").as_template_input() == {
        "role": "tool",
        "content": "42",
        "tool_call_id": "never seen",
    }
    assert message(role="tool", content=[{"type": "text", "text": "42"}], tool_call_id="x").content == "42"


def test_messages_know_their_place() -> None:
    request = parsed(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [message.index for message in request.messages] == [0, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{",
        "[1]",
        "1",
        "null",
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        '{"a": 1e999}',
        "[" * 5000,
        '{"a":' * 200 + "1" + "}" * 200,
    ],
)
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert message(role="assistant", tool_calls=[call]).tool_calls == (
        {"id": "", "type": "function", "function": {"name": "f", "arguments": arguments}},
    )


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"role": "user"}, "invalid_request_error", "messages[1].content"),
        ({"role": "system", "content": None}, "invalid_request_error", "messages[1].content"),
        ({"role": "tool", "content": None, "tool_call_id": "x"}, "invalid_request_error", "messages[1].content"),
        ({"role": "assistant", "content": None}, "invalid_request_error", "messages[1].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "invalid_request_error", "messages[1].content"),
        ({"role": "user", "content": None, "tool_calls": [CALL]}, "invalid_request_error", "messages[1].content"),
        ({"role": "user", "content": 5}, "invalid_request_error", "messages[1].content"),
        ({"role": "user", "content": {}}, "invalid_request_error", "messages[1].content"),
        ({"role": "user", "content": []}, "invalid_request_error", "messages[1].content"),
        ({"role": "user", "content": "x", "name": 5}, "invalid_request_error", "messages[1].name"),
        ({"content": "x"}, "invalid_request_error", "messages[1].role"),
        ({"role": 5, "content": "x"}, "invalid_request_error", "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "invalid_request_error", "messages[1].role"),
        ({"role": "User", "content": "x"}, "invalid_request_error", "messages[1].role"),
        ({"role": "function", "content": "x", "name": "f"}, "invalid_request_error", "messages[1].role"),
        ({"role": "tool", "content": "x"}, "invalid_request_error", "messages[1].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "invalid_request_error", "messages[1].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "invalid_request_error", "messages[1].tool_call_id"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "unsupported_value", "messages[1].audio"),
        (
            {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
            "unsupported_value",
            "messages[1].function_call",
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": 5},
            "invalid_request_error",
            "messages[1].reasoning_content",
        ),
    ],
)
def test_refused_messages(fields: dict[str, Any], code: str, param: str) -> None:
    assert fault(**fields) == (code, param)


@pytest.mark.parametrize(
    ("part", "role", "code", "below"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "user", "vision_disabled", ""),
        ({"type": "image_url", "image_url": "https://x"}, "tool", "vision_disabled", ""),
        ({"type": "image_url"}, "assistant", "vision_disabled", ""),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "system", "invalid_request_error", ""),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "developer", "invalid_request_error", ""),
        ({"type": "video_url", "video_url": {"url": "x"}}, "user", "video_unsupported", ""),
        ({"type": "input_audio", "input_audio": {}}, "user", "unsupported_content_part", ""),
        ({"type": "file", "file": {}}, "user", "unsupported_content_part", ""),
        ({"type": "refusal", "refusal": "x"}, "user", "unsupported_content_part", ""),
        ({"type": "x" * 9999}, "user", "unsupported_content_part", ""),
        ({"type": 5}, "user", "invalid_request_error", ".type"),
        ({"text": "x"}, "user", "invalid_request_error", ".type"),
        ({"type": "text"}, "user", "invalid_request_error", ".text"),
        ({"type": "text", "text": None}, "user", "invalid_request_error", ".text"),
        ({"type": "refusal", "refusal": 1}, "assistant", "invalid_request_error", ".refusal"),
        ("x", "user", "invalid_request_error", ""),
    ],
)
def test_refused_parts(part: Any, role: str, code: str, below: str) -> None:
    found = fault(role=role, content=[{"type": "text", "text": "a"}, part], tool_call_id="x")
    assert found == (code, f"messages[1].content[1]{below}")


@pytest.mark.parametrize(
    ("calls", "below"),
    [
        ({}, ""),
        ([5], "[0]"),
        ([CALL, {}], "[1].function"),
        ([{"function": {"arguments": "{}"}}], "[0].function.name"),
        ([{"function": {"name": "", "arguments": "{}"}}], "[0].function.name"),
        ([{"function": {"name": "f"}}], "[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": {}}}], "[0].function.arguments"),
        ([{**CALL, "id": 5}], "[0].id"),
        ([{**CALL, "type": "custom"}], "[0].type"),
    ],
)
def test_refused_calls(calls: Any, below: str) -> None:
    found = fault(role="assistant", content="x", tool_calls=calls)
    assert found == ("invalid_request_error", f"messages[1].tool_calls{below}")
