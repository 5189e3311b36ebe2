"""The log as a whole: events in, lines out."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.observe.capture import written
from trio_server.observe import events, log
from trio_server.observe.log import LogOptions

SECRETS = ["Bearer CANARY01", "sk-CANARY0123", "hf_CANARYabcdef", "data:image/png;base64,CANARYiVBOR"]
LIBRARY = logging.getLogger("some.library")


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event_name"].removeprefix("trio_server.") for line in lines]


# Events


def test_what_is_written_is_what_was_emitted_in_order(tmp_path: Path) -> None:
    with written(tmp_path) as lines:
        log.emit(events.PROCESS_STARTED, version="1", bind="h:1", api_key_required=False, log_format="json")
        log.emit(events.REQUEST_DONE, duration_ms=12.5, tokens=3, request_class="agent")
    assert names(lines) == ["process.started", "request.done"]
    assert lines[0]["body"] == "server started"
    assert lines[1]["attributes"] == {"duration_ms": 12.5, "tokens": 3, "class": "agent"}
    assert lines[0]["resource"] == lines[1]["resource"]
    assert set(lines[0]["resource"]) == {"service.name", "service.version", "service.instance.id"}


def test_opentelemetrys_names_are_used(tmp_path: Path) -> None:
    with written(tmp_path, level="debug") as lines:
        log.emit(events.HTTP_REQUEST, method="GET", route="/v1/models", http_status=200, duration_ms=1.0)
    assert lines[0]["attributes"] == {
        "http.request.method": "GET",
        "http.route": "/v1/models",
        "http.response.status_code": 200,
        "duration_ms": 1.0,
    }


def test_an_attribute_that_is_not_declared_is_an_error(tmp_path: Path) -> None:
    with (
        written(tmp_path) as lines,
        pytest.raises(TypeError, match=r"trio_server.request.ttft has no attribute 'prompt'"),
    ):
        log.emit(events.REQUEST_TTFT, prompt="secret")
    assert lines == []


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("error", ["engine.failed"]),
        ("WARN", ["access.open_bind", "engine.failed"]),
        ("info", ["process.ready", "access.open_bind", "engine.failed"]),
        ("debug", ["http.request", "process.ready", "access.open_bind", "engine.failed"]),
        ("trace", ["http.request", "process.ready", "access.open_bind", "engine.failed"]),
    ],
)
def test_levels(tmp_path: Path, level: str, expected: list[str]) -> None:
    with written(tmp_path, level=level) as lines:
        for event in (events.HTTP_REQUEST, events.PROCESS_READY, events.ACCESS_OPEN_BIND, events.ENGINE_FAILED):
            log.emit(event)
    assert names(lines) == expected


def test_the_level_changes_while_the_log_runs(tmp_path: Path) -> None:
    with written(tmp_path) as lines:
        log.emit(events.HTTP_REQUEST, route="/before")
        LIBRARY.debug("before")
        log.set_level("debug")
        log.emit(events.HTTP_REQUEST, route="/after")
        LIBRARY.debug("after")
        log.set_level("error")
        log.emit(events.ACCESS_OPEN_BIND)
        LIBRARY.warning("too late")
    assert [line["attributes"].get("http.route") or line["body"] for line in lines] == ["/after", "after"]


def test_requests_off_silences_the_lines_about_requests_alone(tmp_path: Path) -> None:
    with written(tmp_path, requests=False) as lines:
        for event in (events.REQUEST_ADMITTED, events.REQUEST_TTFT, events.REQUEST_DONE):
            log.emit(event)
        log.emit(events.REQUEST_CANCELLED, reason="deadline")
        log.emit(events.REQUEST_REJECTED, status=503)
        log.emit(events.PROCESS_READY)
        log.emit_exception(events.REQUEST_FAILED, ValueError("x"))
    assert names(lines) == ["process.ready", "request.failed"]


def test_without_a_running_log_nothing_happens() -> None:
    log.emit(events.ENGINE_FAILED, engine="text")
    log.dependency("x", "error", "y")
    log.set_level("debug")
    log.emit(events.ENGINE_FAILED, engine="text")


# Request ids


async def test_the_id_of_a_request_follows_its_tasks_and_threads(tmp_path: Path) -> None:
    async def request(id: str, nursery: trio.Nursery) -> None:
        log.request_id.set(id)
        log.emit(events.REQUEST_ADMITTED, endpoint=id)
        nursery.start_soon(child, id)
        await trio.to_thread.run_sync(lambda: log.emit(events.REQUEST_DONE, finish_reason=id))

    async def child(id: str) -> None:
        log.emit(events.REQUEST_TTFT)
        await trio.lowlevel.checkpoint()

    ids = [log.new_request_id() for _ in range(3)]
    with written(tmp_path) as lines:
        async with trio.open_nursery() as nursery:
            for id in ids:
                nursery.start_soon(request, id, nursery)
        log.emit(events.PROCESS_READY)
    for id in ids:
        assert sorted(names([line for line in lines if line.get("trace_id") == id])) == [
            "request.admitted",
            "request.done",
            "request.ttft",
        ]
    assert "trace_id" not in lines[-1]


def test_ids_are_w3c_trace_ids() -> None:
    made = {log.new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") and int(id, 16) for id in made)


# Secrets


@pytest.mark.parametrize("format", ["json", "pretty"])
@pytest.mark.parametrize("secret", SECRETS)
def test_no_way_into_the_log_lets_a_secret_through(tmp_path: Path, secret: str, format: str) -> None:
    path = tmp_path / "log"
    with log.running(LogOptions(level="trace", format=format, path=str(path))):
        log.emit(events.PROCESS_STARTED, version=secret, bind=[secret])
        log.dependency("llama.cpp", "error", f"cannot open {secret}")
        LIBRARY.error("refused %s", secret)
        LIBRARY.debug("headers: %r", [("authorization", f"\n{secret}")])
        try:
            raise ValueError(f"bad value {secret!r}")
        except ValueError as error:
            log.emit_exception(events.REQUEST_FAILED, error)
            LIBRARY.exception("while serving")
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) >= 6
    assert "CANARY" not in text
    assert text.count("[redacted]") >= 7


# Exceptions


def failing(message: str) -> Exception:
    local_value = "CANARY in a local"  # noqa: F841 - what a traceback must not show
    try:
        try:
            raise KeyError(message)
        except KeyError as error:
            raise RuntimeError(message) from error
    except RuntimeError as error:
        return error


def test_an_exception_is_described_without_locals_and_with_its_messages_cut(tmp_path: Path) -> None:
    with written(tmp_path) as lines:
        log.emit_exception(events.ENGINE_FAILED, failing("x" * 400 + "y" * 4000), engine="text")
    attributes = lines[0]["attributes"]
    assert attributes["engine"] == "text"
    assert attributes["exception.type"] == "RuntimeError"
    assert attributes["exception.message"] == "x" * 400 + "y" * 100
    trace = attributes["exception.stacktrace"]
    assert "CANARY" not in trace
    assert trace.count("y") < 300
    assert trace.index("KeyError: ") < trace.index("direct cause") < trace.index("RuntimeError: ")
    assert trace.count("Traceback (most recent call last):") == 2
    assert "in failing" in trace


def test_a_group_is_described_with_its_members(tmp_path: Path) -> None:
    cut = "z" * 4000
    group = ExceptionGroup("two", [failing("first"), ExceptionGroup("inner", [ValueError(cut), OSError("last\nline")])])
    with written(tmp_path) as lines:
        log.emit_exception(events.ENGINE_FAILED, group, engine="text")
    trace = lines[0]["attributes"]["exception.stacktrace"]
    for part in (
        "two (2 sub-exceptions)",
        "RuntimeError: first",
        "inner (2 sub-exceptions)",
        "OSError: last",
        "    line",
    ):
        assert part in trace
    assert trace.count("z") <= 500
    assert trace.count("member 1:") == 2


def test_exceptions_that_go_round_in_circles_or_have_no_message_are_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    first, second = ValueError("first"), ValueError()
    first.__cause__, second.__context__ = second, first
    assert log.stacktrace_of(first).count("ValueError") == 2
    assert log.message_of(Mute()) == "<no message: str() failed>"
    deep: BaseException = ValueError("deepest")
    for _ in range(2000):
        outer = ValueError("outer")
        outer.__cause__ = deep
        deep = outer
    assert len(log.stacktrace_of(deep)) < 10_000


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    group = ExceptionGroup("many", [failing("x" * 500) for _ in range(15)] + [KeyError("the last")])
    trace = log.stacktrace_of(group)
    assert len(trace) <= 16385
    assert trace.endswith("KeyError: 'the last'\n")


def while_handling(*, put_away: bool) -> Exception:
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            error = ValueError("outer")
            error.__suppress_context__ = put_away
            raise error  # noqa: B904 - the context is what this is about
    except ValueError as caught:
        return caught


def test_a_context_is_told_unless_it_was_put_away() -> None:
    assert "KeyError" not in log.stacktrace_of(while_handling(put_away=True))
    assert "During handling" in log.stacktrace_of(while_handling(put_away=False))


# Libraries


def test_libraries_speak_in_the_same_stream(tmp_path: Path) -> None:
    with written(tmp_path) as lines:
        LIBRARY.info("of no interest")
        LIBRARY.warning("with %s", "care")
        LIBRARY.critical("too late")
        log.dependency("llama.cpp", "info", "loading")
        log.dependency("llama.cpp", "warn", "slow")
    assert [(line["severity_text"], line["body"], line["attributes"]["dependency.name"]) for line in lines] == [
        ("WARN", "with care", "some.library"),
        ("ERROR", "too late", "some.library"),
        ("WARN", "slow", "llama.cpp"),
    ]
    with written(tmp_path, level="trace") as lines:
        LIBRARY.info("of some interest")
        log.dependency("llama.cpp", "trace", "tensor")
        log.dependency("llama.cpp", "unheard of", "loading")
    assert [(line["severity_text"], line["body"]) for line in lines] == [
        ("DEBUG", "of some interest"),
        ("TRACE", "tensor"),
        ("DEBUG", "loading"),
    ]


class Hostile:
    def __str__(self) -> str:
        raise OSError("no text")


@pytest.mark.parametrize(
    ("layout", "values"), [("%d", ("x",)), ("%s %s", (1,)), ("%(a)s", ({"b": 1},)), ("%s", (Hostile(),))]
)
def test_a_librarys_broken_call_neither_raises_nor_is_lost(
    tmp_path: Path, layout: str, values: tuple[Any, ...]
) -> None:
    with written(tmp_path) as lines:
        LIBRARY.warning(layout, *values)
    assert "cannot be formatted" in lines[0]["body"]
    assert "test_observe_log.py" in lines[0]["body"]


def test_a_librarys_exception_is_named_with_its_message_cut(tmp_path: Path) -> None:
    with written(tmp_path) as lines:
        try:
            raise ValueError("v" * 4000)
        except ValueError:
            LIBRARY.exception("while serving")
        LIBRARY.error("w" * 10_000)
    assert lines[0]["body"] == "while serving: ValueError: " + "v" * 500
    assert len(lines[1]["body"]) == 2000


def test_the_standard_librarys_logging_is_as_before_afterwards(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    with written(tmp_path, level="debug"):
        assert root.handlers != before[1]
    assert (root.level, root.handlers) == before


# Streams


class Stream(io.StringIO):
    """Standard output as a test wants it: a terminal or not, stuck, or failing."""

    def __init__(self, *, terminal: bool = False, error: Exception | None = None) -> None:
        super().__init__()
        self.terminal, self.error = terminal, error
        self.let_through = threading.Event()
        self.let_through.set()
        self.writing = threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.writing.set()
        self.let_through.wait()
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    ("format", "terminal", "pretty"),
    [("auto", False, False), ("auto", True, True), ("json", True, False), ("pretty", False, True)],
)
def test_the_format_and_where_announcements_go(
    monkeypatch: pytest.MonkeyPatch, format: str, terminal: bool, pretty: bool
) -> None:
    out, err = Stream(terminal=terminal), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with log.running(LogOptions(format=format)):
        log.announce("trio-server ready: http://h/v1")
        log.emit(events.PROCESS_READY, url="http://h/v1")
    line = next(line for line in out.getvalue().splitlines() if "ready:" not in line)
    assert line.startswith("{") != pretty
    assert "trio-server ready: http://h/v1\n" in (out if pretty else err).getvalue()
    assert "trio-server ready" not in (err if pretty else out).getvalue()


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, None, True), (True, "1", False), (False, None, False)]
)
def test_colour_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, no_color: str | None, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    out = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with log.running(LogOptions(format="pretty")):
        log.emit(events.PROCESS_READY)
    assert ("\x1b[" in out.getvalue()) == coloured


@pytest.mark.parametrize("stream", [None, "closed", OSError("gone"), ValueError("closed")])
def test_a_closed_standard_output_stops_the_log_and_nothing_else(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    out = Stream(error=stream) if isinstance(stream, Exception) else None
    if stream == "closed":
        out = Stream()
        out.close()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    with log.running(LogOptions(format="auto")):
        for _ in range(3):
            log.emit(events.PROCESS_READY)
            log.announce("ready")
    with log.running(LogOptions(format="pretty")):
        log.emit(events.PROCESS_READY)
        log.announce("ready")


@pytest.mark.parametrize("format", ["json", "pretty"])
def test_a_value_that_cannot_be_encoded_or_shown_does_not_end_the_log(
    monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with log.running(LogOptions(format=format)):
        log.emit(events.PROCESS_READY, url="caf\xe9 \U0001f600 \udcff \u2028")
        log.emit(events.PROCESS_READY, url=Hostile())
        log.emit(events.PROCESS_READY, url="last")
    lines = raw.getvalue().decode("ascii").splitlines()
    assert len(lines) == 3
    assert "OSError" in lines[1]
    assert "last" in lines[2]
    if format == "json":
        assert json.loads(lines[0])["attributes"]["url"] == "caf\xe9 \U0001f600 \udcff \u2028"


def test_the_end_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Stream()
    out.let_through.clear()
    monkeypatch.setattr(sys, "stdout", out)
    with log.running(LogOptions(format="json")):
        log.emit(events.PROCESS_READY)
        out.writing.wait(5)
        for _ in range(1000):
            log.emit(events.PROCESS_READY)
        out.let_through.set()
    assert len(out.getvalue().splitlines()) == 1001


def test_the_end_waits_for_a_stuck_reader_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FLUSH_LIMIT_S", 0.05)
    out = Stream()
    out.let_through.clear()
    monkeypatch.setattr(sys, "stdout", out)
    started_s = time.monotonic()
    with log.running(LogOptions(format="json")):
        log.emit(events.PROCESS_READY)
        out.writing.wait(5)
    assert time.monotonic() - started_s < 2
    out.let_through.set()


def test_what_a_stuck_reader_made_the_log_drop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Stream()
    out.let_through.clear()
    monkeypatch.setattr(sys, "stdout", out)
    extra = 5
    with log.running(LogOptions(format="json")):
        log.emit(events.PROCESS_READY)
        out.writing.wait(5)  # the first record is in the writer's hands, the queue is empty
        for _ in range(log.QUEUE_RECORDS + extra):
            log.emit(events.PROCESS_READY)
        log.emit(events.ACCESS_OPEN_BIND)
        out.let_through.set()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 1 + log.QUEUE_RECORDS + 1
    assert lines[-2]["event_name"] == "trio_server.access.open_bind"
    assert lines[-1]["event_name"] == "trio_server.log.dropped"
    assert lines[-1]["attributes"] == {"count": extra + 1, "severity": "info"}


def test_a_file_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with log.running(LogOptions(path=str(path))):
        log.emit(events.PROCESS_READY)
    first, second = path.read_text().splitlines()
    assert first == "before"
    assert json.loads(second)["event_name"] == "trio_server.process.ready"


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor")
@pytest.mark.parametrize("redirection", ["1>&-", "1>&- 2>&-", "| true"])
def test_a_process_whose_standard_output_is_gone_runs_to_its_end(tmp_path: Path, redirection: str) -> None:
    program = (
        "from trio_server.observe import events, log\n"
        "with log.running(log.LogOptions()):\n"
        "    for _ in range(100): log.emit(events.PROCESS_READY)\n"
        "    log.announce('ready')\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    command = f'{sys.executable} -c "$PROGRAM" {redirection}'
    subprocess.run(
        ["sh", "-c", command], env={**os.environ, "PROGRAM": program}, check=False, timeout=30, capture_output=True
    )
    assert (tmp_path / "done").exists()


# Cost


def test_a_disabled_event_costs_next_to_nothing(tmp_path: Path) -> None:
    with written(tmp_path):
        started_s = time.perf_counter()
        for _ in range(100_000):
            log.emit(events.HTTP_REQUEST, route="/v1/models", http_status=200)
        each_s = (time.perf_counter() - started_s) / 100_000
    assert each_s < 5e-6  # about 0.2 µs on an idle machine
