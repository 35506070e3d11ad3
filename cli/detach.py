# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate detach``: stop following engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.follow import ATTACHED
from gpucorrelate.cli.options import PID, SESSION, control_option
from gpucorrelate.cli.output import note
from gpucorrelate.cli.source import client_of
from gpucorrelate.probes.wire.errors import EXIT_NOT_FOUND

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    cls=Command,
    short_help="Stop following an engine; its recording is kept.",
    examples=(
        "gpucorrelate detach --pid 4700",
        "gpucorrelate detach --all",
    ),
)
@click.option("--pid", type=PID, help="Any process of the engine.")
@click.option("--session", type=SESSION, metavar="ID", help="A session, as `status` lists them.")
@click.option("--all", "everything", is_flag=True, help="Every session that the caller may end.")
@control_option
def detach(*, pid: int | None, session: str | None, everything: bool, control: Path | None) -> int:
    """Stop following an engine; its recording is kept and can be reported.

    Needs the daemon. Say which: --pid, --session or --all.
    """
    if (pid is not None) + (session is not None) + everything != 1:
        raise click.UsageError("say which: one of --pid, --session or --all")
    client = client_of(control)
    if not everything:
        ended = [client.detach(session or "", pid=pid)]
    else:
        running = [one.session for one in client.sessions() if one.state == ATTACHED]
        ended = [client.detach(one) for one in running]
    if not ended:
        note("no session is attached")
        return EXIT_NOT_FOUND
    for one in ended:
        print(
            f"detached {one.session}; report it with: gpucorrelate report --session {one.session}"
        )
    return 0
