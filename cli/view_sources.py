# SPDX-License-Identifier: Apache-2.0
"""The sources of the host's numbers in the daemon's status, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.page import BAD, DIM, GOOD, Page
from gpucorrelate.correlator.report.units import duration, plural

if TYPE_CHECKING:
    from gpucorrelate.daemon.health import PollingCounters
    from gpucorrelate.daemon.values import SourceInfo

_STYLES = {"on": GOOD, "degraded": "yellow", "off": BAD}
_MS = 1_000_000
_PPM_PER_CENT = 10_000
#: Single things that a source lacks and that are shown.
_SHOWN = 3


def render_sources(page: Page, sources: tuple[SourceInfo, ...]) -> None:
    """Writes how each source of a session stands, and how often it is looked at.

    Args:
        page: Where to.
        sources: Of one session.
    """
    for one in sources:
        reason = f"  {one.reason}" if one.reason else ""
        lead = (f"      {one.source:<12}", (f"{one.state:<10}", _STYLES.get(one.state, "")))
        page.wrapped(lead, f"{_pace(one)}{reason}")
        for lack in one.missing[:_SHOWN]:
            page.wrapped([" " * 18, ("lacks ", DIM)], lack)
        if len(one.missing) > _SHOWN:
            page.line((f"{'':18}and {len(one.missing) - _SHOWN} more", DIM))


def render_polling(page: Page, polling: PollingCounters) -> None:
    """Writes what reading the host's numbers costs."""
    if not polling.limit_ppm:
        return  # an older daemon does not say
    if not polling.every_ms:
        page.worded("polling", "off: --poll-ms 0")
        return
    both = polling.loop_ppm + polling.thread_ppm
    items = [
        f"every {polling.every_ms} ms",
        f"{_share(both)} of a CPU, {_share(polling.limit_ppm)} allowed",
        f"{_share(polling.loop_ppm)} in the loop, {_share(polling.thread_ppm)} in its thread",
        f"looks {polling.looks:,}, failed {polling.failed:,}, not made {polling.skipped:,}",
    ]
    if polling.hurried:
        count = plural(polling.hurried, "session")
        items.append(f"more often in {count}: a request is slow")
    page.labelled("polling", items, style=BAD if polling.skipped else "")


def _pace(one: SourceInfo) -> str:
    if not one.every_ms:
        return "never"
    age = "not yet" if one.age_ms is None else f"{duration(one.age_ms * _MS, 2)} ago"
    return f"every {duration(one.every_ms * _MS, 3)}, {age}"


def _share(ppm: int) -> str:
    return f"{ppm / _PPM_PER_CENT:.2f}%"
