# SPDX-License-Identifier: Apache-2.0
"""What the host did in a window: numbers that changed within it, and which of them matter.

Numbers are recorded when they changed, with the moment before which they had not. So what a
total grew by in a window is known but for the readings at both ends, which speak of some time
outside it too; how long they speak for is said. Lifetime totals are never shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import context_rules as rules
from gpucorrelate.correlator.context_changes import Changes
from gpucorrelate.correlator.report.context_values import (
    Context,
    ContextLevel,
    ContextNumber,
    ContextQuota,
)
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import grouped, last_at_most
from gpucorrelate.probes.wire.schema import CapabilityState, Nature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.values import Segment

    I64 = NDArray[np.int64]

_SOURCE = "host."
_PERIODS, _OUT_OF_QUOTA = "cpu.stat.nr_periods", "cpu.stat.nr_throttled"
_QUOTA, _PERIOD = "cpu.max.quota", "cpu.max.period"
#: Levels that are worth their values and not only their changes.
_LEVELS = ("gpu.", "engine.", "pcie.", "MemAvailable", "MemTotal")
#: A thread that had less of the path, in per cent, tells nothing of it by its numbers.
_LEAST_OF_PATH = 1
OF_CGROUP = "of cgroup "
_EVER_NS = (1 << 63) - 1


@dataclass(frozen=True)
class OnPath:
    """Whom a request's or step's time was spent in.

    Attributes:
        tids: Threads that held a share of the path worth the name.
        pids: Processes that held any.
        out_of_quota_ns: Of the path, by the cgroup whose quota was used up; ``""`` not known.
    """

    tids: frozenset[int]
    pids: frozenset[int]
    out_of_quota_ns: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> OnPath:
        """Of a path's segments."""
        held: dict[tuple[int, int], int] = {}
        quota: dict[str, int] = {}
        for segment in segments:
            length, who = segment.length_ns, (segment.actor.tid, segment.actor.pid)
            held[who] = held.get(who, 0) + length
            if segment.category is Category.THROTTLED:
                detail = segment.cause.detail if segment.cause is not None else ""
                path = detail.removeprefix(OF_CGROUP)
                quota[path] = quota.get(path, 0) + length
        return cls.holding(held, quota)

    @classmethod
    def holding(
        cls, held: Mapping[tuple[int, int], int], quota: Mapping[str, int] | None = None
    ) -> OnPath:
        """Of the time that threads held a path, by thread and process."""
        least_ns = sum(held.values()) * _LEAST_OF_PATH
        tids = frozenset(tid for (tid, _), length in held.items() if length * 100 >= least_ns)
        pids = frozenset(pid for _, pid in held)
        return cls(tids - {0}, pids - {0}, quota or {})

    def concerns(self, subject: str, cgroups: Collection[str]) -> bool:
        """Whether what a subject did can matter: of the host as a whole, or on the path."""
        kind, _, rest = subject.partition(":")
        if kind == "cgroup":
            return rest in cgroups
        if kind in ("tid", "pid"):
            return rest.isdecimal() and int(rest) in (self.tids if kind == "tid" else self.pids)
        _, _, pid = rest.partition(" pid:")
        return not pid or (pid.isdecimal() and int(pid) in self.pids)


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
        label: What people call a subject.
    """

    def __init__(self, capture: Capture, label: Callable[[str], str] = str) -> None:
        self._strings = capture.strings
        self._capture = capture
        self.label = label

    @cached_property
    def _metrics(self) -> dict[int, tuple[str, str, str]]:
        """Unit, nature and meaning by name."""
        rows = self._capture.table("metric")
        known = {int(nature): nature.name.lower() for nature in Nature}
        return {
            name: (self._strings[unit], known.get(nature, "level"), self._strings[meaning])
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
    def _bounds(self) -> tuple[I64, I64]:
        series = self._sorted[3]
        low = np.array([one.low for one in series], np.int64)
        return low, np.array([one.high for one in series], np.int64)

    @cached_property
    def _named(self) -> dict[tuple[str, str], _Series]:
        """Series by metric and subject."""
        return {
            (self._strings[one.metric], self._strings[one.subject]): one for one in self._sorted[3]
        }

    @cached_property
    def _changes(self) -> Changes:
        ran_on = [
            cpu
            for one in self._sorted[3]
            if self._strings[one.metric] == "thread.last_cpu"
            for cpu in np.unique(self._sorted[2][one.low : one.high]).tolist()
        ]
        return Changes(self._capture, self.label, frozenset(ran_on))

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

    def of(self, start_ns: int, end_ns: int, path: OnPath | None = None) -> Context | None:
        """What changed in a window; ``None`` where the host was not read.

        Args:
            start_ns: Its start.
            end_ns: Its end.
            path: Who matters; without it everybody does.
        """
        if not len(self._capture.table("counter")):
            return None
        numbers = tuple(self._numbers(start_ns, end_ns))
        cgroups = self.cgroups_of(path, end_ns)

        def concerns(subject: str) -> bool:
            return path is None or path.concerns(subject, cgroups)

        window_ns = max(1, end_ns - start_ns)
        found = tuple(
            rules.judged(self._number(*one, start_ns, concerns), window_ns) for one in numbers
        )
        return Context(
            start_ns,
            end_ns,
            found,
            self._changes.within(start_ns, end_ns, concerns),
            self.missing,
            self._changes.states(end_ns, concerns),
            tuple(self._levels(start_ns, end_ns)),
            tuple(self._quotas(start_ns, end_ns, found, path)),
        )

    def cgroups_of(self, path: OnPath | None, end_ns: int = _EVER_NS) -> frozenset[str]:
        """Cgroups of those that matter, as of a moment, and all above them."""
        return self._changes.cgroups(path.pids, end_ns) if path is not None else frozenset()

    def _numbers(self, start_ns: int, end_ns: int) -> Iterator[tuple[_Series, int, int]]:
        """Series that changed in a window, with the first and the last reading that tell."""
        t, since, value, series = self._sorted
        low, high = self._bounds
        everywhere = np.ones(len(series), np.int64)
        before = last_at_most(t, low, high, start_ns * everywhere)
        last = last_at_most(t, low, high, end_ns * everywhere)
        # A reading just behind the window speaks of its end.
        following = np.minimum(last + 1, len(t) - 1)
        last = last + ((last + 1 < high) & (since[following] < end_ns) & (since[following] > 0))
        first = np.maximum(before, low)
        told = last > np.maximum(before, low - 1)
        told &= value[first] != value[np.maximum(last, 0)]
        for k in np.flatnonzero(told).tolist():
            yield series[k], int(first[k]), int(last[k])

    def throttled_by(self, pid: int, start_ns: int, end_ns: int) -> str:
        """The cgroup of a process, or above it, whose quota was used up then; empty: not known.

        Of several that ran out of quota about then it is the one that stood still longest.
        """
        grown = {
            path: self._grown(path, start_ns, end_ns)
            for own in self._changes.quota_cgroups(pid, start_ns, end_ns)
            for path in _and_above(own)
        }
        path = max(grown, key=lambda one: grown[one], default="")
        return path if path and grown[path] > 0 else ""

    def _grown(self, path: str, start_ns: int, end_ns: int) -> int:
        """By how much the time without quota grew about then."""
        one = self._named.get((rules.THROTTLED, f"cgroup:{path}"))
        if one is None:
            return 0
        t, since, value, _ = self._sorted
        own = t[one.low : one.high]
        first = max(one.low, int(np.searchsorted(own, start_ns)) + one.low - 1)
        last = int(np.searchsorted(own, end_ns, side="right")) + one.low - 1
        if last + 1 < one.high and 0 < since[last + 1] < end_ns:
            last += 1
        return int(value[last] - value[first]) if last > first else 0

    def _number(
        self,
        series: _Series,
        first: int,
        last: int,
        start_ns: int,
        concerns: Callable[[str], bool],
    ) -> ContextNumber:
        t, since, value, _ = self._sorted
        unit, nature, meaning = self._metrics.get(series.metric, ("", "level", ""))
        subject = self._strings[series.subject]
        # Without a reading from before the window nobody knows what was before the first.
        known = int(t[first]) <= start_ns
        begun = int(since[first + 1]) if known else int(t[first])
        return ContextNumber(
            metric=self._strings[series.metric],
            subject=subject,
            unit=unit,
            nature=nature,
            meaning=meaning,
            before=int(value[first]),
            after=int(value[last]),
            since_ns=min(begun, start_ns) if known else begun,
            until_ns=int(t[last]),
            who=self.label(subject),
            concerns=concerns(subject),
        )

    @cached_property
    def _level_series(self) -> tuple[_Series, ...]:
        found = (
            one
            for one in self._sorted[3]
            if self._strings[one.metric].startswith(_LEVELS)
            and self._metrics.get(one.metric, ("", "level", ""))[1] != "total"
        )
        return tuple(sorted(found, key=self._order))

    def _order(self, one: _Series) -> tuple[str, str]:
        return self._strings[one.metric], self._strings[one.subject]

    def _levels(self, start_ns: int, end_ns: int) -> Iterator[ContextLevel]:
        """Levels over a window, of those that were read before its end."""
        t, _, value, _ = self._sorted
        for one in self._level_series:
            own = t[one.low : one.high]
            last = int(np.searchsorted(own, end_ns, side="right"))
            if not last:
                continue
            first = max(0, int(np.searchsorted(own, start_ns, side="right")) - 1)
            values = value[one.low + first : one.low + last].tolist()
            moments = [max(start_ns, moment) for moment in own[first:last].tolist()]
            lengths = np.diff([*moments, max(end_ns, moments[-1])]).tolist()
            whole = sum(lengths)
            summed = sum(a * b for a, b in zip(values, lengths, strict=True))
            unit, nature, meaning = self._metrics.get(one.metric, ("", "level", ""))
            yield ContextLevel(
                self._strings[one.metric], self._strings[one.subject], unit, nature, meaning,
                min(values), (2 * summed + whole) // (2 * whole) if whole else values[-1],
                max(values), last - int(np.searchsorted(own, start_ns)),
            )  # fmt: skip

    def _quotas(
        self, start_ns: int, end_ns: int, numbers: Iterable[ContextNumber], path: OnPath | None
    ) -> Iterator[ContextQuota]:
        """Quotas that ran out on the path, or often enough to be worth a word."""
        by_name = {(one.metric, one.subject): one for one in numbers if one.concerns}
        on_path = path.out_of_quota_ns if path is not None else {}
        noted = [
            subject.removeprefix("cgroup:")
            for (metric, subject), one in by_name.items()
            if metric == rules.THROTTLED and one.note
        ]
        for cgroup in dict.fromkeys((*on_path, *noted)):
            subject = f"cgroup:{cgroup}"
            series = self._named.get((rules.THROTTLED, subject))
            one = by_name.get((rules.THROTTLED, subject))
            read = series is not None and int(self._sorted[0][series.low]) <= end_ns
            yield ContextQuota(
                cgroup,
                on_path.get(cgroup, 0),
                one.grown if one is not None else 0 if read else None,
                one.since_ns if one is not None else start_ns,
                one.until_ns if one is not None else end_ns,
                _grown_of(by_name.get((_PERIODS, subject)), known=read),
                _grown_of(by_name.get((_OUT_OF_QUOTA, subject)), known=read),
                self._limit(_QUOTA, subject, start_ns, end_ns),
                self._limit(_PERIOD, subject, start_ns, end_ns),
            )

    def _limit(self, metric: str, subject: str, start_ns: int, end_ns: int) -> int | None:
        """The last limit that there was within a window."""
        one = self._named.get((metric, subject))
        if one is None:
            return None
        own = self._sorted[0][one.low : one.high]
        first = max(0, int(np.searchsorted(own, start_ns, side="right")) - 1)
        last = int(np.searchsorted(own, end_ns, side="right"))
        values = self._sorted[2][one.low + first : one.low + last].tolist()
        return next((int(value) for value in reversed(values) if value > 0), None)

    def readings(self, metric: str) -> Iterator[tuple[str, I64, I64]]:
        """Of every subject of a metric: when it was read, and the values."""
        t, _, value, series = self._sorted
        for one in series:
            if self._strings[one.metric] == metric:
                subject = self._strings[one.subject]
                yield subject, t[one.low : one.high], value[one.low : one.high]


def _grown_of(one: ContextNumber | None, *, known: bool) -> int | None:
    return one.grown if one is not None else 0 if known else None


def _and_above(path: str) -> list[str]:
    """A cgroup and those above it, but the root, which has no quota."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:n]) for n in range(len(parts), 0, -1) if parts[0]]
