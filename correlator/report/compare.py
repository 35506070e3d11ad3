# SPDX-License-Identifier: Apache-2.0
"""Two recordings beside each other: what moved, per request or per step.

Means are compared and not sums, so that recordings of different length can be. A part's change
says where the whole's change came from: the parts of one group add to its whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import json, units
from gpucorrelate.correlator.report.names import clip
from gpucorrelate.correlator.report.page import HEAD, Page, TextOptions
from gpucorrelate.correlator.report.text_lists import Column, put_columns
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.device_values import DeviceRunReport, DeviceStepRow
    from gpucorrelate.correlator.report.json import Json
    from gpucorrelate.correlator.report.values import RunSummary

SCHEMA = "gpucorrelate.compare.v1"
#: Rows of a group for each row that a list within a report has.
_ROWS_EACH = 4
#: A percentage beyond this says less than the two figures beside it.
_MOST_PERCENT = 1000


@dataclass(frozen=True)
class Change:
    """One figure in both recordings; nanoseconds, or a count."""

    name: str
    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        """How much more it is after; unknown where either is."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Group:
    """Figures of one kind, the largest change first."""

    name: str  # what they are: "phases, per request"
    unit: str  # "ns" or "count"
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Comparison:
    """What moved between two recordings."""

    what: str  # "request" or "step": what the means are of
    before: int  # how many of them there are
    after: int
    groups: tuple[Group, ...]
    verdict: str


def of(before: Run, after: Run) -> Comparison:
    """Compare two recordings of a kind.

    Raises:
        UsageError: one is a profile and the other is not, or one has nothing to compare.
    """
    if before.is_profile != after.is_profile:
        raise UsageError("one is a profile and the other a recording of requests")
    if before.is_profile:
        return _profiles(before.devices.whole(), after.devices.whole())
    return _requests(before.summary(), after.summary())


def _requests(a: RunSummary, b: RunSummary) -> Comparison:
    if not a.requests or not b.requests:
        raise UsageError("a recording without requests has nothing to compare")
    latencies = [
        Change(f"{name} p{p}", units.quantile(x, p), units.quantile(y, p))
        for name, x, y in (("TTFT", a.ttft_ns, b.ttft_ns), ("ITL", a.itl_ns, b.itl_ns))
        for p in (50, 90, 99)
    ]
    phases = _means(a.by_phase, a.requests, b.by_phase, b.requests)
    categories = _means(a.by_category, a.requests, b.by_category, b.requests)
    wall = Change("wall", _mean(_sum(a.by_phase), a.requests), _mean(_sum(b.by_phase), b.requests))
    return Comparison(
        "request",
        a.requests,
        b.requests,
        (
            Group("latencies", "ns", (wall, *latencies)),
            Group("phases, mean per request", "ns", phases),
            Group("categories of the path, mean per request", "ns", categories),
        ),
        _verdict("request", wall, (*phases,), (*categories,)),
    )


def _profiles(a: DeviceRunReport, b: DeviceRunReport) -> Comparison:
    if not a.steps or not b.steps:
        raise UsageError("a profile without steps has nothing to compare")
    x, y = len(a.steps), len(b.steps)

    def mean(name: str, value: Callable[[DeviceStepRow], int]) -> Change:
        return Change(name, _mean(sum(map(value, a.steps)), x), _mean(sum(map(value, b.steps)), y))

    wall = mean("wall", lambda row: row.wall_ns)
    busy = mean("GPU busy", lambda row: row.gpu_busy_ns)
    total = mean("GPU sum", lambda row: row.gpu_sum_ns)
    counts = (
        mean("GPU records", lambda row: row.ops),
        mean("launches", lambda row: row.launches),
        mean("graph launches", lambda row: row.graph_launches),
    )
    categories = _means(a.by_category, x, b.by_category, y)
    classes = _means(
        [(one.name, one.length_ns) for one in a.classes], x,
        [(one.name, one.length_ns) for one in b.classes], y,
    )  # fmt: skip
    return Comparison(
        "step",
        x,
        y,
        (
            Group("a step, mean", "ns", (wall, busy, total)),
            Group("counts, mean per step", "count", counts),
            Group("categories of the path, mean per step", "ns", categories),
            Group("GPU records by class, mean per step", "ns", classes),
        ),
        _verdict("step", wall, categories, classes),
    )


