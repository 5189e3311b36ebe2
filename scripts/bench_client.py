"""A light client for benchmarks: N streams of chat completions at once over plain HTTP/1.1 on trio sockets.

It must cost little, since it shares the machine with what it measures: requests are written by hand, the answer's bytes are
searched for events and only those are parsed.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import trio

WORDS = (
    "river stone cloud market garden window letter engine bridge silver forest winter music paper signal harbor copper"
    " mirror candle meadow thunder ladder orchard velvet anchor lantern compass marble feather canyon violin pepper"
).split()


class AnswerError(Exception):
    """A server answered otherwise than with a whole stream of events."""


@dataclass(slots=True)
class Stream:
    """What one request showed. Times are seconds on trio's clock."""

    sent_s: float = 0.0
    deltas_s: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    finished: bool = False

    @property
    def ttft_s(self) -> float:
        """From the request's bytes being sent to the first piece of text."""
        return self.deltas_s[0] - self.sent_s

    def take(self, event: dict[str, Any], now_s: float) -> None:
        """One event of the answer, that came at `now_s`."""
        if "error" in event:
            raise AnswerError(str(event["error"]))
        if usage := event.get("usage"):
            self.completion_tokens = usage["completion_tokens"]
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for choice in event.get("choices") or ():
            if content := (choice.get("delta") or {}).get("content"):
                self.deltas_s.append(now_s)
                self.text += content

    def check(self) -> None:
        """Raise `AnswerError` unless the answer came whole, with text and a token count."""
        for there, what in (
            (self.finished, "the stream ended without [DONE]"),
            (self.deltas_s, "no text came"),
            (self.completion_tokens, "no usage came"),
        ):
            if not there:
                raise AnswerError(what)


@dataclass(slots=True)
class Round:
    """N streams at once."""

    streams: list[Stream]

    @property
    def wall_s(self) -> float:
        """From the first request being sent to the last piece of text."""
        return max(stream.deltas_s[-1] for stream in self.streams) - min(stream.sent_s for stream in self.streams)

    @property
    def tokens_per_s(self) -> float:
        return sum(stream.completion_tokens for stream in self.streams) / self.wall_s

    @property
    def ttft_s(self) -> list[float]:
        return [stream.ttft_s for stream in self.streams]

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for stream in self.streams for a, b in zip(stream.deltas_s, stream.deltas_s[1:], strict=False)]


class Events:
    """Takes the bytes of one HTTP answer in pieces of any size, gives the `data:` payloads of its event stream."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._text = bytearray()
        self._head_read = False
        self._chunked = False
        self._chunk_left = 0

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """The payloads that `data` completes. `AnswerError` if the answer is no 200."""
        self._raw += data
        if not self._head_read and not self._read_head():
            return
        if self._chunked:
            self._dechunk()
        else:
            self._text += self._raw
            self._raw.clear()
        *lines, rest = self._text.split(b"\n")
        self._text = rest
        for line in lines:
            if line.startswith(b"data:"):
                yield bytes(line[5:].strip())

    def _read_head(self) -> bool:
        head, end, body = self._raw.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *headers = head.decode("latin1").lower().split("\r\n")
        if status.split()[1] != "200":
            raise AnswerError(f"{status}: {body.decode('utf-8', 'replace')}")
        self._chunked = any(line.startswith("transfer-encoding:") and "chunked" in line for line in headers)
        self._head_read = True
        self._raw = body
        return True

    def _dechunk(self) -> None:
        while self._raw:
            if self._chunk_left == 0:
                size, end, _ = self._raw.partition(b"\r\n")
                if not end:
                    return
                if not size.strip():  # the line's end after a chunk
                    del self._raw[:2]
                    continue
                self._chunk_left = int(size.partition(b";")[0], 16)
                del self._raw[: len(size) + 2]
                if self._chunk_left == 0:
                    return
            piece = self._raw[: self._chunk_left]
            self._text += piece
            self._chunk_left -= len(piece)
            del self._raw[: len(piece)]


def prompts(count: int, words: int, seed: int, *, shared_prefix: bool) -> list[str]:
    """`count` prompts of about `words` words: all different from the first word on, or only in the last few."""
    rng = random.Random(seed)
    common = [rng.choice(WORDS) for _ in range(words)]
    result = []
    for _ in range(count):
        own = [rng.choice(WORDS) for _ in range(words)]
        mixed = common[: max(0, words - 4)] + own[:4] if shared_prefix else own
        result.append(("Tell a long story with the words " if shared_prefix else "") + " ".join(mixed))
    return result


def body_for(prompt: str, *, max_tokens: int, temperature: float, model: str | None, extra: dict[str, Any]) -> bytes:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **extra,
    }
    if model:
        body["model"] = model
    return json.dumps(body).encode()


async def run_stream(url: str, body: bytes, key: str | None = None) -> Stream:
    """One streamed completion. `AnswerError` if it does not come whole."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    head = (
        f"POST {parts.path.rstrip('/')}/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    stream, events = Stream(), Events()
    connection = await trio.open_tcp_stream(host, port)
    async with connection:
        stream.sent_s = trio.current_time()
        await connection.send_all(head.encode() + b"\r\n" + body)
        async for data in connection:
            now_s = trio.current_time()
            for payload in events.feed(data):
                if payload == b"[DONE]":
                    stream.finished = True
                else:
                    stream.take(json.loads(payload), now_s)
    stream.check()
    return stream


async def run_round(url: str, bodies: list[bytes], key: str | None = None, limit_s: float = 600.0) -> Round:
    """All of `bodies` at once, to the end. `SystemExit` if a stream fails: figures of the others would mean nothing."""
    streams: list[Stream] = []
    failures: list[str] = []

    async def run_one(body: bytes) -> None:
        try:
            streams.append(await run_stream(url, body, key))
        except (AnswerError, OSError, trio.BrokenResourceError) as error:
            failures.append(str(error))
            nursery.cancel_scope.cancel()

    with trio.move_on_after(limit_s) as limit:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(run_one, body)
    if limit.cancelled_caught:
        failures.append(f"it did not end within {limit_s:.0f} s")
    if failures:
        raise SystemExit(f"{url}: a stream failed: {failures[0]}")
    return Round(streams)


def percentile(values: list[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, interpolated; nan of nothing."""
    if not values:
        return float("nan")
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, int(percent * 10) - 1)]
