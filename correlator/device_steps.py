# SPDX-License-Identifier: Apache-2.0
"""Which step every operation of a device belongs to: the one that launched it.

A step is what a worker's calls for it span (``worker_step``); its operations are those whose
launching call began then, however much later they ran. Without a launch on record a stream's
order tells: what was launched between two launches of one step is that step's. Then the time
tells; either is marked. A process with no steps at all is one step, its whole trace.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.device import timed
from gpucorrelate.correlator.native import flatten
from gpucorrelate.correlator.search import Groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.device import Calls, Device, Ops
    from gpucorrelate.correlator.states import Threads

    I64 = NDArray[np.int64]
    U8 = NDArray[np.uint8]


class Assigned(enum.IntEnum):
    """How an operation came to its step, or why it has none."""

    BY_LAUNCH = 0
    BY_STREAM = 1  # no launch on record; launched between launches of the step, on its stream
    BY_TIME = 2  # no launch on record; it ran while the step's calls ran
    LAUNCHED_OUTSIDE = 3
    LAUNCHED_BEFORE = 4
    RAN_OUTSIDE = 5


#: In words, for those that have no step.
REASONS = {
    Assigned.LAUNCHED_OUTSIDE: "launched outside every step",
    Assigned.LAUNCHED_BEFORE: "launched before the recording",
    Assigned.RAN_OUTSIDE: "no launch recorded, ran outside every step",
}


@dataclass(frozen=True)
class DeviceSteps:
    """Steps as devices see them, by process and start.

    Attributes:
        process: Index of the process.
        number: The step's number.
        thread: Thread that ran it; -1 unknown.
        start_ns: Its calls began.
        end_ns: Its calls returned; its operations may still run then.
        implied: Whether it stands for a whole trace without steps.
        name: What the trace calls it: id in the capture's string table.
        of: Per operation: its step; -1 none.
        how: Per operation: ``Assigned``.
        call_of: Per call: the step during which it began; -1 none.
    """

    process: I64
    number: NDArray[np.uint64]
    thread: I64
    start_ns: I64
    end_ns: I64
    implied: NDArray[np.bool_]
    name: I64
    of: I64
    how: U8
    call_of: I64

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class _Pieces:
    """Stretches in which one step's calls ran, of one process, not overlapping."""

    start_ns: I64
    end_ns: I64
    step: I64

    def at(self, moments: I64) -> I64:
        """The step at each moment; -1 none."""
        if not len(self.start_ns):
            return np.full(len(moments), -1, np.int64)
        i = np.searchsorted(self.start_ns, moments, side="right") - 1
        within = (i >= 0) & (self.end_ns[np.maximum(i, 0)] >= moments)
        return np.where(within, self.step[np.maximum(i, 0)], -1)


@dataclass(frozen=True)
class _Step:
    process: int
    number: int
    thread: int
    start_ns: int
    end_ns: int
    implied: bool
    name: int


def build(capture: Capture, threads: Threads, device: Device) -> DeviceSteps:
    """Find the steps and give each operation its own."""
    worker = capture.table("worker_step")
    worker = worker.select(np.flatnonzero(timed(worker)))
    by_stream = np.argsort(worker["stream"], kind="stable")
    worker = worker.select(by_stream)
    calls_of = Groups.of(device.calls.process, len(device.processes))
    ops_of = Groups.of(device.ops.process, len(device.processes))
    names = _names(capture)
    steps: list[_Step] = []
    pieces: list[_Pieces] = []
    for process, info in enumerate(device.processes):
        low, high = np.searchsorted(worker["stream"], np.array([info.stream, info.stream + 1]))
        mine = worker.select(np.arange(low, high))
        found, piece = _of_process(process, mine, threads, names, len(steps))
        if not found:
            own = calls_of[process], ops_of[process]
            found, piece = _whole(process, device, own, len(steps))
        steps += found
        pieces.append(piece)
    of, how = _assign(device, ops_of, pieces, steps)
    call_of = np.full(len(device.calls), -1, np.int64)
    for process, piece in enumerate(pieces):
        rows = calls_of[process]
        call_of[rows] = piece.at(device.calls.start_ns[rows])
    return DeviceSteps(
        process=_column(step.process for step in steps),
        number=np.array([step.number for step in steps], np.uint64),
        thread=_column(step.thread for step in steps),
        start_ns=_column(step.start_ns for step in steps),
        end_ns=_column(step.end_ns for step in steps),
        implied=np.array([step.implied for step in steps], bool),
        name=_column(step.name for step in steps),
        of=of,
        how=how,
        call_of=call_of,
    )


def _column(values: Iterable[int]) -> I64:
    return np.array(list(values), np.int64)


def _names(capture: Capture) -> dict[tuple[int, int], int]:
    """Stream and step -> the name of its outermost range."""
    spans = capture.table("span")
    spans = spans.select(np.flatnonzero(spans["step"] > 0))
    spans = spans.select(np.flatnonzero(timed(spans)))
    spans = spans.select(np.argsort(spans["start_ns"] - spans["end_ns"], kind="stable"))
    names: dict[tuple[int, int], int] = {}
    for stream, step, name in zip(
        *(spans[c].tolist() for c in ("stream", "step", "name")), strict=True
    ):
        names.setdefault((stream, step), name)
    return names


