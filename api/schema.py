# SPDX-License-Identifier: Apache-2.0
"""Tables and columns as declared by the row classes of ``values``: names, types, meanings."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from gpucorrelate.api.values import ROWS, Mark, Row

#: Version of all tables together; a change that a reader of the old ones would misread.
SCHEMA_VERSION: Final = 1

Kind = Literal["int64", "uint64", "bool", "text", "shared text", "texts"]

#: What a column of a kind is called in SQL.
SQL_TYPES: Final[dict[Kind, str]] = {
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "bool": "BOOLEAN",
    "text": "VARCHAR",
    "shared text": "VARCHAR",
    "texts": "VARCHAR[]",
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Its name; ends with its unit where it has one (``_ns``).
        kind: How it is stored.
        nullable: Whether it may be unknown.
        meaning: What it says.
    """

    name: str
    kind: Kind
    nullable: bool
    meaning: str

    @property
    def sql_type(self) -> str:
        """Its type in SQL."""
        return SQL_TYPES[self.kind]


@dataclass(frozen=True)
class TableSchema:
    """One table.

    Attributes:
        name: Its name.
        row: Class of its rows.
        meaning: What a row is.
        remarks: What to mind; empty where there is nothing.
        columns: Its columns, in their order.
    """

    name: str
    row: type[Row]
    meaning: str
    remarks: str
    columns: tuple[Column, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its columns."""
        return tuple(column.name for column in self.columns)


def _table(name: str, row: type[Row]) -> TableSchema:
    head, _, rest = (row.__doc__ or "").partition("\n")
    hints = typing.get_type_hints(row, include_extras=True)
    columns = tuple(_column(field, hint) for field, hint in hints.items())
    return TableSchema(name, row, head.strip(), " ".join(rest.split()), columns)


def _column(name: str, hint: object) -> Column:
    of, *notes = typing.get_args(hint)
    meaning = next(note for note in notes if isinstance(note, str))
    mark = next((note for note in notes if isinstance(note, Mark)), Mark())
    members = typing.get_args(of) if isinstance(of, types.UnionType) else (of,)
    (base,) = (member for member in members if member is not type(None))
    return Column(name, _kind(base, mark), len(members) > 1, meaning)


def _kind(base: object, mark: Mark) -> Kind:
    if base is bool:
        return "bool"
    if base is int:
        return "uint64" if mark.unsigned else "int64"
    if base is str:
        return "shared text" if mark.shared else "text"
    return "texts"


#: Every table, by name.
TABLES: Final[dict[str, TableSchema]] = {name: _table(name, row) for name, row in ROWS.items()}


def page() -> str:
    """docs/schema.md."""
    lines = [
        "<!-- Made from api/values.py by scripts/schema_page.py: edit that and run it. -->",
        "# Tables of results",
        "",
        f"Schema version {SCHEMA_VERSION}. `gpucorrelate save` writes these tables as Parquet, a "
        "file each; `gpucorrelate sql` and `gpucorrelate.open` have the same on a recording.",
        "",
        "Times are nanoseconds of CLOCK_MONOTONIC, lengths nanoseconds; null is unknown, never "
        "zero. A number that a recording holds and no column can is null too. Columns are only "
        "ever appended within a version, and never change their type or meaning; a change that "
        "an old reader would misread makes a new version. Every file carries, as metadata: "
        "`gpucorrelate.schema` (the version), `gpucorrelate.table`, `gpucorrelate.producer`; and "
        "of every column its `description`. Text of which there is little is dictionary-encoded.",
        "",
    ]
    for table in TABLES.values():
        lines += [f"## `{table.name}`", "", table.meaning]
        lines += ["", table.remarks] if table.remarks else []
        lines += ["", "| column | type | null | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{c.name}` | {c.sql_type} | {'yes' if c.nullable else ''} | {c.meaning} |"
            for c in table.columns
        ]
        lines.append("")
    return "\n".join(lines)
