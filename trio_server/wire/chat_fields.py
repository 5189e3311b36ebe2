"""Every field of a chat completion request that has a meaning here: the one table of section 6 of the chat page.

A field is *honoured*, or *inert* at some values and *refused* at the others. `chat.py` reads a request through these
declarations, the API document is made from them, and the tests go over them row by row, so that the three cannot drift.
Absent and null always say nothing. A field that is not here is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from trio_server.wire.checks import bad_sampling, invalid, kind_of, unsupported
from trio_server.wire.kinds import ANYTHING, BOOLEAN, LOGIT_BIAS, STOP, STRING, Kind, integer, number, only
from trio_server.wire.messages import MESSAGES
from trio_server.wire.thinking import BUDGET, EFFORT, TEMPLATE_SWITCHES
from trio_server.wire.tools import TOOL_CHOICE, TOOLS

T = TypeVar("T")

MOST_TOP_LOGPROBS: Final = 20
# A vocabulary's size is known once the model is; this is more than any has.
LARGEST_TOP_K: Final = 2**31 - 1


class Column(Enum):
    """Where a field stands: sections 6.1, 6.2 and 6.3."""

    HONOURED = "honoured"
    EXTENSION = "honoured, not OpenAI's"
    BY_VALUE = "inert or refused, by value"


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One row. `accepted` and `refused` are example values, each of them enough by itself to pass or to fail."""

    name: str
    column: Column
    kind: Kind[T]
    about: str
    accepted: tuple[Any, ...]
    refused: tuple[Any, ...]

    def of(self, body: Mapping[str, Any]) -> T | None:
        """The field's value in a request body, `None` when it says nothing. Raises `ApiError` 400."""
        return self.kind.of(body, self.name)


FIELDS: Final[dict[str, Field[Any]]] = {}


def _declare(
    column: Column, name: str, kind: Kind[T], about: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]
) -> Field[T]:
    field = Field(name, column, kind, about, accepted, refused)
    FIELDS[name] = field
    return field


def _honoured(name: str, kind: Kind[T], about: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]) -> Field[T]:
    return _declare(Column.HONOURED, name, kind, about, accepted, refused)


def _extension(name: str, kind: Kind[T], about: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]) -> Field[T]:
    return _declare(Column.EXTENSION, name, kind, about, accepted, refused)


def _inert(name: str, *accepted: Any) -> None:
    """A field that changes nothing, whatever it is."""
    _declare(Column.BY_VALUE, name, ANYTHING, "Accepted and ignored.", accepted, ())


def _refused(name: str, instead: str, *refused: Any, inert: tuple[Any, ...] = ()) -> None:
    """A field that is refused at every value but those that change nothing."""
    about = f"Changes nothing at {_list(inert)}; otherwise refused: {instead}." if inert else f"Refused: {instead}."
    _declare(Column.BY_VALUE, name, only(instead, *inert), about, inert, refused)


def _list(values: tuple[Any, ...]) -> str:
    return " or ".join("true" if value is True else "false" if value is False else str(value) for value in values)


# Kinds that only this table needs.


def _stream_options(value: Any, param: str) -> bool:
    """Whether usage was asked for."""
    if not isinstance(value, dict):
        invalid(param, f"expected an object, got {kind_of(value)}")
    for name in ("include_usage", "include_obfuscation"):
        if value.get(name) is not None:
            BOOLEAN.read(value[name], f"{param}.{name}")
    return value.get("include_usage") is True


STREAM_OPTIONS_KIND: Final = Kind(
    _stream_options,
    {
        "type": "object",
        "properties": {
            "include_usage": {"type": ["boolean", "null"]},
            "include_obfuscation": {"type": ["boolean", "null"]},
        },
    },
)


