"""The entry point of `trio-server`: the only place that reads the process's environment, prints and exits.

What the command line means is decided by `trio_server.config.resolve`. The server is imported only when it is to run,
so that `trio-server --help` does not pay for llama.cpp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trio_server.config import Health, Print, Refusal, Serve, resolve

_HEALTH_TIMEOUT_S = 5.0
_HEALTH_BODY_BYTES = 4096


class Disk:
    """The real `FileSystem`."""

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own by default) and return the exit status; 2 for a refusal."""
    try:
        outcome = resolve(sys.argv[1:] if argv is None else argv, os.environ, Disk())
    except Refusal as refusal:
        _complain(refusal.message)
        return 2
    match outcome:
        case Print(text, exit_code):
            sys.stdout.write(text)
            return exit_code
        case Health(url):
            return _health(url)
        case Serve(settings, warnings):
            for warning in warnings:
                _complain(f"warning: {warning}")
            from trio_server.server import serve

            return serve(settings)


def _complain(message: str) -> None:
    sys.stderr.write(f"trio-server: {message}\n")


def _health(url: str) -> int:
    """Ask a running server; print what it says and return 0 when it is ready, 1 otherwise."""
    import http.client
    import json
    import urllib.error
    import urllib.request

    # A proxy from the environment has no business between a container and its own health check.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            response = opener.open(url, timeout=_HEALTH_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            status, body = response.status, response.read(_HEALTH_BODY_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        sys.stdout.write(f"{url}: no answer: {reason}\n")
        return 1
    try:
        said = str(json.loads(body)["status"])
    except (ValueError, LookupError, TypeError):
        said = "no status in the answer"
    sys.stdout.write(f"{url}: {status} {said}\n")
    return 0 if status == 200 else 1
