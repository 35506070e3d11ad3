# SPDX-License-Identifier: Apache-2.0
"""Our paths beside those of HolisticTraceAnalysis: equal where it can be right, else explained.

Its figures are those of ``hta-0.5.0.csv``. docs/hta.md explains each difference in a paragraph;
``test_hta_differences`` shows from the traces that the explanations hold.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.correlator.report.values import Category
from tests.traces import hta
from tests.traces.hta_rule import Ours, Theirs, Why
from tests.traces.hta_seen import (
    ADD,
    ALEXNET,
    BY_STEP,
    CASES,
    NS,
    STEPS,
    path_of,
    row,
    rule,
    seen,
    theirs_ns,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.traces

DOCUMENT = (Path(__file__).parents[2] / "docs" / "hta.md").read_text(encoding="utf-8")
#: HTA's path over the steps of NS with HTA_DISABLE_NS_ROUNDING=1: GPU and gaps, in nanoseconds.
UNROUNDED = (
    (94_338_468, 1_002_579),
    (94_591_138, 1_144_949),
    (94_459_362, 1_110_461),
    (94_561_467, 1_101_806),
    (94_272_679, 1_121_298),
)
#: Of ADD the launch in relu, by correlation id.
RELU = 5543
#: It reads moments into floating point, of which the steps are that long in this trace.
FLOAT_NS = 250


def each(steps: Iterable[hta.Step]) -> list[Any]:
    """As parameters."""
    return [pytest.param(one, id=f"{one.trace}-{one.step}") for one in steps]


@pytest.mark.parametrize("step", each(STEPS))
def test_our_path_is_the_one_that_was_compared(step: hta.Step) -> None:
    run = seen(step.trace)
    assert len(run.devices.steps) == CASES[step.trace].steps
    report = run.devices.report(step.step)
    found: Counter[Category] = Counter()
    for segment in report.segments:
        found[segment.category] += segment.length_ns
    assert found.total() == report.end_ns - report.start_ns == step.wall_ns
    assert found == Counter({category: ns for category, ns in step.by_category if ns})
    records = report.device.kernels + report.device.copies + report.device.fills
    assert records == step.gpu_records
    assert hta.enablers(run, step.step) == (step.launched, step.followed, step.crossed)


@pytest.mark.parametrize("step", each(step for step in STEPS if step.hta))
def test_htas_path_and_what_it_leaves_out_are_our_step(step: hta.Step) -> None:
    """What it counts, gives no weight, and has outside its path: the same wall time."""
    assert step.hta is not None
    report = seen(step.trace).devices.report(step.step)
    inside_ns = 1000 * (step.hta.counted + step.hta.uncounted)
    assert step.before_ns + inside_ns + step.after_ns == report.end_ns - report.start_ns


@pytest.mark.parametrize("step", each(step for step in STEPS if step.hta))
def test_htas_edges_come_out_of_our_records(step: hta.Step) -> None:
    """Its rule over our joined records gives its counts: only the rules differ.

    Nor does it say launch where we say that an operation followed another of its stream.
    """
    path = path_of(step.trace, step.step)
    found = rule(step.trace).edges(step.step)
    by_edge = {edge: sum(n for key, n in found.items() if key[0] is edge) for edge in Theirs}
    # Of ALEXNET's edges from stream to stream one takes the place of one within the stream.
    recorded = int(step.trace == ALEXNET)
    assert by_edge[Theirs.LAUNCH] == path.stable_launch_edges
    assert by_edge[Theirs.GAP] - recorded == path.stable_gap_edges
    assert not any(key[:2] == (Theirs.LAUNCH, Ours.FOLLOWED) for key in found)
    if CASES[step.trace].name in {
        "hta-event-sync-a100",
        "hta-minimal-mi250",
        "hf-bert-small-h100",
    }:
        assert {why for _, _, why in found} == {Why.SAME}


def test_the_document_has_the_table_and_a_paragraph_for_each_difference() -> None:
    assert hta.table(STEPS) in DOCUMENT
    assert hta.edge_table(STEPS) in DOCUMENT
    numbered = [int(n) for n in re.findall(r"^(\d+)\. \*\*", DOCUMENT, re.MULTILINE)]
    assert numbered == list(range(1, len(numbered) + 1))
    named = {int(n) for case in hta.CASES for n in case.why.split()}
    assert named == set(numbered)


# Agreement.


@pytest.mark.parametrize("step", range(5))
def test_of_ns_resolution_gpu_time_on_the_path_is_equal_to_the_nanosecond(step: int) -> None:
    """Eager, one launch a kernel, one stream in use, GPU-bound: HTA can be right, and is."""
    gpu_ns, gap_ns = UNROUNDED[step]
    assert BY_STEP[NS, step].ns(Category.GPU) == gpu_ns
    segments = seen(NS).devices.report(step).segments
    first_ns = min(one.start_ns for one in segments if one.category is Category.GPU)
    gaps = [one for one in segments if one.category is Category.QUEUE_GAP]
    ours_ns = sum(one.length_ns for one in gaps if one.start_ns > first_ns)
    assert abs(ours_ns - gap_ns) < FLOAT_NS


def test_of_ns_resolution_96_to_97_percent_is_computation() -> None:
    path = path_of(NS)
    assert 0.96 <= path.gpu / path.counted <= 0.97
    start_ns, end_ns = theirs_ns(NS)
    ours = within(NS, 0, start_ns, end_ns)
    assert 0.96 <= ours[Category.GPU] / ours.total() <= 0.97


def test_golden_weights_of_simple_add() -> None:
    """Those that HTA's own tests expect, as far as we read the same: operators we do not."""
    run = seen(ADD)
    device, path = run.states.device, run.states.path
    ops, calls = device.ops, device.calls
    fft, gemm = row(run, 5597), row(run, 5604)
    launch, second = int(ops.call[fft]), int(ops.call[gemm])
    # The launch that it counts 27 us: 15 us in the call and 12 us after its return.
    assert ops.start_ns[fft] - calls.start_ns[launch] == 27_000
    assert calls.end_ns[launch] - calls.start_ns[launch] == 15_000
    assert ops.start_ns[fft] - path.land_ns[fft] == 12_000
    assert path.pred[fft] < 0
    # The gap that it counts 7 us: there it is, but its launch came back 4 us into it.
    assert ops.start_ns[gemm] - ops.end_ns[fft] == 7_000
    assert calls.end_ns[second] - ops.end_ns[fft] == 4_000
    assert path.pred[gemm] < 0
    # Of relu's 93 us (15 + 14 + 17 + 15 + 32) the 17 us in its launch.
    call = int(ops.call[row(run, RELU)])
    assert calls.end_ns[call] - calls.start_ns[call] == 17_000


