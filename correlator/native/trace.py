# SPDX-License-Identifier: Apache-2.0
"""Intervals laid in rows, and packets of a Perfetto trace (``trace.c``)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.native import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    I64 = NDArray[np.int64]

#: Bytes that are made at a time.
_ROOM = 1 << 20

STRING, NUMBER, POINTER = range(3)


class _Arg(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("values", ctypes.c_void_p),
    )


class _Events(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("order", "start", "end", "track", "name")),
        ("category", ctypes.c_void_p),
        ("n_args", ctypes.c_int64),
        ("args", ctypes.POINTER(_Arg)),
        *((name, ctypes.c_void_p) for name in ("out", "out_count", "in")),
    )


@dataclass(frozen=True)
class Argument:
    """A detail of events, by the number of its interned name.

    Attributes:
        name: Number of its name.
        kind: ``STRING``: numbers of interned texts, 0 none. ``NUMBER``: below 0 is none.
            ``POINTER``: shown in hexadecimal, 0 is none.
        values: One for each event.
    """

    name: int
    kind: int
    values: I64


@dataclass(frozen=True)
class Events:
    """Intervals with the order of their begins and ends, or moments without one.

    Attributes:
        order: As ``rows`` gives it; ``None``: moments, of which the start counts.
        start_ns: Start of each.
        end_ns: End of each.
        track: Track of each, by its uuid.
        name: Number of its interned name.
        category: Number of its interned category; 0 none.
        args: Its details.
        out: Number of the first flow that leaves it.
        out_count: How many leave it, numbered on from there.
        into: The flow that comes in; 0 none.
    """

    order: I64 | None
    start_ns: I64
    end_ns: I64
    track: I64
    name: I64
    category: I64
    args: tuple[Argument, ...] = ()
    out: I64 | None = field(default=None)
    out_count: I64 | None = None
    into: I64 | None = None


def _column(values: I64) -> I64:
    return np.ascontiguousarray(values, np.int64)


def rows(group: I64, start_ns: I64, end_ns: I64, *, nested: bool) -> tuple[I64, I64]:
    """Rows for intervals, so that none hides another.

    Args:
        group: Intervals of different groups share no row; ascending.
        start_ns: Starts, ascending within a group; of equal ones the longer interval first.
        end_ns: Ends, none before its start.
        nested: Whether an interval within another may share its row.

    Returns:
        Each one's row within its group, from 0; and the order of begins (twice the index) and
        ends (that and one), right for each row.

    Raises:
        MemoryError: there is not enough.
    """
    columns = [_column(one) for one in (group, start_ns, end_ns)]
    n = len(columns[0])
    row, order = np.empty(n, np.int64), np.empty(2 * n, np.int64)
    status = library().gpucorrelate_rows(
        ctypes.c_int64(n), *(ctypes.c_void_p(one.ctypes.data) for one in columns),
        ctypes.c_int64(nested), ctypes.c_void_p(row.ctypes.data),
        ctypes.c_void_p(order.ctypes.data),
    )  # fmt: skip
    if status:
        raise MemoryError("no memory to lay intervals in rows")
    return row, order


def packets(events: Events) -> Iterator[memoryview]:
    """The packets of events, in pieces that are valid until the next is asked for."""
    order = None if events.order is None else _column(events.order)
    held: dict[str, I64] = {
        "start": _column(events.start_ns), "end": _column(events.end_ns),
        "track": _column(events.track), "name": _column(events.name),
        "category": _column(events.category),
    }  # fmt: skip
    if events.out is not None and events.out_count is not None:
        held |= {"out": _column(events.out), "out_count": _column(events.out_count)}
    if events.into is not None:
        held["in"] = _column(events.into)
    if order is not None:
        held["order"] = order
    values = [_column(arg.values) for arg in events.args]
    args = (_Arg * max(1, len(values)))(
        *(
            _Arg(arg.name, arg.kind, column.ctypes.data)
            for arg, column in zip(events.args, values, strict=True)
        )
    )
    model = _Events(n=len(held["start"]) if order is None else len(order))
    model.n_args, model.args = len(values), ctypes.cast(args, ctypes.POINTER(_Arg))
    for name, column in held.items():
        setattr(model, name, column.ctypes.data)
    make = library().gpucorrelate_packets
    make.restype = ctypes.c_int64
    at, room = 0, _ROOM
    while at < model.n:
        buffer, used = ctypes.create_string_buffer(room), ctypes.c_int64()
        following = make(
            ctypes.byref(model), ctypes.c_int64(at), buffer, ctypes.c_int64(room),
            ctypes.byref(used),
        )  # fmt: skip
        if following == at:  # a launch of more operations than fit at once
            room *= 2
            continue
        at = following
        yield memoryview(buffer)[: used.value]


def readings(t_ns: I64, values: NDArray[np.generic], track: int) -> Iterator[memoryview]:
    """The packets of a counter's readings: whole numbers as such, others as floating point."""
    t = _column(t_ns)
    whole = _column(values.astype(np.int64)) if values.dtype.kind in "iu" else None
    other = None if whole is not None else np.ascontiguousarray(values, np.float64)
    make = library().gpucorrelate_readings
    make.restype = ctypes.c_int64
    at = 0
    while at < len(t):
        buffer, used = ctypes.create_string_buffer(_ROOM), ctypes.c_int64()
        at = make(
            ctypes.c_int64(len(t)), ctypes.c_void_p(t.ctypes.data),
            ctypes.c_void_p(None if whole is None else whole.ctypes.data),
            ctypes.c_void_p(None if other is None else other.ctypes.data),
            ctypes.c_int64(track), ctypes.c_int64(at), buffer, ctypes.c_int64(_ROOM),
            ctypes.byref(used),
        )  # fmt: skip
        yield memoryview(buffer)[: used.value]
