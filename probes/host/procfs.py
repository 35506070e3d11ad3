# SPDX-License-Identifier: Apache-2.0
"""Processes and threads as the kernel describes them: identity, parentage, owner, names.

``parse_*`` functions are pure; ``read_*`` functions take the root of a proc file system, so
that they can be pointed at a saved tree.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")

#: ``include/linux/sched.h``: the task is a kernel thread.
PF_KTHREAD = 0x0020_0000

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECRET_OPTION = re.compile(r"(?i)(key|token|secret|passw)[a-z_-]*(?P<value>=.*)?$")
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Stat:
    """What ``/proc/PID/stat`` says.

    Attributes:
        pid: Process or thread id.
        comm: Kernel's name of it, at most 15 bytes.
        state: One letter; ``Z`` and ``X`` are dead.
        ppid: Parent process; 0 for none.
        flags: ``PF_*`` bits.
        threads: Threads of the process.
        start_ticks: Start, in clock ticks since boot. With the pid it identifies a process
            for as long as the machine runs.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    flags: int
    threads: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it can still run."""
        return self.state not in "ZXx"

    @property
    def kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel itself."""
        return bool(self.flags & PF_KTHREAD)


@dataclass(frozen=True)
class Status:
    """What ``/proc/PID/status`` says.

    Attributes:
        name: Kernel's name of the task.
        tgid: Process it belongs to; 0 if the text does not say.
        uids: Real, effective, saved and file system user id.
        ns_pids: Its id in every pid namespace, from the reader's to its own.
        ns_tgids: The same for its process.
        cap_effective: Effective capability bits.
    """

    name: str
    tgid: int
    uids: tuple[int, ...]
    ns_pids: tuple[int, ...]
    ns_tgids: tuple[int, ...]
    cap_effective: int = 0


@dataclass(frozen=True)
class Process:
    """A process: what identifies it, who owns it, and how it was started."""

    stat: Stat
    uids: tuple[int, ...]
    argv: tuple[str, ...]

    @property
    def pid(self) -> int:
        """Process id."""
        return self.stat.pid

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start: not the same again while the machine runs."""
        return self.stat.pid, self.stat.start_ticks

    def owned_by(self, uid: int) -> bool:
        """Whether every user id of it is this one, as ptrace demands."""
        return bool(self.uids) and set(self.uids) == {uid}


def parse_stat(text: str) -> Stat:
    """The fields of a ``stat`` file; the name may hold blanks and parentheses.

    Raises:
        ValueError: the text is not one of these files.
    """
    head, opened, rest = text.partition("(")
    comm, closed, tail = rest.rpartition(")")
    fields = tail.split()
    if not opened or not closed or len(fields) < 20:
        raise ValueError(f"not a stat file: {text[:60]!r}")
    return Stat(
        pid=int(head),
        comm=comm,
        state=fields[0],
        ppid=int(fields[1]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def parse_status(text: str) -> Status:
    """The fields of a ``status`` file that matter here; absent ones are empty."""
    found: dict[str, str] = {}
    # A name may hold anything; of its line feeds the kernel takes care, of other breaks not.
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            found[key] = value.strip()
    return Status(
        name=found.get("Name", ""),
        tgid=int(found.get("Tgid", "0")),
        uids=_ints(found.get("Uid", "")),
        ns_pids=_ints(found.get("NSpid", "")),
        ns_tgids=_ints(found.get("NStgid", "")),
        cap_effective=int(found.get("CapEff", "0"), 16),
    )


def parse_argv(data: bytes) -> tuple[str, ...]:
    """The arguments in a ``cmdline`` file; ``()`` for a kernel thread or a dead process."""
    text = data.decode("utf-8", "replace").rstrip("\0")
    return tuple(text.split("\0")) if text else ()


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split())


def command_line(argv: tuple[str, ...], limit: int = 300) -> str:
    """A command line fit for a recording: cut at ``limit`` and without keys and tokens."""
    shown: list[str] = []
    hide = False
    for part in argv:
        match = _SECRET_OPTION.search(part) if part.startswith("-") else None
        if hide:
            shown.append("***")
        elif match is not None and match["value"]:
            shown.append(part.partition("=")[0] + "=***")
        else:
            shown.append(part)
        hide = match is not None and not match["value"]
    text = " ".join(" ".join(shown).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read_stat(pid: int, root: Path = PROC) -> Stat | None:
    """The process's ``stat``; None when it is gone."""
    text = _read(root / str(pid) / "stat")
    return parse_stat(text.decode("utf-8", "replace")) if text else None


