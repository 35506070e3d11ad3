# SPDX-License-Identifier: Apache-2.0
"""What becomes of records before the walk: parts of waits, lives of threads, runs of faults."""

from __future__ import annotations

import pytest

from gpucorrelate.correlator import states as states_
from gpucorrelate.probes.wire.schema import TaskEvent, WaitKind
from tests.unit.synth import API, CORE, WORKER, Recording
from tests.unit.test_walk import GIL, walked

CHILD = 400


def two() -> Recording:
    return Recording().process(3, API, "api").process(4, CORE, "core")


def test_a_quota_is_told_from_who_ran_instead() -> None:
    r = two().wait(API, 100, 500, wake=100, waker=CORE, kind=WaitKind.PREEMPTED, throttled_ns=300)
    r.wait(CORE, 1, 2)
    assert walked(r, API, 50, 600) == [
        (50, 100, "cpu", API),
        (100, 400, "throttled", API),
        (400, 500, "preempted", API),
        (500, 600, "cpu", API),
    ]


def test_who_wakes_into_a_group_without_quota_is_throttled_and_then_in_line() -> None:
    r = two().wait(API, 100, 500, wake=200, waker=CORE, throttled_ns=250)
    r.wait(CORE, 1, 2)
    assert walked(r, API, 50, 600) == [
        (50, 200, "cpu", CORE),
        (200, 450, "throttled", API),
        (450, 500, "run-queue", API),
        (500, 600, "cpu", API),
    ]


def test_more_throttled_than_it_could_have_run_is_cut_and_without_a_wake_it_is_nothing() -> None:
    r = two().wait(API, 100, 500, wake=300, waker=CORE, throttled_ns=10_000).wait(CORE, 1, 2)
    assert (300, 500, "throttled", API) in walked(r, API, 250, 600)
    r = two().wait(API, 100, 500, wake=0, throttled_ns=100).wait(CORE, 1, 2)
    assert (100, 500, "unexplained", API) in walked(r, API, 50, 600)


def test_a_throttled_holder_of_the_interpreter_lock_still_holds_it() -> None:
    r = two().add("meta", 3, key="gil", value=f"{GIL:#x}:4096")
    r.wait(API, 100, 900, kind=WaitKind.FUTEX, arg=GIL, op=137, waker=101, waker_tgid=API)
    r.wait(101, 10, 20, tgid=API)
    r.wait(101, 300, 700, wake=300, kind=WaitKind.PREEMPTED, tgid=API, throttled_ns=400)
    assert walked(r, API, 50, 1000) == [
        (50, 100, "cpu", API),
        (100, 300, "gil", 101),
        (300, 700, "throttled", 101),
        (700, 900, "gil", 101),
        (900, 1000, "cpu", API),
    ]


def test_who_lost_its_cpu_may_hold_the_interpreter_lock() -> None:
    """Nobody of the process ran, and the wait ended by its own timeout: who was it?"""
    r = two().add("meta", 3, key="gil", value=f"{GIL:#x}:4096")
    r.wait(API, 100, 900, wake=900, kind=WaitKind.FUTEX, arg=GIL, op=137, flags=4)
    for tid in (101, 102):
        r.add("thread", 3, tid=tid, name=f"t{tid}", role="")
    r.wait(101, 10, 20, tgid=API)
    r.wait(101, 50, 950, wake=50, kind=WaitKind.PREEMPTED, tgid=API, waker=CORE)
    r.wait(102, 30, 990, tgid=API, waker=101)  # asleep: it does not hold it
    r.wait(CORE, 1, 2)
    assert (100, 900, "preempted", 101) in walked(r, API, 60, 1000)


def test_who_is_born_of_a_traced_process_is_known_from_birth() -> None:
    """Also where a session takes notice later, and where it never waited."""
    r = two()
    birth = {"tid": CHILD, "tgid": CHILD, "t_ns": 100, "parent_tgid": API, "parent_tid": API}
    r.add("task", 2, event=TaskEvent.FORK, **birth)
    r.add("session", 1, t_ns=20_000, event=2, tgid=CHILD, session="s")
    r.wait(API, 110, 9_000, waker=CHILD, kind=WaitKind.OTHER)
    assert walked(r, API, 50, 10_000) == [
        (50, 100, "cpu", API),
        (100, 9_000, "cpu", CHILD),
        (9_000, 10_000, "cpu", API),
    ]


def test_who_still_wakes_others_has_not_ended() -> None:
    """An exit is told when it begins; the parent is woken at its end."""
    r = two()
    r.add("task", 2, tid=CHILD, tgid=CHILD, t_ns=100, event=TaskEvent.FORK, parent_tgid=API)
    r.add("task", 2, tid=CHILD, tgid=CHILD, t_ns=5_000, event=TaskEvent.EXIT)
    r.wait(API, 110, 9_000, wake=8_000, waker=CHILD, kind=WaitKind.OTHER)
    assert walked(r, API, 200, 10_000) == [
        (200, 8_000, "cpu", CHILD),
        (8_000, 9_000, "run-queue", API),
        (9_000, 10_000, "cpu", API),
    ]


def test_a_thread_that_has_the_number_of_an_earlier_one_lives_no_longer_for_it() -> None:
    r = two()
    r.add("task", 2, tid=CHILD, tgid=CHILD, t_ns=5_000, event=TaskEvent.EXIT)
    r.add("task", 2, tid=CHILD, tgid=CHILD, t_ns=6_000, event=TaskEvent.FORK)
    r.wait(API, 110, 9_000, wake=8_000, waker=CHILD, kind=WaitKind.OTHER)
    states = states_.build(r.capture())
    assert states.threads.last_ns[states.threads.one(CHILD)] <= 6_000


@pytest.mark.parametrize(
    ("trap_ns", "gap_ns", "found"),
    [
        (0, 1_000, "cpu"),  # nobody says what a fault costs besides: it may be work
        (1_000, 1_100, "page-fault"),
        (1_000, 4_000, "cpu"),  # more work than faults
        (0, 100, "page-fault"),
    ],
)
def test_a_storm_of_small_faults_is_told_from_work(trap_ns: int, gap_ns: int, found: str) -> None:
    r = two().wait(API, 1, 2).wait(WORKER, 1, 1_000_000)
    if trap_ns:
        r.add("meta", 1, key="fault_trap_ns", value=str(trap_ns))
    for k in range(20):
        start = 10_000 + k * (500 + gap_ns)
        r.add("fault", 2, tid=API, tgid=API, start_ns=start, end_ns=start + 500)
    end = 10_000 + 19 * (500 + gap_ns) + 500
    assert (10_000, end, found, API) in walked(r, API, 10_000, end)
