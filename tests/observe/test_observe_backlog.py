"""The queue between who logs and the thread that writes: what it drops, and what it never drops."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trio_server.observe.events import DEBUG, ERROR, INFO, TRACE, WARN
from trio_server.observe.formatters import Record
from trio_server.observe.log import _Backlog

LEVELS = (TRACE, DEBUG, INFO, WARN, ERROR)


def record(number: int, level: int) -> Record:
    return Record("x", level, str(number), {})


def filled(limit: int, levels: list[int]) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """What a backlog keeps of records of these levels, as (number, level), and what it counts as dropped."""
    backlog = _Backlog(limit)
    for number, level in enumerate(levels):
        backlog.put(record(number, level))
    backlog.close()
    records, dropped, ended = backlog.take()
    assert ended
    return [(int(kept.body), kept.level) for kept in records], dropped


def expected(limit: int, levels: list[int]) -> list[tuple[int, int]]:
    """The policy, written down the slow way."""
    kept: list[tuple[int, int]] = []
    for number, level in enumerate(levels):
        if len(kept) >= limit:
            debug = [entry for entry in kept if entry[1] <= DEBUG]
            info = [entry for entry in kept if entry[1] == INFO]
            if debug:
                kept.remove(debug[0])
            elif level <= DEBUG:
                continue
            elif info:
                kept.remove(info[0])
            elif level <= INFO:
                continue
        kept.append((number, level))
    return kept


@given(st.integers(1, 6), st.lists(st.sampled_from(LEVELS), max_size=40))
def test_the_policy(limit: int, levels: list[int]) -> None:
    kept, dropped = filled(limit, levels)
    assert kept == expected(limit, levels)
    assert Counter(level for _, level in kept) + Counter(dropped) == Counter(levels)
    assert [entry for entry in kept if entry[1] >= WARN] == [
        (number, level) for number, level in enumerate(levels) if level >= WARN
    ]


def test_debug_goes_first_then_info_then_nothing() -> None:
    assert filled(3, [DEBUG, TRACE, INFO, INFO]) == ([(1, TRACE), (2, INFO), (3, INFO)], {DEBUG: 1})
    assert filled(2, [INFO, INFO, DEBUG]) == ([(0, INFO), (1, INFO)], {DEBUG: 1})
    assert filled(2, [INFO, INFO, INFO]) == ([(1, INFO), (2, INFO)], {INFO: 1})
    assert filled(2, [WARN, ERROR, WARN, INFO]) == ([(0, WARN), (1, ERROR), (2, WARN)], {INFO: 1})


def test_what_was_dropped_is_told_once() -> None:
    backlog = _Backlog(1)
    for number in range(3):
        backlog.put(record(number, INFO))
    assert backlog.take()[1] == {INFO: 2}
    backlog.put(record(3, INFO))
    assert backlog.take()[1] == {}


def test_a_full_backlog_costs_its_callers_no_more() -> None:
    backlog = _Backlog()
    some = record(0, INFO)
    for _ in range(8192):
        backlog.put(some)
    started_s = time.perf_counter()
    for _ in range(20_000):
        backlog.put(some)
    assert time.perf_counter() - started_s < 1.0  # a search through the backlog each time took three seconds
