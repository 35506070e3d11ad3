# SPDX-License-Identifier: Apache-2.0
"""HolisticTraceAnalysis's critical paths beside ours: ``python -m tests.bench.hta_agreement``.

``GPUCORRELATE_HTA_VENV`` names an environment with it (0.5.0 needs ``pandas<3``). Both read the
recorded traces and find the path of every step; the table of docs/hta.md comes out, and where
anything is not as it was recorded. With names of traces, only those, each with how long the one
path was of one kind while the other was of another. ``--record`` writes the figures anew.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.frame import read_frames
from tests.bench.device import ROOT, measured
from tests.traces import hta
from tests.traces.test_profiles import trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpucorrelate.correlator.report.device_values import DeviceStepReport

#: What of HTA's path a stretch is; those after the first four have no weight with it.
KINDS = ("cpu", "gpu", "gap", "launch", "between", "blocking", "sync")
COUNTED = KINDS[:4]
_ALIKE = {
    "cpu": {Category.HOST},
    "gpu": {Category.GPU, Category.GPU_EARLIER},
    "gap": {Category.QUEUE_GAP},
    "launch": {Category.HOST, Category.LAUNCH_GAP},
}
#: Categories as they were called in 2021.
_RENAMED = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}

_HTA = """
import json, logging, sys, warnings
from collections import Counter
from functools import partialmethod
from importlib.metadata import version
import pandas
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis

SORT = pandas.DataFrame.sort_values
KINDS = {"KERNEL_KERNEL_DELAY": "gap", "KERNEL_LAUNCH_DELAY": "launch", "DEPENDENCY": "between",
         "SYNC_DEPENDENCY": "sync"}
path, annotation, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
trace = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
base_ns = trace.t.meta_data[0].get("baseTimeNanoseconds", 0)

def kind(graph, edge):
    if edge.type.name != "OPERATOR_KERNEL":
        return KINDS[edge.type.name]
    if graph.trace_df.stream.loc[graph.get_event_attribution_for_edge(edge)] >= 0:
        return "gpu"
    end = graph.node_list[edge.end]
    return "blocking" if end.is_blocking and not end.is_start and not edge.weight else "cpu"

def moment(graph, node):
    us = float(graph.node_list[node].ts) + float(trace.t.min_ts)
    return base_ns + 1000 * int(us) + round(1000 * (us - int(us)))

def edges_of(graph):
    return Counter(graph.edges[u, v]["object"].type.name for u, v in graph.edges)

def told(step):
    try:
        graph, _ = trace.critical_path_analysis(0, annotation, step)
    except Exception as exc:
        return {"failed": type(exc).__name__}
    pandas.DataFrame.sort_values = partialmethod(SORT, kind="stable")
    stable = edges_of(trace.critical_path_analysis(0, annotation, step)[0])
    pandas.DataFrame.sort_values = SORT
    nodes = graph.critical_path_nodes
    edges = [graph.edges[u, v]["object"] for u, v in zip(nodes, nodes[1:])]
    events = {node.ev_idx for node in graph.node_list}
    return {
        "failed": "",
        "edges": edges_of(graph),
        "stable": stable,
        "path_nodes": len(nodes),
        "gpu_records": int((graph.trace_df.stream.loc[list(events)] >= 0).sum()),
        "path": [(moment(graph, e.begin), moment(graph, e.end), kind(graph, e),
                  float(e.weight)) for e in edges],
    }

print(json.dumps({"version": version("HolisticTraceAnalysis"),
                  "steps": [told(step) for step in range(steps)]}))
