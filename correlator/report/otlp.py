# SPDX-License-Identifier: Apache-2.0
"""A request's report as a tree of spans.

The request is the root, from its arrival to its last byte. Its phases are its children and tile
it; the largest segments of the critical path are theirs, and what has no span of its own is summed
in its phase. All of it is moved to the wall clock by one offset, so every length is the report's,
to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import otlp_attributes as attributes
from gpucorrelate.correlator.report import run_facts
from gpucorrelate.correlator.report.otlp_phases import Stretch, stretches
from gpucorrelate.correlator.report.otlp_sample import Candidate, Kept, Reason
from gpucorrelate.correlator.report.otlp_values import Bounds, Event, Span, Tree

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.otlp_ids import Identity
    from gpucorrelate.correlator.report.run_facts import RunFacts
    from gpucorrelate.correlator.report.values import RequestReport, Segment
    from gpucorrelate.correlator.wallclock import WallClock


@dataclass(frozen=True)
class Maker:
    """Makes trees of one recording's requests.

    Attributes:
        facts: What the recording says of the engine.
        identity: Makes the ids.
        clock: The wall clock.
        join: Whether a request goes into its caller's trace, where the caller records it.
        tracestate: How what is drawn was drawn, as ``Rule.tracestate`` says.
        bounds: The most that is made of one request.
    """

    facts: RunFacts
    identity: Identity
    clock: WallClock
    join: bool = True
    tracestate: str = ""
    bounds: Bounds = field(default_factory=Bounds)

    def candidate(self, report: RequestReport) -> Candidate:
        """What a sampler goes by."""
        trace = report.trace
        return Candidate(
            self.identity.trace(report.internal_id),
            report.wall_ns,
            bool(attributes.error_type(report)),
            trace is not None and trace.sampled,
        )

    def tree(self, report: RequestReport, kept: Kept) -> Tree:
        """The request's spans, the root first, then each phase followed by its segments."""
        return _Builder(self, report, kept).tree()


class _Builder:
    """The spans of one request."""

    def __init__(self, maker: Maker, report: RequestReport, kept: Kept) -> None:
        self._maker = maker
        self._report = report
        self._kept = kept
        self._offset = maker.clock.at(report.arrival_ns)
        caller = report.trace
        # Where the caller does not record its trace, a span in it would have no parent there.
        self._joined = caller if maker.join and caller is not None and caller.sampled else None
        own = maker.identity.trace(report.internal_id)
        self._trace_id = own if self._joined is None else self._joined.trace_id

    def tree(self) -> Tree:
        report, bounds = self._report, self._maker.bounds
        root_id = self._id("request")
        spans = [self._root(root_id)]
        parts = stretches(report, bounds.phases)
        shown = _largest(parts, bounds)
        for n, stretch in enumerate(parts):
            mine = [segment for segment in stretch.segments if id(segment) in shown]
            phase_id = self._id(f"phase {n}")
            spans.append(
                Span(
                    stretch.name,
                    self._trace_id,
                    phase_id,
                    root_id,
                    self._at(stretch.start_ns),
                    self._at(stretch.end_ns),
                    attributes=attributes.of_stretch(stretch, mine, bounds),
                )
            )
            spans += [self._segment(segment, phase_id) for segment in mine]
        return Tree(tuple(spans))

    def _id(self, place: str) -> int:
        return self._maker.identity.span(self._report.internal_id, place)

    def _at(self, t_ns: int) -> int:
        return t_ns + self._offset.offset_ns

    def _root(self, span_id: int) -> Span:
        report, maker, bounds = self._report, self._maker, self._maker.bounds
        named = (run_facts.operation(report.path), maker.facts.model)
        by_lot = self._kept.reason in (Reason.RATIO, Reason.ALL) and self._joined is None
        failed = run_facts.outcome(report.status) == "failed"
        return Span(
            " ".join(part for part in named if part) or "request",
            self._trace_id,
            span_id,
            self._joined.parent_id if self._joined is not None else 0,
            self._at(report.arrival_ns),
            self._at(report.end_ns),
            server=True,
            remote=self._joined is not None,
            attributes=attributes.of_request(report, maker.facts, bounds)
            | attributes.of_clock(self._offset, maker.clock.source)
            | attributes.of_sampling(self._kept),
            events=tuple(self._moments()),
            link=report.trace if self._joined is None else None,
            tracestate=maker.tracestate if by_lot else "",
            error=report.status if failed else "",
        )

    def _moments(self) -> list[Event]:
        report, bounds = self._report, self._maker.bounds
        found = [
            Event(
                "gpucorrelate.wait",
                self._at(wait.start_ns),
                attributes.of_wait(wait, bounds),
            )
            for wait in report.waits[: bounds.waits]
        ]
        if report.first_token_ns is not None:
            found.append(Event("gpucorrelate.first_token", self._at(report.first_token_ns)))
        return sorted(found, key=lambda event: event.t_ns)

    def _segment(self, segment: Segment, parent_id: int) -> Span:
        bounds, cause = self._maker.bounds, segment.cause
        events: tuple[Event, ...] = ()
        if cause is not None and cause.actor is not None:
            at = self._at(segment.end_ns)
            events = (Event("gpucorrelate.cause", at, attributes.of_cause(cause, bounds)),)
        start = segment.start_ns - self._report.arrival_ns
        return Span(
            f"{segment.category.value} {segment.span}".strip(),
            self._trace_id,
            self._id(f"segment {start} {segment.length_ns}"),
            parent_id,
            self._at(segment.start_ns),
            self._at(segment.end_ns),
            attributes=attributes.of_segment(segment, bounds),
            events=events,
        )


def _largest(parts: tuple[Stretch, ...], bounds: Bounds) -> set[int]:
    """Which segments get spans, by identity; of equally long ones the earlier."""
    every = [segment for part in parts for segment in part.segments]
    long = [segment for segment in every if segment.length_ns >= bounds.least_ns]
    long.sort(key=lambda segment: (-segment.length_ns, segment.start_ns))
    return {id(segment) for segment in long[: bounds.segments]}
