# SPDX-License-Identifier: Apache-2.0
"""Waits, faults and births made on purpose: kind, waker and call are right on this kernel.

Lengths are compared loosely: an emulated machine's CPUs take turns.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.schema import FaultFlag, FdKind, TaskEvent, WaitFlag, WaitKind
from tests.kernel.observe import Seen, observed
from tests.kernel.scenarios import WAIT_S
from tests.qemu.inside.kit import BACKEND, BUSY, CGROUPS, cgroups, child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tests.kernel.observe import Row

_TRIES, _MADE_PART = 4, 0.5
NR_READ, NR_WRITE, NR_FUTEX = 0, 1, 202


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    made = Tracer.start(TracerConfig(backend=BACKEND))
    yield made
    made.stop()


def longest(
    tracer: Tracer, kind: WaitKind, name: str, *arguments: object
) -> tuple[dict[str, Any], Row]:
    """Play a scenario; what it did, and its longest wait of a kind, most of what was made."""
    for _ in range(_TRIES):
        truth, seen = observed(tracer, name, *arguments)
        found = seen.waits(truth, wait_kind=kind)
        row = max(found, key=lambda one: one.length, default=None)
        # The waiter may get its turn when the other has long been through.
        if row is not None and row.length > _MADE_PART * WAIT_S * 1e9:
            assert not row.flags & (WaitFlag.OPEN | WaitFlag.START_UNKNOWN)
            return truth, row
    raise AssertionError(f"no wait of that length in {_TRIES} tries: {seen.waits(truth)}")


@pytest.mark.parametrize(
    ("name", "kind", "waker_syscall"),
    [
        ("lock", WaitKind.FUTEX, NR_FUTEX),
        ("condition", WaitKind.FUTEX, NR_FUTEX),
        ("shared_futex", WaitKind.FUTEX, NR_FUTEX),
        ("epoll", WaitKind.EPOLL, NR_WRITE),
        ("poll", WaitKind.POLL, NR_WRITE),
        ("select_", WaitKind.SELECT, NR_WRITE),
        ("pipe_reader", WaitKind.READ, NR_WRITE),
        ("pipe_writer", WaitKind.WRITE, NR_READ),
        ("socket_reader", WaitKind.READ, NR_WRITE),
        ("eventfd_reader", WaitKind.READ, NR_WRITE),
    ],
)
def test_a_wait_and_who_ended_it(
    tracer: Tracer, name: str, kind: WaitKind, waker_syscall: int
) -> None:
    truth, row = longest(tracer, kind, name)
    assert (row.waker_tid, row.waker_tgid) == (truth["waker"], truth["waker_tgid"])
    assert row.waker_syscall == waker_syscall
    assert row.start_ns <= row.wake_ns <= row.end_ns


def test_a_sleep_is_ended_by_a_timer(tracer: Tracer) -> None:
    rows = [longest(tracer, WaitKind.SLEEP, "nanosleep", cpu)[1] for cpu in (0, 1, 0, 1)]
    told = [row for row in rows if row.wake_ns]
    assert told
    assert all(row.flags & WaitFlag.WAKE_TIMER for row in told)


@pytest.fixture
def slow_disk() -> Iterator[None]:
    """Reads take long: an emulated disk may answer before anybody has gone to sleep."""
    number = Path("/var/tmp").stat().st_dev
    with cgroups("slow") as (slow,):
        (slow / "io.max").write_text(f"{os.major(number)}:{os.minor(number)} riops=20")
        (slow / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))


@pytest.mark.usefixtures("slow_disk")
def test_a_cold_page_is_a_major_fault_with_its_file(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "major_fault")
    for made in truth["faults"]:
        address = truth["base"] + made["offset"]
        (row,) = seen.get("fault", tid=truth["tid"], addr=address)
        assert row.flags & FaultFlag.MAJOR
        assert made["start"] <= row.start_ns < row.end_ns <= made["end"]
        # Where the kernel has no word for it, the file is not known: 'check' says so.
        named = "fault_file" in tracer.stats().programs
        assert bool(row.flags & FaultFlag.FILE) == named
        assert row.inode == (truth["inode"] if named else 0)
        slept = [
            one
            for one in seen.waits(made | {"tid": truth["tid"]}, wait_kind=WaitKind.FAULT)
            if one.arg == address
        ]
        assert bool(slept) == bool(made["slept"])
        assert row.block_ns >= sum(one.length for one in slept)
    assert any(made["slept"] for made in truth["faults"])


def test_the_first_touch_of_a_page_is_a_minor_fault(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "minor_fault")
    rows = [
        one for one in seen.get("fault", tid=truth["tid"]) if one.addr >> 12 == truth["addr"] >> 12
    ]
    assert len(rows) == 1
    assert not rows[0].flags & FaultFlag.MAJOR


@pytest.mark.usefixtures("slow_disk")
def test_a_cold_read_waits_for_the_disk(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "file_reader")
    waits = seen.waits(truth, wait_kind=WaitKind.READ)
    assert waits
    assert {(row.op, row.arg) for row in waits} == {(FdKind.FILE, truth["fd"])}


def test_births_execs_and_deaths(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "births")
    told = {(row.tid, row.event) for row in seen.get("task")}
    for tid in (truth["thread"], truth["child"], truth["exec"]):
        assert {(tid, TaskEvent.FORK), (tid, TaskEvent.EXIT)} <= told
    assert (truth["exec"], TaskEvent.EXEC) in told
    assert "gpc-thread" in seen.comms(truth["thread"])


def test_every_sleep_is_counted(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "sleeps", 100, 1000)
    found = len(seen.get("wait", tid=truth["tid"], wait_kind=WaitKind.SLEEP))
    # A timer may be over before the thread has left its CPU: then there was no wait.
    assert 95 <= found <= 100


def test_yields_are_one_spin(tracer: Tracer) -> None:
    tracer.set_yields(on=True)
    try:
        truth, seen = observed(tracer, "yields", 300)
    finally:
        tracer.set_yields(on=False)
    rows = seen.get("spin", tid=truth["tid"])
    assert sum(row.count for row in rows) == 300, rows


def test_time_without_quota_is_in_the_waits_of_a_process_held_by_its_parents_quota(
    tracer: Tracer,
) -> None:
    seen = Seen(tracer)
    with cgroups("held", "inner") as (held, inner), child(BUSY, inner) as hog:
        tracer.add_target(hog.pid)
        (held / "cpu.max").write_text("20000 100000")
        time.sleep(4)
        (held / "cpu.max").write_text("max")
        tracer.remove_target(hog.pid)
        seen.drain()
    waits = [row for row in seen.get("wait", tid=hog.pid) if row.throttled_ns]
    assert len(waits) >= 5
    for row in waits:
        assert row.wait_kind == WaitKind.PREEMPTED
        assert row.throttled_ns <= 1.05 * row.length
    assert sum(r.throttled_ns for r in waits) > 0.5 * sum(r.length for r in waits)
