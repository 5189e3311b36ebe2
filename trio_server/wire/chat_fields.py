"""Every field of a chat completion request that has a meaning here, in one table (chat page, section 6).

A field is *honoured*, or *inert* at some values and *refused* at the others. The validator, the tests and later the API
document read this table, so that they cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trio_server.wire.checks import unsupported

HONOURED: Final = frozenset(
    {
        "messages",
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "reasoning_effort",
    }
)

EXTENSIONS: Final = frozenset(
    {
        "top_k",
        "min_p",
        "repetition_penalty",
        "repeat_penalty",
        "enable_thinking",
        "preserve_thinking",
        "chat_template_kwargs",
        "thinking_budget",
        "class",
        "ignore_eos",
    }
)


@dataclass(frozen=True, slots=True)
class Refusable:
    """A field that changes nothing at the values `inert` accepts (absent and null always) and is refused at others."""

    inert: Callable[[Any], bool]
    instead: str
    examples: tuple[Any, ...] = ()
    refused_examples: tuple[Any, ...] = ()


def _only(*values: Any) -> Callable[[Any], bool]:
    # `1 == True` in Python and not in JSON.
    return lambda value: any(value == accepted and type(value) is type(accepted) for accepted in values)


def _one_of(instead: str, *values: Any, refused: tuple[Any, ...]) -> Refusable:
    return Refusable(_only(*values), instead, values, refused)


def _anything(*examples: Any) -> Refusable:
    return Refusable(lambda value: True, "", examples)


def _nothing(instead: str, *refused: Any) -> Refusable:
    return Refusable(lambda value: False, instead, (), refused)


_USE_RESPONSE_FORMAT: Final = "use response_format"
_USE_MESSAGES: Final = "this is a field of the Completions API; use messages"

REFUSABLE: Final[Mapping[str, Refusable]] = {
    "n": _one_of("this server returns one choice per request; send 1 or omit it", 1, refused=(2, 0, True, "1")),
    "store": _one_of("nothing is stored; send false or omit it", False, refused=(True, "no")),
    "service_tier": _one_of("there is a single tier; send auto or omit it", "auto", "default", refused=("flex", 1)),
    "modalities": _one_of('chat answers in text only; send ["text"] or omit it', ["text"], refused=(["audio"], "text")),
    "metadata": _anything({"a": "b"}, "x"),
    "user": _anything("someone", 7),
    "safety_identifier": _anything("hash"),
    "verbosity": _anything("low"),
    "prompt_cache_key": _anything("key"),
    "prompt_cache_retention": _anything("24h"),
    "prompt_cache_options": _anything({"ttl": "1h"}),
    "audio": _nothing("chat produces no audio; omit it", {"voice": "alloy"}),
    "prediction": _nothing("predicted outputs are not served; omit it", {"type": "content", "content": "x"}),
    "moderation": _nothing("there is no moderation; omit it", {"model": "x"}),
    "web_search_options": _nothing("there are no hosted tools; omit it", {}),
    "functions": _nothing("use tools", []),
    "function_call": _nothing("use tool_choice", "auto"),
    "prompt": _nothing(_USE_MESSAGES, "x"),
    "suffix": _nothing(_USE_MESSAGES, "x"),
    "echo": _nothing(_USE_MESSAGES, True),
    "best_of": _nothing(_USE_MESSAGES, 1),
    "guided_json": _nothing(_USE_RESPONSE_FORMAT, {}),
    "guided_regex": _nothing(_USE_RESPONSE_FORMAT, "a+"),
    "guided_choice": _nothing(_USE_RESPONSE_FORMAT, ["a"]),
    "guided_grammar": _nothing(_USE_RESPONSE_FORMAT, "root ::= x"),
    "structured_outputs": _nothing(_USE_RESPONSE_FORMAT, {}),
    "grammar": _nothing(_USE_RESPONSE_FORMAT, "root ::= x"),
    "json_schema": _nothing(_USE_RESPONSE_FORMAT, {}),
    "chat_template": _nothing("the model's own template is used; set --model-chat-template", "{{ x }}"),
    "continue_final_message": _one_of(
        "a last assistant message is history, not a beginning to continue; omit it", False, refused=(True,)
    ),
    "add_generation_prompt": _one_of("the answer's opening is always added; omit it", True, refused=(False,)),
    "prompt_logprobs": _nothing("log-probabilities of the prompt are not computed; omit it", 1),
    "use_beam_search": _one_of("there is no beam search; omit it", False, refused=(True,)),
    "n_predict": _nothing("use max_completion_tokens", 16),
    "min_tokens": _one_of("there is no smallest answer; omit it", 0, refused=(1,)),
    "stop_token_ids": _one_of("use stop", [], refused=([2],)),
    "truncate_prompt_tokens": _nothing("a prompt is never truncated; shorten it", 100),
    "cache_prompt": _one_of("prompt reuse is the server's setting (--reuse-prompt); omit it", True, refused=(False,)),
    "id_slot": _nothing("lanes are not addressed; omit it", 0),
}


def check_refusable(body: Mapping[str, Any]) -> None:
    """Raise the 400 of the first field of `REFUSABLE` whose value asks for what is not done."""
    for field in body.keys() & REFUSABLE.keys():
        value, row = body[field], REFUSABLE[field]
        if value is not None and not row.inert(value):
            unsupported(field, row.instead)
