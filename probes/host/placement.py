# SPDX-License-Identifier: Apache-2.0
"""Where a process is: the nodes of its memory and CPUs, what it is bound to, and its GPU's node.

Formats: ``numa_maps`` and ``status`` of procfs (Linux kernel, Documentation/filesystems/proc.rst
and numa(7)). Pages say where memory lies, not how often it is reached: a remote share is a
reason to look, and a measure of how much could be remote, never of time lost.
"""

from __future__ import annotations

import enum
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.numa import parse_ids
from gpucorrelate.probes.host.procfs import PROC
from gpucorrelate.probes.host.reading import Metric, Missing, Reading
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: A process of 50,000 mappings has about 5 MiB of ``numa_maps``.
LIMIT_BYTES = 8 << 20
#: The kernel walks the page tables of a process to answer, under its memory lock.
LIMIT_NS = 200_000_000

_CHUNK_BYTES = 64 * 1024
_PAGES = re.compile(rb" N([0-9]{1,5})=([0-9]{1,15})(?= |$)")
_PAGE_SIZE = re.compile(rb" kernelpagesize_kB=([0-9]{1,9})(?= |$)")
_USUAL_PAGE_KIB = os.sysconf("SC_PAGESIZE") // 1024
#: Field of ``stat`` that names the CPU, counted from the state, the first after the name.
_CPU_FIELD = 36


class Kind(enum.IntEnum):
    """What memory is used for, as far as its mapping tells."""

    HEAP = 0
    STACK = 1
    ANON = 2
    FILE = 3
    HUGE = 4


_KIND_MEANING = {
    Kind.HEAP: "The heap that grows by brk; most of malloc's large blocks are anonymous instead.",
    Kind.STACK: "Stack of the main thread; those of other threads are anonymous.",
    Kind.ANON: "Memory that no file backs: malloc's blocks, Python's objects, tensors.",
    Kind.FILE: "Files and shared memory mapped, private copies of their pages included.",
    Kind.HUGE: "Huge pages that were reserved for it; transparent ones count as anonymous.",
}
PLACED = {
    kind: Metric(
        f"numa.placed.{kind.name.lower()}",
        "bytes",
        Nature.LEVEL,
        f"{_KIND_MEANING[kind]} Counted where it lies, and in full for each process that shares "
        "it. Memory that a driver maps (pinned for a GPU) may be left out by the kernel.",
    )
    for kind in Kind
}


@dataclass(frozen=True)
class Part:
    """Memory of one kind on one node."""

    node: int
    kind: Kind
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """Where a process's memory lies.

    Attributes:
        parts: By node and kind; only what is there.
        mappings: Mappings that hold pages.
        problems: Mappings that could not be understood.
        complete: Whether all was read within the bounds.
    """

    parts: tuple[Part, ...] = ()
    mappings: int = 0
    problems: int = 0
    complete: bool = True

    @property
    def spread(self) -> Spread:
        """All kinds together."""
        sums: dict[int, int] = {}
        for part in self.parts:
            sums[part.node] = sums.get(part.node, 0) + part.size_bytes
        return Spread("memory", "bytes", tuple(sorted(sums.items())))


@dataclass(frozen=True)
class Spread:
    """Something spread over nodes.

    Attributes:
        what: ``cpu``, ``memory``, or ``gpu:GPU-<uuid>`` and ``pci:<address>``.
        unit: Of the amounts: ``ns``, ``samples``, ``bytes``, ``count``.
        amounts: As (node, amount), by node.
    """

    what: str
    unit: str
    amounts: tuple[tuple[int, int], ...]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(amount for _, amount in self.amounts)


@dataclass(frozen=True)
class Affinity:
    """Where the kernel may put a thread and its memory.

    Attributes:
        cpus: CPUs that it may run on.
        nodes: Nodes that its memory may come from by its cpuset; a policy may narrow it. None
            are named by a kernel without cpusets.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Binding:
    """What a thread was bound to when somebody looked.

    Attributes:
        subject: ``pid:4711`` or ``tid:4712``.
        affinity: What it was bound to.
        t_ns: When, CLOCK_MONOTONIC.
        placement: Where its memory lay then; None if nobody looked.
    """

    subject: str
    affinity: Affinity
    t_ns: int
    placement: Placement | None = None


@dataclass(frozen=True)
class Rebinding:
    """Somebody changed what a thread is bound to, between two looks."""

    before: Binding
    after: Binding


class _Sum:
    """Adds up lines of ``numa_maps``."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, Kind], int] = {}
        self._mappings = 0
        self._problems = 0

    def add(self, line: bytes) -> None:
        """One mapping; blanks in paths are escaped, so a word is a word."""
        # Most mappings of a process hold no page or few: this test is what a line costs.
        if b" N" not in line:
            return
        pages = _PAGES.findall(line)
        if not pages:
            self._problems += 1
            return
        match = _PAGE_SIZE.search(line)
        page_bytes = (int(match[1]) if match else _USUAL_PAGE_KIB) * 1024
        kind = _kind(line)
        self._mappings += 1
        for node, count in pages:
            key = int(node), kind
            self._sums[key] = self._sums.get(key, 0) + int(count) * page_bytes

    def placement(self, *, complete: bool) -> Placement:
        """All of it."""
        parts = tuple(Part(*key, self._sums[key]) for key in sorted(self._sums))
        return Placement(parts, self._mappings, self._problems, complete)


