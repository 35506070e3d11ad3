# SPDX-License-Identifier: Apache-2.0
"""Joins of columns in C against the plain way to do the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.native import flatten
from gpucorrelate.correlator.native.columns import Keyed, latest

_IDS = st.one_of(st.integers(0, 4), st.sampled_from((0, 1 << 63, (1 << 64) - 1)))
_PAIRS = st.lists(st.tuples(st.integers(0, 3), _IDS), max_size=40)
_INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)
_LEAST = np.iinfo(np.int64).min


def _keys(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    groups = np.array([group for group, _ in pairs], np.int64)
    return groups, np.array([one for _, one in pairs], np.uint64)


@given(_PAIRS, _PAIRS)
def test_rows_are_found_by_group_and_id(
    have: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    keyed = Keyed(*_keys(have))
    first, last = keyed.find(*_keys(wanted))
    for pair, low, high in zip(wanted, first.tolist(), last.tolist(), strict=True):
        found = keyed.order[low:high].tolist()
        assert found == [row for row, one in enumerate(have) if one == pair]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_one_more_key_keeps_every_stretch_in_its_place(rows: list[tuple[int, int, int]]) -> None:
    keyed = Keyed(*_keys([(group, one) for group, one, _ in rows]))
    least = np.array([key for _, _, key in rows], np.int64)
    order = keyed.with_least(least)
    by_stretch = [(rows[row][0], rows[row][1]) for row in keyed.order.tolist()]
    assert [(rows[row][0], rows[row][1]) for row in order.tolist()] == by_stretch
    assert order.tolist() == sorted(range(len(rows)), key=lambda r: (*rows[r], r))


@given(st.data())
def test_latest_is_what_ended_last_of_those_before(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 12))
    start = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    end = [s + data.draw(st.integers(0, 9)) for s in start]
    lists = [
        data.draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n))
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    columns = [np.array(one, np.int64) for one in lists]
    best, second = latest(np.array(start, np.int64), np.array(end, np.int64), *columns)
    for row in range(n):
        # One that several lists name is one candidate; of equal ends the first list's counts.
        named = dict.fromkeys(one[row] for one in lists)
        able = [c for c in named if c >= 0 and (start[c], c) < (start[row], row)]
        ends = {c: min(end[c], start[row]) for c in able}
        chosen = max(able, key=lambda c: ends[c], default=-1)
        others = [ends[c] for c in able if c != chosen]
        assert best[row] == chosen
        assert second[row] == max(others, default=_LEAST)


@given(st.lists(_INTERVALS, max_size=4))
def test_the_innermost_interval_of_a_thread_wins(threads: list[list[tuple[int, int]]]) -> None:
    rows: list[tuple[int, int]] = []
    off = [0]
    for intervals in threads:
        rows += sorted(((s, s + n) for s, n in intervals), key=lambda r: (r[0], -r[1]))
        off.append(len(rows))
    start, end = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    bounds, low, high, row = flatten(np.array(off, np.int64), start, end)
    for thread, (a, b) in enumerate(itertools.pairwise(off)):
        pieces = range(int(bounds[thread]), int(bounds[thread + 1]))
        held = {t: int(row[p]) for p in pieces for t in range(int(low[p]), int(high[p]))}
        assert held == _innermost(rows, a, b)


def _innermost(rows: list[tuple[int, int]], a: int, b: int) -> dict[int, int]:
    """Who holds each unit of time: of those open the last to begin, each cut to its parent."""
    held: dict[int, int] = {}
    stack: list[tuple[int, int]] = []
    for t in range(64):
        stack = [one for one in stack if one[1] > t]
        for row in range(a, b):
            start, end = rows[row]
            if start == t < end:
                stack.append((row, min(end, stack[-1][1]) if stack else end))
        if stack:
            held[t] = stack[-1][0]
    return held


def test_threads_without_rows_have_no_pieces() -> None:
    none = np.zeros(0, np.int64)
    bounds, low, high, row = flatten(np.zeros(3, np.int64), none, none)
    assert bounds.tolist() == [0, 0, 0]
    assert not len(low) and not len(high) and not len(row)


def test_tables_pick_columns_when_they_are_asked_for() -> None:
    from gpucorrelate.correlator.capture import Table
    from gpucorrelate.probes.wire.schema import BY_NAME

    columns = {"stream": np.arange(4), "start_ns": np.arange(4) * 10}
    table = Table(BY_NAME["gpu_op"], columns).select(np.array([3, 1, 0]))
    again = table.replace("stream", np.array([7, 8, 9])).select(np.array([True, False, True]))
    assert table["start_ns"].tolist() == [30, 10, 0] and len(table) == 3
    assert again["start_ns"].tolist() == [30, 0] and again["stream"].tolist() == [7, 9]
    with pytest.raises(KeyError):
        table["no such column"]
