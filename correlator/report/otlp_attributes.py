# SPDX-License-Identifier: Apache-2.0
"""What spans say, by OpenTelemetry's conventions where they have a name for it.

The conventions for GenAI are in development; the names are those of
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ as of semantic conventions 1.41.
``gen_ai.request.id`` is not among them: it is what vLLM's own spans call their request. Everything
else is ``gpucorrelate.*``; what ends in ``_ns`` is integer nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import run_facts
from gpucorrelate.correlator.report.otlp_phases import Stretch, by_category
from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucorrelate.correlator.report.otlp_sample import Kept
    from gpucorrelate.correlator.report.otlp_values import Attributes, Bounds, Value
    from gpucorrelate.correlator.report.run_facts import RunFacts
    from gpucorrelate.correlator.report.values import (
        Cause,
        PhaseName,
        RequestReport,
        Segment,
        Wait,
    )
    from gpucorrelate.correlator.wallclock import Offset

_OURS = "gpucorrelate."
_UNKNOWN = (Category.UNOBSERVED, Category.UNEXPLAINED)
PROVIDER = "vllm"


def tidy(attributes: Mapping[str, Value | None], bounds: Bounds) -> Attributes:
    """Attributes without those that say nothing, and none longer than they may be."""
    found: Attributes = {}
    for name, value in attributes.items():
        if value is None or value in ("", ()):
            continue
        if isinstance(value, str):
            value = _clip(value, bounds)
        elif isinstance(value, tuple):
            value = tuple(_clip(text, bounds) for text in value[: bounds.texts])
        found[name] = value
    return found


def _clip(text: str, bounds: Bounds) -> str:
    # An id with half a surrogate pair is no UTF-8, and nothing else can be sent.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= bounds.letters else f"{text[: bounds.letters - 1]}…"


def of_resource(facts: RunFacts, service: str) -> Attributes:
    """What holds of all spans of a recording."""
    named: dict[str, str] = {
        "service.name": service,
        "service.version": facts.engine_version,
        "service.instance.id": facts.session,
        "host.name": facts.hostname,
        "os.type": "linux",
        "os.description": facts.kernel,
        f"{_OURS}version": facts.version,
        f"{_OURS}session": facts.session,
    }
    return {name: value for name, value in named.items() if value}


def of_request(report: RequestReport, facts: RunFacts, bounds: Bounds) -> Attributes:
    """What the conventions name of a request, and the request's report in short."""
    ttft, itl = report.ttft_ns, report.itl_ns
    outcome, reason = run_facts.outcome(report.status), run_facts.reason(report.status)
    steps = report.steps
    ledger = report.ledger
    unknown = sum(s.length_ns for s in report.segments if s.category in _UNKNOWN)
    named: dict[str, Value | None] = {
        "gen_ai.operation.name": run_facts.operation(report.path),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": facts.model,
        "gen_ai.request.id": report.request_id,
        "gen_ai.usage.input_tokens": report.tokens_in,
        "gen_ai.usage.output_tokens": report.tokens_out,
        "gen_ai.usage.cache_read.input_tokens": report.cached_tokens,
        "gen_ai.response.finish_reasons": (reason,) if outcome == "finished" and reason else (),
        "gen_ai.response.time_to_first_chunk": None if ttft is None else ttft / 1e9,
        "http.request.method": "POST" if report.path else None,
        "url.path": report.path,
        "http.response.status_code": report.http_status,
        "error.type": error_type(report),
        f"{_OURS}request.id": report.request_id,
        f"{_OURS}request.internal_id": report.internal_id,
        f"{_OURS}request.aliases": report.aliases,
        f"{_OURS}status": report.status,
        f"{_OURS}wall_ns": report.wall_ns,
        f"{_OURS}ttft_ns": ttft,
        f"{_OURS}itl.max_ns": max(itl, default=None),
        f"{_OURS}preemptions": report.preemptions,
        f"{_OURS}steps.first": steps[0] if steps else None,
        f"{_OURS}steps.last": steps[-1] if steps else None,
        f"{_OURS}steps.count": len(steps),
        f"{_OURS}verdict": report.verdict.text,
        f"{_OURS}doubts": report.verdict.doubts,
        f"{_OURS}unknown_ns": unknown,
        f"{_OURS}ledger.clean": ledger.clean,
        f"{_OURS}ledger.losses": tuple(
            f"{line.name}: {line.count}" for line in ledger.lines if line.bad
        ),
        f"{_OURS}missing": ledger.missing,
        f"{_OURS}boundaries": report.boundaries,
        f"{_OURS}monotonic.start_ns": report.arrival_ns,
        **_path(report.segments),
        **_phases((p.name, p.length_ns) for p in report.phases),
    }
    return tidy(named, bounds)


def of_clock(offset: Offset, source: str) -> Attributes:
    """How surely the span's times are those of the machine's wall clock."""
    found: Attributes = {f"{_OURS}clock.source": source}
    if offset.uncertainty_ns is not None:
        found[f"{_OURS}clock.uncertainty_ns"] = offset.uncertainty_ns
    return found


