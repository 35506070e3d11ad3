# SPDX-License-Identifier: Apache-2.0
"""Idle gaps with their five answers, and what collectives of several processes do not tell."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.report import device_text
from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind
from tests.unit.profile_json import step_document
from tests.unit.test_device_truths import EVEN, LATE, TimeLine, ns, ranks

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.device_values import DeviceStepReport, IdleGap

NCCL = "ncclDevKernel_SendRecv"


def named(line: TimeLine, name: str, stream: int, start: float, end: float, call: int, **more):
    """An operation with a name, of the thread's process."""
    more = {"op": int(GpuOpKind.KERNEL), **more}
    line.add("gpu_op", 3, pid=11, gpu_stream=stream, name=name, correlation=call,
             start_ns=ns(start), end_ns=ns(end), **more)  # fmt: skip


def copied() -> TimeLine:
    """A gap from 110 to 210, after a copy to the host that a thread waited for."""
    line = TimeLine(400)
    line.step(1, "A", 0, 390)
    line.kernel("A", (10, 15), (20, 100))
    copy = line.call("A", "cudaMemcpyAsync", 20, 24)
    named(line, "Memcpy DtoH", 7, 102, 110, copy, op=int(GpuOpKind.MEMCPY), bytes=4096,
          copy=int(CopyKind.DTOH))  # fmt: skip
    line.stream_sync("A", 26, 112)
    line.call("A", "cudaMalloc", 150, 160)
    line.kernel("A", (200, 205), (210, 300))
    return line


def only_gap(line: TimeLine, step: int = 0) -> tuple[IdleGap, DeviceStepReport]:
    report = line.run().devices.report(step)
    (gap,) = (one for one in report.gaps if one.length_ns > 10_000)
    return gap, report


def text_of(report: DeviceStepReport, width: int = 100) -> str:
    out = io.StringIO()
    device_text.render_step(report, out, TextOptions(width=width))
    return " ".join(out.getvalue().split())


def test_the_five_questions_of_a_gap_after_a_copy_are_answered() -> None:
    gap, report = only_gap(copied())
    assert (gap.start_ns, gap.end_ns, gap.pending) == (ns(110), ns(210), 0)
    assert (gap.before.launch, gap.before.launched_ns) == ("cudaMemcpyAsync", ns(20))
    host = gap.host
    assert host is not None
    assert (host.in_calls_ns, host.between_calls_ns) == (17_000, 83_000)
    assert (host.waiting_ns, host.communication_ns) == (0, 0)
    assert dict(host.calls) == {
        "cudaMalloc": 10_000, "cudaLaunchKernel": 5_000, "cudaStreamSynchronize": 2_000,
    }  # fmt: skip
    ((when, copy),) = gap.copies
    assert (when, copy.direction, copy.size_bytes) == ("before", "DtoH", 4096)
    assert (gap.communication, gap.receive, gap.meanwhile) == ((), None, ())
    done = gap.completion
    assert done is not None
    assert (done.call, done.returned_ns) == ("cudaStreamSynchronize", ns(112))
    assert (done.operation, done.ended_ns) == ("Memcpy DtoH", ns(110))
    text = text_of(report)
    for answer in (
        "launched before: cudaMemcpyAsync 90.0 us before it, 0 more pending",
        "host: 83.0 us between calls, 17.0 us in calls, 0 for communication",
        "copies: DtoH of 4,096 bytes on GPU0/11 stream 7 before it; communication: none",
        "completion: cudaStreamSynchronize of Memcpy DtoH 2.00 us into it; receive: none",
    ):
        assert answer in text


def test_a_gap_that_waits_for_what_is_received_says_so() -> None:
    # Work of this step is launched early and waits for a message that the step before asked for.
    line = TimeLine(500).step(1, "A", 0, 20).step(2, "A", 30, 100)
    named(line, NCCL, 9, 25, 300, line.call("A", "cudaLaunchKernel", 10, 15))
    event = line.record("A", 16)
    line.kernel("A", (40, 44), (50, 90))
    line.stream_waits("A", 45, 7, event, 9)
    line.kernel("A", (50, 54), (304, 400))
    line.kernel("A", (60, 64), (402, 450))
    gap, report = only_gap(line, 1)
    assert (gap.start_ns, gap.end_ns, gap.pending) == (ns(90), ns(304), 2)
    assert gap.completion is None
    assert gap.receive is not None
    assert (gap.receive.name, gap.receive.end_ns) == (NCCL, ns(300))
    ((when, other),) = gap.communication
    assert (when, other.waited_ns) == ("meanwhile", None)
    assert [(one.name, one.count, one.length_ns) for one in gap.meanwhile] == [
        ("communication", 1, 210_000)
    ]
    text = text_of(report)
    assert f"{NCCL} 275 us (transfer or waiting for others: not on record) meanwhile;" in text
    assert f"receive: {NCCL}" in text


