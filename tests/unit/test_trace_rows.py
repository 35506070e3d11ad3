# SPDX-License-Identifier: Apache-2.0
"""Intervals laid in rows: nothing hides anything, and begins and ends come in a right order."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.native import trace
from gpucorrelate.correlator.search import nested_order

INTERVAL = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12))


def laid(group, start, end, *, nested):
    order = nested_order(group, start, end)
    group, start, end = group[order], start[order], end[order]
    row, events = trace.rows(group, start, end, nested=nested)
    return group, start, end, row, events


@given(st.lists(INTERVAL, max_size=200), st.booleans())
def test_every_row_is_drawn_as_it_must_be(intervals, nested):
    columns = np.array(intervals, np.int64).reshape(-1, 3).T
    group, start, end, row, events = laid(
        columns[0], columns[1], columns[1] + columns[2], nested=nested
    )
    assert sorted(events.tolist()) == list(range(2 * len(group)))
    stacks: dict[tuple[int, int], list[int]] = {}
    clock: dict[tuple[int, int], int] = {}
    for event in events.tolist():
        i, ends = divmod(event, 2)
        place = (int(group[i]), int(row[i]))
        stack = stacks.setdefault(place, [])
        moment = int(end[i] if ends else start[i])
        assert moment >= clock.get(place, 0)
        clock[place] = moment
        if ends:
            assert stack.pop() == i
        else:
            if stack:
                assert nested
                assert end[i] <= end[stack[-1]]
            stack.append(i)
    assert not any(stacks.values())


@given(st.lists(INTERVAL, max_size=100))
def test_rows_are_no_more_than_needed(intervals):
    columns = np.array(intervals, np.int64).reshape(-1, 3).T
    group, start, end, row, _ = laid(columns[0], columns[1], columns[1] + columns[2], nested=False)
    for one in np.unique(group).tolist():
        own = group == one
        moments = start[own]
        at_once = max(
            int(((start[own] <= t) & ((end[own] > t) | (start[own] == t))).sum()) for t in moments
        )
        assert int(row[own].max()) + 1 <= at_once


@pytest.mark.parametrize("nested", [False, True])
def test_intervals_that_all_overlap_cost_no_more_than_a_sort(nested):
    # None lies within another, so each needs a row of its own.
    def took(count):
        start, group = np.arange(count), np.zeros(count, np.int64)
        begin = time.process_time()
        row, _ = trace.rows(group, start, start + count, nested=nested)
        length = time.process_time() - begin
        assert len(np.unique(row)) == count
        return length

    # Ten times as many: a hundred times the time where each is compared with each.
    small, large = (min(took(count) for _ in range(4)) for count in (100_000, 1_000_000))
    assert large < 40 * small
