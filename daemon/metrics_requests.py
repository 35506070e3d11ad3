# SPDX-License-Identifier: Apache-2.0
"""Sums of requests as metrics: histograms by model, phase and category, with exemplars."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Exemplar as Told

from gpucorrelate.daemon.request_sums import BOUNDS_S, DURATION, PATH, PHASE, TTFT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from gpucorrelate.daemon.request_sums import Histogram, RequestSums

_NS = 1e9
_PREFIX = "gpucorrelate_request"
_BOUNDS = (*map(str, BOUNDS_S), "+Inf")
_FAMILIES = {
    DURATION: ("duration", "Arrival to last byte, of every request that ended.", ()),
    TTFT: ("ttft", "Arrival to first token, of explained requests.", ()),
    PHASE: ("phase", "Time in each phase, of explained requests.", ("phase",)),
    PATH: ("path", "Critical path of explained requests, by what held it.", ("category",)),
}


def families(sums: RequestSums, *, exemplars: bool) -> Iterator[Metric]:
    """The metrics.

    Args:
        sums: What was counted.
        exemplars: Whether ids of requests may be in them; only OpenMetrics carries these.
    """
    for name, (word, text, labels) in _FAMILIES.items():
        told = HistogramMetricFamily(f"{_PREFIX}_{word}_seconds", text, labels=["model", *labels])
        for model in sums.models:
            for one in model.histograms:
                if one.name == name:
                    values = [model.model, one.label] if labels else [model.model]
                    buckets = _buckets(one, exemplars=exemplars)
                    told.add_metric(values, buckets, one.sum_ns / _NS)
        yield told
    flying = GaugeMetricFamily(f"{_PREFIX}s_in_flight", "Requests in flight.", labels=["model"])
    explained = CounterMetricFamily(
        f"{_PREFIX}s_explained", "Requests whose critical path was walked.", labels=["model"]
    )
    for model in sums.models:
        flying.add_metric([model.model], model.in_flight)
        explained.add_metric([model.model], model.explained)
    yield flying
    yield explained
    yield from _of_counting(sums)


def _of_counting(sums: RequestSums) -> Iterator[Metric]:
    out = CounterMetricFamily(
        f"{_PREFIX}s_not_explained",
        "Requests that were not: sampled_out for the budget of CPU time, by lot.",
        labels=["reason"],
    )
    for reason, count in (
        ("sampled_out", sums.sampled_out), ("too_long", sums.too_long), ("lost", sums.lost),
    ):  # fmt: skip
        out.add_metric([reason], count)
    yield out
    yield CounterMetricFamily(
        f"{_PREFIX}s_cpu_seconds", "CPU time of counting requests.", value=sums.cpu_ns / _NS
    )
    followed = GaugeMetricFamily(
        f"{_PREFIX}s_sessions", "Running sessions whose requests are counted.", labels=["counted"]
    )
    followed.add_metric(["yes"], sums.sessions)
    followed.add_metric(["no"], sums.not_followed)
    yield followed


def _buckets(
    one: Histogram, *, exemplars: bool
) -> list[tuple[str, float] | tuple[str, float, Told]]:
    latest = {each.bucket: each for each in one.exemplars} if exemplars else {}
    found: list[tuple[str, float] | tuple[str, float, Told]] = []
    for at, (bound, count) in enumerate(
        zip(_BOUNDS, itertools.accumulate(one.counts), strict=True)
    ):
        each = latest.get(at)
        if each is None:
            found.append((bound, float(count)))
        else:
            told = Told({"request_id": each.request_id}, each.value_ns / _NS, each.unix_s)
            found.append((bound, float(count), told))
    return found
