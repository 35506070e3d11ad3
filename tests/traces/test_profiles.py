# SPDX-License-Identifier: Apache-2.0
"""Every recorded trace as a report: exact sums, every GPU record accounted for, known truths."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report import device_text
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.frame import read_frames
from tests.traces.test_import import FOLDER, GPU
from tests.unit.profile_json import run_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.traces

#: Kernels and copies, as the traces' manifest counts them.
RECORDS = {
    "hta-simple-add-a100": 98,
    "hta-alexnet-a100": 98,
    "hta-event-sync-a100": 5,
    "hta-event-sync-multi-stream-a100": 6,
    "hta-ns-resolution-v100": 6095,
    "hta-ddp-dense-v100": 22290,
    "hta-event-query-a100": 7747,
    "hta-triton-driver-launch-a100": 1,
    "hta-minimal-mi250": 16,
    "kineto-2021-resnet50-v100": 9096,
    "vllm-eager-prefill-b200": 929,
    "vllm-graph-decode-amd": 434,
    "sglang-graph-decode-b300": 718,
    "hf-qwen-0.5b-h100": 1707,
    "hf-bert-small-h100": 61,
    "nsys-2proc-h100": 4368,
    "nsys-2proc-before": 5299,
}
_KNOWN_REASONS = {"launched before the recording", "launched outside every step"}


def profile(*paths: Path) -> Run:
    """The traces as one correlated recording."""
    matcher = StepMatcher()
    traces = [read_trace(path, matcher) for path in paths]
    data = b"".join(frames_of(traces, matcher))
    return Run.of(Capture.from_batches(read_frames(io.BytesIO(data))))


def document(run: Run) -> dict[str, Any]:
    """What ``report --format json`` prints."""
    return run_document(run.devices.whole(), run.devices.reports())


def trace(name: str) -> Path:
    """The file of a trace."""
    return next(iter(sorted(FOLDER.glob(f"{name}.*"))), FOLDER / name)


def union_ns(intervals: Sequence[tuple[int, int]]) -> int:
    """Overlap counted once, by a sweep over starts and ends."""
    edges = sorted(
        [(s, 1) for s, e in intervals if e > s] + [(e, -1) for s, e in intervals if e > s]
    )
    busy = depth = since = 0
    for t, change in edges:
        if depth == 0:
            since = t
        depth += change
        if depth == 0:
            busy += t - since
    return busy


def check_step(step: dict[str, Any]) -> None:
    """One step's sums: the path and the devices' parts are each the wall time exactly."""
    segments = step["segments"]
    assert segments[0]["start_ns"] == step["start_ns"]
    assert segments[-1]["end_ns"] == step["end_ns"]
    assert all(a["end_ns"] == b["start_ns"] for a, b in itertools.pairwise(segments))
    assert all(one["end_ns"] > one["start_ns"] for one in segments)
    assert sum(step["by_category"].values()) == step["wall_ns"]
    assert sum(step["parts"].values()) == step["wall_ns"]
    assert min(step["parts"].values()) >= 0
    assert 0 <= step["gpu_busy_ns"] <= min(step["gpu_sum_ns"], step["wall_ns"])
    assert all(one["over_wait_ns"] <= one["length_ns"] for one in step["syncs"])


@pytest.mark.parametrize("name", RECORDS)
def test_sums_are_exact_and_every_record_is_accounted_for(name: str) -> None:
    run = profile(trace(name))
    found = document(run)
    ledger = found["ledger"]
    assert ledger["gpu_records"] == RECORDS[name]
    unassigned = ledger["unassigned"]
    assert ledger["assigned"] + sum(unassigned.values()) + ledger["invalid"] == RECORDS[name]
    assert set(unassigned) <= _KNOWN_REASONS
    assert sum(ledger["assigned_by"].values()) == ledger["assigned"]
    assert sum(step["gpu_records"] for step in found["steps"]) == ledger["assigned"]
    assert found["steps"]
    for step in found["steps"]:
        check_step(step)
    out = io.StringIO()
    device_text.render_run(run.devices.whole(), out)
    device_text.render_step(run.devices.report(0), out)
    assert max(map(len, out.getvalue().splitlines())) <= 100


@pytest.mark.parametrize(
    "name", ["vllm-eager-prefill-b200", "sglang-graph-decode-b300", "hf-qwen-0.5b-h100"]
)
def test_busy_and_sum_are_those_of_the_text(name: str) -> None:
    with gzip.open(trace(name), "rt", encoding="utf-8") as text:
        events = json.load(text, parse_float=Decimal)["traceEvents"]
    intervals = [
        (int(e["ts"] * 1000), int(e["ts"] * 1000) + int(e["dur"] * 1000))
        for e in events
        if e.get("ph") == "X" and str(e.get("cat", "")).lower() in GPU
    ]
    found = document(profile(trace(name)))
    assert found["gpu_sum_ns"] == sum(e - s for s, e in intervals)
    assert found["gpu_busy_ns"] == union_ns(intervals)


def test_a_graph_decode_step_is_gpu() -> None:
    found = document(profile(trace("vllm-graph-decode-amd")))
    assert round(found["gpu_busy_ns"] / 1e6, 2) == 10.72
    assert round(found["gpu_span_ns"] / 1e6, 2) == 10.74
    (step,) = found["steps"]
    path = step["by_category"]
    assert max(path, key=path.__getitem__) == "gpu"
    assert path["gpu"] == step["gpu_busy_ns"]
    assert path["host"] < step["wall_ns"] // 20
    assert step["verdict"]["text"].startswith("GPU-bound: ")
    assert step["graph_launches"] == 1
    assert step["graph_records"] == 421


def test_an_eager_prefill_is_host_bound() -> None:
    (step,) = document(profile(trace("vllm-eager-prefill-b200")))["steps"]
    assert int(100 * step["gpu_busy_ns"] / step["wall_ns"]) == 13
    assert step["by_category"]["host"] > step["wall_ns"] * 0.98
    assert step["verdict"]["text"].startswith("host-bound: ")
    assert step["graph_launches"] == 0


def test_a_gpu_bound_step_has_the_path_that_another_tool_finds() -> None:
    """HolisticTraceAnalysis 0.5.0: 97.9 ms of path, 96 to 97% of it computation.

    One of the few traces on which it can be right: eager, one launch a kernel. Its window begins
    with the first GPU work, so lengths are compared and not shares.
    """
    first = document(profile(trace("hta-ns-resolution-v100")))["steps"][0]
    assert 0.96 * 97.9e6 <= first["by_category"]["gpu"] <= 0.97 * 97.9e6


def test_overlapping_kernels_leave_no_negative_idle() -> None:
    found = document(profile(trace("sglang-graph-decode-b300")))
    (step,) = found["steps"]
    assert found["gpu_sum_ns"] > found["gpu_busy_ns"], "kernels overlap in it"
    assert min(step["parts"].values()) >= 0
    assert found["ledger"]["unassigned"] == {"launched outside every step": 24}


def test_a_kernel_launched_by_the_driver_is_assigned() -> None:
    (step,) = document(profile(trace("hta-triton-driver-launch-a100")))["steps"]
    assert step["gpu_records"] == 1
    assert step["launches"] == 1


def test_processes_of_an_export_do_not_mix() -> None:
    run = profile(trace("nsys-2proc-h100"))
    ops, calls = run.states.device.ops, run.states.device.calls
    joined = ops.call >= 0
    assert (calls.process[ops.call[joined]] == ops.process[joined]).all()
    steps = document(run)["steps"]
    assert [step["gpu_records"] for step in steps] == [2184, 2184]
    # Its synchronisations say device 0 of both; each waits for its own.
    assert [next(iter(step["by_category"])) for step in steps] == ["gpu", "gpu"]


def test_no_verdict_where_the_unknown_could_overturn_it() -> None:
    steps = document(profile(trace("hta-event-query-a100")))["steps"]
    withheld = [s for s in steps if s["verdict"]["text"].startswith("no verdict: ")]
    assert len(withheld) >= 4
    assert all(step["verdict"]["doubts"] for step in withheld)


def test_ranks_of_a_run_are_kept_apart() -> None:
    run = profile(*sorted((FOLDER / "dlrm-8rank").glob("*.json*")))
    found = document(run)
    assert [step["process"] for step in found["steps"]] == [f"rank {i}" for i in range(8)]
    for step in found["steps"]:
        check_step(step)
    assert found["ledger"]["unassigned"] == {"launched before the recording": 128}


def test_communication_is_followed_through_events() -> None:
    """Steps of data-parallel training: collectives run on a stream of their own.

    The streams wait for events that the trace does not tell of; every long gap on a stream has
    the operation of the other stream that ended just before it.
    """
    found = document(profile(trace("hta-ddp-dense-v100")))
    assert found["ledger"]["inferred"] > 1000
    for step in found["steps"]:
        assert step["by_category"].get("unexplained", 0) < step["wall_ns"] // 1000
