"""`POST /v1/tokenize` and `POST /v1/detokenize`: their request bodies (chat page, section 26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_server.wire.chat import parse_messages, parse_model, parse_thinking, parse_tools
from trio_server.wire.checks import invalid, kind_of, shown
from trio_server.wire.kinds import BOOLEAN, STRING
from trio_server.wire.messages import Message
from trio_server.wire.unserved import refuse_thinking, refuse_tools

MOST_TOKEN_IDS: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Exactly one of `messages` and `prompt` is set. `model` is without its class suffix."""

    messages: tuple[Message, ...] | None
    prompt: str | None
    model: str | None
    return_token_ids: bool
    return_text: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """`token_ids` are integers of at least 0; whether they exist is `check_token_ids`' question."""

    token_ids: tuple[int, ...]
    model: str | None


def parse_tokenize_request(body: Mapping[str, Any]) -> TokenizeRequest:
    """Raises `ApiError` 400. Sampling fields and the like are not even looked at."""
    if BOOLEAN.of(body, "stream"):
        invalid("stream", "there is nothing to stream; send false or omit it")
    prompt, messages = STRING.of(body, "prompt"), None
    if prompt is not None and body.get("messages") is not None:
        invalid("prompt", "send either messages or prompt, not both")
    if prompt is None and body.get("messages") is None:
        invalid("messages", "missing; send messages or prompt")
    model, _ = parse_model(body)
    if prompt is None:
        messages = parse_messages(body)
        refuse_tools(*parse_tools(body))
        refuse_thinking(parse_thinking(body))
    return TokenizeRequest(
        messages,
        prompt,
        model,
        BOOLEAN.of(body, "return_token_ids") or False,
        BOOLEAN.of(body, "return_text") or False,
    )


def parse_detokenize_request(body: Mapping[str, Any]) -> DetokenizeRequest:
    """Raises `ApiError` 400. A million ids are looked at one by one only when one of them is bad."""
    ids = body.get("token_ids")
    if ids is None:
        invalid("token_ids", "missing; send an array of integers")
    if not isinstance(ids, list):
        invalid("token_ids", f"expected an array of integers, got {kind_of(ids)}")
    if len(ids) > MOST_TOKEN_IDS:
        invalid("token_ids", f"expected at most {MOST_TOKEN_IDS} ids, got {len(ids)}")
    # A boolean is an `int` to isinstance and not to type.
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0):
        for index, value in enumerate(ids):
            if type(value) is not int or value < 0:
                invalid("token_ids", f"expected an integer of at least 0 at index {index}, got {shown(value)}")
    model, _ = parse_model(body)
    return DetokenizeRequest(tuple(ids), model)


def check_token_ids(ids: Sequence[int], vocabulary_size: int) -> None:
    """Raise the 400 that names the first id outside the vocabulary."""
    if not ids or max(ids) < vocabulary_size:
        return
    index, value = next((index, value) for index, value in enumerate(ids) if value >= vocabulary_size)
    invalid("token_ids", f"{shown(value)} at index {index} is outside the vocabulary of {vocabulary_size} tokens")
