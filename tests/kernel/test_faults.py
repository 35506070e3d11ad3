# SPDX-License-Identifier: Apache-2.0
"""Page faults made on purpose: their address, their file and what they waited for."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.schema import CapabilityState, FaultFlag, WaitKind
from tests.kernel.observe import close, observed

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.tracer import Tracer


def test_a_cold_page_of_a_file_is_a_major_fault_with_its_file(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "major_fault")
    for made in truth["faults"]:
        addr = truth["base"] + made["offset"]
        faults = seen.get("fault", tid=truth["tid"], addr=addr)
        assert len(faults) == 1, faults
        row = faults[0]
        assert row.flags & FaultFlag.MAJOR and row.flags & FaultFlag.FILE
        assert not row.flags & (FaultFlag.WRITE | FaultFlag.KERNEL | FaultFlag.OPEN)
        assert row.inode == truth["inode"]
        # The kernel's encoding of a device: 12 bits of major, 20 of minor.
        assert row.dev == truth["major"] << 20 | truth["minor"]
        assert made["start"] <= row.start_ns < row.end_ns <= made["end"]
        # On a busy machine the thread also waits for a CPU, before or after the fault.
        around = [
            wait.length
            for wait in seen.waits(made | {"tid": truth["tid"]})
            if wait.end_ns <= row.start_ns or wait.start_ns >= row.end_ns
        ]
        assert close(row.length + sum(around), made["end"] - made["start"])
        waits = [
            wait
            for wait in seen.get("wait", tid=truth["tid"])
            if row.start_ns <= wait.start_ns and wait.end_ns <= row.end_ns
        ]
        slept = [wait for wait in waits if wait.wait_kind == WaitKind.FAULT]
        # A thread that loses its CPU right after asking may find the page when it is back.
        assert bool(slept) == bool(made["slept"])
        assert all(wait.arg == addr and wait.syscall == -1 for wait in slept)
        assert row.block_ns == sum(wait.length for wait in waits)
        assert row.wake_ns == (waits[-1].wake_ns if waits else 0)
        assert row.waker_tid == (waits[-1].waker_tid if waits else 0)
    assert any(made["slept"] for made in truth["faults"])


def test_the_first_touch_of_a_page_is_a_minor_fault(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "minor_fault")
    faults = [
        row
        for row in seen.get("fault", tid=truth["tid"])
        if row.addr & -mmap.PAGESIZE == truth["addr"] & -mmap.PAGESIZE
    ]
    assert len(faults) == 1, faults
    row = faults[0]
    assert row.flags == FaultFlag.WRITE
    assert (row.inode, row.dev, row.block_ns) == (0, 0, 0)
    assert truth["start"] <= row.start_ns < row.end_ns <= truth["end"]


def test_faults_are_among_the_capabilities(tracer: Tracer) -> None:
    states = {item.source: item.state for item in tracer.capabilities()}
    # Degraded is for kernels that pass over what idle CPUs do, and only once that was met.
    missed = tracer.stats().recovered > 0
    assert states["ebpf.sched"] == (CapabilityState.DEGRADED if missed else CapabilityState.ON)
    assert states["ebpf.faults"] == CapabilityState.ON
    assert states["ebpf.spins"] == CapabilityState.OFF
