"""Answers, whole and streamed, against the installed `openai` package's types and the page's own examples."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletion as TheirCompletion
from openai.types.chat import ChatCompletionChunk as TheirChunk
from pydantic import BaseModel

from trio_server.wire import errors, sse
from trio_server.wire.answers import ChatCompletion, ChunkStream, Usage, logprob_entry
from trio_server.wire.errors import ApiError

ANSWER = ChatCompletion("chatcmpl-7f0f3f1f6f0e4a0f9d2f0d7c7c9a1b2e", 1764563200, "qwen3-4b-instruct", "fp_4be1c09a7d33")
USAGE = Usage(prompt_tokens=23, completion_tokens=8, cached_tokens=16)
ENTRY = logprob_entry(b" Oslo", -0.25, [(b" Oslo", -0.25), (b"\xf0\x9f", -3.0)])
TEXTS = st.text() | st.text(st.sampled_from('a"\\\n\r\t\x00\x0b\x0c\x1c\x1e\x7f\x85\u2028\u2029ж日😀'))


def surplus(value: Any) -> dict[str, Any]:
    """Keys anywhere in the answer that the SDK's types do not know."""
    if isinstance(value, BaseModel):
        found = dict(value.model_extra or {})
        for name in type(value).model_fields:
            found |= surplus(getattr(value, name))
        return found
    if isinstance(value, list):
        return {name: extra for item in value for name, extra in surplus(item).items()}
    return {}


def chunk(frame: bytes) -> TheirChunk:
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    assert frame.count(b"\n") == 2
    parsed = TheirChunk.model_validate_json(frame[6:], strict=True)
    assert not surplus(parsed)
    return parsed


def test_the_pages_example() -> None:
    body = json.loads(ANSWER.completion_body("The capital of Norway is Oslo.", "stop", USAGE))
    assert body == {
        "id": "chatcmpl-7f0f3f1f6f0e4a0f9d2f0d7c7c9a1b2e",
        "object": "chat.completion",
        "created": 1764563200,
        "model": "qwen3-4b-instruct",
        "system_fingerprint": "fp_4be1c09a7d33",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The capital of Norway is Oslo.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 23,
            "completion_tokens": 8,
            "total_tokens": 31,
            "prompt_tokens_details": {"cached_tokens": 16},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert list(body) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]


@given(TEXTS, st.sampled_from(["stop", "length"]), st.booleans())
def test_the_whole_answer_is_openais(text: str, finish_reason: str, with_logprobs: bool) -> None:
    body = ANSWER.completion_body(text, finish_reason, USAGE, [ENTRY] if with_logprobs else None)
    parsed = TheirCompletion.model_validate_json(body, strict=True)
    assert not surplus(parsed)
    assert parsed.choices[0].message.content == text
    assert parsed.choices[0].finish_reason == finish_reason
    assert (parsed.choices[0].logprobs is not None) is with_logprobs


def test_the_pages_stream() -> None:
    stream = ChunkStream(ChatCompletion("chatcmpl-1c", 1764563300, "qwen3-8b", "fp_9d20aa31f7c4"), include_usage=True)
    head = (
        b'data: {"id":"chatcmpl-1c","object":"chat.completion.chunk","created":1764563300,"model":"qwen3-8b",'
        b'"system_fingerprint":"fp_9d20aa31f7c4","choices":['
    )
    assert stream.role() == (
        head
        + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    )
    assert stream.content("4") == (
        head + b'{"index":0,"delta":{"content":"4"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    )
    assert stream.finish("stop") == (
        head + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
    )
    assert stream.usage(Usage(19, 7, 0, 4)) == (
        head + b'],"usage":{"prompt_tokens":19,"completion_tokens":7,"total_tokens":26,'
        b'"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":4}}}\n\n'
    )
    assert sse.DONE == b"data: [DONE]\n\n"


@given(TEXTS, st.booleans(), st.booleans())
def test_every_chunk_is_openais(text: str, include_usage: bool, with_logprobs: bool) -> None:
    stream = ChunkStream(ANSWER, include_usage=include_usage)
    entries = [ENTRY] if with_logprobs else None
    frames = [stream.role(), stream.content(text, entries), stream.finish("length")]
    for frame in frames:
        assert ("usage" in json.loads(frame[6:])) is include_usage
        assert chunk(frame).usage is None
    role, content, finish = (chunk(frame).choices[0] for frame in frames)
    assert (role.delta.role, role.delta.content, role.finish_reason) == ("assistant", "", None)
    assert (content.delta.content, content.delta.role, content.finish_reason) == (text, None, None)
    assert (content.logprobs is not None) is with_logprobs
    assert (finish.delta.model_dump(exclude_unset=True), finish.finish_reason) == ({}, "length")
    last = chunk(stream.usage(USAGE))
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.total_tokens, last.id, last.model) == (31, ANSWER.id, ANSWER.model)


@given(st.lists(TEXTS, max_size=5), st.booleans())
@example(["a\u2028b", "c\x85", "\u2029"], False)
def test_every_reader_of_lines_gets_the_text(texts: list[str], with_logprobs: bool) -> None:
    """The SDK's reader splits bytes; others split text, at every character that Python takes for the end of a line."""
    stream = ChunkStream(ANSWER, include_usage=False)
    entries = [logprob_entry("\u2028".encode(), -1.0, [])] if with_logprobs else None
    body = b"".join([stream.role(), sse.KEEP_ALIVE, *(stream.content(text, entries) for text in texts), sse.DONE])
    events = [event.data for event in SSEDecoder().iter_bytes(iter([body]))]
    lines = [
        line.removeprefix("data: ")
        for line in httpx.Response(
            200, content=body, headers={"Content-Type": "text/event-stream; charset=utf-8"}
        ).iter_lines()
        if line.startswith("data: ")
    ]
    assert lines == events
    assert events[-1] == "[DONE]"
    assert [json.loads(event)["choices"][0]["delta"]["content"] for event in events[1:-1]] == texts


def test_logprobs() -> None:
    assert logprob_entry(b" x", -0.5, []) == {"token": " x", "logprob": -0.5, "bytes": [32, 120], "top_logprobs": []}
    entry = logprob_entry(b"\xe2\x82", -math.inf, [(b"a", -0.1), (b"\xff", math.nan)])
    assert entry == {
        "token": "\ufffd",
        "logprob": -9999.0,
        "bytes": [0xE2, 0x82],
        "top_logprobs": [
            {"token": "a", "logprob": -0.1, "bytes": [97]},
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [255]},
        ],
    }
    body = ANSWER.completion_body("x", "stop", USAGE, [entry, ENTRY])
    logprobs = TheirCompletion.model_validate_json(body, strict=True).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.refusal is None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2, 2]
    # Asked for, and none of the tokens reached the content.
    assert json.loads(ANSWER.completion_body("", "stop", USAGE, []))["choices"][0]["logprobs"] == {
        "content": [],
        "refusal": None,
    }


@pytest.mark.parametrize("code", [errors.ENGINE_ERROR, errors.SERVER_SHUTTING_DOWN, errors.INTERNAL_ERROR])
def test_an_error_frame_is_the_ordinary_error(code: errors.ErrorCode) -> None:
    error = ApiError(code, "the engine failed while generating;\n see the server log")
    frame = ChunkStream.error(error.body())
    assert frame.startswith(b'data: {"error":{"message":')
    assert frame.count(b"\n") == 2
    assert json.loads(frame[6:]) == error.body()


def test_framing() -> None:
    assert sse.event(b"{}") == b"data: {}\n\n"
    assert sse.KEEP_ALIVE == b": keep-alive\n\n"
