# SPDX-License-Identifier: Apache-2.0
"""One engine step as text."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import digest, text_context, text_parts, units
from gpucorrelate.correlator.report.page import BAD, HEAD, Page, TextOptions, bars

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.values import Segment, StepReport

_IDS_SHOWN = 6


def render_step(report: StepReport, out: IO[str], options: TextOptions | None = None) -> None:
    """Writes one step: what its wall time was spent on, by whom, and what it waited for.

    Args:
        report: The step.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options or TextOptions())
    page.line(
        (f"step {report.step}", HEAD),
        f"  {report.kind}  ",
        (report.status, text_parts.status_style(report.status)),
    )
    page.line(
        f"wall {units.duration(report.wall_ns, 4)} (steps overlap: never sum these)   "
        f"workers busy {units.duration(report.worker_ns)}"
        + (f", {units.share(report.worker_ns, report.wall_ns)}" if report.worker_ns else "")
    )
    page.line(
        f"{units.plural(report.rows, 'row')}, {units.plural(report.tokens, 'token')} "
        f"({units.count(report.prefill_tokens)} of them prefill), "
        f"{report.waiting:,} requests waiting"
    )
    if report.error:
        page.labelled("raised", [report.error], style=BAD)
    page.line(f"schedule start {units.instant(report.start_ns)} s   update end "
              f"{units.instant(report.end_ns)} s (CLOCK_MONOTONIC)")  # fmt: skip
    text_parts.check_sum(page, report.segments, report.start_ns, report.end_ns)
    length = units.duration(report.wall_ns, 4)
    page.heading("schedule start to update end", f"{length}, shares of it by category and span")
    bars(page, digest.by_category(report.segments), _by_span(report.segments))
    text_parts.path(page, report.waits, report.segments)
    page.line()
    text_context.context(page, report.context)
    text_parts.unknown(page, report.segments, report.ledger)
    _requests(page, report)
    text_parts.ledger(page, report.ledger)


def _by_span(segments: tuple[Segment, ...]) -> list[tuple[str, int]]:
    """Nanoseconds per process and span, the largest first."""
    sums: dict[str, int] = {}
    for segment in segments:
        who = segment.actor.process or segment.actor.label
        name = f"{who} {segment.span}" if segment.span else who
        sums[name] = sums.get(name, 0) + segment.length_ns
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def _requests(page: Page, report: StepReport) -> None:
    """Its requests by the ids that other reports show."""
    ids = [shown for shown, _ in report.requests] or list(report.request_ids)
    more = [f"{len(ids) - _IDS_SHOWN:,} more"] if len(ids) > _IDS_SHOWN else []
    page.labelled("requests", [*ids[:_IDS_SHOWN], *more] or ["none"])
