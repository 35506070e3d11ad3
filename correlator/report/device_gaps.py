# SPDX-License-Identifier: Apache-2.0
"""Idle gaps of a step, with five questions answered of each.

What was launched before it; what the host was at, in calls, between them, or communicating; which
copies bound it or ran meanwhile; which communication did, and whether that waited for others; and
which completion, received data and launch let the next work go.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import device_accounts as accounts
from gpucorrelate.correlator.device_words import DeviceWords, stream_actor
from gpucorrelate.correlator.report.device_values import (
    GapHost,
    GapOp,
    GapReturn,
    IdleGap,
    KernelShare,
)
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import exact_sum
from gpucorrelate.correlator.walk import LegSpec
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.causes import Describer
    from gpucorrelate.correlator.device import Calls, Ops
    from gpucorrelate.correlator.report.device_skew import Collectives
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.walk import Paths, Walker

    I64 = NDArray[np.int64]

_SHOWN = 5
#: Operations of other steps that are told one by one, of copies and of communication.
_NAMED = 4
_HOLDERS = 6
_CALLS = 6
#: Clocks of hosts and devices are aligned to about a microsecond.
_SKEW_NS = 2_000
_KINDS: dict[int, str] = {
    GpuOpKind.KERNEL: "kernel",
    GpuOpKind.MEMCPY: "copy",
    GpuOpKind.MEMSET: "fill",
}


class Gaps:
    """Finds the idle gaps of steps and what is to be said of them.

    Args:
        states: The recording.
        walker: Walks it.
        describe: Puts paths into words.
        classes: Classes of operations.
        collectives: Which operations communicate, and how long they waited.
    """

    def __init__(
        self,
        states: States,
        walker: Walker,
        describe: Describer,
        classes: accounts.OpClasses,
        collectives: Collectives,
    ) -> None:
        self._s = states
        self._walker = walker
        self._describe = describe
        self._words = DeviceWords(states)
        self._classes = classes
        self._collectives = collectives

    def of(self, own: I64, name: str) -> tuple[IdleGap, ...]:
        """The longest, the longest first.

        Args:
            own: The step's operations.
            name: What the trace calls the step.
        """
        if not len(own):
            return ()
        found = accounts.idle_gaps(self._s.device, own, _SHOWN)
        actors = self._s.path.actor
        paths = self._walker.walk(
            [LegSpec(int(actors[op]), start, end, (), op) for start, end, op in found]
        )
        return tuple(
            self._gap(gap, own, self._doing(paths, k, name)) for k, gap in enumerate(found)
        )

    def _gap(
        self, gap: tuple[int, int, int], own: I64, doing: tuple[tuple[str, int], ...]
    ) -> IdleGap:
        start, end, after = gap
        ops, calls = self._s.device.ops, self._s.device.calls
        before = int(own[ops.end_ns[own] == start][0])
        others = self._others(int(ops.process[after]), start, end)
        launched = calls.start_ns[ops.call[own]] if len(calls) else np.zeros(len(own), np.int64)
        pending = (ops.call[own] >= 0) & (launched <= start) & (ops.start_ns[own] > start)
        communicates = self._collectives.is_communication
        copies = ops.table["op"] == GpuOpKind.MEMCPY
        completion, waited_for = self._completion(after, start)
        return IdleGap(
            start_ns=start,
            end_ns=end,
            before=self._op(before),
            after=self._op(after),
            pending=int(pending.sum()),
            host=self._host(after, start, end),
            copies=self._parts(copies, before, others, after),
            communication=self._parts(communicates, before, others, after),
            meanwhile=self._meanwhile(others, start, end),
            completion=completion,
            receive=self._receive(after, waited_for),
            doing=doing,
        )

    def _doing(self, paths: Paths, k: int, name: str) -> tuple[tuple[str, int], ...]:
        """Who had the path with what; time between calls is the host's, whatever the step."""
        sums: Counter[str] = Counter()
        for one in self._describe.segments(paths.leg(k), ()):
            what = f"{one.category.value} {one.span}".strip()
            if one.category is Category.HOST and one.span in ("", name):
                what = "host between calls"
            sums[f"{what} in {one.actor.label}"] += one.length_ns
        return tuple(sums.most_common(_HOLDERS))

    # Operations.

    def _op(self, op: int) -> GapOp:
        device = self._s.device
        ops, calls = device.ops, device.calls
        kind, copy = int(ops.table["op"][op]), int(ops.table["copy"][op])
        call, size = int(ops.call[op]), int(ops.table["bytes"][op])
        waited = int(self._collectives.waited_ns[op])
        return GapOp(
            name=self._words.operation(op),
            kind=_KINDS.get(kind, "unknown"),
            stream=stream_actor(device, int(ops.stream[op])).label,
            start_ns=int(ops.start_ns[op]),
            end_ns=int(ops.end_ns[op]),
            direction=_direction(copy) if kind == GpuOpKind.MEMCPY else None,
            size_bytes=size if size and kind != GpuOpKind.KERNEL else None,
            launch=self._words.call(call) if call >= 0 else None,
            launched_ns=int(calls.start_ns[call]) if call >= 0 else None,
            thread=self._thread(call),
            waited_ns=waited if waited >= 0 else None,
        )

    def _thread(self, call: int) -> str | None:
        """Who made a call."""
        thread = int(self._s.device.calls.thread[call]) if call >= 0 else -1
        return self._describe.actor(thread).label if thread >= 0 else None

    @cached_property
    def _of_process(self) -> tuple[_Overlaps, ...]:
        device = self._s.device
        return tuple(
            _Overlaps(np.flatnonzero(device.ops.process == k), device.ops)
            for k in range(len(device.processes))
        )

    def _others(self, process: int, start: int, end: int) -> I64:
        """What the process's devices ran in the gap: of other steps, for none of its own did."""
        return self._of_process[process].within(start, end)

    def _parts(
        self, chosen: NDArray[np.bool_], before: int, others: I64, after: int
    ) -> tuple[tuple[str, GapOp], ...]:
        """Operations of a sort at the gap, of those meanwhile the longest."""
        ops = self._s.device.ops
        others = others[chosen[others]]
        longest = others[np.argsort(ops.start_ns[others] - ops.end_ns[others], kind="stable")]
        found = [("meanwhile", op) for op in np.sort(longest[:_NAMED]).tolist()]
        if chosen[before]:
            found.insert(0, ("before", before))
        if chosen[after]:
            found.append(("after", after))
        return tuple((when, self._op(op)) for when, op in found)

    def _meanwhile(self, others: I64, start: int, end: int) -> tuple[KernelShare, ...]:
        """Other steps' operations by class, as far as they lie in the gap."""
        ops, classes = self._s.device.ops, self._classes.of[others]
        length = np.minimum(ops.end_ns[others], end) - np.maximum(ops.start_ns[others], start)
        found = [
            KernelShare(
                self._classes.names[one],
                int((classes == one).sum()),
                exact_sum(length[classes == one]),
            )
            for one in np.unique(classes).tolist()
        ]
        return tuple(sorted(found, key=lambda share: -share.length_ns))

    # The host.

    @cached_property
    def _of_thread(self) -> tuple[_Overlaps, ...]:
        """Outermost calls of each thread."""
        calls = self._s.device.calls
        off = np.searchsorted(calls.thread, np.arange(len(self._s.threads.tid) + 1))
        found = []
        for low, high in zip(off[:-1].tolist(), off[1:].tolist(), strict=True):
            rows = np.arange(low, high)
            reach = np.maximum.accumulate(calls.end_ns[rows])
            outer = np.concatenate(([True], calls.start_ns[rows][1:] >= reach[:-1]))[: len(rows)]
            found.append(_Overlaps(rows[outer], calls))
        return tuple(found)

    @cached_property
    def _communicating_calls(self) -> NDArray[np.bool_]:
        """Per call: whether it launched communication."""
        device = self._s.device
        found = np.zeros(len(device.calls), bool)
        calls = device.ops.call[self._collectives.is_communication]
        found[calls[calls >= 0]] = True
        return found

    def _host(self, after: int, start: int, end: int) -> GapHost | None:
        """What the thread that launched the next work did meanwhile."""
        calls = self._s.device.calls
        call = int(self._s.device.ops.call[after])
        thread = int(calls.thread[call]) if call >= 0 else -1
        if thread < 0:
            return None
        rows = self._of_thread[thread].within(start, end)
        length = np.minimum(calls.end_ns[rows], end) - np.maximum(calls.start_ns[rows], start)
        by_name: Counter[str] = Counter()
        for row, ns in zip(rows.tolist(), length.tolist(), strict=True):
            by_name[self._words.call(row)] += ns
        waiting, waiting_for_others = self._waiting(thread, start, end)
        launching = int(length[self._communicating_calls[rows]].sum())
        return GapHost(
            thread=self._describe.actor(thread).label,
            in_calls_ns=int(length.sum()),
            between_calls_ns=end - start - int(length.sum()),
            waiting_ns=waiting,
            communication_ns=launching + waiting_for_others,
            calls=tuple(by_name.most_common(_CALLS)),
        )

    def _waiting(self, thread: int, start: int, end: int) -> tuple[int, int]:
        """How long a thread waited for devices, and of that for communication."""
        path, ops = self._s.path, self._s.device.ops
        low, high = (int(path.sync_off[thread + k]) for k in (0, 1))
        low += int(np.searchsorted(path.sync_end_ns[low:high], start, side="right"))
        high = low + int(np.searchsorted(path.sync_start_ns[low:high], end))
        rows = np.arange(low, high)
        rows = rows[path.sync_op[rows] >= 0]
        op = path.sync_op[rows]
        until = np.minimum(np.minimum(path.sync_end_ns[rows], ops.end_ns[op]), end)
        length = np.maximum(until - np.maximum(path.sync_start_ns[rows], start), 0)
        return int(length.sum()), int(length[self._collectives.is_communication[op]].sum())

    # What let the next work go.

    def _completion(self, after: int, start: int) -> tuple[GapReturn | None, int]:
        """The last wait for a device that ended in the gap before the launch; what it was for."""
        calls, path, ops = self._s.device.calls, self._s.path, self._s.device.ops
        call = int(ops.call[after])
        thread = int(calls.thread[call]) if call >= 0 else -1
        if thread < 0:
            return None, -1
        low, high = (int(path.sync_off[thread + k]) for k in (0, 1))
        until = int(calls.start_ns[call])
        at = low + int(np.searchsorted(path.sync_end_ns[low:high], until, side="right")) - 1
        while at >= low and int(path.sync_end_ns[at]) >= start - _SKEW_NS:
            op = int(path.sync_op[at])
            if op >= 0:
                name = self._words.call(int(path.sync_call[at]))
                returned, ended = int(path.sync_end_ns[at]), int(ops.end_ns[op])
                return GapReturn(name, returned, self._words.operation(op), ended), op
            at -= 1
        return None, -1

    def _receive(self, after: int, waited_for: int) -> GapOp | None:
        """The communication that the next work, or its launch, had to wait for."""
        for op in (int(self._s.path.pred[after]), waited_for):
            if op >= 0 and self._collectives.is_communication[op]:
                return self._op(op)
        return None


def _direction(copy: int) -> str | None:
    """``HtoD``; None unknown."""
    known = copy in CopyKind.__members__.values() and copy != CopyKind.UNKNOWN
    return CopyKind(copy).name.replace("TO", "to") if known else None


class _Overlaps:
    """Rows by start, to be asked which lie in a stretch."""

    def __init__(self, rows: I64, timed: Ops | Calls) -> None:
        self._rows = rows[np.argsort(timed.start_ns[rows], kind="stable")]
        self._start, self._end = timed.start_ns[self._rows], timed.end_ns[self._rows]
        self._reach = np.maximum.accumulate(self._end)

    def within(self, start: int, end: int) -> I64:
        """Rows of which a part lies between two moments."""
        low = int(np.searchsorted(self._reach, start, side="right"))
        high = int(np.searchsorted(self._start, end))
        return self._rows[low:high][self._end[low:high] > start]
