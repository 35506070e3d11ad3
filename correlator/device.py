# SPDX-License-Identifier: Apache-2.0
"""Work of devices: operations by stream, calls of the API, and which call launched what.

A correlation id is unique in its process only, so the join is by process and id. One launch of
a graph has many operations; some operations have no launch on record.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.native.columns import Keyed
from gpucorrelate.correlator.search import grouped, last_at_most, nested_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.states import Threads

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    U8 = NDArray[np.uint8]


class CallKind(enum.IntEnum):
    """What a call of the API is for."""

    OTHER = 0
    LAUNCH = 1  # of a kernel
    GRAPH_LAUNCH = 2
    COPY = 3
    FILL = 4
    SYNC_DEVICE = 5
    SYNC_STREAM = 6
    SYNC_EVENT = 7
    POLL = 8  # asks whether an event or a stream is done, and returns at once
    WAIT_EVENT = 9  # has a stream wait; the caller goes on
    RECORD = 10
    ALLOCATE = 11


#: By the function's name, CUDA's and HIP's, runtime and driver; the first that fits counts.
_KINDS = (
    (CallKind.GRAPH_LAUNCH, re.compile(r"GraphLaunch")),
    (CallKind.OTHER, re.compile(r"LaunchHostFunc")),
    (CallKind.LAUNCH, re.compile(r"Launch")),
    (CallKind.COPY, re.compile(r"Memcpy")),
    (CallKind.FILL, re.compile(r"Memset")),
    (CallKind.SYNC_DEVICE, re.compile(r"(Device|Ctx|Thread)Synchronize")),
    (CallKind.SYNC_STREAM, re.compile(r"StreamSynchronize")),
    (CallKind.SYNC_EVENT, re.compile(r"EventSynchronize")),
    (CallKind.POLL, re.compile(r"(Event|Stream)Query")),
    (CallKind.WAIT_EVENT, re.compile(r"StreamWaitEvent")),
    (CallKind.RECORD, re.compile(r"EventRecord")),
    (CallKind.ALLOCATE, re.compile(r"(Malloc|MemAlloc|Free|HostRegister|HostUnregister)")),
)
LAUNCHES = (CallKind.LAUNCH, CallKind.GRAPH_LAUNCH, CallKind.COPY, CallKind.FILL)


def call_kind(name: str) -> CallKind:
    """What a function is for, by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), CallKind.OTHER)


@dataclass(frozen=True)
class Calls:
    """Calls with valid times, sorted by thread and start, an outer one before those within it.

    Attributes:
        table: The rows.
        process: Index of the process.
        thread: Index of the thread; -1 unknown.
        kind: ``CallKind``.
        ops: How many operations each launched.
        by_id: To find them by process and correlation id.
        invalid: Rows left out for their times.
    """

    table: Table
    process: I64
    thread: I32
    start_ns: I64
    end_ns: I64
    kind: U8
    ops: I64
    by_id: Keyed
    invalid: int

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Ops:
    """Operations with valid times, sorted by stream, start and end.

    Attributes:
        table: The rows.
        off: First operation of each stream; one entry more than streams.
        stream: Index of the stream.
        process: Index of the process.
        call: The call that launched it; -1 none on record.
        early_ns: How much before its launch it seems to begin, 0 where it does not.
        invalid: Rows left out for their times.
        repeated: Operations whose id several calls of the process have.
    """

    table: Table
    off: I64
    stream: I64
    process: I64
    start_ns: I64
    end_ns: I64
    call: I64
    early_ns: I64
    invalid: int
    repeated: int

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class DeviceStream:
    """A stream of a device, as one process sees it."""

    process: int
    device: int
    number: int  # all bits set: none given


@dataclass(frozen=True)
class DeviceProcess:
    """A process that works with devices."""

    stream: int  # of the recording
    pid: int