def _of_process(
    process: int,
    rows: Table,
    threads: Threads,
    names: dict[tuple[int, int], int],
    base: int,
) -> tuple[list[_Step], _Pieces]:
    order = np.lexsort((-rows["end_ns"], rows["start_ns"]))
    rows = rows.select(order)
    numbers, first, inverse = np.unique(rows["step"], return_index=True, return_inverse=True)
    ends = np.zeros(len(numbers), np.int64)
    np.maximum.at(ends, inverse, rows["end_ns"])
    thread = threads.index(rows["tid"][first])
    by_start = np.argsort(rows["start_ns"][first], kind="stable")
    rank = np.empty(len(by_start), np.int64)
    rank[by_start] = np.arange(len(by_start))
    steps = [
        _Step(
            process,
            int(numbers[i]),
            int(thread[i]),
            int(rows["start_ns"][first[i]]),
            int(ends[i]),
            implied=False,
            name=names.get((int(rows["stream"][first[i]]), int(numbers[i])), 0),
        )
        for i in by_start.tolist()
    ]
    _, start, end, row = flatten(np.array([0, len(rows)]), rows["start_ns"], rows["end_ns"])
    step = rank[inverse[row]] + base if len(row) else row
    return steps, _Pieces(start, end, step)


def _whole(
    process: int, device: Device, rows: tuple[I64, I64], base: int
) -> tuple[list[_Step], _Pieces]:
    """All of a process's trace as one step, on the thread that launches most."""
    calls, ops = device.calls, device.ops
    mine, work = rows
    if not len(mine) and not len(work):
        none = np.zeros(0, np.int64)
        return [], _Pieces(none, none, none)
    start = min(_least(calls.start_ns[mine]), _least(ops.start_ns[work]))
    end = max(_most(calls.end_ns[mine]), _most(ops.end_ns[work]))
    threads = calls.thread[mine[calls.ops[mine] > 0]]
    if not len(threads):
        threads = calls.thread[mine]
    known = threads[threads >= 0]
    thread = int(np.bincount(known).argmax()) if len(known) else -1
    step = _Step(process, 1, thread, start, end, implied=True, name=0)
    return [step], _Pieces(np.array([start]), np.array([end]), np.array([base]))


def _least(times: I64) -> int:
    return int(times.min(initial=np.iinfo(np.int64).max))


def _most(times: I64) -> int:
    return int(times.max(initial=0))


def _assign(
    device: Device, ops_of: Groups, pieces: list[_Pieces], steps: list[_Step]
) -> tuple[I64, U8]:
    calls, ops = device.calls, device.ops
    of = np.full(len(ops), -1, np.int64)
    how = np.full(len(ops), int(Assigned.RAN_OUTSIDE), np.uint8)
    launched = ops.call >= 0
    moments = launched_before(calls, ops)
    by_time = np.full(len(ops), -1, np.int64)
    for process, piece in enumerate(pieces):
        rows = ops_of[process]
        with_call = rows[launched[rows]]
        of[with_call] = piece.at(moments[with_call])
        by_time[rows] = piece.at(ops.start_ns[rows])
    how[launched] = np.where(
        of[launched] >= 0, int(Assigned.BY_LAUNCH), int(Assigned.LAUNCHED_OUTSIDE)
    )
    _assign_unlaunched(device, of, how, by_time, np.array([s.implied for s in steps], bool))
    return of, how


def _assign_unlaunched(
    device: Device, of: I64, how: U8, by_time: I64, implied: NDArray[np.bool_]
) -> None:
    """Operations without a launch on record, by their neighbours on the stream, then by time."""
    ops = device.ops
    bare = np.flatnonzero(ops.call < 0)
    if not len(bare):
        return
    known = np.flatnonzero(ops.call >= 0)
    at = np.searchsorted(known, bare)
    before = np.where(at > 0, known[np.maximum(at - 1, 0)] if len(known) else -1, -1)
    after = known[np.minimum(at, max(0, len(known) - 1))] if len(known) else np.full_like(bare, -1)
    after = np.where(at < len(known), after, -1)
    before = np.where((before >= 0) & (ops.stream[before] == ops.stream[bare]), before, -1)
    after = np.where((after >= 0) & (ops.stream[after] == ops.stream[bare]), after, -1)
    between = (before >= 0) & (after >= 0) & (of[before] == of[after]) & (of[before] >= 0)
    earlier = (before < 0) & _older_than_any_call(device, bare)
    ran = by_time[bare]
    whole = (ran >= 0) & implied[np.maximum(ran, 0)] if len(implied) else ran >= 0
    chosen = np.select(
        [whole, between, earlier],
        [int(Assigned.BY_TIME), int(Assigned.BY_STREAM), int(Assigned.LAUNCHED_BEFORE)],
        default=-1,
    )
    chosen = np.where(
        chosen < 0,
        np.where(ran >= 0, int(Assigned.BY_TIME), int(Assigned.RAN_OUTSIDE)),
        chosen,
    )
    how[bare] = chosen
    of[bare] = np.select(
        [chosen == Assigned.BY_TIME, chosen == Assigned.BY_STREAM],
        [ran, of[np.maximum(before, 0)]],
        default=-1,
    )


def _older_than_any_call(device: Device, rows: I64) -> NDArray[np.bool_]:
    """Whether an operation's id is below those of all calls: ids are given in order.

    CUPTI counts correlation ids up, so its call was made before any that is on record.
    """
    ids, calls = device.ops.table["correlation"][rows], device.calls
    least = np.full(len(device.processes), np.iinfo(np.uint64).max, np.uint64)
    with_id = calls.table["correlation"] != 0
    np.minimum.at(least, calls.process[with_id], calls.table["correlation"][with_id])
    older: NDArray[np.bool_] = (ids != 0) & (ids < least[device.ops.process[rows]])
    return older


def launched_before(calls: Calls, ops: Ops) -> I64:
    """When each operation's launch began; the least number where that is not on record."""
    least = np.iinfo(np.int64).min
    if not len(calls):
        return np.full(len(ops), least, np.int64)
    return np.where(ops.call >= 0, calls.start_ns[ops.call], least)
