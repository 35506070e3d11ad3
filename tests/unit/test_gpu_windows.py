# SPDX-License-Identifier: Apache-2.0
"""A live recording whose GPU was recorded in windows, beside the waits of all its threads.

Inside a window the path of a step leaves the worker's thread for the kernel that it waited for;
outside it is what the kernel probes tell of that thread; and the ledger says how much was which.
"""

from __future__ import annotations

import pytest

from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category, StepReport
from gpucorrelate.probes.wire.schema import StepStatus, WaitKind
from tests.unit.test_device_truths import TIDS, TimeLine, ns

END = 1_000
OUTSIDE = "GPU outside its windows"


class Live(TimeLine):
    """A worker that marks its steps, under the kernel probes; times are microseconds."""

    def __init__(self, end: float = END) -> None:
        super().__init__(end, waits=True)

    def window(self, number: int, start: float, end: float, *, by: int = 3) -> Live:
        self.add("gpu_window", by, window=number, start_ns=ns(start), end_ns=ns(end), what=13)
        return self

    def marked(self, number: int, start: float, end: float) -> None:
        """A step as an agent's marks tell it."""
        tid, name = TIDS["A"], "decode"
        self.add("step_begin", 3, step=number, tid=tid, start_ns=ns(start), rows=1)
        self.add("span", 3, tid=tid, name=name, start_ns=ns(start), end_ns=ns(end), step=number)
        self.step(number, "A", start, end)
        self.add("step_end", 3, step=number, tid=tid, end_ns=ns(end), status=int(StepStatus.OK))

    def waited(self, at: float, *, seen: bool) -> None:
        """From ``at`` on: a launch, a kernel of 300 us, the wait for it and its end by interrupt.

        Args:
            at: When.
            seen: Whether the GPU was recorded then.
        """
        if seen:
            self.kernel("A", (at + 10, at + 15), (at + 20, at + 320))
            self.stream_sync("A", at + 25, at + 345)
        # The driver blocks the thread until the device's interrupt, woken by nobody's doing.
        self.blocked("A", at + 30, at + 340, None, wake=at + 330, kind=WaitKind.POLL)

    def report(self, number: int) -> StepReport:
        return Run.of(self.capture(end_ns=ns(self.end))).step(number)

    def outside(self) -> list[str]:
        run = Run.of(self.capture(end_ns=ns(self.end)))
        return [line for line in run.ledger.missing if line.startswith(OUTSIDE)]


def tiles(report: StepReport) -> None:
    at = report.start_ns
    for one in report.segments:
        assert one.start_ns == at < one.end_ns
        at = one.end_ns
    assert at == report.end_ns


def lengths(report: StepReport) -> dict[Category, int]:
    sums: dict[Category, int] = {}
    for one in report.segments:
        sums[one.category] = sums.get(one.category, 0) + one.length_ns
    return sums


@pytest.fixture
def both() -> Live:
    """The same step twice: inside the window, and after it."""
    line = Live().window(1, 0, 450)
    for number, at in ((1, 0), (2, 500)):
        line.marked(number, at, at + 400)
        line.waited(at, seen=number == 1)
    return line


def test_inside_a_window_the_path_leads_into_the_kernel_that_was_waited_for(both: Live) -> None:
    report = both.report(1)
    tiles(report)
    found = [(one.category, one.start_ns, one.end_ns) for one in report.segments]
    assert (Category.GPU, ns(20), ns(320)) in found
    assert lengths(report)[Category.GPU] == 300_000
    assert lengths(report)[Category.LAUNCH_GAP] == 5_000
    (kernel,) = (one for one in report.segments if one.category is Category.GPU)
    assert kernel.step == 1
    assert kernel.actor.tid != TIDS["A"]
    # What lies around it is the worker's own: the launch before, the return after.
    rest = {one.actor.tid for one in report.segments if one.start_ns >= ns(320)}
    assert rest == {TIDS["A"]}
    assert sum(lengths(report).values()) == 400_000 == report.wall_ns


def test_outside_the_same_wait_is_the_threads_and_never_the_gpus(both: Live) -> None:
    report = both.report(2)
    tiles(report)
    on_gpu = {Category.GPU, Category.GPU_EARLIER, Category.LAUNCH_GAP, Category.QUEUE_GAP}
    assert not on_gpu & lengths(report).keys()
    assert {one.actor.tid for one in report.segments if one.category is Category.CPU} == {11}
    blocked = [one for one in report.segments if ns(530) <= one.start_ns and one.end_ns <= ns(840)]
    assert sum(one.length_ns for one in blocked) == 310_000
    assert Category.CPU not in {one.category for one in blocked}
    assert sum(lengths(report).values()) == 400_000 == report.wall_ns


def test_a_kernel_launched_before_its_window_is_still_what_was_waited_for() -> None:
    """Its launch is not on record: the path leads into it, and back out at its begin."""
    line = Live().window(1, 18, 450)
    line.marked(1, 0, 400)
    line.op(7, 20, 320, 999)
    line.stream_sync("A", 25, 345)
    line.blocked("A", 30, 340, None, wake=330, kind=WaitKind.POLL)
    report = line.report(1)
    tiles(report)
    on_gpu = lengths(report).keys() & {Category.GPU, Category.GPU_EARLIER}
    assert sum(lengths(report)[one] for one in on_gpu) == 300_000


def test_a_window_that_ends_while_a_kernel_runs_leaves_an_exact_path() -> None:
    """What was under way is read at the end; what is launched from there on is missing."""
    line = Live().window(1, 0, 200)
    line.marked(1, 0, 800)
    line.waited(0, seen=True)
    line.waited(400, seen=False)
    report = line.report(1)
    tiles(report)
    assert lengths(report)[Category.GPU] == 300_000
    assert all(one.end_ns <= ns(345) for one in report.segments if one.category is Category.GPU)


# --- the ledger ---------------------------------------------------------------------------


def test_the_ledger_says_how_much_of_the_time_the_gpu_was_recorded(both: Live) -> None:
    (line,) = both.outside()
    assert "recorded in 1, 45.0% of the time" in line


def test_slices_of_a_window_are_one_and_what_is_told_twice_counts_once() -> None:
    line = Live().window(1, 0, 100).window(1, 100, 200).window(1, 150, 200).window(2, 400, 450)
    (found,) = line.outside()
    assert "recorded in 2, 25.0% of the time" in found


def test_of_two_processes_each_has_its_own_time() -> None:
    line = Live().window(1, 0, 500).window(1, 200, 300, by=4)
    line.process(4, 12, "worker", since=ns(0))
    (found,) = line.outside()
    assert "recorded in 2, 30.0% of the time" in found


def test_what_lies_beyond_the_recording_does_not_count() -> None:
    line = Live().window(1, -400, 100).window(2, 900, 5_000)
    (found,) = line.outside()
    assert "recorded in 2, 20.0% of the time" in found


def test_a_window_that_never_ended_leaves_nothing_outside() -> None:
    assert Live().window(1, -10, END + 10).outside() == []


def test_without_windows_there_is_no_such_line() -> None:
    line = Live()
    line.marked(1, 0, 400)
    line.waited(0, seen=True)
    assert line.outside() == []
