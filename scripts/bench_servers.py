"""Starting the servers that a benchmark compares, each on a free loopback port with the same model, threads and lanes."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

START_LIMIT_S = 120.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def ours(model: str, *, threads: int, lanes: int, context: int, reuse: bool, flags: list[str]) -> Iterator[str]:
    """trio-server; gives its base URL."""
    command = [sys.executable, "-m", "trio_server", "--model-artifact", model, "--server-bind", "127.0.0.1:0"]
    command += ["--model-threads", str(threads), "--spec-decode-lanes", str(lanes), "--log-level", "warn"]
    command += ["--model-max-context", str(context), "--log-format", "json"]
    command += [*([] if reuse else ["--reuse-prompt", "false"]), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"ready: (\S+)", line):
                # Whatever it says later must not fill the pipe.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found.group(1)
                return
        raise SystemExit(f"trio-server did not start: {said.strip()}")
    finally:
        _stop(process)


@contextmanager
def llama_server(
    binary: str, model: str, *, threads: int, lanes: int, context: int, reuse: bool, flags: list[str]
) -> Iterator[str]:
    """llama.cpp's own server; gives its base URL."""
    port = free_port()
    command = [binary, "-m", model, "--host", "127.0.0.1", "--port", str(port), "--no-webui", "-lv", "1"]
    command += ["-t", str(threads), "-tb", str(threads), "--parallel", str(lanes), "-c", str(context * lanes)]
    command += [*([] if reuse else ["--no-cache-prompt"]), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _stop(process)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)  # a foreign program: there is nothing but its port to wait for
    raise SystemExit(f"{url} did not answer")


def _stop(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
