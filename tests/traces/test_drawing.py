# SPDX-License-Identifier: Apache-2.0
"""Every recorded trace as a Perfetto trace and as a flame graph: all of it is there."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.correlator.report import flame
from gpucorrelate.correlator.report.paths import PathFinder
from gpucorrelate.correlator.report.perfetto import render
from gpucorrelate.correlator.search import busy_union_ns
from tests.traces.test_import import FOLDER
from tests.traces.test_profiles import RECORDS, profile
from tests.unit.perfetto_trace import Trace

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.build import Run

pytestmark = pytest.mark.traces
OPS = ("kernel", "copy", "fill")


def drawn(run: Run, choice: render.Choice | None = None) -> Trace:
    out = io.BytesIO()
    render.write(run, choice or render.Choice(), out)
    return Trace(out.getvalue())


@pytest.mark.parametrize("name", RECORDS)
def test_all_records_are_drawn_and_joined_to_their_launches(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}.*")
    run = profile(path)
    trace = drawn(run)
    assert sum(trace.counts[one] for one in OPS) == RECORDS[name]
    assert trace.counts["api"] == len(run.capture.table("cuda_api"))
    assert trace.counts["step"] == len(run.devices.steps)
    ops, calls = run.states.device.ops, run.states.device.calls
    joined = ops.call >= 0
    joined[joined] = ops.start_ns[joined] >= calls.start_ns[ops.call[joined]]
    arrows = [(a, b) for a, b in trace.arrows if b.category in OPS]
    assert len(arrows) == int(joined.sum())
    walls = Counter({row.step: 0 for row in run.devices.rows()})
    for row in run.devices.rows():
        walls[row.step] += row.wall_ns
    told: Counter[int] = Counter()
    for one in trace.of("critical path"):
        assert one.inside is not None
        told[one.inside.args["step"]] += one.length
    assert told == walls


def test_kernels_that_overlap_on_one_stream_are_in_rows_of_their_own() -> None:
    run = profile(FOLDER / "sglang-graph-decode-b300.json.gz")
    trace = drawn(run)
    kernels = [one for one in trace.slices if one.category in OPS]
    assert {one.depth for one in kernels} == {0}
    rows: dict[str, set[int]] = {}
    for one in kernels:
        rows.setdefault(trace.place(one.track), set()).add(one.track.uuid)
    overlap = max(len(uuids) for uuids in rows.values())
    ops = run.states.device.ops
    sums = [int((ops.end_ns - ops.start_ns)[ops.stream == s].sum()) for s in np.unique(ops.stream)]
    busy = [
        busy_union_ns(ops.start_ns[ops.stream == s], ops.end_ns[ops.stream == s])
        for s in np.unique(ops.stream)
    ]
    assert (overlap > 1) == (sums != busy)
    assert overlap > 1


def test_ranks_are_processes_of_their_own() -> None:
    run = profile(*sorted((FOLDER / "dlrm-8rank").iterdir()))
    trace = drawn(run)
    tops = {trace.place(one.track).partition(" / ")[0] for one in trace.of("kernel")}
    assert len(tops) == 8
    assert all(top.startswith("rank ") for top in tops)


@pytest.mark.parametrize(
    "name", ["vllm-eager-prefill-b200", "nsys-2proc-h100", "hf-qwen-0.5b-h100"]
)
def test_a_step_is_drawn_with_what_is_around_it(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}.*")
    run = profile(path)
    (at,) = run.devices.slowest(1)
    outline = run.devices.parts(at)[0]
    bounds = render.around([(outline.start_ns, outline.end_ns)])
    trace = drawn(run, render.Choice(bounds, (), (at,)))
    length = sum(one.length for one in trace.of("critical path"))
    assert length == outline.wall_ns
    ops = run.states.device.ops
    ((start, end),) = bounds
    inside = (ops.start_ns <= end) & (ops.end_ns >= start)
    assert sum(trace.counts[one] for one in OPS) == int(inside.sum())


@pytest.mark.parametrize("name", RECORDS)
def test_flame_graphs_weigh_the_steps_wall_times(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}.*")
    run = profile(path)
    chosen = list(range(len(run.devices.steps)))
    graph = flame.of("steps", PathFinder(run).profile(chosen), [str(i) for i in chosen])
    assert graph.total_ns == sum(row.wall_ns for row in run.devices.rows())