def _kind(line: bytes) -> Kind:
    if b" huge" in line and b"huge" in line.split():
        return Kind.HUGE
    if b" file=" in line:
        return Kind.FILE
    if b" heap" in line:
        return Kind.HEAP
    if b" stack" in line:
        return Kind.STACK
    return Kind.ANON


def parse_numa_maps(chunks: Iterable[bytes], *, complete: bool = True) -> Placement:
    """Sum up a ``numa_maps`` file, read piece by piece; what is no mapping adds nothing.

    Args:
        chunks: The file's bytes, cut anywhere.
        complete: False where the reader knows that more would have come.
    """
    found = _Sum()
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            found.add(line)
    # A last line without its end was cut, and half a number is not a number.
    return found.placement(complete=complete and not rest)


def read_placement(
    pid: int,
    root: Path = PROC,
    *,
    limit_bytes: int = LIMIT_BYTES,
    limit_ns: int = LIMIT_NS,
) -> Placement | Missing:
    """Where a process's memory lies.

    Not for every round: the kernel walks all page tables of the process meanwhile, and mapping
    memory waits for it. Seen in a virtual machine: 7.5 ms for each GiB of small pages, 0.1 ms
    for each GiB of transparent huge ones, 2 us for each mapping.
    """
    subject = f"pid:{pid}"
    path = root / str(pid) / "numa_maps"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        gone = not path.parent.exists()
        why = "the process is gone" if gone else "this kernel is built without NUMA"
        return Missing("numa.placed", subject, why)
    except OSError as error:
        return Missing("numa.placed", subject, error.strerror or "cannot be opened")
    chunks = _Bounded(fd, limit_bytes, time.monotonic_ns() + limit_ns)
    try:
        found = parse_numa_maps(chunks)
    except OSError:
        return Missing("numa.placed", subject, "the process went while it was read")
    finally:
        os.close(fd)
    if not chunks.cut:
        return found
    return Placement(found.parts, found.mappings, found.problems, complete=False)


class _Bounded:
    """A file's chunks, until one of the bounds is reached."""

    def __init__(self, fd: int, limit_bytes: int, deadline_ns: int) -> None:
        self._fd = fd
        self._left = limit_bytes
        self._deadline_ns = deadline_ns
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        while chunk := os.read(self._fd, _CHUNK_BYTES):
            self._left -= len(chunk)
            if self._left < 0 or time.monotonic_ns() > self._deadline_ns:
                self.cut = True
                return
            yield chunk


def placement_readings(pid: int, placement: Placement, t_ns: int) -> tuple[Reading, ...]:
    """A placement as numbers: of ``pid:4711 node:0``, by kind."""
    return tuple(
        Reading(PLACED[part.kind], f"pid:{pid} node:{part.node}", part.size_bytes, t_ns)
        for part in placement.parts
    )


def parse_affinity(text: str) -> Affinity | None:
    """What a ``status`` file says a thread is bound to; None where it does not."""
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = ()
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == "Cpus_allowed_list":
            cpus = parse_ids(rest)
        elif key == "Mems_allowed_list":
            nodes = parse_ids(rest)
    if not cpus or nodes is None:
        return None
    return Affinity(cpus, nodes)


def read_affinity(pid: int, tid: int | None = None, root: Path = PROC) -> Affinity | None:
    """What a process's main thread, or one of its threads, is bound to; None when it is gone."""
    text = _task_file(pid, tid, root, "status")
    return parse_affinity(text) if text is not None else None


def parse_last_cpu(text: str) -> int | None:
    """The CPU that a ``stat`` file says the thread is on, or was last; None where it does not."""
    _, closed, tail = text.rpartition(")")
    fields = tail.split()
    if not closed or len(fields) <= _CPU_FIELD or not fields[_CPU_FIELD].isdecimal():
        return None
    found = parse_ids(fields[_CPU_FIELD])
    return found[0] if found else None


def read_last_cpu(pid: int, tid: int | None = None, root: Path = PROC) -> int | None:
    """The CPU a thread is on, or was last; None when it is gone."""
    text = _task_file(pid, tid, root, "stat")
    return parse_last_cpu(text) if text is not None else None


def _task_file(pid: int, tid: int | None, root: Path, name: str) -> str | None:
    base = root / str(pid)
    path = base / name if tid is None else base / "task" / str(tid) / name
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, and cheaper
            return (file.read(_CHUNK_BYTES) or b"").decode("utf-8", "replace")
    except OSError:
        return None


def rebindings(before: Iterable[Binding], after: Iterable[Binding]) -> tuple[Rebinding, ...]:
    """Threads bound otherwise than before, both sides as they were.

    Subjects seen only once are new or gone, not rebound. That a number still names the same
    thread is for the caller to know.
    """
    known = {binding.subject: binding for binding in before}
    found: list[Rebinding] = []
    for binding in after:
        old = known.get(binding.subject)
        if old is not None and old.affinity != binding.affinity:
            found.append(Rebinding(old, binding))
    return tuple(found)
