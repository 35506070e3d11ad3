# SPDX-License-Identifier: Apache-2.0
"""One request as text: where its time went, who made it wait, and what that rests on."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import digest, text_context, text_parts, units
from gpucorrelate.correlator.report.names import clip_middle, width_of, wrap_items, wrap_words
from gpucorrelate.correlator.report.page import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    LABEL_WIDTH,
    Page,
    TextOptions,
    bars,
)
from gpucorrelate.correlator.report.values import PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import RequestReport, Segment, Wait

# Rows of bars: as many as there are phases, for they are what differs from request to request.
_CATEGORIES, _ROWS = 5, 9
_TTFT = "to the first token"
# A smaller part of a block needs no word of explanation.
_TENTH = 10
_DECODING = "decode here: next steps that ran while the first token was on its way out"
# Lines for what was not covered: it is the same for all requests of a recording.
_NOT_COVERED = 2
_SCREEN = 45
# How a longer report is made shorter, step by step: without blank lines, with the smallest phases
# put together, with fewer waits in each list.
_SQUEEZED = (
    (False, _ROWS, 0),
    (True, _ROWS, 0),
    (True, 7, 0),
    (True, 6, 0),
    (True, 5, 0),
    (True, 6, 1),
    (True, 5, 1),
    (True, 6, 2),
    (True, 5, 2),
)


@dataclass(frozen=True)
class _Size:
    """Rows of bars and of waits in a block."""

    rows: int
    waits: int


def render_request(
    report: RequestReport, out: IO[str], options: TextOptions | None = None
) -> None:
    """Writes one request for a screen of 45 lines.

    Where it would be longer, blank lines are left out, then the smallest phases put together,
    then a wait or two of each list left out, if that makes it fit.

    Args:
        report: The request.
        out: An open text file.
        options: Width and style.
    """
    options = options or TextOptions()
    whole = ""
    for tight, rows, fewer in _SQUEEZED:
        page = io.StringIO()
        size = _Size(rows, max(options.top - fewer, 1))
        _render(Page(page, options, tight=tight), report, size)
        whole = whole or page.getvalue()
        if page.getvalue().count("\n") <= _SCREEN:
            whole = page.getvalue()
            break
    out.write(whole)


def _render(page: Page, report: RequestReport, size: _Size) -> None:
    _header(page, report)
    _where(page, report, size)
    page.line()
    _tokens(page, report)
    text_context.context(page, report.context)
    text_parts.unknown(page, report.segments, report.ledger, lines=_NOT_COVERED)
    _boundaries(page, report)
    text_parts.ledger(page, report.ledger, lines=1)
    _checks(page, report)


def _header(page: Page, report: RequestReport) -> None:
    room = page.width - len("request ") - 2 - min(len(report.status), 40)
    page.line(
        ("request ", HEAD),
        (clip_middle(report.request_id, room), HEAD),
        "  ",
        (report.status, text_parts.status_style(report.status)),
    )
    verdict = report.verdict
    for line in wrap_words(verdict.text, page.width):
        page.line((line, "yellow" if verdict.doubts else HEAD))
    items = [f"wall {units.duration(report.wall_ns, 4)}"]
    seen = "" if report.tokens else " (no token seen)"
    ttft = report.ttft_ns
    items.append(f"TTFT {units.duration(ttft, 4)}{seen if ttft is None else ''}")
    gaps = sorted(report.itl_ns)
    if gaps:
        items.append(
            f"ITL p50 {units.duration(units.quantile(gaps, 50))}, "
            f"max {units.duration(gaps[-1])} (n {len(gaps):,})"
        )
    cached = report.cached_tokens
    items.append(
        f"tokens {units.count(report.tokens_in)} in"
        f"{'' if cached == 0 else f' ({units.count(cached)} cached)'},"
        f" {units.count(report.tokens_out)} out"
    )
    _spread(page, items)
    where = [
        f"arrived {units.instant(report.arrival_ns)} s",
        f"ended {units.instant(report.end_ns)} s (CLOCK_MONOTONIC)",
        text_parts.steps_text(report.steps),
        f"preemptions {units.count(report.preemptions)}",
    ]
    if report.internal_id and not report.internal_id.startswith(report.request_id):
        where.append(f"engine's id {clip_middle(report.internal_id, 48)}")
    _spread(page, where)


def _spread(page: Page, items: Sequence[str]) -> None:
    for text in wrap_items(items, page.width, between="  "):
        page.line(text)


def _where(page: Page, report: RequestReport, size: _Size) -> None:
    """Two blocks, to the first token and after it; one where no token was seen."""
    first_ns = report.first_token_ns
    text_parts.check_sum(page, report.segments, report.arrival_ns, report.end_ns)
    if first_ns is None or not report.ttft_segments:
        _block(page, "arrival to end", report.segments, report.waits, size)
        return
    text_parts.check_sum(page, report.ttft_segments, report.arrival_ns, first_ns)
    before = [wait for wait in report.waits if wait.start_ns < first_ns]
    _block(page, _TTFT, report.ttft_segments, before, size)
    rest = digest.clip_segments(report.segments, first_ns, report.end_ns)
    if rest:
        after = [wait for wait in report.waits if wait.start_ns >= first_ns]
        _block(page, "after the first token", rest, after, size)


def _block(
    page: Page, title: str, segments: Sequence[Segment], waits: Sequence[Wait], size: _Size
) -> None:
    length = units.duration(digest.length(segments), 4)
    page.heading(title, f"{length}, and shares of it by phase and category")
    phases = digest.by_phase(segments)
    decoding = dict(phases).get(PhaseName.DECODE, 0)
    if title == _TTFT and decoding * _TENTH >= digest.length(segments):
        page.line((f"  {_DECODING}", DIM))
    rows = min(max(len(phases), _CATEGORIES), size.rows)
    bars(page, phases, digest.by_category(segments), rows=rows)
    text_parts.path(page, waits, segments, size.waits)


def _tokens(page: Page, report: RequestReport) -> None:
    """The longest gap between two tokens and the slowest way out of one."""
    gap, leg = digest.worst_gap(report), digest.worst_leg(report)
    if gap is not None:
        inside = digest.clip_segments(report.segments, gap.start_ns, gap.end_ns)
        said = f"{units.duration(gap.length_ns)} before token {gap.index}{_step(gap.step)}: "
        room = page.width - LABEL_WIDTH - width_of(said)
        page.worded("longest gap", said + text_parts.mostly(inside, room))
    if leg is not None:
        there = "transport" if leg.written_ns is not None else "frontend (no chunk seen)"
        what = "not walked"
        if leg.worst is not None:
            length = units.duration(leg.worst.length_ns)
            what = f"longest {leg.worst.category.value} {length}, {leg.worst.actor.label}"
        elif leg.by_category:
            category, length_ns = leg.by_category[0]
            what = f"mostly {category.value} {units.duration(length_ns)}"
        page.worded(
            "slowest out",
            f"{units.duration(leg.length_ns)} for token {leg.index}{_step(leg.step)} "
            f"to {there}: {what}",
        )


def _step(step: int | None) -> str:
    return "" if step is None else f" (step {step})"


def _boundaries(page: Page, report: RequestReport) -> None:
    scale = units.Scale.of(report.wall_ns)
    items = [
        f"{boundary.name or 'unnamed'} +{scale.number(boundary.t_ns - report.arrival_ns)}"
        for boundary in digest.boundaries(report.phases)
    ]
    if items:
        items[0] = f"in {scale.unit} after arrival: {items[0]}"
        items = [*items[:-1], f"{items[-1]};"] if report.boundaries else items
    words = [f"{item} ·" for item in items[:-1]] + items[-1:]
    words += "; ".join(report.boundaries).split()
    if words:
        page.labelled("boundaries", words, between=" ")


def _checks(page: Page, report: RequestReport) -> None:
    """Whether the token ids are the same wherever they were seen."""
    checks = report.checks
    if not checks:
        page.labelled("token ids", ["not seen anywhere, so not compared"])
        return
    first = checks[0]
    same = all((check.count, check.hash) == (first.count, first.hash) for check in checks)
    if same:
        text = " = ".join(f"{check.place} {check.count:,}" for check in checks)
        verdict = "the same ids" if len(checks) > 1 else "seen at one place, not compared"
        page.labelled("token ids", [f"{text}: {verdict}"], style=GOOD if len(checks) > 1 else "")
        return
    text = ", ".join(f"{check.place} {check.count:,} ({check.hash:016x})" for check in checks)
    page.labelled("TOKEN IDS", [f"DIFFER: {text}"], style=BAD)