def of_sampling(kept: Kept) -> Attributes:
    """Why the request is exported, and how many it stands for."""
    return {
        f"{_OURS}sampling.reason": kept.reason.value,
        f"{_OURS}sampling.weight": kept.weight,
    }


def of_stretch(stretch: Stretch, shown: Iterable[Segment], bounds: Bounds) -> Attributes:
    """What a phase's span says: its steps, its path by category, what has no span of its own."""
    shown = tuple(shown)
    left = len(stretch.segments) - len(shown)
    inside = stretch.by_phase
    named: dict[str, Value | None] = {
        f"{_OURS}phase": stretch.name,
        f"{_OURS}phase.start": stretch.phases[0].start_anchor,
        f"{_OURS}phase.end": stretch.phases[-1].end_anchor,
        f"{_OURS}tokens": stretch.tokens or None,
        f"{_OURS}steps.first": stretch.steps[0] if stretch.steps else None,
        f"{_OURS}steps.last": stretch.steps[-1] if stretch.steps else None,
        f"{_OURS}steps.count": len(stretch.steps) or None,
        f"{_OURS}segments.shown": len(shown),
        f"{_OURS}segments.summed": left,
        f"{_OURS}segments.summed_ns": sum(s.length_ns for s in stretch.segments)
        - sum(s.length_ns for s in shown),
        **_path(stretch.segments),
        **(_phases(inside.items()) if len(inside) > 1 else {}),
    }
    return tidy(named, bounds)


def of_segment(segment: Segment, bounds: Bounds) -> Attributes:
    """Who held the path, with what, and why."""
    actor = segment.actor
    named: dict[str, Value | None] = {
        f"{_OURS}category": segment.category.value,
        f"{_OURS}phase": segment.phase.value,
        f"{_OURS}actor": actor.shown,
        f"{_OURS}actor.pid": actor.pid or None,
        f"{_OURS}actor.process": actor.process,
        f"{_OURS}actor.role": actor.role,
        "thread.id": actor.tid or None,
        "thread.name": actor.name,
        f"{_OURS}span": segment.span,
        f"{_OURS}step": segment.step,
        f"{_OURS}cause": segment.cause.text if segment.cause is not None else None,
        f"{_OURS}slack_ns": segment.slack_ns,
        f"{_OURS}evidence": tuple(
            dict.fromkeys(" ".join((one.kind, one.note)).strip() for one in segment.evidence)
        ),
    }
    return tidy(named, bounds)


def of_cause(cause: Cause, bounds: Bounds) -> Attributes:
    """Who ended a wait, or ran instead."""
    actor = cause.actor
    named: dict[str, Value | None] = {
        f"{_OURS}cause": cause.text,
        f"{_OURS}cause.verb": cause.verb.rstrip(":"),
        f"{_OURS}cause.detail": cause.detail,
        f"{_OURS}cause.actor": actor.shown if actor is not None else None,
        f"{_OURS}cause.pid": (actor.pid or None) if actor is not None else None,
        f"{_OURS}cause.tid": (actor.tid or None) if actor is not None else None,
        f"{_OURS}cause.traced": actor.traced if actor is not None else None,
    }
    return tidy(named, bounds)


def of_wait(wait: Wait, bounds: Bounds) -> Attributes:
    """One of the longest waits on the path."""
    named: dict[str, Value | None] = {
        f"{_OURS}wait.kind": wait.kind,
        f"{_OURS}wait_ns": wait.length_ns,
        f"{_OURS}actor": wait.waiter.shown,
        f"{_OURS}phase": wait.phase.value,
    }
    return tidy(named, bounds) | of_cause(wait.cause, bounds)


def error_type(report: RequestReport) -> str:
    """What went wrong, of few different ones; empty where nothing did."""
    outcome, why = run_facts.outcome(report.status), run_facts.reason(report.status)
    if outcome == "failed":
        if report.http_status is not None and report.http_status >= 400:
            return str(report.http_status)
        name = why.partition(" ")[0].partition(":")[0]
        return name if name.isidentifier() and name.endswith(("Error", "Exception")) else "failed"
    return "aborted" if outcome == "aborted" else ""


def _path(segments: Iterable[Segment]) -> dict[str, Value | None]:
    sums = by_category(tuple(segments))
    return {
        f"{_OURS}path.{category.value.replace('-', '_')}_ns": sums[category]
        for category in Category
        if category in sums
    }


def _phases(lengths: Iterable[tuple[PhaseName, int]]) -> dict[str, Value | None]:
    sums: dict[str, Value | None] = {}
    for name, length_ns in lengths:
        key = f"{_OURS}phase.{name.value}_ns"
        known = sums.get(key)
        sums[key] = length_ns + (known if isinstance(known, int) else 0)
    return sums
