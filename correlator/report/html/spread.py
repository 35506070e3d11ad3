# SPDX-License-Identifier: Apache-2.0
"""How latencies are spread over a recording, and what time is made of at each percentile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.html.path import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.html.pack import Json

    I64 = NDArray[np.int64]

#: Bounds of the bands, in per cent of all values in ascending order.
BANDS = (0, 50, 75, 90, 95, 99, 100)
_BINS = 48
_SMALLEST_PART = 10_000
_SHOWN = (50, 90, 99)


@dataclass(frozen=True)
class Band:
    """Values between two percentiles.

    Attributes:
        low_percent: Of all values so many are below the band; those of equal length all are.
        high_percent: So many are in it or below.
        high_ns: Its largest value.
        count: Values in it.
        length_ns: Their sum.
        by_category: What of the path that sum is made of, in the order of the categories.
    """

    low_percent: int
    high_percent: int
    high_ns: int
    count: int
    length_ns: int
    by_category: tuple[int, ...]


class Bands:
    """Collects values, each with what it is made of, into bands that are known beforehand.

    Args:
        ordered: All values to come, ascending.
    """

    def __init__(self, ordered: Sequence[int]) -> None:
        self._ordered = np.asarray(ordered, np.int64)
        tops = [units.quantile(ordered, percent) for percent in BANDS[1:]] if ordered else []
        self._tops = np.array(tops, np.int64)
        shape = (max(1, len(tops)), len(CATEGORIES))
        self._made = np.zeros(shape, np.int64)
        self._count = np.zeros(shape[0], np.int64)
        self._length = np.zeros(shape[0], np.int64)

    def add(self, values: I64, made: I64) -> None:
        """Adds values; ``made`` has a row for each, in nanoseconds by category."""
        if not len(values) or not len(self._tops):
            return
        at = np.minimum(np.searchsorted(self._tops, values), len(self._tops) - 1)
        np.add.at(self._made, at, made)
        np.add.at(self._count, at, 1)
        np.add.at(self._length, at, values)

    def bands(self) -> tuple[Band, ...]:
        """Those that hold anything, the lowest first."""
        return tuple(
            Band(
                BANDS[k], BANDS[k + 1], int(self._tops[k]), int(self._count[k]),
                int(self._length[k]), tuple(self._made[k].tolist()),
            )
            for k in range(len(self._tops))
            if self._count[k]
        )  # fmt: skip

    def to_dict(self) -> Json:
        """Quantiles, a histogram and the bands."""
        ordered = self._ordered.tolist()
        counts, edges = _histogram(self._ordered)
        return {
            "n": len(ordered),
            "quantiles": [[f"p{p}", units.quantile(ordered, p)] for p in _SHOWN]
            + [["max", ordered[-1] if ordered else None]],
            "histogram": {"edges_ns": edges, "counts": counts},
            "bands": [
                {
                    "name": f"p{one.low_percent} to p{one.high_percent}",
                    "high_ns": one.high_ns,
                    "count": one.count,
                    "length_ns": one.length_ns,
                    "by_category": [
                        [str(name), ns]
                        for name, ns in zip(CATEGORIES, one.by_category, strict=True)
                        if ns
                    ],
                }
                for one in self.bands()
            ],
        }


def _histogram(ordered: I64) -> tuple[list[int], list[int]]:
    """Counts between edges that grow by the same factor, whole nanoseconds.

    What is shorter than a small part of the longest is counted as one, in front: tokens that left
    together have no gap, and that has no place on a logarithmic axis.
    """
    if not len(ordered):
        return [], []
    high = max(2, int(ordered[-1]))
    shortest = int(np.searchsorted(ordered, max(1, high // _SMALLEST_PART)))
    low = int(ordered[shortest]) if shortest < len(ordered) else 1
    edges = np.unique(np.geomspace(low, high + 1, _BINS + 1).round().astype(np.int64))
    edges[0], edges[-1] = low, high + 1
    if shortest:
        edges = np.concatenate((ordered[:1], edges))
    counts, _ = np.histogram(ordered, edges)
    return counts.tolist(), edges.tolist()
