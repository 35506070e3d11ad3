# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate save``: a recording's results as Parquet, a file for each table."""

from __future__ import annotations

from pathlib import Path

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import Source, redact_option, source_options
from gpucorrelate.probes.wire.errors import UsageError


@click.command(
    cls=Command,
    short_help="Save a recording's results as Parquet tables.",
    examples=(
        "gpucorrelate save bad.gpcf -o bad.results",
        'gpucorrelate sql "SELECT max(ttft_ns) FROM requests" bad.results',
        "gpucorrelate save --redact bad.gpcf -o to-send/",
    ),
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The folder; made if it is not there. Results that it holds are replaced.",
)
@redact_option
@source_options
def save(*, source: Source, output: Path, redact: bool) -> int:
    """Save requests, steps, segments and the rest as Parquet, a file for each table.

    FILE is a recording or an imported profile; without it the daemon's newest session is read, or
    that of --session. Paths are computed once, so that gpucorrelate sql, gpucorrelate.open and
    whatever reads Parquet have them at once; what every column means is in docs/schema.md.
    Reports need the recording still: results hold no evidence.

    The folder appears when all is written, or not at all. The same recording gives the same bytes.
    """
    from gpucorrelate.api import results
    from gpucorrelate.cli.output import note
    from gpucorrelate.cli.run_tables import tables_of
    from gpucorrelate.correlator.report import units

    results.check_folder(output)
    with tables_of(source, redact=redact) as run:
        if run.folder is not None:
            raise UsageError(f"{run.folder}: is a folder of results already")
        saved = run.save(output)
    rows, size = sum(one.rows for one in saved), sum(one.size_bytes for one in saved)
    note(f"{len(saved)} tables with {rows:,} rows, {units.size(size)}, in {output}")
    return 0
