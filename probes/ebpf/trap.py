# SPDX-License-Identifier: Apache-2.0
"""What a page fault costs besides what the kernel's tracepoints cover: measured, not assumed.

They lie between the entry to the kernel and the return from it, which on a virtual machine take
longer than a small fault itself. Of a storm of them only a third would show as faults.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.tracer import Tracer
    from gpucorrelate.probes.ebpf.values import Rows

_PAGES = 256
_TRIES = 9
_WARM = 3
_NO_HUGE = 15  # MADV_NOHUGEPAGE of include/uapi/asm-generic/mman-common.h
#: Beyond this the machine was busy with something else.
_MOST_NS = 5_000


def _column(rows: Rows, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    at = BY_NAME["fault"].index(name)
    return np.frombuffer(rows.columns[at], "<i8")


def _filled_ns(address: int) -> int:
    start = time.perf_counter_ns()
    ctypes.memset(address, 1, _PAGES * mmap.PAGESIZE)
    return time.perf_counter_ns() - start


def measure(tracer: Tracer) -> int:
    """Nanoseconds of one fault that its record leaves out; 0 where faults are not seen."""
    pid, strings, found = os.getpid(), StringTable(), []
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
        memory.madvise(_NO_HUGE)
        first = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(first)
        tracer.add_target(pid)
        try:
            for _ in range(_TRIES):
                memory.madvise(mmap.MADV_DONTNEED)
                cold = _filled_ns(address)
                own = min(_filled_ns(address) for _ in range(_WARM))
                hidden = _hidden_ns(tracer.drain(strings), address, cold - own)
                if 0 < hidden < _MOST_NS:
                    found.append(hidden)
        finally:
            tracer.remove_target(pid)
            del first
    tracer.drain(strings)
    tracer.new_targets()
    return int(statistics.median(found)) if found else 0


def _hidden_ns(drained: list[Rows], address: int, whole_ns: int) -> int:
    """What is left of one fault's share of the whole besides what was recorded of it."""
    count = recorded = 0
    for rows in drained:
        if rows.kind.name != "fault":
            continue
        at = _column(rows, "addr")
        mine = (at >= address) & (at < address + _PAGES * mmap.PAGESIZE)
        count += int(mine.sum())
        recorded += int((_column(rows, "end_ns") - _column(rows, "start_ns"))[mine].sum())
    if count < _PAGES // 2:
        return 0  # huge pages after all, or most were lost
    return (whole_ns - recorded) // count
