# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON: integer nanoseconds, ``null`` for what is unknown, nothing rounded.

Every document names what it is in ``schema``; keys are only ever added. Hashes are strings,
because many readers of JSON keep no more than 53 bits of a number.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.context_json import context_to_dict, host_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.correlator.report.values import (
        Actor,
        Category,
        Cause,
        Evidence,
        Ledger,
        PhaseName,
        RequestReport,
        RequestRow,
        RunSummary,
        Segment,
        StepReport,
        StepRow,
        TokenLeg,
        Verdict,
        Wait,
    )

Json = dict[str, Any]

REQUEST_SCHEMA = "gpucorrelate.request.v1"
STEP_SCHEMA = "gpucorrelate.step.v1"
REQUEST_ROW_SCHEMA = "gpucorrelate.request-row.v1"
STEP_ROW_SCHEMA = "gpucorrelate.step-row.v1"
SUMMARY_SCHEMA = "gpucorrelate.summary.v1"

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Actors:
    """The actors one report mentions: each written out once, elsewhere by label and tid.

    Reports hold the same few actors in thousands of segments, mostly as the same object, and a
    label is not free to make; so what was looked up stays found by identity.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Actor, str]] = {}

    def label(self, actor: Actor) -> str:
        """The actor's label, which from now on is in the table."""
        found = self._known.get(id(actor))
        if found is None:
            found = self._known[id(actor)] = (actor, actor.label)
        return found[1]

    def table(self) -> list[Json]:
        """Every actor asked for, in the order of first use."""
        distinct = dict.fromkeys(actor for actor, _ in self._known.values())
        return [
            {
                "label": actor.label,
                "tid": actor.tid,
                "pid": actor.pid,
                "role": actor.role or None,
                "role_by": actor.role_by or ("process" if actor.role else None),
                "name": actor.name or None,
                "process": actor.process or None,
                "traced": actor.traced,
            }
            for actor in distinct
        ]


def _cause(cause: Cause | None, actors: Actors) -> Json | None:
    if cause is None:
        return None
    actor = cause.actor
    return {
        "verb": cause.verb,
        "actor": None if actor is None else actors.label(actor),
        "tid": None if actor is None else actor.tid,
        "traced": None if actor is None else actor.traced,
        "detail": cause.detail or None,
    }


def _evidence(records: Iterable[Evidence]) -> list[Json]:
    return [
        {
            "kind": record.kind,
            "start_ns": record.start_ns,
            "end_ns": record.end_ns,
            "tid": record.tid or None,
            "note": record.note or None,
        }
        for record in records
    ]


def segments_to_list(segments: Iterable[Segment], actors: Actors) -> list[Json]:
    """Segments as plain values; their actors are noted in ``actors``."""
    label = actors.label
    return [
        {
            "start_ns": segment.start_ns,
            "end_ns": segment.end_ns,
            "category": segment.category,
            "actor": label(segment.actor),
            "tid": segment.actor.tid,
            "phase": segment.phase,
            "span": segment.span or None,
            "step": segment.step,
            "cause": _cause(segment.cause, actors),
            "evidence": _evidence(segment.evidence),
            "slack_ns": segment.slack_ns,
        }
        for segment in segments
    ]


def _waits(waits: Iterable[Wait], actors: Actors) -> list[Json]:
    return [
        {
            "start_ns": wait.start_ns,
            "end_ns": wait.end_ns,
            "kind": wait.kind,
            "waiter": actors.label(wait.waiter),
            "tid": wait.waiter.tid,
            "phase": wait.phase,
            "cause": _cause(wait.cause, actors),
        }
        for wait in waits
    ]


def _token(leg: TokenLeg) -> Json:
    return {
        "index": leg.index,
        "step": leg.step,
        "made_ns": leg.made_ns,
        "processed_ns": leg.processed_ns,
        "written_ns": leg.written_ns,
        "by_category": _pairs(leg.by_category),
    }


def _pairs(pairs: Iterable[tuple[Category | PhaseName | str, int]]) -> Json:
    return {str(name): length_ns for name, length_ns in pairs}


def ledger_to_dict(ledger: Ledger) -> Json:
    """A ledger as plain values."""
    return {
        "clean": ledger.clean,
        "lines": [
            {"name": line.name, "count": line.count, "note": line.note or None, "bad": line.bad}
            for line in ledger.lines
        ],
        "missing": list(ledger.missing),
    }


def _verdict(verdict: Verdict, actors: Actors) -> Json:
    stall = _waits([] if verdict.stall is None else [verdict.stall], actors)
    return {
        "text": verdict.text,
        "parts": [
            {
                "what": part.what,
                "length_ns": part.length_ns,
                "ran": None if part.ran is None else actors.label(part.ran),
                "ran_ns": None if part.ran is None else part.ran_ns,
            }
            for part in verdict.parts
        ],
        "stall": next(iter(stall), None),
        "unknown_ns": verdict.unknown_ns,
        "doubts": list(verdict.doubts),
    }


