# SPDX-License-Identifier: Apache-2.0
"""Lists of requests and of steps as text, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.names import clip, pad, rjust, short_ids, width_of
from gpucorrelate.correlator.report.page import DIM, HEAD, Page, TextOptions
from gpucorrelate.correlator.report.text_parts import status_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import PhaseName, RequestRow, StepRow

_GAP = "  "
_NARROWEST_ID = 16
_NARROWEST_NAME = 12
# Below this width the time of day gives way to what took long.
_WITH_TIMES = 96


@dataclass(frozen=True)
class Column:
    """A column of a table: its title and its cells, aligned to the right unless told."""

    title: str
    cells: list[str]
    left: bool = False

    @property
    def width(self) -> int:
        """Cells of a terminal that the widest takes."""
        return max([len(self.title), *map(width_of, self.cells)])

    def put(self, text: str, width: int) -> str:
        """A text aligned as this column is."""
        return pad(text, width) if self.left else rjust(text, width)


def put_columns(page: Page, columns: Sequence[Column], styles: Sequence[str]) -> None:
    """Rows of aligned cells; the last column takes what is left of the width."""
    widths = [column.width for column in columns]
    fixed = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    widths[-1] = max(min(widths[-1], page.width - fixed), 0)
    titles = [c.put(c.title, w) for c, w in zip(columns, widths, strict=True)]
    page.line((_GAP.join(titles), HEAD))
    for i, style in enumerate(styles):
        cells = [c.put(c.cells[i], w) for c, w in zip(columns, widths, strict=True)]
        page.line((_GAP.join(cells), style))


def fitting(columns: Sequence[Column], width: int, least_first: Sequence[str]) -> list[Column]:
    """Without columns of little weight, until the last one has some room.

    Args:
        columns: The columns.
        width: Cells there are.
        least_first: Titles of those that can be done without, the first to go first.
    """
    kept = list(columns)
    for title in least_first:
        taken = sum(column.width + len(_GAP) for column in kept[:-1])
        if taken + min(kept[-1].width, _NARROWEST_NAME) <= width:
            break
        kept = [column for column in kept if column.title != title]
    return kept


def _mostly(pairs: Sequence[tuple[str, int]], whole_ns: int) -> str:
    largest = sorted((pair for pair in pairs if pair[1]), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {100 * length / whole_ns:.0f}%" for name, length in largest)


def render_requests(
    rows: Sequence[RequestRow],
    out: IO[str],
    options: TextOptions | None = None,
    *,
    of: int | None = None,
    phase: PhaseName | None = None,
) -> None:
    """Writes a list of requests.

    Args:
        rows: The requests, in the order in which they are shown.
        out: An open text file.
        options: Width and style.
        of: How many requests there are, when more than the rows shown.
        phase: A phase to show in a column of its own.
    """
    page = Page(out, options or TextOptions())
    columns = [
        Column("wall", [units.duration(row.wall_ns) for row in rows]),
        Column("TTFT", [units.duration(row.ttft_ns) for row in rows]),
        Column("in", [units.count(row.tokens_in) for row in rows]),
        Column("out", [units.count(row.tokens_out) for row in rows]),
    ]
    if phase is not None:
        lengths = [sum(ns for name, ns in row.by_phase if name is phase) for row in rows]
        columns.append(Column(phase.value, [units.duration(ns) for ns in lengths]))
    if page.width >= _WITH_TIMES:
        arrivals = [units.instant(row.arrival_ns)[:-3] for row in rows]
        columns.insert(0, Column("arrival s", arrivals))
    mostly = [_mostly(row.by_phase, row.wall_ns) for row in rows]
    ended = ["" if row.status.startswith("finished") else row.status for row in rows]
    notes = [
        f"{status}; {most}" if status and most else status or most
        for status, most in zip(ended, mostly, strict=True)
    ]
    columns.append(Column("phases (of wall)", notes, left=True))
    taken = sum(column.width + len(_GAP) for column in columns[:-1])
    room = page.width - taken - len(_GAP) - min(columns[-1].width, 26)
    ids = short_ids([row.request_id for row in rows], max(room, _NARROWEST_ID))
    put_columns(
        page,
        [Column("request", ids, left=True), *columns],
        ["" if not status else status_style(status) for status in ended],
    )
    _foot(page, len(rows), of, "request")


def render_steps(
    rows: Sequence[StepRow],
    out: IO[str],
    options: TextOptions | None = None,
    *,
    of: int | None = None,
) -> None:
    """Writes a list of steps.

    Args:
        rows: The steps, in the order in which they are shown.
        out: An open text file.
        options: Width and style.
        of: How many steps there are, when more than the rows shown.
    """
    page = Page(out, options or TextOptions())
    ended = ["" if row.status in {"ok", "finished"} else row.status for row in rows]
    longest = [
        f"{status}; {row.longest}" if status else row.longest
        for status, row in zip(ended, rows, strict=True)
    ]
    columns = [
        Column("step", [str(row.step) for row in rows]),
        Column("wall", [units.duration(row.wall_ns) for row in rows]),
        Column("worker", [units.duration(row.worker_ns) for row in rows]),
        Column("kind", [clip(row.kind, 8) for row in rows], left=True),
        Column("rows", [units.count(row.rows) for row in rows]),
        Column("tokens", [units.count(row.tokens) for row in rows]),
        Column("prefill", [units.count(row.prefill_tokens) for row in rows]),
        Column("waiting", [units.count(row.waiting) for row in rows]),
        Column("longest", longest, left=True),
    ]
    if page.width >= _WITH_TIMES:
        columns.insert(1, Column("start s", [units.instant(row.start_ns)[:-3] for row in rows]))
    put_columns(page, columns, [status_style(status) if status else "" for status in ended])
    _foot(page, len(rows), of, "step")


def _foot(page: Page, shown: int, of: int | None, what: str) -> None:
    if of is not None and of > shown:
        page.line((f"{shown:,} of {units.plural(of, what)}; --limit shows more", DIM))
