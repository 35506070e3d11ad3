# SPDX-License-Identifier: Apache-2.0
"""What HolisticTraceAnalysis says of the recorded traces, beside what we say of the same steps.

``hta-0.5.0.csv`` holds both, a line for each step, as ``python -m tests.bench.hta_agreement
--record`` wrote it. HTA's figures were made by its release 0.5.0 (pandas 2.3.3, networkx 3.6.1) as
it comes, with one option: ``include_last_profiler_step=True``, without which it leaves the last
step out.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    from gpucorrelate.correlator.report.build import Run

VERSION = "0.5.0"
RECORDED = Path(__file__).with_name(f"hta-{VERSION}.csv")
#: Our categories that occur in these traces.
CATEGORIES = (
    Category.HOST,
    Category.GPU,
    Category.GPU_EARLIER,
    Category.LAUNCH_GAP,
    Category.QUEUE_GAP,
    Category.SYNC_RETURN,
    Category.UNOBSERVED,
    Category.UNEXPLAINED,
)


@dataclass(frozen=True)
class Case:
    """A trace and how both are told which of its ranges are the steps."""

    trace: str
    annotation: str  # HTA: part of the ranges' name; empty: the whole trace
    steps: int
    why: str  # paragraphs of docs/hta.md that explain the differences
    pattern: str = ""  # ours, where the usual names do not do
    inner: int = 0  # ranges of the name within the steps: HTA has them too
    renamed: bool = False  # HTA gets a copy with the names that categories have today

    @property
    def name(self) -> str:
        """Of a rank its number alone."""
        return self.trace.partition("_")[0].replace("/worker", " ")


_PARAM = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
_MEASURE = r"\|measure\|"
CASES = (
    Case("hta-simple-add-a100", _PARAM, 1, "1 2 8 9 10 11", _MEASURE, inner=1),
    Case("hta-alexnet-a100", _PARAM, 1, "1 2 10 11", _MEASURE, inner=1),
    Case("hta-event-sync-a100", "ProfilerStep", 1, "2 10 11"),
    Case("hta-event-sync-multi-stream-a100", "", 1, "2 8 11"),
    Case("hta-ns-resolution-v100", "ProfilerStep", 5, "2 7 8 10 12"),
    Case("hta-ddp-dense-v100", "ProfilerStep", 5, "2 3 8 9"),
    Case("hta-event-query-a100", "ProfilerStep", 5, "5 6 8 9 12"),
    Case("hta-triton-driver-launch-a100", "ProfilerStep", 1, "2"),
    Case("hta-minimal-mi250", "ProfilerStep", 2, "2 3 4 13"),
    Case("kineto-2021-resnet50-v100", "ProfilerStep", 6, "1 2 3 13", renamed=True),
    Case("vllm-eager-prefill-b200", "execute_", 1, "1 2 5"),
    Case("vllm-graph-decode-amd", "execute_", 1, "5 12"),
    Case("sglang-graph-decode-b300", "execute_", 1, "2 5"),
    Case("hf-qwen-0.5b-h100", "ProfilerStep", 1, "2 4 7 12"),
    Case("hf-bert-small-h100", "ProfilerStep", 1, "1 2"),
    *(Case(f"dlrm-8rank/worker{i}_step_12", "ProfilerStep", 1, "1 2 3") for i in range(8)),
)


@dataclass(frozen=True)
class HtaPath:
    """HTA's path through one step, and the graph it is of; microseconds, as it has them.

    What it counts, by kind; what lies between its first and last moment and is not counted, by
    kind; edges of the whole graph, by kind; GPU records in it, synchronisations among them. Its
    sort leaves the order of equal moments open, and some edges depend on that: ``stable_`` is how
    many there are if they stay in order.
    """

    cpu: int
    gpu: int
    gap: int
    launch: int
    between: int
    blocking: int
    sync: int
    operator_edges: int
    dependency_edges: int
    launch_edges: int
    gap_edges: int
    sync_edges: int
    gpu_records: int
    stable_launch_edges: int
    stable_gap_edges: int

    @property
    def counted(self) -> int:
        """What it calls the length of its path."""
        return self.cpu + self.gpu + self.gap + self.launch

    @property
    def uncounted(self) -> int:
        """Within its path, with a weight of 0."""
        return self.between + self.blocking + self.sync


@dataclass(frozen=True)
class Step:
    """One step as both see it.

    Attributes:
        trace: The trace.
        step: Which of its steps, from 0.
        failed: Why HTA has no path.
        hta: Its path.
        by_category: Our path; sums to the step's length.
        before_ns: From our step's start to where its path begins.
        after_ns: From where its path ends to our step's end.
        alike_ns: How much of what it counts is of the same kind on our path at that moment.
        gpu_records: Those of the step, with us.
        launched: Those of them that with us began because they were launched.
        followed: Because what was before them on their stream had ended.
        crossed: Because something on another stream had ended.
        wall_ns: The step's length.
    """

    trace: str
    step: int
    failed: str
    hta: HtaPath | None
    by_category: tuple[tuple[Category, int], ...]
    before_ns: int
    after_ns: int
    alike_ns: int
    gpu_records: int
    launched: int
    followed: int
    crossed: int
    wall_ns: int

    def ns(self, *categories: Category) -> int:
        """Time of our path in some categories."""
        return sum(length for category, length in self.by_category if category in categories)


_HTA = tuple(field.name for field in fields(HtaPath))
_HEAD = ("trace", "step", "failed", *(f"hta_{name}" for name in _HTA))
_OURS = (
    "before_ns", "after_ns", "alike_ns",
    "gpu_records", "launched", "followed", "crossed", "wall_ns",
)  # fmt: skip


def enablers(run: Run, step: int) -> tuple[int, int, int]:
    """How many of a step's GPU records were launched, followed and crossed, as ``Step`` has it."""
    ops, pred = run.states.device.ops, run.states.path.pred
    own = np.flatnonzero(run.devices.steps.of == step)
    after = own[pred[own] >= 0]
    followed = int((ops.stream[pred[after]] == ops.stream[after]).sum())
    launched = int(((pred[own] < 0) & (ops.call[own] >= 0)).sum())
    return launched, followed, len(after) - followed


