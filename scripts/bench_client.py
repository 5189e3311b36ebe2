"""A light client for benchmarks: N streams of chat completions at once over plain HTTP/1.1 on trio sockets.

It must cost little, since it shares the machine with what it measures: requests are written by hand, the answer's bytes are
searched for events and only those are parsed.
"""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import trio

WORDS = [
    "river",
    "stone",
    "cloud",
    "market",
    "garden",
    "window",
    "letter",
    "engine",
    "bridge",
    "silver",
    "forest",
    "winter",
    "music",
    "paper",
    "signal",
    "harbor",
    "copper",
    "mirror",
    "candle",
    "meadow",
    "thunder",
    "ladder",
    "orchard",
    "velvet",
    "anchor",
    "lantern",
    "compass",
    "marble",
    "feather",
    "canyon",
    "violin",
    "pepper",
]


@dataclass(slots=True)
class Stream:
    """What one request showed. Times are seconds from when its bytes were sent."""

    deltas_s: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    error: str | None = None


@dataclass(slots=True)
class Round:
    """N streams at once. `wall_s`: from before the first connection is opened to the last answer's end."""

    streams: list[Stream]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(stream.completion_tokens for stream in self.streams) / self.wall_s

    @property
    def ttft_s(self) -> list[float]:
        return [stream.deltas_s[0] for stream in self.streams if stream.deltas_s]

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for stream in self.streams for a, b in zip(stream.deltas_s, stream.deltas_s[1:], strict=False)]


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


async def run_stream(url: str, body: bytes, stream: Stream, key: str | None = None) -> None:
    """One streamed completion; what it showed goes into `stream`."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    head = (
        f"POST {parts.path.rstrip('/')}/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    connection = await trio.open_tcp_stream(host, port)
    async with connection:
        sent_s = trio.current_time()
        await connection.send_all(head.encode() + b"\r\n" + body)
        pending = bytearray()
        async for chunk in connection:
            now_s = trio.current_time()
            pending += chunk
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                if line.startswith(b"data: {"):
                    _take(stream, json.loads(line[6:]), now_s - sent_s)
                elif line.startswith(b"HTTP/1.1 ") and b" 200" not in line[:14]:
                    stream.error = line.decode("latin1").strip()


def _take(stream: Stream, event: dict[str, Any], at_s: float) -> None:
    if "error" in event:
        stream.error = str(event["error"])
    if usage := event.get("usage"):
        stream.completion_tokens = usage["completion_tokens"]
        stream.prompt_tokens = usage["prompt_tokens"]
        stream.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    for choice in event.get("choices") or ():
        if content := (choice.get("delta") or {}).get("content"):
            stream.deltas_s.append(at_s)
            stream.text += content


async def run_round(url: str, bodies: list[bytes], key: str | None = None) -> Round:
    """All of `bodies` at once, to the end."""
    streams = [Stream() for _ in bodies]
    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for body, stream in zip(bodies, streams, strict=True):
            nursery.start_soon(run_stream, url, body, stream, key)
    wall_s = trio.current_time() - start_s
    errors = [stream.error or "no content" for stream in streams if stream.error or not stream.deltas_s]
    if errors:
        raise SystemExit(f"{url}: {len(errors)} of {len(streams)} streams failed: {errors[0]}")
    return Round(streams, wall_s)


def percentile(values: list[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, interpolated; nan of nothing."""
    if not values:
        return float("nan")
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, int(percent * 10) - 1)]
