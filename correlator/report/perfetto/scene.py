# SPDX-License-Identifier: Apache-2.0
"""What all parts of a trace share: the recording, the window, and the tracks of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.native import trace
from gpucorrelate.correlator.report.paths import PathFinder
from gpucorrelate.correlator.report.perfetto.writer import Flows, Slices
from gpucorrelate.correlator.search import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.causes import Describer
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.perfetto.writer import TraceWriter

    I64 = NDArray[np.int64]
    Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """Stretches of time of which all that overlaps them is drawn, whole; empty: all time."""

    stretches: tuple[tuple[int, int], ...] = ()

    @cached_property
    def _merged(self) -> tuple[I64, I64]:
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(self.stretches):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        return np.array(starts, np.int64), np.array(ends, np.int64)

    def __bool__(self) -> bool:
        return bool(self.stretches)

    def holds(self, start_ns: I64, end_ns: I64) -> Mask:
        """Which intervals overlap it."""
        if not self.stretches:
            return np.ones(len(start_ns), bool)
        starts, ends = self._merged
        at = np.searchsorted(starts, end_ns, side="right") - 1
        return np.asarray((at >= 0) & (ends[np.maximum(at, 0)] >= start_ns), bool)


class Scene:
    """A recording on its way into a trace."""

    def __init__(self, run: Run, writer: TraceWriter, window: Window) -> None:
        self.run = run
        self.writer = writer
        self.window = window
        self.paths = PathFinder(run)
        self._threads: dict[tuple[int, int], int] = {}
        self._processes: dict[int, int] = {}
        self._below: dict[tuple[int, str], int] = {}

    @property
    def describe(self) -> Describer:
        """Names things as every report does."""
        return self.paths.describe

    @cached_property
    def _owner(self) -> dict[int, int]:
        return {info.stream: info.tgid for info in self.run.capture.streams}

    def owners(self, stream: NDArray[np.generic]) -> I64:
        """The process that wrote each row; 0 unknown."""
        return mapped(stream, lambda one: self._owner.get(one, 0))

    # -- tracks

    def process(self, pid: int) -> int:
        """The track of a process; 0 is all those that are not known."""
        if pid not in self._processes:
            name, _, _ = self.describe.subject(f"pid:{pid}").rpartition("/")
            shown = (name or "process") if pid else "processes not known"
            self._processes[pid] = self.writer.process(pid, shown, PROCESS_RANK)
        return self._processes[pid]

    def device_process(self, process: int) -> int:
        """The track of one of the device's processes; ranks may share a process id."""
        known = self.run.states.device.processes
        pid = known[process].pid
        if pid and sum(one.pid == pid for one in known) == 1:
            return self.process(pid)
        stream = known[process].stream
        role = next((s.role for s in self.run.capture.streams if s.stream == stream), "")
        return self.below(0, f"{role or 'process'} pid {pid} of stream {stream}", PROCESS_RANK)

    def thread(self, tid: int, pid: int) -> int:
        """The track of a thread."""
        key = (tid, pid)
        if key not in self._threads:
            actor = self.describe.stranger(tid, pid)
            name = (actor.name or actor.role or actor.process) if actor else "no thread"
            self._threads[key] = self.writer.thread(
                pid, tid, name or "thread", self.process(pid), 0 if tid == pid else 1
            )
        return self._threads[key]

    def below(self, parent: int, name: str, rank: int = 0) -> int:
        """A track within another, the same one for a name."""
        key = (parent, name)
        if key not in self._below:
            self._below[key] = self.writer.track(name, parent, rank)
        return self._below[key]

    def by_thread(
        self, tid: NDArray[np.generic], pid: NDArray[np.generic]
    ) -> tuple[I64, list[int]]:
        """Rows by thread: the place of each one's track among the tracks of all threads.

        Args:
            tid: Thread of each row.
            pid: Its process, where threads do not say it.
        """
        threads = self.run.states.threads
        at = threads.index(tid)
        own = np.where(at >= 0, threads.tgid[at], 0) if len(threads.tid) else np.zeros(len(tid))
        whose = np.where(own > 0, own, pid).astype(np.int64)
        group, first = grouped(tid.astype(np.int64), whose)
        return group, [self.thread(int(tid[i]), int(whose[i])) for i in first.tolist()]

    # -- words

    def string_names(self, ids: NDArray[np.generic]) -> I64:
        """Names of events that are the recording's own strings."""
        strings = self.run.capture.strings
        return mapped(ids, lambda one: self.writer.names(strings[one] or "?"))

    def string_texts(self, ids: NDArray[np.generic]) -> I64:
        """The same as details; an empty one is none."""
        strings = self.run.capture.strings
        return mapped(ids, lambda one: self.writer.texts(strings[one]) if strings[one] else 0)

    def who(self, tid: NDArray[np.generic], pid: NDArray[np.generic]) -> I64:
        """Threads as details; nobody is none."""
        number, first = grouped(tid.astype(np.int64), pid.astype(np.int64))
        found = []
        for i in first.tolist():
            actor = self.describe.stranger(int(tid[i]), int(pid[i]))
            found.append(self.writer.texts(actor.shown) if actor is not None else 0)
        return np.array(found, np.int64)[number]


#: Order of what a trace shows at its top level.
ABOUT_RANK, REQUESTS_RANK, PROCESS_RANK, HOST_RANK = 0, 1, 10, 20


def mapped(values: NDArray[np.generic], of: Callable[[int], int]) -> I64:
    """A number for each value, worked out once for each distinct one."""
    distinct, which = np.unique(values, return_inverse=True)
    return np.array([of(int(one)) for one in distinct.tolist()], np.int64)[which]


def together(parts: Sequence[Slices]) -> Slices:
    """Intervals of several kinds as one; a detail that one of them does not have is none."""
    counts = [len(part) for part in parts]

    def joined(columns: Sequence[I64 | None]) -> I64 | None:
        if all(column is None for column in columns):
            return None
        filled = [
            np.zeros(count, np.int64) if column is None else column
            for column, count in zip(columns, counts, strict=True)
        ]
        return np.concatenate(filled)

    args = []
    for name, kind in dict.fromkeys((a.name, a.kind) for part in parts for a in part.args):
        none = -1 if kind == trace.NUMBER else 0
        columns = []
        for part, count in zip(parts, counts, strict=True):
            own = next((a.values for a in part.args if (a.name, a.kind) == (name, kind)), None)
            columns.append(np.full(count, none, np.int64) if own is None else own)
        args.append(trace.Argument(name, kind, np.concatenate(columns)))
    return Slices(
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.end_ns for part in parts]),
        np.concatenate([part.name for part in parts]),
        np.concatenate([np.broadcast_to(part.category, len(part)) for part in parts]),
        tuple(args),
        Flows(
            joined([part.flows.first for part in parts]),
            joined([part.flows.count for part in parts]),
            joined([part.flows.into for part in parts]),
        ),
    )
