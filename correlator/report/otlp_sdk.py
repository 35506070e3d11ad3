# SPDX-License-Identifier: Apache-2.0
"""Spans as OpenTelemetry's SDK takes them. It is imported here, and nowhere else but to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

import gpucorrelate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.otlp_values import Attributes, Span, Tree

_SCOPE = InstrumentationScope("gpucorrelate", gpucorrelate.__version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def resource_of(attributes: Attributes) -> Resource:
    """The resource, with what ``OTEL_RESOURCE_ATTRIBUTES`` adds."""
    return Resource.create(attributes)


def readable(tree: Tree, resource: Resource) -> Sequence[ReadableSpan]:
    """A tree's spans for the SDK's exporters."""
    return [_span(span, resource) for span in tree.spans]


def _span(span: Span, resource: Resource) -> ReadableSpan:
    state = TraceState([("ot", span.tracestate)]) if span.tracestate else None
    return ReadableSpan(
        span.name,
        context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED,
                            trace_state=state),
        parent=_context(span.trace_id, span.parent_id, remote=span.remote),
        resource=resource,
        attributes=span.attributes,
        events=[SdkEvent(one.name, one.attributes, one.t_ns) for one in span.events],
        links=_links(span),
        kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )  # fmt: skip


def _context(trace_id: int, span_id: int, *, remote: bool) -> SpanContext | None:
    if not span_id:
        return None
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=_SAMPLED)


def _links(span: Span) -> list[Link]:
    link = span.link
    if link is None:
        return []
    context = SpanContext(
        link.trace_id, link.parent_id, is_remote=True, trace_flags=TraceFlags(link.flags & 1)
    )
    return [Link(context, {"gpucorrelate.link": "caller"})]
