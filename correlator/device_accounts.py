# SPDX-License-Identifier: Apache-2.0
"""What devices did in a step: sums, a partition of its wall time, idle gaps, calls.

A step's window begins with its first call and ends with its last call or its last operation,
whichever is later. Two sums are kept and never one without the other: the total of operations,
and the time in which at least one of them ran (busy, overlap counted once).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.device import LAUNCHES, CallKind
from gpucorrelate.correlator.device_steps import REASONS, Assigned
from gpucorrelate.correlator.kernels import KernelClass, decode
from gpucorrelate.correlator.report.device_values import (
    DeviceLedger,
    KernelShare,
    StepDevice,
    SyncShare,
)
from gpucorrelate.correlator.search import Groups, clipped, exact_sum, union, without
from gpucorrelate.probes.wire.schema import GpuOpKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.device import Device, Ops
    from gpucorrelate.correlator.device_steps import DeviceSteps
    from gpucorrelate.correlator.states import States

    I64 = NDArray[np.int64]

_SYNC_NAMES = {
    CallKind.SYNC_DEVICE: "device",
    CallKind.SYNC_STREAM: "stream",
    CallKind.SYNC_EVENT: "event",
    CallKind.POLL: "polling",
    CallKind.COPY: "blocking copy",
    CallKind.FILL: "blocking fill",
}
#: What is classed by what it is and not by its name.
_CLASSES = {"memcpy": GpuOpKind.MEMCPY, "memset": GpuOpKind.MEMSET}


@dataclass(frozen=True)
class Busy:
    """When the devices of one process were busy."""

    start_ns: I64  # of merged intervals
    end_ns: I64
    before_ns: I64  # busy time before each

    @classmethod
    def of(cls, ops: Ops, rows: I64) -> Busy:
        """Merge the intervals of a process's operations."""
        start, end = union(ops.start_ns[rows], ops.end_ns[rows])
        length = end - start
        return cls(start, end, np.cumsum(length) - length)

    def until(self, moments: I64) -> I64:
        """Busy time before each moment."""
        if not len(self.start_ns):
            return np.zeros(len(moments), np.int64)
        at = np.maximum(np.searchsorted(self.start_ns, moments, side="right") - 1, 0)
        inside = np.clip(moments, self.start_ns[at], self.end_ns[at]) - self.start_ns[at]
        return self.before_ns[at] + inside

    def within(self, start: int, end: int) -> tuple[I64, I64]:
        """When any of its operations ran between two moments."""
        low = int(np.searchsorted(self.end_ns, start, side="right"))
        high = int(np.searchsorted(self.start_ns, end))
        return clipped(self.start_ns[low:high], self.end_ns[low:high], start, end)


@dataclass(frozen=True)
class StepOps:
    """Operations and calls by step, and each process's busy time, found once for all steps."""

    ops: Groups
    calls: Groups
    busy: tuple[Busy, ...]
    sync_of_call: I64  # per call: its synchronisation; -1 none

    @classmethod
    def of(cls, states: States, steps: DeviceSteps) -> StepOps:
        """Sort them by step."""
        device, path = states.device, states.path
        by_process = Groups.of(device.ops.process, len(device.processes))
        sync_of_call = np.full(len(device.calls), -1, np.int64)
        sync_of_call[path.sync_call] = np.arange(len(path.sync_call))
        return cls(
            Groups.of(steps.of, len(steps)),
            Groups.of(steps.call_of, len(steps)),
            tuple(Busy.of(device.ops, by_process[k]) for k in range(len(device.processes))),
            sync_of_call,
        )

    def own(self, step: int) -> I64:
        """The step's operations."""
        return self.ops[step]

    def made(self, step: int) -> I64:
        """The calls made during the step."""
        return self.calls[step]


@dataclass(frozen=True)
class OpClasses:
    """The class of every operation: a kernel's by its name, ``memcpy``, ``memset``."""

    names: tuple[str, ...]
    of: I64  # per operation: place in ``names``

    @classmethod
    def read(cls, states: States) -> OpClasses:
        """From the operations' names."""
        table, strings = states.device.ops.table, states.capture.strings
        names = {str(known): place for place, known in enumerate((*KernelClass, *_CLASSES))}
        of_name = np.zeros(len(strings) + 1, np.int64)
        for text in np.flatnonzero(np.bincount(table["name"])).tolist():
            of_name[text] = names[decode(strings[text]).cls]
        of = of_name[table["name"]]
        for name, kind in _CLASSES.items():
            of[table["op"] == kind] = names[name]
        return cls(tuple(names), of)

    def are(self, name: str) -> NDArray[np.bool_]:
        """Which operations are of a class."""
        found: NDArray[np.bool_] = self.of == self.names.index(name)
        return found


