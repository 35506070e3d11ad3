# SPDX-License-Identifier: Apache-2.0
"""Spans as frozen values, before any library of OpenTelemetry sees them.

Times are integer nanoseconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.values import TraceContext

#: What an attribute may be. Empty texts and ``None`` are left out where attributes are made.
Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]


@dataclass(frozen=True)
class Event:
    """A moment within a span."""

    name: str
    t_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """One span.

    Attributes:
        name: What it is, of few different ones.
        trace_id: 128 bits.
        span_id: 64 bits.
        parent_id: Of a span of the same trace; 0: none.
        start_ns: Its beginning.
        end_ns: Its end.
        server: Whether it is the request itself, as the server saw it.
        remote: Whether the parent is another process's.
        attributes: What it says.
        events: Moments within it.
        link: The caller's trace, where the span is not in it.
        tracestate: How it was sampled, for backends that count by it.
        error: What went wrong; empty: nothing.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    server: bool = False
    remote: bool = False
    attributes: Attributes = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    link: TraceContext | None = None
    tracestate: str = ""
    error: str = ""

    @property
    def length_ns(self) -> int:
        """Length of the span."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Tree:
    """All spans of one request: the request, its phases, the largest segments of each."""

    spans: tuple[Span, ...]

    @property
    def root(self) -> Span:
        """The request itself."""
        return self.spans[0]


@dataclass(frozen=True)
class Bounds:
    """The most that is made of one request.

    Attributes:
        phases: Spans of phases; more stretches than that are put together with their neighbours.
        segments: Spans of segments, the largest; the others are summed in their phase.
        least_ns: Shorter segments get no span of their own.
        waits: Events of the longest waits, on the request.
        texts: Entries of a list of texts.
        letters: Letters of a text.
    """

    phases: int = 64
    segments: int = 64
    least_ns: int = 10_000
    waits: int = 5
    texts: int = 16
    letters: int = 1024
