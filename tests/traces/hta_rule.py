# SPDX-License-Identifier: Apache-2.0
"""HTA's own rule for why a GPU record began when it did, applied to our joined records.

After ``CPGraph._construct_graph_from_kernels`` and ``TraceCounters`` of HolisticTraceAnalysis
0.5.0, for traces without events that are on record. Where its counts come out of our records, the
two differ in the rule alone and not in what they read.
"""

from __future__ import annotations

import enum
import gzip
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpucorrelate.correlator.report.build import Run

#: The launching functions that it knows.
_KNOWN = frozenset(
    "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cudaMemcpyAsync cudaMemsetAsync "
    "hipLaunchKernel hipExtModuleLaunchKernel hipMemcpyAsync hipMemsetAsync "
    "hipMemcpyWithStream".split()
)
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')


class Theirs(enum.Enum):
    """The edge that a GPU record has with HTA."""

    LAUNCH = "launch"
    GAP = "gap"
    NONE = "none"


class Ours(enum.Enum):
    """What let it go with us."""

    LAUNCHED = "launched"
    FOLLOWED = "followed"
    CROSSED = "crossed"


class Why(enum.Enum):
    """Why the one sees it otherwise than the other."""

    SAME = "same"
    UNDER_WAY = "the call began before the record before it had ended, and returned after"
    UNKNOWN = "its launching function is none that HTA knows"
    NEXT = "the next launch on its stream had begun before it did"
    EVENT = "its stream waited for another stream"
    FIRST = "the first of its stream in the step"


@dataclass(frozen=True)
class Stamps:
    """Moments as HTA has them: whole microseconds, inwards, out of binary fractions."""

    base_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamps:
        """Those of a trace."""
        found = _BASE.search(gzip.decompress(path.read_bytes()))
        return cls(int(found[1]) if found else 0)

    def start(self, start_ns: int) -> int:
        """A start, rounded up."""
        return math.ceil((start_ns - self.base_ns) / 1000)

    def end(self, start_ns: int, end_ns: int) -> int:
        """An end, rounded down."""
        return math.floor((start_ns - self.base_ns) / 1000 + (end_ns - start_ns) / 1000)


class Rule:
    """The rule over one trace."""

    def __init__(self, run: Run, stamps: Stamps) -> None:
        device = run.states.device
        self._run, self._ops, calls = run, device.ops, device.calls
        strings = run.states.capture.strings
        known = np.array([name in _KNOWN for name in strings])[calls.table["name"]]
        self._known = [call >= 0 and bool(known[call]) for call in self._ops.call.tolist()]
        self._called = [
            stamps.start(int(calls.start_ns[call])) if call >= 0 else 0
            for call in self._ops.call.tolist()
        ]
        starts, ends = self._ops.start_ns.tolist(), self._ops.end_ns.tolist()
        self._started = [stamps.start(ns) for ns in starts]
        self._ended = [stamps.end(a, b) for a, b in zip(starts, ends, strict=True)]
        self._alone = self._queue()

    def _queue(self) -> list[bool]:
        """Of each record whether its stream's queue was 1 at its launch and 0 at its start.

        The queue grows with calls that it knows, and shrinks when records start.
        """
        rows = [i for i, known in enumerate(self._known) if known]
        moments = [(self._called[i], 1, i) for i in rows] + [
            (self._started[i], -1, i) for i in rows
        ]
        moments.sort(key=lambda moment: (moment[0], -moment[1]))
        length: Counter[int] = Counter()
        alone = [True] * len(self._known)
        stream = self._ops.stream.tolist()
        for _, change, i in moments:
            length[stream[i]] += change
            alone[i] &= length[stream[i]] == (change > 0)
        return alone

    def edges(self, step: int) -> Counter[tuple[Theirs, Ours, Why]]:
        """The GPU records of a step by the edge that each has, what let it go, and why both."""
        found: Counter[tuple[Theirs, Ours, Why]] = Counter()
        for i, previous in self._in_order(step):
            theirs, ours = self._theirs(i, previous), self._ours(i)
            found[theirs, ours, self._why(i, previous, theirs, ours)] += 1
        return found

    def under_way(self, step: int) -> set[int]:
        """Records that with us were launched, and that HTA has as gaps since the launch began."""
        return {
            i
            for i, previous in self._in_order(step)
            if self._ours(i) is Ours.LAUNCHED and self._under_way(i, previous)
        }

    def _in_order(self, step: int) -> Iterator[tuple[int, int]]:
        """The records in HTA's graph, each with that before it on its stream; -1 none."""
        ops = self._ops
        own = np.flatnonzero((self._run.devices.steps.of == step) & (ops.call >= 0)).tolist()
        # Of several records of one id it has the last.
        last_of_id = {int(ops.table["correlation"][i]): i for i in own}
        before: dict[int, int] = {}
        for i in sorted(last_of_id.values(), key=lambda i: (self._started[i], i)):
            stream = int(ops.stream[i])
            yield i, before.get(stream, -1)
            before[stream] = i

    def _under_way(self, i: int, previous: int) -> bool:
        return previous >= 0 and self._ended[previous] >= self._called[i]

    def _theirs(self, i: int, previous: int) -> Theirs:
        if self._known[i] and self._alone[i] and not self._under_way(i, previous):
            return Theirs.LAUNCH
        return Theirs.GAP if previous >= 0 else Theirs.NONE

    def _ours(self, i: int) -> Ours:
        pred = int(self._run.states.path.pred[i])
        if pred < 0:
            return Ours.LAUNCHED
        return Ours.FOLLOWED if self._ops.stream[pred] == self._ops.stream[i] else Ours.CROSSED

    def _why(self, i: int, previous: int, theirs: Theirs, ours: Ours) -> Why:
        if (theirs.value, ours.value) in {("launch", "launched"), ("gap", "followed")}:
            return Why.SAME
        if ours is Ours.CROSSED:
            return Why.EVENT
        if ours is Ours.FOLLOWED:
            return Why.FIRST if previous < 0 else Why.NEXT
        if not self._known[i]:
            return Why.UNKNOWN
        return Why.UNDER_WAY if self._under_way(i, previous) else Why.NEXT
