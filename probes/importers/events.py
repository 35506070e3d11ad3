# SPDX-License-Identifier: Apache-2.0
"""Events of a Kineto trace as columns, in the schema's order: as they were decoded, or as rows.

What an event means is said by the columns of decoded events. The compiled scanner makes rows of
plain events, and of no other; their columns are the same.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpucorrelate.probes.importers.native import EventScanner, Word, event_scanner
from gpucorrelate.probes.importers.rows import NONE_U64
from gpucorrelate.probes.importers.values import all_ns, integer, integers, low_bits, words
from gpucorrelate.probes.wire.schema import ApiKind, CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

#: Tables of rows.
OPS, CALLS, SYNCS, RANGES = range(4)

_OPS = {
    "kernel": GpuOpKind.KERNEL,
    "gpu_memcpy": GpuOpKind.MEMCPY,
    "memcpy": GpuOpKind.MEMCPY,
    "gpu_memset": GpuOpKind.MEMSET,
    "memset": GpuOpKind.MEMSET,
}
_APIS = {
    "cuda_runtime": ApiKind.RUNTIME,
    "hip_runtime": ApiKind.RUNTIME,
    "runtime": ApiKind.RUNTIME,
    "cuda_driver": ApiKind.DRIVER,
    "hip_driver": ApiKind.DRIVER,
    "driver": ApiKind.DRIVER,
}
#: Table and kind of the categories that are kept.
_CATEGORIES = {
    **{category: (OPS, int(op)) for category, op in _OPS.items()},
    **{category: (CALLS, int(api)) for category, api in _APIS.items()},
    "cuda_sync": (SYNCS, 0),
    "user_annotation": (RANGES, 0),
    # In 2021 annotations were operators like any other.
    "operator": (RANGES, 0),
}
_NO_TABLE = (-1, 0)
_SYNCS = {
    "event sync": SyncKind.EVENT,
    "stream wait event": SyncKind.STREAM_WAIT_EVENT,
    "stream sync": SyncKind.STREAM,
    "context sync": SyncKind.CONTEXT,
}
#: Of so many categories, beside those that are known, it is remembered that they are not.
_MOST_CATEGORIES = 1000
_COPY = re.compile(r"\b([HDAP])to([HDAP])\b")
_I64 = 1 << 63
_U32 = 0xFFFFFFFF


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's ``args``."""

    device: Any = None
    context: Any = None
    stream: Any = None
    correlation: Any = None
    graph: Any = msgspec.field(default=None, name="graph id")
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    bytes: Any = None
    sync: Any = msgspec.field(default=None, name="cuda_sync_kind")
    event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    record_stream: Any = msgspec.field(default=None, name="wait_on_stream")


