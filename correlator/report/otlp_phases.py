# SPDX-License-Identifier: Apache-2.0
"""A request's phases as few stretches that still tile it, each with its segments.

A request has a phase for every step it was in, thousands of them. Neighbours of one name become
one stretch, and where there are still too many, neighbours of different names do too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import (
        Category,
        Phase,
        PhaseName,
        RequestReport,
        Segment,
    )

#: What a stretch of several phases is called.
SEVERAL = "steps"


@dataclass(frozen=True)
class Stretch:
    """Phases that follow each other, and the path's segments within them."""

    phases: tuple[Phase, ...]
    segments: tuple[Segment, ...]

    @property
    def start_ns(self) -> int:
        """Where it begins, CLOCK_MONOTONIC."""
        return self.phases[0].start_ns

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return self.phases[-1].end_ns

    @property
    def name(self) -> str:
        """The phases' name, or what several are called."""
        names = {phase.name for phase in self.phases}
        return names.pop().value if len(names) == 1 else SEVERAL

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of its steps."""
        return tuple(p.step for p in self.phases if p.step is not None and p.tokens is not None)

    @property
    def tokens(self) -> int:
        """Tokens of the request computed in it."""
        return sum(phase.tokens or 0 for phase in self.phases)

    @property
    def by_phase(self) -> dict[PhaseName, int]:
        """Time by name, where it has several."""
        sums: Counter[PhaseName] = Counter()
        for phase in self.phases:
            sums[phase.name] += phase.length_ns
        return dict(sums)


def stretches(report: RequestReport, most: int) -> tuple[Stretch, ...]:
    """The request's phases in at most so many stretches, which tile it."""
    runs: list[list[Phase]] = []
    for phase in report.phases:
        if runs and runs[-1][0].name is phase.name:
            runs[-1].append(phase)
        else:
            runs.append([phase])
    size = -(-len(runs) // most)
    if size > 1:
        runs = [
            [phase for run in runs[at : at + size] for phase in run]
            for at in range(0, len(runs), size)
        ]
    found, at = [], 0
    for run in runs:
        inside, at = _within(report.segments, at, run[0].start_ns, run[-1].end_ns)
        found.append(Stretch(tuple(run), inside))
    return tuple(found)


def _within(
    segments: Sequence[Segment], at: int, start_ns: int, end_ns: int
) -> tuple[tuple[Segment, ...], int]:
    """The segments between two moments, cut there, and which is the first of those after."""
    found = []
    while at < len(segments) and segments[at].start_ns < end_ns:
        one = segments[at]
        if one.end_ns > start_ns:
            low, high = max(one.start_ns, start_ns), min(one.end_ns, end_ns)
            whole = (low, high) == (one.start_ns, one.end_ns)
            found.append(one if whole else replace(one, start_ns=low, end_ns=high))
        if one.end_ns > end_ns:
            break
        at += 1
    return tuple(found), at


def by_category(segments: Sequence[Segment]) -> dict[Category, int]:
    """Time by category."""
    sums: Counter[Category] = Counter()
    for segment in segments:
        sums[segment.category] += segment.length_ns
    return dict(sums)
