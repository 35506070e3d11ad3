# SPDX-License-Identifier: Apache-2.0
"""That HTA's paths differ from ours for the reasons that docs/hta.md gives, from the traces.

The numbers in the tests' names are those of its paragraphs.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.correlator.device import CallKind
from gpucorrelate.correlator.device_path import QUEUE_GAP_NS
from gpucorrelate.correlator.report.values import Category
from tests.traces.hta_rule import Ours, Stamps, Theirs, Why
from tests.traces.hta_seen import (
    ADD,
    ALEXNET,
    BY_STEP,
    NS,
    path_of,
    row,
    rule,
    seen,
    theirs_ns,
    within,
)
from tests.traces.test_profiles import trace

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.traces


def test_1_htas_path_ends_before_the_last_gpu_work() -> None:
    name = "dlrm-8rank/worker1_step_12"
    run, (_, end_ns) = seen(name), theirs_ns(name)
    device = run.states.device
    own = np.flatnonzero(run.devices.steps.of == 0)
    made = np.flatnonzero(run.devices.steps.call_of == 0)
    assert BY_STEP[name, 0].after_ns > 0.4 * BY_STEP[name, 0].wall_ns
    # Work that it has in its graph, on the host and on the device.
    assert (device.ops.start_ns[own] > end_ns).sum() > 150
    assert (device.calls.start_ns[made] > end_ns).sum() > 300


def test_1_htas_path_ends_with_gpu_work_that_nobody_waited_for() -> None:
    """After it the edges, to the synchronisation and on, have no weight."""
    run, (_, end_ns) = seen(ADD), theirs_ns(ADD)
    device = run.states.device
    (call,) = np.flatnonzero(device.calls.table["correlation"] == 5894)
    assert end_ns == device.ops.end_ns[row(run, 5889)]
    assert device.calls.start_ns[call] - end_ns == 235_000


def test_2_time_between_operators_has_no_weight() -> None:
    path = path_of("hf-bert-small-h100")
    assert between_operators_us("hf-bert-small-h100") == path.between == 2200
    assert path.counted < BY_STEP["hf-bert-small-h100", 0].wall_ns / 2000


def between_operators_us(name: str) -> int:
    """From the text: what lies between outermost operators and calls up to the last launch."""
    events = json.loads(gzip.decompress(trace(name).read_bytes()))["traceEvents"]
    (step,) = [e for e in events if e.get("cat") == "user_annotation"]
    found = sorted(
        (math.ceil(e["ts"]), -math.floor(e["ts"] + e["dur"]), "Launch" in e["name"])
        for e in events
        if e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver") and e["tid"] == step["tid"]
    )
    last = max(start for start, _, launches in found if launches)
    outermost: list[tuple[int, int]] = []
    for start, negative, _ in found:
        lasts = step["ts"] <= start <= last and -negative > start
        if lasts and (not outermost or start >= outermost[-1][1]):
            outermost.append((start, -negative))
    return sum(b[0] - a[1] for a, b in itertools.pairwise(outermost))


def test_3_no_edge_leads_from_thread_to_thread() -> None:
    """HTA's path begins with the thread of the backward pass, which the forward pass began."""
    name = "hta-ddp-dense-v100"
    run, (start_ns, _) = seen(name), theirs_ns(name)
    calls = run.states.device.calls
    made = np.flatnonzero(run.devices.steps.call_of == 0)
    first = {
        t: int(calls.start_ns[made[calls.thread[made] == t]].min()) for t in calls.thread[made]
    }
    main = int(run.devices.steps.thread[0])
    (backward,) = first.keys() - {main}
    assert first[backward] > start_ns > first[main] + 70_000_000
    assert (calls.ops[made[calls.start_ns[made] < start_ns]] > 0).sum() > 1000


