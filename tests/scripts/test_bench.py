"""scripts/bench.py and its client: that the figures are what a scripted server makes them, and that failures are told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import bench
import bench_ceiling
import pytest
import trio
from bench_client import AnswerError, Events, Round, Stream, body_for, percentile, prompts, run_round
from hypothesis import given
from hypothesis import strategies as st

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(content: str | None = None, usage: dict[str, object] | None = None) -> bytes:
    body: dict[str, object] = {"choices": [] if content is None else [{"index": 0, "delta": {"content": content}}]}
    if usage is not None:
        body["usage"] = usage
    return b"data: " + json.dumps(body).encode() + b"\n\n"


USAGE = {"completion_tokens": 3, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
BODY = [event("à"), event("é"), b": a comment\n\n", event("!"), event(usage=USAGE), b"data: [DONE]\n\n"]


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in [*pieces, b""])


PLAIN = HEAD + b"\r\n" + b"".join(BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY)
CUT_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([bytes([byte]) for byte in b"".join(BODY)])


@given(st.sampled_from([PLAIN, CHUNKED, CUT_CHUNKS]), st.lists(st.integers(0, 2000), max_size=12))
def test_events_are_the_same_however_the_bytes_are_cut(answer: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    events = Events()
    got = [payload for a, b in pairwise(at) for payload in events.feed(answer[a:b])]
    assert got == [line[6:-2] for line in BODY if line.startswith(b"data")]


def test_an_answer_that_is_no_200_is_an_error() -> None:
    with pytest.raises(AnswerError, match="503 busy: no room"):
        list(Events().feed(b"HTTP/1.1 503 Busy\r\n\r\nno room"))


Handler = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """A server on a free loopback port that reads a request and leaves the rest to `handler`."""

    async def serve(stream: trio.SocketStream) -> None:
        got = b""
        while b"\r\n\r\n" not in got or not got.endswith(b"}"):
            got += await stream.receive_some()
        await handler(stream)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        nursery.cancel_scope.cancel()


def body(text: str = "hello") -> bytes:
    return body_for(text, max_tokens=3, temperature=0.0, model=None, extra={})


async def test_a_round_counts_what_the_server_says_and_times_what_it_sends() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(CHUNKED)

    async with server(answer) as url:
        result = await run_round(url, [body(), body()])
    assert [stream.text for stream in result.streams] == ["àé!"] * 2
    assert [stream.completion_tokens for stream in result.streams] == [3, 3]
    assert [stream.cached_tokens for stream in result.streams] == [4, 4]
    assert len(result.ttft_s) == 2
    assert len(result.gaps_s) == 4
    assert all(0 < ttft <= result.wall_s for ttft in result.ttft_s)
    assert result.tokens_per_s == pytest.approx(6 / result.wall_s)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n{}", "404"),
        (HEAD + b"\r\n" + event("a"), r"without \[DONE\]"),
        (HEAD + b'\r\ndata: {"error": {"message": "lost"}}\n\n', "lost"),
        (HEAD + b"\r\n" + event("a") + b"data: [DONE]\n\n", "no usage"),
        (HEAD + b"\r\n" + event(usage=USAGE) + b"data: [DONE]\n\n", "no text"),
        (b"", "ended"),
    ],
)
async def test_one_failed_stream_ends_the_round(answer: bytes, reason: str) -> None:
    async def fail(stream: trio.SocketStream) -> None:
        await stream.send_all(answer)

    async with server(fail) as url:
        with pytest.raises(SystemExit, match=reason):
            await run_round(url, [body(), body()])


async def test_a_server_that_never_answers_ends_the_round_in_time() -> None:
    async def hang(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with server(hang) as url:
        with pytest.raises(SystemExit, match="did not end within"):
            await run_round(url, [body()], limit_s=0.05)


def test_times_of_a_round() -> None:
    first = Stream(sent_s=10.0, deltas_s=[10.5, 10.6, 10.8], completion_tokens=3)
    second = Stream(sent_s=10.1, deltas_s=[11.1, 12.0], completion_tokens=5)
    result = Round([first, second])
    assert result.wall_s == pytest.approx(2.0)
    assert result.tokens_per_s == pytest.approx(4.0)
    assert result.ttft_s == pytest.approx([0.5, 1.0])
    assert result.gaps_s == pytest.approx([0.1, 0.2, 0.9])


def test_prompts_differ_by_stream_and_by_round_and_repeat_by_seed() -> None:
    here = prompts(8, 16, 1, shared_prefix=False)
    assert here == prompts(8, 16, 1, shared_prefix=False)
    assert len({*here, *prompts(8, 16, 2, shared_prefix=False)}) == 16
    assert all(len(prompt.split()) == 16 for prompt in here)


def test_a_shared_prefix_is_shared_up_to_the_last_words() -> None:
    shared = [prompt.split() for prompt in prompts(8, 16, 1, shared_prefix=True)]
    assert len({tuple(words[:-4]) for words in shared}) == 1
    assert len({tuple(words) for words in shared}) == 8


def test_percentiles_are_interpolated() -> None:
    values = [float(value) for value in range(101)]
    assert percentile(values, 50) == pytest.approx(50.0)
    assert percentile(values, 95) == pytest.approx(95.0)
    assert percentile([7.0], 95) == 7.0
    assert percentile([], 50) != percentile([], 50)


def test_targets_are_measured_in_turn_on_the_same_prompts_and_the_warm_up_is_forgotten() -> None:
    seen: list[tuple[str, list[str]]] = []

    def run(name: str, rate: float) -> Callable[[list[str]], float]:
        def one(texts: list[str]) -> float:
            seen.append((name, texts))
            return rate

        return one

    options = bench.arguments().parse_args(["--url", "x", "--rounds", "2", "--warmup", "2"])
    targets = [bench.Target("a", run("a", 30.0)), bench.Target("b", run("b", 20.0))]
    bench.measure(targets, 3, options)
    assert [name for name, _ in seen] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    for (_, first), (_, second) in zip(seen[::2], seen[1::2], strict=True):
        assert first == second
    assert len({tuple(texts) for _, texts in seen}) == 4
    assert targets[0].rates == [30.0, 30.0]


def test_the_report_prints_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    targets = [bench.Target("ours", lambda texts: 0.0), bench.Target("against", lambda texts: 0.0)]
    targets[0].rates += [30.0, 33.0, 90.0]
    targets[1].rates += [20.0, 22.0, 30.0]
    rows = bench.report(targets, 8)
    assert [row["tokens_per_s"] for row in rows] == [33.0, 22.0]
    assert "ours / against:  tokens_per_s x1.500  (tokens/s by pairs: median x1.500, 1.500..3.000)" in (
        capsys.readouterr().out
    )
    assert bench.markdown(rows).splitlines()[2] == "| 8 | ours | 33.0 |  |  |  |  |"


@pytest.mark.parametrize(
    "words", [[], ["--ceiling"], ["--spawn", "m.gguf", "--against", "http://x/v1"], ["--url", "x", "--ceiling"]]
)
def test_options_that_name_nothing_to_measure_are_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", *words])
    with pytest.raises(SystemExit) as refused:
        bench.main()
    assert refused.value.code == 2


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_common_start_of_two_prompts(a: list[int], b: list[int]) -> None:
    length = bench_ceiling.common_length(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length in (len(a), len(b))


@pytest.mark.gguf
def test_the_ceiling_makes_the_same_tokens_with_and_without_reuse(q4_0_model: Path) -> None:
    """Of separate streams only: in one pool the order of the cells changes the rounding, and with it a near-tie."""
    texts = [["one red fox", "two blue birds"], ["three green frogs", "four old oaks"]]
    made = []
    for reuse in (True, False):
        ceiling = bench_ceiling.Ceiling(str(q4_0_model), threads=1, lanes=2, context=256, reuse=reuse)
        made.append([ceiling.run(round_, 4).tokens for round_ in texts])
        ceiling.close()
    assert made[0] == made[1]


@pytest.mark.gguf
def test_the_ceiling_counts_every_token_of_every_lane(q4_0_model: Path) -> None:
    ceiling = bench_ceiling.Ceiling(str(q4_0_model), threads=1, lanes=2, context=256, reuse=True, unified=True)
    run = ceiling.run(["one red fox", "two blue birds"], 4)
    assert [len(lane) for lane in run.tokens] == [4, 4]
    assert run.tokens_per_s == pytest.approx(8 / (run.prefill_s + 3 * run.decode_step_s))
    with pytest.raises(SystemExit, match="needs more --context or --lanes"):
        ceiling.run(["one", "two", "three"], 4)
    with pytest.raises(SystemExit, match="needs more --context or --lanes"):
        ceiling.run(["one"], 256)
    ceiling.close()
