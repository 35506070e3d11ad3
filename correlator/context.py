# SPDX-License-Identifier: Apache-2.0
"""What the host did in a window: numbers that changed within it, and which of them matter.

Numbers are recorded when they changed, with the moment before which they had not. So what a
total grew by in a window is known but for the readings at both ends, which speak of some time
outside it too; how long they speak for is said. Lifetime totals are never shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report.values import Context, ContextChange, ContextNumber
from gpucorrelate.correlator.search import grouped, last_at_most
from gpucorrelate.probes.wire.schema import CapabilityState, Nature

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture

    I64 = NDArray[np.int64]

_SOURCE = "host."
_PPM = 1_000_000
#: Shares of the window, in millionths, from which lost time is worth a word.
_CPU_PPM, _OTHER_PPM, _THREAD_PPM = 100_000, 10_000, 100_000
#: Of a number that speaks for so many times the window, most may have been at another time.
_MOST_AROUND = 3


@dataclass(frozen=True)
class _Rule:
    """When a number that changed matters."""

    metric: str
    least_ppm: int  # of the window; -1: any growth
    says: str

    def judge(self, grown: int, window_ns: int) -> str:
        """Why it matters, with the threshold; empty if it does not."""
        if self.least_ppm < 0:
            return self.says if grown > 0 else ""
        if grown * _PPM < self.least_ppm * window_ns:
            return ""
        return f"{self.says} ({self.least_ppm / 10_000:g}% of the time or more)"


_RULES = (
    _Rule("cpu.stat.throttled", _OTHER_PPM, "out of CPU quota"),
    _Rule("memory.events.oom_kill", -1, "killed for want of memory"),
    _Rule("memory.oom_control.oom_kill", -1, "killed for want of memory"),
    _Rule("memory.events.max", -1, "at its memory limit"),
    _Rule("memory.failcnt", -1, "at its memory limit"),
    _Rule("memory.events.high", -1, "above memory.high: slowed down to reclaim"),
    _Rule("cpu.pressure.some.total", _CPU_PPM, "tasks wanted a CPU"),
    _Rule("memory.pressure.some.total", _OTHER_PPM, "tasks stood still for want of memory"),
    _Rule("io.pressure.some.total", _CPU_PPM, "tasks stood still for want of a disk"),
    _Rule("thread.run_delay", _THREAD_PPM, "ready without a CPU"),
    _Rule("process.major_faults", -1, "faults that waited for a disk"),
    _Rule("engine.preemptions", -1, "requests preempted"),
)
_BY_METRIC = {rule.metric: (rank, rule) for rank, rule in enumerate(_RULES)}


@dataclass(frozen=True)
class _Series:
    """Readings of one number of one subject: rows ``low`` to ``high`` of the sorted table."""

    metric: int
    subject: int
    low: int
    high: int


class HostContext:
    """The host's numbers of a recording, to be asked for any window of it.

    Args:
        capture: The recording.
    """

    def __init__(self, capture: Capture) -> None:
        self._strings = capture.strings
        self._capture = capture

    @cached_property
    def _metrics(self) -> dict[int, tuple[str, int, str]]:
        """Unit, nature and meaning by name."""
        rows = self._capture.table("metric")
        return {
            name: (self._strings[unit], nature, self._strings[meaning])
            for name, unit, nature, meaning in zip(
                *(rows[c].tolist() for c in ("name", "unit", "nature", "meaning")), strict=True
            )
        }

    @cached_property
    def _sorted(self) -> tuple[I64, I64, I64, tuple[_Series, ...]]:
        rows = self._capture.table("counter")
        number, first = grouped(rows["metric"], rows["subject"])
        order = np.lexsort((rows["t_ns"], number))
        bounds = np.searchsorted(number[order], np.arange(len(first) + 1)).tolist()
        metric, subject = rows["metric"][first].tolist(), rows["subject"][first].tolist()
        series = tuple(
            _Series(*one) for one in zip(metric, subject, bounds[:-1], bounds[1:], strict=True)
        )
        return rows["t_ns"][order], rows["since_ns"][order], rows["value"][order], series

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Sources of the host that could not be read, each with the reason."""
        rows = self._capture.table("capability")
        latest = {
            self._strings[source]: (state, self._strings[reason])
            for source, state, reason in zip(
                *(rows[c].tolist() for c in ("source", "state", "reason")), strict=True
            )
            if self._strings[source].startswith(_SOURCE)
        }
        return tuple(
            f"{source.removeprefix(_SOURCE)}: {reason}"
            for source, (state, reason) in sorted(latest.items())
            if state != CapabilityState.ON
        )

    def of(self, start_ns: int, end_ns: int) -> Context | None:
        """What changed in a window; ``None`` where the host was not read."""
        if not len(self._capture.table("counter")):
            return None
        t, since, value, series = self._sorted
        low = np.array([one.low for one in series], np.int64)
        high = np.array([one.high for one in series], np.int64)
        everywhere = np.ones(len(series), np.int64)
        before = last_at_most(t, low, high, start_ns * everywhere)
        last = last_at_most(t, low, high, end_ns * everywhere)
        # A reading just behind the window speaks of its end.
        following = last + 1 < high
        beyond = following & (since[np.minimum(last + 1, len(t) - 1)] < end_ns)
        beyond &= since[np.minimum(last + 1, len(t) - 1)] > 0
        last = last + beyond
        numbers = []
        for k in np.flatnonzero(last > np.maximum(before, low - 1)).tolist():
            first = max(int(before[k]), series[k].low)
            if value[first] != value[last[k]]:
                numbers.append(self._number(series[k], first, int(last[k]), start_ns))
        window_ns = max(1, end_ns - start_ns)
        judged = tuple(self._judged(one, window_ns) for one in numbers)
        return Context(judged, self._changes(start_ns, end_ns), self.missing)

    def throttled_by(self, pid: int, start_ns: int, end_ns: int) -> str:
        """The cgroup of a process, or above it, whose quota was used up then; empty: not known.

        Of several that ran out of quota about then it is the one that stood still longest.
        """
        grown = {
            path: self._grown(path, start_ns, end_ns)
            for own in self._cgroups(pid, start_ns, end_ns)
            for path in _and_above(own)
        }
        path = max(grown, key=lambda one: grown[one], default="")
        return path if path and grown[path] > 0 else ""

    def _cgroups(self, pid: int, start_ns: int, end_ns: int) -> set[str]:
        """Cgroups with CPU quotas that a process may have been in."""
        found: dict[str, str] = {}
        others: set[str] = set()
        for t_ns, since_ns, what, before, after in self._moves.get(f"pid:{pid}", ()):
            if t_ns <= start_ns:
                found[what] = after
            elif since_ns <= end_ns:
                others |= {before, after}
        return {path for path in (*found.values(), *others) if path}

    @cached_property
    def _moves(self) -> dict[str, list[tuple[int, int, str, str, str]]]:
        rows = self._capture.table("change")
        columns = ("t_ns", "since_ns", "subject", "what", "before", "after")
        found: dict[str, list[tuple[int, int, str, str, str]]] = {}
        for t_ns, since_ns, *texts in zip(*(rows[c].tolist() for c in columns), strict=True):
            subject, what, before, after = (self._strings[text] for text in texts)
            keys = what.removeprefix("cgroup of ").split(",")
            if what == "cgroup" or (what.startswith("cgroup of ") and "cpu" in keys):
                found.setdefault(subject, []).append((t_ns, since_ns, what, before, after))
        return found

    @cached_property
    def _throttled(self) -> dict[str, _Series]:
        _, _, _, series = self._sorted
        return {
            self._strings[one.subject].removeprefix("cgroup:"): one
            for one in series
            if self._strings[one.metric] == "cpu.stat.throttled"
        }

    def _grown(self, path: str, start_ns: int, end_ns: int) -> int:
        """By how much the time without quota grew about then."""
        one = self._throttled.get(path)
        if one is None:
            return 0
        t, since, value, _ = self._sorted
        own = t[one.low : one.high]
        first = max(one.low, int(np.searchsorted(own, start_ns)) + one.low - 1)
        last = int(np.searchsorted(own, end_ns, side="right")) + one.low - 1
        if last + 1 < one.high and 0 < since[last + 1] < end_ns:
            last += 1
        return int(value[last] - value[first]) if last > first else 0

    def _number(self, series: _Series, first: int, last: int, start_ns: int) -> ContextNumber:
        t, since, value, _ = self._sorted
        unit, nature, meaning = self._metrics.get(series.metric, ("", Nature.LEVEL, ""))
        # Without a reading from before the window nobody knows what was before the first.
        known = int(t[first]) <= start_ns
        begun = int(since[first + 1]) if known else int(t[first])
        return ContextNumber(
            metric=self._strings[series.metric],
            subject=self._strings[series.subject],
            unit=unit,
            nature=Nature(nature).name.lower() if nature in set(Nature) else "level",
            meaning=meaning,
            before=int(value[first]),
            after=int(value[last]),
            since_ns=min(begun, start_ns) if known else begun,
            until_ns=int(t[last]),
        )

    def _judged(self, one: ContextNumber, window_ns: int) -> ContextNumber:
        rank, rule = _BY_METRIC.get(one.metric, (0, None))
        if rule is None or one.nature != "total":
            return one
        if one.until_ns - one.since_ns > _MOST_AROUND * window_ns:
            return one  # it speaks of another time more than of this one
        said = rule.judge(one.after - one.before, max(window_ns, one.until_ns - one.since_ns))
        return replace(one, note=said, rank=rank) if said else one

    def _changes(self, start_ns: int, end_ns: int) -> tuple[ContextChange, ...]:
        rows = self._capture.table("change")
        within = np.flatnonzero((rows["t_ns"] >= start_ns) & (rows["since_ns"] <= end_ns))
        within = within[rows["since_ns"][within] > 0]
        text: Callable[[int], str] = self._strings.__getitem__
        return tuple(
            ContextChange(
                int(rows["t_ns"][i]), int(rows["since_ns"][i]), text(rows["subject"][i]),
                text(rows["what"][i]), text(rows["before"][i]), text(rows["after"][i]),
            )
            for i in within.tolist()
        )  # fmt: skip


def _and_above(path: str) -> list[str]:
    """A cgroup and those above it, but the root, which has no quota."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:n]) for n in range(len(parts), 0, -1) if parts[0]]
