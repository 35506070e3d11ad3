# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate record``: a recording in a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.gpu_options import gpu_options
from gpucorrelate.cli.moments import duration_s
from gpucorrelate.cli.options import PID, SESSION, control_option
from gpucorrelate.cli.output import note
from gpucorrelate.cli.source import client_of
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from gpucorrelate.probes.wire.gpu import GpuPlan


@click.command(
    cls=Command,
    short_help="Record an engine to a file that any machine can report.",
    examples=(
        "gpucorrelate record -o bad.gpcf --pid 4700 --duration 60s",
        "gpucorrelate record -o now.gpcf --session 20260101-120000-4700",
    ),
)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option("--pid", "pids", type=PID, multiple=True, help="Any process of the engine.")
@click.option(
    "--session", type=SESSION, metavar="ID", help="Copy a session that there is; attach nothing."
)
@click.option("--duration", metavar="TIME", help="Stop after this long: 30s, 5m, or seconds.")
@click.option("--force", is_flag=True, help="Write over a FILE that exists.")
@gpu_options
@control_option
def record(
    *,
    output: Path,
    pids: tuple[int, ...],
    session: str | None,
    duration: str | None,
    force: bool,
    gpu: GpuPlan,
    control: Path | None,
) -> int:
    """Record an engine to a file that any machine can report.

    Needs the daemon, and to be root or the user the engine runs as. Follows until Ctrl-C, until
    --duration is over or until the engine ends, then detaches and writes FILE, which appears
    when it is complete. `requests`, `steps` and `report` take FILE, without root and without
    the daemon, on any machine.
    """
    from gpucorrelate.cli.saving import check_output, save_session

    if bool(pids) == bool(session):
        raise click.UsageError("give --pid, or --session for one that there is")
    if session and duration:
        raise click.UsageError("--duration goes with --pid")
    seconds = duration_s(duration) if duration else None
    check_output(output, force=force)
    client = client_of(control)
    if session is None:
        from gpucorrelate.cli.follow import follow, leave, limit_s, stoppable, watched

        with stoppable() as stop:
            answers = [
                client.attach(pid, for_s=limit_s(seconds), hold=pid == pids[0], gpu=gpu)
                for pid in pids
            ]
            mine = [answer.session.session for answer in answers if not answer.already]
            with watched(pids[0]):
                try:
                    found = {answer.session.session for answer in answers}
                    if len(found) > 1:
                        raise UsageError(
                            f"{len(found)} engines cannot share a recording",
                            hint="record each process tree to a file of its own",
                        )
                    session = found.pop()
                    for warning in answers[0].warnings:
                        note(f"warning: {warning}")
                    note(f"recording session {session}")
                    note(follow(client, session, seconds, stop))
                finally:
                    for one in mine:
                        leave(client, one)
    size = save_session(client, session, output)
    note(f"{size / 1e6:.1f} MB in {output}; report it with: gpucorrelate report {output}")
    return 0
