# SPDX-License-Identifier: Apache-2.0
"""Truth about a traced load, operation by operation, and its score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.verify import score as scores
from gpucorrelate.verify.truth import Injection, Operation, Played
from tests.engine.traced import Part, Truth
from tests.truth.engine.course import Course, Windows, common
from tests.truth.engine.scenarios import Blame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpucorrelate.correlator.report.values import RequestReport, Segment
    from gpucorrelate.verify.score import Score
    from tests.truth.engine.scenarios import Scenario


@dataclass(frozen=True)
class Case:
    """An operation: a request's path to its end, or to its first token."""

    operation: Operation
    segments: tuple[Segment, ...]
    windows: Windows


def cases(
    reports: Sequence[RequestReport], course: Course, *, control: bool, first: int = 0
) -> list[Case]:
    """Operations of requests; those that never got through the engine are left out."""
    found: list[Case] = []
    for report in reports:
        for end_ns, segments, output in (
            (report.end_ns, report.segments, -1),
            (report.first_token_ns, report.ttft_segments, 0),
        ):
            if end_ns is None or not segments:
                continue
            windows = course.windows(report.internal_id, end_ns, output=output)
            if windows is None:
                continue
            op = Operation(first + len(found), control, 0, report.arrival_ns, end_ns)
            found.append(Case(op, segments, windows))
    return found


@dataclass(frozen=True)
class Delay:
    """A delay that was made, whoever it befell; its operation is not said.

    Attributes:
        tid: The thread that logged it.
        injection: The delay.
    """

    tid: int
    injection: Injection


def delays(scenario: Scenario, truth: Sequence[Truth]) -> list[Delay]:
    """The delays that were made."""
    rows = [row for row in truth if row.kind == scenario.fault]
    if scenario.fault.endswith(".lock"):
        waits = [row for row in truth if row.kind == f"{scenario.fault}-wait"]
        return [
            _delay(scenario, held, Part(*times, 0, 0))
            for held in rows
            for part in held.parts
            for times in common(
                (part.start_ns, part.end_ns), [(wait.start_ns, wait.end_ns) for wait in waits]
            )
        ]
    return [_delay(scenario, row, part) for row in rows for part in row.parts]


def paused(scenario: Scenario, course: Course) -> list[Delay]:
    """The delays that a client made that did not read on."""
    return [
        Delay(0, Injection(-1, *times, scenario.categories, kind="network"))
        for passage in course.passages.values()
        for times in passage.paused
    ]


def _delay(scenario: Scenario, row: Truth, part: Part) -> Delay:
    by_thread = scenario.blame is Blame.THREAD
    injection = Injection(
        -1,
        part.start_ns,
        part.end_ns,
        scenario.categories,
        frozenset({row.tid}) if by_thread else frozenset(),
        "" if by_thread else row.detail,
        part.cpu_ns,
        part.queued_ns,
    )
    return Delay(row.tid, injection)


def injected(scenario: Scenario, case: Case, made: Sequence[Delay]) -> Iterator[Injection]:
    """What of the delays lies on an operation's path."""
    for window in getattr(case.windows, scenario.window):
        start, end = max(window[0], case.operation.start_ns), min(window[1], case.operation.end_ns)
        for delay in (delay.injection for delay in made):
            for low, high in common((start, end), [(delay.start_ns, delay.end_ns)]):
                share = (high - low) / delay.length_ns
                yield replace(
                    delay,
                    operation=case.operation.number,
                    start_ns=low,
                    end_ns=high,
                    cpu_ns=round(share * delay.cpu_ns),
                    queued_ns=round(share * delay.queued_ns),
                )


def of(
    scenario: Scenario, all_cases: Sequence[Case], made: Sequence[Delay], throttled_ns: int = 0
) -> Score:
    """The score of one scenario.

    Args:
        scenario: Which.
        all_cases: Operations without and with delays.
        made: The delays.
        throttled_ns: How long the engine was really out of CPU quota while there were none: an
            operation may be said to have been for as long.
    """
    own = [case for case in all_cases if not case.operation.control]
    found = [one for case in own for one in injected(scenario, case, made)]
    hit = {one.operation for one in found}
    own = [case for case in own if case.operation.number in hit]
    tid = made[0].tid if made else 0
    played = Played(
        scenario.name,
        tuple(replace(case.operation, tid=tid) for case in own),
        tuple(found),
        tuple(case.segments for case in own),
    )
    controls = [case for case in all_cases if case.operation.control]
    result = scores.of(played)
    if scenario.own:
        return result
    return replace(
        result,
        controls=len(controls),
        control_ns=sum(case.operation.end_ns - case.operation.start_ns for case in controls),
        false_ns=sum(_false_ns(case.segments, made, throttled_ns) for case in controls),
    )


def _false_ns(segments: Sequence[Segment], made: Sequence[Delay], throttled_ns: int) -> int:
    """What of an operation without delays is said to be one, or a limit that there was not."""
    all_of = [delay.injection for delay in made]
    kinds = {(one.categories, one.culprits, one.kind): one for one in all_of}.values()
    limited = blamed = 0
    for segment in segments:
        if segment.category is Category.THROTTLED:
            limited += segment.length_ns
        elif any(
            segment.category in one.categories and scores.blames(segment, one) for one in kinds
        ):
            blamed += segment.length_ns
    return blamed + max(0, limited - throttled_ns)
