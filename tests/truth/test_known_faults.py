# SPDX-License-Identifier: Apache-2.0
"""What simulated engines showed to be wrong, each in the smallest recording that shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.correlator.report import verdict
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import (
    Actor,
    Category,
    PhaseName,
    Segment,
    StepReport,
)
from gpucorrelate.probes.wire.schema import QueueOp, WaitFlag, WaitKind
from tests.truth.synthetic.check import Score, check, check_request, correlate, simulate
from tests.truth.synthetic.loss import Lose, Sieve
from tests.truth.synthetic.machine import MS, ZERO
from tests.truth.synthetic.options import DeviceOptions, Options
from tests.truth.synthetic.truth import Truth
from tests.truth.test_synthetic import HARD, Judged
from tests.unit.synth import API, CORE, WORKER, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

US = 1_000
ALSO, THIRD = CORE + 1, CORE + 2
MUTEX, BITSET = 0x80, 0x89


def known(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, reason=reason)


def hard(seed: int) -> Options:
    return replace(HARD, seed=seed)


def host(*processes: tuple[int, int, str]) -> Recording:
    """Processes of whose threads waits are recorded."""
    r = Recording()
    for stream, pid, role in processes or (
        (3, API, "api"),
        (4, CORE, "core"),
        (5, WORKER, "worker"),
    ):
        r.process(stream, pid, role)
        r.wait(pid, 1, 2)
    for tid in (ALSO, THIRD):
        r.wait(tid, 1, 2, tgid=CORE)
    return r


def step(r: Recording, start: int, end: int) -> StepReport:
    """A step of the core between two moments."""
    r.add("step_begin", 4, step=1, tid=CORE, sched_start_ns=start, sched_end_ns=start + 1,
          start_ns=start + 1)  # fmt: skip
    r.add("step_update", 4, step=1, tid=CORE, start_ns=end - 1, end_ns=end)
    return Run.of(r.capture(end + 50 * MS)).step(1)


def lock(r: Recording, tid: int, start: int, end: int, by: int, op: int = MUTEX) -> None:
    r.wait(tid, start, end, kind=WaitKind.FUTEX, op=op, waker=by, waker_tgid=CORE, tgid=CORE)


def within(segments: tuple[Segment, ...], start: int, end: int) -> Iterator[Segment]:
    return (s for s in segments if s.start_ns < end and s.end_ns > start)


def test_a_lock_waited_for_since_before_the_step_is_held_for_the_waiter() -> None:
    r = host()
    r.wait(CORE, 60 * US, 100 * US, kind=WaitKind.FUTEX, op=BITSET, waker=ALSO, waker_tgid=CORE)
    lock(r, ALSO, 40 * US, 90 * US, THIRD)
    report = step(r, 50 * US, 110 * US)
    (held,) = within(report.segments, 50 * US, 90 * US)
    assert (held.actor.tid, held.category) == (THIRD, Category.CPU)
    assert held.cause is not None
    assert held.cause.actor is not None
    assert held.cause.actor.tid == ALSO


def left_early() -> Recording:
    """A lock's holder sleeps from before the core waits, so that wait explains no more."""
    r = host()
    r.wait(CORE, 60 * US, 100 * US, kind=WaitKind.FUTEX, op=BITSET, waker=ALSO, waker_tgid=CORE)
    lock(r, ALSO, 40 * US, 90 * US, THIRD)
    r.wait(THIRD, 30 * US, 85 * US, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, tgid=CORE)
    return r


def test_a_wait_that_the_path_left_early_counts_only_where_the_path_was() -> None:
    report = step(left_early(), 20 * US, 110 * US)
    (asleep,) = [s for s in report.segments if s.category is Category.SLEEP]
    assert (asleep.start_ns, asleep.end_ns) == (60 * US, 85 * US)
    (wait,) = [w for w in report.waits if w.waiter.tid == ALSO]
    assert (wait.start_ns, wait.end_ns) == (60 * US, 90 * US)


def test_a_lock_is_held_for_its_own_waiter_not_for_one_of_a_wait_left_early() -> None:
    r = left_early()
    # Before it waited, the core itself waited for another lock: its holder holds nothing else.
    lock(r, CORE, 35 * US, 55 * US, API)
    r.wait(API, 10 * US, 45 * US, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER)
    report = step(r, 20 * US, 110 * US)
    (held,) = within(report.segments, 45 * US, 55 * US)
    assert held.actor.tid == API
    assert held.cause is not None
    assert held.cause.actor is not None
    assert held.cause.actor.tid == CORE


def test_a_turn_for_the_interpreter_lock_is_held_by_who_had_it_then() -> None:
    r = host()
    r.add("meta", 4, key="gil", value="1000:4096")
    gil: dict[str, Any] = {"kind": WaitKind.FUTEX, "op": BITSET, "arg": 0x1040, "tgid": CORE}
    r.wait(CORE, 10 * MS, 15 * MS, flags=WaitFlag.WAKE_TIMER, **gil)
    r.wait(CORE, 15 * MS + 10, 18 * MS, waker=ALSO, waker_tgid=CORE, **gil)
    r.wait(ALSO, 12 * MS, 16 * MS, waker=THIRD, waker_tgid=CORE, **gil)
    report = step(r, 5 * MS, 20 * MS)
    assert {s.actor.tid for s in within(report.segments, 10 * MS, 15 * MS)} == {THIRD}
    (wait,) = [w for w in report.waits if w.waiter.tid == CORE and w.end_ns == 15 * MS]
    assert wait.cause.actor is not None
    assert wait.cause.actor.tid == THIRD


