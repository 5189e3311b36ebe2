"""A record as a line."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.observe.events import DEBUG, ERROR, INFO, TRACE, WARN
from trio_server.observe.formatters import Record, format_json, format_pretty

RESOURCE = {"service.name": "trio_server", "service.version": "1", "service.instance.id": "0123"}
ID = "0af7651916cd43dd8448eb211c80319c"
SECRET = "sk-canary0123456789"

values = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Cs", "Lu"])),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(st.text()),
)
attributes = st.dictionaries(st.sampled_from(["a", "b", "model", "exception.stacktrace"]), values)


def record(level: int = INFO, **fields: Any) -> Record:
    return Record(**{"name": "trio_server.x", "level": level, "body": "it happened", "attributes": {}, **fields})


def test_the_fields_of_a_json_line() -> None:
    moment = datetime(2026, 3, 4, 5, 6, 7, 891234, UTC).timestamp()
    made = format_json(
        record(attributes={"duration_ms": 12.34567, "tokens": 3, "stream": True}, time_s=moment), RESOURCE
    )
    assert json.loads(made) == {
        "timestamp": "2026-03-04T05:06:07.891234Z",
        "severity_text": "INFO",
        "severity_number": 9,
        "event_name": "trio_server.x",
        "body": "it happened",
        "attributes": {"duration_ms": 12.346, "tokens": 3, "stream": True},
        "resource": RESOURCE,
    }


@pytest.mark.parametrize(
    ("level", "text", "number"),
    [(TRACE, "TRACE", 1), (DEBUG, "DEBUG", 5), (INFO, "INFO", 9), (WARN, "WARN", 13), (ERROR, "ERROR", 17)],
)
def test_severities_are_opentelemetrys(level: int, text: str, number: int) -> None:
    line = json.loads(format_json(record(level), RESOURCE))
    assert (line["severity_text"], line["severity_number"]) == (text, number)
    assert f" {text}" in format_pretty(record(level), colour=False)


def test_inside_a_request_the_id_is_the_trace_id() -> None:
    line = json.loads(format_json(record(request_id=ID), RESOURCE))
    assert line["trace_id"] == line["attributes"]["request.id"] == ID
    assert line["span_id"] == ID[:16]
    assert f"request={ID[:8]}" in format_pretty(record(request_id=ID), colour=False)
    outside = json.loads(format_json(record(), RESOURCE))
    assert not {"trace_id", "span_id"} & set(outside)
    assert "request.id" not in outside["attributes"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_a_word(value: float) -> None:
    assert f'"a": "{value}"' in format_json(record(attributes={"a": value}), RESOURCE)


def test_an_attribute_that_is_none_is_absent() -> None:
    assert json.loads(format_json(record(attributes={"a": None, "b": 0}), RESOURCE))["attributes"] == {"b": 0}
    assert format_pretty(record(attributes={"a": None, "b": 0}), colour=False).endswith("it happened  b=0")


@given(st.text(), attributes)
def test_any_record_is_one_line_of_json(body: str, some: dict[str, Any]) -> None:
    made = format_json(record(body=body, attributes=some), RESOURCE)

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    line = json.loads(made.encode("utf-8"), parse_constant=no_constant)
    assert made.splitlines() == [made]
    assert set(line["attributes"]) == {name for name, value in some.items() if value is not None}


@given(st.text(), attributes)
def test_no_value_forges_a_line_or_colours_the_terminal(body: str, some: dict[str, Any]) -> None:
    made = format_pretty(record(body=body, attributes=some), colour=False)
    made.encode("utf-8")
    first, *others = made.split("\n")
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} INFO  ", first)
    assert all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in (first, *others))
    if not some.get("exception.stacktrace"):
        assert not others


def test_the_shape_of_a_pretty_line() -> None:
    local = datetime.now().astimezone().replace(hour=5, minute=6, second=7, microsecond=8000)
    made = format_pretty(
        record(
            attributes={"url": "http://h/v1", "ms": 1.25, "said": "two words", "none": ""}, time_s=local.timestamp()
        ),
        colour=False,
    )
    assert made == '05:06:07.008 INFO  it happened  url=http://h/v1 ms=1.2 said="two words"'


def test_a_traceback_is_on_lines_of_its_own_and_escaped() -> None:
    made = format_pretty(record(attributes={"exception.stacktrace": "File x\n  line\x1b[31m\n"}), colour=False)
    assert made.split("\n")[1:] == ["    File x", r"      line\x1b[31m"]


def test_colour_is_around_the_severity_alone() -> None:
    made = format_pretty(record(WARN, attributes={"a": "\x1b[0m"}), colour=True)
    assert re.findall("\x1b[^m]*m", made) == ["\x1b[33m", "\x1b[0m"]
    assert "\x1b" not in format_pretty(record(WARN), colour=False)


@pytest.mark.parametrize("where", ["body", "text", "list", "stacktrace"])
def test_secrets_are_masked_wherever_they_are(where: str) -> None:
    some: dict[str, Any] = {"text": SECRET, "list": [f"Bearer {SECRET}"], "stacktrace": f"KeyError: '{SECRET}'"}
    name = "exception.stacktrace" if where == "stacktrace" else where
    made = record(body=SECRET) if where == "body" else record(attributes={name: some[where]})
    for line in (format_json(made, RESOURCE), format_pretty(made, colour=False)):
        assert "[redacted]" in line
        assert "canary" not in line
