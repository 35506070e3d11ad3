# SPDX-License-Identifier: Apache-2.0
"""Who came late to what all processes do together.

The kernel of a collective runs from when its process comes to it until all have come and the
transfer is done, so the process that came last has the shortest. Kernels are taken for one
collective by identity and order: the same name, equally often in the steps of one number of all
processes that communicate in them, and of those the same place. As a check, all of them must have
run at one moment and have ended together, as far as the trace's clocks agree. Where they did not,
the clocks are not one, or the collectives are of different groups, and nothing is said.

By how much the ends are apart, moments may be off: nothing shorter is called a wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.kernels import KernelClass
from gpucorrelate.correlator.report.device_values import RankSkew, Skew, StepSkew
from gpucorrelate.correlator.search import exact_sum, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.device_accounts import OpClasses
    from gpucorrelate.correlator.device_steps import DeviceSteps
    from gpucorrelate.correlator.states import States

    I64 = NDArray[np.int64]

#: Processes leave a collective within some microseconds of each other (eight V100s of a host: 2
#: to 7); what ends further apart is not taken for one.
_TOGETHER_NS = 50_000
_ALONE = "not as often in every process"
_APART = "did not end together"
_OUTSIDE = "in no step"


@dataclass(frozen=True)
class _Together:
    """The kernels of one collective after another: a row for each step, a column for each."""

    steps: I64  # of each row
    ops: I64

    def off_ns(self, end_ns: I64) -> I64:
        """How far apart the ends of each collective's kernels are."""
        ends = end_ns[self.ops]
        apart: I64 = ends.max(axis=0) - ends.min(axis=0)
        return apart


class Collectives:
    """What communication kernels of several processes belong together, and who waited.

    Args:
        states: The recording.
        steps: Its steps.
        classes: Classes of its operations.
    """

    def __init__(self, states: States, steps: DeviceSteps, classes: OpClasses) -> None:
        self._s = states
        self._steps = steps
        self.is_communication = classes.are(KernelClass.COMMUNICATION)

    @cached_property
    def waited_ns(self) -> I64:
        """Per operation: how long at least it waited for other processes; -1 unknown."""
        found = np.full(len(self._s.device.ops), -1, np.int64)
        for one in self._compared[0]:
            found[one.ops] = self._waits(one)
        return found

    def skew(self, labels: Sequence[str]) -> Skew | None:
        """Who held up whom; None where there is one process only.

        Args:
            labels: A name for each process.
        """
        if len(self._s.device.processes) < 2:
            return None
        compared, left_out = self._compared
        by_number: dict[int, list[_Together]] = defaultdict(list)
        for one in compared:
            by_number[int(self._steps.number[one.steps[0]])].append(one)
        steps = tuple(
            self._step(number, by_number[number], labels) for number in sorted(by_number)
        )
        return Skew(
            sum(step.collectives for step in steps),
            tuple((reason, n) for reason, n in left_out.items() if n),
            _summed(steps),
            steps,
        )

    def _step(self, number: int, parts: Sequence[_Together], labels: Sequence[str]) -> StepSkew:
        ops = self._s.device.ops
        sums: dict[int, list[int]] = {}
        off_ns = 0
        for one in parts:
            off = one.off_ns(ops.end_ns)
            off_ns = max(off_ns, int(off.max()))
            length = ops.end_ns[one.ops] - ops.start_ns[one.ops]
            waited = self._waits(one)
            last = _last(ops.start_ns[one.ops], off)
            longest = waited.max(axis=0)
            for row, step in enumerate(one.steps.tolist()):
                mine = last == row
                figures = (length[row], waited[row], mine, np.where(mine, longest, 0))
                known = sums.setdefault(int(self._steps.process[step]), [0] * len(figures))
                for i, values in enumerate(figures):
                    known[i] += exact_sum(values)
        return StepSkew(
            number,
            sum(one.ops.shape[1] for one in parts),
            off_ns,
            tuple(RankSkew(labels[process], *sums[process]) for process in sorted(sums)),
        )

    def _waits(self, one: _Together) -> I64:
        """How long at least each kernel waited for others: as far as it outlasted the shortest."""
        ops = self._s.device.ops
        length = ops.end_ns[one.ops] - ops.start_ns[one.ops]
        waited: I64 = np.maximum(length - length.min(axis=0) - one.off_ns(ops.end_ns), 0)
        return waited

    @cached_property
    def _compared(self) -> tuple[tuple[_Together, ...], Counter[str]]:
        """Kernels that belong together, and how many do not, by reason."""
        left_out: Counter[str] = Counter()
        rows = np.flatnonzero(self.is_communication)
        step = self._steps.of[rows]
        left_out[_OUTSIDE] = int((step < 0).sum())
        rows, step = rows[step >= 0], step[step >= 0]
        found: list[_Together] = []
        for places in _groups(self._steps.number[step].astype(np.int64)):
            if len(np.unique(step[places])) > 1:
                found += self._of_number(rows[places], step[places], left_out)
            else:
                left_out[_ALONE] += len(places)
        return tuple(found), left_out

    def _of_number(self, rows: I64, step: I64, left_out: Counter[str]) -> Iterator[_Together]:
        """Those of the steps of one number, name by name."""
        ops = self._s.device.ops
        taking_part = np.unique(step)
        names = ops.table["name"][rows].astype(np.int64)
        order = np.lexsort((ops.start_ns[rows], step, names))
        rows, step, names = rows[order], step[order], names[order]
        for places in _groups(names):
            of, count = np.unique(step[places], return_counts=True)
            if len(of) != len(taking_part) or len(np.unique(count)) > 1:
                left_out[_ALONE] += len(places)
                continue
            one = _Together(of, rows[places].reshape(len(of), -1))
            start, end = ops.start_ns[one.ops], ops.end_ns[one.ops]
            good = one.off_ns(ops.end_ns) <= _TOGETHER_NS
            good &= start.max(axis=0) < end.min(axis=0)
            left_out[_APART] += int((~good).sum()) * len(of)
            if good.any():
                yield _Together(of, one.ops[:, good])


def _groups(values: I64) -> Iterator[I64]:
    """The places of each distinct value, in their own order."""
    if not len(values):
        return
    number, _ = grouped(values)
    order = np.argsort(number, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def _last(start: I64, off_ns: I64) -> I64:
    """Per column the row that began last, by more than the moments may be off; -1 none."""
    row = start.argmax(axis=0)
    ordered = np.sort(start, axis=0)
    return np.where(ordered[-1] - ordered[-2] > off_ns, row, -1)


def _summed(steps: Iterable[StepSkew]) -> tuple[RankSkew, ...]:
    """Over all steps, who held up the others longest first."""
    sums: dict[str, tuple[int, int, int, int]] = {}
    for step in steps:
        for one in step.ranks:
            a, b, c, d = sums.get(one.process, (0, 0, 0, 0))
            sums[one.process] = (
                a + one.length_ns, b + one.waited_ns, c + one.last, d + one.held_up_ns,
            )  # fmt: skip
    found = [RankSkew(process, *figures) for process, figures in sums.items()]
    return tuple(sorted(found, key=lambda one: -one.held_up_ns))
