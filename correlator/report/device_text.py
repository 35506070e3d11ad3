# SPDX-License-Identifier: Apache-2.0
"""Profiles and their steps as text."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import digest, text_parts, units
from gpucorrelate.correlator.report.device_build import merged
from gpucorrelate.correlator.report.names import clip
from gpucorrelate.correlator.report.page import BAD, HEAD, Page, TextOptions, bars
from gpucorrelate.correlator.report.text_lists import Column, put_columns
from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.device_values import (
        DeviceLedger,
        DeviceRunReport,
        DeviceStepReport,
        DeviceStepRow,
        IdleGap,
        KernelShare,
        StepDevice,
    )
    from gpucorrelate.correlator.report.values import Segment

_WHOLE = "the whole trace"
_HOST_NOTE = "host: a thread's own time; whether it had a CPU then was not recorded"
_STEPS_SHOWN = 20
_NAME = 44


def render_run(run: DeviceRunReport, out: IO[str], options: TextOptions | None = None) -> None:
    """Writes a profile: how busy its devices were, where its steps' time went, what they ran.

    Args:
        run: The profile.
        out: An open text file.
        options: Width and style.
    """
    page = Page(out, options or TextOptions())
    implied = all(row.implied for row in run.steps)
    steps = "no steps named" if implied else units.plural(len(run.steps), "step")
    page.line(
        ("profile ", HEAD),
        f"of {units.duration(run.wall_ns)}: {steps}, "
        f"{units.plural(run.device_ledger.gpu_records, 'GPU record')}, "
        f"{units.plural(run.device_ledger.calls, 'API call')}",
    )
    page.labelled("from", run.sources or ["unknown"])
    for one in run.devices:
        page.worded(
            f"GPU {one.device}",
            f"{one.process}: busy {units.duration(one.gpu_busy_ns)}, "
            f"{units.share(one.gpu_busy_ns, run.wall_ns)} of the profile and "
            f"{units.share(one.gpu_busy_ns, one.gpu_span_ns)} of the "
            f"{units.duration(one.gpu_span_ns)} from its first record to its last "
            f"(busy: overlap counted once; total of its records {units.duration(one.gpu_sum_ns)})",
        )
    whole = sum(length for _, length in run.by_category)
    page.heading(
        "critical path of the steps, and what the GPU ran",
        f"{units.duration(whole)} of path, steps summed; "
        f"{units.duration(run.gpu_sum_ns)} of records",
    )
    bars(page, [(str(c), n) for c, n in run.by_category], _pairs(run.classes))
    page.heading("steps", _HOST_NOTE)
    render_steps(run.steps[:_STEPS_SHOWN], out, page.options, of=len(run.steps))
    _top(page, run.top, run.gpu_sum_ns)
    page.line()
    _ledger(page, run.device_ledger)
    text_parts.not_covered(page, run.ledger)
    text_parts.ledger(page, run.ledger)


def render_steps(
    rows: Sequence[DeviceStepRow],
    out: IO[str],
    options: TextOptions | None = None,
    *,
    of: int | None = None,
) -> None:
    """Writes a list of a profile's steps."""
    page = Page(out, options or TextOptions())
    several = len({row.process for row in rows}) > 1
    columns = [
        Column("step", [str(row.step) for row in rows]),
        *([Column("process", [clip(r.process, 16) for r in rows], left=True)] if several else []),
        Column("wall", [units.duration(row.wall_ns) for row in rows]),
        Column("GPU busy", [units.duration(row.gpu_busy_ns) for row in rows]),
        Column("", [units.share(row.gpu_busy_ns, row.wall_ns) for row in rows]),
        Column("GPU sum", [units.duration(row.gpu_sum_ns) for row in rows]),
        Column("records", [units.count(row.ops) for row in rows]),
        Column("launches", [units.count(row.launches) for row in rows]),
        Column("path mostly", [_mostly(row) for row in rows], left=True),
        Column("name", [clip(_name(row), _NAME) for row in rows], left=True),
    ]
    put_columns(page, columns, ["" for _ in rows])
    if of is not None and of > len(rows):
        page.line(f"{len(rows):,} of {of:,} steps; all: gpucorrelate steps --limit 0")


def _name(row: DeviceStepRow) -> str:
    return _WHOLE if row.implied else row.name


def _mostly(row: DeviceStepRow) -> str:
    if not row.by_category:
        return ""
    category, length = row.by_category[0]
    return f"{category} {units.share(length, row.wall_ns)}"


