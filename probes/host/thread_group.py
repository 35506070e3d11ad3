# SPDX-License-Identifier: Apache-2.0
"""The threads of one process, looked at again and again."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import thread_metrics as m
from gpucorrelate.probes.host.reading import Missing, Reading
from gpucorrelate.probes.host.source import Collected, Descriptors, Folder, KeptFile
from gpucorrelate.probes.host.thread_text import (
    Switches,
    TaskStat,
    parse_schedstat,
    parse_switches,
    parse_task_stat,
    parse_wchan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpucorrelate.probes.host.thread_text import Schedstat

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Of a thread that never ran, and of every thread where the kernel does not count.
_NOT_COUNTED = b"0 0 0"
_SCHEDSTAT_BYTES = 96
#: States of threads that do not run before somebody wakes them.
_BLOCKED = "SDI"
_UNKNOWN = (-1,) * len(m.THREAD)
#: Rounds that a thread must have run in until its files are held open.
_OFTEN = 3
_TEXT_BYTES = 8192


@dataclass(frozen=True)
class ThreadLook:
    """A thread at a moment. What blocks it then may not be what it waited for all the time.

    Attributes:
        pid: Its process.
        tid: Itself.
        name: The kernel's name of it, at most 15 bytes.
        state: One letter of proc(5): R running or ready, S asleep, D asleep and not to be
            disturbed, T stopped.
        wchan: Function of the kernel it is blocked in; empty if it is not, or nobody tells.
        cpu: CPU it last ran on.
        pinned_cpu: The one CPU it may run on; -1 if there are several.
        policy: How it is scheduled: ``other``, ``fifo``, ``rr``, ``batch``, ``idle``...
        t_ns: When that was, CLOCK_MONOTONIC.
    """

    pid: int
    tid: int
    name: str
    state: str
    wchan: str
    cpu: int
    pinned_cpu: int
    policy: str
    t_ns: int

    @property
    def waits_for_page(self) -> bool:
        """Whether it waits until a page of a file or of swap has been read or written."""
        return m.is_page_wait(self.wchan)


class _Thread:
    # What is known of one thread.
    __slots__ = ("data", "fd", "files", "ran", "subject", "tid", "values")

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.subject = f"tid:{tid}"
        self.fd = -1
        self.data = b""
        # Rounds in which it had run, and the files held open of one that often does.
        self.ran = 0
        self.files: dict[str, int] = {}
        self.values: tuple[int, ...] = ()


class ThreadGroup:
    """The threads of a process.

    Args:
        pid: The process.
        root: Root of a proc file system.
        held: Counts what is held open.
        most: Most threads that are read.

    Raises:
        OSError: the process is not there.
    """

    def __init__(self, pid: int, root: Path, held: Descriptors, most: int) -> None:
        self.pid = pid
        self._folder = Folder.at(root, (str(pid),))
        self._stat = KeptFile(self._folder, ("stat",), held, _TEXT_BYTES)
        self._held = held
        self._most = most
        self._threads: dict[int, _Thread] = {}
        # The same in a fixed order, with their files and what was last read of them.
        self._order: list[_Thread] = []
        self._fds: list[int] = []
        self._data: list[bytes] = []
        self._all_open = False
        # Those that may change without having been given a CPU: they had one.
        self._restless: dict[int, _Thread] = {}
        self._left_out = 0
        #: Threads found in the last round to have ended.
        self.gone: list[int] = []
        self._complaints: frozenset[Missing] = frozenset()
        self._blocked = self._named = 0
        self._counted = self._counts()

    def _counts(self) -> bool:
        try:
            leader = self._folder.read("schedstat", _SCHEDSTAT_BYTES)
        except FileNotFoundError:
            return False
        return not leader.startswith(_NOT_COUNTED)

    def poll(self, out: Collected, looks: list[ThreadLook], turn: int, turns: int) -> None:
        """Tell what changed.

        Args:
            out: Takes numbers and what is missing.
            looks: Takes the threads looked at.
            turn: Number of the round, below ``turns``.
            turns: Rounds in which each thread is looked at once even if it did not run.

        Raises:
            OSError: the process is gone.
        """
        stat = parse_task_stat(self._stat.read().decode("utf-8", "replace"))
        count = min(stat.threads, self._most) if stat is not None else -1
        self._blocked = self._named = 0
        self.gone = []
        out.now()
        data = self._read_all()
        due = self._restless | {thread.tid: thread for thread in self._order[turn::turns]}
        if data != self._data:
            for thread, new, old in zip(self._order, data, self._data, strict=True):
                if new != old:
                    thread.data = new
                    thread.ran += 1
                    due[thread.tid] = thread
            self._data = data
        self._look_at(self._order if out.everything else due.values(), out, looks)
        if count != len(self._threads):
            self._look_at(self._list(), out, looks)
            self._arrange()
        self._complain(out)

    def _read_all(self) -> list[bytes]:
        # What each thread's schedstat holds now; threads that are gone are forgotten. Most
        # rounds take the first way, on which nothing but reading happens.
        pread = os.pread
        if self._all_open:
            try:
                return [pread(fd, _SCHEDSTAT_BYTES, 0) for fd in self._fds]
            except OSError:
                # Which one it was shows below.
                pass
        data: list[bytes] = []
        gone: list[_Thread] = []
        for thread in self._order:
            try:
                data.append(self._schedstat(thread))
            except OSError as error:
                _refuse_scarcity(error)
                gone.append(thread)
        for thread in gone:
            self._forget(thread)
        self._arrange()
        return data

    def _arrange(self) -> None:
        self._order = list(self._threads.values())
        self._fds = [thread.fd for thread in self._order]
        self._all_open = min(self._fds, default=-1) >= 0
        self._data = [thread.data for thread in self._order]

    def _schedstat(self, thread: _Thread) -> bytes:
        if thread.fd >= 0:
            return os.pread(thread.fd, _SCHEDSTAT_BYTES, 0)
        if not self._counted:
            return _NOT_COUNTED
        fd = os.open(f"task/{thread.tid}/schedstat", _FLAGS, dir_fd=self._folder.fd)
        try:
            data = os.pread(fd, _SCHEDSTAT_BYTES, 0)
        except OSError:
            os.close(fd)
            raise
        if self._held.take():
            thread.fd = fd
        else:
            os.close(fd)
        return data

    def _list(self) -> list[_Thread]:
        # Threads that were not known; those gone are forgotten.
        fd = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder.fd)
        try:
            names = os.listdir(fd)  # noqa: PTH208 - pathlib knows no descriptors
        finally:
            os.close(fd)
        present = sorted(int(name) for name in names if name.isdecimal())
        for tid in self._threads.keys() - set(present):
            self._forget(self._threads[tid])
        self._left_out = max(0, len(present) - self._most)
        new: list[_Thread] = []
        for tid in present[: self._most]:
            if tid in self._threads:
                continue
            thread = _Thread(tid)
            try:
                thread.data = self._schedstat(thread)
            except OSError as error:
                _refuse_scarcity(error)
                continue
            self._threads[tid] = thread
            new.append(thread)
        return new

    def _look_at(
        self, threads: Iterable[_Thread], out: Collected, looks: list[ThreadLook]
    ) -> None:
        for thread in threads:
            out.now()
            try:
                look = self._detail(thread, out)
            except OSError as error:
                _refuse_scarcity(error)
                # It ended in between; the next round's read of its schedstat says so.
                self._restless[thread.tid] = thread
                continue
            if look is not None:
                looks.append(look)

    def _detail(self, thread: _Thread, out: Collected) -> ThreadLook | None:
        schedstat = parse_schedstat(thread.data.decode("ascii", "replace"))
        stat = parse_task_stat(self._text(thread, "stat").decode("utf-8", "replace"))
        switches = parse_switches(self._text(thread, "status").decode("utf-8", "replace"))
        if stat is None:
            return None
        if stat.state in _BLOCKED and self._counted:
            self._restless.pop(thread.tid, None)
        else:
            self._restless[thread.tid] = thread
        wchan = ""
        if stat.state in _BLOCKED:
            wchan = parse_wchan(self._wchan(thread))
            self._blocked += 1
            self._named += wchan != ""
        self._tell(thread, out, _values(stat, switches, schedstat if self._counted else None))
        return ThreadLook(
            self.pid, thread.tid, stat.name, stat.state, wchan, stat.cpu, switches.pinned_cpu,
            stat.policy, out.t_ns,
        )  # fmt: skip

    def _wchan(self, thread: _Thread) -> str:
        try:
            return self._text(thread, "wchan").decode("ascii", "replace")
        except FileNotFoundError:
            # A kernel without names of its functions; or the thread ended, as will show.
            return ""

    def _tell(self, thread: _Thread, out: Collected, values: tuple[int, ...]) -> None:
        old = thread.values or _UNKNOWN
        since_ns = None if thread.values else 0
        thread.values = values
        for metric, value, before in zip(m.THREAD, values, old, strict=True):
            if value >= 0 and (value != before or out.everything):
                out.readings.append(Reading(metric, thread.subject, value, out.t_ns, since_ns))

    def _text(self, thread: _Thread, name: str) -> bytes:
        kept = thread.files.get(name)
        if kept is not None:
            return os.pread(kept, _TEXT_BYTES, 0)
        fd = os.open(f"task/{thread.tid}/{name}", _FLAGS, dir_fd=self._folder.fd)
        keep = thread.ran >= _OFTEN and self._held.take()
        try:
            return os.pread(fd, _TEXT_BYTES, 0)
        finally:
            if keep:
                thread.files[name] = fd
            else:
                os.close(fd)

    def _complain(self, out: Collected) -> None:
        subject = f"pid:{self.pid}"
        found: list[Missing] = []
        if not self._counted:
            reason = "this kernel does not count it (CONFIG_SCHED_INFO)"
            found.append(Missing(m.RUN_DELAY.name, subject, reason))
        if self._left_out:
            reason = f"{self._left_out} more than the {self._most} that are read"
            found.append(Missing("threads", subject, reason))
        if self._blocked and not self._named:
            reason = "not told: it takes CAP_SYS_PTRACE, and a kernel with names (CONFIG_KALLSYMS)"
            found.append(Missing("wchan", subject, reason))
        if not self._blocked:
            # Nobody was looked at who could have shown it.
            found += [old for old in self._complaints if old.what == "wchan"]
        told = self._complaints if not out.everything else frozenset[Missing]()
        out.missing += [item for item in found if item not in told]
        self._complaints = frozenset(found)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What could not be read the last time."""
        return tuple(self._complaints)

    def _forget(self, thread: _Thread) -> None:
        for fd in (thread.fd, *thread.files.values()):
            if fd >= 0:
                os.close(fd)
                self._held.give()
        del self._threads[thread.tid]
        self._restless.pop(thread.tid, None)
        self.gone.append(thread.tid)

    def close(self) -> None:
        """Let go of all files."""
        for thread in list(self._threads.values()):
            self._forget(thread)
        self._stat.close()
        self._folder.close()


def _refuse_scarcity(error: OSError) -> None:
    # For want of descriptors a thread seems gone that is not: then the process is missing.
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error


def _values(stat: TaskStat, switches: Switches, schedstat: Schedstat | None) -> tuple[int, ...]:
    # In the order of the metrics; -1 for what is not told.
    times = (stat.ticks * _TICK_NS, -1, -1)
    if schedstat is not None:
        times = (schedstat.cpu_ns, schedstat.delay_ns, schedstat.slices)
    return (
        *times, switches.voluntary, switches.involuntary,
        stat.minor_faults, stat.major_faults, stat.cpu,
    )  # fmt: skip
