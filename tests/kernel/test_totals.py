# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost silently: open waits, sums of short waits, and drops are exact."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.configkeys import BOUNDS
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.schema import FdKind, SpinSource, WaitFlag, WaitKind
from tests.kernel.observe import (
    Seen,
    at_rest,
    close,
    now_ns,
    scenario,
    switches,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_wait_open_when_tracing_begins_is_closed_with_unknown_start(tracer: Tracer) -> None:
    with scenario("sleeps", 0, 0) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        before = now_ns()
        tracer.add_target(made.pid)
        after = now_ns()
        made.go()
        made.truth()
        seen = Seen(tracer).drain()
        first, *rest = sorted(
            seen.get("wait", tid=made.pid, wait_kind=WaitKind.READ), key=lambda row: row.start_ns
        )
        assert first.flags & WaitFlag.START_UNKNOWN
        assert before <= first.start_ns <= after
        assert first.op == FdKind.PIPE
        assert first.waker_tid == threading.get_native_id()
        assert not any(row.flags & WaitFlag.START_UNKNOWN for row in rest)


def test_a_wait_open_at_the_report_is_told_and_goes_on(tracer: Tracer) -> None:
    with scenario("sleeps", 0, 0) as made:
        tracer.add_target(made.pid)
        made.go()
        made.truth()
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its end")
        reports = []
        for _ in range(2):
            seen = Seen(tracer)
            at = now_ns()
            seen.add(tracer.open_waits(at, seen.strings))
            (row,) = seen.get("wait", tid=made.pid)
            assert row.flags & WaitFlag.OPEN
            assert (row.wait_kind, row.op, row.arg) == (WaitKind.READ, FdKind.PIPE, 0)
            assert row.end_ns == at
            reports.append(row)
            time.sleep(0.005)
        # The report changed nothing: the same wait, later, and then its real end.
        assert reports[0].start_ns == reports[1].start_ns
        Seen(tracer).drain()
        made.end()
        seen = Seen(tracer).drain()
        ended = seen.get("wait", tid=made.pid, wait_kind=WaitKind.READ)
        assert [row.start_ns for row in ended] == [reports[0].start_ns]
        assert not ended[0].flags & WaitFlag.OPEN
        assert ended[0].end_ns > reports[1].end_ns


@pytest.fixture
def summing(backend: str) -> Iterator[Tracer]:
    made = Tracer.start(TracerConfig(min_wait_ns=2_000_000, backend=backend))
    yield made
    made.stop()


@pytest.mark.parametrize("min_wait_ns", [6_000_000, BOUNDS["min_wait_ns"].high])
def test_the_self_test_passes_whatever_is_summed(backend: str, min_wait_ns: int) -> None:
    """It trusts only a wait that it sees, and shorter ones than that are summed."""
    made = Tracer.start(TracerConfig(min_wait_ns=min_wait_ns, backend=backend))
    assert made.backend == backend
    made.stop()


def test_sums_equal_what_is_streamed(tracer: Tracer, summing: Tracer) -> None:
    """Two tracers see the same waits at once: one streams them, the other sums the short."""
    streamed, summed = Seen(tracer), Seen(summing)
    with scenario("sleeps", 300, 100) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        for one in (tracer, summing):
            one.add_target(made.pid)
        made.go()
        made.truth()
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its end")
        streamed.drain()
        summed.drain()
        summed.add(summing.open_waits(now_ns(), summed.strings))
        for one in (tracer, summing):
            one.remove_target(made.pid)
    short = [
        row
        for row in streamed.get("wait", tgid=made.pid)
        if row.length < 2_000_000 and not row.flags & WaitFlag.START_UNKNOWN
    ]
    sleeps = [row for row in short if row.wait_kind == WaitKind.SLEEP]
    assert len(sleeps) > 200
    counts: Counter[tuple[int, int]] = Counter()
    lengths: Counter[tuple[int, int]] = Counter()
    for row in short:
        counts[row.tid, row.wait_kind] += 1
        lengths[row.tid, row.wait_kind] += row.length
    sums = summed.get("wait_sum", tgid=made.pid)
    told: Counter[tuple[int, int]] = Counter()
    for row in sums:
        told[row.tid, row.wait_kind] += row.count
        assert row.count * row.max_ns >= row.sum_ns >= row.max_ns >= 0
        assert row.runq_ns <= row.sum_ns
        assert row.end_ns - row.start_ns >= row.max_ns
    assert told == counts
    for key, length in lengths.items():
        # The two programs read the clock one after the other at the same switch.
        mine = sum(row.sum_ns for row in sums if (row.tid, row.wait_kind) == key)
        assert close(mine, length)
    for row in summed.get("wait", tgid=made.pid):
        long_enough = row.length >= 2_000_000
        assert long_enough or row.flags & (WaitFlag.START_UNKNOWN | WaitFlag.OPEN)


def _sleeps_counted(
    tracer: Tracer, count: int, length_us: int = 20, cpu: int | str = ""
) -> tuple[Seen, int, tuple[int, int]]:
    """Let a process sleep ``count`` times; what was seen, switches by the kernel's count, when.

    Asleep before and after, the process begins with one wait open and ends with another: waits
    that ended are as many as switches away from it in between.
    """
    seen = Seen(tracer)
    with scenario("sleeps", count, length_us, cpu) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        before = switches(made.pid)
        tracer.add_target(made.pid)
        seen.drain()
        begun = now_ns()
        made.go()
        made.truth()
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its end")
        ended = now_ns()
        seen.drain()
        tracer.remove_target(made.pid)
        return seen, switches(made.pid) - before, (begun, ended)


@pytest.mark.parametrize("cpu", sorted(os.sched_getaffinity(0)))
def test_every_switch_of_a_thread_is_a_wait(tracer: Tracer, cpu: int) -> None:
    """Also where a kernel passes over what a CPU does as it idles: then the end is worked out."""
    seen, switched, (begun, ended) = _sleeps_counted(tracer, 300, 1000, cpu)
    assert seen.losses == []
    waits = sorted(seen.get("wait"), key=lambda row: row.start_ns)
    assert len(waits) == switched >= 300
    for one, other in itertools.pairwise(waits):
        assert one.end_ns <= other.start_ns
    asleep = [row for row in waits if row.wait_kind == WaitKind.SLEEP]
    assert len(asleep) == 300
    # Where the end was worked out, interrupts served in between may be taken for running.
    assert sum(row.length >= 900_000 for row in asleep) >= 297
    assert sum(row.length for row in asleep) < ended - begun


def test_drops_are_counted_exactly(backend: str) -> None:
    """A ring far too small, and nobody draining it."""
    tiny = Tracer.start(TracerConfig(ring_bytes=4096, faults=False, backend=backend))
    try:
        seen, switched, (begun, ended) = _sleeps_counted(tiny, 3000)
        waits = seen.get("wait")
        lost = [loss for loss in seen.losses if loss.hop == "bpf.ring"]
        lost_waits = sum(loss.count for loss in lost if loss.what == "wait")
        assert lost_waits > switched / 2 > 1000
        assert len(waits) + lost_waits == switched
        for loss in lost:
            assert begun <= loss.since_ns <= ended <= loss.t_ns
        assert tiny.stats().dropped == sum(loss.count for loss in lost)
        assert tiny.losses() == []
    finally:
        tiny.stop()


def test_a_run_of_yields_is_one_spin(tracer: Tracer) -> None:
    tracer.set_yields(on=True)
    try:
        seen = Seen(tracer)
        with scenario("yields", 5000) as made:
            tracer.add_target(made.pid)
            made.go()
            truth = made.truth()
            seen.drain()
        spins = seen.get("spin", tid=truth["tid"])
        assert all(row.start_ns >= truth["start"] for row in spins)
        assert sum(row.count for row in spins) == 5000
        assert all(row.source == SpinSource.YIELD_RUN for row in spins)
        # A gap of 100 us parts a run; whatever is not in a run, the thread was off the CPU.
        away = sum(row.length for row in seen.waits(truth))
        assert sum(row.length for row in spins) + away > 0.8 * (truth["end"] - truth["start"])
        assert max(row.end_ns for row in spins) <= truth["end"]
    finally:
        tracer.set_yields(on=False)
