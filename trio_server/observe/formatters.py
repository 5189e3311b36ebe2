"""A log record as a line: JSON for programs, pretty for a terminal. Section 6.2 of the observability page. Pure."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from trio_server.observe.events import DEBUG, ERROR, INFO, TRACE, WARN
from trio_server.observe.redaction import redact

SEVERITIES: Final = {
    TRACE: ("TRACE", 1),
    DEBUG: ("DEBUG", 5),
    INFO: ("INFO", 9),
    WARN: ("WARN", 13),
    ERROR: ("ERROR", 17),
}
_COLOURS: Final = {TRACE: "2", DEBUG: "2", INFO: "32", WARN: "33", ERROR: "31"}
_STACKTRACE: Final = "exception.stacktrace"


@dataclass(frozen=True, slots=True)
class Record:
    """One event that happened. `time_s` is Unix time; `request_id` 32 hex digits or `None`."""

    name: str
    level: int
    body: str
    attributes: Mapping[str, Any]
    request_id: str | None = None
    time_s: float = field(default_factory=time.time)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else str(value)
    return redact(str(value))


def format_json(record: Record, resource: Mapping[str, str]) -> str:
    """One JSON object on one line. Plain ASCII, so that no reader finds a line's end or half a character in it."""
    severity, number = SEVERITIES[record.level]
    line: dict[str, Any] = {
        "timestamp": datetime.fromtimestamp(record.time_s, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "severity_text": severity,
        "severity_number": number,
        "event_name": record.name,
        "body": redact(record.body),
    }
    attributes = {name: _clean(value) for name, value in record.attributes.items() if value is not None}
    if record.request_id is not None:
        line["trace_id"] = record.request_id
        line["span_id"] = record.request_id[:16]
        attributes["request.id"] = record.request_id
    line["attributes"] = attributes
    line["resource"] = resource
    return json.dumps(line)


def _escape(text: str) -> str:
    """Control characters spelled out, so that no value can start a line of its own or colour the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = _escape(_clean(value) if isinstance(value, str) else str(_clean(value)))
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def format_pretty(record: Record, *, colour: bool) -> str:
    """`HH:MM:SS.mmm LEVEL  body  key=value …` in local time, a traceback on lines of its own."""
    moment = datetime.fromtimestamp(record.time_s).astimezone().strftime("%H:%M:%S.%f")[:-3]
    severity = f"{SEVERITIES[record.level][0]:<5}"
    if colour:
        severity = f"\x1b[{_COLOURS[record.level]}m{severity}\x1b[0m"
    pairs = [
        f"{name}={_show(value)}"
        for name, value in record.attributes.items()
        if value is not None and value != "" and name != _STACKTRACE
    ]
    if record.request_id is not None:
        pairs.append(f"request={record.request_id[:8]}")
    line = "  ".join([f"{moment} {severity} {_escape(redact(record.body))}", *([" ".join(pairs)] if pairs else [])])
    trace = record.attributes.get(_STACKTRACE)
    if trace:
        lines = redact(str(trace)).rstrip("\n").split("\n")
        line += "".join(f"\n    {_escape(entry)}" for entry in lines)
    return line
