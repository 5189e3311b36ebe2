"""`POST /v1/chat/completions`: a request body into a `ChatRequest`, everything checked that needs no model (stage V).

The fields themselves are declared in `chat_fields.py`; here is what holds between them, and the order in which faults are
reported. What this version does not serve yet is refused by the functions of `unserved.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trio_server.wire import chat_fields as fields
from trio_server.wire.checks import bad_sampling, invalid, shown
from trio_server.wire.messages import Message
from trio_server.wire.thinking import ThinkingFields, resolve_thinking
from trio_server.wire.tools import AUTO, Tool, ToolChoice, check_choice
from trio_server.wire.unserved import refuse_response_format, refuse_thinking, refuse_tools

RequestClass = Literal["interactive", "agent"]


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
    """Raises `ApiError` 400 for the first fault. A fault in thinking goes before one in sampling (section 9.2)."""
    messages = parse_messages(body)
    model, request_class = parse_model(body)
    for row in fields.BY_VALUE:
        row.of(body)
    stream = fields.STREAM.of(body) or False
    include_usage = (fields.STREAM_OPTIONS.of(body) or False) and stream
    max_tokens, max_tokens_param = _cap(body)
    fields.PARALLEL_TOOL_CALLS.of(body)  # one call or many: inert while there are none
    refuse_tools(*parse_tools(body))
    refuse_response_format(fields.RESPONSE_FORMAT.of(body) or "text")
    refuse_thinking(parse_thinking(body))
    logprobs, top_logprobs = _logprobs(body)
    ignore_eos = fields.IGNORE_EOS.of(body) or False
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
        stop=fields.STOP_FIELD.of(body) or (),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        ignore_eos=ignore_eos,
        sampling=_sampling(body),
    )


def check_vocabulary(request: ChatRequest, vocabulary_size: int) -> None:
    """What of the request depends on the model's vocabulary. Raises `ApiError` 400."""
    top_k = request.sampling.top_k
    if top_k is not None and top_k > vocabulary_size:
        bad_sampling("top_k", f"expected an integer within 0..{vocabulary_size}, got {shown(top_k)}")
    for token in request.sampling.logit_bias:
        if token >= vocabulary_size:
            invalid("logit_bias", f"token id {shown(token)} is outside the vocabulary of {vocabulary_size} tokens")


# Parts that `/v1/tokenize` reads in the same way.


def parse_messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    messages = fields.MESSAGES_FIELD.of(body)
    if messages is None:
        invalid("messages", "missing; send an array of at least one message")
    return messages


def parse_model(body: Mapping[str, Any]) -> tuple[str | None, RequestClass]:
    """The served id asked for (`None`: the loaded one), and the class, from `class` or from an `@` suffix (section 8)."""
    name, named = fields.MODEL.of(body) or None, fields.CLASS.of(body)
    suffix = ""
    if name is not None:
        head, _, tail = name.rpartition("@")
        if head:
            name, suffix = head, tail
    return name, "agent" if (suffix if named is None else named) == "agent" else "interactive"


def parse_tools(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools, choice = fields.TOOLS_FIELD.of(body) or (), fields.TOOL_CHOICE_FIELD.of(body) or AUTO
    check_choice(tools, choice)
    return tools, choice


def parse_thinking(body: Mapping[str, Any]) -> ThinkingFields:
    return resolve_thinking(
        fields.ENABLE_THINKING.of(body),
        fields.PRESERVE_THINKING.of(body),
        fields.CHAT_TEMPLATE_KWARGS.of(body),
        fields.REASONING_EFFORT.of(body),
        fields.THINKING_BUDGET.of(body),
    )


def _cap(body: Mapping[str, Any]) -> tuple[int | None, str]:
    new, old = fields.MAX_COMPLETION_TOKENS.of(body), fields.MAX_TOKENS.of(body)
    if new is not None and old is not None and new != old:
        invalid("max_completion_tokens", "differs from max_tokens, which is the same setting; send one of them")
    if new is None and old is not None:
        return old, "max_tokens"
    return new, "max_completion_tokens"


def _logprobs(body: Mapping[str, Any]) -> tuple[bool, int]:
    wanted, top = fields.LOGPROBS.of(body) or False, fields.TOP_LOGPROBS.of(body)
    if top is not None and not wanted:
        invalid("top_logprobs", "needs logprobs: true")
    return wanted, top or 0


def _sampling(body: Mapping[str, Any]) -> SamplingFields:
    repetition, alias = fields.REPETITION_PENALTY.of(body), fields.REPEAT_PENALTY.of(body)
    if repetition is not None and alias is not None and repetition != alias:
        invalid("repeat_penalty", "differs from repetition_penalty, which is the same setting; send one of them")
    return SamplingFields(
        temperature=fields.TEMPERATURE.of(body),
        top_p=fields.TOP_P.of(body),
        top_k=fields.TOP_K.of(body),
        min_p=fields.MIN_P.of(body),
        presence_penalty=fields.PRESENCE_PENALTY.of(body),
        frequency_penalty=fields.FREQUENCY_PENALTY.of(body),
        repetition_penalty=repetition if repetition is not None else alias,
        seed=fields.SEED.of(body),
        logit_bias=fields.LOGIT_BIAS_FIELD.of(body) or {},
    )
