# SPDX-License-Identifier: Apache-2.0
"""Statistics tables as text for people, as CSV with the columns of ``nsys stats``, as JSON."""

from __future__ import annotations

import csv
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any

from gpucorrelate.correlator import tables as made
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.page import DIM, Page, TextOptions
from gpucorrelate.correlator.report.text_lists import Column, fitting, put_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpucorrelate.correlator.tables import (
        CopySizes,
        Graphs,
        Joined,
        Reconciliation,
        Row,
        SizeClass,
        StatTable,
        Tables,
    )

Json = dict[str, Any]

SCHEMA = "gpucorrelate.tables.v1"
TITLES = {
    made.API: "calls of the CUDA or HIP API",
    made.KERNELS: "kernels",
    made.MEM_TIME: "copies and fills, by time on the device",
    made.MEM_SIZE: "copies and fills, by size",
    made.SIZES: "sizes of copies, by direction",
    made.OS: "what threads waited in off the CPU",
}
_COUNTS = {made.API: "Num Calls", made.KERNELS: "Instances", made.OS: "Num Calls"}
_OPERATIONS = (made.MEM_TIME, made.MEM_SIZE)
_SIZE_COLUMNS = ("Bytes (%)", "Total (MB)", "Count", "From (B)", "To (B)", "Operation")
#: Columns of a table that a narrow page does without, the first to go first.
_LEAST_FIRST = ("StdDev", "Min", "Avg", "Max")
_PLURALS = {"kernel": "kernels", "copy": "copies", "fill": "fills"}

_MB = 1_000_000
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


# -- numbers


