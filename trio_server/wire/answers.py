"""Chat completions as they leave: the one body, and the chunks of a stream. Sections 15 to 18 of the chat page.

Pure builders. What is the same in every chunk is encoded once per request, so that a content chunk costs one string encode
and two concatenations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

from trio_server.wire import sse

SMALLEST_LOGPROB: Final = -9999.0
# JSON allows these raw in a string, but many clients' readers of event streams take them for the end of a line.
_LINE_ENDS: Final = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def _one_line(text: str) -> bytes:
    """Serialized JSON as UTF-8 that no reader can take for more than one line."""
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8")


def _compact(value: Any) -> bytes:
    return _one_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer (section 18)."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


def logprob_entry(piece: bytes, logprob: float, top: Sequence[tuple[bytes, float]]) -> dict[str, Any]:
    """One entry of `logprobs.content`: `piece` is the token's exact bytes, `top` the alternatives, best first."""
    return {**_scored(piece, logprob), "top_logprobs": [_scored(other, value) for other, value in top]}


def _scored(piece: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": piece.decode("utf-8", "replace"),
        # So written that NaN, which JSON cannot say, becomes the smallest as well.
        "logprob": logprob if logprob > SMALLEST_LOGPROB else SMALLEST_LOGPROB,
        "bytes": list(piece),
    }


def _logprobs(entries: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": list(entries), "refusal": None}


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """What identifies one answer. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str

    def completion_body(
        self, text: str, finish_reason: str, usage: Usage, logprobs: Sequence[dict[str, Any]] | None = None
    ) -> bytes:
        """The whole answer, not streamed, as JSON bytes. `logprobs` is `None` when they were not asked for."""
        return _compact(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.model,
                "system_fingerprint": self.fingerprint,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text, "refusal": None},
                        "logprobs": _logprobs(logprobs),
                        "finish_reason": finish_reason,
                    }
                ],
                "usage": usage.body(),
            }
        )


class ChunkStream:
    """The SSE frames of one streamed answer, in the order of section 17.2; the caller keeps that order."""

    def __init__(self, answer: ChatCompletion, *, include_usage: bool) -> None:
        head = _compact(
            {
                "id": answer.id,
                "object": "chat.completion.chunk",
                "created": answer.created,
                "model": answer.model,
                "system_fingerprint": answer.fingerprint,
            }
        )
        self._head = b"data: " + head[:-1] + b',"choices":['
        # With include_usage every chunk but the usage chunk says null; without it none has the key.
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._before_text = self._head + b'{"index":0,"delta":{"content":'
        self._after_text = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def role(self) -> bytes:
        return self._choice({"role": "assistant", "content": ""}, None, None)

    def content(self, text: str, logprobs: Sequence[dict[str, Any]] | None = None) -> bytes:
        """A piece of the answer, never empty."""
        if logprobs is None:
            return self._before_text + _one_line(encode_basestring(text)) + self._after_text
        return self._choice({"content": text}, _logprobs(logprobs), None)

    def finish(self, finish_reason: str) -> bytes:
        return self._choice({}, None, finish_reason)

    def usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":' + _compact(usage.body()) + b"}\n\n"

    @staticmethod
    def error(body: dict[str, Any]) -> bytes:
        """The frame that ends a broken answer; neither a finish chunk nor `[DONE]` follows it."""
        return sse.event(_compact(body))

    def _choice(self, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._head + _compact(choice) + self._tail
