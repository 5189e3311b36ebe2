"""The arithmetic of `Retry-After`: section 21 of the chat page, to the digit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.admission import HoldAverage, retry_after_s

averages = st.floats(0, 1e6)
ages = st.floats(0, 1e6)
starts = st.floats(0, 1e7)


@pytest.mark.parametrize("started_s", [0.0, 1.1, 123456.789, 1e7 + 1 / 3])
@pytest.mark.parametrize(
    ("average_s", "age_s", "wait_s"),
    [
        (None, 0.0, 1),
        (None, 1000.0, 1),
        (4.0, 0.0, 5),
        (4.0, 1.2, 4),
        (4.0, 3.0, 2),
        (4.0, 3.999, 2),
        (4.0, 4.0, 5),
        (4.0, 9.0, 5),
        (0.3, 0.0, 2),
        (0.3, 0.4, 2),
        (12.4, 0.5, 13),
        (12.4, 20.0, 14),
        (14.2, 30.0, 16),
        (15.01, 30.0, 16),
        (58.0, 0.0, 59),
        (58.2, 0.0, 60),
        (240.0, 0.0, 60),
        (240.0, 181.5, 60),
        (240.0, 238.6, 3),
        (240.0, 250.0, 16),
    ],
)
def test_the_table_of_the_page_at_any_time(
    started_s: float, average_s: float | None, age_s: float, wait_s: int
) -> None:
    assert retry_after_s(started_s + age_s, started_s, average_s) == wait_s


def test_the_average_of_the_page() -> None:
    average = HoldAverage()
    assert average.value_s is None
    values = []
    for hold_s in (8, 16, 4, 0.2, 120):
        average.record(hold_s)
        values.append(average.value_s)
    assert values == pytest.approx([8, 9, 8.375, 7.353125, 21.433984375], abs=1e-12)


@given(starts, ages, averages)
def test_the_bounds(start_s: float, age_s: float, average_s: float) -> None:
    now_s = start_s + age_s
    wait_s = retry_after_s(now_s, start_s, average_s)
    assert isinstance(wait_s, int)
    if round(start_s + average_s - now_s, 6) > 0:
        assert 2 <= wait_s <= 60
    else:
        assert 2 <= wait_s <= 16
        assert wait_s == math.ceil(max(min(average_s, 15.0), 1.0)) + 1


@given(starts, averages, st.floats(0, 100), st.floats(0, 100))
def test_while_it_is_due_waiting_makes_the_wait_no_longer(
    start_s: float, average_s: float, first_s: float, second_s: float
) -> None:
    early_s, late_s = sorted((first_s, second_s))
    if late_s < average_s - 1e-5:
        early = retry_after_s(start_s + early_s, start_s, average_s)
        assert retry_after_s(start_s + late_s, start_s, average_s) <= early


@pytest.mark.parametrize(
    ("start_s", "average_s", "now_s", "wait_s"),
    [
        (0.1, 0.2, 0.3, 2),  # 0.1 + 0.2 - 0.3 is 5.6e-17 in floats: overdue, not due
        (1000.1, 4.0, 1001.1, 4),  # 3.0000000000000 and a little: 3, not 4
        (0.0, 3.0000004, 0.0, 4),  # under half a microsecond is noise
        (0.0, 3.000001, 0.0, 5),  # a microsecond is not
        (0.0, 4e-7, 0.0, 2),  # rounds to nothing left: overdue
        (0.0, 0.0, 0.0, 2),
    ],
)
def test_rounding_to_the_microsecond(start_s: float, average_s: float, now_s: float, wait_s: int) -> None:
    assert retry_after_s(now_s, start_s, average_s) == wait_s


@pytest.mark.parametrize("average_s", [math.inf, 1e300])
def test_an_absurd_average_is_the_longest_wait(average_s: float) -> None:
    assert retry_after_s(0.0, 0.0, average_s) == 60


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_the_average_stays_among_the_holds(holds_s: list[float]) -> None:
    average = HoldAverage()
    for hold_s in holds_s:
        average.record(hold_s)
    assert average.value_s is not None
    assert min(holds_s) - 1e-6 <= average.value_s <= max(holds_s) + 1e-6
