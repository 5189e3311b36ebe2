"""`POST /v1/tokenize` and `POST /v1/detokenize`: their request bodies (chat page, section 26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trio_server.wire.chat import check_thinking, check_tools, parse_model
from trio_server.wire.checks import boolean, invalid, kind, shown, text
from trio_server.wire.messages import Message, parse_messages

MOST_TOKEN_IDS = 1_048_576


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Exactly one of `messages` and `prompt` is set."""

    messages: tuple[Message, ...] | None
    prompt: str | None
    model: str | None
    return_token_ids: bool
    return_text: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    token_ids: tuple[int, ...]
    model: str | None


def parse_tokenize_request(body: Mapping[str, Any]) -> TokenizeRequest:
    """Raises `ApiError` 400. Sampling fields and the like are not even looked at."""
    if boolean(body, "stream"):
        invalid("stream", "a count is one answer; omit it")
    prompt, messages = text(body, "prompt"), None
    if prompt is not None and body.get("messages") is not None:
        invalid("prompt", "send either messages or prompt, not both")
    model, _ = parse_model(body)
    if prompt is None:
        if body.get("messages") is None:
            invalid("messages", "missing; send messages or prompt")
        messages = parse_messages(body.get("messages"))
        check_tools(body)
        check_thinking(body)
    return TokenizeRequest(messages, prompt, model, boolean(body, "return_token_ids"), boolean(body, "return_text"))


def parse_detokenize_request(body: Mapping[str, Any]) -> DetokenizeRequest:
    """Raises `ApiError` 400. Whether the ids exist is `check_token_ids`' question."""
    ids = body.get("token_ids")
    if not isinstance(ids, list):
        invalid(
            "token_ids", "missing; send an array of integers" if ids is None else f"expected an array, got {kind(ids)}"
        )
    if len(ids) > MOST_TOKEN_IDS:
        invalid("token_ids", f"expected at most {MOST_TOKEN_IDS} ids, got {len(ids)}")
    for index, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, int):
            invalid("token_ids", f"expected an integer at index {index}, got {kind(value)}")
    model, _ = parse_model(body)
    return DetokenizeRequest(tuple(ids), model)


def check_token_ids(ids: Sequence[int], vocabulary_size: int) -> None:
    """Raise the 400 that names the first id outside the vocabulary."""
    for index, value in enumerate(ids):
        if not 0 <= value < vocabulary_size:
            invalid(
                "token_ids", f"{shown(value)} at index {index} is outside the vocabulary of {vocabulary_size} tokens"
            )
