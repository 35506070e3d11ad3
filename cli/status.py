# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate status``: the daemon, its sessions and its counters."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import JSON, Look, control_option, format_option, look_options
from gpucorrelate.cli.output import text_options
from gpucorrelate.cli.source import client_of

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    cls=Command,
    short_help="The daemon: its sessions, what it can see, what it lost.",
    examples=("gpucorrelate status",),
)
@control_option
@format_option
@look_options
def status(*, control: Path | None, form: str, look: Look) -> int:
    """The daemon: its sessions, what it can see, and what it lost at every hop.

    Needs the daemon; exits with 5 when none answers. Sessions of other users are not shown to
    callers other than root.
    """
    answer = client_of(control).status()
    if form == JSON:
        print(json.dumps(dataclasses.asdict(answer), indent=2))
        return 0
    from gpucorrelate.cli.view_status import render_status

    render_status(answer, sys.stdout, text_options(look, sys.stdout))
    return 0
