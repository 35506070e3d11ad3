# SPDX-License-Identifier: Apache-2.0
"""What of the host matters to a process and all below it, live and without a recording.

The same pollers as a session's, read by whoever asks; the same rules as a report's say what is
worth a word.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.correlator import context_rules as rules
from gpucorrelate.correlator.report.context_values import ContextChange, ContextNumber
from gpucorrelate.daemon import tree
from gpucorrelate.daemon.host_sources import SOURCES
from gpucorrelate.daemon.slow import session_tasks, shared_tasks
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.host.reading import Missing, Round, Standing
from gpucorrelate.probes.wire.roles import ROLE
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from gpucorrelate.daemon.host_sources import Poller
    from gpucorrelate.daemon.slow import Task
    from gpucorrelate.probes.host.procfs import Process
    from gpucorrelate.probes.host.reading import Change, Reading

#: Numbers and names that are remembered; beyond that all is forgotten and learnt anew.
_MOST_KNOWN = 1 << 16
#: Levels of GPUs that are told, and by how much they must have changed: in their unit, or in
#: per cent of what was told before, whichever is more.
_LEVELS = {
    "gpu.utilization.gpu": (10, 0),
    "gpu.utilization.memory": (10, 0),
    "gpu.memory.used": (256 << 20, 2),
    "gpu.clocks.sm": (100, 5),
    "gpu.power.draw": (25_000, 10),
    "gpu.temperature.gpu": (5, 0),
}
_PROCESS = "process"


@dataclass(frozen=True)
class Lack:
    """A source of numbers that cannot be read, or a single thing of it.

    Attributes:
        source: Which.
        reasons: Why; whose it would be is among them.
        all_of_it: Nothing of the source can be read.
    """

    source: str
    reasons: tuple[str, ...]
    all_of_it: bool


@dataclass(frozen=True)
class Vitals:
    """What mattered between two looks.

    Attributes:
        since_ns: The look before; 0 at the first.
        t_ns: This look, CLOCK_MONOTONIC.
        processes: How many there are; 0: the one that was asked for has ended.
        threads: How many they have.
        numbers: Totals that grew by what is worth a word, and levels of GPUs that changed.
        changes: What is no number and became another.
        lacks: What cannot be read, where that is news.
    """

    since_ns: int
    t_ns: int
    processes: int
    threads: int
    numbers: tuple[ContextNumber, ...] = ()
    changes: tuple[ContextChange, ...] = ()
    lacks: tuple[Lack, ...] = ()


class VitalSigns:
    """Looks at a process, all below it, their cgroups and the machine; a context manager.

    Args:
        pid: The process, or one of its threads.

    Raises:
        NoSuchProcessError: there is none.
        NotAnEngineError: it is a kernel thread.
        NotPermittedError: it is another user's.
    """

    def __init__(self, pid: int) -> None:
        self.root = tree.target(pid, os.geteuid())
        self._pollers: dict[str, Poller] = {name: make() for name, make in SOURCES.items()}
        # An engine's own metrics are left to the daemon, which is asked once for all who watch.
        self._tasks: list[Task] = [*shared_tasks(), *session_tasks(engine_every_ns=0)]
        self._values: dict[tuple[str, str], int] = {}
        self._levels: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}
        self._lacks: dict[str, Lack] = {}
        self._doubted: dict[str, Lack] = {}
        self._known: dict[int, str] = {}
        self._looked_ns = 0

    def look(self) -> Vitals:
        """What changed since the last look; the first one only learns how everything is."""
        now_ns = time.monotonic_ns()
        since_ns, self._looked_ns = self._looked_ns, now_ns
        processes = {one.pid: one.stat.comm for one in self._living()}
        if not processes:
            return Vitals(since_ns, now_ns, 0, 0)
        changes = [*self._came_and_went(processes, since_ns, now_ns)] if since_ns else []
        self._known = processes
        pids = tuple(processes)
        readings: list[Reading] = []
        lacks: list[Lack] = []
        for name, found, standing in self._ask(pids, now_ns, everything=not since_ns):
            readings += found.sample.readings
            changes += self._changes(found.changes, since_ns)
            lacks += self._lack(name, standing)
        numbers = sorted(
            self._numbers(readings, since_ns, now_ns), key=lambda one: (one.rank, -one.grown)
        )
        if len(self._values) > _MOST_KNOWN or len(self._names) > _MOST_KNOWN:
            self._values, self._names = {}, {}
        threads = sum(len(procfs.thread_ids(pid)) for pid in pids)
        return Vitals(
            since_ns, now_ns, len(pids), threads, tuple(numbers), tuple(changes), tuple(lacks)
        )

    def close(self) -> None:
        """Let go of all files."""
        for poller in self._pollers.values():
            poller.close()
        for task in self._tasks:
            task.look.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, pids: tuple[int, ...], now_ns: int, *, everything: bool
    ) -> Iterator[tuple[str, Round, Standing]]:
        """Ask all sources that are due; one that fails is a lack, and begins anew."""
        for name, poller in self._pollers.items():
            try:
                found = poller.poll(pids, everything=everything)
                yield name, found, poller.standing()
            except Exception as exc:  # noqa: BLE001 - one source's fault must not end the others
                poller.close()
                yield name, Round(), _failed(name, exc)
        for task in self._tasks:
            if now_ns < task.due_ns:
                continue
            task.due_ns = now_ns + task.wanted_ns
            try:
                brought = task.look.look(pids, now_ns)
            except Exception as exc:  # noqa: BLE001 - the same
                task.look.close()
                yield task.name, Round(), _failed(task.name, exc)
                continue
            task.due_ns = now_ns + max(task.wanted_ns, brought.rest_ns)
            yield task.name, Round(brought.sample, brought.changes), brought.standing

    def _living(self) -> Iterator[Process]:
        stat = procfs.read_stat(self.root.pid)
        # Another process may have its number by now.
        if stat is not None and stat.alive and stat.start_ticks == self.root.stat.start_ticks:
            yield from tree.with_descendants(self.root, os.geteuid())

    def _came_and_went(
        self, processes: dict[int, str], since_ns: int, now_ns: int
    ) -> Iterator[ContextChange]:
        for pid in sorted(processes.keys() | self._known.keys()):
            before, after = self._known.get(pid, ""), processes.get(pid, "")
            if not before or not after:
                who = f"{before or after}/{pid}"
                yield ContextChange(now_ns, since_ns, f"pid:{pid}", _PROCESS, before, after, who)

    def _changes(self, found: Iterable[Change], since_ns: int) -> Iterator[ContextChange]:
        """What became another; not what it was to begin with, nor guesses at roles."""
        for one in found:
            first = one.since_ns == 0 and one.what != rules.BLOCKED
            if since_ns and not first and one.what != ROLE:
                yield ContextChange(
                    one.t_ns, one.since_ns, one.subject, one.what, one.before, one.after,
                    self._who(one.subject),
                )  # fmt: skip

    def _numbers(
        self, readings: Iterable[Reading], since_ns: int, now_ns: int
    ) -> Iterator[ContextNumber]:
        for one in readings:
            key = one.metric.name, one.subject
            before = self._values.get(key)
            self._values[key] = one.value
            if one.metric.name in _LEVELS:
                told = self._levels.get(key)
                if told is None or _differs(one, told):
                    self._levels[key] = one.value
                    yield self._number(one, one.value if told is None else told, since_ns)
            elif before is not None and since_ns and one.metric.nature is Nature.TOTAL:
                said = rules.judged(self._number(one, before, since_ns), now_ns - since_ns)
                if said.note:
                    yield said

    def _number(self, one: Reading, before: int, since_ns: int) -> ContextNumber:
        metric = one.metric
        return ContextNumber(
            metric.name, one.subject, metric.unit, metric.nature.name.lower(), metric.meaning,
            before, one.value, one.since_ns or since_ns, one.t_ns, who=self._who(one.subject),
        )  # fmt: skip

    def _who(self, subject: str) -> str:
        """A process or thread with its name; others as they are called."""
        kind, _, number = subject.partition(":")
        if kind not in ("pid", "tid") or not number.isdecimal():
            return subject.replace(":", " ", 1) if kind == "cgroup" else subject
        if subject not in self._names:
            name = ""
            with contextlib.suppress(OSError):
                name = procfs.read_comm(int(number), int(number)) or ""
            self._names[subject] = f"{name or kind}/{number}"
        return self._names[subject]

    def _lack(self, source: str, standing: Standing) -> Iterator[Lack]:
        """What a source lacks, if that is news and was so at two looks: some is about to end."""
        reasons = tuple(sorted({_reason(one) for one in standing.missing}))
        lack = Lack(source, reasons, all_of_it=not standing.works)
        if reasons and self._doubted.get(source) == lack and self._lacks.get(source) != lack:
            self._lacks[source] = lack
            yield lack
        self._doubted[source] = lack


def _failed(name: str, fault: Exception) -> Standing:
    reason = f"failed: {type(fault).__name__}: {fault}"
    return Standing(works=False, missing=(Missing(name, "host", reason),))


def _differs(one: Reading, told: int) -> bool:
    """Whether a level is another than was told, by enough."""
    least, percent = _LEVELS[one.metric.name]
    return abs(one.value - told) >= max(least, told * percent // 100)


def _reason(one: Missing) -> str:
    whose = "" if one.subject == "host" else f"{one.subject}: "
    return f"{whose}{one.what}: {one.reason}"
