# SPDX-License-Identifier: Apache-2.0
"""The loaded programs and the memory shared with them: one method per thing one can ask."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.ebpf import backends, bpfsys, support
from gpucorrelate.probes.ebpf.decode import SUM_KEY, SUM_VALUE
from gpucorrelate.probes.ebpf.layout import (
    CONFIG_WORDS,
    CONTROL_WORDS,
    CPU_WORDS,
    MAX_CPUS,
    SUM_ENTRIES,
    TARGET_WORDS,
    ConfigSlot,
    ControlSlot,
    CpuSlot,
    IterMode,
)
from gpucorrelate.probes.ebpf.ring import Ring
from gpucorrelate.probes.ebpf.values import Loss, TracerConfig, TracerStats
from gpucorrelate.probes.wire.errors import KernelSupportError
from gpucorrelate.probes.wire.schema import KernelRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rings of all CPUs together are kept below this: 2 MiB each on 128 CPUs, which is still some
#: 20,000 records between two drains.
MAX_RINGS_BYTES = 1 << 28
#: The tracer is woken when a ring is filled to this part: what is left holds more than comes
#: while it wakes up.
_WAKE_PART = 4
_SUM_MAPS = ("gpc_sums_even", "gpc_sums_odd")
_WHAT = {kind: kind.name.lower() for kind in KernelRecord}


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU numbers from a list like ``0-3,8``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def _cpus(which: str) -> tuple[int, ...]:
    path = Path("/sys/devices/system/cpu") / which
    return parse_cpus(path.read_text(encoding="ascii"))


def ring_size(wanted_bytes: int, cpus: int) -> int:
    """The largest power of two up to ``wanted_bytes`` that keeps all rings within bounds."""
    limit = max(mmap.PAGESIZE, min(wanted_bytes, MAX_RINGS_BYTES // max(1, cpus)))
    return 1 << (limit.bit_length() - 1)


class Kernel:
    """The BPF object with its rings and shared memory.

    Args:
        found: Which programs to load.
        config: Sizes and thresholds.

    Raises:
        KernelSupportError: the programs or the rings cannot be loaded.
    """

    def __init__(self, found: support.Support, config: TracerConfig) -> None:
        self.refused: list[support.Missing] = []
        self.attached: list[str] = []
        self.spins_on = False
        self._support = found
        self._cpus = _cpus("possible")
        if self._cpus[-1] >= MAX_CPUS:
            raise KernelSupportError(f"more than {MAX_CPUS} CPUs", hint="none yet: report it")
        self._ring_bytes = ring_size(config.ring_bytes, len(self._cpus))
        self._ring_fds: list[int] = []
        self._rings: list[Ring] = []
        self._fill_bytes = 0
        self._filled = select.epoll()
        self._object = backends.open_programs(found.backend)
        try:
            self._configure(config)
            self._object.load()
            self._map_memory()
            self._make_rings()
        except BaseException:
            self.close()
            raise

    def _configure(self, config: TracerConfig) -> None:
        keep = {*self._support.programs, support.WALK_PROGRAM}
        if self._support.spins:
            keep.add(support.SPIN_PROGRAM)
        for name in self._object.programs():
            if name not in keep:
                self._object.skip(name)
        words = [0] * CONFIG_WORDS
        words[ConfigSlot.MIN_WAIT_NS] = config.min_wait_ns
        words[ConfigSlot.WAKE_BYTES] = self._ring_bytes // _WAKE_PART
        words[ConfigSlot.FAULT_PROGRAMS] = int("fault_user" in self._support.programs)
        self._object.set_initial(".rodata.config", struct.pack(f"<{CONFIG_WORDS}Q", *words))
        self._object.set_max_entries("gpc_rings", self._cpus[-1] + 1)
        if not config.min_wait_ns:
            for name in _SUM_MAPS:
                self._object.set_max_entries(name, 1)

    def _map_memory(self) -> None:
        self._maps = {
            name: self._object.map_memory(name, words * 8)
            for name, words in (
                (".bss.control", CONTROL_WORDS),
                (".bss.targets", TARGET_WORDS),
                (".bss.cpus", MAX_CPUS * CPU_WORDS),
            )
        }
        u64 = np.dtype("<u8")
        self._control = np.frombuffer(self._maps[".bss.control"], u64, CONTROL_WORDS)
        self._targets = np.frombuffer(self._maps[".bss.targets"], u64, TARGET_WORDS)
        counters = np.frombuffer(self._maps[".bss.cpus"], u64, MAX_CPUS * CPU_WORDS)
        self._counters = counters.reshape(MAX_CPUS, CPU_WORDS)[: self._cpus[-1] + 1]
        self._first_drops = self._counters[:, CpuSlot.FIRST_DROP_NS]
        self._counted = self._counters.copy()
        self._missed = 0
        self._asked_ns = time.monotonic_ns()
        self._control[ControlSlot.EPOCH] = 1

    def _make_rings(self) -> None:
        outer = self._object.map_fd("gpc_rings")
        for cpu in self._cpus:
            fd = bpfsys.create_ring(f"gpc_ring{cpu}", self._ring_bytes)
            self._ring_fds.append(fd)
            bpfsys.set_inner_map(outer, cpu, fd)
            # Edges alone: records that may lie there until the next drain are no news.
            self._filled.register(fd, select.EPOLLIN | select.EPOLLET)
            self._rings.append(Ring(fd, self._ring_bytes))

    def attach(self) -> None:
        """Attach every program; what only perf events need may be refused without harm.

        Raises:
            KernelSupportError: one of the other programs cannot be attached.
        """
        for name in self._support.programs:
            if name == support.WALK_PROGRAM or name in support.FAULT_EVENTS:
                continue
            self._object.attach(name)
            self.attached.append(name)
        online = _cpus("online")
        for name, event in support.FAULT_EVENTS.items():
            if name not in self._support.programs:
                continue
            try:
                self._object.attach_software_event(name, event, online)
            except KernelSupportError as exc:
                self._object.detach(name)
                self.refused.append(support.Missing("ebpf.faults", exc.message, exc.hint))
                continue
            self.attached.append(name)

    def set_spins(self, *, on: bool) -> None:
        """Attach or detach the program that sees every syscall."""
        if on and not self.spins_on:
            self._object.attach(support.SPIN_PROGRAM)
        elif not on:
            self._object.detach(support.SPIN_PROGRAM)
        self.spins_on = on

    def next_epoch(self) -> None:
        """From now on every task is announced again when it is met."""
        self._control[ControlSlot.EPOCH] += np.uint64(1)

    def is_target(self, tgid: int) -> bool:
        """Whether a process's bit is set."""
        return bool(int(self._targets[tgid >> 6]) >> (tgid & 63) & 1)

    def targets(self) -> frozenset[int]:
        """Every process whose bit is set."""
        words = self._targets.copy()  # the kernel changes it meanwhile
        found: set[int] = set()
        for index in np.flatnonzero(words):
            word = int(words[index])
            found |= {int(index) * 64 + bit for bit in range(64) if word >> bit & 1}
        return frozenset(found)

    def walk(self, mode: IterMode, tgid: int) -> bytes:
        """Run the walk over all tasks; returns the records it wrote."""
        self._control[ControlSlot.ITER_MODE] = mode
        self._control[ControlSlot.ITER_TGID] = tgid
        return self._object.read_iterator(support.WALK_PROGRAM)

    def fileno(self) -> int:
        """Readable when a ring fills, or holds a new process; until ``calm``."""
        return self._filled.fileno()

    def calm(self) -> None:
        """What made ``fileno`` readable is known."""
        self._filled.poll(0)

    def take(self, limit: int) -> list[NDArray[np.void]]:
        """Records of each ring that has any."""
        found: list[NDArray[np.void]] = []
        for ring in self._rings:
            pending = ring.pending_bytes
            if pending:
                self._fill_bytes = max(self._fill_bytes, pending)
                found.append(ring.take(limit))
        return found

    def close_sums(self, *, wait: bool) -> list[tuple[bytes, bytes]]:
        """Begin a new window of sums; returns keys and values of those that are complete.

        A window is complete when no program that began before its end still runs. Without
        ``wait`` that is the window before the one closed now; with it, both.
        """
        fds = [self._object.map_fd(name) for name in _SUM_MAPS]
        window = int(self._control[ControlSlot.SUM_WINDOW])
        found = [self._take_sums(fds[(window + 1) & 1])]
        self._control[ControlSlot.SUM_WINDOW] = window + 1
        if wait:
            # Putting the same ring in place again waits for all running programs.
            rings = self._object.map_fd("gpc_rings")
            bpfsys.set_inner_map(rings, self._cpus[0], self._ring_fds[0])
            found.append(self._take_sums(fds[window & 1]))
        return found

    @staticmethod
    def _take_sums(fd: int) -> tuple[bytes, bytes]:
        return bpfsys.take_all(fd, SUM_KEY.itemsize, SUM_VALUE.itemsize, SUM_ENTRIES)

    @property
    def dropping(self) -> bool:
        """Whether a ring was full since ``losses`` was called."""
        return bool(self._first_drops.any())

    def losses(self, now_ns: int) -> list[Loss]:
        """What was lost since the last call."""
        counters = self._counters.copy()
        new = counters - self._counted
        first = counters[:, CpuSlot.FIRST_DROP_NS]
        begun = first[first > 0]
        since = int(begun.min()) if len(begun) else 0
        self._first_drops[:] = 0
        self._counted = counters
        found = [
            Loss("bpf.ring", _WHAT[kind], lost, since, now_ns)
            for kind in KernelRecord
            if (lost := int(new[:, int(kind)].sum()))
        ]
        if storage := int(new[:, CpuSlot.FAIL_STORAGE].sum()):
            found.append(Loss("bpf.storage", "wait", storage, self._asked_ns, now_ns))
        missed = self._missed_runs()
        if missed > self._missed:
            found.append(Loss("bpf.recursion", "", missed - self._missed, self._asked_ns, now_ns))
            self._missed = missed
        self._asked_ns = now_ns
        return found

    @property
    def recovered(self) -> int:
        """Waits whose end the kernel did not report."""
        return int(self._counters[:, CpuSlot.RECOVERED].sum())

    def _missed_runs(self) -> int:
        return sum(run.missed for run in self._object.runs())

    def stats(self, taken: int) -> TracerStats:
        """Counters since the start."""
        total = self._counters.sum(axis=0)
        return TracerStats(
            taken=taken,
            written=sum(ring.written for ring in self._rings),
            dropped=sum(int(total[int(kind)]) for kind in KernelRecord),
            failed_storage=int(total[CpuSlot.FAIL_STORAGE]),
            failed_reads=int(total[CpuSlot.FAIL_READ]),
            recovered=int(total[CpuSlot.RECOVERED]),
            sums_full=int(total[CpuSlot.SUMS_FULL]),
            missed_runs=self._missed_runs(),
            ring_bytes=self._ring_bytes,
            ring_fill_bytes=self._fill_bytes,
            cpus=len(self._rings),
            programs=(*self.attached, *((support.SPIN_PROGRAM,) if self.spins_on else ())),
        )

    def close(self) -> None:
        """Detach, unload and unmap."""
        self._object.close()
        self._filled.close()
        for ring in self._rings:
            ring.close()
        self._rings = []
        for fd in self._ring_fds:
            os.close(fd)
        self._ring_fds = []
        # The arrays hold the mappings open: they go first.
        for name in ("_control", "_targets", "_first_drops", "_counters"):
            self.__dict__.pop(name, None)
        for memory in self.__dict__.pop("_maps", {}).values():
            # A traceback may still hold an array: the mapping then goes with it.
            with contextlib.suppress(BufferError):
                memory.close()
