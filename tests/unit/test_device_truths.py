# SPDX-License-Identifier: Apache-2.0
"""The walk through devices: time lines small enough to know the answer without the walk.

Times are microseconds, as a time line would be drawn on paper; a thread is its name.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.correlator import device_steps
from gpucorrelate.correlator import states as states_
from gpucorrelate.correlator.device_steps import Assigned
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.search import busy_union_ns
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec, Walker
from gpucorrelate.probes.wire.schema import GpuOpKind, SyncKind, WaitFlag, WaitKind, WorkerPhase
from tests.unit.synth import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.states import States

NONE = (1 << 64) - 1
#: Where time 0 of every time line lies; a start of 0 ns would be "not recorded".
ZERO = 1_000_000
TIDS = {"A": 11, "B": 12, "C": 13}
FUTEX = {"kind": WaitKind.FUTEX, "op": 128 | 9}

Piece = tuple[float, float, str, str]


def ns(moment: float) -> int:
    return ZERO + round(moment * 1_000)


class TimeLine(Recording):
    """Rows by microseconds and names of threads.

    A profile unless ``waits``: then the kernel probes covered the threads A, B, C of one process.
    """

    def __init__(self, end: float, *, waits: bool = False) -> None:
        super().__init__()
        self.end, self.ids = end, itertools.count(1)
        if waits:
            self.process(3, 11, "worker", since=ZERO)
            for name in TIDS:
                self.add("thread", 3, tid=TIDS[name], name=name, role=f"worker.{name}")
                # That a wait of it is on record makes it traced; this one is before anything.
                super().wait(TIDS[name], ZERO - 20, ZERO - 10, tgid=11)
        else:
            self.add("meta", 1, t_ns=ZERO, key="clock", value="trace")
            self.add("session", 1, t_ns=ZERO, event=1, session="import")

    def call(self, thread, name, start, end, correlation=None, *, pid=11, by=3, tid=None):
        """Returns its id; a new one unless given."""
        correlation = next(self.ids) if correlation is None else correlation
        self.add("cuda_api", by, pid=pid, tid=tid or TIDS[thread], name=name, api=1,
                 correlation=correlation, start_ns=ns(start), end_ns=ns(end))  # fmt: skip
        return correlation

    def op(self, stream, start, end, correlation, *, pid=11, by=3, kind=GpuOpKind.KERNEL):
        return self.add("gpu_op", by, pid=pid, gpu_stream=stream, op=int(kind), name="k",
                        correlation=correlation, start_ns=ns(start), end_ns=ns(end))  # fmt: skip

    def kernel(self, thread, call, op, stream=7):
        """A launch and the kernel it launches, each (start, end)."""
        start, end = op
        return self.op(stream, start, end, self.call(thread, "cudaLaunchKernel", *call))

    def sync(self, kind, correlation, start, end, *, stream=NONE, record=0, of=NONE, pid=11):
        return self.add("gpu_sync", 3, pid=pid, sync=int(kind), gpu_stream=stream, event=NONE,
                        correlation=correlation, start_ns=ns(start), end_ns=ns(end),
                        record=record, record_stream=of)  # fmt: skip

    def stream_sync(self, thread, start, end, stream=7):
        call = self.call(thread, "cudaStreamSynchronize", start, end)
        return self.sync(SyncKind.STREAM, call, start, end, stream=stream)

    def record(self, thread, at):
        return self.call(thread, "cudaEventRecord", at, at + 1)

    def stream_waits(self, thread, at, stream, record, of):
        call = self.call(thread, "cudaStreamWaitEvent", at, at + 1)
        kind = SyncKind.STREAM_WAIT_EVENT
        return self.sync(kind, call, at, at + 1, stream=stream, record=record, of=of)

    def step(self, number, thread, start, end, *, by=3):
        return self.add("worker_step", by, step=number, tid=TIDS[thread], start_ns=ns(start),
                        end_ns=ns(end), phase=int(WorkerPhase.EXECUTE))  # fmt: skip

    def blocked(self, thread, start, end, waker, *, wake=None, **more):
        """A wait, in microseconds like all else, ended by a thread (or by nobody: None)."""
        self.wait(TIDS[thread], ns(start), ns(end), wake=ns(end if wake is None else wake),
                  tgid=11, waker=TIDS.get(waker, 1), waker_tgid=11 if waker else 1,
                  **(more or FUTEX))  # fmt: skip

    def states(self) -> States:
        return states_.build(self.capture(end_ns=ns(self.end)))

    def run(self) -> Run:
        return Run.of(self.capture(end_ns=None))


def us(moment: int) -> float:
    return (int(moment) - ZERO) / 1_000


def op_at(states: States, start: float, stream: int = 7) -> int:
    ops = states.device.ops
    mine = (ops.table["gpu_stream"] == stream) & (ops.start_ns == ns(start))
    (found,) = np.flatnonzero(mine)
    return int(found)


def segments(states: States, start: float, end: float, on: str | tuple[int, float]):
    """The path of ``[start, end]``: on a thread, or (stream, start of the operation)."""
    if isinstance(on, str):
        leg = LegSpec(states.threads.one(TIDS[on]), ns(start), ns(end))
    else:
        op = op_at(states, on[1], on[0])
        leg = LegSpec(int(states.path.actor[op]), ns(start), ns(end), (), op)
    found = Walker(states).walk([leg]).leg(0)
    assert int((found["end"] - found["start"]).sum()) == ns(end) - ns(start)
    assert found["start"][0] == ns(start)
    assert found["end"][-1] == ns(end)
    assert (found["start"][1:] == found["end"][:-1]).all()
    return found


def actor_name(states: States, actor: int) -> str:
    if actor < 0:
        return "nobody"
    if actor >= len(states.threads.tid):
        return f"gpu{states.device.streams[actor - len(states.threads.tid)].number}"
    tid = int(states.threads.tid[actor])
    return next((name for name, known in TIDS.items() if known == tid), str(tid))


def path(line: TimeLine, start: float, end: float, on: str | tuple[int, float]) -> list[Piece]:
    """Oldest first, neighbours that say the same joined."""
    states = line.states()
    pieces: list[Piece] = []
    for row in segments(states, start, end, on):
        what = str(CATEGORIES[row["category"]]), actor_name(states, int(row["actor"]))
        if pieces and pieces[-1][2:] == what:
            pieces[-1] = (pieces[-1][0], us(row["end"]), *what)
        else:
            pieces.append((us(row["start"]), us(row["end"]), *what))
    return pieces


def by_category(pieces: list[Piece]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for start, end, category, _ in pieces:
        sums[category] = round(sums.get(category, 0) + end - start, 3)
    return sums


# --- one thread, one stream ---------------------------------------------------------------


def test_a_starved_device_is_the_hosts_time() -> None:
    line = TimeLine(1_000)
    for k in range(10):
        at = 100 * k
        line.kernel("A", (at + 80, at + 90), (at + 94, at + 99))
    assert path(line, 0, 999, (7, 994)) == [
        (0, 990, "host", "A"),
        (990, 994, "launch-gap", "gpu7"),
        (994, 999, "gpu", "gpu7"),
    ]
    ops = line.states().device.ops
    assert busy_union_ns(ops.start_ns, ops.end_ns) == 50_000


def test_a_starved_device_waited_for_each_time_is_host_and_launch_gaps() -> None:
    line = TimeLine(1_000)
    for k in range(10):
        at = 100 * k
        line.kernel("A", (at + 60, at + 70), (at + 76, at + 81))
        line.stream_sync("A", at + 72, at + 83)
    found = path(line, 0, 1_000, "A")
    assert found[:5] == [
        (0, 70, "host", "A"),
        (70, 76, "launch-gap", "gpu7"),
        (76, 81, "gpu", "gpu7"),
        (81, 83, "sync-return", "A"),
        (83, 170, "host", "A"),
    ]
    assert by_category(found) == {"host": 870, "launch-gap": 60, "gpu": 50, "sync-return": 20}


def test_a_queued_up_stream_is_the_devices_time() -> None:
    line = TimeLine(1_000)
    for k in range(9):
        line.kernel("A", (10 + 5 * k, 13 + 5 * k), (20 + 100 * k, 118 + 100 * k))
    assert by_category(path(line, 0, 918, (7, 820))) == {
        "host": 13, "launch-gap": 7, "gpu": 9 * 98, "queue-gap": 8 * 2,
    }  # fmt: skip


def test_one_graph_launch_is_the_devices_and_all_of_it_one_steps() -> None:
    line = TimeLine(2_000)
    line.step(1, "A", 5, 45).step(2, "A", 50, 90)
    first, second = (line.call("A", "cudaGraphLaunch", at, at + 30) for at in (10, 55))
    for k in range(50):
        line.op(7, 60 + 12 * k, 71 + 12 * k, first)
        line.op(7, 660 + 12 * k, 671 + 12 * k, second)
    found = path(line, 0, 659, (7, 648))
    assert found[:3] == [(0, 40, "host", "A"), (40, 60, "launch-gap", "gpu7"),
                         (60, 71, "gpu", "gpu7")]  # fmt: skip
    assert by_category(found) == {"host": 40, "launch-gap": 20, "gpu": 550, "queue-gap": 49}
    states = line.states()
    steps = device_steps.build(states.capture, states.threads, states.device)
    number = steps.number[steps.of]
    assert number.tolist() == [1] * 50 + [2] * 50
    assert (steps.how == Assigned.BY_LAUNCH).all()


def test_a_kernel_that_began_while_its_launch_had_not_returned_is_let_go_by_it() -> None:
    line = TimeLine(200)
    line.kernel("A", (50, 80), (70, 90))
    assert path(line, 0, 90, (7, 70)) == [(0, 70, "host", "A"), (70, 90, "gpu", "gpu7")]


def test_a_launch_under_way_for_long_does_not_hide_the_kernel_before() -> None:
    # A full queue: the call returns late, its kernel was held by the one before it.
    line = TimeLine(400)
    line.kernel("A", (5, 8), (10, 100))
    line.kernel("A", (20, 150), (102, 200))
    assert path(line, 0, 200, (7, 102)) == [
        (0, 8, "host", "A"),
        (8, 10, "launch-gap", "gpu7"),
        (10, 100, "gpu", "gpu7"),
        (100, 102, "queue-gap", "gpu7"),
        (102, 200, "gpu", "gpu7"),
    ]


def test_a_long_gap_after_the_kernel_before_is_not_the_queues() -> None:
    line = TimeLine(400)
    line.kernel("A", (5, 8), (10, 100))
    line.kernel("A", (20, 30), (160, 200))
    assert (100, 160, "unexplained", "gpu7") in path(line, 0, 200, (7, 160))


def test_kernels_that_overlap_on_a_stream_are_passed_through_once() -> None:
    # Programmatic dependent launch: the next begins before the one before it has ended.
    line = TimeLine(400)
    line.kernel("A", (5, 8), (10, 100))
    line.kernel("A", (20, 30), (90, 200))
    assert path(line, 0, 200, (7, 90)) == [
        (0, 8, "host", "A"),
        (8, 10, "launch-gap", "gpu7"),
        (10, 200, "gpu", "gpu7"),
    ]


# --- synchronisation ----------------------------------------------------------------------


def test_a_thread_that_waits_for_its_stream_is_the_devices_then_its_return() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 300))
    line.kernel("A", (16, 21), (302, 600))
    line.stream_sync("A", 25, 650)
    assert path(line, 0, 700, "A") == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu7"),
        (20, 300, "gpu", "gpu7"),
        (300, 302, "queue-gap", "gpu7"),
        (302, 600, "gpu", "gpu7"),
        (600, 650, "sync-return", "A"),
        (650, 700, "host", "A"),
    ]


def test_a_stream_without_work_is_not_waited_for() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 100))
    line.stream_sync("A", 300, 310)
    assert path(line, 0, 400, "A") == [(0, 400, "host", "A")]


def test_a_stream_that_has_had_no_work_is_not_waited_for() -> None:
    # The record names stream 7; what runs on 9 and happens to end meanwhile is not its business.
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 308), stream=9)
    line.stream_sync("A", 300, 310, stream=7)
    assert path(line, 0, 400, "A") == [(0, 400, "host", "A")]


def test_an_event_recorded_before_any_work_is_not_waited_for() -> None:
    line = TimeLine(1_000)
    event = line.record("A", 5)
    line.kernel("A", (10, 15), (20, 308))
    call = line.call("A", "cudaEventSynchronize", 300, 310)
    line.sync(SyncKind.EVENT, call, 300, 310, record=event, of=7)
    assert path(line, 0, 400, "A") == [(0, 400, "host", "A")]


def test_only_the_stream_that_a_call_names_is_waited_for() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200), stream=7)
    line.kernel("A", (16, 21), (25, 290), stream=9)
    line.stream_sync("A", 30, 295, stream=7)
    assert path(line, 22, 295, "A") == [
        (22, 200, "gpu", "gpu7"),
        (200, 295, "sync-return", "A"),
    ]


def test_what_was_launched_after_the_call_is_not_waited_for() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    line.stream_sync("A", 30, 290)
    line.kernel("B", (40, 45), (202, 280))
    assert path(line, 25, 290, "A") == [(25, 200, "gpu", "gpu7"), (200, 290, "sync-return", "A")]


def test_a_call_that_seems_to_return_just_before_its_kernel_ended_waited_for_it() -> None:
    # A device's clock is brought to the host's with an error, which must not turn 170 us around.
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200.005))
    line.stream_sync("A", 30, 200)
    assert path(line, 22, 220, "A") == [(22, 200, "gpu", "gpu7"), (200, 220, "host", "A")]


def test_a_call_of_the_driver_within_one_of_the_runtime_tells_what_both_wait_for() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200), stream=7)
    line.kernel("A", (16, 21), (25, 290), stream=9)
    line.call("A", "cudaStreamSynchronize", 30, 300)
    inner = line.call("A", "cuStreamSynchronize", 32, 299)
    line.sync(SyncKind.STREAM, inner, 32, 299, stream=7)
    assert path(line, 22, 300, "A") == [(22, 200, "gpu", "gpu7"), (200, 300, "sync-return", "A")]


def test_a_whole_device_is_waited_for_not_the_other() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    other = line.call("A", "cudaLaunchKernel", 16, 18)
    line.add("gpu_op", 3, pid=11, device=1, gpu_stream=9, op=1, name="k", correlation=other,
             start_ns=ns(25), end_ns=ns(215))  # fmt: skip
    call = line.call("A", "cudaDeviceSynchronize", 30, 220)
    line.sync(SyncKind.CONTEXT, call, 30, 220)
    assert path(line, 22, 220, "A") == [(22, 200, "gpu", "gpu7"), (200, 220, "sync-return", "A")]


def test_a_whole_device_is_not_inferred_where_a_record_says_so() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    call = line.call("A", "cudaDeviceSynchronize", 30, 205)
    line.sync(SyncKind.CONTEXT, call, 30, 205)
    assert line.states().path.guessed == 0


def test_a_whole_device_is_waited_for_until_its_last_stream() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200), stream=7)
    line.kernel("A", (16, 21), (25, 290), stream=9)
    line.call("A", "cudaDeviceSynchronize", 30, 295)
    assert path(line, 0, 295, "A") == [
        (0, 21, "host", "A"),
        (21, 25, "launch-gap", "gpu9"),
        (25, 290, "gpu", "gpu9"),
        (290, 295, "sync-return", "A"),
    ]


def test_an_event_is_waited_for_as_of_when_it_was_recorded() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    event = line.record("A", 16)
    line.kernel("A", (18, 20), (202, 280))
    call = line.call("A", "cudaEventSynchronize", 30, 290)
    line.sync(SyncKind.EVENT, call, 30, 290, record=event, of=7)
    assert path(line, 25, 290, "A") == [(25, 200, "gpu", "gpu7"), (200, 290, "sync-return", "A")]


def test_a_run_of_polls_is_a_wait_for_what_ended_before_the_last() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    for at in range(30, 210, 10):
        line.call("A", "cudaEventQuery", at + 2, at + 4)
    assert path(line, 0, 260, "A") == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu7"),
        (20, 200, "gpu", "gpu7"),
        (200, 204, "sync-return", "A"),
        (204, 260, "host", "A"),
    ]
    assert line.states().path.guessed > 0


def test_polls_that_nothing_ended_for_are_the_hosts_time() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    for at in range(30, 150, 10):
        line.call("A", "cudaEventQuery", at + 2, at + 4)
    assert path(line, 0, 160, "A") == [(0, 160, "host", "A")]


def test_a_blocking_copy_is_waited_for_by_its_own_call() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200))
    copy = line.call("A", "cudaMemcpyAsync", 30, 250)
    line.op(7, 203, 240, copy, kind=GpuOpKind.MEMCPY)
    assert path(line, 0, 260, "A") == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu7"),
        (20, 200, "gpu", "gpu7"),
        (200, 203, "queue-gap", "gpu7"),
        (203, 240, "gpu", "gpu7"),
        (240, 250, "sync-return", "A"),
        (250, 260, "host", "A"),
    ]


def test_until_a_blocking_copy_began_on_an_idle_stream_the_time_is_the_calls() -> None:
    line = TimeLine(1_000)
    line.op(7, 80, 140, line.call("A", "cudaMemcpy", 30, 150), kind=GpuOpKind.MEMCPY)
    assert path(line, 0, 160, "A") == [
        (0, 80, "host", "A"),
        (80, 140, "gpu", "gpu7"),
        (140, 150, "sync-return", "A"),
        (150, 160, "host", "A"),
    ]


def test_a_copy_that_returned_at_once_is_not_waited_for() -> None:
    line = TimeLine(1_000)
    line.op(7, 80, 140, line.call("A", "cudaMemcpyAsync", 30, 40), kind=GpuOpKind.MEMCPY)
    assert path(line, 0, 160, "A") == [(0, 160, "host", "A")]


# --- several streams ----------------------------------------------------------------------


def test_a_stream_that_waits_for_anothers_event_leads_there() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 300), stream=9)
    event = line.record("A", 16)
    line.kernel("A", (20, 25), (30, 100), stream=7)
    line.stream_waits("A", 30, 7, event, 9)
    line.kernel("A", (35, 40), (304, 400), stream=7)
    assert path(line, 0, 400, (7, 304)) == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu9"),
        (20, 300, "gpu", "gpu9"),
        (300, 304, "queue-gap", "gpu7"),
        (304, 400, "gpu", "gpu7"),
    ]
    assert line.states().path.guessed == 0


def test_an_event_that_had_come_already_is_not_what_held_it() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 60), stream=9)
    event = line.record("A", 16)
    line.kernel("A", (20, 25), (30, 300), stream=7)
    line.stream_waits("A", 30, 7, event, 9)
    line.kernel("A", (35, 40), (303, 400), stream=7)
    assert (30, 300, "gpu", "gpu7") in path(line, 0, 400, (7, 303))


def test_an_event_recorded_later_again_is_waited_for_as_it_was() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 200), stream=9)
    event = line.record("A", 16)
    line.stream_waits("A", 30, 7, event, 9)
    line.kernel("A", (31, 33), (203, 400), stream=7)
    line.kernel("A", (34, 36), (201.5, 380), stream=9)
    line.record("A", 40)
    assert path(line, 50, 400, (7, 203)) == [
        (50, 200, "gpu", "gpu9"),
        (200, 203, "queue-gap", "gpu7"),
        (203, 400, "gpu", "gpu7"),
    ]


def test_an_event_that_no_record_names_is_inferred_and_counted() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 300), stream=9)
    line.kernel("A", (20, 25), (30, 100), stream=7)
    line.call("A", "cudaStreamWaitEvent", 30, 31)
    line.kernel("A", (35, 40), (304, 400), stream=7)
    assert path(line, 50, 400, (7, 304)) == [
        (50, 300, "gpu", "gpu9"),
        (300, 304, "queue-gap", "gpu7"),
        (304, 400, "gpu", "gpu7"),
    ]
    assert line.states().path.guessed == 1


def test_a_stream_that_only_waits_for_an_event_is_waited_for_until_that_came() -> None:
    # Joined back and synchronised without another kernel: what the caller waits for is on 9.
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 100), stream=7)
    line.kernel("A", (16, 18), (25, 300), stream=9)
    event = line.record("A", 20)
    line.stream_waits("A", 22, 7, event, 9)
    line.stream_sync("A", 25, 305, stream=7)
    assert path(line, 50, 305, "A") == [(50, 300, "gpu", "gpu9"), (300, 305, "sync-return", "A")]


def test_an_event_recorded_on_a_stream_that_waits_for_another_leads_on() -> None:
    # 9 -> event -> 8, on which nothing runs -> event -> 7.
    line = TimeLine(1_000)
    line.kernel("A", (1, 2), (4, 30), stream=8)
    line.kernel("A", (10, 15), (20, 300), stream=9)
    first = line.record("A", 16)
    line.stream_waits("A", 18, 8, first, 9)
    second = line.record("A", 20)
    line.stream_waits("A", 22, 7, second, 8)
    line.kernel("A", (24, 26), (304, 400), stream=7)
    assert path(line, 50, 400, (7, 304)) == [
        (50, 300, "gpu", "gpu9"),
        (300, 304, "queue-gap", "gpu7"),
        (304, 400, "gpu", "gpu7"),
    ]


def test_within_a_graph_a_branch_is_let_go_by_the_node_that_ended_last() -> None:
    line = TimeLine(1_000)
    graph = line.call("A", "cudaGraphLaunch", 10, 20)
    line.op(7, 25, 100, graph).op(7, 102, 180, graph)
    line.op(9, 103, 250, graph)
    line.op(7, 253, 300, graph)
    assert path(line, 0, 300, (7, 253)) == [
        (0, 20, "host", "A"),
        (20, 25, "launch-gap", "gpu7"),
        (25, 100, "gpu", "gpu7"),
        (100, 103, "queue-gap", "gpu9"),
        (103, 250, "gpu", "gpu9"),
        (250, 253, "queue-gap", "gpu7"),
        (253, 300, "gpu", "gpu7"),
    ]


def test_a_graph_launch_that_returns_between_two_nodes_let_neither_go() -> None:
    # That the first node ran says that the graph was launched; the second waited for the first.
    line = TimeLine(1_000)
    graph = line.call("A", "cudaGraphLaunch", 10, 105)
    line.op(7, 30, 104, graph).op(7, 106, 200, graph)
    assert path(line, 0, 200, (7, 106)) == [
        (0, 30, "host", "A"),
        (30, 104, "gpu", "gpu7"),
        (104, 106, "queue-gap", "gpu7"),
        (106, 200, "gpu", "gpu7"),
    ]


def test_a_graph_with_a_branch_of_its_own_begins_after_what_its_stream_ran() -> None:
    # A graph as a whole keeps the order of the stream it is launched on, here 7.
    line = TimeLine(1_000)
    line.kernel("A", (5, 8), (10, 200))
    graph = line.call("A", "cudaGraphLaunch", 10, 20)
    line.op(7, 203, 260, graph).op(9, 204, 300, graph)
    assert path(line, 0, 300, (9, 204)) == [
        (0, 8, "host", "A"),
        (8, 10, "launch-gap", "gpu7"),
        (10, 200, "gpu", "gpu7"),
        (200, 204, "queue-gap", "gpu9"),
        (204, 300, "gpu", "gpu9"),
    ]


def test_what_follows_a_graph_waits_for_all_of_it() -> None:
    line = TimeLine(1_000)
    graph = line.call("A", "cudaGraphLaunch", 10, 20)
    line.op(7, 25, 100, graph).op(7, 102, 180, graph)
    line.op(9, 103, 250, graph)
    line.kernel("A", (22, 25), (253, 300))
    assert path(line, 50, 300, (7, 253)) == [
        (50, 100, "gpu", "gpu7"),
        (100, 103, "queue-gap", "gpu9"),
        (103, 250, "gpu", "gpu9"),
        (250, 253, "queue-gap", "gpu7"),
        (253, 300, "gpu", "gpu7"),
    ]


def test_a_call_that_waits_for_a_graphs_stream_waits_for_all_of_the_graph() -> None:
    line = TimeLine(1_000)
    graph = line.call("A", "cudaGraphLaunch", 10, 20)
    line.op(7, 25, 100, graph).op(7, 102, 180, graph)
    line.op(9, 103, 250, graph)
    line.stream_sync("A", 30, 255)
    assert path(line, 110, 255, "A") == [(110, 250, "gpu", "gpu9"), (250, 255, "sync-return", "A")]


def test_the_margin_is_over_the_second_latest_of_all_that_had_to_happen() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 300), stream=9)
    event = line.record("A", 16)
    line.kernel("A", (20, 25), (30, 297), stream=7)
    line.stream_waits("A", 30, 7, event, 9)
    line.kernel("A", (35, 40), (304, 400), stream=7)
    states = line.states()
    # The event came at 300; without it the kernel before, on its own stream, at 297.
    assert states.path.margin_ns[op_at(states, 304)] == 3_000


def test_the_margin_of_a_launch_is_over_the_kernel_before() -> None:
    line = TimeLine(1_000)
    line.kernel("A", (10, 15), (20, 50))
    line.kernel("A", (60, 65), (69, 90))
    states = line.states()
    assert states.path.margin_ns[op_at(states, 69)] == 15_000


# --- asynchronous steps -------------------------------------------------------------------


def test_the_step_before_still_runs_while_the_next_is_launched() -> None:
    # 241.2 ms of a step's window, 120 ms of them the work of the step before it.
    ms = 1_000
    line = TimeLine(400 * ms)
    line.step(1, "A", 0, 20 * ms).step(2, "A", 50 * ms, 62 * ms)
    earlier = line.call("A", "cudaGraphLaunch", 5 * ms, 18 * ms)
    line.op(7, 19 * ms, 170 * ms, earlier)
    own = line.call("A", "cudaGraphLaunch", 55 * ms, 60 * ms)
    line.op(7, 170 * ms + 3, 291.2 * ms, own)
    states = line.states()
    steps = device_steps.build(states.capture, states.threads, states.device)
    found = segments(states, 50 * ms, 291.2 * ms, (7, 170 * ms + 3))
    length = (found["end"] - found["start"]) / 1_000
    gpu = found["category"] == CATEGORIES.index("gpu")
    owner = np.where(gpu, steps.number[steps.of[found["evidence"]]], 0)
    assert length.sum() == pytest.approx(241.2 * ms)
    assert length[owner == 1].sum() == pytest.approx(120 * ms)
    assert length[owner == 2].sum() == pytest.approx(121.2 * ms - 3)
    assert length[owner == 0].sum() == pytest.approx(3)


def test_time_to_first_token_is_device_time_and_some_of_the_hosts() -> None:
    # 155.2 ms = 143.3 ms of kernels and 12 ms of everything else.
    ms = 1_000
    line = TimeLine(200 * ms).step(1, "A", 0, 155.2 * ms)
    graph = line.call("A", "cudaGraphLaunch", 10 * ms, 11.6 * ms)
    line.op(7, 11.7 * ms, 111.7 * ms, graph)
    line.op(7, 111.7 * ms, 155 * ms, graph)
    line.stream_sync("A", 11.7 * ms, 155.2 * ms)
    assert by_category(path(line, 0, 155.2 * ms, "A")) == {
        "host": 11.6 * ms, "launch-gap": 0.1 * ms, "gpu": 143.3 * ms, "sync-return": 0.2 * ms,
    }  # fmt: skip


def test_a_kernel_launched_before_the_recording_has_no_known_cause() -> None:
    line = TimeLine(1_000)
    line.ids = itertools.count(50)
    line.step(1, "A", 5, 30)
    line.op(7, 2, 100, 7)
    line.kernel("A", (10, 15), (102, 200))
    assert path(line, 0, 200, (7, 102)) == [
        (0, 2, "unobserved", "gpu7"),
        (2, 100, "gpu", "gpu7"),
        (100, 102, "queue-gap", "gpu7"),
        (102, 200, "gpu", "gpu7"),
    ]
    states = line.states()
    steps = device_steps.build(states.capture, states.threads, states.device)
    assert [Assigned(how) for how in steps.how] == [Assigned.LAUNCHED_BEFORE, Assigned.BY_LAUNCH]
    assert steps.of[0] == -1


def test_a_kernel_without_a_launch_between_two_of_a_step_is_that_steps() -> None:
    line = TimeLine(1_000).step(1, "A", 5, 50)
    line.kernel("A", (10, 15), (20, 100))
    line.op(7, 102, 150, 0)
    line.kernel("A", (20, 25), (152, 200))
    states = line.states()
    steps = device_steps.build(states.capture, states.threads, states.device)
    how = [int(Assigned.BY_LAUNCH), int(Assigned.BY_STREAM), int(Assigned.BY_LAUNCH)]
    assert (steps.of == 0).all()
    assert steps.how.tolist() == how
    # Its own stream order still tells what let it go; only the launch is unknown.
    found = path(line, 0, 200, (7, 152))
    assert by_category(found)["gpu"] == 80 + 48 + 48
    assert found[0] == (0, 15, "host", "A")


# --- several processes --------------------------------------------------------------------


def ranks(line: TimeLine, host: Sequence[float], gpu: Sequence[float], *, number: int = 1,
          at: float = 0, ahead: Sequence[float] = ()) -> TimeLine:  # fmt: skip
    """A step of each rank that ends with one collective, 50 us after the last came to it.

    Rank ``i`` launches the collective ``host[i]`` us late, and the kernel before it takes
    ``gpu[i]`` us longer. Its clock is ``ahead[i]`` us ahead.
    """
    came = [max(122 + b, 37 + a) for a, b in zip(host, gpu, strict=True)]
    for rank, (late, longer) in enumerate(zip(host, gpu, strict=True)):
        by, pid, zero = 3 + rank, 100 + rank, at + (ahead[rank] if ahead else 0)
        line.add("stream", 1, stream=by, tgid=pid, producer="import", role=f"rank {rank}")
        line.add("worker_step", by, step=number, tid=pid, phase=int(WorkerPhase.EXECUTE),
                 start_ns=ns(zero), end_ns=ns(zero + 36 + late))  # fmt: skip
        for name, called, start, end in (
            ("sgemm", 10, 20, 120 + longer),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30 + late, came[rank], max(came) + 50),
        ):
            call = line.call("", "cudaLaunchKernel", zero + called, zero + called + 5,
                             pid=pid, by=by, tid=pid)  # fmt: skip
            line.add("gpu_op", by, pid=pid, device=rank, gpu_stream=7, op=1, correlation=call,
                     name=name, start_ns=ns(zero + start), end_ns=ns(zero + end))  # fmt: skip
    return line


EVEN = [0.0] * 8
#: Rank 5 comes late: 315 us after the others, or 400.
LATE = [0.0, 0.0, 0.0, 0.0, 0.0, 400.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("host", "gpu", "late_ns", "path"),
    [
        (LATE, EVEN, 315_000, {"host": 435, "launch-gap": 2, "gpu": 50}),
        (EVEN, LATE, 400_000, {"host": 15, "launch-gap": 5, "gpu": 550, "queue-gap": 2}),
    ],
    ids=["host", "gpu"],
)
def test_of_eight_ranks_the_last_to_a_collective_holds_up_the_others(
    host: list[float], gpu: list[float], late_ns: int, path: dict[str, float]
) -> None:
    devices = ranks(TimeLine(2_000), host, gpu).run().devices
    reports = list(devices.reports())
    assert [one.process for one in reports] == [f"rank {i}" for i in range(8)]
    for report in reports:
        found = {str(category): length / 1_000 for category, length in report.by_category}
        told, text = report.communication, report.verdict.text
        if report.process == "rank 5":
            assert found == path
            assert (told.length_ns, told.waited_ns) == (50_000, 0)
            assert text.startswith("host-bound: " if host is LATE else "GPU-bound: ")
            continue
        # No path leads to another process: its lateness is work of the waiting one's device.
        waiting = 150 + late_ns / 1_000
        assert found == {"host": 15, "launch-gap": 5, "gpu": waiting, "queue-gap": 2}
        assert (told.length_ns, told.waited_ns) == (50_000 + late_ns, late_ns)
        assert text.startswith("communication-bound: ")
        assert f"wait for other processes too (at least {late_ns // 1000} us of it)" in text
    skew = devices.whole().skew
    assert skew is not None
    assert (skew.collectives, skew.left_out) == (1, ())
    last, *others = skew.ranks
    assert (last.process, last.last, last.held_up_ns) == ("rank 5", 1, late_ns)
    assert all((one.last, one.waited_ns) == (0, late_ns) for one in others)


# --- host threads -------------------------------------------------------------------------


def test_a_futex_chain_into_a_launch() -> None:
    line = TimeLine(1_000, waits=True)
    line.blocked("A", 20, 200, "B", wake=190)
    line.kernel("A", (210, 220), (225, 400))
    assert path(line, 10, 400, (7, 225)) == [
        (10, 190, "cpu", "B"),
        (190, 200, "run-queue", "A"),
        (200, 220, "cpu", "A"),
        (220, 225, "launch-gap", "gpu7"),
        (225, 400, "gpu", "gpu7"),
    ]


def test_a_chain_from_a_thread_over_a_device_to_another_thread() -> None:
    # C waits for A's kernel; A was woken by B to launch it.
    line = TimeLine(1_000, waits=True)
    line.blocked("A", 20, 200, "B")
    line.kernel("A", (210, 220), (225, 400))
    line.stream_sync("C", 222, 410)
    assert path(line, 10, 450, "C") == [
        (10, 200, "cpu", "B"),
        (200, 220, "cpu", "A"),
        (220, 225, "launch-gap", "gpu7"),
        (225, 400, "gpu", "gpu7"),
        (400, 410, "sync-return", "C"),
        (410, 450, "cpu", "C"),
    ]


def test_a_wait_is_what_its_waker_spent_it_on() -> None:
    # wPerf's figure: of 100 ms the waker spent 20 on one thing and 80 on another.
    line = TimeLine(200, waits=True)
    line.blocked("A", 10, 110, "B")
    line.blocked("B", 10, 30, None, kind=WaitKind.READ, op=3, flags=WaitFlag.WAKE_IRQ)
    assert path(line, 5, 120, "A") == [
        (5, 10, "cpu", "B"),
        (10, 30, "disk", "B"),
        (30, 110, "cpu", "B"),
        (110, 120, "cpu", "A"),
    ]


def test_a_wait_for_a_thread_that_waits_for_a_device_is_both_in_their_parts() -> None:
    line = TimeLine(200, waits=True)
    line.blocked("A", 10, 110, "B")
    line.kernel("B", (25, 30), (30, 110))
    line.stream_sync("B", 30, 110)
    assert path(line, 10, 120, "A") == [
        (10, 30, "cpu", "B"),
        (30, 110, "gpu", "gpu7"),
        (110, 120, "cpu", "A"),
    ]


def test_a_lock_whose_holder_waits_for_a_device_returns_to_the_waiter() -> None:
    line = TimeLine(400, waits=True)
    line.kernel("B", (10, 15), (20, 190))
    line.stream_sync("B", 30, 195)
    line.blocked("A", 100, 200, "B", kind=WaitKind.FUTEX, op=128)
    assert path(line, 50, 210, "A") == [
        (50, 100, "cpu", "A"),
        (100, 190, "gpu", "gpu7"),
        (190, 195, "sync-return", "B"),
        (195, 200, "cpu", "B"),
        (200, 210, "cpu", "A"),
    ]


def test_a_sleep_behind_a_device_that_began_before_the_wait_explains_only_that() -> None:
    # A waits for B's kernel; B slept since before A called, then launched.
    line = TimeLine(400, waits=True)
    line.kernel("A", (12, 15), (16, 20), stream=9)
    line.call("A", "cudaDeviceSynchronize", 100, 300)
    line.blocked("B", 50, 150, None, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER)
    line.kernel("B", (95, 160), (155, 290))
    found = path(line, 60, 300, "A")
    assert found == [
        (60, 100, "cpu", "A"),
        (100, 150, "sleep", "B"),
        (150, 155, "cpu", "B"),
        (155, 290, "gpu", "gpu7"),
        (290, 300, "sync-return", "A"),
    ]


def test_within_a_synchronisation_the_way_back_to_a_cpu_is_run_queue() -> None:
    # The driver blocks in the kernel: woken at 604, on a CPU at 640, returned at 650.
    line = TimeLine(1_000, waits=True)
    line.kernel("A", (10, 15), (20, 600))
    line.stream_sync("A", 25, 650)
    line.blocked("A", 30, 640, None, wake=604, kind=WaitKind.POLL, flags=WaitFlag.WAKE_IRQ)
    assert path(line, 22, 700, "A") == [
        (22, 600, "gpu", "gpu7"),
        (600, 604, "sync-return", "A"),
        (604, 640, "run-queue", "A"),
        (640, 650, "sync-return", "A"),
        (650, 700, "cpu", "A"),
    ]


def test_a_wait_of_the_driver_itself_does_not_hide_the_device() -> None:
    line = TimeLine(1_000, waits=True)
    line.kernel("A", (10, 15), (20, 600))
    line.stream_sync("A", 25, 650)
    line.blocked("A", 30, 604, None, kind=WaitKind.POLL, flags=WaitFlag.WAKE_IRQ)
    found = by_category(path(line, 22, 700, "A"))
    assert found == {"gpu": 578, "sync-return": 50, "cpu": 50}


# --- records that are wrong ---------------------------------------------------------------


def test_a_kernel_that_seems_to_begin_before_its_launch_is_clamped_and_counted() -> None:
    line = TimeLine(200)
    line.kernel("A", (50, 60), (49.997, 90))
    assert line.states().device.ops.early_ns.tolist() == [3]
    assert path(line, 0, 90, (7, 49.997)) == [
        (0, 49.997, "host", "A"),
        (49.997, 90, "gpu", "gpu7"),
    ]


def test_records_without_valid_times_are_left_out_and_counted() -> None:
    line = TimeLine(400)
    line.kernel("A", (10, 15), (20, 100))
    line.op(7, 150, 120, line.call("A", "cudaLaunchKernel", 16, 18))
    lost = line.call("A", "cudaLaunchKernel", 20, 22)
    line.add("gpu_op", 3, pid=11, gpu_stream=7, op=1, name="k", correlation=lost)
    line.call("A", "cudaLaunchKernel", 40, 30)
    line.add("cuda_api", 3, pid=11, tid=11, name="cudaLaunchKernel", correlation=99, end_ns=5)
    line.kernel("A", (50, 55), (102, 200))
    device = line.states().device
    assert (len(device.ops), device.ops.invalid, device.records) == (2, 2, 4)
    assert (len(device.calls), device.calls.invalid) == (4, 2)
    assert path(line, 0, 200, (7, 102)) == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu7"),
        (20, 100, "gpu", "gpu7"),
        (100, 102, "queue-gap", "gpu7"),
        (102, 200, "gpu", "gpu7"),
    ]


def test_of_calls_with_one_id_the_last_before_the_kernel_launched_it() -> None:
    line = TimeLine(400)
    line.call("A", "cudaLaunchKernel", 10, 15, 5)
    line.call("B", "cudaLaunchKernel", 60, 65, 5)
    line.call("A", "cudaLaunchKernel", 200, 205, 5)
    line.op(7, 70, 100, 5)
    assert line.states().device.ops.repeated == 1
    assert path(line, 0, 100, (7, 70)) == [
        (0, 65, "host", "B"),
        (65, 70, "launch-gap", "gpu7"),
        (70, 100, "gpu", "gpu7"),
    ]


@pytest.mark.parametrize("by", [3, 4])
def test_two_processes_with_the_same_ids_do_not_mix(by: int) -> None:
    # Of one stream of the recording, or of two; the process tells them apart either way.
    line = TimeLine(400)
    call = {"pid": 22, "by": by, "tid": 22}
    line.kernel("A", (10, 15), (20, 100))
    line.call("", "cudaLaunchKernel", 50, 55, 1, **call)
    line.op(7, 60, 200, 1, pid=22, by=by)
    line.call("", "cudaStreamSynchronize", 70, 210, 2, **call)
    line.stream_sync("A", 30, 110)
    device = line.states().device
    assert len(device.processes) == 2
    assert len(device.streams) == 2
    assert device.ops.repeated == 0
    owner = device.calls.table["pid"][device.ops.call]
    assert owner.tolist() == device.ops.table["pid"].tolist()
    assert path(line, 0, 120, "A") == [
        (0, 15, "host", "A"),
        (15, 20, "launch-gap", "gpu7"),
        (20, 100, "gpu", "gpu7"),
        (100, 110, "sync-return", "A"),
        (110, 120, "host", "A"),
    ]


def test_a_recording_without_devices_has_none() -> None:
    line = TimeLine(100, waits=True)
    assert not line.states().device
    assert path(line, 0, 50, "A") == [(0, 50, "cpu", "A")]


def test_kernels_alone_are_walked_without_any_call() -> None:
    line = TimeLine(400)
    line.op(7, 20, 100, 0).op(7, 102, 200, 0)
    assert path(line, 0, 200, (7, 102)) == [
        (0, 20, "unobserved", "gpu7"),
        (20, 100, "gpu", "gpu7"),
        (100, 102, "unobserved", "gpu7"),  # it may not have been launched before
        (102, 200, "gpu", "gpu7"),
    ]


def test_a_run_of_polls_does_not_swallow_what_the_thread_did_between_them() -> None:
    # Once in a while it asks; in between it works, which is why the answer comes late.
    line = TimeLine(1_000, waits=True)
    line.kernel("A", (10, 15), (20, 90))
    line.call("A", "cudaEventQuery", 30, 32)
    line.blocked("A", 40, 800, "B")
    line.call("A", "cudaEventQuery", 810, 812)
    found = path(line, 22, 820, "A")
    assert (90, 800, "cpu", "B") in [(max(a, 90), *rest) for a, *rest in found]
