# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate sql``: queries over a recording's tables."""

from __future__ import annotations

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
    look_options,
    source_options,
)
from gpucorrelate.cli.tables import CSV
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from gpucorrelate.api.query import Answer

_LONGEST_QUERY = 1 << 20


@click.command(
    cls=Command,
    short_help="Query requests, steps and their paths with SQL.",
    examples=(
        'gpucorrelate sql "SHOW TABLES" bad.gpcf',
        'gpucorrelate sql "DESCRIBE segments" bad.gpcf',
        'gpucorrelate sql "SELECT actor, sum(length_ns) AS ns FROM segments GROUP BY actor '
        'ORDER BY ns DESC LIMIT 5" bad.gpcf',
        'gpucorrelate sql "FROM requests" --format csv -o requests.csv bad.results',
        'gpucorrelate sql "SELECT tenant, avg(ttft_ns) FROM requests JOIN who USING (request_id) '
        'GROUP BY tenant" --with who=clients.csv bad.gpcf',
    ),
)
@click.argument("query")
@click.option(
    "--format",
    "form",
    type=click.Choice([TEXT, CSV, JSON]),
    default=TEXT,
    show_default=True,
    help="csv: empty where unknown; json: null there, and a document for each row, one a line.",
)
@click.option("-o", "--output", metavar="FILE", help="Write there. [default: standard output]")
@click.option(
    "--limit",
    type=COUNT,
    default=200,
    show_default=True,
    help="Rows shown as text; 0: all. CSV and JSON have all.",
)
@click.option(
    "--with",
    "more",
    metavar="NAME=FILE",
    multiple=True,
    help="A table of your own to join with: Parquet, CSV (with names in its first line) or JSON. "
    "May be repeated.",
)
@look_options
@source_options
def sql(
    *,
    source: Source,
    query: str,
    form: str,
    output: str | None,
    limit: int,
    more: tuple[str, ...],
    look: Look,
) -> int:
    """Query the tables of a recording with SQL, as DuckDB has it.

    QUERY is one query that reads, or - to read it from standard input. FILE is a recording, an
    imported profile, or a folder of gpucorrelate save, which answers at once; without it the
    daemon's newest session is read, or that of --session. Tables and columns: SHOW TABLES,
    DESCRIBE TABLE, docs/schema.md.

    Times are nanoseconds, null is unknown. Segments of one request sum to its wall time; those of
    several are request time, for requests of one batch wait together.

    A query reads these tables and the files of --with; no other file, no network, and it changes
    nothing.
    """
    from gpucorrelate.api.query import Database
    from gpucorrelate.cli.output import check_place, whole_file
    from gpucorrelate.cli.run_tables import tables_of

    files = _files(more)
    text = _query(query)
    if output is not None and output != "-":
        check_place(Path(output))
    with tables_of(source) as run, Database(run, files) as database:
        answer = database.ask(text)
        if output is None or output == "-":
            _write(answer, form, look, limit, sys.stdout)
        else:
            with whole_file(Path(output)) as out:
                _write(answer, form, look, limit, out)
    return 0


def _files(given: tuple[str, ...]) -> dict[str, Path]:
    """Tables of the user's by their names.

    Raises:
        UsageError: one is not written as NAME=FILE, or a name is there twice.
    """
    found: dict[str, Path] = {}
    for one in given:
        name, equals, place = one.partition("=")
        if not equals or not name or not place:
            raise UsageError(f"--with {one!r:.80}: not NAME=FILE")
        if name in found:
            raise UsageError(f"--with {name}: given twice")
        found[name] = Path(place)
    return found


def _query(given: str) -> str:
    """The query's text.

    Raises:
        UsageError: it is longer than any that people write.
    """
    text = sys.stdin.read(_LONGEST_QUERY + 1) if given == "-" else given
    if len(text) > _LONGEST_QUERY:
        raise UsageError(f"the query is longer than {_LONGEST_QUERY:,} letters")
    return text


def _write(answer: Answer, form: str, look: Look, limit: int, out: IO[str]) -> None:
    from gpucorrelate.cli.output import text_options
    from gpucorrelate.correlator.report import rows

    if form == JSON:
        rows.write_json(answer.names, answer.rows, out)
    elif form == CSV:
        rows.write_csv(answer.names, answer.rows, out)
    else:
        rows.write_text(answer.names, answer.rows, out, text_options(look, out), limit=limit)
