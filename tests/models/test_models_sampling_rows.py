"""Which defaults the absent sampling fields get: sections 9.2 and 9.3 of the chat page."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trio_server.engines.text.engine import Loaded
from trio_server.models.sampling_rows import FALLBACK, NEUTRAL, SamplingRow, model_row, resolve

ROW = SamplingRow(0.7, 0.8, 20, 0.1, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.1)


def row_of(metadata: dict[str, str]) -> SamplingRow:
    loaded = Loaded(None, None, metadata, 1, 1, "", 0)
    return model_row(loaded.sampling_default)


def test_the_fallback_row_of_the_page() -> None:
    assert row_of({}) == FALLBACK == SamplingRow(0.8, 0.95, 40, 0.05, 0.0, 0.0, 1.0)


def test_the_ggufs_own_metadata_goes_first_field_by_field() -> None:
    prefix = "general.sampling."
    assert row_of({prefix + "temp": "0.25", prefix + "top_k": "12"}) == SamplingRow(0.25, 0.95, 12, 0.05)
    assert row_of(
        {prefix + name: value for name, value in [("top_p", "0.5"), ("min_p", "0"), ("penalty_repeat", "1.25")]}
    ) == SamplingRow(0.8, 0.5, 40, 0.0, repetition_penalty=1.25)
    assert row_of({"general.name": "x", "sampling.temp": "0.1"}) == FALLBACK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temp", value) for value in ("", "warm", "nan", "inf", "-0.1", "2.1", "1e400")],
        *[("top_p", value) for value in ("1.01", "-1", "x")],
        *[("top_k", value) for value in ("-1", "1e30", "nan")],
        *[("min_p", value) for value in ("2", "-0.5")],
        *[("penalty_repeat", value) for value in ("0", "-1", "3")],
    ],
)
def test_a_value_no_client_could_ask_for_is_passed_over(name: str, value: str) -> None:
    assert row_of({f"general.sampling.{name}": value}) == FALLBACK


def test_each_absent_field_takes_its_own_default() -> None:
    assert resolve(ROW, {}) == ROW
    assert resolve(ROW, {"top_p": 0.3, "temperature": None}) == SamplingRow(0.7, 0.3, 20, 0.1, 1.5, 0.5, 1.1)
    assert resolve(ROW, {"min_p": 0.0, "top_k": 0}) == SamplingRow(0.7, 0.8, 0, 0.0, 1.5, 0.5, 1.1)


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ({}, {}),
        ({"top_p": 0.5, "top_k": 3, "min_p": 0.2}, {"top_p": 0.5, "top_k": 3, "min_p": 0.2}),
        ({"presence_penalty": 1.0}, {"presence_penalty": 1.0}),
        ({"repetition_penalty": 1.3, "top_k": None}, {"repetition_penalty": 1.3}),
    ],
)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_greedy_takes_nothing_from_the_row(asked: dict[str, Any], changed: dict[str, Any], zero: float) -> None:
    made = resolve(ROW, {"temperature": zero, **asked})
    assert made.temperature == 0
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for name, value in {**neutral, "repetition_penalty": 1.0, **changed}.items():
        assert getattr(made, name) == value


def test_a_row_that_is_greedy_by_itself_is_neutral_too_unless_a_temperature_is_sent() -> None:
    row = row_of({"general.sampling.temp": "0", "general.sampling.top_k": "7"})
    assert resolve(row, {}) == NEUTRAL
    assert resolve(row, {"temperature": 1.0}) == SamplingRow(1.0, 0.95, 7, 0.05)


def test_the_rows_are_finite() -> None:
    for row in (FALLBACK, NEUTRAL):
        assert all(math.isfinite(getattr(row, name)) for name in row.__slots__)
