"""The `openai` package, unmodified, against a real server process: sync, async on trio, streamed, with its own retries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import trio

from tests.live.support import ServerProcess, server_process

pytestmark = [pytest.mark.gguf, pytest.mark.live]

RIVERS = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture(scope="module")
def server(q4_0_model: Path) -> Iterator[ServerProcess]:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "2048"]
    with server_process(*flags, "--spec-decode-lanes", "2", "--server-request-timeout", "20") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.owned_by == "trio-server"
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_plain_and_streamed_answers_are_the_same(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="", messages=RIVERS, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model="",
        messages=RIVERS,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert plain.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (plain.usage.prompt_tokens, 24)
    assert plain._request_id is not None
    assert plain._request_id.startswith("req_")
    assert plain.id.removeprefix("chatcmpl-") == plain._request_id.removeprefix("req_")


def test_a_default_shaped_body_is_served_like_a_bare_one(client: openai.OpenAI) -> None:
    bare = client.chat.completions.create(model="", messages=RIVERS, temperature=0, max_tokens=8)  # type: ignore[arg-type]
    full = client.chat.completions.create(
        model="",
        messages=RIVERS,  # type: ignore[arg-type]
        temperature=0,
        max_completion_tokens=8,
        n=1,
        store=False,
        parallel_tool_calls=True,
        logprobs=False,
        response_format={"type": "text"},
        service_tier="auto",
        metadata={"a": "b"},
        user="someone",
    )
    assert full.choices[0].message.content == bare.choices[0].message.content


def test_logprobs_cover_the_content(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="",
        messages=RIVERS,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    spelled = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
    assert spelled.decode() == answer.choices[0].message.content
    for entry in logprobs.content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob == pytest.approx(tops[0])


def test_a_stop_sequence_is_absent_and_ends_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="", messages=RIVERS, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    text = whole.choices[0].message.content
    assert text
    stop = text[10:14]
    cut = client.chat.completions.create(model="", messages=RIVERS, temperature=0, max_tokens=24, stop=stop)  # type: ignore[arg-type]
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_a_seed_repeats_a_draw_and_its_absence_does_not(client: openai.OpenAI) -> None:
    def draw(**fields: object) -> str | None:
        answer = client.chat.completions.create(model="", messages=RIVERS, temperature=1.5, max_tokens=12, **fields)  # type: ignore[call-overload]
        content: str | None = answer.choices[0].message.content
        return content

    assert draw(seed=11) == draw(seed=11)
    assert len({draw() for _ in range(4)}) > 1


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="", messages=RIVERS, n=2)  # type: ignore[arg-type]
    assert (refused.value.param, refused.value.code) == ("n", "unsupported_value")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="", messages=RIVERS, max_tokens=100_000)  # type: ignore[arg-type]
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4o", messages=RIVERS)  # type: ignore[arg-type]
    assert unknown.value.code == "model_not_found"


async def test_async_client_on_trio_leaves_a_stream_early(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        for _ in range(6):  # three times as many as there are lanes
            stream = await client.chat.completions.create(
                model="",
                messages=RIVERS,  # type: ignore[arg-type]
                max_tokens=500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async with stream:
                async for chunk in stream:
                    if chunk.choices[0].delta.content:
                        break
            with trio.fail_after(2):
                answer = await client.chat.completions.create(model="", messages=RIVERS, max_tokens=1)  # type: ignore[arg-type]
            assert answer.choices[0].finish_reason == "length"


def test_a_full_engine_is_waited_out_by_the_sdk(server: ServerProcess, client: openai.OpenAI) -> None:
    streams = [
        client.chat.completions.create(
            model="",
            messages=RIVERS,  # type: ignore[arg-type]
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(2)
    ]
    try:
        for stream in streams:
            next(stream)
        with pytest.raises(openai.InternalServerError) as full:
            client.chat.completions.create(model="", messages=RIVERS, max_tokens=1)  # type: ignore[arg-type]
        assert full.value.status_code == 503
        assert full.value.code == "engine_full"
        assert 1 <= int(full.value.response.headers["retry-after"]) <= 60
        assert full.value.response.headers["x-should-retry"] == "true"
        threading.Timer(0.3, streams[0].close).start()
        patient = client.with_options(max_retries=3)
        answer = patient.chat.completions.create(model="", messages=RIVERS, max_tokens=1)  # type: ignore[arg-type]
        assert answer.choices[0].finish_reason == "length"
    finally:
        for stream in streams:
            stream.close()
