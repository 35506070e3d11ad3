# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate compare``: what moved between two recordings."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import JSON, Look, Source, format_option, look_options, top_option
from gpucorrelate.cli.output import note, text_options

_FILE = click.Path(path_type=Path)


@click.command(
    cls=Command,
    short_help="What moved between two recordings, per phase and category.",
    examples=(
        "gpucorrelate compare good.gpcf bad.gpcf",
        "gpucorrelate compare eager.gpcf graph.gpcf --format json | jq .verdict",
    ),
)
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@format_option
@top_option
@look_options
def compare(*, before: Path, after: Path, look: Look, form: str) -> int:
    """What moved between two recordings: means per request, or per step of profiles.

    Latencies, phases and categories of the path, the largest change first; of profiles GPU
    time, launches and classes of kernels too. Means are compared, so that the recordings need
    not be of one length; whether a difference is more than chance the command does not say.
    """
    from gpucorrelate.cli.source import open_run
    from gpucorrelate.correlator.report import compare as comparing

    runs = [open_run(Source(path, "", None)) for path in (before, after)]
    found = comparing.of(*runs)
    if form == JSON:
        comparing.write_json(found, sys.stdout)
    else:
        comparing.render(found, sys.stdout, text_options(look, sys.stdout))
    for path, run in zip((before, after), runs, strict=True):
        if not run.ledger.clean:
            note(f"{path}: lost events or does not match; `gpucorrelate report` says what")
    return 0
