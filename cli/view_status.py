# SPDX-License-Identifier: Apache-2.0
"""The daemon's status as text."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

from gpucorrelate.cli.view_overhead import render_overhead
from gpucorrelate.cli.view_sources import render_polling, render_sources
from gpucorrelate.correlator.report.page import BAD, DIM, GOOD, HEAD, Page, TextOptions
from gpucorrelate.correlator.report.units import plural

if TYPE_CHECKING:
    from gpucorrelate.daemon.values import DaemonStatus, SessionInfo

_STATE_STYLE = {"on": GOOD, "degraded": "yellow", "off": BAD}


def render_status(status: DaemonStatus, out: IO[str], options: TextOptions) -> None:
    """Writes what the daemon says of itself.

    Args:
        status: The daemon's answer.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options)
    page.line(
        ("daemon ", HEAD),
        f"{status.version}, pid {status.pid}, up {_age(status.uptime_s)}, "
        f"recordings in {status.state_dir}",
    )
    if status.privileges:
        page.worded("privileges", status.privileges)
    for warning in (*status.warnings, *status.behind):
        page.worded("WARNING", warning, style=BAD)
    page.heading("sessions", "" if status.sessions else "none: gpucorrelate attach --pid PID")
    for session in status.sessions:
        _session(page, session)
        own = tuple(one for one in status.sources if one.session == session.session)
        render_sources(page, own)
    page.heading("sources")
    for one in status.capabilities:
        style = _STATE_STYLE.get(one.state, "")
        page.line(f"  {one.source:<20} ", (f"{one.state:<8} ", style), one.reason)
    _counters(page, status)
    render_overhead(page, status)


def _session(page: Page, one: SessionInfo) -> None:
    ended = one.ended_unix_s or time.time()
    alive = sum(process.alive for process in one.processes)
    agents = sum(process.agent for process in one.processes)
    page.line(
        (f"  {one.session}", HEAD),
        f"  {one.state}, {_age(ended - one.started_unix_s)}, {one.size_bytes / 1e6:.1f} MB, ",
        (f"lost {one.lost:,}", BAD if one.lost else ""),
    )
    page.line(
        f"    pid {one.root_pid}, {plural(alive, 'process', 'processes')}, "
        f"{plural(agents, 'agent')}"
    )
    if one.command:
        page.line((f"    {one.command}", DIM))
    if one.reason:
        page.line((f"    ended: {one.reason}", DIM))


def _counters(page: Page, status: DaemonStatus) -> None:
    kernel, ingest, store = status.kernel, status.ingest, status.store
    page.heading("counters", "since the daemon started")
    page.labelled(
        "kernel",
        [
            f"{kernel.state}{f' ({kernel.backend})' if kernel.backend else ''}",
            f"targets {kernel.targets:,}",
            f"rows {kernel.drained:,}",
            f"lost {kernel.lost:,}",
        ],
        style=BAD if kernel.lost else "",
    )
    if kernel.reason:
        page.worded("", kernel.reason)
    bad = ingest.damaged or ingest.missing or ingest.agent_dropped
    page.labelled(
        "agents",
        [
            f"connected {ingest.clients:,}, started {ingest.started:,}",
            f"frames {ingest.frames:,}",
            f"rows {ingest.rows:,}",
            f"dropped by agents {ingest.agent_dropped:,}",
            f"frames missing {ingest.missing:,}, damaged {ingest.damaged:,}",
            f"unasked {ingest.unasked:,}",
            f"refused {ingest.refused:,}, cut off {ingest.cut_off:,}",
        ],
        style=BAD if bad else "",
    )
    page.labelled(
        "recordings",
        [
            f"stored {store.stored_bytes / 1e6:.1f} MB in {store.segments:,} segments",
            f"frames written {store.frames:,}, lost {store.lost_frames:,}",
            f"segments deleted {store.deleted_segments:,}",
            *([f"left out for want of room {store.shed_rows:,} rows"] if store.shed_rows else ()),
        ],
        style=BAD if store.lost_frames or store.shed_rows or store.failing else "",
    )
    if status.callers_refused or status.callers_cut_off:
        page.labelled(
            "callers",
            [f"refused {status.callers_refused:,}, cut off {status.callers_cut_off:,}"],
        )
    render_polling(page, status.polling)
    if status.pauses:
        times = plural(status.pauses, "time")
        longest = f"; longest: {status.longest_pause}" if status.longest_pause else ""
        page.worded("pauses", f"did not come round for half a second {times}{longest}")
    if store.failing:
        page.worded("WARNING", f"writing fails: {store.failing}", style=BAD)


def _age(seconds: float) -> str:
    whole = max(int(seconds), 0)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds_ = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds_} s" if minutes else f"{seconds_} s"
