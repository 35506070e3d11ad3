# SPDX-License-Identifier: Apache-2.0
"""Joins of whole columns (``join.c``)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.correlator.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    I64 = NDArray[np.int64]
    Integers = NDArray[np.integer[Any]]


class _Side(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_int64),
        ("order", ctypes.c_void_p),
        ("group", ctypes.c_void_p),
        ("id", ctypes.c_void_p),
    )


def _numbers(values: Integers) -> I64:
    """The same numbers in 64 bits; unsigned ones of 64 bits keep their bits."""
    if values.dtype == np.uint64:
        return np.ascontiguousarray(values).view(np.int64)
    return np.ascontiguousarray(values, np.int64)


def _pointers(columns: Sequence[I64]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(columns))(*(column.ctypes.data for column in columns))


class Keyed:
    """Rows in the order of a group and an id within it, to be looked up by those."""

    def __init__(self, group: Integers, ids: Integers) -> None:
        self._group, self._id = _numbers(group), _numbers(ids)
        self.order = np.lexsort((self._id, self._group))

    def with_least(self, key: I64) -> I64:
        """``order`` with equal rows by one more key."""
        return np.lexsort((key, self._id, self._group))

    def _side(self) -> _Side:
        columns = (self.order, self._group, self._id)
        return _Side(len(self.order), *(column.ctypes.data for column in columns))

    def find(self, group: Integers, ids: Integers) -> tuple[I64, I64]:
        """Where in ``order`` the rows with each group and id are: first, and one past the last."""
        wanted = Keyed(group, ids)
        first, last = np.empty((2, len(wanted.order)), np.int64)
        library().gpucorrelate_match(
            ctypes.byref(wanted._side()),
            ctypes.byref(self._side()),
            first.ctypes.data,
            last.ctypes.data,
        )
        return first, last


def latest(start_ns: I64, end_ns: I64, *candidates: I64) -> tuple[I64, I64]:
    """Of each row's candidates for what let it begin the one that ended last.

    Only those that come before the row in (start, place) are taken: that order is strict, so no
    chain of them leads back to where it began. An end counts no later than the row's start.

    Args:
        start_ns: Start of each row.
        end_ns: Its end.
        candidates: Lists with a row for each row; -1 is none.

    Returns:
        The row chosen, -1 none; and when the last other one ended, the least number for none.
    """
    start, end = _numbers(start_ns), _numbers(end_ns)
    columns = [_numbers(one) for one in candidates if len(one)]
    best, second = np.empty((2, len(start)), np.int64)
    library().gpucorrelate_latest(
        len(start), start.ctypes.data, end.ctypes.data, len(columns), _pointers(columns),
        best.ctypes.data, second.ctypes.data,
    )  # fmt: skip
    return best, second
