# SPDX-License-Identifier: Apache-2.0
"""A request and an engine's step as documents of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import digest, text_context, text_parts, units
from gpucorrelate.correlator.report.html import path, streams, words
from gpucorrelate.correlator.report.html.pack import Document

if TYPE_CHECKING:
    from gpucorrelate.correlator.device import Device
    from gpucorrelate.correlator.report.html.pack import Json, Lexicon
    from gpucorrelate.correlator.report.page import Page
    from gpucorrelate.correlator.report.values import RequestReport, StepReport

_NO_TOKEN = "no token seen"


def fact(label: str, text: str, value: int | None = None, *, about: str = "") -> Json:
    """A figure: what it is called, how it reads, the number behind it, and what it means."""
    return {"label": label, "text": text, "value": value, "about": about}


def lengthy(label: str, length_ns: int | None, about: str = "") -> Json:
    """A length of time as a figure."""
    return fact(label, units.duration(length_ns, 4), length_ns, about=about)


def of_request(
    report: RequestReport,
    lexicon: Lexicon,
    origin_ns: int,
    *,
    in_full: bool = True,
    device: Device | None = None,
) -> Document:
    """A request.

    Args:
        report: The request.
        lexicon: Words of the page.
        origin_ns: The page's first moment; moments are counted from there.
        in_full: With the records that segments rest on, and what the host did meanwhile.
        device: What devices did, where their streams are to be shown, which ``in_full`` are.
    """
    start, first = report.arrival_ns, report.first_token_ns
    claims, claim = path.claims(report.verdict, report.segments, start)
    head: Json = {
        "what": "request",
        "id": lexicon.word(report.request_id),
        "ids": [
            lexicon.word(one) for one in (report.internal_id, *report.aliases)
            if one and one != report.request_id
        ],
        "status": lexicon.word(report.status),
        "style": text_parts.status_style(report.status),
        "at_ns": start - origin_ns,
        "moment": units.instant(start),
        "wall_ns": report.wall_ns,
        "first_ns": None if first is None else first - start,
        "verdict": claims,
        "doubtful": bool(report.verdict.doubts),
        "unknown_ns": report.verdict.unknown_ns,
        "facts": _request_facts(report),
        "sums": path.sums(report.segments),
        "holders": path.holders(report.segments, lexicon),
        "waits": path.waits(report.waits, start, lexicon),
        "error": digest.tiling_error(report.segments, start, report.end_ns),
        "in_full": in_full,
    }  # fmt: skip
    columns = path.columns(report.segments, lexicon, evidence=in_full)
    if first is not None and report.ttft_segments:
        rest = digest.clip_segments(report.segments, first, report.end_ns)
        head["before_first"] = path.sums(report.ttft_segments)
        head["after_first"] = path.sums(rest)
        mine = path.columns(report.ttft_segments, lexicon, evidence=in_full)
        columns |= {f"ttft_{name}": values for name, values in mine.items()}
    if in_full:
        head["unknown"], head["notes"] = _unknown_apart(_request_notes(report))
        if device is not None:
            head["streams"], busy = streams.of(device, lexicon, (start, report.end_ns))
            columns |= busy
    columns |= {
        "claim": claim,
        "phase_name": [path.PHASES.index(one.name) for one in report.phases],
        "phase_start": [one.start_ns - start for one in report.phases],
        "phase_length": [one.length_ns for one in report.phases],
        "phase_step": [0 if one.step is None else one.step + 1 for one in report.phases],
        "phase_tokens": [0 if one.tokens is None else one.tokens + 1 for one in report.phases],
        "phase_from": [lexicon.word(one.start_anchor) for one in report.phases],
        "phase_to": [lexicon.word(one.end_anchor) for one in report.phases],
        "token_out": [(leg.written_ns or leg.processed_ns) - start for leg in report.tokens],
        "token_made": [leg.made_ns - start for leg in report.tokens],
        "token_step": [0 if leg.step is None else leg.step + 1 for leg in report.tokens],
    }
    return Document(head, columns)


def tpot_ns(report: RequestReport) -> int | None:
    """Time per output token behind the first: the mean of the gaps; ``None`` without any."""
    gaps = report.itl_ns
    return sum(gaps) // len(gaps) if gaps else None


def _request_facts(report: RequestReport) -> list[Json]:
    gaps = sorted(report.itl_ns)
    found = [
        lengthy("wall", report.wall_ns, "arrival to last byte"),
        lengthy("TTFT", report.ttft_ns, "time to first token"),
    ]
    if gaps:
        found += [
            lengthy("ITL p50", units.quantile(gaps, 50), f"gap between tokens, n {len(gaps):,}"),
            lengthy("ITL max", gaps[-1], f"longest gap between tokens, n {len(gaps):,}"),
            lengthy("TPOT", tpot_ns(report), "mean gap between tokens"),
        ]
    cached = report.cached_tokens
    found.append(
        fact("tokens in", units.count(report.tokens_in), report.tokens_in,
             about="" if not cached else f"{cached:,} cached")
    )  # fmt: skip
    about = "" if report.tokens else _NO_TOKEN
    found.append(
        fact("tokens out", units.count(report.tokens_out), report.tokens_out, about=about)
    )
    found.append(fact("steps", f"{len(report.steps):,}", len(report.steps),
                      about=text_parts.steps_text(report.steps)))  # fmt: skip
    found.append(fact("preemptions", units.count(report.preemptions), report.preemptions))
    unknown = report.verdict.unknown_ns
    share = units.share(unknown, report.wall_ns) if unknown else "0"
    about = units.duration(unknown) if unknown else ""
    found.append(fact("unknown", share, unknown, about=about))
    return found


def _unknown_apart(notes: list[list[str]]) -> tuple[str, list[list[str]]]:
    """What is said of what is unknown, and the rest; what is not covered stands in the ledger."""
    said = " ".join(text for label, text in notes if label == "unknown")
    return said, [note for note in notes if note[0] not in ("unknown", "not covered")]


def _request_notes(report: RequestReport) -> list[list[str]]:
    def draw(page: Page) -> None:
        text_context.context(page, report.context)
        text_parts.unknown(page, report.segments, report.ledger)

    named = digest.boundaries(report.phases)
    found = words.lines(draw)
    if named:
        said = " · ".join(
            f"{one.name or 'unnamed'} +{units.duration(one.t_ns - report.arrival_ns, 4)}"
            for one in named
        )
        found.append(["boundaries", said])
    if report.boundaries:
        found.append(["", "; ".join(report.boundaries)])
    found.append(_token_ids(report))
    return found


def _token_ids(report: RequestReport) -> list[str]:
    checks = report.checks
    if not checks:
        return ["token ids", "not seen anywhere, so not compared"]
    same = len({(one.count, one.hash) for one in checks}) == 1
    if same:
        text = " = ".join(f"{one.place} {one.count:,}" for one in checks)
        verdict = "the same ids" if len(checks) > 1 else "seen at one place, not compared"
        return ["token ids", f"{text}: {verdict}"]
    text = ", ".join(f"{one.place} {one.count:,} ({one.hash:016x})" for one in checks)
    return ["TOKEN IDS", f"DIFFER: {text}"]


def of_step(
    report: StepReport, lexicon: Lexicon, origin_ns: int, device: Device | None = None
) -> Document:
    """An engine's step, with the streams of ``device`` if given."""
    start, wall = report.start_ns, report.wall_ns
    top = path.sums(report.segments)["by_category"]
    held = digest.holders(report.segments)
    verdict: list[Json] = []
    for at, (name, length_ns) in enumerate(top[:2]):
        share = units.share(length_ns, wall)
        text = f"{share} of the step was {name}" if not at else f", {share} {name}"
        verdict.append({"text": text, "category": name})
    if held:
        share = units.share(held[0].length_ns, wall)
        verdict += [
            {"text": "; "},
            {"text": f"{held[0].label} held the path for {share}",
             "actor": lexicon.word(held[0].label)},
        ]  # fmt: skip
    unknown_ns = sum(
        ns for name, ns in digest.by_category(report.segments)
        if name in digest.UNKNOWN_CATEGORIES
    )  # fmt: skip
    facts = [
        lengthy("wall", wall, "schedule start to update end; steps overlap"),
        lengthy("worker", report.worker_ns, "busy union of the workers' execute and sample calls"),
        fact("kind", report.kind),
        fact("rows", f"{report.rows:,}", report.rows, about="requests in it"),
        fact("tokens", f"{report.tokens:,}", report.tokens, about="scheduled"),
        fact("prefill tokens", units.count(report.prefill_tokens), report.prefill_tokens),
        fact("waiting", f"{report.waiting:,}", report.waiting, about="requests in the queue"),
        fact("unknown", units.share(unknown_ns, wall) if unknown_ns else "0", unknown_ns,
             about=units.duration(unknown_ns) if unknown_ns else ""),
    ]  # fmt: skip

    def draw(page: Page) -> None:
        text_context.context(page, report.context)
        text_parts.unknown(page, report.segments, report.ledger)

    said, notes = _unknown_apart(words.lines(draw))
    named, busy = (
        ([], {}) if device is None else streams.of(device, lexicon, (start, report.end_ns))
    )
    head: Json = {
        "what": "step",
        "id": lexicon.word(f"step {report.step}"),
        "step": report.step,
        "ids": [],
        "status": lexicon.word(report.status),
        "style": text_parts.status_style(report.status),
        "at_ns": start - origin_ns,
        "moment": units.instant(start),
        "wall_ns": wall,
        "first_ns": None,
        "verdict": verdict,
        "doubtful": False,
        "unknown_ns": unknown_ns,
        "facts": facts,
        "sums": path.sums(report.segments),
        "holders": path.holders(report.segments, lexicon),
        "waits": path.waits(report.waits, start, lexicon),
        "error": digest.tiling_error(report.segments, start, report.end_ns),
        "in_full": True,
        "unknown": said,
        "notes": notes,
        "streams": named,
        "members": [lexicon.word(one) for one, _ in report.requests],
    }
    return Document(head, path.columns(report.segments, lexicon, evidence=True) | busy)
