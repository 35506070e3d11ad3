# SPDX-License-Identifier: Apache-2.0
"""Results: a folder of Parquet files, one for each table, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucorrelate
from gpucorrelate.api.arrow import arrow_schema, pyarrow
from gpucorrelate.api.schema import SCHEMA_VERSION, TABLES
from gpucorrelate.api.source import PART_ROWS
from gpucorrelate.probes.wire.errors import RecordingError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.api.arrow import ArrowSchema, ArrowTable
    from gpucorrelate.api.schema import TableSchema
    from gpucorrelate.api.source import Source

VERSION_KEY = b"gpucorrelate.schema"
TABLE_KEY = b"gpucorrelate.table"
PRODUCER_KEY = b"gpucorrelate.producer"

_SUFFIX = ".parquet"
#: The table by whose file a folder is known: every run has facts about itself.
_MARK = "meta"
_UNFINISHED = ".gpucorrelate."
_LEVEL = 3
#: Parquet's own blocks within a row group; readers skip by them.
_ROW_GROUP_ROWS = PART_ROWS


@dataclass(frozen=True)
class Saved:
    """What was written of a table."""

    table: str
    rows: int
    size_bytes: int


def file_of(folder: Path, table: str) -> Path:
    """The file of a table."""
    return folder / f"{table}{_SUFFIX}"


def is_results(path: Path) -> bool:
    """Whether something is a folder of results, by its files' names."""
    return path.is_dir() and file_of(path, _MARK).is_file()


# -- writing


def save(source: Source, folder: Path) -> tuple[Saved, ...]:
    """Write every table into a folder, which appears when all are complete.

    The same run gives the same bytes. A folder of results that is there already is replaced.

    Args:
        source: The run.
        folder: Where; its parent must be there.

    Raises:
        UsageError: something else is there.
        StoreError: it cannot be written; what was there is as it was.
    """
    check_folder(folder)
    target = Path(os.path.realpath(folder))
    try:
        with tempfile.TemporaryDirectory(
            prefix=_UNFINISHED, dir=target.parent, ignore_cleanup_errors=True
        ) as space:
            fresh = Path(space) / "results"
            fresh.mkdir()
            found = tuple(_write(source, table, fresh) for table in TABLES.values())
            fresh.chmod(0o777 & ~_umask())
            _put(fresh, target, Path(space) / "old")
    except OSError as exc:
        raise StoreError(f"{folder}: {exc.strerror or exc}") from exc
    return found


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything but results, before anything long is begun.

    Raises:
        UsageError: it is no folder, holds something else, or has no folder to be in.
        StoreError: it cannot be looked at.
    """
    try:
        if not folder.exists():
            if not folder.absolute().parent.is_dir():
                raise UsageError(f"{folder.absolute().parent}: no such folder")
            return
        if not folder.is_dir():
            raise UsageError(f"{folder}: is no folder", hint="name a folder, which will be made")
        names = {path.name for path in folder.iterdir()}
    except OSError as exc:
        raise StoreError(f"{folder}: {exc.strerror or exc}") from exc
    others = names - {file_of(folder, table).name for table in TABLES}
    if others or (names and not is_results(folder)):
        raise UsageError(
            f"{folder}: holds {min(others or names)}, which is not of results",
            hint="name a folder that is empty or not there yet",
        )


def _write(source: Source, table: TableSchema, folder: Path) -> Saved:
    pq = pyarrow("pyarrow.parquet")
    path = file_of(folder, table.name)
    rows = 0
    schema = _stamped(table)
    # Pages and dictionaries as pyarrow sets them; sorted columns of times compress best so.
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=_LEVEL) as out:
        for part in source.parts(table.name):
            out.write_table(
                part.replace_schema_metadata(schema.metadata), row_group_size=_ROW_GROUP_ROWS
            )
            rows += part.num_rows
    return Saved(table.name, rows, path.stat().st_size)


def _stamped(table: TableSchema) -> ArrowSchema:
    """A table's schema with what its file says of itself."""
    said = {
        VERSION_KEY: str(SCHEMA_VERSION).encode(),
        TABLE_KEY: table.name.encode(),
        PRODUCER_KEY: f"gpucorrelate {gpucorrelate.__version__}".encode(),
    }
    return arrow_schema(table).with_metadata(said)


