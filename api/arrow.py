# SPDX-License-Identifier: Apache-2.0
"""From columns to Arrow: types by the schema, texts stored once, unknowns null.

The only file that makes Arrow arrays; numbers and texts of a recording are whatever whoever wrote
it wanted, so what a column cannot hold becomes null and what is no Unicode is replaced.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.api.schema import Column, Kind, TableSchema
    from gpucorrelate.api.values import Row

#: pyarrow has no types of its own; these say at least which of its classes is meant.
ArrowTable: TypeAlias = Any
ArrowArray: TypeAlias = Any
ArrowSchema: TypeAlias = Any

_RANGES = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}


def needed(module: str, what: str, extra: str) -> Any:  # noqa: ANN401 - a module without types
    """A package that only some installations have.

    Args:
        module: Its name.
        what: What needs it.
        extra: The extra that has it.

    Raises:
        GpucorrelateError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        package = (exc.name or module).partition(".")[0]
        raise GpucorrelateError(
            f"{what} needs the package {package}, which is not installed",
            hint=f"pip install '{extra}'" if "[" in extra else f"pip install {extra}",
        ) from exc


def pyarrow(module: str = "pyarrow") -> Any:  # noqa: ANN401
    """Pyarrow, or a module of it. Raises as ``needed`` does."""
    return needed(module, "reading a recording as tables", "gpucorrelate[api]")


def arrow_type(kind: Kind) -> Any:  # noqa: ANN401
    """The Arrow type of a column."""
    pa = pyarrow()
    return {
        "int64": pa.int64(),
        "uint64": pa.uint64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "shared text": pa.dictionary(pa.int32(), pa.string()),
        "texts": pa.list_(pa.string()),
    }[kind]


def arrow_schema(schema: TableSchema) -> ArrowSchema:
    """A table's Arrow schema; a field's meaning is its metadata ``description``.

    All fields are nullable: a recording may hold a number that its column cannot.
    """
    pa = pyarrow()
    fields = [
        pa.field(c.name, arrow_type(c.kind), metadata={"description": c.meaning})
        for c in schema.columns
    ]
    return pa.schema(fields)


def text(value: str) -> str:
    """A text that every reader of UTF-8 takes."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


class Chosen:
    """Texts of a column, each once, and which of them each row has.

    Args:
        which: For each row a place in ``texts``.
        texts: Texts; ``None`` is unknown. May hold one several times.
    """

    def __init__(self, which: NDArray[np.integer[Any]], texts: Sequence[str | None]) -> None:
        self.which = which
        self.texts = texts

    def array(self) -> ArrowArray:
        """A dictionary array."""
        pa = pyarrow()
        distinct: dict[str, int] = {}
        place = [
            -1 if one is None else distinct.setdefault(text(one), len(distinct))
            for one in self.texts
        ]
        at = np.array(place or [-1], np.int32)[self.which] if len(self.which) else []
        at = np.asarray(at, np.int32)
        index = pa.array(at, pa.int32(), mask=at < 0)
        return pa.DictionaryArray.from_arrays(index, pa.array(list(distinct), pa.string()))


class Known:
    """Numbers of a column, some of them unknown.

    Args:
        values: The numbers.
        known: Which of them are known.
    """

    def __init__(self, values: NDArray[np.generic], known: NDArray[np.bool_]) -> None:
        self.values = values
        self.known = known


Values = Sequence[object] | Chosen | Known


def array_of(column: Column, values: Values | NDArray[np.generic]) -> ArrowArray:
    """A column's values, of its type."""
    pa = pyarrow()
    if isinstance(values, Chosen):
        return values.array()
    if isinstance(values, Known):
        fitting, bad = _fitting(column.kind, values.values)
        return pa.array(fitting, arrow_type(column.kind), mask=bad | ~values.known)
    if isinstance(values, np.ndarray):
        fitting, bad = _fitting(column.kind, values)
        return pa.array(fitting, arrow_type(column.kind), mask=bad)
    if column.kind == "shared text":
        # First seen, first numbered: the same recording gives the same bytes.
        texts = [None if one is None else text(str(one)) for one in values]
        return pa.array(texts, pa.string()).dictionary_encode()
    return pa.array([_fit(column.kind, one) for one in values], arrow_type(column.kind))


def _fitting(
    kind: Kind, values: NDArray[np.generic]
) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """Values as the column has them, and which do not fit."""
    if kind == "bool":
        return values.astype(bool), np.zeros(len(values), bool)
    if kind == "int64" and values.dtype == np.uint64:
        unsigned = values.astype(np.uint64)
        bad: NDArray[np.bool_] = np.greater(unsigned, np.uint64(_RANGES["int64"][1]))
        return np.where(bad, 0, unsigned).astype(np.int64), bad
    wanted = np.uint64 if kind == "uint64" else np.int64
    return values.astype(wanted), np.zeros(len(values), bool)


def _fit(kind: Kind, value: object) -> object:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, tuple):
        return [text(str(one)) for one in value]
    limits = _RANGES.get(kind)
    if limits is not None and isinstance(value, int):
        return value if limits[0] <= value <= limits[1] else None
    return value


def table_of(schema: TableSchema, columns: dict[str, Values | NDArray[np.generic]]) -> ArrowTable:
    """A table out of its columns."""
    pa = pyarrow()
    arrays = [array_of(column, columns[column.name]) for column in schema.columns]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def rows_to_table(schema: TableSchema, rows: Sequence[Row]) -> ArrowTable:
    """A table out of values of its row class."""
    return table_of(schema, {c.name: [getattr(r, c.name) for r in rows] for c in schema.columns})


def rows_of(schema: TableSchema, table: ArrowTable) -> Iterator[Row]:
    """Values of the row class, one after another; a few thousand are in memory at a time."""
    lists = {c.name for c in schema.columns if c.kind == "texts"}
    for batch in table.select(list(schema.names)).to_batches(max_chunksize=4096):
        columns = [
            [tuple(one) for one in column.to_pylist()] if name in lists else column.to_pylist()
            for name, column in zip(schema.names, batch.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            yield schema.row(*values)
