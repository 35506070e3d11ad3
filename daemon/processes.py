# SPDX-License-Identifier: Apache-2.0
"""The processes of one session and the names of their threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.daemon.saved import SavedTarget
from gpucorrelate.daemon.threads import ThreadNames
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent, TaskEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.daemon.config import Limits
    from gpucorrelate.daemon.notes import Notes
    from gpucorrelate.probes.host.procfs import Process

#: Ended processes that are remembered.
_MAX_ENDED = 256
#: Processes beyond the limit that are remembered, so that each is counted once.
_MAX_REFUSED = 1 << 16
_TASK = BY_NAME["task"]


@dataclass
class Target:
    """A process of the session.

    Attributes:
        pid: Process id.
        ticks: Its start, in clock ticks since boot.
        comm: Kernel's name of it.
        command: Its command line, shortened and without secrets.
        threads: Its threads as last seen.
        alive: Whether it still runs.
        pidfd: Descriptor that tells of its end; -1 where there is none.
    """

    pid: int
    ticks: int
    comm: str
    command: str
    threads: ThreadNames
    alive: bool = True
    pidfd: int = -1

    def same(self, stat: procfs.Stat | None) -> bool:
        """Whether what now has the process id is still this process, and runs."""
        return stat is not None and stat.alive and stat.start_ticks == self.ticks


class Processes:
    """A session's processes; what happens to them is recorded.

    Args:
        notes: The daemon's stream in the recording.
        limits: How many processes and threads there may be.
    """

    def __init__(self, notes: Notes, limits: Limits) -> None:
        self.targets: dict[int, Target] = {}
        self.changed = False
        self.warning = ""
        self._notes = notes
        self._limits = limits
        self._waiting: list[int] = []
        self._refused: set[tuple[int, int]] = set()

    def add(self, process: Process, now_ns: int) -> Target | None:
        """Add a process; None when it is there already or there are too many."""
        known = self.targets.get(process.pid)
        if known is not None and known.alive and known.ticks == process.stat.start_ticks:
            return None
        self._forget_ended()
        if len(self.targets) >= self._limits.processes:
            self._refuse(process)
            return None
        target = Target(
            process.pid,
            process.stat.start_ticks,
            process.stat.comm,
            procfs.command_line(process.argv) or process.stat.comm,
            ThreadNames(process.pid, self._limits.threads),
        )
        self.targets[process.pid] = target
        self.changed = True
        self._notes.event(SessionEvent.PROCESS_ADDED, process.pid, target.command, now_ns)
        self._look_at(target, now_ns)
        return target

    def remember(self, saved: SavedTarget) -> None:
        """Take back a process from an earlier run of the daemon."""
        threads = ThreadNames(saved.pid, self._limits.threads)
        self.targets[saved.pid] = Target(
            saved.pid, saved.ticks, saved.comm, saved.command, threads, saved.alive
        )

    def gone(self, pid: int, left: Sequence[int], now_ns: int, why: str = "ended") -> None:
        """A process has ended, with these steps not seen to end."""
        target = self.targets[pid]
        target.alive = False
        self.release(target)
        self._notes.forget_changes(f"pid:{pid}")
        self.changed = True
        detail = f"{target.comm} {why}"
        if left:
            numbers = ", ".join(str(step) for step in left[:20])
            detail += f" with {len(left)} steps in flight: {numbers}"
        self._notes.event(SessionEvent.PROCESS_GONE, pid, detail, now_ns)
        row = (pid, pid, now_ns, int(TaskEvent.EXIT), target.comm, 0, 0, 0, 0)
        self._notes.write(_TASK, [row])

    def alive(self, pid: int) -> bool:
        """Whether it is a process of the session and runs."""
        target = self.targets.get(pid)
        return target is not None and target.alive

    def living(self) -> list[int]:
        """Processes that still run."""
        return [pid for pid, target in self.targets.items() if target.alive]

    def threads(self) -> int:
        """Threads of living processes."""
        return sum(len(target.threads) for target in self.targets.values() if target.alive)

    def saved(self) -> tuple[SavedTarget, ...]:
        """What the session's file says of them."""
        return tuple(
            SavedTarget(t.pid, t.ticks, t.comm, t.command, t.alive) for t in self.targets.values()
        )

    def look_later(self) -> None:
        """Have the threads of all processes looked at, one process a turn."""
        if not self._waiting:
            self._waiting = self.living()

    def look(self, now_ns: int) -> None:
        """Look at the threads of the next process, if any is due."""
        if self._waiting:
            target = self.targets.get(self._waiting.pop())
            if target is not None and target.alive:
                self._look_at(target, now_ns)

    def release(self, target: Target) -> None:
        """Watch a process no longer."""
        if target.pidfd >= 0:
            os.close(target.pidfd)
            target.pidfd = -1

    def _refuse(self, process: Process) -> None:
        most = self._limits.processes
        self.warning = f"more than {most} processes: not all are traced"
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()  # some may be counted twice then, none not at all
        if process.identity not in self._refused:
            self._refused.add(process.identity)
            what = f"processes beyond the limit of {most}: not followed"
            self._notes.loss("daemon.limits", what, 1)

    def _look_at(self, target: Target, now_ns: int) -> None:
        changes = target.threads.look(now_ns)
        if changes.more_beyond:
            what = f"threads of process {target.pid} beyond the limit of "
            what += f"{self._limits.threads}: not named"
            self._notes.loss("daemon.limits", what, changes.more_beyond)
        self._notes.write(_TASK, changes.rows)
        self._notes.forget_tasks(changes.gone)
        for row in changes.rows:
            if row[0] == target.pid:
                target.comm = row[4]

    def _forget_ended(self) -> None:
        ended = [pid for pid, target in self.targets.items() if not target.alive]
        for pid in ended[:-_MAX_ENDED]:
            del self.targets[pid]
