"""Makes the figures of docs/listeners.md: `python -m tests.listeners.compare_throughput`. Not a test; about 15 seconds.

Serves one app twice, under bare Hypercorn and under the guard, each in a process of its own, and drives it from this one.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_bare
from quart import Response
from quart_trio import QuartTrio

from trio_server.listeners import bind, serve

FRAME = b"data: " + b"x" * 182 + b"\n\n"
FRAMES = 20_000
REQUESTS = 3_000

app = QuartTrio(__name__)
app.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None)


@app.get("/stream")
async def stream() -> Response:
    async def frames() -> AsyncIterator[bytes]:
        for _ in range(FRAMES):
            yield FRAME

    return Response(frames())


@app.get("/hello")
async def hello() -> str:
    return "hello"


async def run(kind: str) -> None:
    async with trio.open_nursery() as nursery:
        if kind == "bare":
            config = Config()
            config.bind = ["127.0.0.1:0"]
            config.errorlog = logging.getLogger("bare")
            config.keep_alive_max_requests = sys.maxsize
            (url,) = await nursery.start(serve_bare, app, config)
        else:

            async def guarded(task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
                await serve(app, bind("127.0.0.1:0"), stopping=trio.Event(), task_status=task_status)

            (url,) = await nursery.start(guarded)
        sys.stdout.write(url.rpartition(":")[2] + "\n")
        sys.stdout.flush()


def read_stream(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        while not sock.recv(1 << 20).endswith(b"0\r\n\r\n"):
            pass


def measure(port: int) -> dict[str, float]:
    figures = {}
    for count in (1, 8):
        clients = [threading.Thread(target=read_stream, args=(port,)) for _ in range(count)]
        started = time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        figures[f"frames/s, {count} at once"] = FRAMES * count / (time.perf_counter() - started)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        started = time.perf_counter()
        for _ in range(REQUESTS):
            sock.sendall(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.recv(65536)
        figures["requests/s"] = REQUESTS / (time.perf_counter() - started)
    return figures


def main() -> None:
    for kind in ("bare", "guarded") * 2:
        server = subprocess.Popen([sys.executable, "-m", __spec__.name, kind], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            for name, figure in measure(int(server.stdout.readline())).items():
                sys.stdout.write(f"{kind:8} {name:22} {figure:10,.0f}\n")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(run, sys.argv[1])
    else:
        main()
