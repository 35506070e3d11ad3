# SPDX-License-Identifier: Apache-2.0
"""Profiles and their steps as text."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report import text_parts, units
from gpucorrelate.correlator.report.device_build import merged
from gpucorrelate.correlator.report.names import clip, clip_middle, width_of, wrap_items
from gpucorrelate.correlator.report.page import BAD, HEAD, Page, TextOptions, bars
from gpucorrelate.correlator.report.text_lists import Column, fitting, put_columns
from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.correlator.report.device_values import (
        DeviceLedger,
        DeviceRunReport,
        DeviceStepReport,
        DeviceStepRow,
        GapHost,
        GapOp,
        IdleGap,
        KernelShare,
        Skew,
        StepDevice,
    )
    from gpucorrelate.correlator.report.values import Segment

_WHOLE = "the whole trace"
_HOST_NOTE = "host: a thread's own time; whether it had a CPU then was not recorded"
_STEPS_SHOWN = 20
_NAME = 44
_GAP = "  "
#: Columns of a list of steps that a narrow page does without, the first to go first.
_LEAST_FIRST = ("GPU sum", "launches", "records", "")
_LONGEST_NAME, _SHORTEST_NAME, _LONGEST_CALL = 60, 8, 26


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
    page.wrapped(
        [("profile ", HEAD)],
        f"of {units.duration(run.wall_ns)}: {steps}, "
        f"{units.plural(run.device_ledger.gpu_records, 'GPU record')}, "
        f"{units.plural(run.device_ledger.calls, 'API call')}",
    )
    page.worded("from", ", ".join(run.sources) or "unknown")
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
    _skew(page, run.skew)
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
    put_columns(page, fitting(columns, page.width, _LEAST_FIRST), ["" for _ in rows])
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
    title = f"step {report.step}"
    room = page.width - len(title) - width_of(report.process) - 2 * len(_GAP)
    name = clip(name, max(min(room, _LONGEST_NAME), _SHORTEST_NAME))
    page.line((title, HEAD), f"{_GAP}{name}{_GAP}{report.process}")
    for line in wrap_items(
        [
            f"wall {units.duration(report.wall_ns, 4)}",
            f"GPU busy {units.duration(device.gpu_busy_ns)}, "
            f"{units.share(device.gpu_busy_ns, report.wall_ns)} (overlap once)",
            f"GPU sum {units.duration(device.gpu_sum_ns)} (all records)",
        ],
        page.width,
        between="   ",
    ):
        page.line(line)
    page.wrapped(
        [],
        f"{units.plural(device.kernels, 'kernel')}, "
        f"{units.plural(device.copies, 'copy', 'copies')}, "
        f"{units.plural(device.fills, 'fill')} in {units.duration(device.gpu_span_ns)} "
        f"from the first to the end of the last",
    )
    page.worded("verdict", report.verdict.text)
    text_parts.check_sum(page, report.segments, report.start_ns, report.end_ns)
    page.heading(
        "critical path, and what the GPU did meanwhile",
        f"{units.duration(report.wall_ns, 4)} each: its start to its last call or GPU record",
    )
    bars(
        page,
        report.by_category,
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
            what = clip_middle(what, _LONGEST_CALL)
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
    page.worded("syncs", ", ".join(said) or "none recorded")


def _gap(page: Page, label: str, gap: IdleGap) -> None:
    """One idle gap: between what, launched when, who had the path, and five questions answered."""
    doing = ", ".join(f"{what} {units.duration(length)}" for what, length in gap.doing[:3])
    page.worded(
        label,
        f"{units.duration(gap.length_ns)} on {gap.after.stream} between {gap.before.name} and "
        f"{gap.after.name} ({_launched(gap.after, gap.start_ns)}): {doing}",
    )
    answers = [
        f"launched before: {_launched(gap.before, gap.start_ns)}, {gap.pending:,} more pending",
        _host(gap.host),
        f"copies: {_each(gap.copies, _copy)}",
        f"communication: {_each(gap.communication, _communication)}",
        f"completion: {_completion(gap)}",
        f"receive: {'none' if gap.receive is None else gap.receive.name}",
    ]
    page.worded("", "; ".join(answers))


def _launched(op: GapOp, since_ns: int) -> str:
    """``cudaLaunchKernel 2.61 ms into it``: the call that launched it, and when it began."""
    if op.launched_ns is None:
        return "launch not on record"
    away = units.duration(abs(op.launched_ns - since_ns))
    return f"{op.launch} {away} {'into' if op.launched_ns >= since_ns else 'before'} it"


def _host(host: GapHost | None) -> str:
    if host is None:
        return "host: not known, the launch is not on record"
    text = f"host: {units.duration(host.between_calls_ns)} between calls, "
    text += f"{units.duration(host.in_calls_ns)} in calls"
    if host.waiting_ns:
        text += f" ({units.duration(host.waiting_ns)} waiting for the GPU)"
    return f"{text}, {units.duration(host.communication_ns)} for communication"


def _each(parts: Sequence[tuple[str, GapOp]], words: Callable[[GapOp], str]) -> str:
    said = [f"{words(op)} {when}{'' if when == 'meanwhile' else ' it'}" for when, op in parts]
    return ", ".join(said) or "none"


def _copy(op: GapOp) -> str:
    size = "size unknown" if op.size_bytes is None else units.plural(op.size_bytes, "byte")
    return f"{op.direction or 'direction unknown'} of {size} on {op.stream}"


def _communication(op: GapOp) -> str:
    """How long it took, and whether for its transfer or for a sender that came late."""
    length = units.duration(op.end_ns - op.start_ns)
    if op.waited_ns is None:
        return f"{op.name} {length} (transfer or waiting for others: not on record)"
    return f"{op.name} {length} (at least {units.duration(op.waited_ns)} waiting for others)"


def _completion(gap: IdleGap) -> str:
    """What came back to the thread before it launched the next work."""
    done = gap.completion
    if done is None:
        return "none before the launch"
    away = units.duration(abs(done.returned_ns - gap.start_ns))
    side = "into" if done.returned_ns >= gap.start_ns else "before"
    return f"{done.call} of {done.operation} {away} {side} it"


def _skew(page: Page, skew: Skew | None) -> None:
    """Which processes held up the others in what all of them do together."""
    if skew is None:
        return
    page.line()
    if skew.collectives:
        late = [
            f"{one.process} began {one.last:,} last and held up the others for "
            f"{units.duration(one.held_up_ns)}"
            for one in skew.ranks
            if one.last
        ]
        shown = late[: page.options.top] or ["none began later than moments may be off"]
        off_ns = max(step.off_ns for step in skew.steps)
        page.worded(
            "late ranks",
            f"of {units.plural(skew.collectives, 'collective')} whose kernels end within "
            f"{units.duration(off_ns)} of each other: {', '.join(shown)}",
        )
    else:
        page.worded("late ranks", "unknown: no collective is seen to be that of several processes")
    left = [f"{n:,} {reason}" for reason, n in skew.left_out]
    if left:
        page.worded("", f"communication kernels that were not compared: {', '.join(left)}")


def _top(page: Page, top: Sequence[KernelShare], whole_ns: int) -> None:
    rows = merged(top)[: page.options.top]
    if not rows:
        return
    said = [
        f"{one.name} {units.duration(one.length_ns)} ({units.share(one.length_ns, whole_ns)}, "
        f"{units.plural(one.count, 'time')})"
        for one in rows
    ]
    page.worded("longest", ", ".join(said))


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
    page.worded("GPU records", "; ".join(items))
    wrong = [
        (counts.invalid, "GPU records with times that cannot be, left out"),
        (counts.calls_invalid, "API calls with times that cannot be, left out"),
        (counts.repeated_ids, "GPU records whose correlation id several calls have"),
    ]
    for n, what in wrong:
        if n:
            page.worded("LOST/WRONG", f"{n:,} {what}", style=BAD)