class Event(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event. Numbers that are no integers are the text of the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args = Args()


class _Categories(dict[str, tuple[int, int]]):
    """Table and kind by category however it is capitalised."""

    def __missing__(self, category: str) -> tuple[int, int]:
        found = _CATEGORIES.get(category.lower(), _NO_TABLE)
        if len(self) < _MOST_CATEGORIES:
            self[category] = found
        return found


#: Table and kind by category; the table of those that are not kept is -1.
KNOWN = _Categories(_CATEGORIES)


def scanner() -> EventScanner | None:
    """What makes rows of plain events, where it is compiled."""
    return event_scanner(
        [Word(category, *found) for category, found in _CATEGORIES.items()],
        [Word(text, SYNCS, int(kind)) for text, kind in _SYNCS.items()],
    )


def ops(events: Sequence[Event]) -> tuple[list[Any], ...]:
    """Columns of device operations.

    Raises:
        UnreadableError: one lacks something that it must have.
    """
    args = [event.args for event in events]
    kinds = [KNOWN[event.cat][1] for event in events]
    starts, ends = _moments(events)
    return (
        [0] * len(events),
        _devices(events),
        integers([a.context for a in args], 0, least=-_I64),
        integers([a.stream for a in args], NONE_U64),
        kinds,
        [event.name for event in events],
        integers([a.correlation for a in args], 0),
        integers([a.graph for a in args], 0),
        integers([a.graph_node for a in args], 0),
        starts,
        ends,
        integers([a.bytes for a in args], 0),
        [
            _copy_kind(event.name) if kind == GpuOpKind.MEMCPY else 0
            for kind, event in zip(kinds, events, strict=True)
        ],
    )


def calls(events: Sequence[Event]) -> tuple[list[Any], ...]:
    """Columns of API calls; raises like ``ops``."""
    starts, ends = _moments(events)
    return (
        low_bits([event.pid for event in events]),
        low_bits([event.tid for event in events]),
        [event.name for event in events],
        [KNOWN[event.cat][1] for event in events],
        integers([event.args.correlation for event in events], 0),
        starts,
        ends,
    )


def syncs(events: Sequence[Event]) -> tuple[list[Any], ...]:
    """Columns of synchronisations; raises like ``ops``."""
    args = [event.args for event in events]
    starts, ends = _moments(events)
    return (
        [0] * len(events),
        _devices(events),
        integers([a.context for a in args], 0, least=-_I64),
        [_sync_kind(event) for event in events],
        _streams([a.stream for a in args]),
        integers([a.event for a in args], NONE_U64),
        integers([a.correlation for a in args], 0),
        starts,
        ends,
        integers([a.record for a in args], 0),
        _streams([a.record_stream for a in args]),
    )


def ranges(events: Sequence[Event]) -> tuple[list[int], ...]:
    """Thread, start and end of named ranges; raises like ``ops``.

    Raises:
        OverflowError: one ends too late.
    """
    starts, ends = _moments(events)
    if max(ends, default=0) >= _I64:
        raise OverflowError("end_ns is out of range")
    return low_bits([event.tid for event in events]), starts, ends


#: By table, of decoded events.
COLUMNS: tuple[Callable[[Sequence[Event]], tuple[list[Any], ...]], ...] = (ops, calls, syncs)


#: By table, where the scanner has the columns.
_FIELDS: tuple[tuple[str, ...], ...] = (
    (
        "pid", "device", "context", "stream", "kind", "name", "correlation", "graph", "node",
        "start_ns", "end_ns", "bytes",
    ),
    ("pid", "tid", "name", "kind", "correlation", "start_ns", "end_ns"),
    (
        "pid", "device", "context", "kind", "stream", "event", "correlation", "start_ns",
        "end_ns", "recorded_by", "recorded_stream",
    ),
)  # fmt: skip


def of_rows(
    table: int, rows: NDArray[np.void], names: Sequence[str], number_of: Callable[[str], int]
) -> list[NDArray[Any]]:
    """Columns of a table's rows, as wide as the scanner made them; the owner is still 0.

    Args:
        table: Which one; not that of ranges.
        rows: All of that table.
        names: The texts that names in the rows are numbers of.
        number_of: What stands for a text in the column of names.
    """
    columns = [rows[field] for field in _FIELDS[table]]
    if table != SYNCS:
        at = _FIELDS[table].index("name")
        columns[at] = _each(names, rows["name"], number_of)
    if table == OPS:
        copies = _each(names, rows["name"], _copy_kind)
        columns.append(np.where(rows["kind"] == GpuOpKind.MEMCPY, copies, 0))
    return columns


def _each(
    names: Sequence[str], numbers: NDArray[Any], of: Callable[[str], int]
) -> NDArray[np.uint32]:
    """What each name gives, asked once for each that occurs."""
    found = np.zeros(len(names) + 1, np.uint32)
    for number in np.flatnonzero(np.bincount(numbers)).tolist():
        found[number] = of(names[number])
    each: NDArray[np.uint32] = found[numbers]
    return each


def _devices(events: Sequence[Event]) -> list[int]:
    """Device numbers; where ``args`` tells none, it is in place of the process id."""
    values = [event.args.device for event in events]
    if set(map(type, values)) == {int} and min(values) >= -_I64:
        return values
    return [
        integer(value, integer(event.pid, 0)) for value, event in zip(values, events, strict=True)
    ]


def _sync_kind(event: Event) -> int:
    kind = event.name if event.args.sync is None else event.args.sync
    return int(_SYNCS.get(kind.lower() if isinstance(kind, str) else "", SyncKind.UNKNOWN))


def _streams(values: list[Any]) -> list[int]:
    """Streams of synchronisations; none is written as -1, in 64 bits or in 32."""
    return [NONE_U64 if value == _U32 else value for value in integers(values, NONE_U64)]


def _moments(events: Sequence[Event]) -> tuple[list[int], list[int]]:
    """Starts and ends in nanoseconds of the trace's own clock."""
    starts = all_ns([event.ts for event in events], "ts")
    return starts, list(map(add, starts, all_ns([event.dur for event in events], "dur")))


@lru_cache(maxsize=256)
def _copy_kind(name: str) -> int:
    match = _COPY.search(name)
    return int(CopyKind.__members__.get(f"{match[1]}TO{match[2]}", 0)) if match else 0


NO_EVENT = Event()


def loose(element: object) -> Event | str:
    """An event that the decoder refused; an empty one if it is of no use, or what is wrong."""
    if not isinstance(element, dict):
        return "elements that are no events"
    category = element.get("cat")
    if element.get("ph") != "X" or not isinstance(category, str):
        return NO_EVENT
    table, _ = KNOWN[category]
    args = {} if table in (-1, RANGES) else element.get("args", {})
    if not isinstance(args, dict):
        return f"{category.lower()} events unread: args is no object"
    pid, tid, ts, dur = map(element.get, ("pid", "tid", "ts", "dur"))
    known = Args(*map(args.get, Args.__struct_encode_fields__))
    name = words(element.get("name", ""))
    return Event("X", category, name, pid, tid, ts, dur, known)