def test_the_host_that_waits_for_communication_communicates() -> None:
    line = TimeLine(500).step(1, "A", 0, 20).step(2, "A", 30, 400)
    named(line, NCCL, 9, 25, 300, line.call("A", "cudaLaunchKernel", 10, 15))
    line.kernel("A", (40, 44), (50, 90))
    line.stream_sync("A", 60, 305, stream=9)
    line.kernel("A", (310, 314), (320, 400))
    gap, _ = only_gap(line, 1)
    host = gap.host
    assert host is not None
    assert (host.waiting_ns, host.communication_ns) == (210_000, 210_000)
    assert host.in_calls_ns == 215_000 + 4_000
    assert gap.receive is not None
    assert gap.completion is not None
    assert gap.completion.returned_ns == ns(305)


def test_of_a_gap_without_a_launch_on_record_the_host_is_not_known() -> None:
    line = TimeLine(400).step(1, "A", 5, 390)
    line.kernel("A", (10, 15), (20, 100))
    line.op(7, 200, 250, 0)
    line.kernel("A", (120, 125), (252, 300))
    gap, report = only_gap(line)
    assert (gap.after.launch, gap.host, gap.completion) == (None, None, None)
    assert "host: not known, the launch is not on record" in text_of(report)
    found = step_document(report)["gaps"][0]
    assert (found["host"], found["launch"], found["corresponds"]["launch"]) == (None, None, None)


def skew_of(line: TimeLine):
    return line.run().devices.whole().skew


def test_one_process_has_no_skew() -> None:
    assert skew_of(copied()) is None


def test_a_clock_that_is_off_by_more_than_a_collective_lasts_tells_nothing() -> None:
    line = ranks(TimeLine(9_000), LATE, EVEN, ahead=[0, 0, 0, 3_000, 0, 0, 0, 0])
    skew = skew_of(line)
    assert (skew.collectives, skew.left_out, skew.ranks) == (0, (("did not end together", 8),), ())
    report = line.run().devices.report(0)
    assert report.communication.waited_ns is None
    assert "wait for other processes too (how long is not on record)" in report.verdict.text


def test_collectives_of_two_groups_are_not_taken_for_one() -> None:
    # Four ranks are done 200 us before the other four, which their names do not tell.
    line = ranks(TimeLine(9_000), EVEN, EVEN, ahead=[0, 0, 0, 0, 200, 200, 200, 200])
    assert skew_of(line).left_out == (("did not end together", 8),)


def test_nobody_is_last_by_less_than_moments_may_be_off() -> None:
    # Rank 2 comes 5 us late, and clocks differ by 8.
    host = [0.0, 0.0, 90.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    line = ranks(TimeLine(9_000), host, EVEN, ahead=[8, 0, 0, 0, 0, 0, 0, 0])
    skew = skew_of(line)
    assert (skew.collectives, skew.steps[0].off_ns) == (1, 8_000)
    assert {(one.last, one.waited_ns) for one in skew.ranks} == {(0, 0)}


def test_a_kernel_that_one_rank_has_more_often_is_not_compared() -> None:
    line = ranks(TimeLine(9_000), LATE, EVEN)
    call = line.call("", "cudaLaunchKernel", 32, 34, pid=100, tid=100)
    line.add("gpu_op", 3, pid=100, device=0, gpu_stream=7, op=1, correlation=call,
             name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start_ns=ns(600),
             end_ns=ns(610))  # fmt: skip
    skew = skew_of(line)
    assert (skew.collectives, skew.left_out) == (0, (("not as often in every process", 9),))


def test_steps_are_compared_by_their_number() -> None:
    line = TimeLine(9_000)
    for number in range(1, 5):
        ranks(line, LATE if number % 2 else EVEN, EVEN, number=number, at=1_000 * number)
    skew = skew_of(line)
    assert [(one.step, one.collectives) for one in skew.steps] == [(n, 1) for n in range(1, 5)]
    assert [sum(rank.last for rank in one.ranks) for one in skew.steps] == [1, 0, 1, 0]
    assert (skew.ranks[0].process, skew.ranks[0].last) == ("rank 5", 2)
    assert skew.ranks[0].held_up_ns == 2 * 315_000


@pytest.mark.parametrize("width", [60, 64, 70])
def test_nothing_of_a_narrow_report_is_cut(width: int) -> None:
    line = ranks(TimeLine(2_000), LATE, EVEN)
    devices = line.run().devices
    out = io.StringIO()
    device_text.render_run(devices.whole(), out, TextOptions(width=width))
    device_text.render_step(devices.report(0), out, TextOptions(width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    assert [one for one in lines if "…" in one and kernel[:8] not in one] == []
