# SPDX-License-Identifier: Apache-2.0
"""Following the processes of all sessions: who is born, who is traced, who is gone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gpucorrelate.daemon import descriptors, tree
from gpucorrelate.probes.host import procfs

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucorrelate.daemon.ingest import Ingest
    from gpucorrelate.daemon.loop import Loop
    from gpucorrelate.daemon.processes import Target
    from gpucorrelate.daemon.session import Session
    from gpucorrelate.daemon.tracing import Tracing
    from gpucorrelate.probes.host.procfs import Process


class Follower:
    """Knows which process belongs to which session.

    Births are told by the kernel probes, by agents that connect, and by a look at procfs about
    once a second; ends by pidfds, or by procfs where there is no descriptor left.

    Args:
        loop: The event loop.
        tracing: The kernel probes.
        running: Gives the sessions that record.
        ended: Called when the last process of a session is gone.
    """

    def __init__(
        self,
        loop: Loop,
        tracing: Tracing,
        running: Callable[[], list[Session]],
        ended: Callable[[Session], None],
    ) -> None:
        self.ingest: Ingest | None = None
        self._loop = loop
        self._tracing = tracing
        self._running = running
        self._ended = ended
        self._by_pid: dict[int, Session] = {}
        self._whole_scan = not procfs.has_child_files()

    def session_of(self, pid: int) -> Session | None:
        """The running session of a process."""
        return self._by_pid.get(pid)

    def find(self, process: Process) -> Session | None:
        """The session of a process; a child of one of its processes is taken in."""
        session = self._by_pid.get(process.pid)
        if session is not None:
            if not _may_look(session, process.uids):
                self._let_go(session, process.pid)
                return None
            if session.processes.targets[process.pid].same(process.stat):
                return session
            self.gone(session, process.pid)
        for parent in tree.ancestors(process.pid):
            session = self._by_pid.get(parent)
            if session is not None and session.processes.alive(parent):
                self.add(session, process, time.monotonic_ns())
                return session if session.processes.alive(process.pid) else None
        return None

    def add(self, session: Session, process: Process, now: int, *, traced: bool = False) -> None:
        """Take a process in, unless its session's owner may not look at it."""
        if not _may_look(session, process.uids):
            self._tracing.leave(process.pid)
            return
        target = session.processes.add(process, now)
        if target is not None:
            self.follow(session, target, traced=traced)

    def follow(self, session: Session, target: Target, *, traced: bool = False) -> None:
        """Watch a process's end, trace it unless it is, and have its agent send."""
        pid = target.pid
        self._by_pid[pid] = session
        try:
            target.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.gone(session, pid)
            return
        except OSError:
            target.pidfd = -1
        # The number may have become another process's since somebody looked at whose it is.
        if not target.same(procfs.read_stat(pid)):
            self.gone(session, pid)
            return
        if descriptors.scarce(target.pidfd):
            session.processes.release(target)
        # Without a descriptor the next look at procfs tells of its end.
        if target.pidfd >= 0:
            self._loop.add(target.pidfd, lambda _: self.gone(session, pid))
        if not traced:
            self._tracing.add(session, pid)
        if self.ingest is not None:
            self.ingest.start(session, pid)

    def gone(self, session: Session, pid: int, why: str = "ended") -> None:
        """A process has ended: take what it left, and note it."""
        if not session.processes.alive(pid):
            return
        self._unwatch(session.processes.targets[pid])
        if self.ingest is not None:
            self.ingest.finish(pid)
        self.drain(time.monotonic_ns())
        session.gone(pid, time.monotonic_ns(), why)
        self._by_pid.pop(pid, None)
        self._tracing.remove(pid)
        if not session.processes.living():
            self._ended(session)

    def drain(self, now: int) -> None:
        """Deal out what the kernel has, and take in the processes that it tells of."""
        for pid, parent in self._tracing.drain(self._running()):
            if pid in self._by_pid:
                continue
            session = self._by_pid.get(parent) or self._once_of(parent)
            if session is None:
                # Born while its session ended: nobody's, so nobody may see its waits.
                self._tracing.leave(pid)
                continue
            process = procfs.read_process(pid)
            if process is not None and process.stat.alive:
                self.add(session, process, now, traced=True)

    def scan(self, session: Session, now: int) -> None:
        """Take in children, and notice ends, that nothing else has told of."""
        processes = session.processes
        if self._whole_scan:
            everybody = procfs.parents()
            born = [pid for pid, ppid in everybody.items() if processes.alive(ppid)]
        else:
            born = [child for pid in processes.living() for child in procfs.child_ids(pid)]
        for pid in born:
            if pid in self._by_pid or pid == os.getpid():
                continue
            process = procfs.read_process(pid)
            if process is not None and process.stat.alive:
                self.add(session, process, now)
        for pid in processes.living():
            status = procfs.read_status(pid) if session.uid != 0 else None
            if status is not None and not _may_look(session, status.uids):
                self._let_go(session, pid)
        for pid in processes.living():
            target = processes.targets[pid]
            if target.pidfd < 0 and not target.same(procfs.read_stat(pid)):
                self.gone(session, pid)

    def release(self, session: Session) -> None:
        """Follow the session's processes no more."""
        for pid in session.processes.living():
            self._unwatch(session.processes.targets[pid])
            self._tracing.leave(pid)
            self._by_pid.pop(pid, None)

    def _let_go(self, session: Session, pid: int) -> None:
        """A process has become another user's, by a setuid program: it is looked at no more."""
        self._tracing.leave(pid)
        self.gone(session, pid, "became another user's")

    def _once_of(self, pid: int) -> Session | None:
        """The session of a process that may be dead: a daemonised child outlives its parent."""
        for session in self._running():
            if pid in session.processes.targets:
                return session
        return None

    def _unwatch(self, target: Target) -> None:
        if target.pidfd >= 0:
            self._loop.remove(target.pidfd)


def _may_look(session: Session, uids: tuple[int, ...]) -> bool:
    """Whether the session's owner may look at a process with these user ids."""
    return session.uid == 0 or set(uids) == {session.uid}
