# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate top``: what requests wait for now, and who makes them wait."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import PID, Source, source_options
from gpucorrelate.cli.output import note
from gpucorrelate.cli.source import client_of
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from gpucorrelate.daemon.client import Client
    from gpucorrelate.daemon.live import LiveSession, LiveUpdate

#: Share of one CPU that top may take on average, the drawing not counted.
_SHARE = 0.2
#: Reports in one go: what is in flight must not wait for them.
_BURST_S = 0.3


@click.command(
    cls=Command,
    short_help="Live: what requests wait for now, and who makes them wait.",
    examples=(
        "gpucorrelate top",
        "gpucorrelate top --pid 4700",
        "gpucorrelate top --once",
        "gpucorrelate top --json | jq -c '.culprits[0]'",
        "gpucorrelate top bad.gpcf",
    ),
)
@click.option("--pid", type=PID, metavar="N", help="The session of this process, or a new one.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Print one screen and end; no terminal is needed.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document a look, each on a line of its own."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="PATH",
    help="Where the key w writes reports. [default: the current one]",
)
@source_options
def top(
    *,
    source: Source,
    pid: int | None,
    interval: float,
    once: bool,
    as_json: bool,
    folder: Path,
) -> int:
    """Requests in flight with what they wait for, the engine's pace, who holds requests up.

    Without a choice it is the daemon's newest session; with --pid the one that has that process,
    which is attached while top runs if it is in none. FILE is a recording, which may still grow.
    Keys are told at the bottom of the screen and by `?`. The screen needs the package textual;
    --once and --json do not.

    Under load not every finished request is walked, for top takes a fifth of a CPU at most: the
    slowest are, and the screen says how many were not.
    """
    if pid is not None and (source.file is not None or source.session):
        raise click.UsageError("give --pid, --session or a FILE, not several")
    screen = not once and not as_json
    if screen:
        _check_terminal()
        _check_textual()
    live, client = _open(source, pid)
    with live:
        del client
        if as_json:
            return _json(live, interval, once=once)
        if once:
            return _once(live, interval)
        place = str(source.file) if source.file is not None else f"--session {live.name}"
        return _screen(live, interval, folder, place)


def _open(source: Source, pid: int | None) -> tuple[LiveSession, Client | None]:
    """The session to follow.

    Raises:
        NotFoundError: there is none.
        DaemonError: the daemon cannot be asked.
    """
    from gpucorrelate.daemon.live import LiveOptions, LiveSession

    options = LiveOptions(cpu_share=_SHARE, burst_s=_BURST_S, slowest_first=True)
    if source.file is not None:
        return LiveSession.follow_file(source.file, options), None
    client = client_of(source.control)
    session = source.session
    if pid is not None:
        session = _session_of(client, pid)
    elif not session and not client.sessions():
        raise NotFoundError(
            "the daemon has no session",
            hint="attach to an engine: gpucorrelate top --pid PID; or name a recording's FILE",
        )
    return LiveSession.follow(client, session, options), client


def _session_of(client: Client, pid: int) -> str:
    """The running session of a process; a new one ends with this command's connection."""
    answer = client.attach(pid, hold=True)
    for warning in answer.warnings:
        note(f"warning: {warning}")
    return answer.session.session


def _check_terminal() -> None:
    # Textual draws on standard error.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError(
            "top needs a terminal", hint="for scripts: gpucorrelate top --once, or --json"
        )
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise UsageError(
            f"top cannot draw on this terminal (TERM is {os.environ.get('TERM') or 'not set'})",
            hint="set TERM to what it is, or use: gpucorrelate top --once",
        )


def _check_textual() -> None:
    try:
        import textual  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as exc:
        raise UsageError(
            "top's screen needs the package textual, which is not installed",
            hint="pip install 'gpucorrelate[top]'; or use: gpucorrelate top --once",
        ) from exc


def _screen(live: LiveSession, interval_s: float, folder: Path, place: str) -> int:
    from gpucorrelate.cli.top_app import TopApp

    color = not os.environ.get("NO_COLOR")
    app = TopApp(live, interval_s=interval_s, color=color, folder=folder, place=place)
    try:
        app.run(mouse=False)  # so that text can still be marked and copied
    finally:
        app.stop()
    if app.error is not None:
        raise app.error
    return 0


def _settled(live: LiveSession, interval_s: float) -> list[LiveUpdate]:
    """Updates until there is something to show: all of a file, or two looks at a session."""
    import time

    updates = [live.poll()]
    if updates[0].state == "file":
        while not updates[-1].ended:
            updates.append(live.finish())
        return updates
    time.sleep(interval_s)
    return [*updates, live.poll()]


def _once(live: LiveSession, interval_s: float) -> int:
    import shutil

    from rich.console import Console

    from gpucorrelate.cli.top_state import Memory
    from gpucorrelate.cli.top_view import View, screen

    memory = Memory()
    updates = _settled(live, interval_s)
    for update in updates:
        memory = memory.take(update)
    size = shutil.get_terminal_size((100, 40))
    height = max(size.lines - 1, 24)
    view = memory.into(View(width=max(size.columns, 60), height=height, color=False, once=True))
    console = Console(width=view.width, no_color=True, highlight=False, markup=False)
    console.print(screen(updates[-1], view), end="\n", soft_wrap=True)
    return 0


def _json(live: LiveSession, interval_s: float, *, once: bool) -> int:
    import json
    import time

    from gpucorrelate.cli.top_json import update_to_dict
    from gpucorrelate.cli.top_state import Memory

    memory = Memory()
    updates = _settled(live, interval_s) if once else [live.poll()]
    while True:
        for update in updates:
            memory = memory.take(update)
        document = update_to_dict(updates[-1], memory.slowest[:20], memory.ended)
        print(json.dumps(document, separators=(",", ":")), flush=True)
        if once or updates[-1].ended:
            return 0
        time.sleep(interval_s)
        updates = [live.poll()]
