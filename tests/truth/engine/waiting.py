# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for the scheduler: how right their reports are about what went on meanwhile.

Truth is the engine's course: between being handed to the engine and its first step, or between
being thrown out and its next one, a request waits for the steps that are computed then, in which
others have tokens. Right is a segment that says that the request was waiting to be scheduled (its
phase) and names the step that it waited for, of which a report can say whose tokens it computed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.verify.score import UNKNOWN, Score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.values import Category, RequestReport, Segment
    from tests.truth.engine.course import Course, Passage, Step, Times
    from tests.truth.engine.scenarios import Scenario

#: A step counts as full of others' prompts from this share of its tokens on.
_MOSTLY = 0.5


@dataclass(frozen=True)
class Wait:
    """A request waited for a step.

    Attributes:
        start_ns: Since when.
        end_ns: Until when.
        step: The step.
    """

    start_ns: int
    end_ns: int
    step: Step


def _behind_prefill(passage: Passage, course: Course) -> list[tuple[Times, Step]]:
    """Steps mostly of prompt tokens, none of which are the request's."""
    return [
        (times, step)
        for times, step in passage.behind(course.steps)
        if sum(step.prompt.values()) >= _MOSTLY * sum(step.tokens.values())
    ]


def _behind_full(passage: Passage, course: Course) -> list[tuple[Times, Step]]:
    """Steps with as many requests as the engine takes."""
    most = max(len(step.tokens) for step in course.steps)
    return [
        (times, step) for times, step in passage.behind(course.steps) if len(step.tokens) == most
    ]


def _thrown_out(passage: Passage, course: Course) -> list[tuple[Times, Step]]:
    return passage.thrown_out(course.steps)


_WAITS: dict[str, Callable[[Passage, Course], list[tuple[Times, Step]]]] = {
    "behind_prefill": _behind_prefill,
    "behind_full": _behind_full,
    "thrown_out": _thrown_out,
}


class Numbers:
    """The numbers that a report gives to steps, found by their times."""

    def __init__(self, run: Run) -> None:
        rows = sorted(run.steps(), key=lambda row: row.start_ns)
        self._starts = [row.start_ns for row in rows]
        self._rows = rows

    def of(self, step: Step) -> int:
        """The number of the step that began within another clock reading's distance of it.

        Raises:
            ValueError: there is none that overlaps it for the most part.
        """
        at = bisect_right(self._starts, (step.start_ns + step.end_ns) // 2) - 1
        if at < 0:
            raise ValueError("a step that was not recorded")
        row = self._rows[at]
        common = min(row.start_ns + row.wall_ns, step.end_ns) - max(row.start_ns, step.start_ns)
        if common < 0.5 * (step.end_ns - step.start_ns):
            raise ValueError("a step that was not recorded")
        return row.step


def score(scenario: Scenario, run: Run, reports: Sequence[RequestReport], course: Course) -> Score:
    """How right the reports are about the waits."""
    numbers = Numbers(run)
    waits_of = _WAITS[scenario.window]
    sums: Counter[str] = Counter()
    errors: list[int] = []
    confusion: Counter[tuple[str, Category]] = Counter()
    for report in reports:
        passage = course.passages[report.internal_id]
        found = [Wait(*times, step) for times, step in waits_of(passage, course)]
        sums["operations"] += bool(found)
        for wait in found:
            number = numbers.of(wait.step)
            sums["injections"] += 1
            sums["injected_ns"] += wait.end_ns - wait.start_ns
            for segment in report.segments:
                part = _part(segment, wait)
                if not part:
                    continue
                confusion[segment.phase.value, segment.category] += part
                known = segment.category not in UNKNOWN
                sums["unknown_ns"] += part * (not known)
                sums["category_ns"] += part * (known and segment.phase in scenario.waiting)
                sums["culprit_ns"] += part * (known and segment.step == number)
            errors += _errors(report.segments, wait, number)
    rows = tuple((*key, length) for key, length in sorted(confusion.items()))
    return Score(scenario.name, errors_ns=tuple(sorted(errors)), confusion=rows, **sums)


def _part(segment: Segment, wait: Wait) -> int:
    return max(0, min(segment.end_ns, wait.end_ns) - max(segment.start_ns, wait.start_ns))


def _errors(segments: Sequence[Segment], wait: Wait, number: int) -> tuple[int, int]:
    """How far the start and the end of the step waited for are missed."""
    own = [one for one in segments if one.step == number and _part(one, wait)]
    if not own:
        return (wait.end_ns - wait.start_ns,) * 2
    return abs(own[0].start_ns - wait.start_ns), abs(own[-1].end_ns - wait.end_ns)