def request_to_dict(report: RequestReport) -> Json:
    """One request as plain values.

    Segments name their actor by its label and tid; ``actors`` says who that is.
    """
    actors = Actors()
    return {
        "schema": REQUEST_SCHEMA,
        "request_id": report.request_id,
        "internal_id": report.internal_id or None,
        "aliases": list(report.aliases),
        "status": report.status,
        "verdict": _verdict(report.verdict, actors),
        "arrival_ns": report.arrival_ns,
        "end_ns": report.end_ns,
        "wall_ns": report.wall_ns,
        "first_token_ns": report.first_token_ns,
        "ttft_ns": report.ttft_ns,
        "tokens_in": report.tokens_in,
        "tokens_out": report.tokens_out,
        "cached_tokens": report.cached_tokens,
        "preemptions": report.preemptions,
        "steps": list(report.steps),
        "boundaries": list(report.boundaries),
        "phases": [
            {
                "name": phase.name,
                "start_ns": phase.start_ns,
                "end_ns": phase.end_ns,
                "start_anchor": phase.start_anchor,
                "end_anchor": phase.end_anchor,
                "step": phase.step,
                "tokens": phase.tokens,
            }
            for phase in report.phases
        ],
        "segments": segments_to_list(report.segments, actors),
        "ttft_segments": segments_to_list(report.ttft_segments, actors),
        "waits": _waits(report.waits, actors),
        "tokens": [_token(leg) for leg in report.tokens],
        "checks": [
            {"place": check.place, "count": check.count, "hash": f"{check.hash:016x}"}
            for check in report.checks
        ],
        "context": context_to_dict(report.context),
        "ledger": ledger_to_dict(report.ledger),
        "actors": actors.table(),
    }


def step_to_dict(report: StepReport) -> Json:
    """One step as plain values."""
    actors = Actors()
    return {
        "schema": STEP_SCHEMA,
        "step": report.step,
        "status": report.status,
        "kind": report.kind,
        "start_ns": report.start_ns,
        "end_ns": report.end_ns,
        "wall_ns": report.wall_ns,
        "worker_ns": report.worker_ns,
        "rows": report.rows,
        "tokens": report.tokens,
        "prefill_tokens": report.prefill_tokens,
        "error": report.error or None,
        "waiting": report.waiting,
        "request_ids": list(report.request_ids),
        "requests": [
            {"request_id": shown, "internal_id": internal} for shown, internal in report.requests
        ],
        "segments": segments_to_list(report.segments, actors),
        "waits": _waits(report.waits, actors),
        "context": context_to_dict(report.context),
        "ledger": ledger_to_dict(report.ledger),
        "actors": actors.table(),
    }


def request_row_to_dict(row: RequestRow) -> Json:
    """One line of a list of requests as plain values."""
    return {
        "schema": REQUEST_ROW_SCHEMA,
        "request_id": row.request_id,
        "internal_id": row.internal_id or None,
        "aliases": list(row.aliases),
        "status": row.status,
        "arrival_ns": row.arrival_ns,
        "wall_ns": row.wall_ns,
        "ttft_ns": row.ttft_ns,
        "tokens_in": row.tokens_in,
        "tokens_out": row.tokens_out,
        "by_phase": _pairs(row.by_phase),
    }


def step_row_to_dict(row: StepRow) -> Json:
    """One line of a list of steps as plain values."""
    return {
        "schema": STEP_ROW_SCHEMA,
        "step": row.step,
        "status": row.status,
        "kind": row.kind,
        "start_ns": row.start_ns,
        "wall_ns": row.wall_ns,
        "worker_ns": row.worker_ns,
        "rows": row.rows,
        "tokens": row.tokens,
        "prefill_tokens": row.prefill_tokens,
        "waiting": row.waiting,
        "longest": row.longest or None,
    }


def _spread(lengths: Sequence[int]) -> Json:
    """Nearest-rank quantiles and the count; unknown where there is nothing to rank."""
    ordered = sorted(lengths)
    values = {f"p{p}": units.quantile(ordered, p) for p in (50, 90, 99)}
    return {"n": len(ordered), **values, "max": ordered[-1] if ordered else None}


def summary_to_dict(summary: RunSummary) -> Json:
    """A whole recording as plain values."""
    return {
        "schema": SUMMARY_SCHEMA,
        "start_ns": summary.start_ns,
        "end_ns": summary.end_ns,
        "requests": summary.requests,
        "steps": summary.steps,
        "tokens_out": summary.tokens_out,
        "ttft_ns": _spread(summary.ttft_ns),
        "itl_ns": _spread(summary.itl_ns),
        "by_phase": _pairs(summary.by_phase),
        "by_category": _pairs(summary.by_category),
        "actors": _pairs(summary.actors),
        "meta": dict(summary.meta),
        "host": host_to_dict(summary.host),
        "ledger": ledger_to_dict(summary.ledger),
    }


def write_document(document: Json, out: IO[str]) -> None:
    """Writes one document, indented for people and ended by a line break."""
    json.dump(document, out, indent=2, allow_nan=False)
    out.write("\n")


def write_lines(documents: Iterable[Json], out: IO[str]) -> int:
    """Writes documents as they come, one a line (JSON Lines), and says how many they were."""
    written = 0
    for document in documents:
        out.write(_encode(document) + "\n")
        written += 1
    return written