def _response_format(value: Any, param: str) -> str:
    """The type of the format."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        unsupported(param, 'expected {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", …}')
    return str(kind)


RESPONSE_FORMAT_KIND: Final = Kind(
    _response_format,
    {
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        "required": ["type"],
    },
)

# 6.1: honoured.

_HELLO: Final = [{"role": "user", "content": "hello"}]

MESSAGES_FIELD: Final = _honoured(
    "messages", MESSAGES, "The conversation so far; at least one message.", (_HELLO,), ([], "hello", {}, ["hello"])
)
MODEL: Final = _honoured(
    "model",
    STRING,
    "The model to ask; absent, null or empty for the loaded one. A suffix `@agent` names the request's class.",
    ("", "qwen3-8b", "qwen3-8b@agent"),
    (1, ["qwen3-8b"]),
)
STREAM: Final = _honoured("stream", BOOLEAN, "Answer in server-sent events.", (True, False), (1, "true"))
STREAM_OPTIONS: Final = _honoured(
    "stream_options",
    STREAM_OPTIONS_KIND,
    "`include_usage` asks for a last chunk with the usage; changes nothing when not streaming.",
    ({}, {"include_usage": True}, {"include_obfuscation": False}),
    (True, {"include_usage": "yes"}),
)
MAX_TOKENS: Final = _honoured(
    "max_tokens", integer(1), "The older name of `max_completion_tokens`.", (1, 4096), (0, -1, 1.0, 1.5, True, "1")
)
MAX_COMPLETION_TOKENS: Final = _honoured(
    "max_completion_tokens",
    integer(1),
    "The most tokens that may be generated, thinking included.",
    (1, 4096),
    (0, -1, 1.0, 1.5, True, "1"),
)
TEMPERATURE: Final = _honoured(
    "temperature", number(0, 2), "0 takes the most likely token.", (0, 0.7, 2), (-0.1, 2.1, 1e-50, True, "1", [])
)
TOP_P: Final = _honoured("top_p", number(0, 1), "Nucleus sampling.", (0, 0.5, 1), (-0.1, 1.1, 1e-50, True, "1"))
PRESENCE_PENALTY: Final = _honoured(
    "presence_penalty", number(-2, 2), "Off at 0.", (-2, 0, 0.5, 2), (-2.1, 2.1, -1e-50, False, "0")
)
FREQUENCY_PENALTY: Final = _honoured(
    "frequency_penalty", number(-2, 2), "Off at 0.", (-2, 0, 0.5, 2), (-2.1, 2.1, -1e-50, False, "0")
)
SEED: Final = _honoured(
    "seed",
    integer(-(2**63), 2**63 - 1, bad_sampling),
    "A signed 64-bit integer. The same request gives the same text on the same build, when served alone.",
    (0, -1, 2**63 - 1, -(2**63)),
    (2**63, -(2**63) - 1, 1.0, True, "1"),
)
STOP_FIELD: Final = _honoured(
    "stop",
    STOP,
    "A text, or up to four, before which the answer ends.",
    ("END", ["END"], ["a", "b", "c", "d"], []),
    ("", [""], ["a", "b", "c", "d", "e"], [1], 1, {}),
)
TOOLS_FIELD: Final = _honoured(
    "tools",
    TOOLS,
    "Functions that the model may call.",
    ([],),
    ({}, ["f"], [{"type": "function"}], [{"type": "custom", "custom": {"name": "f"}}]),
)
TOOL_CHOICE_FIELD: Final = _honoured(
    "tool_choice",
    TOOL_CHOICE,
    "Whether the model may, must or must not call a tool, and which.",
    ("auto", "none"),
    ("required", "any", 1, {}, {"type": "function", "function": {"name": "f"}}),
)
PARALLEL_TOOL_CALLS: Final = _honoured(
    "parallel_tool_calls", BOOLEAN, "Whether one answer may hold more than one call.", (True, False), (1, "true")
)
RESPONSE_FORMAT: Final = _honoured(
    "response_format",
    RESPONSE_FORMAT_KIND,
    "Text, or JSON that follows a schema.",
    ({"type": "text"},),
    ("text", {}, {"type": "xml"}, {"type": ["text"]}),
)
LOGPROBS: Final = _honoured(
    "logprobs", BOOLEAN, "Send the log-probability of each token of the content.", (True, False), (1, "true")
)
TOP_LOGPROBS: Final = _honoured(
    "top_logprobs",
    integer(0, MOST_TOP_LOGPROBS),
    "How many alternatives to send for each token; needs `logprobs`.",
    (),
    (5, -1, 21, 1.0, True, "1"),
)
LOGIT_BIAS_FIELD: Final = _honoured(
    "logit_bias",
    LOGIT_BIAS,
    "Token ids to numbers that are added to their logits; -100 bans a token.",
    ({}, {"5": 1.5}, {"0": -100, "17": 100}),
    ([], {"a": 1}, {"-1": 1}, {"01": 1}, {"5": 101}, {"5": "1"}, {"5": True}, {"9" * 11: 1}),
)
REASONING_EFFORT: Final = _honoured(
    "reasoning_effort",
    EFFORT,
    "How much thinking goes before the answer.",
    ("none", "minimal"),
    ("low", "medium", "high", "xhigh", "max", "some", 1),
)

# 6.2: honoured, and not OpenAI's.

TOP_K: Final = _extension(
    "top_k",
    integer(0, LARGEST_TOP_K, bad_sampling),
    "Draw from the k most likely tokens; 0 is off. At most the size of the vocabulary.",
    (0, 40),
    (-1, 2**31, 1.0, True, "1"),
)
MIN_P: Final = _extension(
    "min_p",
    number(0, 1),
    "Drop tokens less likely than this share of the likeliest.",
    (0, 0.05, 1),
    (-0.1, 1.1, 1e-50, True, "1"),
)
REPETITION_PENALTY: Final = _extension(
    "repetition_penalty", number(0, 2, above_low=True), "Off at 1.", (0.5, 1, 2), (0, -1, 2.1, 1e-50, True, "1")
)
REPEAT_PENALTY: Final = _extension(
    "repeat_penalty",
    number(0, 2, above_low=True),
    "Another name of `repetition_penalty`.",
    (0.5, 1, 2),
    (0, -1, 2.1, 1e-50, True, "1"),
)
ENABLE_THINKING: Final = _extension("enable_thinking", BOOLEAN, "Thinking on or off.", (False,), (True, 1, "false"))
PRESERVE_THINKING: Final = _extension(
    "preserve_thinking", BOOLEAN, "Show the model its thinking of earlier turns too.", (True, False), (1, "true")
)
CHAT_TEMPLATE_KWARGS: Final = _extension(
    "chat_template_kwargs",
    TEMPLATE_SWITCHES,
    "Another place for `enable_thinking` and `preserve_thinking`, and for nothing else.",
    ({}, {"enable_thinking": False}, {"preserve_thinking": True}, {"enable_thinking": None}),
    ([], {"tools": []}, {"enable_thinking": 1}),
)
THINKING_BUDGET: Final = _extension(
    "thinking_budget", BUDGET, "The most thinking tokens; 0 for no limit.", (0, 1, 32768), (-1, 1.0, True, "off")
)
CLASS: Final = _extension(
    "class", STRING, "`agent` or `interactive`: whose turn comes first.", ("agent", "interactive", "x"), (1, ["agent"])
)
IGNORE_EOS: Final = _extension(
    "ignore_eos",
    BOOLEAN,
    "Go on past the end of the answer; for measuring. True needs `max_completion_tokens`.",
    (False,),
    (True, 0, "false"),
)

# 6.3: inert or refused, by value.

_USE_RESPONSE_FORMAT: Final = "use response_format"
_USE_MESSAGES: Final = "this is a field of the Completions API; use messages"

_refused("n", "this server returns one choice per request; send 1 or omit it", 2, 0, 1.0, True, "1", inert=(1,))
_refused("store", "nothing is stored; send false or omit it", True, 0, "no", inert=(False,))
_refused(
    "service_tier", 'there is a single tier; send "auto" or omit it', "flex", "priority", 1, inert=("auto", "default")
)
_refused("modalities", 'chat answers in text only; send ["text"] or omit it', ["audio"], [], "text", inert=(["text"],))
_inert("metadata", {"a": "b"}, "x", 1)
_inert("user", "someone", 7)
_inert("safety_identifier", "hash", [])
_inert("verbosity", "low", 1)
_inert("prompt_cache_key", "key", 1)
_inert("prompt_cache_retention", "24h", 1)
_inert("prompt_cache_options", {"ttl": "1h"}, 1)
_refused("audio", "chat produces no audio; omit it", {"voice": "alloy", "format": "wav"}, False)
_refused("prediction", "there are no predicted outputs; omit it", {"type": "content", "content": "x"}, {})
_refused("moderation", "there is no moderation; omit it", {"model": "x"}, True)
_refused("web_search_options", "there are no hosted tools; omit it", {}, {"search_context_size": "low"})
_refused("functions", "use tools", [], [{"name": "f"}])
_refused("function_call", "use tool_choice", "auto", "none", {"name": "f"})
_refused("prompt", _USE_MESSAGES, "x", [])
_refused("suffix", _USE_MESSAGES, "x", "")
_refused("echo", _USE_MESSAGES, True, False)
_refused("best_of", _USE_MESSAGES, 1, 2)
_refused("guided_json", _USE_RESPONSE_FORMAT, {}, "{}")
_refused("guided_regex", _USE_RESPONSE_FORMAT, "a+")
_refused("guided_choice", _USE_RESPONSE_FORMAT, ["a"])
_refused("guided_grammar", _USE_RESPONSE_FORMAT, "root ::= x")
_refused("structured_outputs", _USE_RESPONSE_FORMAT, {"json": {}})
_refused("grammar", _USE_RESPONSE_FORMAT, "root ::= x", "")
_refused("json_schema", _USE_RESPONSE_FORMAT, {})
_refused("chat_template", "the model's own template is used; omit it", "{{ messages }}", "")
_refused(
    "continue_final_message",
    "a last assistant message is history, not a beginning to continue; send false or omit it",
    True,
    1,
    inert=(False,),
)
_refused("add_generation_prompt", "the answer's opening is always added; omit it", False, 0, inert=(True,))
_refused("prompt_logprobs", "log-probabilities of the prompt are not computed; omit it", 0, 1)
_refused("use_beam_search", "there is no beam search; send false or omit it", True, 1, inert=(False,))
_refused("n_predict", "use max_completion_tokens", 16, -1)
_refused("min_tokens", "an answer has no smallest length; send 0 or omit it", 1, -1, "0", inert=(0,))
_refused("stop_token_ids", "use stop", [2], 2, inert=([],))
_refused("truncate_prompt_tokens", "a prompt is never truncated; shorten it yourself", 100, -1)
_refused("cache_prompt", "prompt reuse is a setting of the server; send true or omit it", False, 0, inert=(True,))
_refused("id_slot", "lanes are not addressed by number; omit it", 0, -1)

BY_VALUE: Final = tuple(field for field in FIELDS.values() if field.column is Column.BY_VALUE)
