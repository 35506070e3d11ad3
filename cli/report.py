# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate report``: where the time of a request, a step or a whole recording went."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import (
    COUNT,
    JSON,
    MAX_NUMBER,
    REQUEST_ID,
    TEXT,
    Look,
    Source,
    look_options,
    redact_option,
    since_option,
    source_options,
    strict_option,
    top_option,
    until_option,
)

#: For other people's viewers; what they hold is in ``cli.drawing``, which needs more to import.
_DRAWN = ("perfetto", "folded", "speedscope")
#: A page; how it is made is in ``cli.page``.
_HTML = "html"


@click.command(
    cls=Command,
    short_help="Where the time of a request, a step or a recording went, and why.",
    examples=(
        "gpucorrelate report --slowest 1",
        "gpucorrelate report --request chatcmpl-8f3a bad.gpcf",
        "gpucorrelate report --step 58 --format json | jq '.waits[0]'",
        "gpucorrelate report --all -o reports/ bad.gpcf",
        "gpucorrelate report --format html -o bad.html bad.gpcf",
        "gpucorrelate report --slowest 1 --format perfetto -o slow.pftrace bad.gpcf",
        "gpucorrelate report --format folded bad.gpcf | flamegraph.pl > why.svg",
    ),
)
@click.option(
    "--request",
    "request_id",
    type=REQUEST_ID,
    metavar="ID",
    help="Any of its ids (the API's, the engine's, the client's X-Request-Id), or a part of one.",
)
@click.option("--step", type=COUNT, help="A step's number.")
@click.option(
    "--process",
    default="",
    metavar="NAME",
    help="Whose step, where several processes have one of that number.",
)
@click.option(
    "--slowest",
    type=click.IntRange(1, MAX_NUMBER),
    metavar="N",
    help="The N slowest requests; of a profile, steps.",
)
@click.option("--all", "everything", is_flag=True, help="All requests, as JSON.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="Write there: a file, or for --all a folder (a file per request) when it ends with /.",
)
@since_option
@until_option
@redact_option
@click.option(
    "--format",
    "form",
    type=click.Choice([TEXT, JSON, _HTML, *_DRAWN]),
    default=TEXT,
    show_default=True,
    help="json: integer nanoseconds, null for what is unknown; lists are one document a line. "
    "html: a page to look at, one file. perfetto: threads, GPU streams, steps and requests in "
    "time, for ui.perfetto.dev. folded, "
    "speedscope: flame graphs of critical-path time.",
)
@strict_option
@top_option
@look_options
@source_options
def report(
    *,
    source: Source,
    look: Look,
    form: str,
    request_id: str | None,
    step: int | None,
    process: str,
    slowest: int | None,
    everything: bool,
    output: str | None,
    since: str,
    until: str,
    redact: bool,
    strict: bool,
) -> int:
    """Where the time of a request, a step or a whole recording went, and who made it wait.

    Without a choice it is the whole recording: latencies, phases, categories, actors. A
    request's segments follow each other from arrival to last byte and sum to its wall time
    exactly; what is not known is a part of its own. Every report ends with what it rests on.

    FILE is a recording; it needs neither root nor the daemon. Without it the daemon's newest
    session is read, or that of --session. A profile that was imported has no requests: its
    report is of its steps and devices. Exits with 3 when there is nothing to report.

    A page (html) is one file that loads nothing: of the whole recording with all its requests
    and its slowest steps to open, or of what is chosen.

    A Perfetto trace is of the whole recording, of the time since --since and until --until, or
    of the time around what is chosen. It is binary, so it goes to a file (compressed where its
    name ends in .gz) or into a pipe; the package perfetto must be installed. Flame graphs are of
    all requests, or of what is chosen; their weights are nanoseconds of wall time.
    """
    chosen = [
        name
        for name, given in (
            ("--request", request_id is not None),
            ("--step", step is not None),
            ("--slowest", slowest is not None),
            ("--all", everything),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} do not go together")
    if process and step is None:
        raise click.UsageError("--process goes with --step")
    drawn = form in _DRAWN
    if (since or until) and chosen not in (["--slowest"], ["--all"], [] if drawn else None):
        raise click.UsageError("--since and --until go with --slowest and --all")
    from gpucorrelate.cli import produce
    from gpucorrelate.cli.output import check_place
    from gpucorrelate.cli.source import open_run, strict_code

    want = produce.Wanted(request_id, step, slowest, everything, since, until, process)
    if drawn:
        from gpucorrelate.cli import drawing

        drawing.check(form, want, output)
    if form == _HTML:
        from gpucorrelate.cli import page

        page.check(want, output)
    folder = everything and output is not None and produce.is_folder(output)
    if output is not None and output != "-" and not folder:
        check_place(Path(output))
    run = open_run(source, redact=redact)
    form = JSON if everything else form
    if drawn:
        drawing.write(run, want, form, output)
    elif form == _HTML:
        page.write(run, want, output)
    elif output is None or output == "-":
        produce.write(run, want, form, look, sys.stdout)
    elif folder:
        produce.write_folder(run, want, Path(output))
    else:
        produce.write_file(run, want, form, look, Path(output))
    return strict_code(run.ledger, strict=strict)