"""


def renamed(path: Path, out: Path) -> Path:
    """A copy of a trace of 2021 with the names of today: what steps are and categories."""
    with gzip.open(path, "rt", encoding="utf-8") as text:
        document = json.load(text)
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in _RENAMED:
            is_step = event["name"].startswith("ProfilerStep")
            event["cat"] = "user_annotation" if is_step else _RENAMED[event["cat"]]
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=1) as text:
        json.dump(document, text)
    return out


def theirs(case: hta.Case, path: Path, interpreter: Path) -> list[dict[str, Any]]:
    """HTA's paths of a trace's steps, and of the ranges of the same name after them.

    Raises:
        CalledProcessError: it failed altogether.
        SystemExit: it is another version than the recorded one.
    """
    ranges = str(case.steps + case.inner)
    told = measured([str(interpreter), "-c", _HTA, str(path), case.annotation, ranges]).told
    if told["version"] != hta.VERSION:
        raise SystemExit(f"{interpreter} has HTA {told['version']}, not {hta.VERSION}")
    steps: list[dict[str, Any]] = told["steps"]
    return steps


def ours(case: hta.Case, path: Path) -> Run:
    """The trace as we see it."""
    matcher = StepMatcher(case.pattern)
    data = b"".join(frames_of([read_trace(path, matcher)], matcher))
    return Run.of(Capture.from_batches(read_frames(io.BytesIO(data))))


def beside(case: hta.Case, k: int, them: dict[str, Any], run: Run) -> hta.Step:
    """One step as both see it."""
    us = run.devices.report(k)
    path = them.get("path", ())
    sums: Counter[Category] = Counter()
    for segment in us.segments:
        sums[segment.category] += segment.length_ns
    if unknown := sums.keys() - set(hta.CATEGORIES):
        raise ValueError(f"categories without a column: {', '.join(unknown)}")
    by_kind = overlaps(path, us)
    launched, followed, crossed = hta.enablers(run, k)
    return hta.Step(
        trace=case.trace,
        step=k,
        failed=them["failed"],
        hta=_path(them) if path else None,
        before_ns=path[0][0] - us.start_ns if path else 0,
        after_ns=us.end_ns - path[-1][1] if path else 0,
        alike_ns=sum(by_kind[kind, category] for kind in COUNTED for category in _ALIKE[kind]),
        gpu_records=us.device.kernels + us.device.copies + us.device.fills,
        launched=launched,
        followed=followed,
        crossed=crossed,
        wall_ns=us.end_ns - us.start_ns,
        by_category=tuple((category, sums[category]) for category in hta.CATEGORIES),
    )


def _path(them: dict[str, Any]) -> hta.HtaPath:
    lengths: Counter[str] = Counter()
    for start_ns, end_ns, kind, weight in them["path"]:
        lengths[kind] += weight if kind in COUNTED else (end_ns - start_ns) / 1000
    edges, stable = Counter(them["edges"]), Counter(them["stable"])
    return hta.HtaPath(
        **{kind: round(lengths[kind]) for kind in KINDS},
        operator_edges=edges["OPERATOR_KERNEL"],
        dependency_edges=edges["DEPENDENCY"],
        launch_edges=edges["KERNEL_LAUNCH_DELAY"],
        gap_edges=edges["KERNEL_KERNEL_DELAY"],
        sync_edges=edges["SYNC_DEPENDENCY"],
        gpu_records=them["gpu_records"],
        stable_launch_edges=stable["KERNEL_LAUNCH_DELAY"],
        stable_gap_edges=stable["KERNEL_KERNEL_DELAY"],
    )


def overlaps(path: Sequence[tuple[Any, ...]], us: DeviceStepReport) -> Counter[tuple[str, str]]:
    """For how long HTA's path was of each kind while ours was of each category."""
    found: Counter[tuple[str, str]] = Counter()
    segments, at = us.segments, 0
    for start_ns, end_ns, kind, _ in sorted(path):
        while at < len(segments) and segments[at].end_ns <= start_ns:
            at += 1
        k = at
        while k < len(segments) and segments[k].start_ns < end_ns:
            one = segments[k]
            shared = min(end_ns, one.end_ns) - max(start_ns, one.start_ns)
            found[kind, one.category] += max(shared, 0)
            k += 1
    return found


def compared(case: hta.Case, interpreter: Path, *, detail: bool) -> Iterator[hta.Step]:
    """All steps of a trace as both see them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = trace(case.trace)
        if case.renamed:
            path = renamed(path, Path(folder) / path.name)
        run = ours(case, path)
        if len(run.devices.steps) != case.steps:
            raise ValueError(f"{case.trace}: {len(run.devices.steps)} steps, not {case.steps}")
        for k, them in enumerate(theirs(case, path, interpreter)):
            if detail and not them["failed"]:
                _print_theirs(case, k, them)
            if k >= case.steps:
                continue
            yield beside(case, k, them, run)
            if detail and not them["failed"]:
                _print_overlaps(overlaps(them["path"], run.devices.report(k)))


def _print_theirs(case: hta.Case, k: int, them: dict[str, Any]) -> None:
    lengths: Counter[str] = Counter()
    for *_, kind, weight in them["path"]:
        lengths[kind] += weight
    counted = ", ".join(f"{kind} {lengths[kind]:.3f} us" for kind in COUNTED)
    edges = ", ".join(f"{name} {n}" for name, n in sorted(them["edges"].items()))
    print(f"{case.name}, {k + 1}: HTA: {counted}; {them['path_nodes']} nodes; edges: {edges}")


def _print_overlaps(found: Counter[tuple[str, str]]) -> None:
    print("  its path, ours at that moment, ms:")
    for (kind, category), length in found.most_common():
        if length:
            print(f"    {kind:9} {category:12} {length / 1e6:10.3f}")


def _differences(found: Sequence[hta.Step]) -> Iterator[str]:
    known = {(step.trace, step.step): step for step in hta.load()}
    for step in found:
        if (before := known.get((step.trace, step.step))) != step:
            changed = [
                field.name
                for field in fields(step)
                if getattr(before, field.name, None) != getattr(step, field.name)
            ]
            yield f"{step.trace} step {step.step}: {', '.join(changed)}"


def main() -> None:
    """Compare, and say what is not as recorded."""
    venv = os.environ.get("GPUCORRELATE_HTA_VENV") or ROOT / ".venv-hta"
    interpreter = Path(venv) / "bin" / "python"
    if not interpreter.is_file():
        print(f"not compared with HolisticTraceAnalysis: no {interpreter}")
        return
    record, names = "--record" in sys.argv, [a for a in sys.argv[1:] if a != "--record"]
    cases = [case for case in hta.CASES if not names or case.trace in names]
    found = [s for case in cases for s in compared(case, interpreter, detail=bool(names))]
    print(hta.table(found))
    if record:
        with hta.RECORDED.open("w", encoding="utf-8") as out:
            hta.save(found, out)
        return
    for line in _differences(found):
        print("not as recorded:", line)


if __name__ == "__main__":
    main()