def test_what_a_guessed_holder_did_is_a_guess() -> None:
    r = host()
    r.add("meta", 4, key="gil", value="1000:4096")
    r.add("thread", 4, tid=THIRD, name="third", role="core.other")
    # Nobody ended this: the lock came free while the core asked again. Who had it is not known.
    r.wait(CORE, 10 * MS, 15 * MS, kind=WaitKind.FUTEX, op=BITSET, arg=0x1040, tgid=CORE,
           flags=WaitFlag.WAKE_TIMER)  # fmt: skip
    r.wait(THIRD, 11 * MS, 14 * MS, wake=12 * MS, kind=WaitKind.SLEEP, tgid=CORE,
           flags=WaitFlag.WAKE_TIMER)  # fmt: skip
    r.wait(ALSO, 3 * MS, 30 * MS, kind=WaitKind.EPOLL, waker=API, tgid=CORE)
    report = step(r, 5 * MS, 20 * MS)
    for segment in within(report.segments, 10 * MS, 15 * MS):
        guessed = segment.cause is not None and "probably" in segment.cause.verb
        assert guessed or segment.category is Category.UNEXPLAINED


def polled(r: Recording, sent: int, ready: int) -> None:
    """The core polls for what the worker writes."""
    row: dict[str, Any] = {"queue": "q", "seq": 1}
    r.add("queue_msg", 5, tid=WORKER, op=QueueOp.WRITE, start_ns=sent - 2, ready_ns=sent - 1,
          end_ns=sent, **row)  # fmt: skip
    r.add("queue_msg", 4, tid=CORE, op=QueueOp.READ, start_ns=20 * US, ready_ns=ready,
          end_ns=ready + US, **row)  # fmt: skip


def test_a_worker_that_polls_all_along_is_traced() -> None:
    r = host((3, API, "api"), (4, CORE, "core"))
    r.process(5, WORKER, "worker")
    polled(r, 80 * US, 84 * US)
    report = step(r, 10 * US, 100 * US)
    (ran,) = within(report.segments, 20 * US, 80 * US)
    assert (ran.actor.tid, ran.category) == (WORKER, Category.CPU)


def test_where_waits_were_lost_noticing_a_message_proves_nothing() -> None:
    r = host()
    polled(r, 50 * US, 90 * US)
    r.add("loss", 1, t_ns=95 * US, since_ns=60 * US, hop="bpf.ring", what="wait", count=1)
    report = step(r, 10 * US, 100 * US)
    assert {s.category for s in within(report.segments, 50 * US, 90 * US)} == {Category.UNOBSERVED}


def test_before_a_lost_wait_the_path_is_not_known() -> None:
    r = host()
    # Lost: from 30 to 80 the core waited for the worker, which ran since 0.
    r.wait(CORE, 20 * US, 25 * US, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER)
    r.add("loss", 1, t_ns=85 * US, since_ns=80 * US, hop="bpf.ring", what="wait", count=1)
    report = step(r, 10 * US, 100 * US)
    assert {s.category for s in within(report.segments, 10 * US, 80 * US)} == {Category.UNOBSERVED}


def test_where_an_agents_records_were_lost_its_devices_order_is_not_believed() -> None:
    wrong: set[str] = set()
    for seed in range(2):
        lose = Lose("gpu_sync", 0.5, ZERO + 2 * MS, ZERO + 8 * MS)
        engine, recording = simulate(hard(seed), Sieve(lose, seed=seed))
        score, truth = Score(), Truth()
        for report in correlate(recording).all_requests():
            check_request(score, report, engine, truth, lossy=True)
        wrong |= {m.product.split("'")[1] for m in score.mismatches}
    assert "launch-gap" not in wrong


@known("a launch that waits for room in a full queue is told as the caller's work: nothing says "
       "that the queue is full but how many launches have not ended")  # fmt: skip
def test_a_launch_that_waits_for_room_in_the_queue_is_not_the_callers_work() -> None:
    device = DeviceOptions(kernels=40, kernel=30, queue=8)
    for seed in range(3):
        assert not check(Options(seed=seed, depth=2, copier=True, device=device)).mismatches


def test_a_verdict_that_the_unknown_could_overturn_is_withheld_however_little_that_is() -> None:
    # Simulated engines with losses gave such verdicts, and the second part was the largest.
    parts = [(0, 46, 1), (46, 54, 0), (54, 100, 2)]
    path = tuple(
        Segment(start, end, Category.CPU if who else Category.UNOBSERVED,
                Actor(who, who, "", "", "one" if who == 1 else "other"), PhaseName.DECODE)
        for start, end, who in parts
    )  # fmt: skip
    assert verdict.of(path, ()).doubts


def test_there_is_no_verdict_on_a_request_whose_arrival_was_lost() -> None:
    judged = Judged()
    judged.play(hard(7), Lose("request", 0.5, ZERO + 2 * MS, ZERO + 6 * MS))
    assert not judged.verdicts["wrong"]
