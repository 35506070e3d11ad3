# SPDX-License-Identifier: Apache-2.0
"""Requests that ended, counted into histograms by model: what Prometheus is told of them.

Labels are few and bounded: the names of models up to ``MOST_MODELS``, phases and categories. An
exemplar names one request of each bucket, the latest.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live_values import Done, LiveUpdate, Skipped

_NS = 1_000_000_000
#: No request takes longer; whoever says so counts as this.
_LONGEST_NS = 7 * 24 * 3600 * _NS
#: Upper bounds of the buckets: from a step of a small model to what people wait for.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
            60.0, 120.0)  # fmt: skip
_BOUNDS_NS = tuple(round(bound * _NS) for bound in BOUNDS_S)
#: Models told apart; whatever comes later is ``other``.
MOST_MODELS = 16
OTHER, UNKNOWN = "other", "unknown"
_MODEL_LETTERS = 100
#: OpenMetrics allows 128 letters for an exemplar's labels, names and values together.
_ID_LETTERS = 100

DURATION, TTFT, PHASE, PATH = "duration", "ttft", "phase", "path"
_LABELS = {
    DURATION: frozenset({""}),
    TTFT: frozenset({""}),
    PHASE: frozenset(str(phase) for phase in PhaseName),
    PATH: frozenset(str(category) for category in Category),
}


@dataclass(frozen=True)
class Exemplar:
    """A request in a bucket.

    Attributes:
        bucket: Which, as an index into ``BOUNDS_S``; behind its end: above all of them.
        request_id: The id that the client knows.
        value_ns: What was counted of it.
        unix_s: When, on the wall clock.
    """

    bucket: int
    request_id: str
    value_ns: int
    unix_s: float


@dataclass(frozen=True)
class Histogram:
    """How often something took how long.

    Attributes:
        name: ``duration``, ``ttft``, ``phase``, ``path``.
        label: The phase or category; of the others empty.
        counts: By bucket, not cumulative; one more than ``BOUNDS_S`` has.
        sum_ns: Of all that was counted.
        exemplars: The latest request of each bucket, as far as there is one.
    """

    name: str
    label: str
    counts: tuple[int, ...]
    sum_ns: int
    exemplars: tuple[Exemplar, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether it is one of those that there are, and makes sense."""
        return (
            self.label in _LABELS.get(self.name, ())
            and len(self.counts) == len(BOUNDS_S) + 1
            and min(self.counts) >= 0
            and self.sum_ns >= 0
            and all(0 <= one.bucket < len(self.counts) for one in self.exemplars)
        )


@dataclass(frozen=True)
class ModelSums:
    """Requests of a model.

    Attributes:
        model: What clients call it.
        in_flight: Requests in flight now.
        explained: Requests that were walked: ``ttft``, ``phase`` and ``path`` are of these.
        histograms: Of these, and ``duration`` of all that ended.
    """

    model: str
    in_flight: int = 0
    explained: int = 0
    histograms: tuple[Histogram, ...] = ()


@dataclass(frozen=True)
class RequestSums:
    """All of them, since counting began.

    Attributes:
        models: By model.
        sampled_out: Requests that were not walked, to stay within the budget of CPU time.
        too_long: Not walked as their events were held no more.
        lost: Not walked as their end was lost, or their process went away.
        cpu_ns: CPU time that counting has taken.
        sessions: Sessions followed now.
        not_followed: Running sessions that are not, as they are too many.
    """

    models: tuple[ModelSums, ...] = ()
    sampled_out: int = 0
    too_long: int = 0
    lost: int = 0
    cpu_ns: int = 0
    sessions: int = 0
    not_followed: int = 0

    @property
    def is_valid(self) -> bool:
        """Whether it keeps the bounds; it comes from another process."""
        return len(self.models) <= MOST_MODELS + 2 and all(
            len(one.model) <= _MODEL_LETTERS
            and len(one.histograms) <= sum(map(len, _LABELS.values()))
            and all(histogram.is_valid for histogram in one.histograms)
            for one in self.models
        )


