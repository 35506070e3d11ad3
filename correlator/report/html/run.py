# SPDX-License-Identifier: Apache-2.0
"""A whole recording as data of a page: sums first, each request in a block of its own behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report import text_context, units
from gpucorrelate.correlator.report.html import documents, path, slow, words
from gpucorrelate.correlator.report.html.headline import headline
from gpucorrelate.correlator.report.html.pack import Document, block
from gpucorrelate.correlator.report.html.spread import Bands
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.html.pack import Columns, Json, Lexicon
    from gpucorrelate.correlator.report.page import Page
    from gpucorrelate.correlator.report.values import (
        RequestReport,
        RequestRow,
        RunSummary,
        StepRow,
    )

    I64 = NDArray[np.int64]

#: Of a longer recording those requests have their segments in the page that took longest.
SEGMENTS = 4_000_000
#: Those that took longest come with the records that their segments rest on.
_IN_FULL, _STEPS_IN_FULL = 60, 20
_PER_BLOCK = 32
_BINS = 240
_ACTORS = 12


@dataclass
class Blocks:
    """Blocks of a page as they are made, and where each thing is."""

    done: list[str] = field(default_factory=list)
    _waiting: list[Document] = field(default_factory=list)

    def add(self, document: Document) -> tuple[int, int]:
        """Takes a document in; returns its block and its place there."""
        place = (len(self.done), len(self._waiting))
        self._waiting.append(document)
        if len(self._waiting) >= _PER_BLOCK:
            self.flush()
        return place

    def flush(self) -> None:
        """Ends the block that is being filled."""
        if self._waiting:
            self.done.append(block(self._waiting))
            self._waiting = []


class _Budget:
    """Which requests keep their segments, when there are more than a page should hold."""

    def __init__(self, rows: Sequence[RequestRow], most: int) -> None:
        order = sorted(range(len(rows)), key=lambda at: -rows[at].wall_ns)
        self._rank = {at: rank for rank, at in enumerate(order)}
        self._most, self._seen, self._requests = most, 0, 0

    def takes(self, at: int, segments: int) -> bool:
        self._seen += segments
        self._requests += 1
        return self._rank[at] * self._seen < self._most * self._requests

    def in_full(self, at: int) -> bool:
        return self._rank[at] < _IN_FULL


def of_run(
    run: Run, lexicon: Lexicon, blocks: Blocks, *, most_segments: int = SEGMENTS
) -> tuple[Json, tuple[int, int]]:
    """The recording, and the time that it is about.

    Returns:
        What stands at the page's beginning, and the first and last moment.
    """
    summary, rows, steps = run.summary(), run.requests(), run.steps()
    window = _extent(summary, rows, steps)
    edges = np.linspace(window[0], window[1], _BINS + 1).round().astype(np.int64)
    collected = _Collected(summary, edges, len(rows))
    budget = _Budget(rows, most_segments)
    places: list[tuple[int, int]] = []
    for at, report in enumerate(run.all_requests()):
        collected.add(at, report)
        place = (-1, -1)
        if budget.takes(at, len(report.segments)):
            document = documents.of_request(
                report, lexicon, window[0], in_full=budget.in_full(at), device=run.states.device
            )
            place = blocks.add(document)
        places.append(place)
        if not at % 256:
            lexicon.forget_objects()
    lexicon.forget_objects()
    head = {
        "facts": _facts(summary),
        "meta": [[name, value] for name, value in summary.meta],
        "sums": {
            "length_ns": units.total(summary.by_category),
            "by_phase": [[str(name), ns] for name, ns in summary.by_phase],
            "by_category": sorted(
                ([str(name), ns] for name, ns in summary.by_category), key=_longest_first
            ),
        },
        "actors": [[lexicon.word(name), ns] for name, ns in summary.actors[:_ACTORS]],
        "more_actors": [len(summary.actors[_ACTORS:]), units.total(summary.actors[_ACTORS:])],
        "spread": collected.spread(),
        "headline": headline(summary, collected.ttft),
        "notes": words.lines(_notes(summary)),
        "unseen": list(summary.host.unseen) if summary.host is not None else [],
        "requests": len(rows),
        "with_segments": sum(place[0] >= 0 for place in places),
        "slow": None if (found := slow.of(steps)) is None else found.to_dict(),
        "bins_ns": (edges - window[0]).tolist(),
    }
    step_places = _slow_steps(run, steps, lexicon, blocks, window[0])
    blocks.flush()
    columns = {
        **_rows(rows, places, collected, lexicon, window[0]),
        **_steps(steps, step_places, lexicon, window[0]),
        "bin_category": collected.over_time.reshape(-1),
    }
    head["block"] = blocks.add(Document({"what": "run"}, columns))
    blocks.flush()
    return head, window


def _longest_first(pair: Sequence[object]) -> int:
    return -int(str(pair[1]))


def _extent(
    summary: RunSummary, rows: Sequence[RequestRow], steps: Sequence[StepRow]
) -> tuple[int, int]:
    """From the first request or step to the end of the last one; all of it without any."""
    starts = [row.arrival_ns for row in rows] + [row.start_ns for row in steps]
    ends = [row.arrival_ns + row.wall_ns for row in rows]
    ends += [row.start_ns + row.wall_ns for row in steps]
    if not starts:
        return summary.start_ns, max(summary.end_ns, summary.start_ns + 1)
    return min(starts), max(max(ends), min(starts) + 1)


class _Collected:
    """What is gathered while requests go by one after another."""

    def __init__(self, summary: RunSummary, edges_ns: I64, requests: int) -> None:
        self.edges = edges_ns
        self.over_time = np.zeros((len(edges_ns) - 1, len(path.CATEGORIES)), np.int64)
        self.ttft, self._itl = Bands(summary.ttft_ns), Bands(summary.itl_ns)
        self.tpot_ns: list[int] = []
        self.itl_max_ns: list[int] = []
        self.by_category: list[I64] = []
        self._tpot_made: list[I64] = []
        self.requests = requests

    def add(self, at: int, report: RequestReport) -> None:
        """Takes in the next request."""
        start, category = path.starts_and_categories(report.segments)
        low, high = np.searchsorted(self.edges, (report.arrival_ns, report.end_ns))
        inner = self.edges[low:high]
        bounds = np.concatenate(([report.arrival_ns], inner, [report.end_ns]))
        made = path.between(start, category, bounds.astype(np.int64))
        first_bin = max(0, int(low) - 1)
        self.over_time[first_bin : first_bin + len(made)] += made[: len(self.over_time)]
        self.by_category.append(made.sum(axis=0))
        if report.ttft_ns is not None and report.ttft_segments:
            own, kinds = path.starts_and_categories(report.ttft_segments)
            whole = np.array([report.arrival_ns, report.first_token_ns], np.int64)
            self.ttft.add(np.array([report.ttft_ns]), path.between(own, kinds, whole))
        gaps = report.itl_ns
        self.itl_max_ns.append(max(gaps, default=-1))
        if not gaps:
            self.tpot_ns.append(-1)
            return
        times = np.array(
            [
                leg.written_ns or leg.processed_ns
                for leg in report.tokens
                if leg.written_ns or not report.http
            ],
            np.int64,
        )
        between = path.between(start, category, np.clip(times, report.arrival_ns, report.end_ns))
        self._itl.add(np.array(gaps, np.int64), between)
        self.tpot_ns.append(documents.tpot_ns(report) or 0)
        self._tpot_made.append(between.sum(axis=0) // len(gaps))

    def spread(self) -> Json:
        """The three latencies."""
        known = [one for one in self.tpot_ns if one >= 0]
        tpot = Bands(tuple(sorted(known)))
        if known:
            tpot.add(np.array(known, np.int64), np.array(self._tpot_made, np.int64))
        return {
            "TTFT": self.ttft.to_dict(),
            "ITL": self._itl.to_dict(),
            "TPOT": tpot.to_dict(),
        }


def _facts(summary: RunSummary) -> list[Json]:
    length_ns = summary.end_ns - summary.start_ns
    rate = f"{summary.tokens_out * 1e9 / length_ns:,.1f}/s" if length_ns > 0 else ""
    unknown = sum(ns for name, ns in summary.by_category if name in ("unobserved", "unexplained"))
    whole = units.total(summary.by_category)
    found = [
        documents.lengthy("recorded", length_ns),
        documents.fact("requests", f"{summary.requests:,}", summary.requests),
        documents.fact("steps", f"{summary.steps:,}", summary.steps),
        documents.fact("tokens out", f"{summary.tokens_out:,}", summary.tokens_out, about=rate),
    ]
    for name, values in (("TTFT", summary.ttft_ns), ("ITL", summary.itl_ns)):
        for percent in (50, 99):
            value = units.quantile(values, percent)
            about = f"n {len(values):,}"
            found.append(documents.lengthy(f"{name} p{percent}", value, about))
    share = units.share(unknown, whole) if unknown else "0"
    found.append(
        documents.fact("unknown", share, unknown, about=f"{units.duration(unknown)} of all paths")
    )
    return found


def _notes(summary: RunSummary) -> words.Draw:
    def draw(page: Page) -> None:
        if summary.host is not None:
            text_context.host(page, summary.host)

    return draw


def _slow_steps(
    run: Run, steps: Sequence[StepRow], lexicon: Lexicon, blocks: Blocks, origin_ns: int
) -> dict[int, tuple[int, int]]:
    """The slowest steps in full: their blocks by their place in the list."""
    order = sorted(range(len(steps)), key=lambda at: -steps[at].wall_ns)[:_STEPS_IN_FULL]
    found = {}
    for at in order:
        try:
            report = run.step(steps[at].step)
        except UsageError:  # several engine cores have a step of that number
            continue
        if report.start_ns == steps[at].start_ns:
            found[at] = blocks.add(
                documents.of_step(report, lexicon, origin_ns, run.states.device)
            )
    return found


def _rows(
    rows: Sequence[RequestRow],
    places: Sequence[tuple[int, int]],
    collected: _Collected,
    lexicon: Lexicon,
    origin_ns: int,
) -> Columns:
    """The list of requests; what is not known is -1."""
    made = np.array(collected.by_category, np.int64).reshape(len(rows), -1)
    return {
        "r_id": [lexicon.word(row.request_id) for row in rows],
        "r_at": [row.arrival_ns - origin_ns for row in rows],
        "r_wall": [row.wall_ns for row in rows],
        "r_ttft": [-1 if row.ttft_ns is None else row.ttft_ns for row in rows],
        "r_tpot": collected.tpot_ns,
        "r_itl": collected.itl_max_ns,
        "r_in": [-1 if row.tokens_in is None else row.tokens_in for row in rows],
        "r_out": [-1 if row.tokens_out is None else row.tokens_out for row in rows],
        "r_status": [lexicon.word(row.status) for row in rows],
        "r_block": [block_ for block_, _ in places],
        "r_place": [place for _, place in places],
        "r_category": made.reshape(-1),
    }


def _steps(
    rows: Sequence[StepRow],
    places: dict[int, tuple[int, int]],
    lexicon: Lexicon,
    origin_ns: int,
) -> Columns:
    """The list of steps; what is not known is -1."""
    return {
        "s_step": [row.step for row in rows],
        "s_at": [row.start_ns - origin_ns for row in rows],
        "s_wall": [row.wall_ns for row in rows],
        "s_worker": [-1 if row.worker_ns is None else row.worker_ns for row in rows],
        "s_kind": [lexicon.word(row.kind) for row in rows],
        "s_rows": [row.rows for row in rows],
        "s_tokens": [row.tokens for row in rows],
        "s_prefill": [row.prefill_tokens or 0 for row in rows],
        "s_waiting": [row.waiting for row in rows],
        "s_longest": [lexicon.word(row.longest) for row in rows],
        "s_block": [places.get(at, (-1, -1))[0] for at in range(len(rows))],
        "s_place": [places.get(at, (-1, -1))[1] for at in range(len(rows))],
    }
