"""A tiny app, a server around it, and a client that sends bytes: what the listener tests stand on."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from quart import Response, request, websocket
from quart_trio import QuartTrio

from trio_server.listeners import ListenerOptions, bind, serve

LIMIT_S = 10.0

GET = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE_GET = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\n"
)


class Watch:
    """What became of the handlers: how many are in work, and a channel that tells how each was left."""

    def __init__(self) -> None:
        self.entered = trio.open_memory_channel[str](100)
        self.left = trio.open_memory_channel[str](100)
        self.active = 0

    @contextmanager
    def handler(self, name: str) -> Iterator[None]:
        self.active += 1
        self.entered[0].send_nowait(name)
        outcome = "cancelled"
        try:
            yield
            outcome = "done"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.active -= 1
            self.left[0].send_nowait(f"{name} {outcome}")

    async def until_entered(self) -> str:
        with trio.fail_after(LIMIT_S):
            return await self.entered[1].receive()

    async def until_left(self, limit_s: float = LIMIT_S) -> str:
        with trio.fail_after(limit_s):
            return await self.left[1].receive()


def make_app() -> tuple[QuartTrio, Watch]:
    app = QuartTrio(__name__)
    app.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None, PROPAGATE_EXCEPTIONS=False)
    watch = Watch()
    app.extensions["release"] = trio.Event()

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.post("/length")
    async def length() -> str:
        return str(len(await request.get_data()))

    @app.route("/wait", methods=["GET", "POST"])
    async def wait() -> str:
        with watch.handler("wait"):
            await app.extensions["release"].wait()
            return "released"

    @app.get("/stream")
    async def stream() -> Response:
        piece = b"data: " + b"x" * int(request.args.get("size", 100)) + b"\n\n"

        async def pieces() -> AsyncIterator[bytes]:
            with watch.handler("stream"):
                while not app.extensions["release"].is_set():
                    yield piece
                    await trio.lowlevel.checkpoint()
                yield b"end"

        return Response(pieces(), content_type="text/event-stream")

    @app.get("/quiet-stream")
    async def quiet_stream() -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            with watch.handler("quiet"):
                yield b"first"
                await app.extensions["release"].wait()
                yield b"last"

        return Response(pieces())

    @app.get("/deadline-stream")
    async def deadline_stream() -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 50_000_000

        response = Response(pieces())
        response.timeout = 0.2
        return response

    @app.get("/big")
    async def big() -> Response:
        return Response(b"y" * int(request.args["size"]))

    @app.get("/boom")
    async def boom() -> str:
        raise RuntimeError("a bug of the app")

    @app.websocket("/echo")
    async def echo() -> None:
        with watch.handler("echo"):
            while True:
                await websocket.send(await websocket.receive())

    @app.websocket("/deaf")
    async def deaf() -> None:
        await websocket.accept()
        with watch.handler("deaf"):
            await app.extensions["release"].wait()

    return app, watch


@dataclass
class Served:
    app: Any
    watch: Watch
    ports: list[int]
    stopping: trio.Event = field(default_factory=trio.Event)
    stopped: trio.Event = field(default_factory=trio.Event)
    clients: list[trio.SocketStream] = field(default_factory=list)

    @property
    def release(self) -> trio.Event:
        event: trio.Event = self.app.extensions["release"]
        return event

    async def connect(self, *, receive_buffer: int | None = None, port: int | None = None) -> trio.SocketStream:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        stream = trio.SocketStream(sock)
        self.clients.append(stream)
        await sock.connect(("127.0.0.1", port or self.ports[0]))
        return stream

    async def send(self, data: bytes) -> trio.SocketStream:
        stream = await self.connect()
        await stream.send_all(data)
        return stream

    async def exchange(self, data: bytes) -> list[Answer]:
        """Send, and read until the server closes."""
        stream = await self.send(data)
        return parse(await read_to_end(stream))

    async def assert_serves(self) -> None:
        (answer,) = await self.exchange(CLOSE_GET)
        assert (answer.status, answer.body) == (200, b"hello")


@asynccontextmanager
async def served(address: str = "127.0.0.1:0", app: Any = None, **options: Any) -> AsyncIterator[Served]:
    """A server; leaving the block stops it and waits until it has returned."""
    watch = Watch()
    if app is None:
        app, watch = make_app()
    sockets = bind(address)
    server = Served(app, watch, [sock.getsockname()[1] for sock in sockets])

    async def run(task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        await serve(app, sockets, ListenerOptions(**options), stopping=server.stopping, task_status=task_status)
        server.stopped.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            try:
                yield server
            finally:
                server.stopping.set()
                server.app.extensions["release"].set()
                for stream in server.clients:
                    stream.socket.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error; asserts the shape that every refusal of the stack has."""
        assert self.headers["content-type"] == "application/json"
        assert self.headers["connection"] == "close"
        assert self.headers["access-control-allow-origin"] == "*"
        assert re.fullmatch("req_[0-9a-f]{32}", self.headers["x-request-id"])
        assert "server" not in self.headers
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)


def parse(data: bytes) -> list[Answer]:
    """All final answers in a byte stream; the rest after a 101 is left out."""
    answers = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        status = int(line.split(" ")[1])
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in fields)}
        if status == 100:
            continue
        if status == 101:
            answers.append(Answer(status, headers, data))
            break
        if headers.get("transfer-encoding") == "chunked":
            body, data = _chunks(data)
        else:
            size = int(headers.get("content-length", len(data)))
            body, data = data[:size], data[size:]
        answers.append(Answer(status, headers, body))
    return answers


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return body, data[2:]
        body, data = body + data[:count], data[count + 2 :]
    return body + b"<cut>", b""


async def read_to_end(stream: trio.SocketStream, limit_s: float = LIMIT_S) -> bytes:
    """What comes until the server closes; a reset counts as closing."""
    data = b""
    with trio.fail_after(limit_s):
        try:
            while piece := await stream.receive_some():
                data += piece
        except trio.BrokenResourceError:
            pass
    await stream.aclose()
    return data


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    data = b""
    with trio.fail_after(LIMIT_S):
        while mark not in data:
            piece = await stream.receive_some()
            assert piece, f"closed before {mark!r}: {data!r}"
            data += piece
    return data


def reset(stream: trio.SocketStream) -> None:
    """Close with RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A client's WebSocket frame, masked with zeros."""
    first = bytes([(0x80 if final else 0) | opcode])
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65536:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    return first + length + bytes(4) + payload