@dataclass
class _Counts:
    """A histogram as it grows."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_ns: int = 0
    latest: dict[int, Exemplar] = field(default_factory=dict)

    def add(self, value_ns: int, request_id: str, unix_s: float) -> None:
        value_ns = min(max(0, value_ns), _LONGEST_NS)
        bucket = bisect_left(_BOUNDS_NS, value_ns)
        self.counts[bucket] += 1
        self.sum_ns += value_ns
        self.latest[bucket] = Exemplar(bucket, request_id, value_ns, unix_s)


@dataclass
class _Model:
    explained: int = 0
    counts: dict[tuple[str, str], _Counts] = field(default_factory=lambda: defaultdict(_Counts))


class Counting:
    """Requests of several sessions, counted."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._in_flight: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, Skipped] = {}
        self._gone: tuple[int, ...] = (0, 0, 0)

    def take(self, update: LiveUpdate) -> None:
        """Count what is new in a session."""
        name = self._name(update.model)
        model = self._models[name]
        unix_s = time.time()
        for done in update.done:
            _count_done(model, done, unix_s)
        for report in update.finished:
            _count_report(model, report, unix_s)
        self._in_flight[update.session] = {name: update.in_flight_total}
        self._skipped[update.session] = update.skipped

    def forget(self, session: str) -> None:
        """A session is followed no more; what was counted of it stays."""
        self._in_flight.pop(session, None)
        skipped = self._skipped.pop(session, None)
        if skipped is not None:
            pairs = zip(self._gone, _by_reason(skipped), strict=True)
            self._gone = tuple(before + more for before, more in pairs)

    def sums(self, *, cpu_ns: int, sessions: int, not_followed: int) -> RequestSums:
        """What was counted up to now."""
        every = [self._gone, *map(_by_reason, self._skipped.values())]
        sampled_out, too_long, lost = (sum(one) for one in zip(*every, strict=True))
        models = tuple(self._sums_of(name, model) for name, model in self._models.items())
        return RequestSums(models, sampled_out, too_long, lost, cpu_ns, sessions, not_followed)

    def _sums_of(self, name: str, model: _Model) -> ModelSums:
        flying = sum(one.get(name, 0) for one in self._in_flight.values())
        histograms = tuple(
            Histogram(*key, tuple(one.counts), one.sum_ns, tuple(one.latest.values()))
            for key, one in model.counts.items()
        )
        return ModelSums(name, flying, model.explained, histograms)

    def _name(self, told: str) -> str:
        """A model's label; which names there are is bounded."""
        name = "".join(c for c in told if c.isprintable())[:_MODEL_LETTERS] or UNKNOWN
        if name not in self._models and len(self._models) >= MOST_MODELS:
            name = OTHER
        self._models.setdefault(name, _Model())
        return name


def _by_reason(skipped: Skipped) -> tuple[int, ...]:
    return skipped.sampled_out, skipped.too_long, skipped.unexplained


def _count_done(model: _Model, done: Done, unix_s: float) -> None:
    model.counts[DURATION, ""].add(done.wall_ns, _shown(done.request_id), unix_s)


def _count_report(model: _Model, report: RequestReport, unix_s: float) -> None:
    model.explained += 1
    shown = _shown(report.request_id)
    if report.ttft_ns is not None:
        model.counts[TTFT, ""].add(report.ttft_ns, shown, unix_s)
    phases: dict[str, int] = defaultdict(int)
    for phase in report.phases:
        phases[phase.name] += phase.end_ns - phase.start_ns
    categories: dict[str, int] = defaultdict(int)
    for segment in report.segments:
        categories[segment.category] += segment.end_ns - segment.start_ns
    for kind, sums in ((PHASE, phases), (PATH, categories)):
        for label, length_ns in sums.items():
            model.counts[kind, str(label)].add(length_ns, shown, unix_s)


def _shown(request_id: str) -> str:
    """An id as an exemplar may carry it: clients choose them."""
    return "".join(c for c in request_id if c.isprintable())[:_ID_LETTERS]
