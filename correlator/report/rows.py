# SPDX-License-Identifier: Apache-2.0
"""Rows of a query as text for people, as CSV, as JSON: none takes the unknown for zero."""

from __future__ import annotations

import csv
import itertools
import json
import math
from decimal import Decimal
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.names import pad, width_of
from gpucorrelate.correlator.report.page import DIM, HEAD, Page, TextOptions
from gpucorrelate.correlator.report.text_lists import Column, put_columns
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Row = tuple[object, ...]
    Rows = Iterable[Sequence[Row]]

#: What stands for null in text; in CSV it is an empty cell.
UNKNOWN = units.UNKNOWN
_GAP = 2
_WIDEST_CELL = 200
#: From here on a number has no decimals that matter.
_LARGE = 1e6


def write_json(names: Sequence[str], rows: Rows, out: IO[str]) -> None:
    """A document for each row, one a line. What JSON has no number for is null.

    Raises:
        UsageError: two columns have one name.
    """
    for at, name in enumerate(names):
        if name in names[:at]:
            raise UsageError(f"two columns are called {name!r:.80}", hint="name one: ... AS NAME")
    for some in rows:
        for row in some:
            document = dict(zip(names, map(_plain, row), strict=True))
            out.write(json.dumps(document, allow_nan=False) + "\n")


def write_csv(names: Sequence[str], rows: Rows, out: IO[str]) -> None:
    """A line with the names, then one for each row; lists and such as JSON in their cell."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for some in rows:
        writer.writerows([_cell(value) for value in row] for row in some)


def write_text(
    names: Sequence[str], rows: Rows, out: IO[str], options: TextOptions, *, limit: int = 0
) -> None:
    """Aligned columns, or, where those are wider than the page, a block for each row.

    Args:
        names: Names of the columns.
        rows: The rows, some at a time.
        out: An open text file.
        options: Width and style.
        limit: Rows to show; 0: all.
    """
    page = Page(out, options)
    every = itertools.chain.from_iterable(rows)
    shown = list(itertools.islice(every, limit or None))
    columns = [_column(name, [row[at] for row in shown]) for at, name in enumerate(names)]
    if not shown:
        page.line((", ".join(names), HEAD))
    elif _as_text(shown):
        for line in str(shown[0][-1]).splitlines():
            page.line(line)
    elif sum(column.width + _GAP for column in columns) - _GAP <= page.width:
        put_columns(page, columns, [""] * len(shown))
    else:
        _put_blocks(page, columns, len(shown))
    more = sum(1 for _ in every)
    if more:
        page.line((f"{units.plural(more, 'more row')}; --limit 0 shows all", DIM))
    elif len(shown) != 1:
        page.line((units.plural(len(shown), "row"), DIM))


def _as_text(shown: Sequence[Row]) -> bool:
    """Whether it is one text of several lines, such as EXPLAIN gives."""
    return len(shown) == 1 and isinstance(shown[0][-1], str) and "\n" in shown[0][-1]


def _put_blocks(page: Page, columns: Sequence[Column], rows: int) -> None:
    width = max(width_of(column.title) for column in columns) + _GAP
    for at in range(rows):
        if at:
            page.line()
        for column in columns:
            page.line((pad(column.title, width), HEAD), column.cells[at])


def _column(title: str, values: Sequence[object]) -> Column:
    known = [value for value in values if value is not None]
    left = any(isinstance(value, bool) or not _is_number(value) for value in known)
    return Column(title, [_shown(value) for value in values], left)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal))


def _shown(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "true" if value else "false"
    plain = _plain(value) if isinstance(value, Decimal) else value
    if isinstance(plain, int):
        return f"{plain:,}"
    if isinstance(plain, float):
        return f"{plain:,.0f}" if abs(plain) >= _LARGE else f"{plain:,.6g}"
    text = str(_cell(value))
    return text if len(text) <= _WIDEST_CELL else f"{text[:_WIDEST_CELL]}..."


def _cell(value: object) -> object:
    """A value in a cell of CSV: an empty one where it is unknown."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    plain = _plain(value)
    if isinstance(plain, (list, dict)):
        return json.dumps(plain, allow_nan=False)
    return value if _is_number(value) else plain


def _plain(value: object) -> object:
    """A value that JSON has: numbers as such, moments and the like as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)
