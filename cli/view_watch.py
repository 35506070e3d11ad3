# SPDX-License-Identifier: Apache-2.0
"""What ``gpucorrelate watch`` prints: a line for each thing that matters, as text or as JSON."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from gpucorrelate.correlator import context_rules as rules
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.names import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpucorrelate.correlator.report.context_values import ContextChange, ContextNumber
    from gpucorrelate.daemon.vitals import Vitals

HEADING = f"{'TIME':<12}  {'HOW MUCH':<22}  {'WHAT':<38}  WHO"
_GPU = {
    "gpu.utilization.gpu": "a kernel ran",
    "gpu.utilization.memory": "its memory was accessed",
    "gpu.memory.used": "memory allocated",
    "gpu.clocks.sm": "SM clock",
    "gpu.power.draw": "power",
    "gpu.temperature.gpu": "temperature",
}


def lines(found: Vitals, most: int) -> Iterator[str]:
    """The text of a look.

    Args:
        found: The look.
        most: Lines of one kind; the largest come first.
    """
    clock = _clock(found)
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in found.numbers:
        what = one.note or f"{one.metric} ({_GPU[one.metric]})"
        groups.setdefault(what, []).append((_amount(one), one.who or one.subject))
    for what, rows in groups.items():
        for amount, who in rows[:most]:
            yield _line(clock, amount, what, who)
        if len(rows) > most:
            yield _line(clock, "", what, f"and {len(rows) - most} more (--top)")
    moved = dict.fromkeys(map(_change, found.changes))
    shown: dict[str, int] = {}
    for how, what, who in moved:
        shown[what] = shown.get(what, 0) + 1
        if shown[what] <= most:
            yield _line(clock, how, what, who)
    for what, count in shown.items():
        if count > most:
            yield _line(clock, "", what, f"and {count - most} more (--top)")


def _line(clock: str, amount: str, what: str, who: str) -> str:
    return safe(f"{clock}  {amount:<22}  {what:<38}  {who}")


def _clock(found: Vitals) -> str:
    """The wall clock's time of a look, to the millisecond."""
    ago_ns = time.monotonic_ns() - found.t_ns
    wall_ns = time.time_ns() - ago_ns
    seconds = time.localtime(wall_ns // 1_000_000_000)
    return f"{time.strftime('%H:%M:%S', seconds)}.{wall_ns // 1_000_000 % 1000:03}"


def _amount(one: ContextNumber) -> str:
    if one.note:
        length = units.duration(one.length_ns)
        if one.unit == "ns":
            return f"{units.share(one.grown, one.length_ns)} of {length}"
        return f"{one.grown:,} in {length}"
    if one.before == one.after:
        return _level(one, one.after)
    return f"{_level(one, one.before)} to {_level(one, one.after)}"


def _level(one: ContextNumber, value: int) -> str:
    if one.unit == "bytes":
        return units.size(value)
    if one.unit == "mW":
        return f"{value // 1000:,} W"
    return f"{value:,} {'%' if one.unit == 'percent' else one.unit}"


def _change(one: ContextChange) -> tuple[str, str, str]:
    who = one.who or one.subject
    if one.what == rules.BLOCKED:
        doing = "page I/O" if rules.is_page_wait(one.after) else "the kernel"
        return "at this look", f"blocked in {doing} ({one.after})", who
    # A process moves in several hierarchies at once.
    what = "cgroup" if one.what.startswith("cgroup of ") else one.what
    if not one.before:
        return "began", f"{what}: {one.after}", who
    if not one.after:
        return "ended", f"{what}: {one.before}", who
    return "changed", f"{what}: {one.before} became {one.after}", who


def lacks(found: Vitals) -> Iterator[str]:
    """Sources of which nothing can be read; what others lack is in JSON alone."""
    for one in found.lacks:
        if one.all_of_it:
            yield safe(f"nothing of {one.source}: {'; '.join(one.reasons)}")


def documents(found: Vitals) -> Iterator[str]:
    """A look as JSON, a document for each thing that matters."""
    for document in _documents(found):
        yield json.dumps(document, separators=(",", ":"))


def _documents(found: Vitals) -> Iterable[dict[str, object]]:
    for one in found.numbers:
        lost = one.unit == "ns" and one.note and one.length_ns > 0
        yield {
            "kind": "number", "t_ns": one.until_ns, "since_ns": one.since_ns,
            "metric": one.metric, "subject": one.subject, "who": one.who, "unit": one.unit,
            "nature": one.nature, "before": one.before, "after": one.after, "grown": one.grown,
            "share_ppm": one.grown * rules.PPM // one.length_ns if lost else None,
            "least_ppm": one.least_ppm, "says": one.note or None, "meaning": one.meaning,
        }  # fmt: skip
    for change in found.changes:
        yield {
            "kind": "change", "t_ns": change.t_ns, "since_ns": change.since_ns or None,
            "what": change.what, "subject": change.subject, "who": change.who,
            "before": change.before, "after": change.after,
        }  # fmt: skip
    for lack in found.lacks:
        yield {
            "kind": "lack", "t_ns": found.t_ns, "source": lack.source,
            "all_of_it": lack.all_of_it, "reasons": list(lack.reasons),
        }  # fmt: skip
