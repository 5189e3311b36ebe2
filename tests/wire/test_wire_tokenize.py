"""The bodies of the two tokenizer routes: section 26."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.refusals import HELLO, refused
from trio_server.wire.messages import Message
from trio_server.wire.tokenize import (
    MOST_TOKEN_IDS,
    DetokenizeRequest,
    TokenizeRequest,
    check_token_ids,
    parse_detokenize_request,
    parse_tokenize_request,
)


def test_messages_or_a_prompt() -> None:
    assert parse_tokenize_request({"messages": HELLO, "model": "m@agent"}) == TokenizeRequest(
        (Message("user", "hello"),), None, "m", False, False
    )
    assert parse_tokenize_request(
        {"prompt": "", "messages": None, "return_token_ids": True, "return_text": True}
    ) == TokenizeRequest(None, "", None, True, True)


def test_fields_that_change_no_prompt_are_not_looked_at() -> None:
    wrong = {
        "temperature": "hot",
        "n": 5,
        "max_tokens": -1,
        "logit_bias": 1,
        "stop": 7,
        "response_format": "x",
        "seed": [],
    }
    assert parse_tokenize_request({"messages": HELLO, **wrong, "stream": False, "parallel_tool_calls": 5})
    # With a raw prompt there is no template, so what would go into one is not looked at either.
    assert parse_tokenize_request({"prompt": "x", **wrong, "tools": 5, "enable_thinking": 5})


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None, "messages": None}, "invalid_request_error", "messages"),
        ({"prompt": "x"}, "invalid_request_error", "prompt"),
        ({"messages": []}, "invalid_request_error", "messages"),
        ({"messages": None, "prompt": ["x"]}, "invalid_request_error", "prompt"),
        ({"messages": [{"role": "user"}]}, "invalid_request_error", "messages[0].content"),
        ({"stream": True}, "invalid_request_error", "stream"),
        ({"stream": "yes"}, "invalid_request_error", "stream"),
        ({"return_text": 1}, "invalid_request_error", "return_text"),
        ({"return_token_ids": 1}, "invalid_request_error", "return_token_ids"),
        ({"model": 5}, "invalid_request_error", "model"),
        ({"class": 5}, "invalid_request_error", "class"),
        ({"tools": [5]}, "invalid_request_error", "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "unsupported_value", "tools"),
        ({"tool_choice": "required"}, "invalid_request_error", "tool_choice"),
        ({"enable_thinking": True}, "thinking_unsupported", "enable_thinking"),
        ({"reasoning_effort": "low"}, "reasoning_effort_unsupported", "reasoning_effort"),
        ({"thinking_budget": -1}, "invalid_request_error", "thinking_budget"),
        ({"chat_template_kwargs": {"x": 1}}, "invalid_request_error", "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "vision_disabled",
            "messages[0].content[0]",
        ),
    ],
)
def test_refused(fields: dict[str, Any], code: str, param: str) -> None:
    error = refused(parse_tokenize_request, {"messages": HELLO, **fields})
    assert (error.code.code, error.param) == (code, param)


def test_detokenize() -> None:
    assert parse_detokenize_request({"token_ids": []}) == DetokenizeRequest((), None)
    assert parse_detokenize_request({"token_ids": [0, 5, 10**20], "model": "m@agent"}) == DetokenizeRequest(
        (0, 5, 10**20), "m"
    )
    assert len(parse_detokenize_request({"token_ids": [1] * MOST_TOKEN_IDS}).token_ids) == MOST_TOKEN_IDS


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "missing"),
        ("5", "expected an array of integers, got a string"),
        ({}, "expected an array of integers, got an object"),
        ([1] * (MOST_TOKEN_IDS + 1), "at most 1048576 ids, got 1048577"),
        ([0, -1, True], "at index 1, got -1"),
        ([0, True, -1], "at index 1, got true"),
        ([1.0], "at index 0, got 1"),
        ([1, "2"], "at index 1, got '2'"),
        ([1, None], "at index 1, got null"),
        ([1, [2]], "at index 1, got an array"),
        ([1, -(10**4299)], "at index 1, got an integer of many digits"),
    ],
)
def test_bad_ids(ids: Any, message: str) -> None:
    error = refused(parse_detokenize_request, {"token_ids": ids})
    assert (error.code.code, error.param) == ("invalid_request_error", "token_ids")
    assert message in error.message


def test_ids_outside_the_vocabulary() -> None:
    check_token_ids((), 10)
    check_token_ids((0, 9), 10)
    error = refused(check_token_ids, (9, 10, 11), 10)
    assert (error.code.code, error.param) == ("invalid_request_error", "token_ids")
    assert "10 at index 1" in error.message
    assert "many digits" in refused(check_token_ids, (10**4299,), 10).message
