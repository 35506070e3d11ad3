# SPDX-License-Identifier: Apache-2.0
"""The verdict on a step whose device copied more than it computed, and its neighbours."""

from __future__ import annotations

import pytest

from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind
from tests.unit.profile_json import step_document
from tests.unit.test_device_gaps import named
from tests.unit.test_device_truths import TimeLine


def step_of(copies: float, kernels: float, kind: GpuOpKind = GpuOpKind.MEMCPY):
    """A step whose thread waits for a copy and the kernel behind it, so long each (us)."""
    end = 20 + copies + kernels
    line = TimeLine(2_000).step(1, "A", 0, end + 4)
    copy = line.call("A", "cudaMemcpyAsync", 4, 8)
    named(line, "Memcpy HtoD", 7, 12, 12 + copies, copy, op=int(kind), bytes=1 << 20,
          copy=int(CopyKind.HTOD))  # fmt: skip
    line.kernel("A", (9, 11), (14 + copies, 14 + copies + kernels))
    line.stream_sync("A", 11.5, end + 2)
    return line.run().devices.report(0)


@pytest.mark.parametrize("kind", [GpuOpKind.MEMCPY, GpuOpKind.MEMSET])
def test_a_step_of_copies_is_copy_bound(kind: GpuOpKind) -> None:
    report = step_of(977, 10, kind)
    share, work_share = (100 * ns / report.wall_ns for ns in (977_000, 987_000))
    assert report.verdict.text.startswith(f"copy-bound: the path is {work_share:.1f}% the step's")
    assert f"; {share:.1f}% is copies and fills, 1.0% kernels" in report.verdict.text
    work = step_document(report)["path_work"]
    key = "copies_ns" if kind is GpuOpKind.MEMCPY else "fills_ns"
    assert (work[key], work["kernels_ns"]) == (977_000, 10_000)
    assert sum(work.values()) == dict(report.by_category)["gpu"]


def test_a_step_whose_copies_are_less_than_its_kernels_is_gpu_bound_and_says_how_much() -> None:
    report = step_of(400, 410)
    assert report.verdict.text.startswith("GPU-bound: ")
    assert "% is copies and fills, " in report.verdict.text


def test_copies_of_little_weight_are_not_worth_a_word() -> None:
    report = step_of(20, 600)
    assert report.verdict.text.startswith("GPU-bound: ")
    assert "copies" not in report.verdict.text
