# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate tables``: the statistics tables that Nsight Systems' users know."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import (
    COUNT,
    JSON,
    TEXT,
    Look,
    Source,
    control_option,
    look_options,
    session_option,
)
from gpucorrelate.probes.wire.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.tables import Tables

CSV = "csv"
_LIKE_A_NAME = re.compile(r"[a-z][a-z0-9_]*")


@click.command(
    cls=Command,
    short_help="Statistics tables as nsys has them: API, kernels, copies, OS waits.",
    examples=(
        "gpucorrelate tables run.gpcf",
        "gpucorrelate tables cuda_api_sum --format csv run.gpcf",
        "gpucorrelate tables osrt_sum --limit 0",
        "gpucorrelate tables --format csv -o tables/ run.gpcf",
    ),
)
@click.argument("words", nargs=-1, metavar="[NAME]... [FILE]")
@click.option(
    "--format",
    "form",
    type=click.Choice([TEXT, JSON, CSV]),
    default=TEXT,
    show_default=True,
    help="csv: columns and rounding of nsys stats; json: nothing rounded, null for what is "
    "unknown.",
)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="Write there: a file, or for csv a folder (a file per table) when it ends with /.",
)
@click.option(
    "--limit",
    type=COUNT,
    default=20,
    show_default=True,
    help="Rows of each table as text; 0: all. CSV and JSON have all.",
)
@session_option
@control_option
@look_options
def tables(
    *,
    words: tuple[str, ...],
    look: Look,
    form: str,
    output: str | None,
    limit: int,
    session: str,
    control: Path | None,
) -> int:
    """The statistics tables that users of Nsight Systems know, from a recording.

    NAME is one or more of cuda_api_sum, cuda_gpu_kern_sum, cuda_gpu_mem_time_sum,
    cuda_gpu_mem_size_sum, copy_sizes, osrt_sum; without one all are shown. FILE is a recording,
    or an imported trace; without it the daemon's newest session is read, or that of --session.
    (A file that has a table's name is ./NAME.)

    Times are summed over threads or streams: percentages are of the listed time, never of wall.

    Exits with 3 when the recording holds nothing for a table that was named.
    """
    from gpucorrelate.cli.output import check_place, note, whole_file
    from gpucorrelate.cli.produce import is_folder
    from gpucorrelate.cli.source import batches_of
    from gpucorrelate.correlator.capture import Capture

    names, file = _sorted_out(words)
    if file is not None and session:
        raise click.UsageError("give a FILE or --session, not both")
    folder = form == CSV and output is not None and is_folder(output)
    if output is not None and output != "-" and not folder:
        check_place(Path(output))
    capture = Capture.from_batches(batches_of(Source(file, session, control)))
    found = _made(capture, names)
    if folder and output is not None:
        _write_folder(found, Path(output))
    elif output is None or output == "-":
        _write(found, form, look, limit, sys.stdout)
    else:
        with whole_file(Path(output)) as out:
            _write(found, form, look, limit, out)
    if _lost(capture):
        note("the recording lost events; `gpucorrelate report` says what")
    return 0


def _sorted_out(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """Names of tables, and the file: the one word that is no such name.

    Raises:
        click.UsageError: there are several such words, or one is no file but looks like a name.
    """
    from gpucorrelate.correlator.tables import NAMES

    names = [word for word in dict.fromkeys(words) if word in NAMES]
    others = [word for word in words if word not in NAMES]
    known = f"tables are {', '.join(NAMES)}"
    for word in others:
        if _LIKE_A_NAME.fullmatch(word) and not Path(word).exists():
            raise click.UsageError(f"{word} is neither a table nor a file; {known}")
    if len(others) > 1:
        raise click.UsageError(f"one FILE at most, not {' and '.join(others)}; {known}")
    return names, Path(others[0]) if others else None


def _made(capture: Capture, names: list[str]) -> Tables:
    """The tables that were named, or all for which there is something.

    Raises:
        NotFoundError: there is nothing for one that was named, or for any.
    """
    from gpucorrelate.cli.output import note
    from gpucorrelate.correlator import tables as made

    none: dict[str, str] = {}
    if not made.has_device_activity(capture):
        none.update(dict.fromkeys(made.CUDA_NAMES, "this recording holds no device activity"))
    if not made.has_waits(capture):
        none[made.OS] = "this recording holds no OS waits"
    for name in names:
        if name in none:
            raise NotFoundError(f"{name}: {none[name]}")
    left = [name for name in names or made.NAMES if name not in none]
    said = list(dict.fromkeys(none.values()))
    if not left:
        raise NotFoundError(" and ".join(said).replace("and this recording holds", "and"))
    if not names:
        for reason in said:
            which = [name for name, why in none.items() if why == reason]
            note(f"{reason}: left out {', '.join(which)}")
    return made.tables(capture, left)


def _lost(capture: Capture) -> bool:
    """Whether anything that the tables count may be missing."""
    intake = capture.intake
    return bool(intake.missing or intake.dropped or intake.damage or len(capture.table("loss")))


def _write(found: Tables, form: str, look: Look, limit: int, out: IO[str]) -> None:
    from gpucorrelate.cli.output import text_options
    from gpucorrelate.correlator.report import json
    from gpucorrelate.correlator.report import tables as report

    if form == JSON:
        json.write_document(report.tables_to_dict(found), out)
    elif form == CSV:
        report.write_csv(found, out)
    else:
        report.render_tables(found, out, text_options(look, out), limit=limit)


def _write_folder(found: Tables, folder: Path) -> None:
    """A CSV file for each table."""
    from dataclasses import replace

    from gpucorrelate.cli.output import note, whole_file
    from gpucorrelate.correlator.report.tables import write_csv

    folder.mkdir(parents=True, exist_ok=True)
    for name in found.names:
        with whole_file(folder / f"{name}.csv") as out:
            write_csv(replace(found, names=(name,)), out)
    note(f"{len(found.names)} tables in {folder}/")