def render_step(
    report: DeviceStepReport, out: IO[str], options: TextOptions | None = None
) -> None:
    """Writes one step of a profile: where its time went, what its devices did and waited for."""
    page = Page(out, options or TextOptions())
    device = report.device
    name = _WHOLE if report.implied else report.name
    page.line((f"step {report.step}", HEAD), f"  {clip(name, 60)}  {report.process}")
    page.line(
        f"wall {units.duration(report.wall_ns, 4)}   "
        f"GPU busy {units.duration(device.gpu_busy_ns)}, "
        f"{units.share(device.gpu_busy_ns, report.wall_ns)} (overlap once)   "
        f"GPU sum {units.duration(device.gpu_sum_ns)} (all records)"
    )
    page.line(
        f"{units.plural(device.kernels, 'kernel')}, "
        f"{units.plural(device.copies, 'copy', 'copies')}, "
        f"{units.plural(device.fills, 'fill')} in {units.duration(device.gpu_span_ns)} "
        f"from the first to the end of the last"
    )
    page.worded("verdict", report.verdict.text)
    text_parts.check_sum(page, report.segments, report.start_ns, report.end_ns)
    page.heading(
        "critical path, and what the GPU did meanwhile",
        f"{units.duration(report.wall_ns, 4)} each: its start to its last call or GPU record",
    )
    bars(
        page,
        digest.by_category(report.segments),
        [(what, length) for what, length in device.parts if length],
    )
    _margin(page, report.segments)
    page.heading("path by what was done, GPU work by class", _HOST_NOTE)
    bars(page, _by_span(report), _pairs(device.classes))
    _calls(page, device, report.wall_ns)
    for k, gap in enumerate(report.gaps[: page.options.top]):
        _gap(page, "idle gaps" if not k else "", gap)
    _top(page, device.top, device.gpu_sum_ns)
    page.line()
    text_parts.unknown(page, report.segments, report.ledger)
    _ledger(page, report.device_ledger)
    text_parts.ledger(page, report.ledger)


def _pairs(shares: Sequence[KernelShare]) -> list[tuple[str, int]]:
    return [(share.name, share.length_ns) for share in shares]


def _by_span(report: DeviceStepReport) -> list[tuple[str, int]]:
    """Path time by what was done: calls by name, between them host code, operations together."""
    sums: Counter[str] = Counter()
    for one in report.segments:
        if one.category is not Category.HOST:
            what = str(one.category)
        else:
            what = "between calls" if one.span in ("", report.name) else one.span
        sums[what] += one.length_ns
    return sums.most_common()


def _margin(page: Page, segments: Sequence[Segment]) -> None:
    """Where the path could as well have gone the other way."""
    close = [s for s in segments if s.slack_ns is not None and s.slack_ns < 1000]
    changed = sum(s.slack_ns is not None for s in segments)
    if close:
        page.worded(
            "margin",
            f"at {len(close):,} of {changed:,} turns of the path the next-to-last of what had to "
            f"happen came within 1 us of the last",
        )


def _calls(page: Page, device: StepDevice, wall_ns: int) -> None:
    share = units.share(device.launch_ns, wall_ns)
    graphs = (
        f"{device.graph_launches:,} of graphs, {device.graph_ops:,} records by them"
        if device.graph_launches
        else "none of graphs"
    )
    page.worded(
        "launches",
        f"{device.launches:,} of {device.calls:,} API calls, "
        f"{units.duration(device.launch_ns)} in them summed over threads ({share} of wall); "
        f"{graphs}",
    )
    said = [
        f"{sync.count:,} {sync.kind} {units.duration(sync.length_ns)} "
        f"(GPU busy {units.duration(sync.busy_ns)}, "
        f"over-wait {units.duration(sync.over_wait_ns)})"
        for sync in device.syncs
    ]
    page.labelled("syncs", said or ["none recorded"])


def _gap(page: Page, label: str, gap: IdleGap) -> None:
    """One idle gap: between what, launched when, and who had the path meanwhile."""
    if gap.launched_ns is None:
        launch = "launch not on record"
    elif gap.launched_ns >= gap.start_ns:
        launch = f"{gap.launch} {units.duration(gap.launched_ns - gap.start_ns)} into it"
    else:
        launch = f"{gap.launch} {units.duration(gap.start_ns - gap.launched_ns)} before it"
    doing = ", ".join(f"{what} {units.duration(length)}" for what, length in gap.doing[:3])
    page.worded(
        label,
        f"{units.duration(gap.length_ns)} on {gap.stream} between {gap.before or 'nothing'} and "
        f"{gap.after} ({launch}): {doing}",
    )


def _top(page: Page, top: Sequence[KernelShare], whole_ns: int) -> None:
    rows = merged(top)[: page.options.top]
    if not rows:
        return
    said = [
        f"{one.name} {units.duration(one.length_ns)} ({units.share(one.length_ns, whole_ns)}, "
        f"{units.plural(one.count, 'time')})"
        for one in rows
    ]
    page.labelled("longest", said)


def _ledger(page: Page, counts: DeviceLedger) -> None:
    """What became of every record."""
    how = [f"{counts.by_launch:,} by their launch"]
    if counts.by_stream:
        how.append(f"{counts.by_stream:,} by their stream's order")
    if counts.by_time:
        how.append(f"{counts.by_time:,} by when they ran")
    items = [f"{counts.gpu_records:,} in all", f"{counts.assigned:,} in a step ({', '.join(how)})"]
    items += [f"{n:,} in none: {reason}" for reason, n in counts.unassigned]
    if counts.clamped:
        items.append(f"{counts.clamped:,} seem to begin before their launch (taken as at it)")
    if counts.inferred:
        items.append(
            f"{units.plural(counts.inferred, 'dependency', 'dependencies')} inferred from times"
        )
    if counts.launches_without_record:
        items.append(f"{counts.launches_without_record:,} launching calls without a GPU record")
    page.labelled("GPU records", items, between="; ")
    wrong = [
        (counts.invalid, "GPU records with times that cannot be, left out"),
        (counts.calls_invalid, "API calls with times that cannot be, left out"),
        (counts.repeated_ids, "GPU records whose correlation id several calls have"),
    ]
    for n, what in wrong:
        if n:
            page.worded("LOST/WRONG", f"{n:,} {what}", style=BAD)
