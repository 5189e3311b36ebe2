"""The entry point: exit statuses, which stream gets what, and that help stays light."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from trio_server import __version__, cli
from trio_server.config import FIELDS, Settings

HEAVY = ("trio", "quart", "hypercorn", "llama_cpp", "numpy", "pydantic", "urllib.request", "trio_server.server")


@pytest.fixture(autouse=True)
def _no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for declaration in FIELDS:
        monkeypatch.delenv(declaration.env, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """A stand-in for the server: the settings it was started with; it exits with 7."""
    started: list[Settings] = []
    module = ModuleType("trio_server.server")
    module.serve = lambda settings: started.append(settings) or 7  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "trio_server.server", module)
    return started


def test_flags_and_variables_reach_the_server(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIO_SERVER_MODEL_ID", "tiny")
    monkeypatch.setattr(sys, "argv", ["trio-server", "--server-request-timeout", "5"])
    assert cli.main() == 7
    [settings] = served
    assert settings.model.id == "tiny"
    assert settings.server.request_timeout == 5
    assert capsys.readouterr() == ("", "")


def test_a_warning_goes_to_standard_error_and_the_server_starts(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIO_SERVER_NOPE", "1")
    assert cli.main([]) == 7
    assert len(served) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trio-server: warning: `TRIO_SERVER_NOPE` names no field and is ignored; the nearest is `")
    assert err.count("\n") == 1


def test_a_refusal_is_one_line_and_status_two(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--nope"]) == 2
    assert served == []
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "trio-server: `--nope` is no flag (`trio-server help --fields` lists them)\n"


def test_the_real_disk_is_asked(
    served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--model-artifact", "gone.gguf"]) == 2
    assert capsys.readouterr().err == "trio-server: `--model-artifact`: gone.gguf does not exist\n"
    (tmp_path / "here.gguf").touch()
    assert cli.main(["--model-artifact", "here.gguf", "--log-path", "new.log"]) == 7
    assert cli.main(["--log-path", str(tmp_path)]) == 2


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr() == (f"trio-server {__version__}\n", "")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['trio-server', '--help']; from trio_server.cli import main; status = main();"
        f"sys.exit(status or ' '.join(sys.modules.keys() & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"  # what sys.exit says of an empty string: no heavy module
    assert "--server-bind" in done.stdout


def test_the_module_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "trio_server", "serve"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "trio-server: `serve` is no command; the commands are help, version and health\n"


class _Answers(BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, bytes]] = {  # noqa: RUF012  # never changed
        "/readyz": (200, b'{"status":"ok"}'),
        "/loading": (503, b'{"status":"loading"}'),
        "/text": (200, b"hello"),
        "/list": (404, b"[]"),
    }

    def do_GET(self) -> None:
        status, body = self.answers[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("", 0, "200 ok"),
        ("/loading", 1, "503 loading"),
        ("/text", 0, "200 no status in the answer"),
        ("/list", 1, "404 "),
    ],
)
def test_health_prints_the_answer(
    address: str, path: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["health", "--url", f"http://{address}{path}"]) == status
    out, err = capsys.readouterr()
    assert out.startswith(f"http://{address}{path or '/readyz'}: {said}")
    assert out.count("\n") == 1
    assert err == ""


def test_health_asks_server_bind_and_no_proxy(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIO_SERVER_SERVER_BIND", address)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert cli.main(["health"]) == 0
    assert capsys.readouterr().out == f"http://{address}/readyz: 200 ok\n"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/readyz", "http://127.0.0.1:nonsense/x", "http://a b/x"])
def test_health_of_nothing_is_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{url}: no answer: ")
    assert out.count("\n") == 1
    assert err == ""
