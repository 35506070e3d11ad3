# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate attach``: follow an engine, then say where its requests' time went."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.gpu_options import gpu_options
from gpucorrelate.cli.moments import duration_s
from gpucorrelate.cli.options import (
    PID,
    Look,
    Source,
    control_option,
    format_option,
    look_options,
    top_option,
)
from gpucorrelate.cli.output import note
from gpucorrelate.cli.source import client_of, open_run
from gpucorrelate.correlator.report.units import plural

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.probes.wire.gpu import GpuPlan


@click.command(
    cls=Command,
    short_help="Follow an engine until Ctrl-C, then a summary.",
    examples=(
        "gpucorrelate attach --pid 4700 --duration 60s",
        "gpucorrelate attach --pid \"$(pgrep -of 'vllm serve')\" --detach",
        "gpucorrelate attach --pid 4700 --gpu nodes --gpu-window 1s --gpu-every 10s",
    ),
)
@click.option("--pid", type=PID, required=True, help="Any process of the engine.")
@click.option("--duration", metavar="TIME", help="Stop after this long: 30s, 5m, or seconds.")
@click.option("--detach", is_flag=True, help="Leave it to the daemon and return at once.")
@gpu_options
@control_option
@format_option
@top_option
@look_options
def attach(
    *,
    pid: int,
    duration: str | None,
    detach: bool,
    gpu: GpuPlan,
    control: Path | None,
    form: str,
    look: Look,
) -> int:
    """Follow an engine and its whole process tree until Ctrl-C, then a summary.

    Needs the daemon, and to be root or the user the engine runs as. Nothing in the engine is
    restarted or changed; detaching leaves it as it was. What was recorded stays with the daemon
    for `requests`, `steps` and `report`. An engine that was attached already stays attached.

    Exits with 3 when no request was seen.
    """
    from gpucorrelate.cli.follow import follow, leave, limit_s, stoppable, watched
    from gpucorrelate.cli.produce import write_summary

    seconds = duration_s(duration) if duration else None
    if detach and seconds is not None:
        raise click.UsageError("--detach leaves at once: give no --duration with it")
    client = client_of(control)
    with stoppable() as stop:
        answer = client.attach(pid, for_s=limit_s(seconds), hold=not detach, gpu=gpu)
        session = answer.session.session
        for warning in answer.warnings:
            note(f"warning: {warning}")
        what = "was attached already" if answer.already else "attached"
        processes = plural(len(answer.session.processes), "process", "processes")
        note(f"{what}: {processes}, session {session}")
        if detach:
            print(session)
            return 0
        note("following until Ctrl-C" if seconds is None else f"following for {duration}")
        with watched(pid):
            try:
                why = follow(client, session, seconds, stop)
            finally:
                if not answer.already:
                    leave(client, session)
    note(f"{why}; {'still attached' if answer.already else 'detached'}")
    write_summary(open_run(Source(None, session, control)), form, look, sys.stdout)
    note(
        f"look further: gpucorrelate requests --session {session} --sort ttft, "
        f"gpucorrelate report --session {session} --slowest 1"
    )
    return 0
