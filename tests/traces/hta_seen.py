# SPDX-License-Identifier: Apache-2.0
"""The traces that were compared with HTA, as we see them, read once for all tests."""

from __future__ import annotations

import functools
import io
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.frame import read_frames
from tests.traces import hta
from tests.traces.hta_rule import Rule, Stamps
from tests.traces.test_profiles import trace

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.values import Category

CASES = {case.trace: case for case in hta.CASES}
STEPS = list(hta.load())
BY_STEP = {(step.trace, step.step): step for step in STEPS}
NS, ADD, ALEXNET = "hta-ns-resolution-v100", "hta-simple-add-a100", "hta-alexnet-a100"


@functools.cache
def seen(name: str) -> Run:
    """A trace as we see it."""
    matcher = StepMatcher(CASES[name].pattern)
    data = b"".join(frames_of([read_trace(trace(name), matcher)], matcher))
    return Run.of(Capture.from_batches(read_frames(io.BytesIO(data))))


@functools.cache
def rule(name: str) -> Rule:
    """HTA's rule over a trace."""
    return Rule(seen(name), Stamps.of(trace(name)))


def path_of(name: str, step: int = 0) -> hta.HtaPath:
    """HTA's path through a step."""
    path = BY_STEP[name, step].hta
    assert path is not None
    return path


def theirs_ns(name: str, step: int = 0) -> tuple[int, int]:
    """Where HTA's path begins and ends."""
    report = seen(name).devices.report(step)
    recorded = BY_STEP[name, step]
    return report.start_ns + recorded.before_ns, report.end_ns - recorded.after_ns


def within(name: str, step: int, start_ns: int, end_ns: int) -> Counter[Category]:
    """Our path between two moments, by category."""
    found: Counter[Category] = Counter()
    for segment in seen(name).devices.report(step).segments:
        found[segment.category] += max(
            0, min(end_ns, segment.end_ns) - max(start_ns, segment.start_ns)
        )
    return found


def row(run: Run, correlation: int) -> int:
    """The GPU record with a correlation id."""
    (found,) = np.flatnonzero(run.states.device.ops.table["correlation"] == correlation)
    return int(found)
