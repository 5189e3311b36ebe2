"""A server process from start to end: what it refuses, how it stops, what it costs when idle, and hostile input."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.support import (
    ServerProcess,
    chat_body,
    post,
    raw_chat,
    raw_post,
    read_all,
    read_until,
    server_process,
)

pytestmark = [pytest.mark.gguf, pytest.mark.live]

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(q4_0_model: Path) -> Iterator[ServerProcess]:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "1024"]
    with server_process(*flags, "--spec-decode-lanes", "8") as running:
        yield running


def run(*flags: str, limit_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trio_server", *flags], capture_output=True, text=True, timeout=limit_s, check=False
    )


# Starts that are refused


def damaged(kind: str, model: Path, folder: Path) -> Path:
    path = folder / f"{kind}.gguf"
    if kind == "missing":
        return path
    content = {
        "truncated": model.read_bytes()[:2_000_000],
        "not a GGUF": b"this is no model" * 100,
        "empty": b"",
        "header only": model.read_bytes()[:64],
    }[kind]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["missing", "truncated", "not a GGUF", "empty", "header only"])
def test_a_bad_model_file_is_one_line_and_an_exit_status(kind: str, q4_0_model: Path, tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    path = damaged(kind, q4_0_model, tmp_path)
    ended = run("--model-artifact", str(path), "--server-bind", f"127.0.0.1:{port}", "--log-format", "json")
    assert ended.returncode == (2 if kind == "missing" else 1)
    lines = [line for line in ended.stderr.splitlines() if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("trio-server: `--model-artifact`")
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not any(json.loads(line)["event_name"].endswith("process.started") for line in ended.stdout.splitlines())


def test_a_port_in_use_is_one_line_and_exit_status_1(server: ServerProcess, q4_0_model: Path) -> None:
    ended = run("--model-artifact", str(q4_0_model), "--server-bind", f"127.0.0.1:{server.port}")
    assert ended.returncode == 1
    assert ended.stderr.strip() == f"trio-server: `--server-bind`: 127.0.0.1:{server.port} is already in use"


def test_a_context_past_the_trained_one_is_refused_when_named(q4_0_model: Path) -> None:
    ended = run("--model-artifact", str(q4_0_model), "--model-max-context", "999999", "--server-bind", "127.0.0.1:0")
    assert ended.returncode == 2
    assert "trained" in ended.stderr


# Stopping


def start_streams(port: int, count: int) -> list[socket.socket]:
    """Streams under way: each has shown its first content."""
    sockets = []
    for number in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        body = json.dumps(chat_body(f"Tale {number}.", stream=True, max_tokens=900, ignore_eos=True)).encode()
        sock.sendall(raw_post(CHAT, body))
        sockets.append(sock)
    for sock in sockets:
        sock.settimeout(30)
        got = b""
        while b'"content":"' not in got.replace(b'"content":""', b""):
            got += sock.recv(65536)
    return sockets


def read_to_the_end(sock: socket.socket) -> bytes:
    got = b""
    while data := sock.recv(65536):
        got += data
    sock.close()
    return got


def test_sigterm_under_eight_streams_ends_each_with_an_error_frame(q4_0_model: Path) -> None:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "1024"]
    with server_process(*flags, "--spec-decode-lanes", "8", "--server-shutdown-grace", "1") as live:
        streams = start_streams(live.port, 8)
        start_s = time.monotonic()
        live.process.send_signal(signal.SIGTERM)
        rests = [read_to_the_end(sock) for sock in streams]
        status = live.process.wait(20)
        took_s = time.monotonic() - start_s
    for rest in rests:
        assert b'"code":"server_shutting_down"' in rest
        assert b"[DONE]" not in rest
    assert status == 0
    assert 1 <= took_s < 6
    assert live.log[-1]["event_name"] == "trio_server.process.stopped"
    assert live.log[-1]["attributes"]["cut"] == 8
    assert [line for line in live.log if line["severity_text"] == "ERROR"] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full here")
def test_a_log_on_a_full_disk_does_not_spoil_the_end(q4_0_model: Path) -> None:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "512"]
    with server_process(*flags, "--log-path", "/dev/full") as live:
        assert live.stop() == 0


def test_a_short_request_finishes_within_the_grace(q4_0_model: Path) -> None:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "1024"]
    with server_process(*flags, "--spec-decode-lanes", "2", "--server-shutdown-grace", "20") as live:
        sock = socket.create_connection(("127.0.0.1", live.port))
        sock.sendall(raw_post(CHAT, json.dumps(chat_body("Hi", max_tokens=120, ignore_eos=True)).encode()))
        time.sleep(0.1)  # a request cannot tell that it was read
        assert live.stop() == 0
        answer = read_to_the_end(sock)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"completion_tokens":120' in answer
    assert live.log[-1]["attributes"]["cut"] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(q4_0_model: Path, number: int, status: int) -> None:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "1024"]
    with server_process(*flags, "--spec-decode-lanes", "2", "--server-shutdown-grace", "60") as live:
        (sock,) = start_streams(live.port, 1)
        live.process.send_signal(number)
        deadline_s = time.monotonic() + 10
        while not any(line["event_name"].endswith("process.stopping") for line in live.log):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)  # the log of another process
        start_s = time.monotonic()
        live.process.send_signal(number)
        assert live.process.wait(5) == status
        assert time.monotonic() - start_s < 1
        sock.close()


# Idle


def test_an_idle_server_costs_under_one_percent_of_a_core(q4_0_model: Path) -> None:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "1024"]
    with server_process(*flags, "--spec-decode-lanes", "8") as live:
        idle = socket.create_connection(("127.0.0.1", live.port))
        time.sleep(1)  # let the start's last work settle
        process = psutil.Process(live.process.pid)
        before, switches = process.cpu_times(), process.num_ctx_switches()
        window_s = 6.0
        time.sleep(window_s)
        after, switched = process.cpu_times(), process.num_ctx_switches()
        busy = (after.user + after.system - before.user - before.system) / window_s
        woken = (switched.voluntary - switches.voluntary) / window_s
        print(f"\nidle: {busy * 100:.2f} % of a core, {woken:.1f} wake-ups a second")
        idle.close()
    assert busy < 0.01
    assert woken < 5


# Hostile input


async def still_serves(port: int) -> None:
    status, _, answer = await post(port, CHAT, chat_body("Hi", max_tokens=1, temperature=0))
    assert status == 200, answer


UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\n"
)
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
MALFORMED = {
    "TLS bytes on a plain port": [b"\x16\x03\x01garbage\r\n\r\n"],
    "header without colon": [b"GET / HTTP/1.1\r\nHost x\r\n\r\n"],
    "200 kB header": [GET + b"A: " + b"a" * 200_000 + b"\r\n\r\n"],
    "data after Connection: close": [GET + b"Connection: close\r\n\r\nxxxxx", b"more"],
    "pipelined": [GET + b"\r\n" + GET + b"\r\n"],
    "short body, then close": [POST + b"Content-Length: 10\r\n\r\nabc"],
    "bad chunk size": [POST + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n"],
    "bad WebSocket frame": [UPGRADE % b"/v1/realtime", b"\xff\xff\xff\xff\xff"],
    "unmasked WebSocket frame": [UPGRADE % b"/v1/realtime", b"\x81\x05hello"],
    "WebSocket text that is not UTF-8": [UPGRADE % b"/v1/realtime", b"\x81\x82\x00\x00\x00\x00\xff\xfe"],
    "h2c preface": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 30],
    "upgrade of an unknown path": [UPGRADE % b"/nope"],
    "upgrade with a trailing byte": [UPGRADE % b"/v1/realtime" + b"x"],
    "path that is not ASCII": [b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n"],
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_after_each_malformed_request_the_server_serves(server: ServerProcess, name: str) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream:
        for part in MALFORMED[name]:
            try:
                await stream.send_all(part)
            except trio.BrokenResourceError:
                break
            with trio.move_on_after(0.2):
                await stream.receive_some(65536)
    await still_serves(server.port)
    assert server.process.poll() is None


KNOWN = (
    "messages model stream stream_options max_tokens max_completion_tokens temperature top_p presence_penalty"
    " frequency_penalty seed stop tools tool_choice response_format logprobs top_logprobs logit_bias reasoning_effort"
    " top_k min_p repetition_penalty enable_thinking chat_template_kwargs thinking_budget class ignore_eos n store"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
        optional={
            "content": st.text(max_size=30) | JSON,
            "tool_calls": JSON,
            "tool_call_id": st.text(max_size=3) | JSON,
        },
    ),
    max_size=4,
)
BODIES = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 3) | JSON},
    optional={**{name: JSON for name in KNOWN if name != "max_tokens"}, "messages": MESSAGES | JSON},
)
ROUTES = st.sampled_from([CHAT, "/v1/tokenize", "/v1/detokenize"])


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES | BODIES.map(lambda body: {**body, "messages": [{"role": "user", "content": "x"}]}), route=ROUTES)
def test_random_bodies_are_answered_or_refused(server: ServerProcess, body: dict[str, Any], route: str) -> None:
    async def main() -> tuple[int, Any]:
        status, _, answer = await post(server.port, route, body, limit_s=20)
        return status, answer

    status, answer = trio.run(main)
    if isinstance(answer, bytes):  # a stream
        assert status == 200
        assert b"Traceback" not in answer
        return
    assert status in (200, 400, 404), (status, answer)
    if status != 200:
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "Traceback" not in error["message"]
        assert error["code"] != "internal_error"


@pytest.mark.parametrize("seed", range(4))
async def test_random_bytes_are_a_400(server: ServerProcess, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        raw = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
        status, _, answer = await post(server.port, CHAT, raw)
        assert (status, answer["error"]["code"]) in ((400, "invalid_json"), (400, "invalid_request_error"))


async def test_a_body_over_the_limit_is_refused_before_it_is_read(server: ServerProcess) -> None:
    limit = 16 * 1024 * 1024
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream:
        await stream.send_all(raw_post(CHAT, b"", length=limit + 1))
        head = await read_until(stream, b"request_too_large", 5)
    assert head.startswith(b"HTTP/1.1 413")
    status, _, answer = await post(server.port, CHAT, b" " * limit)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


async def test_errors_have_ids_and_cors_and_unknown_paths_are_json(server: ServerProcess) -> None:
    for path, expected in (
        ("/v1/nope", 404),
        ("//v1/models", 404),
        ("/v1/v1/chat/completions", 404),
        ("/v1/models", 405),
    ):
        status, headers, answer = await post(server.port, path, {})
        assert status == expected, path
        assert headers["x-request-id"].startswith("req_")
        assert headers["access-control-allow-origin"] == "*"
        assert answer["error"]["code"] in ("not_found", "method_not_allowed")


async def test_a_preflight_needs_no_key_and_a_request_does(q4_0_model: Path) -> None:
    key = "sk-test-0123456789abcdef"
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "512"]
    with server_process(*flags, env={"TRIO_SERVER_SERVER_API_KEY": key}) as live:
        stream = await trio.open_tcp_stream("127.0.0.1", live.port)
        async with stream:
            await stream.send_all(
                b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\nConnection: close\r\n"
                b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-stainless-os\r\n\r\n"
            )
            answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"x-stainless-os" in answer
        status, headers, refused = await post(live.port, CHAT, chat_body("Hi"))
        assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
        assert headers["www-authenticate"] == "Bearer"
        status, _, _ = await post(live.port, CHAT, chat_body("Hi", max_tokens=1), f"Authorization: bearer  {key}")
        assert status == 200
        status, _, refused = await post(live.port, CHAT, chat_body("Hi"), f"Authorization: Bearer {key}x")
        assert status == 401
        assert key not in json.dumps(refused)
        live.stop()
    assert key not in json.dumps(live.log)


async def test_streams_of_eight_clients_reach_their_end(server: ServerProcess) -> None:
    ends: list[bytes] = []

    async def client(number: int) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with stream:
            await stream.send_all(raw_chat(f"Tale {number}.", stream=True, max_tokens=24, ignore_eos=True))
            ends.append(await read_until(stream, b"[DONE]"))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(client, number)
    assert len(ends) == 8
    assert os.getpid() != server.process.pid
