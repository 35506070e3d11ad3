# SPDX-License-Identifier: Apache-2.0
"""Searches over many sorted stretches of one array at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]

_MOST_KEYS = 1 << 62
#: A table of all numbers that could be is cheaper than a sort up to so many times the rows.
_DENSE = 4


def last_at_most(values: I64, low: I64, high: I64, wanted: I64) -> I64:
    """For each query the last index in ``[low, high)`` whose value is at most ``wanted``.

    Args:
        values: Ascending within every stretch that is asked about.
        low: First index of each query's stretch.
        high: One past the last.
        wanted: What the value must not exceed.

    Returns:
        The index; ``low - 1`` where there is none.
    """
    left, right = np.asarray(low, np.int64), np.asarray(high, np.int64)
    if not len(values) or not len(left):
        return left - 1
    for _ in range(int((right - left).max(initial=0)).bit_length()):
        middle = (left + right) // 2
        fits = (left < right) & (values[np.minimum(middle, len(values) - 1)] <= wanted)
        moved = left < right
        left = np.where(fits, middle + 1, left)
        right = np.where(moved & ~fits, middle, right)
    return left - 1


def nested_order(group: NDArray[np.integer[Any]], start: I64, end: I64) -> I64:
    """The order of intervals by group and start, of equal ones the longer first."""
    return np.lexsort((-end, start, group))


def combined(*keys: NDArray[np.integer[Any]]) -> I64:
    """Rows' keys as one number: equal for rows that agree in all, ascending with the keys."""
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    number, size = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue  # tells nothing apart
        before, size = size, size * (high - low + 1)
        if size > _MOST_KEYS:
            return _by_sorting(*keys)
        part = (key - key.dtype.type(low)).astype(np.int64, copy=False)
        number = part if before == 1 else number * (high - low + 1) + part
    return number


def _by_sorting(*keys: NDArray[np.integer[Any]]) -> I64:
    """The same for keys that span too much to be multiplied."""
    number = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        distinct, inverse = np.unique(key, return_inverse=True)
        number = number * len(distinct) + inverse
        number = np.unique(number, return_inverse=True)[1].astype(np.int64)
    return number


def grouped(*keys: NDArray[np.integer[Any]]) -> tuple[I64, I64]:
    """Rows that agree in all keys as one number.

    Returns:
        The number of each row, from 0, ascending with the keys; and the first row of each number.
    """
    n = len(keys[0])
    if not n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    number = combined(*keys)
    span = int(number.max()) + 1
    if span > _DENSE * n + _DENSE:
        number = np.unique(number, return_inverse=True)[1].astype(np.int64)
    else:
        there = np.zeros(span, bool)
        there[number] = True
        if not there.all():
            number = (np.cumsum(there) - 1)[number]
    first = np.zeros(int(number.max()) + 1, np.int64)
    # Of rows with one number the last assignment stays: that of the first.
    first[number[::-1]] = np.arange(n)[::-1]
    return number, first


@dataclass(frozen=True)
class Groups:
    """Rows by a number that each has, those without one (-1) left out."""

    order: I64
    off: I64

    @classmethod
    def of(cls, numbers: I64, count: int) -> Groups:
        """Rows whose numbers are below ``count``; of one number in their own order."""
        order = np.argsort(numbers, kind="stable")
        off = np.searchsorted(numbers[order], np.arange(count + 1)).astype(np.int64)
        return cls(order, off)

    def __getitem__(self, number: int) -> I64:
        """The rows of a number."""
        return self.order[self.off[number] : self.off[number + 1]]


def running_max(values: I64, off: I64) -> I64:
    """The largest value so far within each stretch ``off[k]`` to ``off[k + 1]``."""
    if not len(values):
        return values.copy()
    # Stretches are lifted above each other, so that one pass over all of them is enough.
    low = int(values.min())
    height = int(values.max()) - low + 1
    stretch = np.repeat(np.arange(len(off) - 1), np.diff(off))
    if height * max(1, len(off) - 1) < np.iinfo(np.int64).max // 2:
        lift = stretch * height
        return np.maximum.accumulate(values - low + lift) - lift + low
    parts = [np.maximum.accumulate(values[a:b]) for a, b in itertools.pairwise(off)]
    return np.concatenate(parts)


def first_after(values: I64, low: I64, high: I64, wanted: I64) -> I64:
    """For each query the first index in ``[low, high)`` whose value exceeds ``wanted``.

    ``high`` where there is none. Arguments as in ``last_at_most``.
    """
    return last_at_most(values, low, high, wanted) + 1


def busy_union_ns(start: I64, end: I64) -> int:
    """Total length of intervals, overlap counted once."""
    s, e = union(start, end)
    return int((e - s).sum())


def exact_sum(values: NDArray[np.generic]) -> int:
    """The sum of non-negative integers, however large."""
    low = values.astype(np.uint64)
    high = low >> np.uint64(32)
    return (int(high.sum()) << 32) + int((low & np.uint64(0xFFFFFFFF)).sum())


def union(start: I64, end: I64) -> tuple[I64, I64]:
    """Intervals merged where they touch or overlap, ascending; empty ones vanish."""
    some = end > start
    start, end = start[some], end[some]
    if not len(start):
        return start.astype(np.int64), end.astype(np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    new = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:], [len(start)])) - 1
    return start[first].astype(np.int64), reach[last].astype(np.int64)


def clipped(start: I64, end: I64, low: int, high: int) -> tuple[I64, I64]:
    """Intervals cut to ``[low, high]``; those outside vanish."""
    start, end = np.maximum(start, low), np.minimum(end, high)
    some = end > start
    return start[some], end[some]


def without(start: I64, end: I64, other_start: I64, other_end: I64) -> tuple[I64, I64]:
    """What of merged intervals lies outside other merged intervals."""
    edges = np.concatenate((start, end, other_start, other_end))
    if not len(edges):
        return start, end
    edges = np.unique(edges)
    low, high = edges[:-1], edges[1:]
    kept = inside(start, end, low) & ~inside(other_start, other_end, low)
    return union(low[kept], high[kept])


def inside(start: I64, end: I64, moments: I64) -> NDArray[np.bool_]:
    """Whether each moment lies in one of the merged intervals, their end excluded."""
    if not len(start):
        return np.zeros(len(moments), bool)
    at = np.searchsorted(start, moments, side="right") - 1
    return (at >= 0) & (end[np.maximum(at, 0)] > moments)