def _put(fresh: Path, target: Path, old: Path) -> None:
    """Give a folder its name; results that have it are set aside first, and kept if that fails."""
    if not is_results(target):
        fresh.rename(target)  # takes the place of an empty folder
        return
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        with contextlib.suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# -- reading


class Results:
    """The tables of a folder of results; files are opened when they are needed.

    Args:
        folder: Where they are.

    Raises:
        RecordingError: a file is missing, is not what it should be, or is of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = {name: self._open(table) for name, table in TABLES.items()}

    def parts(self, name: str) -> Iterator[ArrowTable]:
        """Rows of a table in order, a row group at a time."""
        with self._said_of(name):
            yield from self._groups(name)

    def path(self, name: str, key: int) -> Iterator[ArrowTable]:
        """Rows of ``segments`` of one request, or of ``step_segments`` of one step.

        Row groups without any are not read.
        """
        compute = pyarrow("pyarrow.compute")
        column = TABLES[name].names[0]
        with self._said_of(name):
            for group in self._groups_of(name, column, key):
                yield group.filter(compute.equal(group[column], key))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _open(self, table: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
        pq = pyarrow("pyarrow.parquet")
        path = file_of(self.folder, table.name)
        with self._said_of(table.name):
            if not path.is_file():
                raise RecordingError(
                    f"{self.folder}: has no table {table.name}, so these are not all results",
                    hint="make them again: gpucorrelate save RECORDING -o DIR",
                )
            file = pq.ParquetFile(path)
            _check(file.schema_arrow, table, path)
        return file

    def _groups(self, name: str) -> Iterator[ArrowTable]:
        file, names = self._files[name], list(TABLES[name].names)
        for at in range(file.num_row_groups):
            yield self._read(name, at)
        if not file.num_row_groups:
            yield file.schema_arrow.empty_table().select(names)

    def _groups_of(self, name: str, column: str, value: int) -> Iterator[ArrowTable]:
        """Row groups that may hold a value, by what the file says of each."""
        file = self._files[name]
        place = file.schema_arrow.names.index(column)
        for at in range(file.num_row_groups):
            known = file.metadata.row_group(at).column(place).statistics
            if known is None or not known.has_min_max or known.min <= value <= known.max:
                yield self._read(name, at)

    def _read(self, name: str, group: int) -> ArrowTable:
        table = TABLES[name]
        found = self._files[name].read_row_group(group, columns=list(table.names))
        return found.select(list(table.names)).cast(arrow_schema(table))

    @contextlib.contextmanager
    def _said_of(self, name: str) -> Iterator[None]:
        """Turn what pyarrow raises of a file into one line of ours."""
        path = file_of(self.folder, name)
        try:
            yield
        except (pyarrow().ArrowException, OSError, ValueError) as exc:
            what = str(exc).partition("\n")[0]
            raise RecordingError(f"{path}: cannot be read: {what:.200}") from exc


def _check(found: ArrowSchema, table: TableSchema, path: Path) -> None:
    """Refuse a file that is not of this table, or of a version that may mean something else.

    Raises:
        RecordingError: so it is.
    """
    said = found.metadata or {}
    version = said.get(VERSION_KEY, b"").decode("ascii", "replace")
    if said.get(TABLE_KEY, b"").decode("ascii", "replace") != table.name:
        raise RecordingError(f"{path}: is no table of results")
    if version != str(SCHEMA_VERSION):
        raise RecordingError(
            f"{path}: has version {version:.20} of the schema, known here is {SCHEMA_VERSION}",
            hint="make the results again from their recording, or use a newer gpucorrelate",
        )
    wanted = arrow_schema(table)
    for field in wanted:
        at = found.get_field_index(field.name)
        if at < 0 or found.field(at).type != field.type:
            what = "has no column" if at < 0 else "has another type of column"
            raise RecordingError(f"{path}: {what} {field.name}")
