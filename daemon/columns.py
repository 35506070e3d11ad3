# SPDX-License-Identifier: Apache-2.0
"""Columns of a batch as numpy arrays, and its rows as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.wire.frame import Batch, columns_of, encode
from gpucorrelate.probes.wire.frame import StringTable as _StringTable
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.probes.wire.schema import Kind

DTYPES = {
    "u8": "<u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
    "i16": "<i2",
    "i64": "<i8",
    "str": "<u4",
}

Row = tuple[Any, ...]

# With these sizes the longest strings still make a frame that is well within its limit.
_ROWS_PER_FRAME = 256
_STRINGS_PER_FRAME = 512


def column(kind: Kind, columns: Sequence[bytes], name: str, count: int) -> NDArray[Any]:
    """One column of a batch; zeros where its writer did not know the column."""
    at = kind.index(name)
    dtype = DTYPES[kind.columns[at].ctype]
    data = columns[at]
    return np.frombuffer(data, dtype) if data else np.zeros(count, dtype)


def select(kind: Kind, columns: Sequence[bytes], mask: NDArray[Any]) -> tuple[bytes, ...]:
    """The columns of the rows for which ``mask`` is true."""
    return tuple(
        np.frombuffer(data, DTYPES[each.ctype])[mask].tobytes() if data else b""
        for each, data in zip(kind.columns, columns, strict=True)
    )


def rows_of(kind: Kind, batch: Batch, strings: Mapping[int, str]) -> list[Row]:
    """The batch's rows as Python values; ``str`` columns as texts."""
    values: list[list[Any]] = []
    for each in kind.columns:
        items = column(kind, batch.columns, each.name, batch.count).tolist()
        if each.ctype == "str":
            items = [strings.get(item, "") for item in items]
        values.append(items)
    return list(zip(*values, strict=True))


def frames_outside(kind: Kind, rows: Sequence[Row], stream: int) -> Iterator[bytes]:
    """Frames with sequence number 0 that hold rows and all the strings they need.

    The string ids are the frame's own: state the stream's living strings again afterwards.
    """
    for at in range(0, len(rows), _ROWS_PER_FRAME):
        part = rows[at : at + _ROWS_PER_FRAME]
        table = _StringTable()
        columns = columns_of(kind, part, table)
        yield encode(Batch(kind.id, len(part), columns, strings=table.take_fresh(), stream=stream))


def frames_of_strings(strings: Mapping[int, str], stream: int) -> Iterator[bytes]:
    """Frames with sequence number 0 and no rows that state a string table."""
    kind = BY_NAME["meta"]
    empty = (b"",) * len(kind.columns)
    pairs = [(index, text) for index, text in strings.items() if index]
    for at in range(0, len(pairs), _STRINGS_PER_FRAME):
        part = tuple(pairs[at : at + _STRINGS_PER_FRAME])
        yield encode(Batch(kind.id, 0, empty, strings=part, stream=stream))
