# SPDX-License-Identifier: Apache-2.0
"""How often the attribution was right, as text."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report.names import pad, rjust, width_of
from gpucorrelate.correlator.report.page import BAD, DIM, GOOD, HEAD, Page, TextOptions
from gpucorrelate.correlator.report.units import plural
from gpucorrelate.probes.wire.schema import CapabilityState
from gpucorrelate.verify import score as scores

if TYPE_CHECKING:
    from gpucorrelate.verify.run import Report, Result
    from gpucorrelate.verify.score import Score

_HEADS = ("category", "culprit", "unknown", "false", "error p95")
_CELL = 10


def render_verify(report: Report, out: IO[str], options: TextOptions) -> None:
    """Writes a row for each cause, all together, and what was taken for what.

    Args:
        report: What came of the run.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options)
    width = max((width_of(result.cause) for result in report.results), default=0)
    heads = "".join(rjust(head, _CELL) for head in _HEADS)
    page.line((f"{pad('cause', width)}  attributed{heads}", HEAD))
    for result in report.results:
        _row(page, result, width)
    page.line()
    if report.total.injections:
        page.line((f"{pad('all together', width)}            {_cells(report.total)}", HEAD))
        _confusion(page, report.total)
    page.line()
    _verdict(page, report)


def _row(page: Page, result: Result, width: int) -> None:
    lead = f"{pad(result.cause, width)}  "
    if result.score is None:
        what = "not possible here: " if result.impossible else "failed: "
        page.wrapped(
            [lead, (what, DIM if result.impossible else BAD)], result.impossible or result.failed
        )
        return
    if result.attributable is None:
        page.line(lead, ("no delay of its kind came about; the machine may be too busy", DIM))
        return
    word, style = ("yes", GOOD) if result.attributable else ("no", BAD)
    page.line(lead, (pad(word, 10), style), _cells(result.score))


def _cells(score: Score) -> str:
    shares = (score.category_share, score.culprit_share, score.unknown_share, score.false_share)
    cells = ["-" if share is None else f"{100 * share:.1f}%" for share in shares]
    error = score.boundary_ns(0.95)
    cells.append("-" if error is None else _length(error))
    return "".join(rjust(cell, _CELL) for cell in cells)


def _length(ns: int) -> str:
    return f"{ns / 1000:.0f} us" if ns < 10_000_000 else f"{ns / 1e6:.0f} ms"


def _confusion(page: Page, total: Score) -> None:
    """What was made, and what was said of it, in milliseconds."""
    made: dict[str, Counter[str]] = {}
    for expected, found, length_ns in total.confusion:
        made.setdefault(expected.replace("|", " or "), Counter())[str(found)] += length_ns
    if not made:
        return
    page.heading("what was made, and what was said of it", "ms")
    width = max(map(width_of, made))
    for expected, said in made.items():
        items = [f"{name} {length_ns / 1e6:.1f}" for name, length_ns in said.most_common()]
        page.wrapped([f"  {pad(expected, width)}  "], ", ".join(items))


def _verdict(page: Page, report: Report) -> None:
    wrong = [r.cause for r in report.results if r.attributable is False]
    tried = sum(r.attributable is not None for r in report.results)
    if wrong:
        page.worded(
            "not here", f"{plural(len(wrong), 'cause')} of {tried}: {', '.join(wrong)}", BAD
        )
    elif not tried:
        page.line(("nothing of this could be tried here", BAD))
    elif report.passed:
        page.line((f"all {plural(tried, 'cause')} can be attributed here", GOOD))
    else:
        page.line(
            (f"all {plural(tried, 'cause')} can be attributed, all together too little", BAD)
        )
    for one in report.capabilities:
        if one.state is CapabilityState.OFF:
            page.worded("not seen", f"{one.source}: {one.reason}", BAD)
        elif one.reason:
            page.worded("lacking", f"{one.source}: {one.reason}")
    _limited(page, report.total)
    error = report.total.boundary_ns(0.95)
    if error is not None and error >= scores.BOUNDARY_TARGET_NS:
        limit = _length(scores.BOUNDARY_TARGET_NS)
        page.worded(
            "note", f"boundaries are missed by more than {limit}, as on a machine that is busy"
        )


def _limited(page: Page, total: Score) -> None:
    """What is true of the host and part of no delay: its own quota held controls up."""
    if total.limited_ns:
        share = 100 * total.limited_ns / total.control_ns
        page.worded(
            "note",
            f"the CPU quota of this process's own cgroup took {total.limited_ns / 1e6:.1f} ms, "
            f"{share:.1f}%, of the operations without a delay: said so, counted so by the kernel, "
            "and not false",
        )