def load() -> Iterator[Step]:
    """The recorded figures."""
    with RECORDED.open(encoding="utf-8") as text:
        for row in csv.DictReader(line for line in text if not line.startswith("#")):
            yield _step(row)


def _step(row: Mapping[str, str]) -> Step:
    hta = None if row["failed"] else HtaPath(**{n: int(row[f"hta_{n}"]) for n in _HTA})
    ours = {name: int(row[name]) for name in _OURS}
    by_category = tuple((category, int(row[category])) for category in CATEGORIES)
    return Step(row["trace"], int(row["step"]), row["failed"], hta, by_category, **ours)


def save(steps: Iterable[Step], out: TextIO) -> None:
    """Write figures as ``load`` reads them."""
    out.write(f"# Written by python -m tests.bench.hta_agreement --record; HTA {VERSION}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_HEAD, *_OURS, *CATEGORIES))
    for step in steps:
        hta = [getattr(step.hta, name) if step.hta else "" for name in _HTA]
        ours = [getattr(step, name) for name in _OURS]
        by_category = [step.ns(category) for category in CATEGORIES]
        writer.writerow([step.trace, step.step, step.failed, *hta, *ours, *by_category])


def table(steps: Sequence[Step]) -> str:
    """Both, a line for each step, as docs/hta.md has it; milliseconds."""
    cases = {case.trace: case for case in CASES}
    lines = [
        "| trace, step | wall | CPU | GPU | gap | launch | weight 0 | outside | host | GPU | gap "
        "| unknown | alike | why |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for step in steps:
        case = cases[step.trace]
        name = f"{case.name}, {step.step + 1}" if case.steps > 1 else case.name
        lines.append("| " + " | ".join((name, *_cells(step), case.why)) + " |")
    return "\n".join(lines)


def edge_table(steps: Sequence[Step]) -> str:
    """Why GPU records began when they did, as both have it, a line for each trace's first step."""
    lines = [
        "| trace | launch | gap | in order of equal moments | launched | followed | crossed |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    names = {case.trace: case.name for case in CASES}
    for step in steps:
        hta = step.hta
        if hta is None or step.step:
            continue
        stable = f"{hta.stable_launch_edges:,} + {hta.stable_gap_edges:,}"
        numbers = (step.launched, step.followed, step.crossed)
        cells = [
            f"{hta.launch_edges:,}",
            f"{hta.gap_edges:,}",
            stable,
            *(f"{n:,}" for n in numbers),
        ]
        lines.append("| " + " | ".join((names[step.trace], *cells)) + " |")
    return "\n".join(lines)


def _cells(step: Step) -> Iterator[str]:
    yield _ms(step.wall_ns)
    hta = step.hta
    if hta is None:
        yield from (step.failed, *["-"] * 5)
    else:
        outside = step.before_ns + step.after_ns
        theirs = (hta.cpu, hta.gpu, hta.gap, hta.launch, hta.uncounted)
        yield from (_ms(1000 * us) for us in theirs)
        yield _ms(outside)
    yield _ms(step.ns(Category.HOST, Category.SYNC_RETURN))
    yield _ms(step.ns(Category.GPU, Category.GPU_EARLIER))
    yield _ms(step.ns(Category.QUEUE_GAP, Category.LAUNCH_GAP))
    yield _ms(step.ns(Category.UNOBSERVED, Category.UNEXPLAINED))
    yield f"{step.alike_ns / 10 / hta.counted:.0f}%" if hta else "-"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f}" if ns else "0"