def test_4_without_synchronisation_records_nothing_leads_from_gpu_to_host() -> None:
    name = "hf-qwen-0.5b-h100"
    run = seen(name)
    device = run.states.device
    assert len(run.states.capture.table("gpu_sync")) == 0
    assert path_of(name).sync_edges == 0
    (call,) = np.flatnonzero(
        (device.calls.kind == CallKind.SYNC_DEVICE)
        & (device.calls.end_ns - device.calls.start_ns > 10_000_000)
    ).tolist()
    ours = within(name, 0, int(device.calls.start_ns[call]), int(device.calls.end_ns[call]))
    assert ours[Category.GPU_EARLIER] > 0.94 * ours.total()
    assert ours[Category.HOST] == 0
    # Its blocking calls, this one nearly all of them, have no weight.
    assert path_of(name).blocking * 1000 > 0.99 * ours.total()


@pytest.mark.parametrize(
    ("name", "records", "ids"),
    [("vllm-graph-decode-amd", 434, 14), ("sglang-graph-decode-b300", 694, 19)],
)
def test_5_of_a_graph_htas_path_has_one_record(name: str, records: int, ids: int) -> None:
    run = seen(name)
    own = np.flatnonzero(run.devices.steps.of == 0)
    assert len(own) == BY_STEP[name, 0].gpu_records == records
    assert len(set(run.states.device.ops.table["correlation"][own].tolist())) == ids
    assert path_of(name).gpu_records == ids
    # What it takes for a gap is the graph's work.
    start_ns, end_ns = theirs_ns(name)
    ours = within(name, 0, start_ns, end_ns)
    assert path_of(name).gap * 1000 > 0.97 * ours[Category.GPU]
    assert path_of(name).gpu * 1000 < 0.04 * ours[Category.GPU]


def test_5_launches_by_functions_that_hta_does_not_know_are_gaps() -> None:
    found = rule("vllm-eager-prefill-b200").edges(0)
    assert found[Theirs.GAP, Ours.LAUNCHED, Why.UNKNOWN] == 184
    assert not any(why is Why.UNKNOWN and theirs is Theirs.LAUNCH for theirs, _, why in found)


@pytest.mark.parametrize("step", range(5))
def test_6_gaps_of_any_length_are_overhead_of_the_gpu(step: int) -> None:
    name = "hta-event-query-a100"
    run, path = seen(name), path_of(name, step)
    assert path.gap > 0.85 * path.counted
    start_ns, end_ns = theirs_ns(name, step)
    ours = within(name, step, start_ns, end_ns)
    assert ours[Category.UNEXPLAINED] > 0.75 * ours.total()
    assert ours[Category.QUEUE_GAP] < 0.02 * ours.total()
    gaps = [s for s in run.devices.report(step).segments if s.category is Category.QUEUE_GAP]
    assert max(gap.length_ns for gap in gaps) <= QUEUE_GAP_NS


@pytest.mark.parametrize("step", range(5))
def test_7_kernels_shrink_to_whole_microseconds(step: int) -> None:
    """Starts are rounded up and ends down: 1% of this trace's GPU time becomes gaps."""
    run, stamps = seen(NS), Stamps.of(trace(NS))
    ops = run.states.device.ops
    segments = run.devices.report(step).segments
    first_ns = min(s.start_ns for s in segments if s.category is Category.GPU)
    own = np.flatnonzero((run.devices.steps.of == step) & (ops.start_ns >= first_ns))
    spans = list(zip(ops.start_ns[own].tolist(), ops.end_ns[own].tolist(), strict=True))
    inside = sum(stamps.end(a, b) - stamps.start(a) for a, b in spans)
    assert inside == path_of(NS, step).gpu
    assert 0.008 < 1 - inside * 1000 / sum(b - a for a, b in spans) < 0.012


def test_7_records_below_a_microsecond_have_a_negative_length() -> None:
    """18 of this trace; HTA warns of as many edges, and sums them up as they are."""
    name = "hf-qwen-0.5b-h100"
    run, stamps = seen(name), Stamps.of(trace(name))
    ops = run.states.device.ops
    own = np.flatnonzero((run.devices.steps.of == 0) & (ops.call >= 0))
    spans = zip(ops.start_ns[own].tolist(), ops.end_ns[own].tolist(), strict=True)
    lengths = Counter(stamps.end(a, b) - stamps.start(a) for a, b in spans)
    assert min(lengths) == -1
    assert lengths[-1] == 18


