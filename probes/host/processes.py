# SPDX-License-Identifier: Apache-2.0
"""Processes and the machine's memory: what was read and written, faulted in, held and locked.

Shares of memory come from ``smaps_rollup``: the sum of what each process has resident counts
shared pages many times over, its PSS counts them once. That file makes the kernel walk all
pages of the process, so it is read seldom, and the more seldom the longer it takes.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import process_metrics as m
from gpucorrelate.probes.host.kernel_text import Key, Parsed, Value, parse_sizes, shown
from gpucorrelate.probes.host.procfs import PROC
from gpucorrelate.probes.host.reading import Missing, Standing
from gpucorrelate.probes.host.source import (
    Collected,
    Descriptors,
    Folder,
    KeptFile,
    Source,
    reason_of,
)
from gpucorrelate.probes.host.thread_text import parse_task_stat

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from gpucorrelate.probes.host.reading import Sample

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_S = 1_000_000_000
#: The walk through a process's pages may take one part in so many of the time.
_WALK_PART = 500

_IO = {key: Key(metric) for key, metric in m.IO.items()}
_ROLLUP = {key: Key(metric) for key, metric in m.ROLLUP.items()}
_MEMINFO = {key: Key(metric) for key, metric in m.MEMINFO.items()}


def parse_io(text: str) -> Parsed:
    """``/proc/PID/io``."""
    return parse_sizes(text, _IO)


def parse_smaps_rollup(text: str) -> Parsed:
    """``/proc/PID/smaps_rollup``."""
    return parse_sizes(text, _ROLLUP)


def parse_meminfo(text: str) -> Parsed:
    """``/proc/meminfo``."""
    return parse_sizes(text, _MEMINFO)


def parse_process_stat(text: str) -> Parsed:
    """``/proc/PID/stat``: faults, CPU time and threads of the whole process."""
    stat = parse_task_stat(text)
    if stat is None:
        return Parsed(problems=(f"no stat file: {shown(text)}",))
    return Parsed(
        (
            Value(m.CPU, stat.ticks * _TICK_NS),
            Value(m.MINOR_FAULTS, stat.minor_faults),
            Value(m.MAJOR_FAULTS, stat.major_faults),
            Value(m.THREADS, stat.threads),
        )
    )


class _Process:
    # The files of one process.
    def __init__(self, pid: int, root: Path, held: Descriptors) -> None:
        self._folder = Folder.at(root, (str(pid),))
        subject = f"pid:{pid}"

        def source(name: str, parse: partial[Parsed], files: Descriptors) -> Source:
            file = KeptFile(self._folder, (name,), files)
            return Source(file, f"/proc/PID/{name}", subject, parse)

        self._stat = source("stat", partial(parse_process_stat), held)
        self._io = source("io", partial(parse_io), held)
        # Read so seldom that holding it open would be a waste.
        self._rollup = source("smaps_rollup", partial(parse_smaps_rollup), Descriptors(0))
        self._due_ns = 0

    def poll(self, out: Collected, walk_every_ns: int) -> bool:
        # Whether it is still there.
        out.now()
        if not self._stat.poll(out):
            return False
        self._io.poll(out)
        if walk_every_ns and (out.everything or out.t_ns >= self._due_ns):
            out.now()
            # In CPU time: to be interrupted is not the walk's doing.
            began_ns = time.thread_time_ns()
            self._rollup.poll(out)
            took_ns = time.thread_time_ns() - began_ns
            self._due_ns = out.t_ns + max(walk_every_ns, took_ns * _WALK_PART)
        return True

    @property
    def missing(self) -> tuple[Missing, ...]:
        return (*self._stat.missing, *self._io.missing, *self._rollup.missing)

    def close(self) -> None:
        for source in (self._stat, self._io, self._rollup):
            source.close()
        self._folder.close()


class ProcessPoller:
    """Follows what processes read, write, fault in and hold.

    Args:
        root: Root of a proc file system.
        walk_every_ns: Least time between two looks at a process's ``smaps_rollup``; it is
            longer where that takes long, so that it never takes more than 0.2% of a CPU a
            process. 0: never.
        max_files: Most files held open between rounds; the others cost an opening each.
    """

    def __init__(
        self, root: Path = PROC, *, walk_every_ns: int = 10 * _S, max_files: int = 256
    ) -> None:
        self._root = root
        self._walk_every_ns = walk_every_ns
        self._held = Descriptors(max_files)
        self._processes: dict[int, _Process] = {}
        self._complaints: frozenset[Missing] = frozenset()

    def poll(self, pids: Collection[int], *, everything: bool = False) -> Sample:
        """What changed since the last round; processes not given are dropped.

        Args:
            pids: The processes.
            everything: Tell also what has not changed, and look at all memory now.
        """
        out = Collected(everything=everything)
        wrong: list[Missing] = []
        wanted = set(pids)
        for pid in self._processes.keys() - wanted:
            self._processes.pop(pid).close()
        for pid in sorted(wanted):
            try:
                process = self._processes.get(pid)
                if process is None:
                    process = _Process(pid, self._root, self._held)
                    self._processes[pid] = process
            except OSError as error:
                wrong.append(Missing("process", f"pid:{pid}", reason_of(error)))
                continue
            if not process.poll(out, self._walk_every_ns):
                self._processes.pop(pid).close()
        out.missing += [item for item in wrong if everything or item not in self._complaints]
        self._complaints = frozenset(wrong)
        return out.sample()

    def standing(self) -> Standing:
        """How it stands as of the last round."""
        missing = set(self._complaints).union(*(one.missing for one in self._processes.values()))
        return Standing(bool(self._processes) or not self._complaints, tuple(missing))

    def close(self) -> None:
        """Let go of all files."""
        for process in self._processes.values():
            process.close()
        self._processes = {}


class MemoryPoller:
    """Follows the machine's memory.

    Args:
        root: Root of a proc file system.
    """

    def __init__(self, root: Path = PROC) -> None:
        self._root = root
        self._folder: Folder | None = None
        self._source: Source | None = None
        self._unopened: tuple[Missing, ...] = ()

    def poll(self, *, everything: bool = False) -> Sample:
        """What changed since the last round; with ``everything`` what did not, too."""
        out = Collected(everything=everything)
        if self._source is None:
            try:
                self._folder = Folder.at(self._root)
            except OSError as error:
                self._unopened = (Missing("/proc/meminfo", "host", reason_of(error)),)
                out.missing += self._unopened
                return out.sample()
            self._unopened = ()
            file = KeptFile(self._folder, ("meminfo",), Descriptors(1))
            self._source = Source(file, "/proc/meminfo", "host", parse_meminfo)
        self._source.poll(out)
        return out.sample()

    def standing(self) -> Standing:
        """How it stands as of the last round."""
        if self._source is None:
            return Standing(not self._unopened, self._unopened)
        return Standing(self._source.readable, self._source.missing)

    def close(self) -> None:
        """Let go of the file."""
        if self._source is not None:
            self._source.close()
        if self._folder is not None:
            self._folder.close()
        self._source = self._folder = None
