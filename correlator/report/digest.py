# SPDX-License-Identifier: Apache-2.0
"""Sums, groups and picks over the parts of a report: what renderings show, without how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.correlator.report.values import (
        Actor,
        Phase,
        RequestReport,
        Segment,
        TokenLeg,
        Wait,
    )

UNKNOWN_CATEGORIES = frozenset({Category.UNOBSERVED, Category.UNEXPLAINED})
STEP_PHASES = frozenset({PhaseName.PREFILL, PhaseName.MIXED, PhaseName.DECODE})


def clip_segments(segments: Iterable[Segment], start_ns: int, end_ns: int) -> list[Segment]:
    """The parts of the segments that lie in ``[start_ns, end_ns]``, in order."""
    kept = []
    for segment in segments:
        begin, end = max(segment.start_ns, start_ns), min(segment.end_ns, end_ns)
        if begin >= end:
            continue
        whole = begin == segment.start_ns and end == segment.end_ns
        kept.append(segment if whole else replace(segment, start_ns=begin, end_ns=end))
    return kept


def length(segments: Iterable[Segment]) -> int:
    """Sum of the segments' lengths, nanoseconds."""
    return sum(segment.length_ns for segment in segments)


def by_category(segments: Iterable[Segment]) -> list[tuple[Category, int]]:
    """Nanoseconds per category, the largest first."""
    sums: dict[Category, int] = {}
    for segment in segments:
        sums[segment.category] = sums.get(segment.category, 0) + segment.length_ns
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def by_phase(segments: Iterable[Segment]) -> list[tuple[PhaseName, int]]:
    """Nanoseconds per phase, in the order in which a request lives through them."""
    sums: dict[PhaseName, int] = {}
    for segment in segments:
        sums[segment.phase] = sums.get(segment.phase, 0) + segment.length_ns
    return [(name, sums[name]) for name in PhaseName if name in sums]


@dataclass(frozen=True)
class Part:
    """What one actor did or suffered on the path, of one kind."""

    category: Category
    span: str
    length_ns: int


@dataclass(frozen=True)
class Holder:
    """One actor's time on the path.

    Attributes:
        label: The actor's label.
        length_ns: All its time on the path.
        parts: That time by category and span, the largest first.
        longest: Its longest stretch without a change of category or span.
    """

    label: str
    length_ns: int
    parts: tuple[Part, ...]
    longest: Segment


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours that differ in nothing a reader would call a change, made one."""
    out: list[Segment] = []
    for segment in segments:
        last = out[-1] if out else None
        if (
            last is not None
            and last.end_ns == segment.start_ns
            and last.category == segment.category
            and last.actor == segment.actor
            and last.span == segment.span
            and last.step == segment.step
            and last.phase == segment.phase
        ):
            out[-1] = replace(last, end_ns=segment.end_ns)
        else:
            out.append(segment)
    return out


def holders(segments: Sequence[Segment]) -> list[Holder]:
    """Who held the path how long and with what, the one with the most time first."""
    parts: dict[str, dict[tuple[Category, str], int]] = {}
    longest: dict[str, Segment] = {}
    for segment in _joined(segments):
        label = segment.actor.label
        own = parts.setdefault(label, {})
        key = (segment.category, segment.span)
        own[key] = own.get(key, 0) + segment.length_ns
        if label not in longest or segment.length_ns > longest[label].length_ns:
            longest[label] = segment
    found = [
        Holder(
            label=label,
            length_ns=sum(own.values()),
            parts=tuple(
                Part(category, span, length_ns)
                for (category, span), length_ns in sorted(
                    own.items(), key=lambda item: (-item[1], item[0])
                )
            ),
            longest=longest[label],
        )
        for label, own in parts.items()
    ]
    return sorted(found, key=lambda holder: (-holder.length_ns, holder.label))


@dataclass(frozen=True)
class WaitGroup:
    """Waits of one waiter that one culprit ended in one way.

    Attributes:
        longest: The longest of them.
        count: How many there are.
        length_ns: Their sum.
    """

    longest: Wait
    count: int
    length_ns: int


def wait_groups(waits: Iterable[Wait]) -> list[WaitGroup]:
    """Waits put together by waiter, kind and cause; the group with the longest wait first.

    Without this a request of a thousand decode steps lists a thousand times the same wait and
    the one stall among them goes unseen.
    """
    groups: dict[tuple[str, str, str, Actor | None, str], list[Wait]] = {}
    for wait in waits:
        cause = wait.cause
        key = (wait.waiter.label, wait.kind, cause.verb, cause.actor, cause.detail)
        groups.setdefault(key, []).append(wait)
    found = [
        WaitGroup(
            longest=max(members, key=lambda wait: wait.length_ns),
            count=len(members),
            length_ns=sum(wait.length_ns for wait in members),
        )
        for members in groups.values()
    ]
    return sorted(found, key=lambda group: -group.longest.length_ns)


@dataclass(frozen=True)
class Gap:
    """The time between two tokens of one request, written at ``start_ns`` and ``end_ns``."""

    index: int  # of the token that came late
    step: int | None
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Nanoseconds between the two."""
        return self.end_ns - self.start_ns


