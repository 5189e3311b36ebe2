"""What a chat request becomes, what holds between its fields, and that nothing but a refusal ever comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.refusals import HELLO, parsed, refused, refused_chat
from trio_server.wire.chat import SamplingFields, check_vocabulary, parse_chat_request
from trio_server.wire.chat_fields import FIELDS
from trio_server.wire.errors import CATALOGUE, ApiError
from trio_server.wire.json_body import parse_object
from trio_server.wire.messages import Message
from trio_server.wire.tokenize import parse_detokenize_request, parse_tokenize_request


def test_a_request_that_says_nothing() -> None:
    request = parsed()
    assert request.messages == (Message("user", "hello"),)
    assert (request.model, request.request_class) == (None, "interactive")
    assert (request.stream, request.include_usage) == (False, False)
    assert request.max_tokens is None
    assert (request.stop, request.logprobs, request.top_logprobs, request.ignore_eos) == ((), False, 0, False)
    assert request.sampling == SamplingFields()


def test_a_request_that_says_everything() -> None:
    request = parsed(
        model="qwen3-8b@agent",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": True, "other": 1},
        max_completion_tokens=7,
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=20,
        ignore_eos=True,
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=1,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        seed=-(2**63),
        logit_bias={"0": -100, "12": 0.5},
    )
    assert (request.model, request.request_class) == ("qwen3-8b", "agent")
    assert (request.stream, request.include_usage) == (True, True)
    assert (request.max_tokens, request.max_tokens_param) == (7, "max_completion_tokens")
    assert (request.stop, request.logprobs, request.top_logprobs, request.ignore_eos) == (("a", "b"), True, 20, True)
    assert request.sampling == SamplingFields(0.0, 0.5, 3, 1.0, -2.0, 2.0, 1.5, -(2**63), {0: -100.0, 12: 0.5})
    assert isinstance(request.sampling.temperature, float)


@pytest.mark.parametrize(
    ("model", "named", "name", "request_class"),
    [
        (None, None, None, "interactive"),
        ("", None, None, "interactive"),
        ("m", None, "m", "interactive"),
        ("m@agent", None, "m", "agent"),
        ("m@interactive", None, "m", "interactive"),
        ("m@whatever", None, "m", "interactive"),
        ("m@", None, "m", "interactive"),
        ("a@b@agent", None, "a@b", "agent"),
        ("@agent", None, "@agent", "interactive"),
        ("@", None, "@", "interactive"),
        ("m@agent", "interactive", "m", "interactive"),
        ("m@agent", "whatever", "m", "interactive"),
        ("m", "agent", "m", "agent"),
        (None, "agent", None, "agent"),
        ("m@Agent", None, "m", "interactive"),
    ],
)
def test_model_and_class(model: str | None, named: str | None, name: str | None, request_class: str) -> None:
    request = parsed(model=model, **{"class": named})
    assert (request.model, request.request_class) == (name, request_class)


@pytest.mark.parametrize(
    ("fields", "cap", "param"),
    [
        ({}, None, "max_completion_tokens"),
        ({"max_tokens": 5}, 5, "max_tokens"),
        ({"max_completion_tokens": 5}, 5, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 5}, 5, "max_completion_tokens"),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5, "max_tokens"),
    ],
)
def test_the_two_caps_are_one(fields: dict[str, Any], cap: int | None, param: str) -> None:
    request = parsed(**fields)
    assert (request.max_tokens, request.max_tokens_param) == (cap, param)


def test_usage_is_for_streams_only() -> None:
    assert not parsed(stream_options={"include_usage": True}).include_usage
    assert not parsed(stream=True).include_usage
    assert not parsed(stream=True, stream_options={"include_usage": None}).include_usage


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": None}, "invalid_request_error", "messages"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_request_error", "max_completion_tokens"),
        ({"max_tokens": 10**4000}, "invalid_request_error", "max_tokens"),
        ({"seed": 10**4299}, "invalid_sampling_parameter", "seed"),
        ({"temperature": 10**4299}, "invalid_sampling_parameter", "temperature"),
        ({"temperature": float("nan")}, "invalid_sampling_parameter", "temperature"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "invalid_request_error", "repeat_penalty"),
        ({"top_logprobs": 3}, "invalid_request_error", "top_logprobs"),
        ({"top_logprobs": 0, "logprobs": False}, "invalid_request_error", "top_logprobs"),
        ({"ignore_eos": True}, "invalid_request_error", "ignore_eos"),
        ({"class": 5, "model": "m@agent"}, "invalid_request_error", "class"),
        ({"stream_options": {"include_obfuscation": 1}}, "invalid_request_error", "stream_options.include_obfuscation"),
        ({"logit_bias": {str(n): 0 for n in range(301)}}, "invalid_request_error", "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "invalid_request_error", "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "invalid_request_error", "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "unsupported_value", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
            "unsupported_value",
            "response_format",
        ),
    ],
)
def test_refused(fields: dict[str, Any], code: str, param: str) -> None:
    assert refused_chat(**fields) == (code, param)


def test_the_aliases_of_one_setting_may_agree() -> None:
    assert parsed(repetition_penalty=1.5, repeat_penalty=1.5).sampling.repetition_penalty == 1.5
    assert parsed(repeat_penalty=0.5).sampling.repetition_penalty == 0.5
    assert len(parsed(logit_bias={str(n): 0 for n in range(300)}).sampling.logit_bias) == 300


# Thinking


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"enable_thinking": True}, "thinking_unsupported", "enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "thinking_unsupported", "enable_thinking"),
        ({"reasoning_effort": "low"}, "reasoning_effort_unsupported", "reasoning_effort"),
        ({"reasoning_effort": "max"}, "reasoning_effort_unsupported", "reasoning_effort"),
        ({"reasoning_effort": "great"}, "invalid_request_error", "reasoning_effort"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "invalid_request_error", "reasoning_effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "invalid_request_error", "reasoning_effort"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "invalid_request_error",
            "reasoning_effort",
        ),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "invalid_request_error",
            "enable_thinking",
        ),
        (
            {"preserve_thinking": True, "chat_template_kwargs": {"preserve_thinking": False}},
            "invalid_request_error",
            "preserve_thinking",
        ),
        (
            {"chat_template_kwargs": {"preserve_thinking": "yes"}},
            "invalid_request_error",
            "chat_template_kwargs.preserve_thinking",
        ),
        ({"enable_thinking": True, "temperature": 9}, "thinking_unsupported", "enable_thinking"),
        ({"reasoning_effort": "great", "temperature": 9}, "invalid_request_error", "reasoning_effort"),
    ],
)
def test_thinking_refused(fields: dict[str, Any], code: str, param: str) -> None:
    assert refused_chat(**fields) == (code, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": True}},
        {"reasoning_effort": "none", "enable_thinking": False},
        {"reasoning_effort": "minimal"},
        {"thinking_budget": 0, "preserve_thinking": True},
    ],
)
def test_thinking_inert(fields: dict[str, Any]) -> None:
    assert parsed(**fields) == parsed()


def test_a_contradiction_names_both_sides_and_a_wrong_word_the_vocabulary() -> None:
    error = refused(parse_chat_request, {"messages": HELLO, "reasoning_effort": "low", "enable_thinking": False})
    assert "reasoning_effort" in error.message
    assert "enable_thinking" in error.message
    error = refused(parse_chat_request, {"messages": HELLO, "reasoning_effort": "great"})
    assert "none, minimal, low, medium, high, xhigh, max" in error.message
    error = refused(parse_chat_request, {"messages": HELLO, "chat_template_kwargs": {"tools": None}})
    assert "'tools'" in error.message


# The vocabulary


def test_check_vocabulary() -> None:
    check_vocabulary(parsed(), 1)
    check_vocabulary(parsed(top_k=100, logit_bias={"99": 1}), 100)
    error = refused(check_vocabulary, parsed(top_k=101), 100)
    assert (error.code.code, error.param) == ("invalid_sampling_parameter", "top_k")
    error = refused(check_vocabulary, parsed(logit_bias={"100": 1}), 100)
    assert (error.code.code, error.param) == ("invalid_request_error", "logit_bias")
    assert "100" in error.message


# Anything at all

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**4299),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["user", "assistant", "tool", "text", "function", "auto", "required", "none", "low", "json_object"]
    ),
)
KEYS = st.sampled_from(
    [
        *FIELDS,
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "tool_call_id",
        "reasoning_content",
        "refusal",
        "image_url",
        "allowed_tools",
        "mode",
        "parameters",
        "strict",
        "include_usage",
        "id",
        "token_ids",
    ]
) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(KEYS, children, max_size=5),
    max_leaves=20,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]), "content": VALUES},
        optional={
            "tool_calls": VALUES
            | st.lists(
                st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": SCALARS, "arguments": SCALARS})})
            ),
            "tool_call_id": SCALARS,
            "reasoning_content": SCALARS,
            "name": SCALARS,
        },
    ),
    min_size=1,
    max_size=3,
)
TOOLS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["function", "custom"]), "function": VALUES}) | VALUES, max_size=3
)
BODIES = (
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, VALUES))
    | st.fixed_dictionaries(
        {"messages": MESSAGES | st.just(HELLO)}, optional={name: SCALARS for name in FIELDS if name != "messages"}
    )
    | st.fixed_dictionaries({"messages": st.just(HELLO), "tools": TOOLS, "tool_choice": VALUES})
    | st.dictionaries(KEYS, VALUES, max_size=6)
)


def refusal(parse: Callable[[dict[str, Any]], object], body: dict[str, Any]) -> ApiError | None:
    try:
        parse(body)
    except ApiError as error:
        return error
    return None


@given(BODIES)
def test_any_body_is_a_request_or_a_refusal(body: dict[str, Any]) -> None:
    for parse in (parse_chat_request, parse_tokenize_request, parse_detokenize_request):
        error = refusal(parse, body)
        if error is not None:
            assert error.code in CATALOGUE.values()
            assert error.status == 400
            assert error.param
            assert error.message.startswith(error.param)
            assert len(error.message.encode("utf-8")) < 1000


@given(BODIES)
def test_what_comes_through_the_wire_can_always_be_written_again(body: dict[str, Any]) -> None:
    """No half of a surrogate pair and no number out of range reaches the template or the engine."""
    try:
        request = parse_chat_request(parse_object(json.dumps(body).encode()))
    except ApiError:
        return
    json.dumps([m.as_template_input() for m in request.messages], allow_nan=False, ensure_ascii=False).encode()
    assert all(stop.encode() for stop in request.stop)
