# SPDX-License-Identifier: Apache-2.0
"""The backward walk: every rule on a case small enough to check by eye, and tiling on any."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.correlator import states as states_
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec, Walker
from gpucorrelate.probes.wire.schema import FdKind, QueueOp, WaitFlag, WaitKind
from tests.unit.synth import API, CORE, WORKER, Recording

GIL = 0x7F00_0000_0000
PRIVATE = 128
BITSET = 9


def walked(
    recording: Recording, tid: int, start: int, end: int
) -> list[tuple[int, int, str, int]]:
    """(start, end, category, tid of the actor), oldest first; adjacent equal ones joined."""
    states = states_.build(recording.capture())
    thread = states.threads.one(tid)
    paths = Walker(states).walk([LegSpec(thread, start, end, (start,))])
    out: list[tuple[int, int, str, int]] = []
    for row in paths.leg(0):
        actor = int(states.threads.tid[row["actor"]]) if row["actor"] >= 0 else 0
        item = (int(row["start"]), int(row["end"]), str(CATEGORIES[row["category"]]), actor)
        if out and out[-1][1:] == (item[0], *item[2:]):
            out[-1] = (out[-1][0], *item[1:])
        elif out and out[-1][2:] == item[2:] and out[-1][1] == item[0]:
            out[-1] = (out[-1][0], item[1], *item[2:])
        else:
            out.append(item)
    assert out[0][0] == start
    assert out[-1][1] == end
    assert all(a[1] == b[0] for a, b in itertools.pairwise(out))
    return out


def two() -> Recording:
    """API server and engine core, both known from time 0."""
    return Recording().process(3, API, "api").process(4, CORE, "core")


def test_a_message_moves_the_path_to_the_waker() -> None:
    r = two().wait(API, 100, 500, wake=480, waker=CORE)
    r.wait(CORE, 10, 200, waker=API, kind=WaitKind.POLL, wake=90)
    assert walked(r, API, 0, 600) == [
        (0, 90, "cpu", API),
        (90, 200, "run-queue", CORE),
        (200, 480, "cpu", CORE),
        (480, 500, "run-queue", API),
        (500, 600, "cpu", API),
    ]


def test_a_mutex_returns_the_path_to_the_waiter_when_it_blocked() -> None:
    r = two().wait(API, 100, 500, waker=CORE, kind=WaitKind.FUTEX, op=PRIVATE)
    r.wait(CORE, 1, 50, waker=API)
    assert walked(r, API, 60, 600) == [
        (60, 100, "cpu", API),
        (100, 500, "cpu", CORE),
        (500, 600, "cpu", API),
    ]


def test_a_lock_inside_the_kernel_returns_the_path_to_the_waiter_too() -> None:
    # Two threads write one file: the second waits for the inode, and was busy itself before.
    r = two().wait(API, 400, 500, waker=CORE, kind=WaitKind.WRITE, op=FdKind.FILE)
    r.wait(CORE, 50, 300, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1)
    assert walked(r, API, 100, 600) == [
        (100, 400, "cpu", API),
        (400, 500, "cpu", CORE),
        (500, 600, "cpu", API),
    ]


def test_a_sleeper_that_slept_before_the_waiter_blocked_explains_only_the_wait() -> None:
    r = two().wait(API, 100, 500, waker=CORE, kind=WaitKind.FUTEX, op=PRIVATE | BITSET)
    r.wait(CORE, 50, 490, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1)
    assert walked(r, API, 0, 600) == [
        (0, 100, "cpu", API),
        (100, 490, "sleep", CORE),
        (490, 500, "cpu", CORE),
        (500, 600, "cpu", API),
    ]


def test_a_sleep_that_began_after_the_waiter_blocked_keeps_the_path() -> None:
    r = two().wait(API, 100, 500, waker=CORE)
    r.wait(CORE, 150, 490, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1)
    assert walked(r, API, 90, 600) == [
        (90, 150, "cpu", CORE),
        (150, 490, "sleep", CORE),
        (490, 500, "cpu", CORE),
        (500, 600, "cpu", API),
    ]


def test_a_sleep_below_several_waiters_returns_to_the_one_that_blocked_last() -> None:
    r = two().process(5, WORKER, "worker")
    r.wait(API, 500, 1_000, waker=CORE)
    r.wait(CORE, 100, 990, waker=WORKER)
    r.wait(WORKER, 200, 980, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1)
    assert walked(r, API, 50, 1_100) == [
        (50, 500, "cpu", API),
        (500, 980, "sleep", WORKER),
        (980, 990, "cpu", WORKER),
        (990, 1_000, "cpu", CORE),
        (1_000, 1_100, "cpu", API),
    ]


def test_a_lock_returns_to_its_waiter_however_many_messages_lie_between() -> None:
    r = two().wait(API, 10_000, 90_000, waker=1_000, kind=WaitKind.FUTEX, op=PRIVATE)
    for n in range(100):
        r.wait(1_000 + n, 5_000, 89_000 - 100 * n, waker=1_001 + n)
    r.wait(1_100, 1, 2)
    path = walked(r, API, 6_000, 95_000)
    assert path[0] == (6_000, 10_000, "cpu", API)
    assert path[1][3] == 1_100


def test_a_message_already_there_does_not_hide_the_poll_before_it() -> None:
    r = three()
    queue(r, 1, (WORKER, 50_000, 50_000), (CORE, 20_000, 50_400))
    queue(r, 2, (WORKER, 50_100, 50_100), (CORE, 60_000, 62_000))
    for tid in (CORE, WORKER, API):
        r.wait(tid, 1, 10)
    assert walked(r, CORE, 1_000, 70_000) == [
        (1_000, 50_000, "cpu", WORKER),
        (50_000, 50_400, "spin-handoff", CORE),
        (50_400, 70_000, "cpu", CORE),
    ]


def test_a_recording_cut_off_says_nothing_of_what_came_last() -> None:
    r = two().wait(API, 10, 20).wait(CORE, 15, 5_000)
    states = states_.build(r.capture(end_ns=None))
    assert not states.closed
    paths = Walker(states).walk([LegSpec(states.threads.one(API), 12, 4_000)])
    categories = [CATEGORIES[c] for c in paths.leg(0)["category"]]
    assert categories == [Category.UNEXPLAINED, Category.UNOBSERVED]


def test_a_holder_without_a_cpu_is_preempted_not_holding() -> None:
    r = gil_recording()
    r.wait(API, 100, 400, kind=WaitKind.FUTEX, op=PRIVATE | BITSET, arg=GIL,
           waker=API + 1, waker_tgid=API)  # fmt: skip
    r.wait(API + 1, 200, 300, tgid=API, kind=WaitKind.PREEMPTED, wake=200, waker=999)
    assert walked(r, API, 50, 500)[1:4] == [
        (100, 200, "gil", API + 1),
        (200, 300, "preempted", API + 1),
        (300, 400, "gil", API + 1),
    ]


def test_a_lock_of_unknown_holder_is_unexplained() -> None:
    r = gil_recording().wait(API, 100, 400, kind=WaitKind.FUTEX, op=PRIVATE | BITSET, arg=GIL)
    assert (100, 400, "unexplained", API) in walked(r, API, 50, 500)


def gil_recording() -> Recording:
    r = two().add("meta", 3, key="gil", value=f"{GIL:#x}:4096")
    return r.add("thread", 3, tid=API + 1, name="hog", role="api.hog")


def test_interpreter_lock_waits_chain_over_timeouts_to_the_final_holder() -> None:
    r = gil_recording()
    futex, wait = WaitKind.FUTEX, {"op": PRIVATE | BITSET, "arg": GIL + 64}
    r.wait(API, 100, 200, kind=futex, flags=WaitFlag.WAKE_TIMER, waker=CORE, **wait)
    r.wait(API, 201, 300, kind=futex, flags=WaitFlag.WAKE_TIMER, waker=CORE, **wait)
    r.wait(API, 301, 400, kind=futex, waker=API + 1, waker_tgid=API, **wait)
    r.wait(API + 1, 1, 20, tgid=API)
    assert walked(r, API, 50, 500) == [
        (50, 100, "cpu", API),
        (100, 200, "gil", API + 1),
        (200, 201, "cpu", API),
        (201, 300, "gil", API + 1),
        (300, 301, "cpu", API),
        (301, 400, "gil", API + 1),
        (400, 500, "cpu", API),
    ]


def test_a_holder_of_the_interpreter_lock_is_not_followed_into_a_sleep() -> None:
    r = gil_recording()
    r.wait(API, 100, 400, kind=WaitKind.FUTEX, op=PRIVATE | BITSET, arg=GIL,
           waker=API + 1, waker_tgid=API)  # fmt: skip
    r.wait(API + 1, 50, 300, tgid=API, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1)
    r.wait(API + 2, 1, 20, tgid=API)
    r.add("thread", 3, tid=API + 2, name="other", role="api.other")
    path = walked(r, API, 50, 500)
    assert (300, 400, "gil", API + 1) in path
    assert (100, 300, "gil", API + 2) in path  # the thread of the process that was on a CPU
    assert path[0] == (50, 100, "cpu", API)


def queue(
    r: Recording, seq: int, writer: tuple[int, int, int], reader: tuple[int, int, int]
) -> None:
    tid, start, end = writer
    r.add("queue_msg", 4 if tid == CORE else 5, tid=tid, queue="q", op=QueueOp.WRITE, seq=seq,
          start_ns=start, ready_ns=start, end_ns=end)  # fmt: skip
    tid, start, ready = reader
    r.add("queue_msg", 4 if tid == CORE else 5, tid=tid, queue="q", op=QueueOp.READ, seq=seq,
          start_ns=start, ready_ns=ready, end_ns=ready)  # fmt: skip


def three() -> Recording:
    return two().process(5, WORKER, "worker")


def test_a_polled_queue_hands_the_path_to_the_writer_when_it_wrote() -> None:
    r = three()
    queue(r, 1, (WORKER, 5_000, 6_000), (CORE, 2_000, 6_400))
    for tid in (CORE, WORKER, API):
        r.wait(tid, 1, 10)
    assert walked(r, CORE, 1_000, 7_000) == [
        (1_000, 6_000, "cpu", WORKER),
        (6_000, 6_400, "spin-handoff", CORE),
        (6_400, 7_000, "cpu", CORE),
    ]


def test_a_reader_preempted_after_the_message_was_there_is_preempted() -> None:
    r = three()
    queue(r, 1, (WORKER, 5_000, 6_000), (CORE, 2_000, 9_000))
    r.wait(CORE, 5_500, 8_500, kind=WaitKind.PREEMPTED, waker=API, wake=5_500)
    for tid in (CORE, WORKER, API):
        r.wait(tid, 1, 10)
    assert walked(r, CORE, 4_000, 9_500) == [
        (4_000, 6_000, "cpu", WORKER),
        (6_000, 8_500, "preempted", CORE),
        (8_500, 9_000, "spin-handoff", CORE),
        (9_000, 9_500, "cpu", CORE),
    ]


def test_a_reader_without_the_interpreter_waits_for_its_holder_while_a_message_is_there() -> None:
    r = three().add("meta", 4, key="gil", value=f"{GIL:#x}:4096")
    queue(r, 1, (WORKER, 5_000, 6_000), (CORE, 2_000, 9_000))
    r.wait(CORE, 5_500, 8_500, kind=WaitKind.FUTEX, op=PRIVATE | BITSET, arg=GIL, wake=8_400,
           waker=CORE + 1, waker_tgid=CORE)  # fmt: skip
    r.add("thread", 4, tid=CORE + 1, name="hog", role="core.hog")
    for tid, tgid in ((CORE, CORE), (CORE + 1, CORE), (WORKER, WORKER), (API, API)):
        r.wait(tid, 1, 10, tgid=tgid)
    assert walked(r, CORE, 4_000, 9_500) == [
        (4_000, 6_000, "cpu", WORKER),
        (6_000, 8_400, "gil", CORE + 1),
        (8_400, 8_500, "run-queue", CORE),
        (8_500, 9_000, "spin-handoff", CORE),
        (9_000, 9_500, "cpu", CORE),
    ]


def test_two_that_name_each_other_as_holders_leave_it_to_who_was_on_a_cpu() -> None:
    # Both waits timed out in between, so that each one's last waker tells of another turn.
    r = two().add("meta", 3, key="gil", value=f"{GIL:#x}:4096")
    futex, lock = WaitKind.FUTEX, {"op": PRIVATE | BITSET, "arg": GIL}
    for tid, other in ((API, API + 1), (API + 1, API)):
        r.wait(tid, 1_000, 6_000, kind=futex, flags=WaitFlag.WAKE_TIMER, waker=1, tgid=API, **lock)
        r.wait(tid, 6_050, 6_500, kind=futex, waker=other, waker_tgid=API, tgid=API, **lock)
    r.wait(API + 2, 1, 10, tgid=API)
    for tid in (API + 1, API + 2):
        r.add("thread", 3, tid=tid, name="t", role="api.t")
    found = walked(r, API, 500, 7_000)
    assert ("gil", API + 2) in [item[2:] for item in found]
    assert sum(end - start for start, end, what, _ in found if what == "unexplained") == 0


def test_a_leg_whose_client_did_not_read_needs_no_walk() -> None:
    r = two().wait(API, 100, 500, wake=480, waker=CORE)
    states = states_.build(r.capture())
    api = states.threads.one(API)
    legs = [
        LegSpec(api, 0, 200, (0,)),
        LegSpec(api, 200, 600, (0, 300), held_back=True),
        LegSpec(api, 600, 700, (0, 300)),
    ]
    paths = Walker(states).walk(legs)
    rows = [
        (int(row["start"]), int(row["end"]), str(CATEGORIES[row["category"]]), int(row["phase"]))
        for row in paths.leg(1)
    ]
    assert rows == [(200, 300, "network", 0), (300, 600, "network", 1)]
    assert [len(paths.leg_hops(k)) > 0 for k in range(3)] == [True, False, False]
    assert paths.leg(2)["start"][0] == 600


def test_a_poll_without_its_write_is_unexplained_never_cpu() -> None:
    r = three()
    r.add("queue_msg", 4, tid=CORE, queue="q", op=QueueOp.READ, seq=9, start_ns=2_000,
          ready_ns=8_000, end_ns=8_000)  # fmt: skip
    r.wait(CORE, 1, 10)
    assert walked(r, CORE, 1_000, 9_000) == [
        (1_000, 2_000, "cpu", CORE),
        (2_000, 8_000, "unexplained", CORE),
        (8_000, 9_000, "cpu", CORE),
    ]


def test_a_writer_that_waits_for_a_slot_is_unexplained_never_cpu() -> None:
    r = three().wait(CORE, 1, 10)
    r.add("queue_msg", 4, tid=CORE, queue="q", op=QueueOp.WRITE, seq=9, start_ns=30_000,
          ready_ns=90_000, end_ns=91_000)  # fmt: skip
    assert walked(r, CORE, 20_000, 95_000) == [
        (20_000, 30_000, "cpu", CORE),
        (30_000, 90_000, "unexplained", CORE),
        (90_000, 95_000, "cpu", CORE),
    ]


def test_a_run_of_yields_that_no_agent_tells_of_is_unexplained_never_cpu() -> None:
    r = three().wait(CORE, 1, 10)
    r.wait(CORE, 50_000, 52_000, kind=WaitKind.YIELD, wake=50_000, waker=WORKER)
    r.add("spin", 2, tid=CORE, tgid=CORE, start_ns=30_000, end_ns=90_000, count=400, source=2)
    assert walked(r, CORE, 20_000, 95_000) == [
        (20_000, 30_000, "cpu", CORE),
        (30_000, 50_000, "unexplained", CORE),
        (50_000, 52_000, "preempted", CORE),
        (52_000, 90_000, "unexplained", CORE),
        (90_000, 95_000, "cpu", CORE),
    ]


def test_an_untraced_waker_ends_the_walk_with_its_own_kind() -> None:
    r = two().wait(API, 100, 500, waker=999, waker_tgid=999, wake=450)
    assert walked(r, API, 50, 600) == [
        (50, 100, "cpu", API),
        (100, 450, "external", API),
        (450, 500, "run-queue", API),
        (500, 600, "cpu", API),
    ]


def test_softirq_inside_a_send_is_a_message_and_otherwise_the_network() -> None:
    sent = two().wait(API, 100, 500, waker=CORE, flags=WaitFlag.WAKE_SOFTIRQ, waker_syscall=44)
    sent.wait(CORE, 1, 10)
    assert walked(sent, API, 50, 600)[0] == (50, 500, "cpu", CORE)
    bare = two().wait(API, 100, 500, waker=CORE, flags=WaitFlag.WAKE_SOFTIRQ, waker_syscall=-1)
    bare.wait(CORE, 1, 10)
    assert (100, 500, "network", API) in walked(bare, API, 50, 600)


def test_page_faults_are_cut_out_of_cpu_time() -> None:
    r = two().wait(API, 10, 20)
    r.add("fault", 2, tid=API, tgid=API, start_ns=100, end_ns=150, flags=1)
    assert walked(r, API, 50, 200) == [
        (50, 100, "cpu", API),
        (100, 150, "page-fault", API),
        (150, 200, "cpu", API),
    ]


def test_runs_of_short_faults_are_one_and_single_short_ones_none() -> None:
    r = two().wait(API, 10, 20)
    for k in range(8):
        r.add("fault", 2, tid=API, tgid=API, start_ns=1_000 + 2_000 * k, end_ns=2_900 + 2_000 * k)
    r.add("fault", 2, tid=API, tgid=API, start_ns=50_000, end_ns=51_000)
    assert walked(r, API, 500, 60_000) == [
        (500, 1_000, "cpu", API),
        (1_000, 16_900, "page-fault", API),
        (16_900, 60_000, "cpu", API),
    ]


def test_where_waits_were_lost_running_proves_nothing() -> None:
    r = two().wait(API, 10, 20)
    r.add("loss", 1, t_ns=180, since_ns=120, hop="bpf.ring", count=3)
    # A record is written when its wait ends: the lost one may have begun right after 20.
    assert walked(r, API, 50, 200) == [
        (50, 180, "unobserved", API),
        (180, 200, "cpu", API),
    ]


def test_before_tracing_began_nothing_was_observed() -> None:
    r = Recording().process(3, API, "api", since=100).wait(API, 150, 160)
    assert walked(r, API, 0, 200)[0] == (0, 100, "unobserved", API)


def test_threads_that_name_each_other_end_as_unexplained() -> None:
    r = two()
    r.wait(API, 100, 500, waker=CORE)
    r.wait(CORE, 90, 510, waker=API)
    path = walked(r, API, 50, 500)
    assert sum(b - a for a, b, _, _ in path) == 450


times = st.integers(0, 3000)
waits = st.tuples(
    st.sampled_from((API, API + 1, CORE, CORE + 1, WORKER)),
    times,
    st.integers(1, 400),
    st.integers(0, 100),
    st.sampled_from(tuple(WaitKind)),
    st.sampled_from((0, API, API + 1, CORE, CORE + 1, WORKER, 999)),
    st.integers(0, 255),
    st.sampled_from((0, 9, 6, 128, 137)),
    st.sampled_from((0, GIL, GIL + 8)),
)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(waits, max_size=60),
    faults=st.lists(
        st.tuples(st.sampled_from((API, CORE)), times, st.integers(1, 200)), max_size=8
    ),
    reads=st.lists(st.tuples(times, times, times, st.booleans()), max_size=8),
    losses=st.lists(st.tuples(times, times), max_size=3),
    spans=st.lists(
        st.tuples(st.sampled_from((API, CORE)), times, st.integers(1, 500)), max_size=12
    ),
    legs=st.lists(
        st.tuples(
            st.sampled_from((API, CORE, WORKER, 7)), times, times, st.lists(times, max_size=4)
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_input_is_tiled_exactly(rows, faults, reads, losses, spans, legs) -> None:
    r = gil_recording().process(5, WORKER, "worker")
    for tid, start, length, back, kind, waker, flags, op, arg in rows:
        wake = max(0, start + length - back)
        tgid = tid - tid % 100
        r.wait(tid, start, start + length, wake=wake, kind=kind, waker=waker, tgid=tgid,
               waker_tgid=waker - waker % 100, flags=WaitFlag(flags), op=op, arg=arg)  # fmt: skip
    for tid, start, length in faults:
        r.add("fault", 2, tid=tid, tgid=tid, start_ns=start, end_ns=start + length)
    for seq, (start, length, write, forward) in enumerate(reads, 1):
        start *= 3
        pair = (CORE, WORKER) if forward else (WORKER, CORE)
        queue(r, seq, (pair[0], write, write), (pair[1], start, start + length + 2000))
    for since, length in losses:
        r.add("loss", 1, since_ns=since, t_ns=since + length, hop="bpf.ring", count=1)
    for tid, start, length in spans:
        r.add("span", 3, tid=tid, name="x", start_ns=start, end_ns=start + length)
    states = states_.build(r.capture())
    specs = [
        LegSpec(states.threads.one(tid), min(a, b), max(a, b), tuple(sorted(cuts)))
        for tid, a, b, cuts in legs
    ]
    paths = Walker(states).walk(specs)
    for k, spec in enumerate(specs):
        rows_ = paths.leg(k)
        assert int((rows_["end"] - rows_["start"]).sum()) == spec.end_ns - spec.start_ns
        if spec.end_ns > spec.start_ns:
            assert rows_["start"][0] == spec.start_ns
            assert rows_["end"][-1] == spec.end_ns
            assert (rows_["end"][:-1] == rows_["start"][1:]).all()
            assert (rows_["end"] > rows_["start"]).all()
        for row in rows_:
            crossed = [c for c in spec.cuts_ns if row["start"] < c < row["end"]]
            assert not crossed


def test_unexplained_and_unobserved_are_categories_of_their_own() -> None:
    assert CATEGORIES.index(Category.UNOBSERVED) == 14
    assert CATEGORIES.index(Category.UNEXPLAINED) == 15
    assert CATEGORIES.index(Category.SPIN_HANDOFF) == 4
    assert CATEGORIES.index(Category.RUN_QUEUE) == 5
    assert CATEGORIES.index(Category.PREEMPTED) == 6
    assert CATEGORIES.index(Category.PAGE_FAULT) == 9
