# SPDX-License-Identifier: Apache-2.0
"""A table of a run, as values, as Arrow, pandas or polars; made when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gpucorrelate.api.arrow import needed, pyarrow, rows_of
from gpucorrelate.probes.wire.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.api.arrow import ArrowTable
    from gpucorrelate.api.schema import TableSchema
    from gpucorrelate.api.source import Source
    from gpucorrelate.api.values import Row

R = TypeVar("R", bound="Row", covariant=True)

#: Tables up to this size stay in memory once they were made.
_KEPT_BYTES = 256 << 20
#: A table may take this part of the memory that is free.
_PART_OF_FREE = 2
_KIB = 1024


class Table(Generic[R]):
    """A table: iterate over it for its rows as frozen values, or take it as a whole.

    Nothing is read or computed before it is needed. Iterating and ``batches`` hold some hundred
    thousand rows at a time; ``to_arrow`` and what is made from it hold all.

    Attributes:
        schema: Its columns, with their meanings.
    """

    def __init__(self, source: Source, schema: TableSchema) -> None:
        self.schema = schema
        self._source = source
        self._kept: ArrowTable | None = None

    def __repr__(self) -> str:
        return f"<table {self.schema.name}: {', '.join(self.schema.names)}>"

    def __iter__(self) -> Iterator[R]:
        for part in self.batches():
            yield from cast("Iterator[R]", rows_of(self.schema, part))

    def __len__(self) -> int:
        if self._kept is not None:
            return int(self._kept.num_rows)
        return sum(part.num_rows for part in self.batches())

    def batches(self) -> Iterator[ArrowTable]:
        """The rows in order as Arrow tables of some hundred thousand rows.

        Raises:
            RecordingError: a file of results cannot be read.
        """
        if self._kept is not None:
            yield self._kept
        else:
            yield from self._source.parts(self.schema.name)

    def to_arrow(self) -> ArrowTable:
        """All rows as one ``pyarrow.Table``; text of which there is little is dictionaries.

        Raises:
            OutOfMemoryError: it would take more than half of the memory that is free.
            RecordingError: a file of results cannot be read.
        """
        if self._kept is not None:
            return self._kept
        most = free_bytes() // _PART_OF_FREE
        parts, size = [], 0
        for part in self.batches():
            parts.append(part)
            size += part.nbytes
            if size > most:
                raise OutOfMemoryError(
                    f"table {self.schema.name}: takes more than {most / 1e6:,.0f} MB, half of "
                    "the memory that is free",
                    hint="take it in parts (batches), or save the run as Parquet and query that",
                )
        whole = pyarrow().concat_tables(parts).unify_dictionaries()
        if size <= _KEPT_BYTES:
            self._kept = whole
        return whole

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas need not be installed
        """All rows as a ``pandas.DataFrame``; unknown numbers are ``<NA>``, integers stay such.

        Raises:
            GpucorrelateError: pandas is not installed.
            OutOfMemoryError: as ``to_arrow``.
        """
        pandas = needed("pandas", "to_pandas", "pandas")
        pa = pyarrow()
        types = {pa.int64(): pandas.Int64Dtype(), pa.uint64(): pandas.UInt64Dtype()}
        return self.to_arrow().to_pandas(types_mapper=types.get)

    def to_polars(self) -> Any:  # noqa: ANN401 - polars need not be installed
        """All rows as a ``polars.DataFrame``.

        Raises:
            GpucorrelateError: polars is not installed.
            OutOfMemoryError: as ``to_arrow``.
        """
        return needed("polars", "to_polars", "polars").from_arrow(self.to_arrow())

    def forget(self) -> None:
        """Give back the memory of rows that were kept."""
        self._kept = None


def free_bytes() -> int:
    """Memory that can be had without taking any from others."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return 1 << 62
