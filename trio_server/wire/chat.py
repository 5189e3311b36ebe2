"""`POST /v1/chat/completions`: a request body into a `ChatRequest`, everything checked that needs no model (stage V).

What this version does not serve yet (tools, response formats, thinking, images) is refused here with an honest 400, in the
functions under "Not served yet" and in `messages.py`; all else in the body is as the chat page says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trio_server.wire import errors
from trio_server.wire.chat_fields import check_refusable
from trio_server.wire.checks import (
    SIGNED_64_BITS,
    bad_sampling,
    boolean,
    invalid,
    kind,
    positive_integer,
    sampling_integer,
    sampling_number,
    shown,
    stop_sequences,
    text,
    unsupported,
)
from trio_server.wire.errors import ApiError
from trio_server.wire.messages import Message, parse_messages

RequestClass = Literal["interactive", "agent"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MOST_BIASES = 300
MOST_TOP_LOGPROBS = 20
_EMPTY: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """What the request says about drawing; `None` where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid request. `model` is without its class suffix; `max_tokens_param` is the field that named the cap."""

    messages: tuple[Message, ...]
    model: str | None
    request_class: RequestClass
    stream: bool
    include_usage: bool
    max_tokens: int | None
    max_tokens_param: str
    stop: tuple[str, ...]
    logprobs: bool
    top_logprobs: int
    ignore_eos: bool
    sampling: SamplingFields


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises `ApiError` 400 for the first fault."""
    messages = parse_messages(body.get("messages"))
    model, request_class = parse_model(body)
    check_refusable(body)
    stream = boolean(body, "stream")
    include_usage = _include_usage(body, stream)
    max_tokens, max_tokens_param = _cap(body)
    check_tools(body)
    check_response_format(body)
    check_thinking(body)
    logprobs, top_logprobs = _logprobs(body)
    ignore_eos = boolean(body, "ignore_eos")
    if ignore_eos and max_tokens is None:
        invalid("ignore_eos", "true needs max_completion_tokens, since nothing else would end the answer")
    return ChatRequest(
        messages=messages,
        model=model,
        request_class=request_class,
        stream=stream,
        include_usage=include_usage,
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stop=stop_sequences(body.get("stop")),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        ignore_eos=ignore_eos,
        sampling=_sampling(body),
    )


def parse_model(body: Mapping[str, Any]) -> tuple[str | None, RequestClass]:
    """The served id asked for (`None`: the loaded one), and the class, from `class` or from an `@` suffix (section 8)."""
    name = text(body, "model") or None
    suffix = ""
    if name is not None:
        head, at, tail = name.rpartition("@")
        if at and head:
            name, suffix = head, tail
    named = text(body, "class")
    return name, "agent" if (suffix if named is None else named) == "agent" else "interactive"


def check_vocabulary(request: ChatRequest, vocabulary_size: int) -> None:
    """What of the request depends on the model's vocabulary. Raises `ApiError` 400."""
    top_k = request.sampling.top_k
    if top_k is not None and top_k > vocabulary_size:
        bad_sampling("top_k", f"expected an integer within 0..{vocabulary_size}, got {shown(top_k)}")
    for token in request.sampling.logit_bias:
        if token >= vocabulary_size:
            invalid("logit_bias", f"token id {shown(token)} is outside the vocabulary of {vocabulary_size} tokens")


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        invalid("stream_options", f"expected an object, got {kind(options)}")
    for name in ("include_usage", "include_obfuscation"):
        value = options.get(name)
        if value is not None and not isinstance(value, bool):
            invalid(f"stream_options.{name}", f"expected a boolean, got {kind(value)}")
    return stream and options.get("include_usage") is True


def _cap(body: Mapping[str, Any]) -> tuple[int | None, str]:
    new, old = positive_integer(body, "max_completion_tokens"), positive_integer(body, "max_tokens")
    if new is not None and old is not None and new != old:
        invalid("max_completion_tokens", "differs from max_tokens, which is the same setting; send one of them")
    if new is None and old is not None:
        return old, "max_tokens"
    return new, "max_completion_tokens"


def _logprobs(body: Mapping[str, Any]) -> tuple[bool, int]:
    wanted, top = boolean(body, "logprobs"), body.get("top_logprobs")
    if top is None:
        return wanted, 0
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MOST_TOP_LOGPROBS:
        invalid("top_logprobs", f"expected an integer within 0..{MOST_TOP_LOGPROBS}")
    if not wanted:
        invalid("top_logprobs", "needs logprobs: true")
    return wanted, top


