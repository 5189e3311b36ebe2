"""What the real engine promises through HTTP: equal texts in a batch, reuse, deadlines, and a steady pace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.live.support import (
    LiveServer,
    chat_body,
    post,
    raw_chat,
    raw_post,
    read_all,
    read_until,
    running_server,
)

pytestmark = [pytest.mark.gguf, pytest.mark.live]

CHAT = "/v1/chat/completions"
SUBJECTS = ("rivers", "clouds", "stones", "gardens", "engines", "letters", "bridges", "mirrors")


async def streamed_text(live: LiveServer, content: str, **fields: Any) -> tuple[str, dict[str, Any], list[float]]:
    """The text of a stream, its usage, and when each content frame came."""
    stream = await trio.open_tcp_stream("127.0.0.1", live.port)
    text, times, usage, pending = "", [], {}, b""
    async with stream:
        await stream.send_all(raw_chat(content, stream=True, stream_options={"include_usage": True}, **fields))
        while b"data: [DONE]" not in pending:
            data = await stream.receive_some(65536)
            assert data, pending
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        if piece := choice["delta"].get("content"):
                            text += piece
                            times.append(trio.current_time())
                elif line.startswith(b"data: [DONE]"):
                    return text, usage, times
    raise AssertionError("no end")


async def test_eight_greedy_streams_say_what_each_says_alone(q4_0_model: Path) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=8) as live:
        fields = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        alone = {s: (await streamed_text(live, f"Tell me about {s}.", **fields))[0] for s in SUBJECTS}
        together: dict[str, str] = {}

        async def one(subject: str) -> None:
            together[subject] = (await streamed_text(live, f"Tell me about {subject}.", **fields))[0]

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for subject in SUBJECTS:
                    nursery.start_soon(one, subject)
            assert together == alone
        assert live.held == 0


@pytest.mark.parametrize("reuse", [True, False])
async def test_a_second_identical_prompt_costs_one_token(q4_0_model: Path, reuse: bool) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=2, reuse__prompt=reuse) as live:
        # Its answer's tokens lead by a wide margin: hot and cold batches have other shapes, so near-ties may fall otherwise.
        content = (
            "The capital of France is Paris. The capital of Italy is Rome. " * 20 + "What is the capital of France?"
        )
        fields = {"temperature": 0, "max_tokens": 6}
        start_s = trio.current_time()
        cold, usage, cold_times = await streamed_text(live, content, **fields)
        cold_s = cold_times[0] - start_s
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        start_s = trio.current_time()
        hot, usage, hot_times = await streamed_text(live, content, **fields)
        hot_s = hot_times[0] - start_s
        assert hot == cold
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if reuse:
            assert cached == usage["prompt_tokens"] - 1
            assert hot_s < cold_s * 0.2, (cold_s, hot_s)
        else:
            assert cached == 0


async def test_the_count_of_tokenize_is_that_of_the_served_body(q4_0_model: Path) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=1) as live:
        body = chat_body("Wie heißt der längste Fluß? 🏞", max_tokens=1)
        body["messages"].insert(0, {"role": "system", "content": "Be brief."})
        status, _, counted = await post(
            live.port, "/v1/tokenize", {**body, "return_token_ids": True, "return_text": True}
        )
        assert status == 200
        _, _, answer = await post(live.port, CHAT, body)
        assert counted["count"] == answer["usage"]["prompt_tokens"] == len(counted["token_ids"])
        assert counted["max_model_len"] == 1024
        _, _, back = await post(live.port, "/v1/detokenize", {"token_ids": counted["token_ids"]})
        assert back["text"] == counted["text"]


async def test_tokenize_works_while_every_lane_is_in_use(q4_0_model: Path) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=1) as live:
        stream = await trio.open_tcp_stream("127.0.0.1", live.port)
        async with stream:
            await stream.send_all(raw_chat("A tale.", stream=True, max_tokens=500, ignore_eos=True))
            await read_until(stream, b'"content":')
            status, _, counted = await post(live.port, "/v1/tokenize", chat_body("Hi"))
            assert (status, counted["count"] > 0) == (200, True)
            status, headers, refused = await post(live.port, CHAT, chat_body("Hi"))
            assert (status, refused["error"]["code"]) == (503, "engine_full")
            assert headers["retry-after"] == "1"  # no request has ended yet
            # What can never be served is told so, however full the engine is.
            status, _, refused = await post(live.port, CHAT, chat_body("Hi", max_tokens=5000))
            assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_plain_answer_past_its_deadline_is_a_504_and_its_lane_is_free_before(q4_0_model: Path) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=1, server__request_timeout=1) as live:
        start_s = trio.current_time()
        status, headers, answer = await post(live.port, CHAT, chat_body("A tale.", max_tokens=950, ignore_eos=True))
        took_s = trio.current_time() - start_s
        assert live.held == 0
        assert (status, answer["error"]["code"]) == (504, "request_timeout")
        assert headers["x-should-retry"] == "false"
        print(f"\n504 after a deadline of 1 s: {took_s * 1000:.1f} ms")
        assert 1.0 <= took_s < 1.25  # 50 ms, a step, and this client's own connection on a busy machine
        status, _, _ = await post(live.port, CHAT, chat_body("Hi", max_tokens=1))
        assert status == 200


async def test_a_stream_outlives_the_deadline(q4_0_model: Path) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=1, server__request_timeout=1) as live:
        start_s = trio.current_time()
        _, usage, _ = await streamed_text(live, "A tale.", max_tokens=600, ignore_eos=True)
        assert usage["completion_tokens"] == 600
        assert trio.current_time() - start_s > 1


def percentile_95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(times)]


@pytest.mark.timeout(600)
async def test_a_long_prompt_does_not_break_the_pace_of_four_streams(q4_0_model: Path) -> None:
    """Four lanes stream; a prompt of 4,000 tokens is read beside them."""
    async with running_server(
        q4_0_model, spec__decode_lanes=5, model__max_context=6144, model__prefill_chunk=128
    ) as live:
        streams: list[list[float]] = []
        prefilled: list[float] = []

        async def stream(subject: str) -> None:
            streams.append((await streamed_text(live, f"About {subject}.", max_tokens=420, ignore_eos=True))[2])

        async def long_prompt() -> None:
            start_s = trio.current_time()
            _, usage, _ = await streamed_text(live, "word river stone " * 1320, max_tokens=1)
            assert usage["prompt_tokens"] > 3900
            prefilled.extend((start_s, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for subject in SUBJECTS[:4]:
                nursery.start_soon(stream, subject)
        idle = [gap for times in streams for gap in gaps(times[5:])]
        streams.clear()
        async with trio.open_nursery() as nursery:
            for subject in SUBJECTS[:4]:
                nursery.start_soon(stream, subject)
            with trio.fail_after(10):
                while live.held < 4:
                    await trio.lowlevel.checkpoint()
            nursery.start_soon(long_prompt)
        begin_s, end_s = prefilled
        beside = [b - a for times in streams for a, b in pairwise(times) if begin_s <= a <= end_s]
        print(
            f"\ninter-token p95: idle {percentile_95(idle) * 1000:.1f} ms, beside a 4,000-token prompt"
            f" {percentile_95(beside) * 1000:.1f} ms over {end_s - begin_s:.1f} s"
        )
        assert len(beside) > 50
        assert percentile_95(beside) < 3 * percentile_95(idle)


async def test_an_engine_that_crashes_fails_its_requests_clearly_and_the_server_stays(
    q4_0_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_server(q4_0_model, spec__decode_lanes=2) as live:
        from trio_server.engines.text.llama import Context, LlamaError

        stream = await trio.open_tcp_stream("127.0.0.1", live.port)
        async with stream:
            body = json.dumps(chat_body("A tale.", stream=True, max_tokens=900)).encode()
            await stream.send_all(raw_post(CHAT, body, "Connection: close"))
            await read_until(stream, b'"content":"')

            def broken(context: Context) -> None:
                raise LlamaError("planted")

            monkeypatch.setattr(Context, "decode", broken)
            rest = await read_all(stream, 10)
        assert b'"code":"engine_error"' in rest
        assert b"[DONE]" not in rest
        assert b"planted" not in rest
        status, _, answer = await post(live.port, CHAT, chat_body("Hi"))
        assert (status, answer["error"]["code"]) == (503, "server_not_ready")
        status, _, answer = await post(live.port, "/v1/tokenize", chat_body("Hi"))
        assert status == 503
        assert live.server.status == "failed"
        assert live.server.unready_reason == "failed"
