# SPDX-License-Identifier: Apache-2.0
"""Paths as columns of a page, and sums over them between any moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report import digest, units, verdict
from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.html.pack import Columns, Json, Lexicon
    from gpucorrelate.correlator.report.values import Segment, Verdict, Wait

    I64 = NDArray[np.int64]

CATEGORIES = tuple(Category)
PHASES = tuple(PhaseName)
_CATEGORY = {one: at for at, one in enumerate(CATEGORIES)}
_PHASE = {one: at for at, one in enumerate(PHASES)}
#: Rows of the lists of who held the path and of waits.
_HOLDERS, _WAITS, _PARTS = 12, 24, 3
#: How a verdict's last claim begins.
_LAST_CLAIMS = ("; the longest stall", "; nothing held it up")


def columns(segments: Iterable[Segment], words: Lexicon, *, evidence: bool) -> Columns:
    """Segments that follow each other, by their lengths.

    A step or slack that is not known is 0, one that is known is larger by 1. With ``evidence``
    the records that each rests on follow each other in columns of their own.
    """
    length, category, actor, phase = [], [], [], []
    span, step, cause, slack = [], [], [], []
    count: list[int] = []
    records: list[tuple[int, int, int, int, int]] = []
    start_ns: int | None = None
    for one in segments:
        start_ns = one.start_ns if start_ns is None else start_ns
        length.append(one.end_ns - one.start_ns)
        category.append(_CATEGORY[one.category])
        phase.append(_PHASE[one.phase])
        actor.append(words.actor(one.actor))
        span.append(words.word(one.span))
        step.append(0 if one.step is None else one.step + 1)
        cause.append(words.cause(one.cause))
        slack.append(0 if one.slack_ns is None else one.slack_ns + 1)
        if evidence:
            count.append(len(one.evidence))
            records += [
                (words.word(record.kind), record.start_ns - start_ns,
                 record.end_ns - record.start_ns, record.tid, words.word(record.note))
                for record in one.evidence
            ]  # fmt: skip
    for who, lasted_ns in zip(actor, length, strict=True):
        words.held_ns[who] += lasted_ns
    found: Columns = {
        "length": length, "category": category, "actor": actor, "phase": phase, "span": span,
        "step": step, "cause": cause, "slack": slack,
    }  # fmt: skip
    if evidence:
        kind, start, lasted, tid, note = np.array(records, np.int64).reshape(-1, 5).T
        found |= {
            "evidence": count, "evidence_kind": kind, "evidence_start": start,
            "evidence_length": lasted, "evidence_tid": tid, "evidence_note": note,
        }  # fmt: skip
    return found


def between(start_ns: I64, category: I64, bounds_ns: I64) -> I64:
    """Time of each category between moments that follow each other, exactly.

    Args:
        start_ns: Starts of segments that follow each other, each up to the next one's, the last
            one without an end.
        category: Index into ``CATEGORIES`` of each.
        bounds_ns: The moments, ascending, none before the first start.

    Returns:
        A row between each two moments, a column for each category.
    """
    rows = max(0, len(bounds_ns) - 1)
    if not len(start_ns) or not rows:
        return np.zeros((rows, len(CATEGORIES)), np.int64)
    lasted = np.zeros((len(start_ns), len(CATEGORIES)), np.int64)
    lasted[np.arange(1, len(start_ns)), category[:-1]] = np.diff(start_ns)
    until = np.cumsum(lasted, axis=0)
    at = np.clip(np.searchsorted(start_ns, bounds_ns, side="right") - 1, 0, None)
    total = until[at]
    total[np.arange(len(at)), category[at]] += bounds_ns - start_ns[at]
    return np.asarray(np.diff(total, axis=0))


def starts_and_categories(segments: Sequence[Segment]) -> tuple[I64, I64]:
    """Columns that ``between`` takes."""
    return (
        np.array([one.start_ns for one in segments], np.int64),
        np.array([_CATEGORY[one.category] for one in segments], np.int64),
    )


def sums(segments: Sequence[Segment]) -> Json:
    """Time by phase and by category."""
    return {
        "length_ns": digest.length(segments),
        "by_phase": [[str(name), ns] for name, ns in digest.by_phase(segments)],
        "by_category": [[str(name), ns] for name, ns in digest.by_category(segments)],
    }


def holders(segments: Sequence[Segment], words: Lexicon) -> list[Json]:
    """Who held the path, the longest first, the rest as one."""
    found = digest.holders(segments)
    rows = [
        {
            "label": words.word(one.label),
            "length_ns": one.length_ns,
            "parts": [
                [_CATEGORY[part.category], words.word(part.span), part.length_ns]
                for part in one.parts[:_PARTS]
            ],
            "longest": [one.longest.start_ns - segments[0].start_ns, one.longest.length_ns],
        }
        for one in found[:_HOLDERS]
    ]
    rest = found[_HOLDERS:]
    if rest:
        label = units.plural(len(rest), "more actor")
        length_ns = sum(one.length_ns for one in rest)
        rows.append({"label": words.word(label), "length_ns": length_ns, "parts": []})
    return rows


def waits(found: Sequence[Wait], origin_ns: int, words: Lexicon) -> Json:
    """Waits by who waited for whom, those with the longest wait first."""
    groups = digest.wait_groups(found)
    return {
        "groups": len(groups),
        "rows": [
            {
                "kind": words.word(group.longest.kind),
                "waiter": words.actor(group.longest.waiter),
                "cause": words.cause(group.longest.cause),
                "phase": _PHASE[group.longest.phase],
                "start_ns": group.longest.start_ns - origin_ns,
                "longest_ns": group.longest.length_ns,
                "count": group.count,
                "length_ns": group.length_ns,
            }
            for group in groups[:_WAITS]
        ],
    }


def claims(
    found: Verdict, segments: Sequence[Segment], origin_ns: int
) -> tuple[list[Json], list[int]]:
    """The verdict cut into what it claims, and for each segment the claim that rests on it.

    Returns:
        The claims, whose texts make up the verdict; that of a stall has its bounds. And the place
        of the claim of each segment, counted from 1; 0 none.
    """
    if found.doubts:
        return [{"text": found.text}], [0] * len(segments)
    at = max(found.text.find(mark) for mark in _LAST_CLAIMS)
    rest, stall = (found.text[:at], found.text[at + 2 :]) if at >= 0 else (found.text, "")
    pieces: list[Json] = []
    claim_of: dict[str, int] = {}
    for part in found.parts:
        begin = rest.find(part.what)
        if begin < 0:
            continue
        # A claim reaches to the next one's share: ", 27% waiting for ...".
        end = rest.find(", ", begin + len(part.what))
        end = len(rest) if end < 0 else end
        pieces.append({"text": rest[:end], "claim": len(pieces) + 1})
        claim_of[part.what] = len(pieces)
        rest = rest[end:]
    unknown = 0
    if rest:
        unknown = len(pieces) + 1
        pieces.append({"text": rest, "claim": unknown})
    if stall:
        pieces.append({"text": "; "})
        last: Json = {"text": stall}
        if found.stall is not None:
            last["from_ns"] = found.stall.start_ns - origin_ns
            last["to_ns"] = found.stall.end_ns - origin_ns
        pieces.append(last)
    # The words of a part are made by the verdict, so they are asked of it; once for each kind.
    known: dict[tuple[Category, int, str, int], int] = {}
    of = []
    for one in segments:
        kind = (one.category, id(one.actor), one.span, id(one.cause))
        claim = known.get(kind)
        if claim is None:
            if one.category in digest.UNKNOWN_CATEGORIES:
                claim = unknown
            else:
                claim = claim_of.get(verdict._what(one), 0)
            known[kind] = claim
        of.append(claim)
    return pieces, of