def _sampling(body: Mapping[str, Any]) -> SamplingFields:
    repetition = sampling_number(body, "repetition_penalty", 0, 2, above_low=True)
    alias = sampling_number(body, "repeat_penalty", 0, 2, above_low=True)
    if repetition is not None and alias is not None and repetition != alias:
        invalid("repeat_penalty", "differs from repetition_penalty, which is the same setting; send one of them")
    return SamplingFields(
        temperature=sampling_number(body, "temperature", 0, 2),
        top_p=sampling_number(body, "top_p", 0, 1),
        top_k=sampling_integer(body, "top_k", range(2**31)),
        min_p=sampling_number(body, "min_p", 0, 1),
        presence_penalty=sampling_number(body, "presence_penalty", -2, 2),
        frequency_penalty=sampling_number(body, "frequency_penalty", -2, 2),
        repetition_penalty=repetition if repetition is not None else alias,
        seed=sampling_integer(body, "seed", SIGNED_64_BITS),
        logit_bias=_logit_bias(body.get("logit_bias")),
    )


def _logit_bias(value: Any) -> Mapping[int, float]:
    if value is None:
        return _EMPTY
    if not isinstance(value, dict):
        invalid("logit_bias", f"expected an object, got {kind(value)}")
    if len(value) > MOST_BIASES:
        invalid("logit_bias", f"expected at most {MOST_BIASES} entries, got {len(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            invalid("logit_bias", f"expected token ids in decimal as keys, got {key[:32]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            invalid("logit_bias", f"expected a number within -100..100 for token {key}")
        biases[int(key)] = float(bias)
    return biases


# Not served yet: shapes are checked as they will be, then what would change the answer is refused.


def check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    names: set[str] = set()
    if tools is not None:
        if not isinstance(tools, list):
            invalid("tools", f"expected an array, got {kind(tools)}")
        for index, tool in enumerate(tools):
            names.add(_tool_name(tool, f"tools[{index}]", names))
    boolean(body, "parallel_tool_calls", True)
    choice = body.get("tool_choice")
    if choice is not None and choice not in ("auto", "none"):
        if not names and choice == "required":
            invalid("tool_choice", '"required" needs tools')
        if choice == "required" or isinstance(choice, dict):
            unsupported("tool_choice", "tool calls are not served by this version; send auto or none, or omit it")
        invalid("tool_choice", "expected auto, none, required or an object")
    if names and choice != "none":
        unsupported("tools", "tool calls are not served by this version; omit them, or send tool_choice: none")


def _tool_name(tool: Any, path: str, taken: set[str]) -> str:
    if not isinstance(tool, dict):
        invalid(path, f"expected an object, got {kind(tool)}")
    if tool.get("type") != "function":
        if isinstance(tool.get("type"), str):
            unsupported(f"{path}.type", "only function tools exist here")
        invalid(path, 'expected {"type": "function", "function": {"name": …}}')
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        invalid(path, 'expected {"type": "function", "function": {"name": …}}')
    if name in taken:
        invalid(f"{path}.function.name", "the name is taken by an earlier tool")
    return name


def check_response_format(body: Mapping[str, Any]) -> None:
    value = body.get("response_format")
    if value is None or (isinstance(value, dict) and value.get("type") == "text"):
        return
    unsupported("response_format", 'structured output is not served by this version; send {"type": "text"} or omit it')


def check_thinking(body: Mapping[str, Any]) -> None:
    kwargs = body.get("chat_template_kwargs")
    if kwargs is not None:
        if not isinstance(kwargs, dict):
            invalid("chat_template_kwargs", f"expected an object, got {kind(kwargs)}")
        for key in kwargs:
            if key not in ("enable_thinking", "preserve_thinking"):
                invalid("chat_template_kwargs", f"{key[:64]!r} is not one of enable_thinking, preserve_thinking")
    thinking = _both_places(body, kwargs or {}, "enable_thinking")
    _both_places(body, kwargs or {}, "preserve_thinking")
    budget = body.get("thinking_budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
        invalid("thinking_budget", "expected an integer of at least 0")
    effort = text(body, "reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        invalid("reasoning_effort", f"expected one of {', '.join(EFFORTS)}")
    if effort is not None and thinking is not None and (effort != "none") != thinking:
        invalid("reasoning_effort", f"{effort} disagrees with enable_thinking: {str(thinking).lower()}")
    if thinking:
        raise ApiError(
            errors.THINKING_UNSUPPORTED,
            "enable_thinking: thinking is not served by this version; send false or omit it",
            "enable_thinking",
        )
    if effort not in (None, "none", "minimal"):
        raise ApiError(
            errors.REASONING_EFFORT_UNSUPPORTED,
            "reasoning_effort: thinking is not served by this version; send none or omit it",
            "reasoning_effort",
        )


def _both_places(body: Mapping[str, Any], kwargs: Mapping[str, Any], name: str) -> bool | None:
    found: bool | None = None
    for place, prefix in ((body, ""), (kwargs, "chat_template_kwargs.")):
        value = place.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            invalid(f"{prefix}{name}", f"expected a boolean, got {kind(value)}")
        if found is not None and found != value:
            invalid(name, f"differs from chat_template_kwargs.{name}; send one of them")
        found = value
    return found
