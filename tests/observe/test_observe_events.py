"""The declarations of events, their callers all over the package, and the page about them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_server.observe import events
from trio_server.observe.events import DEBUG, ERROR, EVENTS, INFO, WARN, Event

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"DEBUG": DEBUG, "INFO": INFO, "WARN": WARN, "ERROR": ERROR}
NAMED = {name: value for name, value in vars(events).items() if isinstance(value, Event)}

# Section 6.4 of the observability page, as far as this version has the events: level and attributes that the page names.
PAGE = {
    "process.started": ("INFO", "version bind api_key_required log_format"),
    "process.ready": ("INFO", "startup_ms url"),
    "process.stopping": ("INFO", "signal in_flight"),
    "process.draining": ("INFO", "remaining"),
    "process.stopped": ("INFO", "drained cut uptime_ms"),
    "access.open_bind": ("WARN", "bind"),
    "auth.refused": ("WARN", "http.route client.address reason"),
    "http.request": ("DEBUG", "http.request.method http.route http.response.status_code duration_ms"),
    "request.admitted": ("INFO", "endpoint gen_ai.request.model class prompt_tokens cached_tokens"),
    "request.ttft": ("INFO", "ttft_ms"),
    "request.done": (
        "INFO",
        "duration_ms tokens tok_s finish_reason itl_ms_mean itl_ms_max class cached_tokens",
    ),
    "request.cancelled": ("INFO", "reason tokens duration_ms"),
    "request.rejected": ("INFO", "reason status retry_after_s"),
    "request.failed": ("ERROR", "exception.type exception.message exception.stacktrace"),
    "model.load.started": ("INFO", "model kind"),
    "model.loaded": ("INFO", "model kind duration_ms memory_bytes adapted context lanes"),
    "model.load.failed": ("ERROR", "model kind reason"),
    "engine.failed": ("ERROR", "engine exception.type exception.message exception.stacktrace"),
    "log.dropped": ("WARN", "count severity"),
    "dependency.log": ("DEBUG", "dependency.name"),
}


@pytest.mark.parametrize("name", PAGE)
def test_an_event_is_as_the_page_has_it(name: str) -> None:
    level, attributes = PAGE[name]
    event = EVENTS[f"trio_server.{name}"]
    assert event.level == LEVELS[level]
    assert set(attributes.split()) <= set(event.attributes.values())


def test_every_declaration_is_registered_once_and_well_formed() -> None:
    assert list(EVENTS.values()) == list(NAMED.values())
    for event in EVENTS.values():
        assert re.fullmatch(r"trio_server(\.[a-z_]+)+", event.name)
        assert event.body
        assert len(set(event.attributes.values())) == len(event.attributes)
        assert event.about_requests <= event.name.startswith("trio_server.request.")


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "trio_server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("emit", "emit_exception")
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def events_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return events_of(node.body) + events_of(node.orelse)
    assert isinstance(node, ast.Attribute)
    return [node.attr]


def test_every_call_gives_declared_attributes_only() -> None:
    """`emit` looks at them only when the level is on, so a wrong one could hide until somebody turns the level on."""
    found = list(calls())
    assert len(found) > 10
    for where, call in found:
        for name in events_of(call.args[0]):
            given = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            assert given <= set(NAMED[name].attributes), f"{where}: {name}"


def test_the_page_for_operators_has_every_event() -> None:
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([A-Z]+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == list(EVENTS)
    for name, level, _, attributes in rows:
        event = EVENTS[name]
        assert LEVELS[level] == event.level
        assert re.findall("`([^`]+)`", attributes) == list(event.attributes.values())