def window(device: Device, steps: DeviceSteps, step: int, own: I64) -> tuple[int, int, int]:
    """Start and end of a step, and the operation that it ends with; -1 it ends with a call."""
    start, end = int(steps.start_ns[step]), int(steps.end_ns[step])
    if not len(own):
        return start, end, -1
    last = int(own[device.ops.end_ns[own].argmax()])
    start = min(start, int(device.ops.start_ns[own].min()))
    if int(device.ops.end_ns[last]) > end:
        return start, int(device.ops.end_ns[last]), last
    return start, end, -1


def account(states: States, steps: DeviceSteps, index: StepOps, step: int) -> StepDevice:
    """What devices did in one step."""
    device, own, made = states.device, index.own(step), index.made(step)
    start, end, _ = window(device, steps, step, own)
    ops, calls = device.ops, device.calls
    parts = _partition(states, (steps, index), step, own, (start, end))
    kinds = calls.kind[made]
    launching = made[np.isin(kinds, LAUNCHES)]
    call = ops.call[own]
    graph = (call >= 0) & (calls.kind[call] == CallKind.GRAPH_LAUNCH) if len(calls) else call < -1
    first, last = _gpu_span(device, own)
    return StepDevice(
        gpu_sum_ns=exact_sum(ops.end_ns[own] - ops.start_ns[own]),
        gpu_busy_ns=parts[0][1],
        gpu_span_ns=last - first,
        kernels=int((ops.table["op"][own] == GpuOpKind.KERNEL).sum()),
        copies=int((ops.table["op"][own] == GpuOpKind.MEMCPY).sum()),
        fills=int((ops.table["op"][own] == GpuOpKind.MEMSET).sum()),
        parts=parts,
        launches=len(launching),
        graph_launches=int((kinds == CallKind.GRAPH_LAUNCH).sum()),
        graph_ops=int(graph.sum()),
        calls=len(made),
        launch_ns=exact_sum(calls.end_ns[launching] - calls.start_ns[launching]),
        syncs=_syncs(states, index, made),
        classes=classes(states, own),
        top=top(states, own),
        clamped=int((ops.early_ns[own] > 0).sum()),
        by_stream=int((steps.how[own] == Assigned.BY_STREAM).sum()),
        by_time=int((steps.how[own] == Assigned.BY_TIME).sum()),
    )


def _gpu_span(device: Device, own: I64) -> tuple[int, int]:
    if not len(own):
        return 0, 0
    return int(device.ops.start_ns[own].min()), int(device.ops.end_ns[own].max())


def _partition(
    states: States,
    of: tuple[DeviceSteps, StepOps],
    step: int,
    own: I64,
    whole: tuple[int, int],
) -> tuple[tuple[str, int], ...]:
    """The window cut by what the process's devices did; the parts sum to it exactly."""
    device = states.device
    ops, calls = device.ops, device.calls
    steps, index = of
    start, end = whole
    busy = clipped(*union(ops.start_ns[own], ops.end_ns[own]), start, end)
    theirs = without(*index.busy[int(steps.process[step])].within(start, end), *busy)
    idle = without(np.array([start]), np.array([end]), *union(*_both(busy, theirs)))
    if not len(own):
        return (
            ("own GPU work", 0),
            ("GPU work of other steps", _length(theirs)),
            ("no GPU work", _length(idle)),
        )
    launched = ops.call[own][ops.call[own] >= 0]
    first, last = _gpu_span(device, own)
    begun = min(int(calls.start_ns[launched].min()) if len(launched) else first, first)
    before = clipped(*idle, start, begun)
    launching = clipped(*idle, begun, first)
    within = clipped(*idle, first, last)
    after = clipped(*idle, last, end)
    return (
        ("own GPU work", _length(busy)),
        ("GPU work of other steps", _length(theirs)),
        ("host before the first launch", _length(before)),
        ("first launch to first GPU work", _length(launching)),
        ("GPU idle in between", _length(within)),
        ("host after the last GPU work", _length(after)),
    )


def _both(a: tuple[I64, I64], b: tuple[I64, I64]) -> tuple[I64, I64]:
    return np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))


def _length(intervals: tuple[I64, I64]) -> int:
    return int((intervals[1] - intervals[0]).sum())


def idle_gaps(device: Device, own: I64, count: int) -> list[tuple[int, int, int]]:
    """The longest stretches within a step's GPU work in which none of its operations ran.

    Returns:
        Start, end, and the operation that ended it, the longest first.
    """
    ops = device.ops
    start, end = union(ops.start_ns[own], ops.end_ns[own])
    low, high = end[:-1], start[1:]
    longest = np.argsort(low - high, kind="stable")[:count]
    by_start = own[np.argsort(ops.start_ns[own], kind="stable")]
    at = np.searchsorted(ops.start_ns[by_start], high[longest])
    return list(
        zip(low[longest].tolist(), high[longest].tolist(), by_start[at].tolist(), strict=True)
    )