def read_status(pid: int, tid: int | None = None, root: Path = PROC) -> Status | None:
    """The ``status`` of a process, or of one of its threads; None when it is gone."""
    base = root / str(pid)
    text = _read(base / "status" if tid is None else base / "task" / str(tid) / "status")
    return parse_status(text.decode("utf-8", "replace")) if text else None


def read_process(pid: int, root: Path = PROC) -> Process | None:
    """The process; None when it is gone (a zombie is still there)."""
    stat = read_stat(pid, root)
    status = read_status(pid, root=root)
    if stat is None or status is None:
        return None
    argv = parse_argv(_read(root / str(pid) / "cmdline"))
    return Process(stat, status.uids, argv)


def read_comm(pid: int, tid: int, root: Path = PROC) -> str:
    """The thread's name; empty when it is gone."""
    data = _read(root / str(pid) / "task" / str(tid) / "comm")
    return data.decode("utf-8", "replace").rstrip("\n")


def thread_ids(pid: int, root: Path = PROC) -> tuple[int, ...]:
    """The process's threads; none when it is gone."""
    return tuple(_numbered(root / str(pid) / "task"))


def process_ids(root: Path = PROC) -> tuple[int, ...]:
    """All processes that this process can see."""
    return tuple(_numbered(root))


def child_ids(pid: int, root: Path = PROC) -> tuple[int, ...]:
    """Children of all threads of the process, dead but unreaped ones included.

    Empty as well where the kernel has no ``children`` files (CONFIG_PROC_CHILDREN).
    """
    found: list[int] = []
    for tid in _numbered(root / str(pid) / "task"):
        found += _ints(_read(root / str(pid) / "task" / str(tid) / "children").decode())
    return tuple(found)


def has_child_files(root: Path = PROC) -> bool:
    """Whether the kernel lists children, so that nobody has to read all processes."""
    me = str(os.getpid())
    return (root / me / "task" / me / "children").exists()


def parents(root: Path = PROC) -> dict[int, int]:
    """Parent of every process. Reads them all: about 20 us each."""
    found: dict[int, int] = {}
    for pid in _numbered(root):
        stat = read_stat(pid, root)
        if stat is not None:
            found[pid] = stat.ppid
    return found


def start_ns(start_ticks: int) -> int:
    """A process's start on CLOCK_MONOTONIC, to the resolution of a clock tick.

    The kernel counts from boot and through suspend; the time suspended so far is taken off,
    so the result is right for processes started after the last suspend.
    """
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return start_ticks * (1_000_000_000 // _TICKS_PER_S) - suspended


def boot_id(root: Path = PROC) -> str:
    """What tells this boot of the machine from every other one; empty if unknown."""
    return _read(root / "sys/kernel/random/boot_id").decode().strip()


def _numbered(path: Path) -> Iterator[int]:
    try:
        names = os.listdir(path)  # noqa: PTH208 - names only, an order of magnitude cheaper
    except OSError:
        return
    for name in names:
        if _DIGITS.fullmatch(name):
            yield int(name)


def _read(path: Path) -> bytes:
    # A process may go between any two reads; the caller sees that as no data.
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, and cheaper
            return file.read()
    except OSError:
        return b""
