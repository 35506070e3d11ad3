# SPDX-License-Identifier: Apache-2.0
"""Flame graphs of critical-path time: weights that sum exactly, in forms that tools read."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.report import flame
from gpucorrelate.correlator.report.paths import PathFinder
from tests.truth.synthetic.check import correlate, simulate
from tests.truth.synthetic.options import DeviceOptions
from tests.unit.test_perfetto import OPTIONS

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.build import Run

LINE = re.compile(r"[^;\n]+(;[^;\n]+)* [1-9][0-9]*")


@pytest.fixture(scope="module")
def run() -> Run:
    return correlate(simulate(replace(OPTIONS, device=DeviceOptions()))[1])


def of_requests(run: Run, *, one_by_one: bool = False) -> flame.Flame:
    names = [r.external_id for r in run.requests_]
    found = PathFinder(run).requests(run.requests_)
    return flame.of("all", found, names, one_by_one=one_by_one)


def test_weights_of_requests_sum_to_their_wall_times(run: Run) -> None:
    graph = of_requests(run, one_by_one=True)
    walls = {r.external_id: r.end_ns - r.arrival_ns for r in run.requests_}
    assert graph.total_ns == sum(walls.values())
    assert {path.name: sum(path.weights_ns) for path in graph.paths} == walls


def test_stacks_are_phase_actor_span_category_and_cause(run: Run) -> None:
    expected: Counter[tuple[str, ...]] = Counter()
    for report in run.all_requests():
        for one in report.segments:
            span = (one.span,) if one.span else ()
            expected[(str(one.phase), one.actor.shown, *span, str(one.category))] += one.length_ns
    found: Counter[tuple[str, ...]] = Counter()
    for stack, weight in of_requests(run).weights_ns:
        # The cause comes last, where there is one.
        at = next(k for k in (2, 3) if k < len(stack) and stack[: k + 1] in expected)
        found[stack[: at + 1]] += weight
        assert len(stack) - at in (1, 2)
    assert found == expected


def test_steps_sum_to_their_wall_times(run: Run) -> None:
    s = run.steps_
    chosen = list(range(len(s)))
    graph = flame.of("steps", PathFinder(run).steps(chosen), [str(i) for i in chosen])
    assert graph.total_ns == sum(s.end_ns(i) - int(s.sched_ns[i]) for i in chosen)


def test_folded_lines_are_what_flamegraph_takes(run: Run) -> None:
    out = io.StringIO()
    graph = of_requests(run)
    flame.write_folded(graph, out)
    lines = out.getvalue().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == graph.total_ns
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)


def test_names_cannot_break_a_line_or_a_frame() -> None:
    out = io.StringIO()
    flame.write_folded(flame.Flame("x", ((("a;b\nc", "d 1\x1b[0m"), 5),)), out)
    assert out.getvalue() == "a,b\\x0ac;d 1\\x1b[0m 5\n"


def test_speedscope_has_what_its_schema_demands(run: Run) -> None:
    out = io.StringIO()
    graph = of_requests(run, one_by_one=True)
    flame.write_speedscope(graph, out)
    document = json.loads(out.getvalue())
    # https://www.speedscope.app/file-format-schema.json: File, Frame and SampledProfile.
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(document) == {
        "$schema", "activeProfileIndex", "exporter", "name", "profiles", "shared",
    }  # fmt: skip
    frames = document["shared"]["frames"]
    assert all(set(frame) == {"name"} and isinstance(frame["name"], str) for frame in frames)
    assert len(document["profiles"]) == 1 + len(run.requests_)
    for profile in document["profiles"]:
        assert set(profile) == {
            "type", "name", "unit", "startValue", "endValue", "samples", "weights",
        }  # fmt: skip
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        assert all(0 <= at < len(frames) for sample in profile["samples"] for at in sample)
    assert document["profiles"][0]["endValue"] == graph.total_ns
    walls = [r.end_ns - r.arrival_ns for r in run.requests_]
    assert [profile["endValue"] for profile in document["profiles"][1:]] == walls