def _syncs(states: States, index: StepOps, made: I64) -> tuple[SyncShare, ...]:
    """Waits for devices by kind: how long, the device busy meanwhile, idle after it was done."""
    path, device = states.path, states.device
    rows = index.sync_of_call[made]
    rows = rows[rows >= 0]
    calls, op = path.sync_call[rows], path.sync_op[rows]
    start, end = path.sync_start_ns[rows], path.sync_end_ns[rows]
    busy = np.zeros(len(rows), np.int64)
    for process in np.unique(device.calls.process[calls]).tolist():
        mine = np.flatnonzero(device.calls.process[calls] == process)
        busy[mine] = index.busy[process].until(end[mine]) - index.busy[process].until(start[mine])
    done = np.clip(device.ops.end_ns[op], start, end) if len(device.ops) else end
    over = np.where(op >= 0, end - done, 0)
    found = []
    kinds = device.calls.kind[calls]
    for kind in np.unique(kinds).tolist():
        mine = np.flatnonzero(kinds == kind)
        name = _SYNC_NAMES.get(CallKind(kind), CallKind(kind).name.lower())
        sums = [exact_sum(x[mine]) for x in (end - start, busy, over)]
        found.append(SyncShare(name, len(mine), *sums))
    return tuple(sorted(found, key=lambda share: -share.length_ns))


def _lengths_by_name(states: States, own: I64) -> list[tuple[str, int, int]]:
    """Name, total and count of operations, kernels by their name, others by what they do."""
    ops = states.device.ops
    names, inverse, count = np.unique(
        ops.table["name"][own], return_inverse=True, return_counts=True
    )
    length = (ops.end_ns[own] - ops.start_ns[own]).astype(np.uint64)
    high, low = np.zeros((2, len(names)), np.uint64)
    np.add.at(high, inverse, length >> np.uint64(32))
    np.add.at(low, inverse, length & np.uint64(0xFFFFFFFF))
    total = [(a << 32) + b for a, b in zip(high.tolist(), low.tolist(), strict=True)]
    strings = states.capture.strings
    return [
        (strings[name], length, n)
        for name, length, n in zip(names.tolist(), total, count.tolist(), strict=True)
    ]


def classes(states: States, own: I64) -> tuple[KernelShare, ...]:
    """Operations by class, copies and fills as classes of their own, the longest first."""
    kernels = own[states.device.ops.table["op"][own] == GpuOpKind.KERNEL]
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for name, length, n in _lengths_by_name(states, kernels):
        total[decode(name).cls] += length
        count[decode(name).cls] += n
    for name, kind in _CLASSES.items():
        rows = own[states.device.ops.table["op"][own] == kind]
        if len(rows):
            ops = states.device.ops
            total[name] += exact_sum(ops.end_ns[rows] - ops.start_ns[rows])
            count[name] += len(rows)
    return tuple(KernelShare(str(n), count[n], length) for n, length in total.most_common())


def top(states: States, own: I64) -> tuple[KernelShare, ...]:
    """Operations by name, the longest first."""
    found = sorted(_lengths_by_name(states, own), key=lambda row: (-row[1], row[0]))
    return tuple(KernelShare(name, n, length) for name, length, n in found[:20])


def ledger(states: States, steps: DeviceSteps) -> DeviceLedger:
    """Every record of a device, assigned to a step or counted by why not."""
    device = states.device
    ops, calls = device.ops, device.calls
    how = np.bincount(steps.how, minlength=len(Assigned))
    launching = np.isin(calls.kind, LAUNCHES)
    return DeviceLedger(
        gpu_records=device.records,
        assigned=int((steps.of >= 0).sum()),
        by_launch=int(how[Assigned.BY_LAUNCH]),
        by_stream=int(how[Assigned.BY_STREAM]),
        by_time=int(how[Assigned.BY_TIME]),
        unassigned=tuple(
            (reason, int(how[code])) for code, reason in REASONS.items() if how[code]
        ),
        clamped=int((ops.early_ns > 0).sum()),
        invalid=ops.invalid,
        without_call=int((ops.call < 0).sum()),
        calls=len(calls) + calls.invalid,
        calls_invalid=calls.invalid,
        launches=int(launching.sum()),
        launches_without_record=int((launching & (calls.ops == 0)).sum()),
        repeated_ids=ops.repeated,
        inferred=states.path.guessed,
    )
