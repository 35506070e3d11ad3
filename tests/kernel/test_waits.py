# SPDX-License-Identifier: Apache-2.0
"""Waits made on purpose: their kind, their length and who ended them."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.probes.wire.schema import FdKind, WaitFlag, WaitKind
from tests.kernel.observe import Row, Seen, close, observed

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.tracer import Tracer

NR_WRITE, NR_FUTEX, NR_READ = 1, 202, 0
FUTEX_COMMAND = 0x7F
_CONTEXT = (
    WaitFlag.WAKE_TIMER | WaitFlag.WAKE_SOFTIRQ | WaitFlag.WAKE_IRQ
    | WaitFlag.WAKE_IDLE | WaitFlag.WAKE_KTHREAD
)  # fmt: skip


def the_wait(
    seen: Seen, truth: dict[str, Any], kind: WaitKind, *, wake_may_be_missed: bool = False
) -> Row:
    """The long wait of that kind; everything true of any wait is checked."""
    waits = seen.waits(truth)
    found = [row for row in waits if row.wait_kind == kind]
    assert found, waits
    row = max(found, key=lambda one: one.length)
    assert row.tgid == truth["tgid"]
    assert row.start_ns <= row.wake_ns <= row.end_ns or (wake_may_be_missed and not row.wake_ns)
    # On a busy machine the thread also waits for the interpreter's lock or for a CPU.
    assert close(sum(one.length for one in waits), truth["end"] - truth["start"])
    assert row.length > 0.5 * (truth["end"] - truth["start"])
    assert not row.flags & (WaitFlag.OPEN | WaitFlag.START_UNKNOWN)
    return row


def woken_by(row: Row, truth: dict[str, Any], syscall: int) -> None:
    assert (row.waker_tid, row.waker_tgid) == (truth["waker"], truth["waker_tgid"])
    assert row.waker_syscall == syscall
    assert not row.flags & _CONTEXT, row


@pytest.mark.parametrize("name", ["lock", "pthread_mutex", "condition"])
def test_a_thread_of_the_process_ends_a_futex_wait(tracer: Tracer, name: str) -> None:
    truth, seen = observed(tracer, name)
    row = the_wait(seen, truth, WaitKind.FUTEX)
    woken_by(row, truth, NR_FUTEX)
    assert row.syscall == NR_FUTEX
    assert row.op & FUTEX_COMMAND in {0, 9}
    assert close(row.wake_ns, truth["wake"])
    assert seen.comms(truth["waker"]) >= {"gpc-waker"}
    if "addr" in truth:
        assert truth["addr"] <= row.arg < truth["addr"] + 64


def test_another_process_ends_a_wait_on_shared_memory(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "shared_futex")
    row = the_wait(seen, truth, WaitKind.FUTEX)
    woken_by(row, truth, NR_FUTEX)
    assert row.arg == truth["addr"]
    # The peer was born of the target, so its name came with its birth or after.
    assert "gpc-peer" in seen.comms(truth["waker"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("epoll", WaitKind.EPOLL), ("poll", WaitKind.POLL), ("select_", WaitKind.SELECT)],
)
def test_another_process_ends_a_wait_for_events(tracer: Tracer, name: str, kind: WaitKind) -> None:
    truth, seen = observed(tracer, name)
    row = the_wait(seen, truth, kind)
    woken_by(row, truth, NR_WRITE)
    if "fd" in truth:
        assert row.arg == truth["fd"]


@pytest.mark.parametrize(
    ("name", "kind", "what", "waker_syscall"),
    [
        ("pipe_reader", WaitKind.READ, FdKind.PIPE, NR_WRITE),
        ("pipe_writer", WaitKind.WRITE, FdKind.PIPE, NR_READ),
        ("socket_reader", WaitKind.READ, FdKind.SOCKET, NR_WRITE),
        ("eventfd_reader", WaitKind.READ, FdKind.OTHER, NR_WRITE),
    ],
)
def test_another_process_ends_a_read_or_write(
    tracer: Tracer, name: str, kind: WaitKind, what: FdKind, waker_syscall: int
) -> None:
    truth, seen = observed(tracer, name)
    row = the_wait(seen, truth, kind)
    woken_by(row, truth, waker_syscall)
    assert row.arg == truth["fd"]
    assert row.op == what


def test_a_sleep_is_ended_by_a_timer(tracer: Tracer) -> None:
    rows = []
    for cpu in sorted(os.sched_getaffinity(0)) * 3:
        truth, seen = observed(tracer, "nanosleep", cpu)
        rows.append(the_wait(seen, truth, WaitKind.SLEEP, wake_may_be_missed=True))
    told = [row for row in rows if row.wake_ns]
    # A kernel may pass over what an idle CPU does, but not on every CPU, and never tell lies.
    assert told
    for row in told:
        assert row.flags & WaitFlag.WAKE_TIMER, row
        assert not row.flags & (WaitFlag.WAKE_KTHREAD | WaitFlag.WAKE_IRQ)


def test_a_read_of_a_cold_file_waits_for_the_disk(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "file_reader")
    waits = seen.waits(truth, wait_kind=WaitKind.READ)
    assert waits
    for row in waits:
        assert (row.op, row.arg) == (FdKind.FILE, truth["fd"])
        # The device's interrupt, or the kernel thread that completes its requests.
        assert row.flags & _CONTEXT or not row.wake_ns, row


def longest_stay(row: Row, runs: list[tuple[int, int]]) -> int:
    """The longest of the runs, as far as it lies within the wait."""
    within = (min(row.end_ns, end) - max(row.start_ns, begin) for begin, end in runs)
    return max(within, default=0)


def test_a_hog_on_the_same_cpu_is_named(tracer: Tracer) -> None:
    cpu = max(os.sched_getaffinity(0))
    for _ in range(8):
        truth, seen = observed(tracer, "hog", cpu)
        waits = [row for row in seen.waits(truth, wait_kind=WaitKind.PREEMPTED) if row.cpu == cpu]
        assert waits
        assert all(row.wake_ns == row.start_ns for row in waits)
        # The hog is a child and thus seen too: when it ran is known from its own waits. Where
        # one of its stays was more than half of a wait, nobody else can be to blame.
        its = sorted(seen.get("wait", tid=truth["hog"]), key=lambda row: row.start_ns)
        runs = [(one.end_ns, other.start_ns) for one, other in itertools.pairwise(its)]
        by_hog = [row for row in waits if longest_stay(row, runs) > 0.55 * row.length]
        long = [row for row in by_hog if row.length > 1_000_000]
        if long:
            named = sum(row.length for row in long if row.waker_tid == truth["hog"])
            # Not quite all: the scheduler's account, which decides, leaves stolen time out.
            assert named > 0.8 * sum(row.length for row in long)
            assert "gpc-hog" in seen.comms(truth["hog"])
            return
    pytest.fail("in eight tries the hog never had most of a wait: the machine is too busy")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_wake_before_the_switch_is_kept(tracer: Tracer) -> None:
    for _ in range(5):
        passed_over = tracer.stats().recovered
        truth, seen = observed(tracer, "early_wake", 3000)
        blocked = seen.waits(truth, wait_kind=WaitKind.READ)
        # Whatever the race, a blocked thread came back because somebody woke it; and that was
        # seen, unless this kernel passed over what an idle CPU did.
        seen_all = tracer.stats().recovered == passed_over
        assert all(row.wake_ns for row in blocked) or not seen_all
        early = [row for row in blocked if row.flags & WaitFlag.WAKE_EARLY]
        for row in early:
            assert row.wake_ns == row.start_ns
            assert row.waker_tid == truth["waker"]
            assert row.waker_syscall == NR_WRITE
        if early:
            return
    pytest.fail("no early wake in 15,000 reads: the path was not exercised")
