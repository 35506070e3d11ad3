# SPDX-License-Identifier: Apache-2.0
"""A whole recording as text."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import text_context, text_parts, units
from gpucorrelate.correlator.report.names import pad, rjust, width_of
from gpucorrelate.correlator.report.page import BAD, HEAD, Page, TextOptions, bar, bars
from gpucorrelate.correlator.report.values import PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import RunSummary

_META_SHOWN = (
    "model",
    "vllm.version",
    "dtype",
    "executor",
    "tensor_parallel_size",
    "max_num_seqs",
    "async_scheduling",
    "chunked_prefill",
    "prefix_caching",
    "hostname",
    "kernel",
)
_DAY_NS = 86_400 * 1_000_000_000
# A recording is of minutes or hours; one of a month mixes clocks, or was tampered with.
_MOST_DAYS = 31
_ACTORS = 8
_LABEL = 44


def render_summary(summary: RunSummary, out: IO[str], options: TextOptions | None = None) -> None:
    """Writes a recording's latencies, where its requests' time went, and what that rests on.

    Args:
        summary: The recording in a few numbers.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options or TextOptions())
    length_ns = summary.end_ns - summary.start_ns
    page.line(
        ("recording ", HEAD),
        f"of {units.duration(length_ns)}: {units.plural(summary.requests, 'request')}, "
        f"{units.plural(summary.steps, 'step')}, "
        f"{units.plural(summary.tokens_out, 'token')} out{_rate(summary.tokens_out, length_ns)}",
    )
    page.line(f"from {units.instant(summary.start_ns)} s to {units.instant(summary.end_ns)} s "
              "(CLOCK_MONOTONIC)")  # fmt: skip
    if length_ns > _MOST_DAYS * _DAY_NS:
        page.line((f"these times cannot all be right: {length_ns // _DAY_NS:,} days between the "
                   "first and the last", BAD))  # fmt: skip
    meta = dict(summary.meta)
    known = [f"{name} {meta[name]}" for name in _META_SHOWN if meta.get(name)]
    if known:
        page.labelled("", known)
    _latencies(page, summary)
    _where(page, summary)
    if summary.host is not None:
        text_context.host(page, summary.host)
    page.line()
    text_parts.not_covered(
        page, summary.ledger, more=summary.host.unseen if summary.host is not None else ()
    )
    text_parts.ledger(page, summary.ledger)


def _rate(tokens: int, length_ns: int) -> str:
    return f" ({tokens * 1e9 / length_ns:,.1f} tokens/s)" if length_ns > 0 and tokens else ""


def _latencies(page: Page, summary: RunSummary) -> None:
    page.line()
    if not summary.requests:
        page.line(("no request was seen", BAD))
        return
    for name, lengths in (("TTFT", summary.ttft_ns), ("ITL", summary.itl_ns)):
        page.labelled(name, [_quantiles(lengths)] if lengths else ["? (no token was seen)"])


def _quantiles(lengths: Sequence[int]) -> str:
    """Nearest-rank quantiles with their n; a p99 of fewer than 100 says it is the maximum."""
    ordered = sorted(lengths)
    texts = [
        f"{name} {units.duration(units.quantile(ordered, percent))}"
        for name, percent in (("p50", 50), ("p90", 90), ("p99", 99))
    ]
    if len(ordered) < 100:
        texts[-1] += " (the maximum)"
    else:
        texts.append(f"max {units.duration(ordered[-1])}")
    return f"{', '.join(texts)}, n {len(ordered):,}"


def _where(page: Page, summary: RunSummary) -> None:
    whole_ns = units.total(summary.by_category) or units.total(summary.by_phase)
    if not whole_ns:
        return
    length = units.duration(whole_ns, 4)
    page.heading(
        "all requests from arrival to last byte",
        f"{length} together, and shares of it",
    )
    order = list(PhaseName)
    phases = sorted(summary.by_phase, key=lambda pair: order.index(pair[0]))
    bars(page, phases, sorted(summary.by_category, key=lambda pair: -pair[1]), rows=10)
    actors = sorted(summary.actors, key=lambda pair: -pair[1])
    shown = actors[:_ACTORS]
    if not shown:
        return
    page.heading("who held the path", f"shares of the same {length}")
    width = min(max(width_of(label) for label, _ in shown), _LABEL, page.width - 30)
    for label, held_ns in shown:
        lead = (
            f"  {pad(label, width)} {rjust(units.duration(held_ns), 8)} "
            f"{units.share(held_ns, whole_ns):>6} "
        )
        page.line(lead, bar(held_ns, whole_ns, page.width - width_of(lead)))
    rest = actors[len(shown) :]
    if rest:
        summed = units.total(rest)
        page.line(
            f"  {units.plural(len(rest), 'more actor')}, {units.duration(summed)}, "
            f"{units.share(summed, whole_ns)}"
        )