def fixed(value: Fraction | float | None, decimals: int) -> str:
    """A non-negative number with so many decimals, halves up as SQLite rounds; empty: unknown."""
    if value is None:
        return ""
    scaled = Fraction(value) * 10**decimals + Fraction(1, 2)
    whole, rest = divmod(scaled.numerator // scaled.denominator, 10**decimals)
    return f"{whole}.{rest:0{decimals}}" if decimals else str(whole)


def size(number: int | None, digits: int = 3) -> str:
    """Bytes in the unit that suits them, powers of ten as in the columns of nsys."""
    if number is None:
        return units.UNKNOWN
    for least, unit in _SIZES:
        if number >= least:
            whole = len(str(number // least))
            return f"{fixed(Fraction(number, least), max(digits - whole, 0))} {unit}"
    return f"{number} B"


def _percent(part: int | None, whole: int) -> str:
    return fixed(Fraction(100 * part, whole), 1) if part is not None and whole else ""


def _nearest(value: Fraction | float | None) -> int | None:
    return None if value is None else int(fixed(value, 0))


# -- CSV


def columns(table: StatTable) -> list[str]:
    """The titles of the columns, as ``nsys stats`` has them."""
    unit = "ns" if table.unit == "ns" else "MB"
    time = ["Time (%)", "Total Time (ns)"] if table.unit == "ns" else ["Total (MB)"]
    return [
        *time,
        _COUNTS.get(table.name, "Count"),
        *(f"{what} ({unit})" for what in ("Avg", "Med", "Min", "Max", "StdDev")),
        "Operation" if table.name in _OPERATIONS else "Name",
    ]


def cells(table: StatTable, row: Row) -> list[str]:
    """The fields of a row, rounded as ``nsys stats`` rounds them; empty where unknown."""
    time = table.unit == "ns"
    whole, fraction = (_ns, _tenths) if time else (_megabytes, _megabytes)
    return [
        *([_percent(row.total, table.total)] if time else []),
        whole(row.total),
        str(row.count),
        fraction(row.mean),
        fraction(row.median),
        whole(row.least),
        whole(row.most),
        fraction(row.deviation),
        row.name,
    ]


def _ns(value: int | None) -> str:
    return "" if value is None else str(value)


def _tenths(value: Fraction | float | None) -> str:
    return fixed(value, 1)


def _megabytes(value: Fraction | float | None) -> str:
    return "" if value is None else fixed(Fraction(value) / _MB, 3)


def write_csv(tables: Tables, out: IO[str]) -> None:
    """Writes tables as CSV; several are parted by a blank line, each below its name."""
    writer = csv.writer(out, lineterminator="\n")
    for at, name in enumerate(tables.names):
        if len(tables.names) > 1:
            out.write(f"{'' if not at else chr(10)}# {name}\n")
        writer.writerows(_lines(tables, name))


def _lines(tables: Tables, name: str) -> Iterable[Sequence[str]]:
    if name == made.SIZES:
        yield _SIZE_COLUMNS
        whole = sum(one.total for one in tables.sizes or ())
        for one in tables.sizes or ():
            for part in one.classes:
                to = "" if part.to_bytes is None else str(part.to_bytes - 1)
                numbers = (_percent(part.total, whole), _megabytes(part.total), str(part.count))
                yield (*numbers, str(part.from_bytes), to, one.name)
            if one.unsized:
                yield ("", "", str(one.unsized), "", "", one.name)
        return
    (table,) = (one for one in tables.stats if one.name == name)
    yield columns(table)
    yield from (cells(table, row) for row in table.rows)


# -- sentences


def share_note(table: StatTable) -> str:
    """What the percentages of a table are of."""
    return f"percent of listed time, summed over {table.over}; not wall"


def wall_note(table: StatTable) -> str:
    """The sum against the wall: how many at a time, on average."""
    if table.equivalents is None:
        return ""
    number = fixed(table.equivalents, 2)
    number = "less than 0.01" if table.total and number == "0.00" else number
    return (
        f"{units.duration(table.total)} listed in {units.duration(table.wall_ns)} of wall: "
        f"{number} {table.over.removesuffix('s')}-equivalents"
    )


def threshold_note(table: StatTable) -> str:
    """How short a wait is listed by itself."""
    if table.threshold_ns is None:
        return "minimum duration of a listed wait: not recorded"
    if not table.threshold_ns:
        return "minimum duration of a listed wait: none, all are listed"
    least = units.duration(table.threshold_ns)
    return f"minimum duration of a listed wait: {least}; shorter ones are only summed"


def graph_note(graphs: Graphs) -> str:
    """Whether the nodes of graphs were traced; empty where there is no graph."""
    if graphs.traced is None:
        return ""
    launches = units.plural(graphs.launches, "graph launch", "graph launches")
    if not graphs.traced:
        return f"graph nodes traced: no (nothing of the device is recorded under {launches})"
    if not graphs.records:
        marked = units.plural(graphs.marked, "kernel")
        return f"graph nodes traced: yes ({marked}; the launches are not joined to them)"
    kernels = units.plural(graphs.kernels, "kernel")
    each = f"{graphs.fewest:,}"
    if graphs.most != graphs.fewest:
        mean = Fraction(graphs.records, graphs.launches - graphs.silent)
        each = f"{each} to {graphs.most:,}, on average {fixed(mean, 1)},"
    note = f"graph nodes traced: yes ({kernels} under {launches}); {each} device records a launch"
    if graphs.silent:
        note += f"; {units.plural(graphs.silent, 'launch', 'launches')} without any"
    return note


def joined_note(joined: Joined) -> str:
    """What calls of a kind have to do with the device's records; empty where there are none.

    Shares are rounded down, and are lower bounds where calls are missing.
    """
    if not joined.calls and not joined.records:
        return ""
    calls = units.plural(joined.calls, f"{joined.call} call")
    records = units.plural(
        joined.records, f"GPU {joined.record}", f"GPU {_PLURALS[joined.record]}"
    )
    parts = []
    if joined.own:
        bound = "at least " if joined.orphans else ""
        why = ", so they are not graph replay" if joined.own > joined.graph else ""
        parts.append(f"{bound}{_down(joined.own, joined.records)} have a call of their own{why}")
    if joined.graph:
        parts.append(f"{_down(joined.graph, joined.records)} are nodes of launched graphs")
    if joined.other:
        parts.append(f"{joined.other:,} come from calls of another kind")
    if joined.orphans:
        parts.append(f"{joined.orphans:,} have no call in the recording")
    if joined.silent:
        parts.append(f"{units.plural(joined.silent, 'call')} without a GPU record")
    return f"{calls} for {records}: {'; '.join(parts)}"


def _down(part: int, whole: int) -> str:
    percent = 100 * part // whole
    return f"{percent}%" if percent else "less than 1%"


def notes(table: StatTable) -> list[str]:
    """Everything that must be read with a table."""
    found = [share_note(table), wall_note(table)] if table.unit == "ns" else []
    if table.name == made.OS:
        found.append(threshold_note(table))
    if table.invalid:
        left = units.plural(table.invalid, "record")
        found.append(f"left out, for its times are not valid: {left}")
    return [*filter(None, found), *table.notes]


# -- text


def render_tables(
    tables: Tables, out: IO[str], options: TextOptions | None = None, *, limit: int = 0
) -> None:
    """Writes tables one below the other, and what calls and records have to do with each other.

    Args:
        tables: What to write.
        out: An open text file.
        options: Width and style.
        limit: Rows of each table; 0: all.
    """
    page = Page(out, options or TextOptions())
    stats = {table.name: table for table in tables.stats}
    for at, name in enumerate(tables.names):
        if at:
            page.line()
        page.titled(name, TITLES[name])
        if name == made.SIZES:
            _put_sizes(page, tables.sizes or ())
        else:
            _put_stats(page, stats[name], limit)
    if tables.reconciliation is not None:
        _put_joined(page, tables.reconciliation)


def _put_stats(page: Page, table: StatTable, limit: int) -> None:
    if not table.rows:
        page.line(("none recorded", DIM))
    else:
        rows = table.rows[:limit] if limit else table.rows
        put_columns(page, _text_columns(page, table, rows), [""] * len(rows))
        if len(rows) < len(table.rows):
            rest = sum(row.total or 0 for row in table.rows[len(rows) :])
            more = units.plural(len(table.rows) - len(rows), "more row")
            share = units.share(rest, table.total)
            page.line((f"{more}, {share} of the listed; --limit 0 shows all", DIM))
    for note in notes(table):
        page.wrapped([], note)


def _text_columns(page: Page, table: StatTable, rows: Sequence[Row]) -> list[Column]:
    show: Callable[[int | None], str] = units.duration if table.unit == "ns" else size
    numbers = [
        Column("Total", [show(row.total) for row in rows]),
        Column(_COUNTS.get(table.name, "Count"), [units.count(row.count) for row in rows]),
        Column("Avg", [show(_nearest(row.mean)) for row in rows]),
        Column("Med", [show(_nearest(row.median)) for row in rows]),
        Column("Min", [show(row.least) for row in rows]),
        Column("Max", [show(row.most) for row in rows]),
        Column("StdDev", [show(_nearest(row.deviation)) for row in rows]),
    ]
    if table.unit == "ns":
        shares = [units.share(row.total or 0, table.total) for row in rows]
        numbers.insert(0, Column("Time", shares))
    # What a kernel returns says nothing, and the end of its name little: parameters.
    names = [row.name.removeprefix("void ") for row in rows]
    found = [*numbers, Column(columns(table)[-1], names, left=True)]
    return fitting(found, page.width, _LEAST_FIRST)


def _put_sizes(page: Page, found: Sequence[CopySizes]) -> None:
    parts = [(one, part) for one in found for part in one.classes]
    if not found:
        page.line(("none recorded", DIM))
    if parts:
        whole = sum(one.total for one in found)
        put_columns(
            page,
            [
                Column("Bytes", [units.share(part.total, whole) for _, part in parts]),
                Column("Total", [size(part.total) for _, part in parts]),
                Column("Count", [units.count(part.count) for _, part in parts]),
                Column("Size", [_range(part) for _, part in parts]),
                Column("Operation", [one.name for one, _ in parts], left=True),
            ],
            [""] * len(parts),
        )
    for one in found:
        page.wrapped(["  "], f"{one.name}: {sizes_note(one)}")


def _range(part: SizeClass) -> str:
    if part.to_bytes is None:
        return f"{_binary(part.from_bytes)} and more"
    if part.to_bytes <= 65:
        return f"up to {part.to_bytes - 1} B"
    return f"{_binary(part.from_bytes)} to {_binary(part.to_bytes)}"


def _binary(number: int) -> str:
    return next(
        (f"{number // least} {unit}" for least, unit in _BINARY if number >= least), f"{number} B"
    )


def sizes_note(one: CopySizes) -> str:
    """The size that moves the most, and how many copies are tiny or large."""
    unknown = f"no size recorded of {units.plural(one.unsized, 'copy', 'copies')}"
    if not one.count:
        return unknown
    moved = one.dominant_bytes * one.dominant_count
    note = (
        f"{units.plural(one.count, 'copy', 'copies')}, {size(one.total)}; dominant size "
        f"{one.dominant_bytes:,} B x {one.dominant_count:,} = {size(moved)} "
        f"({units.share(moved, one.total)}); tiny, up to 64 B: {one.tiny:,}; "
        f"large, 16 MiB and more: {one.large:,}"
    )
    return f"{note}; {unknown}" if one.unsized else note


def _put_joined(page: Page, found: Reconciliation) -> None:
    said = [(_PLURALS[joined.record], joined_note(joined)) for joined in found.joined]
    said = [(label, note) for label, note in (*said, ("graphs", graph_note(found.graphs))) if note]
    if said:
        page.heading("calls and device records", "joined by process and correlation id")
        for label, note in said:
            page.worded(label, note)


# -- JSON


def tables_to_dict(tables: Tables) -> Json:
    """Tables as plain values: nothing rounded, ``null`` for what is unknown."""
    document: Json = {
        "schema": SCHEMA,
        "tables": [_stat_to_dict(table) for table in tables.stats],
        "copy_sizes": None if tables.sizes is None else [_sizes_to_dict(s) for s in tables.sizes],
        "graphs": None,
        "reconciliation": None,
    }
    if tables.reconciliation is not None:
        graphs = tables.reconciliation.graphs
        document["graphs"] = {
            "nodes_traced": graphs.traced,
            "launches": graphs.launches,
            "launches_without_record": graphs.silent,
            "kernels": graphs.kernels,
            "records": graphs.records,
            "records_per_launch_min": graphs.fewest if graphs.records else None,
            "records_per_launch_max": graphs.most if graphs.records else None,
            "kernels_with_graph_id": graphs.marked,
            "note": graph_note(graphs) or None,
        }
        document["reconciliation"] = [_joined_to_dict(j) for j in tables.reconciliation.joined]
    return document


def _stat_to_dict(table: StatTable) -> Json:
    unit = table.unit
    found: Json = {
        "name": table.name,
        "unit": unit,
        "percent_of": share_note(table) if unit == "ns" else None,
        "summed_over": table.over,
        "total": table.total,
        "wall_ns": table.wall_ns,
        "equivalents": None if table.equivalents is None else float(table.equivalents),
        "invalid": table.invalid,
        "notes": list(table.notes),
        "rows": [_row_to_dict(table, row) for row in table.rows],
    }
    if table.name == made.OS:
        found["min_duration_ns"] = table.threshold_ns
    return found


def _row_to_dict(table: StatTable, row: Row) -> Json:
    unit = table.unit
    whole = table.total
    return {
        "name": row.name,
        "percent": 100 * row.total / whole if unit == "ns" and row.total and whole else None,
        "count": row.count,
        f"total_{unit}": row.total,
        f"avg_{unit}": None if row.mean is None else float(row.mean),
        f"med_{unit}": None if row.median is None else float(row.median),
        f"min_{unit}": row.least,
        f"max_{unit}": row.most,
        f"stddev_{unit}": row.deviation,
        "above_10x_median": row.tail,
    }


def _sizes_to_dict(one: CopySizes) -> Json:
    known = bool(one.count)
    return {
        "operation": one.name,
        "count": one.count,
        "total_bytes": one.total if known else None,
        "dominant_bytes": one.dominant_bytes if known else None,
        "dominant_count": one.dominant_count if known else None,
        "tiny": one.tiny if known else None,
        "large": one.large if known else None,
        "unsized": one.unsized,
        "classes": [
            {
                "from_bytes": part.from_bytes,
                "below_bytes": part.to_bytes,
                "count": part.count,
                "total_bytes": part.total,
            }
            for part in one.classes
        ],
    }


def _joined_to_dict(joined: Joined) -> Json:
    return {
        "call": joined.call,
        "record": joined.record,
        "calls": joined.calls,
        "calls_without_record": joined.silent,
        "records": joined.records,
        "records_with_own_call": joined.own,
        "records_under_graph_launch": joined.graph,
        "records_under_other_call": joined.other,
        "records_without_call": joined.orphans,
        "note": joined_note(joined) or None,
    }
