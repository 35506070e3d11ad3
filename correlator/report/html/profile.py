# SPDX-License-Identifier: Apache-2.0
"""A GPU profile and its steps as data of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import device_text, digest, units
from gpucorrelate.correlator.report.device_build import merged
from gpucorrelate.correlator.report.html import documents, path, streams, words
from gpucorrelate.correlator.report.html.headline import doubts
from gpucorrelate.correlator.report.html.pack import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.device import Device
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.device_values import (
        DeviceRunReport,
        DeviceStepReport,
        DeviceStepRow,
        KernelShare,
    )
    from gpucorrelate.correlator.report.html.pack import Columns, Json, Lexicon
    from gpucorrelate.correlator.report.html.run import Blocks

#: Steps with fewer segments come with the records that those rest on.
_IN_FULL = 50_000
#: Operations of all steps whose segments are in a page of the whole, the slowest steps first.
OPERATIONS = 1_500_000
_NOTES = (
    "margin", "launches", "syncs", "idle gaps", "longest", "late ranks", "unknown",
    "GPU records", "LOST/WRONG", "not covered",
)  # fmt: skip
_GAPS, _KERNELS = 20, 20


def of_step(
    report: DeviceStepReport, lexicon: Lexicon, origin_ns: int, device_work: Device
) -> Document:
    """A step of a profile; ``device_work`` is all that devices did, its own work or not."""
    start, wall, device = report.start_ns, report.wall_ns, report.device
    in_full = len(report.segments) <= _IN_FULL
    unknown = report.verdict.unknown_ns
    facts = [
        documents.lengthy("wall", wall, "start to its last call or GPU record"),
        documents.fact("GPU busy", units.share(device.gpu_busy_ns, wall), device.gpu_busy_ns,
                       about=f"{units.duration(device.gpu_busy_ns)}, overlap counted once"),
        documents.lengthy("GPU sum", device.gpu_sum_ns, "total of all records"),
        documents.fact("kernels", f"{device.kernels:,}", device.kernels),
        documents.fact("copies, fills", f"{device.copies:,}, {device.fills:,}",
                       device.copies + device.fills),
        documents.fact("launches", f"{device.launches:,}", device.launches,
                       about=f"of {device.calls:,} API calls"),
        documents.fact("unknown", units.share(unknown, wall) if unknown else "0", unknown,
                       about=units.duration(unknown) if unknown else ""),
    ]  # fmt: skip
    named, busy = streams.of(device_work, lexicon, (start, report.end_ns))
    said = words.chosen(lambda out, how: device_text.render_step(report, out, how), _NOTES)
    head: Json = {
        "what": "profile-step",
        "id": lexicon.word(f"step {report.step}"),
        "step": report.step,
        "ids": [lexicon.word(one) for one in (_name(report), report.process) if one],
        "status": lexicon.word(""),
        "style": "",
        "at_ns": start - origin_ns,
        "moment": units.instant(start),
        "wall_ns": wall,
        "first_ns": None,
        "verdict": _claims(report),
        "doubtful": bool(report.verdict.doubts),
        "unknown_ns": unknown,
        "facts": facts,
        "sums": {**path.sums(report.segments), "by_phase": []},
        "holders": path.holders(report.segments, lexicon),
        "waits": {"groups": 0, "rows": []},
        "parts": [[what, ns] for what, ns in device.parts if ns],
        "classes": _shares(device.classes),
        "kernels": _shares(merged(device.top)[:_KERNELS]),
        "gaps": [
            {
                "at_ns": gap.start_ns - start,
                "length_ns": gap.length_ns,
                "stream": lexicon.word(gap.after.stream),
                "before": lexicon.word(gap.before.name),
                "after": lexicon.word(gap.after.name),
                "doing": [[what, ns] for what, ns in gap.doing[:4]],
            }
            for gap in report.gaps[:_GAPS]
        ],
        "error": digest.tiling_error(report.segments, start, report.end_ns),
        "in_full": in_full,
        "unknown": " ".join(text for label, text in said if label == "unknown"),
        "notes": [note for note in said if note[0] not in ("unknown", "not covered")],
        "streams": named,
    }
    return Document(head, path.columns(report.segments, lexicon, evidence=in_full) | busy)


def of_run(run: Run, lexicon: Lexicon, blocks: Blocks) -> tuple[Json, tuple[int, int]]:
    """A whole profile, and the time that it is about."""
    devices = run.devices
    whole = devices.whole()
    rows = whole.steps
    origin = min((row.start_ns for row in rows), default=whole.start_ns)
    until = max((row.end_ns for row in rows), default=whole.end_ns)
    places: dict[int, tuple[int, int]] = {}
    left = OPERATIONS
    for at in sorted(range(len(rows)), key=lambda at: -rows[at].wall_ns):
        if places and rows[at].ops > left:
            continue
        left -= rows[at].ops
        places[at] = blocks.add(of_step(devices.report(at), lexicon, origin, run.states.device))
        lexicon.forget_objects()
    blocks.flush()
    head = {
        "facts": _facts(whole),
        "sources": list(whole.sources),
        "sums": {
            "length_ns": units.total(whole.by_category),
            "by_phase": [],
            "by_category": [[str(name), ns] for name, ns in whole.by_category],
        },
        "classes": _shares(whole.classes),
        "kernels": _shares(merged(whole.top)[:_KERNELS]),
        "headline": _headline(whole),
        "notes": words.chosen(
            lambda out, how: device_text.render_run(whole, out, how), (*_NOTES, "from", "GPU 0")
        ),
        "devices": [
            [one.process, one.device, one.ops, one.gpu_busy_ns, one.gpu_sum_ns, one.gpu_span_ns]
            for one in whole.devices
        ],
        "skew": _skew(whole),
        "steps": len(rows),
        "with_segments": len(places),
        "block": blocks.add(Document({"what": "profile"}, _rows(rows, places, lexicon, origin))),
    }
    blocks.flush()
    return head, (origin, max(until, origin + 1))


def _claims(report: DeviceStepReport) -> list[Json]:
    """The verdict; its first claim leads to what most of the path was."""
    first, mark, rest = report.verdict.text.partition("; ")
    if report.verdict.doubts or not report.by_category:
        return [{"text": report.verdict.text}]
    claim: Json = {"text": first, "category": str(report.by_category[0][0])}
    return [claim, {"text": f"{mark}{rest}"}] if mark else [claim]


def _name(report: DeviceStepReport) -> str:
    return "the whole trace" if report.implied else report.name


def _shares(shares: Sequence[KernelShare]) -> list[list[object]]:
    return [[one.name, one.length_ns, one.count] for one in shares]


def _facts(whole: DeviceRunReport) -> list[Json]:
    busy, span = whole.gpu_busy_ns, sum(one.gpu_span_ns for one in whole.devices)
    return [
        documents.lengthy("profile", whole.wall_ns, "first moment on record to the last"),
        documents.fact("steps", f"{len(whole.steps):,}", len(whole.steps)),
        documents.fact("devices", f"{len(whole.devices):,}", len(whole.devices)),
        documents.fact("GPU busy", units.share(busy, span), busy,
                       about=f"{units.duration(busy)} of first to last record, devices summed"),
        documents.fact("GPU records", f"{whole.device_ledger.gpu_records:,}",
                       whole.device_ledger.gpu_records),
        documents.fact("API calls", f"{whole.device_ledger.calls:,}", whole.device_ledger.calls),
    ]  # fmt: skip


def _headline(whole: DeviceRunReport) -> list[Json]:
    total = units.total(whole.by_category)
    if not total:
        return [{"text": "No step has a path, so there is nothing to say of where time went."}]
    said: list[Json] = doubts(whole.ledger)
    for at, (name, ns) in enumerate(whole.by_category[:3]):
        if at and ns * 100 < total:
            break
        lead = " of the steps' critical path was " if not at else " "
        text = f"{', ' if at else ''}{units.share(ns, total)}{lead}{name}"
        said.append({"text": text, "category": str(name)})
    late = [one for one in whole.skew.ranks if one.last] if whole.skew is not None else []
    if late:
        text = f"{late[0].process} held up the others for {units.duration(late[0].held_up_ns)}"
        said += [{"text": "; "}, {"text": text, "to": "ranks"}]
    return said


def _skew(whole: DeviceRunReport) -> Json | None:
    if whole.skew is None:
        return None
    return {
        "collectives": whole.skew.collectives,
        "ranks": [
            [one.process, one.length_ns, one.waited_ns, one.last, one.held_up_ns]
            for one in whole.skew.ranks
        ],
    }


def _rows(
    rows: Sequence[DeviceStepRow],
    places: dict[int, tuple[int, int]],
    lexicon: Lexicon,
    origin_ns: int,
) -> Columns:
    made = []
    for row in rows:
        sums = dict(row.by_category)
        made += [sums.get(category, 0) for category in path.CATEGORIES]
    return {
        "p_step": [row.step for row in rows],
        "p_name": [lexicon.word("the whole trace" if row.implied else row.name) for row in rows],
        "p_process": [lexicon.word(row.process) for row in rows],
        "p_at": [row.start_ns - origin_ns for row in rows],
        "p_wall": [row.wall_ns for row in rows],
        "p_busy": [row.gpu_busy_ns for row in rows],
        "p_ops": [row.ops for row in rows],
        "p_launches": [row.launches for row in rows],
        "p_block": [places.get(at, (-1, -1))[0] for at in range(len(rows))],
        "p_place": [places.get(at, (-1, -1))[1] for at in range(len(rows))],
        "p_category": made,
    }
