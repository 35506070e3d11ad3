# SPDX-License-Identifier: Apache-2.0
"""SQL over a run's tables with DuckDB, which reads nothing but them and writes nothing.

Of a recording only the tables that a query names are made; of a folder of results the columns and
row groups are read that a query needs.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpucorrelate.api.arrow import needed, pyarrow
from gpucorrelate.api.results import file_of
from gpucorrelate.api.schema import TABLES
from gpucorrelate.api.tables import free_bytes
from gpucorrelate.probes.wire.errors import (
    GpucorrelateError,
    NotFoundError,
    OutOfMemoryError,
    RecordingError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from gpucorrelate.api.arrow import ArrowTable
    from gpucorrelate.api.runs import Run

#: What a file of the user's may be, by its name's end, and how DuckDB reads it.
READERS: Final = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".csv.gz": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
}
#: A query may take this part of the memory that is free; what is more goes to a folder.
_PART_OF_FREE = 2
_LEAST_BYTES = 64 << 20
_ROWS_AT_A_TIME = 4096
#: How the lines of its messages begin that say what to do.
_ADVICE = ("Did you mean", "Candidate")
_WORD = re.compile(r"\w+")
#: DuckDB's statements that read and do no more.
_READING = ("SELECT", "EXPLAIN")


@dataclass(frozen=True)
class Answer:
    """What a query gave.

    Attributes:
        names: Names of its columns.
        types: Their types in SQL.
        rows: The rows as Python values, some at a time; taken once.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: Iterator[list[tuple[object, ...]]]


