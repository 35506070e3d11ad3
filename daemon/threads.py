# SPDX-License-Identifier: Apache-2.0
"""Names of a process's threads, and how they change, as ``task`` rows."""

from __future__ import annotations

from dataclasses import dataclass

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.schema import TaskEvent

TaskRow = tuple[int, int, int, int, str, int, int, int, int]


@dataclass(frozen=True)
class ThreadChanges:
    """What a look at a process's threads brought.

    Attributes:
        rows: ``task`` rows to record.
        gone: Threads that are no longer there.
        more_beyond: Threads beyond the limit, more than there ever were before.
    """

    rows: tuple[TaskRow, ...]
    gone: tuple[int, ...]
    more_beyond: int = 0


class ThreadNames:
    """The threads of one process as last seen.

    Args:
        tgid: The process.
        limit: Most threads that are named.
    """

    def __init__(self, tgid: int, limit: int) -> None:
        self.tgid = tgid
        self._limit = limit
        self._names: dict[int, str] = {}
        self._most = limit

    def __len__(self) -> int:
        return len(self._names)

    def look(self, now_ns: int) -> ThreadChanges:
        """Compare with the process as it is now; about 10 us a thread."""
        everyone = procfs.thread_ids(self.tgid)
        present = everyone[: self._limit]
        more = max(0, len(everyone) - self._most)
        self._most += more
        rows: list[TaskRow] = []
        for tid in present:
            known = self._names.get(tid)
            name = procfs.read_comm(self.tgid, tid)
            if not name or name == known:
                continue
            self._names[tid] = name
            rows.append(self._row(tid, name, now_ns, first=known is None))
        gone = tuple(self._names.keys() - set(present))
        for tid in gone:
            del self._names[tid]
        return ThreadChanges(tuple(rows), gone, more)

    def _row(self, tid: int, name: str, now_ns: int, *, first: bool) -> TaskRow:
        status = procfs.read_status(self.tgid, tid)
        ns_tid = status.ns_pids[-1] if status and status.ns_pids else 0
        ns_tgid = status.ns_tgids[-1] if status and status.ns_tgids else 0
        event = TaskEvent.SEEN if first else TaskEvent.RENAMED
        return tid, self.tgid, now_ns, int(event), name, 0, ns_tid, ns_tgid, 0
