# SPDX-License-Identifier: Apache-2.0
"""Reports as a page: of a whole recording or profile, or of what is chosen of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpucorrelate.cli.output import note, whole_file
from gpucorrelate.cli.profile import must_be_of_a_profile
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.html import render
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from gpucorrelate.cli.produce import Wanted
    from gpucorrelate.correlator.report.build import Run

#: A page of more requests would take minutes to make; the whole recording's holds them all.
_MOST_CHOSEN = 200


def check(want: Wanted, output: str | None) -> None:
    """Refuses what cannot be, before anything is read.

    Raises:
        UsageError: these options do not go together, or a terminal would get a page.
    """
    if want.everything:
        raise UsageError(
            "--all is a JSON document for each request, not html",
            hint="without it the page is of the whole recording, with its requests to open",
        )
    if want.slowest is not None and want.slowest > _MOST_CHOSEN:
        raise UsageError(
            f"a page is of {_MOST_CHOSEN} requests or steps at most",
            hint="without --slowest it is of the whole recording",
        )
    if output in (None, "-") and sys.stdout.isatty():
        raise UsageError(
            "a page is for a browser and standard output is a terminal",
            hint="name a file: -o report.html",
        )


def write(run: Run, want: Wanted, output: str | None) -> None:
    """Writes a page of what is wanted to a file, or to standard output.

    Raises:
        NotFoundError: there is nothing of it.
        StoreError: the file cannot be written.
    """
    if output is None or output == "-":
        _write(run, want, sys.stdout)
        return
    path = Path(output)
    with whole_file(path) as out:
        _write(run, want, out)
    if path.is_file():
        note(f"{units.size(path.stat().st_size)} in {path}; open it in a browser")


def _write(run: Run, want: Wanted, out: IO[str]) -> None:
    if run.is_profile:
        _write_profile(run, want, out)
    elif want.slowest is not None:
        from gpucorrelate.cli.produce import requests_of

        render.write_requests(run, requests_of(run, want), out)
    elif want.request_id is not None:
        render.write_requests(run, [run.request(want.request_id)], out)
    elif want.step is not None:
        render.write_step(run, run.step(want.step, want.process), out)
    else:
        _write_run(run, out)


def _write_run(run: Run, out: IO[str]) -> None:
    if not run.requests_ and not len(run.steps_):
        raise NotFoundError(
            "the recording holds no request and no step",
            hint="none came while it ran, or no agent is in the engine: gpucorrelate status",
        )
    render.write_run(run, out)


def _write_profile(run: Run, want: Wanted, out: IO[str]) -> None:
    must_be_of_a_profile(run, want)
    devices = run.devices
    if want.step is not None:
        chosen = [devices.find(want.step, want.process)]
    elif want.slowest is not None:
        chosen = devices.slowest(want.slowest)
    else:
        render.write_profile(run, out)
        return
    if not chosen:
        raise NotFoundError("the profile has no step")
    render.write_profile_steps(run, [devices.report(at) for at in chosen], out)
