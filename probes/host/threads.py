# SPDX-License-Identifier: Apache-2.0
"""Threads: what they ran, what they waited for a CPU, where they stand blocked.

Most threads of an engine sleep most of the time. One whose ``schedstat`` reads as before has
not run since: its state, its place in the kernel and all its counts are as they were, so a
round costs one short read for each thread that slept (proc(5); Linux kernel,
Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.procfs import PROC
from gpucorrelate.probes.host.reading import Missing, Sample, Standing
from gpucorrelate.probes.host.source import Collected, Descriptors, reason_of
from gpucorrelate.probes.host.thread_group import ThreadGroup, ThreadLook

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


@dataclass(frozen=True)
class ThreadRound:
    """What a round brought.

    Attributes:
        since_ns: When the round before began; 0 if there was none. What changed, changed after
            that and before the reading's own time.
        t_ns: When this one began.
        sample: Numbers that changed, and what became missing.
        looks: Threads that ran since the round before, or were looked at again.
        gone: Threads that ended, of processes that did not.
    """

    since_ns: int
    t_ns: int
    sample: Sample
    looks: tuple[ThreadLook, ...]
    gone: tuple[int, ...] = ()


class ThreadPoller:
    """Follows the threads of processes.

    Args:
        root: Root of a proc file system.
        max_threads: Most threads of a process that are read; how many are left out is told.
        max_files: Most files held open between rounds; the others cost an opening each.
        turns: Rounds in which each thread is looked at once even if it did not run: somebody
            else may have renamed or moved it.
    """

    def __init__(
        self,
        root: Path = PROC,
        *,
        max_threads: int = 2048,
        max_files: int = 2048,
        turns: int = 150,
    ) -> None:
        self._root = root
        self._max_threads = max_threads
        self._turns = turns
        self._held = Descriptors(max_files)
        self._processes: dict[int, ThreadGroup] = {}
        self._complaints: frozenset[Missing] = frozenset()
        self._rounds = 0
        self._since_ns = 0

    def poll(self, pids: Collection[int], *, everything: bool = False) -> ThreadRound:
        """Look at the threads of these processes; processes not given are dropped.

        Args:
            pids: The processes.
            everything: Tell also what has not changed since the last round.
        """
        out = Collected(everything=everything)
        began_ns = out.t_ns
        looks: list[ThreadLook] = []
        gone: list[int] = []
        wrong: list[Missing] = []
        wanted = set(pids)
        for pid in self._processes.keys() - wanted:
            self._processes.pop(pid).close()
        for pid in sorted(wanted):
            try:
                group = self._process(pid)
                group.poll(out, looks, self._rounds % self._turns, self._turns)
                gone += group.gone
            except OSError as error:
                wrong.append(Missing("threads", f"pid:{pid}", reason_of(error)))
                if pid in self._processes:
                    self._processes.pop(pid).close()
        out.missing += [item for item in wrong if everything or item not in self._complaints]
        self._complaints = frozenset(wrong)
        self._rounds += 1
        since_ns, self._since_ns = self._since_ns, began_ns
        return ThreadRound(since_ns, began_ns, out.sample(), tuple(looks), tuple(gone))

    def standing(self) -> Standing:
        """How it stands as of the last round."""
        missing = set(self._complaints).union(*(one.missing for one in self._processes.values()))
        return Standing(bool(self._processes) or not self._complaints, tuple(missing))

    def _process(self, pid: int) -> ThreadGroup:
        found = self._processes.get(pid)
        if found is None:
            found = ThreadGroup(pid, self._root, self._held, self._max_threads)
            self._processes[pid] = found
        return found

    def close(self) -> None:
        """Let go of all files; the next round begins anew."""
        for process in self._processes.values():
            process.close()
        self._processes, self._complaints = {}, frozenset()
        self._rounds = self._since_ns = 0
