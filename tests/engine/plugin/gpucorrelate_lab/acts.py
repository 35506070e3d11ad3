# SPDX-License-Identifier: Apache-2.0
"""What a fault does to the thread that it befalls: it sleeps, computes, faults pages in.

Each act returns the parts of it in which it surely held the thread up: start and end on
CLOCK_MONOTONIC, and, of what lies between, how long the thread did something else on a CPU and how
long it was ready without one, by the kernel's accounts; and what the act was done to.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import resource
import time
from typing import TYPE_CHECKING

from gpucorrelate_lab.lab import lab, queued_ns

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 1 << 20
_NO_HUGE = 15  # MADV_NOHUGEPAGE
_STORM_BYTES = 64 * _MIB
_COLD_PAGES = 64
#: Touched pages lie this far apart, so that none comes with another.
_APART_BYTES = _MIB
#: Off the CPU for less than this is an interrupt or a moment's guest.
GAP_NS = 100_000

#: Start, end, other CPU time and queued time, all in nanoseconds.
Part = tuple[int, int, int, int]
Act = tuple[list[Part], str]


def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""
    return time.monotonic_ns()


def sleep(length_ns: int) -> Act:
    """Sleep. It ends when the timer does; what comes after is no sleep."""
    start = now()
    time.sleep(length_ns / 1e9)
    return [(start, min(now(), start + length_ns), 0, 0)], ""


def burn(length_ns: int) -> Act:
    """Compute; parts are the stretches in which it had a CPU."""
    start = last = begun = now()
    parts = []
    while last - start < length_ns:
        t = now()
        if t - last >= GAP_NS:
            parts.append((begun, last, 0, 0))
            begun = t
        last = t
    return [*parts, (begun, last, 0, 0)], ""


@functools.cache
def _storm_memory(pid: int) -> tuple[mmap.mmap, int]:
    del pid
    memory = mmap.mmap(-1, _STORM_BYTES)
    memory.madvise(_NO_HUGE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def storm(length_ns: int) -> Act:
    """Write to memory that is not there yet, page after page: minor faults.

    The writing itself, which is no fault, is measured in the same memory when it is there.
    """
    memory, address = _storm_memory(os.getpid())
    memory.madvise(mmap.MADV_DONTNEED)
    step, at = 64 * mmap.PAGESIZE, 0
    queued, start = queued_ns(), now()
    while now() - start < length_ns and at + step <= _STORM_BYTES:
        ctypes.memset(address + at, 1, step)
        at += step
    end, queued = now(), queued_ns() - queued
    again = now()
    for back in range(0, min(at, 16 * step), step):
        ctypes.memset(address + back, 1, step)
    own = (now() - again) * at // max(1, min(at, 16 * step))
    return [(start, end, own, queued)], "memory"


@functools.cache
def _cold_file(pid: int) -> tuple[int, str]:
    path = lab().folder / f"cold-{pid}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    path.unlink()
    for _ in range(_COLD_PAGES):
        os.write(fd, os.urandom(_APART_BYTES))
    stat = os.fstat(fd)
    return fd, f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)} inode {stat.st_ino}"


def cold(length_ns: int) -> Act:
    """Touch pages of a mapped file that are on disk only: major faults."""
    fd, name = _cold_file(os.getpid())
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    parts = []
    with mmap.mmap(
        fd, _COLD_PAGES * _APART_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ
    ) as memory:
        begun = now()
        for offset in range(0, _COLD_PAGES * _APART_BYTES, _APART_BYTES):
            before, queued, start = _major(), queued_ns(), now()
            _ = memory[offset]
            end = now()
            if _major() > before:
                parts.append((start, end, 0, queued_ns() - queued))
            if end - begun > length_ns:
                break
    return parts, f"file {name}"


def _major() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


ACTS: dict[str, Callable[[int], Act]] = {
    "sleep": sleep,
    "burn": burn,
    "storm": storm,
    "cold": cold,
}