@pytest.mark.parametrize("name", [NS, ADD, "hta-ddp-dense-v100", "dlrm-8rank/worker0_step_12"])
def test_8_a_launch_under_way_when_its_stream_ran_dry_is_a_launch(name: str) -> None:
    """Such records begin as long after their call's return as any other that was launched.

    And several times as long after what was before them as those that had to wait for it.
    """
    run, under_way = seen(name), rule(name).under_way(0)
    ops, calls, path = run.states.device.ops, run.states.device.calls, run.states.path
    own = np.flatnonzero((run.devices.steps.of == 0) & (ops.call >= 0))
    previous = own - 1
    same = (previous >= 0) & (ops.stream[previous] == ops.stream[own])
    gap = dict(
        zip(
            own[same].tolist(),
            (ops.start_ns[own] - ops.end_ns[previous])[same].tolist(),
            strict=True,
        )
    )
    followed = [gap[i] for i in gap if path.pred[i] == i - 1]
    launched = [i for i in own.tolist() if path.pred[i] < 0 and i not in under_way]

    def after_return(rows: Iterable[int]) -> float:
        return float(np.median([ops.start_ns[i] - calls.end_ns[ops.call[i]] for i in rows]))

    assert len(under_way) >= 3
    assert np.median([gap[i] for i in under_way]) >= 4 * np.median(followed)
    assert abs(after_return(under_way) - after_return(launched)) <= 1500


def test_9_an_event_without_its_record_is_found_by_time() -> None:
    """The same program twice: once the record of the event is there, once it is not.

    Both have the dependency with us. HTA has it where it is on record; else a launch of 301 us.
    """
    for name in (ADD, ALEXNET):
        run = seen(name)
        assert run.states.path.pred[row(run, 5629)] == row(run, 5606)
    assert (
        run.states.device.ops.end_ns[row(run, 5606)]
        < run.states.device.ops.start_ns[row(run, 5629)]
    )
    run = seen(ADD)
    ops, calls = run.states.device.ops, run.states.device.calls
    last = row(run, 5629)
    assert ops.start_ns[last] - calls.start_ns[ops.call[last]] == 301_000
    assert ops.start_ns[last] - ops.end_ns[row(run, 5606)] == 2_000


def test_10_a_launch_counts_from_the_start_of_its_call() -> None:
    name = "hta-event-sync-a100"
    run = seen(name)
    ops, calls, path = run.states.device.ops, run.states.device.calls, run.states.path
    spin = row(run, 1526)
    copy = row(run, 1511)
    lengths = [int(ops.start_ns[i] - calls.start_ns[ops.call[i]]) for i in (spin, copy)]
    assert sum(lengths) == 1000 * path_of(name).launch == 28_000
    gaps = [int(ops.start_ns[i] - path.land_ns[i]) for i in (spin, copy)]
    assert sum(gaps) == BY_STEP[name, 0].ns(Category.LAUNCH_GAP) == 1_000


def test_11_a_poll_that_was_answered_at_once_waited_for_nothing() -> None:
    name = "hta-event-sync-multi-stream-a100"
    run = seen(name)
    device = run.states.device
    polls = np.flatnonzero(device.calls.kind == CallKind.POLL)
    ended = device.ops.end_ns[row(run, 27)]
    assert not set(polls.tolist()) & set(run.states.path.sync_call.tolist())
    assert (device.calls.start_ns[polls[1:]] > ended).all()
    assert path_of(name).sync_edges == 6


@pytest.mark.parametrize("step", range(1, 5))
def test_12_what_ran_before_a_steps_first_record_is_outside_htas_graph(step: int) -> None:
    start_ns, _ = theirs_ns(NS, step)
    report = seen(NS).devices.report(step)
    before = within(NS, step, report.start_ns, start_ns - 1000)
    assert before.keys() - {c for c, ns in before.items() if not ns} <= {
        Category.GPU_EARLIER,
        Category.QUEUE_GAP,
    }
    assert before.total() > 0.4 * BY_STEP[NS, step].wall_ns
