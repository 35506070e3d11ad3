# SPDX-License-Identifier: Apache-2.0
"""What a host can and cannot observe, as text."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report.names import width_of
from gpucorrelate.correlator.report.page import BAD, DIM, GOOD, HEAD, Page, TextOptions
from gpucorrelate.correlator.report.units import plural

if TYPE_CHECKING:
    from gpucorrelate.daemon.checkup import CheckReport
    from gpucorrelate.daemon.checkup_values import Check

_STYLES = {"ok": GOOD, "degraded": "yellow", "missing": BAD}
_STATE_WIDTH = max(map(len, _STYLES))


def render_check(report: CheckReport, out: IO[str], options: TextOptions) -> None:
    """Writes each thing that was looked at, what is lost without it and how to mend it.

    Args:
        report: What was found.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options)
    page.line((f"gpucorrelate {report.version}", HEAD), f" on {report.kernel}")
    page.line()
    width = max((width_of(check.name) for check in report.checks), default=0)
    for check in report.checks:
        _check(page, check, width)
    page.line()
    fatal = [c.name for c in report.checks if c.needed and c.state.value == "missing"]
    if fatal:
        page.line(("requests cannot be explained here: ", BAD), f"{', '.join(fatal)} missing")
        return
    partly = [check.name for check in report.checks if check.state.value != "ok"]
    page.line(
        ("requests can be explained here", GOOD),
        f"; {plural(len(partly), 'thing is', 'things are')} not seen or not as they could be"
        if partly
        else "; nothing is missing",
    )
    page.line(("how often that is right here: sudo gpucorrelate verify --quick", DIM))


def _check(page: Page, check: Check, width: int) -> None:
    state = check.state.value
    lead = f"{check.name:<{width}}  "
    room = " " * (width + _STATE_WIDTH + 4)
    page.wrapped([lead, (f"{state:<{_STATE_WIDTH}}  ", _STYLES.get(state, ""))], check.found)
    if check.lost:
        page.wrapped([room, ("lost: ", DIM)], check.lost)
    if check.mend:
        page.wrapped([room, ("mend: ", DIM)], check.mend)