def _sum(pairs: Iterable[tuple[object, int]]) -> int:
    return sum(length for _, length in pairs)


def _mean(total: int, count: int) -> int:
    """To the nearest integer, halves to the even one."""
    return round(Fraction(total, count))


def _means(
    a: Sequence[tuple[object, int]], x: int, b: Sequence[tuple[object, int]], y: int
) -> tuple[Change, ...]:
    """Means of every name in either; one that only the other has is 0 here: it did not occur."""
    before = {str(name): length for name, length in a}
    after = {str(name): length for name, length in b}
    found = [
        Change(name, _mean(before.get(name, 0), x), _mean(after.get(name, 0), y))
        for name in dict.fromkeys((*before, *after))
    ]
    return tuple(sorted(found, key=lambda change: -abs(change.delta or 0)))


def _verdict(what: str, wall: Change, parts: Sequence[Change], more: Sequence[Change]) -> str:
    """One sentence: how the whole changed, and the parts that moved most with it."""
    delta = wall.delta or 0
    if not delta:
        return f"a {what} takes the same time"
    word = "longer" if delta > 0 else "shorter"
    share = units.share(abs(delta), wall.before or 1)
    text = f"a {what} takes {units.duration(abs(delta))} ({share}) {word} on average"
    moved = [
        max((c for c in group if (c.delta or 0) * delta > 0), key=_size, default=None)
        for group in (parts, more)
    ]
    named = [f"{c.name} {signed(c.delta, 'ns')}" for c in moved if c is not None]
    return f"{text}; what moved most with it: {', '.join(named)}" if named else text


def _size(change: Change) -> int:
    return abs(change.delta or 0)


def signed(delta: int | None, unit: str) -> str:
    """``+1.20 ms``, ``-3``; empty where it is unknown."""
    if delta is None:
        return ""
    sign = "+" if delta > 0 else "-" if delta < 0 else ""
    return sign + (units.duration(abs(delta)) if unit == "ns" else f"{abs(delta):,}")


def to_dict(comparison: Comparison) -> Json:
    """As plain values."""
    return {
        "schema": SCHEMA,
        "what": comparison.what,
        "before": comparison.before,
        "after": comparison.after,
        "verdict": comparison.verdict,
        "groups": [
            {
                "name": group.name,
                "unit": group.unit,
                "changes": [
                    {"name": c.name, "before": c.before, "after": c.after, "delta": c.delta}
                    for c in group.changes
                ],
            }
            for group in comparison.groups
        ],
    }


def write_json(comparison: Comparison, out: IO[str]) -> None:
    """Writes it as one document, on one line."""
    json.write_lines([to_dict(comparison)], out)


def render(comparison: Comparison, out: IO[str], options: TextOptions | None = None) -> None:
    """Writes the groups as tables, and above them what moved."""
    page = Page(out, options or TextOptions())
    page.line(
        ("compared ", HEAD),
        f"{units.plural(comparison.before, comparison.what)} before, "
        f"{units.plural(comparison.after, comparison.what)} after",
    )
    page.worded("moved", comparison.verdict)
    for group in comparison.groups:
        page.heading(group.name)
        rows = group.changes[: _ROWS_EACH * page.options.top]

        def shown(value: int | None, unit: str = group.unit) -> str:
            return units.duration(value) if unit == "ns" else units.count(value)

        columns = [
            Column("", [clip(c.name, 32) for c in rows], left=True),
            Column("before", [shown(c.before) for c in rows]),
            Column("after", [shown(c.after) for c in rows]),
            Column("change", [signed(c.delta, group.unit) for c in rows]),
            Column("", [_percent(c) for c in rows]),
        ]
        put_columns(page, columns, ["" for _ in rows])


def _percent(change: Change) -> str:
    if not change.delta or not change.before:
        return ""
    percent = 100 * change.delta / change.before
    return f"{percent:+.1f}%" if abs(percent) < _MOST_PERCENT else ""
