# SPDX-License-Identifier: Apache-2.0
"""Reports of a profile: steps as devices see them, their paths and accounts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import device_accounts as accounts
from gpucorrelate.correlator.device import LAUNCHES, CallKind
from gpucorrelate.correlator.kernels import decode
from gpucorrelate.correlator.report import device_verdict
from gpucorrelate.correlator.report.device_gaps import Gaps
from gpucorrelate.correlator.report.device_skew import Collectives
from gpucorrelate.correlator.report.device_values import (
    DeviceLedger,
    DeviceRunReport,
    DeviceShare,
    DeviceStepReport,
    DeviceStepRow,
    KernelShare,
    PathCommunication,
    PathCopies,
)
from gpucorrelate.correlator.report.names import named
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import busy_union_ns, exact_sum
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError
from gpucorrelate.probes.wire.schema import GpuOpKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.causes import Describer
    from gpucorrelate.correlator.device_steps import DeviceSteps
    from gpucorrelate.correlator.report.values import Ledger, Segment
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.walk import Walker

_BATCH = 64
_GPU = CATEGORIES.index(Category.GPU)
_GPU_EARLIER = CATEGORIES.index(Category.GPU_EARLIER)


class DeviceRun:
    """A recording seen from its devices; reports are built when asked for."""

    def __init__(
        self, states: States, walker: Walker, describe: Describer, ledger: Ledger
    ) -> None:
        self._s = states
        self._walker = walker
        self._describe = describe
        self._ledger = ledger
        self._index = accounts.StepOps.of(states, self.steps)

    @property
    def steps(self) -> DeviceSteps:
        """The steps."""
        return self._s.device_steps

    @cached_property
    def ledger(self) -> DeviceLedger:
        """What became of every record."""
        return accounts.ledger(self._s, self.steps)

    def rows(self) -> tuple[DeviceStepRow, ...]:
        """One row per step, in order of process and time."""
        # Paths of a few at a time: steps may overlap, and their paths then are of any length.
        return tuple(
            row
            for at in range(0, len(self.steps), _BATCH)
            for row in self._rows(range(at, min(at + _BATCH, len(self.steps))))
        )

    def find(self, number: int, process: str = "") -> int:
        """The step of that number.

        Raises:
            NotFoundError: there is none.
            UsageError: several processes have one.
        """
        if process and process not in self._labels:
            raise NotFoundError(f"no process {process!r} (there are: {named(self._labels, 8)})")
        found = [
            i
            for i in np.flatnonzero(self.steps.number == number).tolist()
            if process in ("", self._process(int(self.steps.process[i])))
        ]
        if not found:
            numbers = self.steps.number
            known = f"{int(numbers.min())} to {int(numbers.max())}" if len(numbers) else "none"
            raise NotFoundError(
                f"step {number} was not recorded (recorded: {known})",
                hint="list them: gpucorrelate steps",
            )
        if len(found) > 1:
            several = named([self._process(int(self.steps.process[i])) for i in found])
            raise UsageError(
                f"{len(found)} processes have a step {number}: {several}",
                hint="say which: --process NAME",
            )
        return found[0]

    def slowest(self, count: int) -> list[int]:
        """The slowest steps, slowest first."""
        walls = [(self._leg(i).start_ns - self._leg(i).end_ns, i) for i in range(len(self.steps))]
        return [i for _, i in sorted(walls)[:count]]

    def report(self, step: int) -> DeviceStepReport:
        """One step in full."""
        outline, segments = self.parts(step)
        return replace(outline, segments=tuple(segments))

    def parts(self, step: int) -> tuple[DeviceStepReport, Iterator[Segment]]:
        """A report without its segments, and those one after another: there may be millions."""
        leg = self._leg(step)
        paths = self._walker.walk([leg])
        rows = self._owned(paths.leg(0), step)
        by_category = _by_category(rows)
        communication, copies = self._communication(rows), self._copies(rows)
        device = accounts.account(self._s, self.steps, self._index, step)
        outline = DeviceStepReport(
            step=int(self.steps.number[step]),
            name=self._name(step),
            process=self._process(int(self.steps.process[step])),
            start_ns=leg.start_ns,
            end_ns=leg.end_ns,
            implied=bool(self.steps.implied[step]),
            segments=(),
            by_category=by_category,
            device=device,
            communication=communication,
            copies=copies,
            gaps=self._gaps.of(self._index.own(step), self._name(step)),
            verdict=device_verdict.of(
                by_category,
                (device, communication, copies),
                self.ledger,
                leg.end_ns - leg.start_ns,
            ),
            device_ledger=self.ledger,
            ledger=self._ledger,
        )
        return outline, self._describe.each(rows, ())

    def reports(self) -> Iterator[DeviceStepReport]:
        """Every step in full, in order of process and time."""
        return map(self.report, range(len(self.steps)))

    def whole(self) -> DeviceRunReport:
        """The whole profile."""
        rows = self.rows()
        categories: Counter[Category] = Counter()
        for row in rows:
            categories.update(dict(row.by_category))
        everything = np.arange(len(self._s.device.ops))
        return DeviceRunReport(
            start_ns=self._s.start_ns,
            end_ns=self._s.end_ns,
            sources=self._sources(),
            devices=tuple(self._devices()),
            steps=rows,
            classes=accounts.classes(self._s, everything),
            top=accounts.top(self._s, everything),
            device_ledger=self.ledger,
            ledger=self._ledger,
            skew=self._collectives.skew(self._labels),
            by_category=tuple(categories.most_common()),
        )

    # Parts.

    def _leg(self, step: int) -> LegSpec:
        own = self._index.own(step)
        start, end, op = accounts.window(self._s.device, self.steps, step, own)
        actor = int(self._s.path.actor[op]) if op >= 0 else int(self.steps.thread[step])
        return LegSpec(actor, start, end, (), op)

    def _rows(self, chosen: Sequence[int]) -> Iterator[DeviceStepRow]:
        legs = [self._leg(i) for i in chosen]
        paths = self._walker.walk(legs)
        for k, (step, leg) in enumerate(zip(chosen, legs, strict=True)):
            yield self._row(step, leg, _by_category(self._owned(paths.leg(k), step)))

    def _row(
        self, step: int, leg: LegSpec, by_category: tuple[tuple[Category, int], ...]
    ) -> DeviceStepRow:
        ops, own = self._s.device.ops, self._index.own(step)
        kinds = self._s.device.calls.kind[self._index.made(step)]
        return DeviceStepRow(
            step=int(self.steps.number[step]),
            name=self._name(step),
            process=self._process(int(self.steps.process[step])),
            start_ns=leg.start_ns,
            end_ns=leg.end_ns,
            implied=bool(self.steps.implied[step]),
            ops=len(own),
            launches=int(np.isin(kinds, LAUNCHES).sum()),
            graph_launches=int((kinds == CallKind.GRAPH_LAUNCH).sum()),
            gpu_sum_ns=exact_sum(ops.end_ns[own] - ops.start_ns[own]),
            gpu_busy_ns=busy_union_ns(ops.start_ns[own], ops.end_ns[own]),
            by_category=by_category,
        )

    def _owned(self, rows: NDArray[np.void], step: int) -> NDArray[np.void]:
        """The walk's segments, work that the step did not launch told apart."""
        gpu = np.flatnonzero(rows["category"] == _GPU)
        rows = rows.copy()
        rows["category"][gpu[self.steps.of[rows["evidence"][gpu]] != step]] = _GPU_EARLIER
        return rows

    def _communication(self, rows: NDArray[np.void]) -> PathCommunication:
        """Own communication kernels on a path, and how long they are known to have waited."""
        own = rows[rows["category"] == _GPU]
        own = own[self._collectives.is_communication[own["evidence"]]]
        waited = self._collectives.waited_ns[own["evidence"]]
        # A kernel waits first, and transfers then.
        until = self._s.device.ops.start_ns[own["evidence"]] + np.maximum(waited, 0)
        known = np.maximum(np.minimum(own["end"], until) - own["start"], 0)
        return PathCommunication(
            exact_sum(own["end"] - own["start"]),
            None if len(own) and (waited < 0).all() else exact_sum(known),
        )

    def _copies(self, rows: NDArray[np.void]) -> PathCopies:
        """Own copies and fills on a path, and own kernels."""
        own = rows[rows["category"] == _GPU]
        kind = self._s.device.ops.table["op"][own["evidence"]]
        length = own["end"] - own["start"]
        copies, fills, kernels = (
            exact_sum(length[kind == op])
            for op in (GpuOpKind.MEMCPY, GpuOpKind.MEMSET, GpuOpKind.KERNEL)
        )
        return PathCopies(copies, fills, kernels)

    def _devices(self) -> Iterable[DeviceShare]:
        device = self._s.device
        keys = [(s.process, s.device) for s in device.streams]
        first: dict[tuple[int, int], int] = {}
        of = np.array([first.setdefault(k, i) for i, k in enumerate(keys)], np.int64)
        of = of[device.ops.stream]
        order = np.argsort(of, kind="stable")
        begins = np.flatnonzero(np.diff(of[order], prepend=-1))
        for rows in np.split(order, begins[1:]) if len(order) else ():
            i = int(of[rows[0]])
            start, end = device.ops.start_ns[rows], device.ops.end_ns[rows]
            yield DeviceShare(
                self._process(keys[i][0]),
                keys[i][1],
                len(rows),
                exact_sum(end - start),
                busy_union_ns(start, end),
                int(end.max() - start.min()),
            )

    @cached_property
    def _classes(self) -> accounts.OpClasses:
        return accounts.OpClasses.read(self._s)

    @cached_property
    def _collectives(self) -> Collectives:
        return Collectives(self._s, self.steps, self._classes)

    @cached_property
    def _gaps(self) -> Gaps:
        return Gaps(self._s, self._walker, self._describe, self._classes, self._collectives)

    @cached_property
    def _roles(self) -> dict[int, str]:
        return {info.stream: info.role for info in self._s.capture.streams}

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """A name for each process that no other has."""
        names = []
        for process in self._s.device.processes:
            role = self._roles.get(process.stream, "")
            names.append(role if role and role != "?" else f"pid {process.pid}")
        twice = {name for name, n in Counter(names).items() if n > 1}
        known = self._s.device.processes
        named = [
            f"{name} pid {process.pid}" if name in twice and not name.startswith("pid ") else name
            for name, process in zip(names, known, strict=True)
        ]
        again = {name for name, n in Counter(named).items() if n > 1}
        return tuple(
            f"{name} stream {process.stream}" if name in again else name
            for name, process in zip(named, known, strict=True)
        )

    def _process(self, process: int) -> str:
        return self._labels[process]

    def _name(self, step: int) -> str:
        return self._s.capture.strings[int(self.steps.name[step])]

    def _sources(self) -> tuple[str, ...]:
        return tuple(fact.value for fact in self._s.capture.facts("import"))


def _by_category(rows: NDArray[np.void]) -> tuple[tuple[Category, int], ...]:
    """Path time by category, the longest first."""
    sums = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(sums, rows["category"], rows["end"] - rows["start"])
    found = [(CATEGORIES[i], int(sums[i])) for i in np.flatnonzero(sums).tolist()]
    return tuple(sorted(found, key=lambda pair: (-pair[1], pair[0])))


def merged(shares: Sequence[KernelShare]) -> tuple[KernelShare, ...]:
    """Shares with the same short name as one, the longest first."""
    by_name: dict[str, tuple[int, int]] = {}
    for share in shares:
        short = decode(share.name).short
        count, length = by_name.get(short, (0, 0))
        by_name[short] = (count + share.count, length + share.length_ns)
    found = sorted(by_name.items(), key=lambda item: -item[1][1])
    return tuple(KernelShare(name, count, length) for name, (count, length) in found)
