"""Real servers for the live tests: in this process, where their insides can be looked at, or as a process of their own.

Both serve the real Q4_0 starter model at one thread on a free loopback port.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from trio_server import config
from trio_server.engines.text.llama import route_native_log
from trio_server.server import Server

START_LIMIT_S = 60.0


def settings(model: Path, **changes: Any) -> config.Settings:
    """Settings for a test server; `changes` are by dotted name with `__` for the dot, as `spec__decode_lanes=1`."""
    groups: dict[str, dict[str, Any]] = {
        "server": {"bind": "127.0.0.1:0"},
        "model": {"artifact": str(model), "threads": 1, "max_context": 1024, "prefill_chunk": 128},
    }
    for name, value in changes.items():
        group, _, key = name.partition("__")
        groups.setdefault(group, {})[key] = value
    base = config.Settings()
    return replace(base, **{group: replace(getattr(base, group), **values) for group, values in groups.items()})


@dataclass
class LiveServer:
    """A server that runs in this process."""

    url: str
    server: Server

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def held(self) -> int:
        assert self.server.load is not None
        return self.server.load.lanes.statistics().held


@asynccontextmanager
async def running_server(model: Path, **changes: Any) -> AsyncIterator[LiveServer]:
    """A server in this process, cut down at the end of the block."""
    route_native_log(lambda level, text: None)
    server = Server(settings(model, **changes))
    async with trio.open_nursery() as nursery:
        with trio.fail_after(START_LIMIT_S):
            url = await nursery.start(lambda task_status: server.run(task_status=task_status, signals=False))
        yield LiveServer(url, server)
        nursery.cancel_scope.cancel()


@dataclass
class ServerProcess:
    """A server in a process of its own. `log` grows while it runs."""

    process: subprocess.Popen[str]
    url: str
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(re.search(r":(\d+)", self.url[8:]).group(1))  # type: ignore[union-attr]

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 30.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(limit_s)


@contextmanager
def server_process(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """`trio-server` with JSON logs; killed at the end of the block if it still runs."""
    command = [sys.executable, "-m", "trio_server", "--server-bind", "127.0.0.1:0", "--log-format", "json", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    announced: queue.Queue[str] = queue.Queue()
    log: list[dict[str, Any]] = []

    def read_log() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(json.loads(line))

    def read_announcements() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            announced.put(line)
        announced.put("")

    readers = [threading.Thread(target=read_log, daemon=True), threading.Thread(target=read_announcements, daemon=True)]
    for reader in readers:
        reader.start()
    try:
        said = ""
        while (found := re.search(r"ready: (\S+)/v1", said)) is None:
            line = announced.get(timeout=START_LIMIT_S)
            if not line:
                raise AssertionError(f"the server did not start: {said}")
            said += line
        yield ServerProcess(process, found.group(1), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for reader in readers:
            reader.join()


def chat_body(content: str = "Tell me a long story.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def raw_post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """An HTTP/1.1 request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode() + body


def raw_chat(content: str, **fields: Any) -> bytes:
    return raw_post("/v1/chat/completions", json.dumps(chat_body(content, **fields)).encode())


async def read_until(stream: trio.SocketStream, marker: bytes, limit_s: float = 30.0) -> bytes:
    """Everything up to and including the read that brought `marker`."""
    got = bytearray()
    with trio.fail_after(limit_s):
        while marker not in got:
            data = await stream.receive_some(65536)
            if not data:
                raise AssertionError(f"closed before {marker!r}: {bytes(got)!r}")
            got += data
    return bytes(got)


async def read_all(stream: trio.SocketStream, limit_s: float = 30.0) -> bytes:
    got = bytearray()
    with trio.fail_after(limit_s):
        async for data in stream:
            got += data
    return bytes(got)


async def post(
    port: int, path: str, body: Any, *headers: str, limit_s: float = 60.0
) -> tuple[int, dict[str, str], Any]:
    """One request on a connection of its own: status, headers (lower case), JSON body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(raw_post(path, raw, "Connection: close", *headers))
        return split_answer(await read_all(stream, limit_s))


def split_answer(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunk(body)
    return int(lines[0].split()[1]), headers, json.loads(body) if body and b"data:" not in body[:8] else body


def _dechunk(body: bytes) -> bytes:
    result = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        result += rest[:count]
        body = rest[count + 2 :]
        if count == 0:
            break
    return bytes(result)


def reset(stream: trio.SocketStream) -> None:
    """Close with RST instead of FIN."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
