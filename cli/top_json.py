# SPDX-License-Identifier: Apache-2.0
"""An update of ``gpucorrelate top`` as a JSON document: integer nanoseconds, null for unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.cli.top_view import Slow
    from gpucorrelate.correlator.current import Hold, Holder
    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live_values import Done, Flight, LiveUpdate

    Json = dict[str, Any]

SCHEMA = "gpucorrelate.top.v1"


def update_to_dict(update: LiveUpdate, slowest: Sequence[Slow], ended: int) -> Json:
    """One document a poll."""
    rates, skipped, effort = update.rates, update.skipped, update.effort
    return {
        "schema": SCHEMA,
        "session": update.session,
        "t_ns": update.t_ns,
        "state": update.state,
        "ended": update.ended,
        "behind_ns": update.behind_ns,
        "pending": update.pending,
        "rates": {
            "over_ns": rates.over_ns,
            "steps_per_s": _rounded(rates.steps_per_s),
            "tokens_per_s": _rounded(rates.tokens_per_s),
            "rows_per_step": _rounded(rates.rows_per_step),
            "finished_per_s": _rounded(rates.finished_per_s),
            "waiting": rates.waiting,
        },
        "in_flight_total": update.in_flight_total,
        "in_flight": [_flight(one) for one in update.in_flight],
        "composition_ns": {str(category): ns for category, ns in update.composition},
        "culprits": [_holder(one) for one in update.culprits],
        "finished": [_report(one) for one in update.finished],
        "done": [_done(one) for one in update.done],
        "slowest": [{**_done(one.done), "why": one.why or None} for one in slowest],
        "ended_total": ended,
        "skipped": {
            "sampled_out": skipped.sampled_out,
            "too_long": skipped.too_long,
            "unexplained": skipped.unexplained,
        },
        "losses": [{"name": x.name, "count": x.count, "note": x.note} for x in update.losses],
        "missing": list(update.missing),
        "notes": list(update.notes),
        "effort": {
            "cpu_ns": effort.cpu_ns,
            "report_cpu_ns": effort.report_cpu_ns,
            "reports": effort.reports,
            "held_bytes": effort.held_bytes,
            "held_rows": effort.held_rows,
            "dropped_rows": effort.dropped_rows,
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _flight(one: Flight) -> Json:
    return {
        "request_id": one.request_id,
        "internal_id": one.internal_id or None,
        "arrival_ns": one.arrival_ns,
        "age_ns": one.age_ns,
        "phase": str(one.phase),
        "tokens_in": one.tokens_in,
        "tokens_out": one.tokens_out,
        "preemptions": one.preemptions,
        "now": None if one.now is None else _hold(one.now),
        "last_second_ns": {str(category): ns for category, ns in one.shares},
        "last_second": [_holder(holder) for holder in one.recent],
    }


def _hold(now: Hold) -> Json:
    return {
        "actor": now.actor.label,
        "category": str(now.category),
        "what": now.what or None,
        "for_ns": now.for_ns,
        "by": None if now.by is None else now.by.shown,
        "assumed": now.assumed,
        "waiters": [actor.label for actor in now.waiters],
    }


def _holder(one: Holder) -> Json:
    return {
        "actor": one.actor.label,
        "category": str(one.category),
        "what": one.what or None,
        "length_ns": one.length_ns,
        "by": None if one.by is None else one.by.shown,
        "cause": one.cause or None,
    }


def _done(one: Done) -> Json:
    return {
        "request_id": one.request_id,
        "internal_id": one.internal_id,
        "arrival_ns": one.arrival_ns,
        "wall_ns": one.wall_ns,
        "tokens_in": one.tokens_in,
        "tokens_out": one.tokens_out,
    }


def _report(one: RequestReport) -> Json:
    return {
        "request_id": one.request_id,
        "internal_id": one.internal_id,
        "arrival_ns": one.arrival_ns,
        "wall_ns": one.wall_ns,
        "ttft_ns": one.ttft_ns,
        "status": one.status,
        "verdict": one.verdict.text,
    }