class Database:
    """A run's tables, and files of the user's, to be queried. Use it with ``with``.

    Args:
        run: The run.
        files: More tables by their names, each a file of Parquet, CSV or JSON.

    Raises:
        GpucorrelateError: DuckDB is not installed.
        NotFoundError: a file of ``files`` is not there.
        UsageError: a file or its name is nothing for a table.
    """

    def __init__(self, run: Run, files: Mapping[str, Path] | None = None) -> None:
        self._run = run
        self._stack = contextlib.ExitStack()
        self._made: set[str] = set()
        self._duckdb = needed("duckdb", "SQL", "gpucorrelate[sql]")
        own = {name: _checked(name, path) for name, path in (files or {}).items()}
        space = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gpucorrelate.", ignore_cleanup_errors=True)
        )
        limit = max(free_bytes() // _PART_OF_FREE, _LEAST_BYTES)
        self._con = self._stack.enter_context(
            self._duckdb.connect(
                ":memory:",
                config={
                    "temp_directory": space,
                    "memory_limit": f"{limit}B",
                    "autoinstall_known_extensions": "false",
                    "autoload_known_extensions": "false",
                    "python_enable_replacements": "false",
                },
            )
        )
        try:
            self._open(own)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and files; answers that were not taken are gone."""
        self._stack.close()

    def ask(self, query: str) -> Answer:
        """Run one query that reads.

        Raises:
            UsageError: it is not SQL, names what is not there, would do more than read, or asks
                for what cannot be, such as the number in a word.
            OutOfMemoryError: it takes more memory and space for temporary files than there is.
            RecordingError: a file cannot be read.
        """
        statement = self._prepared(query)
        with self._said():
            self._con.execute(statement)
        about = self._con.description
        return Answer(
            tuple(str(column[0]) for column in about),
            tuple(str(column[1]) for column in about),
            self._rows(),
        )

    def ask_arrow(self, query: str) -> ArrowTable:
        """Run one query that reads, for one Arrow table; whole numbers are 64 bits wide.

        Raises as ``ask`` does.
        """
        self._prepared(query)
        with self._said():
            return _narrow(self._con.sql(query).to_arrow_table())

    # -- the tables

    def _open(self, own: Mapping[str, Path]) -> None:
        """Take files in, then forbid all that is no table of this database."""
        for name, path in own.items():
            self._load(name, path)
        self._con.execute("SET enable_external_access = false")
        for table in TABLES.values():
            # Without rows, so that all are listed and described before they are made.
            columns = (f"NULL::{c.sql_type} AS {_quoted(c.name)}" for c in table.columns)
            self._con.execute(
                f"CREATE VIEW {_quoted(table.name)} AS SELECT {', '.join(columns)} WHERE false"
            )
        self._con.execute("SET lock_configuration = true")

    def _load(self, name: str, path: Path) -> None:
        """Take a file of the user's in: it is not to be open, or in reach, when queries run."""
        place = str(path.absolute()).replace("'", "''")
        reader = _reader(path)
        # With nothing but text in it, DuckDB would guess that a file of CSV has no names.
        more = ", header = true" if reader == "read_csv" else ""
        try:
            self._con.execute(f"CREATE TABLE {_quoted(name)} AS FROM {reader}('{place}'{more})")
        except self._duckdb.Error as exc:
            raise RecordingError(f"{path}: cannot be read: {_first_line(exc)}") from exc

    def _make(self, query: str) -> None:
        """Make the tables that a query may mean, each once: all whose names are words in it."""
        words = set(_WORD.findall(query.lower()))
        for name in TABLES:
            if name in words and name not in self._made:
                rows = self._rows_of(name)
                with self._said():
                    self._con.execute(f"DROP VIEW {_quoted(name)}")
                    self._con.register(name, rows)
                self._made.add(name)

    def _rows_of(self, name: str) -> Any:  # noqa: ANN401 - a table, or what reads one
        folder = self._run.folder
        if folder is None:
            return self._run.table(name).to_arrow()
        # Read by pyarrow and not by DuckDB, to which no file is open.
        return pyarrow("pyarrow.dataset").dataset(file_of(folder, name), format="parquet")

    # -- queries

    def _prepared(self, query: str) -> Any:  # noqa: ANN401 - duckdb need not be installed
        """The one statement of a query, whose tables are there then."""
        with self._said():
            statements = self._con.extract_statements(query)
        if not statements:
            raise UsageError("the query is empty")
        if len(statements) > 1:
            raise UsageError(f"one query at a time, not {len(statements)}")
        kind = statements[0].type.name
        if kind not in _READING:
            raise UsageError(
                f"SQL: {kind} does more than read",
                hint="SELECT, WITH, FROM, DESCRIBE, SUMMARIZE, SHOW TABLES and EXPLAIN read",
            )
        self._make(query)
        return statements[0]

    def _rows(self) -> Iterator[list[tuple[object, ...]]]:
        while True:
            with self._said():
                some = self._con.fetchmany(_ROWS_AT_A_TIME)
            if not some:
                return
            yield some

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """Turn what DuckDB raises into one line of ours."""
        try:
            yield
        except (RuntimeError, self._duckdb.InterruptException) as exc:
            # It stops a query at Ctrl-C, and then says no more than this.
            if "interrupt" not in str(exc).lower():
                raise
            raise KeyboardInterrupt from exc
        except self._duckdb.Error as exc:
            if isinstance(exc, (self._duckdb.InvalidInputException, self._duckdb.IOException)):
                self._look()
            raise _of_duckdb(self._duckdb, exc) from exc

    def _look(self) -> None:
        """Find out whether a file is at fault: what read it for DuckDB cannot say which.

        Raises:
            RecordingError: it is.
        """
        if self._run.folder is not None:
            for name in self._made:
                for _ in self._run.table(name).batches():
                    pass


def _of_duckdb(duckdb: Any, exc: Exception) -> GpucorrelateError:  # noqa: ANN401
    """Its error as ours."""
    what, hint = f"SQL: {_first_line(exc)}", ""
    if isinstance(exc, duckdb.OutOfMemoryException):
        return OutOfMemoryError(
            "the query takes more memory than is free",
            hint="ask for less at a time; of a folder of results (gpucorrelate save) only the "
            "columns that are named are read",
        )
    if isinstance(exc, (duckdb.InternalException, duckdb.FatalException)):
        return GpucorrelateError(what)
    if isinstance(exc, duckdb.IOException):
        return RecordingError(what)
    if isinstance(exc, duckdb.PermissionException):
        hint = "more files become tables by --with NAME=FILE"
    elif isinstance(exc, duckdb.CatalogException) and "Table with name" in what:
        hint = f"tables are {', '.join(TABLES)}"
    else:
        lines = (line.strip() for line in str(exc).splitlines())
        hint = next((line for line in lines if line.startswith(_ADVICE)), "")
    return UsageError(what, hint=hint)


def _first_line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__


def _narrow(table: ArrowTable) -> ArrowTable:
    """Sums, which DuckDB has in 128 bits, as the numbers of 64 bits that they are."""
    pa = pyarrow()
    for at, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and not field.type.scale:
            with contextlib.suppress(pa.ArrowInvalid):
                table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
    return table


def _checked(name: str, path: Path) -> Path:
    """A file of the user's that can be a table.

    Raises:
        UsageError: it cannot, or the name is one of a table that is there.
        NotFoundError: there is none.
    """
    if not name.isidentifier():
        raise UsageError(f"{name!r:.80} is no name for a table", hint="letters, digits and _")
    if name.lower() in TABLES:
        raise UsageError(f"{name}: there is a table of that name", hint="choose another")
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    _reader(path)
    return path


def _reader(path: Path) -> str:
    for end, reader in READERS.items():
        if path.name.lower().endswith(end):
            return reader
    raise UsageError(f"{path}: is none of {', '.join(READERS)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
