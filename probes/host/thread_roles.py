# SPDX-License-Identifier: Apache-2.0
"""What a thread of an engine is there for, by the names it and its process have.

The engine's own agent says more, and says it surely; this is for processes that have none.
What cannot be told from the name, or from a CPU of its own, is not told: the kernel's name of
most threads is their process's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.host.reading import Change
from gpucorrelate.probes.wire.roles import ROLE, GuessedRole, role_of_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from gpucorrelate.probes.host.thread_group import ThreadLook

#: Names that libraries give to their threads, of which the kernel keeps 15 bytes, and names
#: that Python has for the engine's (the kernel has them from Python 3.14 on).
_THREADS = (
    (re.compile(r"gpucorrelate"), "agent"),
    (re.compile(r"^ZMQbg"), "zmq"),
    (re.compile(r"^cuda-EvtHandlr|^cuda\d{4,}$"), "cuda"),
    (re.compile(r"(?i)cupti|^\[?nsys"), "cupti"),
    (re.compile(r"(?i)nccl"), "nccl"),
    (re.compile(r"(?i)gloo|pt_gloo"), "gloo"),
    (re.compile(r"(?i)(?:^|[^a-z])i?omp(?:[_ -]|$)"), "openmp"),
    (re.compile(r"pt_autograd"), "autograd"),
    (re.compile(r"(?i)tokenizer|detokeni|renderer|chat-template"), "tokenizer"),
    (
        re.compile(r"(?i)process_output|outputqueue|asyncoutput|outputcopy|output_handler"),
        "output",
    ),
    (re.compile(r"(?i)process_input"), "input"),
    (re.compile(r"(?i)monitor"), "monitor"),
    (re.compile(r"iou-(wrk|sqp)-"), "io_uring"),
    (re.compile(r"jemalloc_bg"), "allocator"),
)


BY_NAME, BY_BEHAVIOUR = "name", "behaviour"


def role_of(
    name: str,
    process: str = "",
    *,
    leader: bool = False,
    leader_name: str = "",
    pinned_cpu: int = -1,
    leader_cpu: int = -1,
) -> GuessedRole | None:
    """Role of a thread: ``core.main``, ``worker.cuda``, ``api.zmq``...; None if unknown.

    Args:
        name: The thread's name, the kernel's or Python's.
        process: Part its process plays; see ``wire.roles``.
        leader: It is the process's first thread: it runs the API server's loop, the engine
            core's, the worker's.
        leader_name: Name of that first thread.
        pinned_cpu: The one CPU the thread may run on; -1 for several.
        leader_cpu: The same of the first thread.

    Returns:
        The process's part and the thread's, joined by a dot; the thread's alone where the
        process's is not known. With it, what it was told by.
    """
    basis = BY_NAME
    part = "main" if leader else _part(name)
    if not part and name == leader_name and pinned_cpu >= 0 and pinned_cpu != leader_cpu:
        # Threads have their affinity from their maker; one that has another CPU for itself
        # was given it, as pools of OpenMP do with each of theirs.
        part, basis = "openmp", BY_BEHAVIOUR
    if not part or (leader and not process):
        return None
    return GuessedRole(f"{process}.{part}" if process else part, basis)


@dataclass(frozen=True)
class _Seen:
    """What of a thread its role is told by."""

    name: str = ""
    pinned_cpu: int = -1


@dataclass
class _Process:
    leader: _Seen = field(default_factory=_Seen)
    part: str = ""
    threads: dict[int, _Seen] = field(default_factory=dict)
    roles: dict[int, GuessedRole] = field(default_factory=dict)


class ThreadRoles:
    """Roles of the threads of processes as far as they can be guessed, and how they change.

    Args:
        root: Root of a proc file system.
    """

    def __init__(self, root: Path = procfs.PROC) -> None:
        self._root = root
        self._processes: dict[int, _Process] = {}

    def update(
        self,
        looks: Iterable[ThreadLook],
        pids: Collection[int],
        gone: Iterable[int],
        since_ns: int,
        t_ns: int,
    ) -> tuple[Change, ...]:
        """What is new, from a round of looks at threads.

        Args:
            looks: Threads looked at.
            pids: Processes that are followed; what is known of others is taken back.
            gone: Threads that ended.
            since_ns: The round before began; 0: there was none.
            t_ns: This round began, CLOCK_MONOTONIC.
        """
        found: list[Change] = []
        ended = set(gone)
        for pid in self._processes.keys() - set(pids):
            ended.update(self._processes[pid].threads)
        for process in self._processes.values() if ended else ():
            for tid in ended & process.threads.keys():
                del process.threads[tid]
                before = process.roles.pop(tid, None)
                if before is not None:
                    found.append(Change(t_ns, since_ns, f"tid:{tid}", ROLE, before.text, ""))
        for pid in self._processes.keys() - set(pids):
            del self._processes[pid]
        changed: dict[int, set[int]] = {}
        for look in looks:
            if self._take(look):
                changed.setdefault(look.pid, set()).add(look.tid)
        for pid, tids in changed.items():
            found += self._judge(pid, tids, since_ns, t_ns)
        return tuple(found)

    def of(self, pid: int, tid: int) -> GuessedRole | None:
        """What a thread seems to be there for."""
        process = self._processes.get(pid)
        return process.roles.get(tid) if process is not None else None

    def part(self, pid: int) -> str:
        """Part that a process plays, by its name; empty if unknown."""
        process = self._processes.get(pid)
        return process.part if process is not None else ""

    def close(self) -> None:
        """Forget everything."""
        self._processes = {}

    def _take(self, look: ThreadLook) -> bool:
        """Whether a thread shows something that it did not before."""
        process = self._processes.setdefault(look.pid, _Process())
        seen = _Seen(look.name, look.pinned_cpu)
        if process.threads.get(look.tid) == seen:
            return False
        process.threads[look.tid] = seen
        return True

    def _judge(
        self, pid: int, changed: Collection[int], since_ns: int, t_ns: int
    ) -> Iterator[Change]:
        process = self._processes[pid]
        leader = process.threads.get(pid, process.leader)
        if leader != process.leader:
            # Of the first thread's name and CPU all others' roles depend.
            process.leader, changed = leader, tuple(process.threads)
            process.part = self._part_of(pid, leader.name)
        for tid in sorted(changed):
            seen = process.threads[tid]
            role = role_of(
                seen.name,
                process.part,
                leader=tid == pid,
                leader_name=leader.name,
                pinned_cpu=seen.pinned_cpu,
                leader_cpu=leader.pinned_cpu,
            )
            before = process.roles.get(tid)
            if role == before:
                continue
            if role is None:
                del process.roles[tid]
            else:
                process.roles[tid] = role
            yield Change(
                t_ns, since_ns if before else 0, f"tid:{tid}", ROLE,
                before.text if before else "", role.text if role else "",
            )  # fmt: skip

    def _part_of(self, pid: int, name: str) -> str:
        by_name = role_of_process(name)
        if by_name:
            return by_name
        process = procfs.read_process(pid, self._root)
        return role_of_process(" ".join(process.argv)) if process is not None else ""


def _part(name: str) -> str:
    for pattern, role in _THREADS:
        if pattern.search(name):
            return role
    return ""
