# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate check``: what this host can and cannot observe."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from gpucorrelate.cli.backend import backend_option
from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import JSON, Look, format_option, look_options
from gpucorrelate.cli.output import text_options
from gpucorrelate.probes.wire.errors import EXIT_OK, EXIT_UNSUPPORTED


@click.command(
    cls=Command,
    short_help="What this host can and cannot observe, why, and how to mend it.",
    examples=("sudo gpucorrelate check", "sudo gpucorrelate check --backend bcc"),
)
@backend_option
@format_option
@look_options
def check(*, backend: str, form: str, look: Look) -> int:
    """What this host can and cannot observe, why, and how to mend it.

    Needs no daemon and changes nothing. As root it also loads the kernel probes for a moment
    and makes them observe a wait of its own; without root it says what could not be tried.

    Exits with 0 when everything the main job needs works (waits with their wakers), and with 6
    when it cannot be done here.
    """
    from gpucorrelate.daemon import checkup

    report = checkup.run(backend=backend)
    if form == JSON:
        document = {"usable": report.usable, "complete": report.complete}
        print(json.dumps(document | dataclasses.asdict(report), indent=2))
    else:
        from gpucorrelate.cli.view_check import render_check

        render_check(report, sys.stdout, text_options(look, sys.stdout))
    return EXIT_OK if report.usable else EXIT_UNSUPPORTED
