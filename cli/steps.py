# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate steps``: a list of engine steps."""

from __future__ import annotations

import sys

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import (
    COUNT,
    JSON,
    Look,
    Source,
    format_option,
    look_options,
    since_option,
    source_options,
    strict_option,
    until_option,
)
from gpucorrelate.cli.output import note, text_options
from gpucorrelate.cli.select import (
    PROFILE_KEYS,
    STEP_KEYS,
    STEP_KINDS,
    sort_profile_steps,
    sort_steps,
)
from gpucorrelate.cli.source import open_run, strict_code
from gpucorrelate.probes.wire.errors import NotFoundError


@click.command(
    cls=Command,
    short_help="List engine steps: the slowest, by kind, by time.",
    examples=(
        "gpucorrelate steps --sort wall --limit 10",
        "gpucorrelate steps --kind mixed --since 30s bad.gpcf",
    ),
)
@click.option(
    "--sort",
    type=click.Choice(tuple(dict.fromkeys((*STEP_KEYS, *PROFILE_KEYS)))),
    default="step",
    show_default=True,
    metavar="KEY",
    help=f"One of {', '.join(STEP_KEYS)}; of a profile {', '.join(PROFILE_KEYS)}. "
    "All but step put the largest first.",
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--kind", type=click.Choice(STEP_KINDS), help="Only steps of this kind.")
@click.option("--limit", type=COUNT, default=30, show_default=True, help="0: all.")
@since_option
@until_option
@format_option
@strict_option
@look_options
@source_options
def steps(
    *,
    source: Source,
    look: Look,
    form: str,
    sort: str,
    reverse: bool,
    kind: str | None,
    limit: int,
    since: str,
    until: str,
    strict: bool,
) -> int:
    """List engine steps: what they held, how long they took, and what took longest.

    Steps overlap under asynchronous scheduling, so their lengths must not be summed. FILE is a
    recording; without it the daemon's newest session is read, or that of --session.

    Exits with 3 when no step fits.
    """
    from gpucorrelate.cli.select import window
    from gpucorrelate.correlator.report import json, text

    run = open_run(source)
    if run.is_profile:
        from gpucorrelate.cli import profile

        if kind or since or until:
            raise click.UsageError("--kind, --since and --until do not go with a profile")
        every = sort_profile_steps(run.devices.rows(), sort, reverse=reverse)
        profile.write_steps(
            every[:limit] if limit else every, form, look, sys.stdout, of=len(every)
        )
        return strict_code(run.ledger, strict=strict)
    since_ns, until_ns = window(run, since, until)
    found = run.steps(since_ns=since_ns, until_ns=until_ns)
    rows = [row for row in found if kind in (None, row.kind)]
    if not rows:
        raise NotFoundError(
            f"no step fits; {len(found)} are in that time", hint="see: gpucorrelate report"
        )
    rows = sort_steps(rows, sort, reverse=reverse)
    shown = rows[:limit] if limit else rows
    if form == JSON:
        json.write_lines(map(json.step_row_to_dict, shown), sys.stdout)
    else:
        text.render_steps(shown, sys.stdout, text_options(look, sys.stdout), of=len(rows))
    if not run.ledger.clean:
        note("the recording lost events or does not match; `gpucorrelate report` says what")
    return strict_code(run.ledger, strict=strict)
