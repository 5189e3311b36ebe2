"""The last filter, and the limiter of repeated events."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.observe.redaction import MASK, RateLimitedByKey, redact


@pytest.mark.parametrize(
    "secret",
    [
        "Bearer CANARY",
        "bearer   CANARY0.CANARY1/CANARY2+=",
        "BEARER\tCANARY",
        "sk-CANARY0123",
        "sk-proj-CANARY_0123-4567",
        "sk-trio-" + "CANARY" * 12,
        "SK_CANARY123",
        "hf_CANARYabcdef",
        "data:image/png;base64,CANARYiVBORw0KGgo=",
        "data:image/svg+xml;charset=utf-8;x=y,CANARY%3Csvg",
        "data:text/plain,CANARY",
        "data:;base64,CANARY",
        "data:,CANARY",
        "DATA:application/octet-stream,CANARY",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "({})", "key={}", '"{}"', "'{}'", "a: {}, b", "Authorization: {}\nHost: x", "/{}/"]
)
def test_masked(secret: str, around: str) -> None:
    masked = redact(around.format(secret))
    assert "CANARY" not in masked
    assert masked.startswith(around.partition("{}")[0] + MASK)


@pytest.mark.parametrize("secret", ["Bearer CANARY", "sk-CANARY0123", "hf_CANARYabcdef", "data:text/plain,CANARY"])
@pytest.mark.parametrize("before", ["\n", "\t", "\0", "\x1f", "\u2028", " ", ","])
def test_masked_behind_an_escape(secret: str, before: str) -> None:
    for text in (
        repr("x" + before + secret),
        json.dumps("x" + before + secret),
        "x?" + quote(before + secret, safe=",:/"),
    ):
        assert "CANARY" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "server ready",
        "a task-scheduler-thread and a risk_assessment_x",
        "sk-short, hf_up",
        "the bearer",
        "metadata: a/b",
        "data: {...}",
        "data:image/png without a comma",
        "http://127.0.0.1:8000/v1",
        "disk-usage hfs_plus desk_top_items",
    ],
)
def test_left_alone(text: str) -> None:
    assert redact(text) == text


@given(st.text(), st.text())
def test_any_text_can_be_looked_at_twice(before: str, after: str) -> None:
    once = redact(f"{before} sk-CANARY0123 {after}")
    assert "CANARY" not in once.replace(before, "").replace(after, "")
    assert redact(once) == once or MASK in once


@pytest.mark.parametrize(
    "piece",
    ["data:", "data:;", "data:a/", "data:a/a;", "bearer ", "bearer +", "sk-", "sk-a", "\\n", "%20", "Bearer\\n"],
)
def test_hostile_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    started_s = time.perf_counter()
    redact(text)
    assert time.perf_counter() - started_s < 1.0


def test_one_event_per_key_and_interval_stands_for_those_held_back() -> None:
    limiter = RateLimitedByKey(every_s=10.0)
    assert limiter.admit("a", 0.0) == 1
    assert [limiter.admit("a", second) for second in (1.0, 5.0, 9.99)] == [None] * 3
    assert limiter.admit("b", 5.0) == 1
    assert limiter.admit("a", 10.0) == 4
    assert limiter.admit("a", 19.0) is None
    assert limiter.admit("a", 100.0) == 2
    assert limiter.admit("b", 100.0) == 1


def test_the_limiter_forgets_who_was_admitted_longest_ago() -> None:
    limiter = RateLimitedByKey(every_s=10.0, most_keys=2)
    for key in ("a", "b", "c"):
        assert limiter.admit(key, 0.0) == 1
    assert limiter.admit("c", 1.0) is None
    assert limiter.admit("a", 1.0) == 1  # forgotten, so it counts as new


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), max_size=60))
def test_every_event_is_counted_once(steps: list[tuple[str, int]]) -> None:
    limiter = RateLimitedByKey(every_s=10.0)
    now_s, told = 0, 0
    for key, wait_s in steps:
        now_s += wait_s
        told += limiter.admit(key, now_s) or 0
    for key in {key for key, _ in steps}:
        told += (limiter.admit(key, now_s + 10.0) or 0) - 1
    assert told == len(steps)


def test_the_limiters_own_clock() -> None:
    limiter = RateLimitedByKey(every_s=3600.0)
    assert limiter.admit("a") == 1
    assert limiter.admit("a") is None