def test_golden_counts_of_simple_add() -> None:
    """40 records, each launched by a call on record: 15 launches and 25 gaps with HTA.

    With us 17 launched, 22 followed, 1 crossed: three were under way, one waited for an event.
    """
    path = path_of(ADD)
    assert (path.launch_edges, path.gap_edges, path.sync_edges) == (15, 25, 2)
    assert path.launch_edges + path.gap_edges == BY_STEP[ADD, 0].gpu_records == 40
    assert hta.enablers(seen(ADD), 0) == (17, 22, 1)
    assert rule(ADD).edges(0) == Counter(
        {
            (Theirs.LAUNCH, Ours.LAUNCHED, Why.SAME): 14,
            (Theirs.GAP, Ours.FOLLOWED, Why.SAME): 22,
            (Theirs.GAP, Ours.LAUNCHED, Why.UNDER_WAY): 3,
            (Theirs.LAUNCH, Ours.CROSSED, Why.EVENT): 1,
        }
    )


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (ADD, {5503: (5190, 5498), 5511: (5190, 5498), 5894: (5606, 5889), 5909: (5606, 5889)}),
        (
            ALEXNET,
            {5503: (5190, 5498), 5511: (5190, 5498), 5894: (5606, 5889), 5909: (5606, 5889)},
        ),
        ("hta-event-sync-a100", {1512: (1511,), 1536: (1526,), 1549: (1526,)}),
        ("hta-event-sync-multi-stream-a100", {1424: (27, 57, 1413)}),
    ],
)
def test_what_synchronisations_waited_for(name: str, calls: dict[int, tuple[int, ...]]) -> None:
    """HTA has an edge from the last record of each stream; ours is the one that ended last."""
    run = seen(name)
    device, path = run.states.device, run.states.path
    ids = device.calls.table["correlation"][path.sync_call].tolist()
    waited = {correlation: int(op) for correlation, op in zip(ids, path.sync_op, strict=True)}
    for call, sources in calls.items():
        latest = max((row(run, source) for source in sources), key=lambda i: device.ops.end_ns[i])
        assert waited[call] == latest
