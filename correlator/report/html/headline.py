# SPDX-License-Identifier: Apache-2.0
"""A recording's verdict: where its requests' time went, who held it, and what slow ones add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import digest, units
from gpucorrelate.correlator.report.html import meanings
from gpucorrelate.correlator.report.html.path import CATEGORIES
from gpucorrelate.correlator.report.names import safe

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.html.pack import Json
    from gpucorrelate.correlator.report.html.spread import Band, Bands
    from gpucorrelate.correlator.report.values import Ledger, RunSummary

_SHOWN = 2
_LEAST_PERCENT = 10


def headline(summary: RunSummary, ttft: Bands) -> list[Json]:
    """Claims one after another, each with where on the page it is shown."""
    whole = units.total(summary.by_category)
    if not whole:
        return [{"text": "No request was seen, so there is nothing to say of where time went."}]
    said: list[Json] = doubts(summary.ledger)
    known = [pair for pair in summary.by_category if pair[0] not in digest.UNKNOWN_CATEGORIES]
    for at, (name, ns) in enumerate(sorted(known, key=lambda pair: -pair[1])[:_SHOWN]):
        if at and ns * 100 < whole * _LEAST_PERCENT:
            break
        share = units.share(ns, whole)
        lead = f"{share} of the requests' time was" if not at else f", {share}"
        text = f"{lead} {name} ({meanings.CATEGORIES[name]})"
        said.append({"text": text, "category": str(name)})
    unknown = whole - units.total(known)
    if unknown * 100 >= whole:
        said.append({"text": f", {units.share(unknown, whole)} is unknown", "to": "ledger"})
    if summary.actors:
        label, ns = summary.actors[0]
        said += [
            {"text": "; "},
            {"text": f"{safe(label)} held the path for {units.share(ns, whole)} of it",
             "to": "actors"},
        ]  # fmt: skip
    said.append({"text": ". "})
    slow = _slow_ones(ttft.bands())
    if slow:
        said.append({"text": slow, "to": "spread"})
    return said


def doubts(ledger: Ledger) -> list[Json]:
    """What stands before the claims of a recording that is not all there."""
    if ledger.clean:
        return []
    return [
        {"text": "The recording lost something or does not match", "to": "ledger"},
        {"text": ", so what follows may be wrong: "},
    ]


def _slow_ones(bands: tuple[Band, ...]) -> str:
    """What the slowest first tokens have more of than those up to the median."""
    if len(bands) < _SHOWN:
        return ""
    low, high = bands[0], bands[-1]
    grown = [
        (slow / high.count - fast / low.count, slow // high.count, fast // low.count, name)
        for slow, fast, name in zip(high.by_category, low.by_category, CATEGORIES, strict=True)
    ]
    more, slow_ns, fast_ns, name = max(grown)
    if more <= 0:
        return ""
    mean, usual = high.length_ns // high.count, low.length_ns // low.count
    return (
        f"First tokens beyond p{high.low_percent} took {units.duration(mean)} on average, those "
        f"up to p{low.high_percent} {units.duration(usual)}: most of the difference is {name}, "
        f"{units.duration(slow_ns)} instead of {units.duration(fast_ns)}."
    )
