# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate watch``: what of the host matters to a process, live."""

from __future__ import annotations

import time

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.moments import duration_s
from gpucorrelate.cli.options import JSON, PID, format_option
from gpucorrelate.cli.output import note


@click.command(
    cls=Command,
    short_help="Live: which limits, pressure, faults and delays a process meets.",
    examples=(
        "gpucorrelate watch --pid 4700",
        "gpucorrelate watch --pid 4700 --interval 0.2 --duration 30s",
        "gpucorrelate watch --pid 4700 --format json | jq -c '{who, says, share_ppm}'",
    ),
)
@click.option("--pid", type=PID, required=True, help="A process; all below it belong to it.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--duration", metavar="TIME", help="Stop after this long: 30s, 5m, or seconds.")
@format_option
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Lines of one kind at a look, the largest first; JSON has all.",
)
def watch(*, pid: int, interval: float, duration: str | None, form: str, top: int) -> int:
    """A line for each thing of the host that matters to a process, when it happens.

    CPU quota used up, by cgroup; pressure; major faults; threads that were ready without a CPU;
    memory limits and kills; counters of GPUs that changed; what threads stood blocked in;
    processes that began and ended. The same numbers and rules as in the report of a request. Where
    nothing happens nothing is printed.

    Needs no daemon and records nothing. Your own processes need no root; root sees all of them.
    """
    from gpucorrelate.cli import view_watch
    from gpucorrelate.cli.follow import stoppable
    from gpucorrelate.correlator.report.units import plural
    from gpucorrelate.daemon.vitals import VitalSigns

    seconds = duration_s(duration) if duration else None
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    heading = form != JSON
    with stoppable() as stop, VitalSigns(pid) as signs:
        while True:
            found = signs.look()
            if not found.processes:
                note(f"process {signs.root.pid} has ended")
                return 0
            if not found.since_ns:
                processes = plural(found.processes, "process", "processes")
                note(f"watching {processes} with {plural(found.threads, 'thread')}")
            if form == JSON:
                for line in view_watch.documents(found):
                    print(line, flush=True)
            else:
                for line in view_watch.lacks(found):
                    note(line)
                for line in view_watch.lines(found, top):
                    if heading:
                        print(view_watch.HEADING)
                        heading = False
                    print(line, flush=True)
            if stop.wait(max(0.0, min(interval, deadline - time.monotonic()))):
                return 0
            if time.monotonic() >= deadline:
                return 0