def worst_gap(report: RequestReport) -> Gap | None:
    """The longest wait for a next token; ``None`` with fewer than two tokens."""
    at = [leg.written_ns or leg.processed_ns for leg in report.tokens]
    gaps = [
        Gap(leg.index, leg.step, before, after)
        for leg, before, after in zip(report.tokens[1:], at, at[1:], strict=False)
    ]
    return max(gaps, key=lambda gap: gap.length_ns, default=None)


def worst_leg(report: RequestReport) -> TokenLeg | None:
    """The token that took longest from the engine to the transport."""
    return max(report.tokens, key=lambda leg: leg.length_ns, default=None)


@dataclass(frozen=True)
class Boundary:
    """A named moment between two intervals, or a run of steps between two of them."""

    name: str
    t_ns: int


def boundaries(phases: Sequence[Phase]) -> list[Boundary]:
    """The named moments of a request in order; a run of steps shows its first and last only.

    A request has a boundary at each end of each of its steps; all but the outermost two say
    nothing that the step's number does not.
    """
    found: list[Boundary] = []
    steps = [phase for phase in phases if phase.name in STEP_PHASES]
    last = steps[-1] if steps else None
    for phase in phases:
        inside = phase.name in STEP_PHASES or phase.name is PhaseName.BETWEEN
        if not inside or not found or phase is (steps[0] if steps else None):
            found.append(Boundary(phase.start_anchor, phase.start_ns))
        if phase is last:
            found.append(Boundary(phase.end_anchor, phase.end_ns))
    if phases:
        found.append(Boundary(phases[-1].end_anchor, phases[-1].end_ns))
    return _distinct(found)


def _distinct(found: Iterable[Boundary]) -> list[Boundary]:
    out: list[Boundary] = []
    for boundary in found:
        if boundary not in out:
            out.append(boundary)
    return out


@dataclass(frozen=True)
class UnknownPart:
    """Time that no probe covered or no evidence explains, and the reason that was recorded."""

    category: Category
    phase: PhaseName
    label: str
    reason: str
    length_ns: int


def unknown_parts(segments: Iterable[Segment]) -> list[UnknownPart]:
    """What is unknown and why, the largest first."""
    sums: dict[tuple[Category, PhaseName, str, str], int] = {}
    for segment in segments:
        if segment.category not in UNKNOWN_CATEGORIES:
            continue
        key = (segment.category, segment.phase, segment.actor.label, _reason(segment))
        sums[key] = sums.get(key, 0) + segment.length_ns
    parts = [UnknownPart(*key, length_ns) for key, length_ns in sums.items()]
    return sorted(parts, key=lambda part: -part.length_ns)


def _reason(segment: Segment) -> str:
    if segment.cause is not None:
        cause = segment.cause
        said = f"{cause.verb} {cause.actor.shown if cause.actor else ''} {cause.detail}"
        return " ".join(said.split())
    return next((record.note for record in segment.evidence if record.note), "")


def tiling_error(segments: Sequence[Segment], start_ns: int, end_ns: int) -> str:
    """How the segments fail to tile ``[start_ns, end_ns]`` exactly, in words; empty if they do."""
    at = start_ns
    for segment in segments:
        if segment.start_ns != at or segment.end_ns < at:
            return f"a segment starts {segment.start_ns - at:+,} ns from the end of the one before"
        at = segment.end_ns
    return "" if at == end_ns else f"the last segment ends {at - end_ns:+,} ns from the end"
