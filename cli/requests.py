# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate requests``: a list of requests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import (
    COUNT,
    JSON,
    REQUEST_ID,
    Look,
    Source,
    format_option,
    look_options,
    redact_option,
    since_option,
    source_options,
    strict_option,
    until_option,
)
from gpucorrelate.cli.output import note, text_options
from gpucorrelate.cli.select import REQUEST_KEYS, phase_of, sort_requests
from gpucorrelate.cli.source import open_run, strict_code
from gpucorrelate.probes.wire.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import RequestRow


@click.command(
    cls=Command,
    short_help="List requests: the slowest, by any phase, by time or id.",
    examples=(
        "gpucorrelate requests --sort ttft --limit 10",
        "gpucorrelate requests --sort queue --since 5m bad.gpcf",
        "gpucorrelate requests --id 'cmpl-7f*' --format json | jq .ttft_ns",
    ),
)
@click.option(
    "--sort",
    type=click.Choice(REQUEST_KEYS),
    default="arrival",
    show_default=True,
    metavar="KEY",
    help=f"One of {', '.join(REQUEST_KEYS)}. All but arrival and id put the largest first.",
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option(
    "--id",
    "pattern",
    type=REQUEST_ID,
    metavar="ID",
    help="Those of an id (the API's, the engine's, the client's X-Request-Id), or a part of it.",
)
@click.option("--limit", type=COUNT, default=30, show_default=True, help="0: all.")
@since_option
@until_option
@redact_option
@format_option
@strict_option
@look_options
@source_options
def requests(
    *,
    source: Source,
    look: Look,
    form: str,
    sort: str,
    reverse: bool,
    pattern: str | None,
    limit: int,
    since: str,
    until: str,
    redact: bool,
    strict: bool,
) -> int:
    """List requests: when they came, how long they took, and with what.

    FILE is a recording; it needs neither root nor the daemon. Without it the daemon's newest
    session is read, or that of --session. With --format json each line is one request.

    Exits with 3 when no request fits.
    """
    from gpucorrelate.cli.select import window
    from gpucorrelate.correlator.report import json, text

    run = open_run(source, redact=redact)
    if run.is_profile:
        raise NotFoundError(
            "a profile has steps and no requests", hint="list them: gpucorrelate steps"
        )
    since_ns, until_ns = window(run, since, until)
    rows: Sequence[RequestRow] = run.requests(
        since_ns=since_ns, until_ns=until_ns, wanted=pattern or ""
    )
    if not rows:
        raise NotFoundError(
            f"no request fits; the recording has {len(run.requests())}",
            hint="list them: gpucorrelate requests --limit 0"
            if pattern
            else "see what it rests on: gpucorrelate report",
        )
    rows = sort_requests(rows, sort, reverse=reverse)
    shown = rows[:limit] if limit else rows
    if form == JSON:
        json.write_lines(map(json.request_row_to_dict, shown), sys.stdout)
    else:
        text.render_requests(
            shown, sys.stdout, text_options(look, sys.stdout), of=len(rows), phase=phase_of(sort)
        )
    if not run.ledger.clean:
        note("the recording lost events or does not match; `gpucorrelate report` says what")
    return strict_code(run.ledger, strict=strict)