@dataclass(frozen=True)
class Device:
    """All work of devices in a recording."""

    processes: tuple[DeviceProcess, ...]
    streams: tuple[DeviceStream, ...]
    calls: Calls
    ops: Ops

    def __bool__(self) -> bool:
        return len(self.ops) > 0

    @property
    def records(self) -> int:
        """Operations recorded, whatever their times."""
        return len(self.ops) + self.ops.invalid


def build(capture: Capture, threads: Threads) -> Device:
    """Sort and join everything that devices did."""
    api, op = capture.table("cuda_api"), capture.table("gpu_op")
    stream, pid = (np.concatenate([api[name], op[name]]) for name in ("stream", "pid"))
    number, first = grouped(stream, pid)
    processes = tuple(
        DeviceProcess(int(a), int(b)) for a, b in zip(stream[first], pid[first], strict=True)
    )
    calls = _calls(capture, api, number[: len(api)], threads)
    ops, streams = _ops(op, number[len(api) :])
    call, repeated = _join(calls, ops)
    early = np.where(call >= 0, calls.start_ns[call] - ops.start_ns, 0) if len(calls) else call * 0
    launched = np.bincount(call[call >= 0], minlength=len(calls))
    return Device(
        processes,
        streams,
        replace(calls, ops=launched),
        replace(ops, call=call, early_ns=np.maximum(early, 0), repeated=repeated),
    )


def timed(table: Table) -> NDArray[np.bool_]:
    """Which rows have times that can be."""
    return (table["start_ns"] > 0) & (table["end_ns"] >= table["start_ns"])


def _calls(capture: Capture, api: Table, process: I64, threads: Threads) -> Calls:
    good = timed(api)
    count = len(api)
    if not good.all():
        api, process = api.select(good), process[good]
    thread = threads.index(api["tid"])
    order = nested_order(thread, api["start_ns"], api["end_ns"])
    kinds = np.zeros(len(capture.strings) + 1, np.uint8)
    for name in np.flatnonzero(np.bincount(api["name"])).tolist():
        kinds[name] = call_kind(capture.strings[name])
    table, process = api.select(order), process[order]
    return Calls(
        table,
        process,
        thread[order],
        table["start_ns"],
        table["end_ns"],
        kinds[table["name"]],
        np.zeros(len(order), np.int64),
        Keyed(process, table["correlation"]),
        count - len(order),
    )


def _ops(op: Table, process: I64) -> tuple[Ops, tuple[DeviceStream, ...]]:
    good = timed(op)
    if good.all():
        table = op
    else:
        table, process = op.select(good), process[good]
    stream, first = grouped(process, table["device"], table["gpu_stream"])
    order = np.lexsort((table["end_ns"], table["start_ns"], stream))
    streams = tuple(
        DeviceStream(int(process[i]), int(table["device"][i]), int(table["gpu_stream"][i]))
        for i in first.tolist()
    )
    table, process, stream = table.select(order), process[order], stream[order]
    none = np.full(len(order), -1, np.int64)
    return Ops(
        table,
        np.searchsorted(stream, np.arange(len(streams) + 1)),
        stream,
        process,
        table["start_ns"],
        table["end_ns"],
        none,
        none,
        len(op) - len(order),
        0,
    ), streams


def _join(calls: Calls, ops: Ops) -> tuple[I64, int]:
    """The call with each operation's id in its process; of several the last that began before it.

    Ids are given once in a process; where a trace has one twice, something is wrong with it.
    """
    first, last = calls.by_id.find(ops.process, ops.table["correlation"])
    found = (last > first) & (ops.table["correlation"] != 0)
    call = np.full(len(ops), -1, np.int64)
    call[found] = calls.by_id.order[first[found]]
    several = np.flatnonzero(found & (last - first > 1))
    if len(several):
        order = calls.by_id.with_least(calls.start_ns)
        low, high = first[several], last[several]
        at = last_at_most(calls.start_ns[order], low, high, ops.start_ns[several])
        # One that seems to begin before every call of its id belongs to the first of them.
        call[several] = order[np.maximum(at, low)]
    return call, len(several)
