# SPDX-License-Identifier: Apache-2.0
"""What ``gpucorrelate top`` remembers between updates, and how it writes a report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.cli.options import TOP
from gpucorrelate.cli.output import file_name, whole_file
from gpucorrelate.cli.top_view import Slow
from gpucorrelate.cli.top_words import why as words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpucorrelate.cli.top_view import View
    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live_values import LiveUpdate

#: Finished requests that are remembered, and for how long.
_MOST_SLOW = 200
_SLOW_NS = 600_000_000_000
#: Of them reports are kept, for ``w``: a report of a busy engine takes some ten megabytes.
_MOST_REPORTS = 5
_WIDTH = 100


@dataclass(frozen=True)
class Memory:
    """Finished requests, slowest first, and reports of the slowest that were walked."""

    slowest: tuple[Slow, ...] = ()
    reports: tuple[RequestReport, ...] = ()
    ended: int = 0
    note: str = ""

    def take(self, update: LiveUpdate) -> Memory:
        """With what an update tells."""
        why = {one.internal_id: words(one.verdict, one.wall_ns) for one in update.finished}
        since_ns = update.t_ns - _SLOW_NS
        slow = [one for one in self.slowest if one.done.end_ns >= since_ns]
        known = {one.internal_id for one in update.done}
        # A request may be walked some polls after it was told of.
        slow = [
            replace(one, why=why.get(one.done.internal_id, one.why))
            for one in slow
            if one.done.internal_id not in known
        ]
        slow += [Slow(one, why.get(one.internal_id, "")) for one in update.done]
        slow.sort(key=lambda one: -one.done.wall_ns)
        reports = sorted((*self.reports, *update.finished), key=lambda one: -one.wall_ns)
        return Memory(
            tuple(slow[:_MOST_SLOW]),
            tuple(reports[:_MOST_REPORTS]),
            self.ended + len(update.done),
            update.notes[-1] if update.notes else self.note,
        )

    def explained(self, reports: Sequence[RequestReport]) -> Memory:
        """With reports of requests that were told of before."""
        why = {one.internal_id: words(one.verdict, one.wall_ns) for one in reports}
        slowest = tuple(
            replace(one, why=why.get(one.done.internal_id, one.why)) for one in self.slowest
        )
        kept = sorted((*self.reports, *reports), key=lambda one: -one.wall_ns)
        return replace(self, slowest=slowest, reports=tuple(kept[:_MOST_REPORTS]))

    def into(self, view: View) -> View:
        """The view with it."""
        return replace(view, slowest=self.slowest, ended=self.ended, note=self.note)

    def report(self, internal_id: str) -> RequestReport | None:
        """A report that is kept."""
        return next((one for one in self.reports if one.internal_id == internal_id), None)


def write_report(report: RequestReport, folder: Path) -> Path:
    """Write a request's report as text; returns where.

    Raises:
        StoreError: it cannot be written.
    """
    from gpucorrelate.correlator.report import text
    from gpucorrelate.correlator.report.page import TextOptions

    path = folder / f"{file_name(report.request_id)}.txt"
    with whole_file(path) as out:
        text.render_request(report, out, TextOptions(width=_WIDTH, color=False, top=TOP))
    return path.absolute()
