# SPDX-License-Identifier: Apache-2.0
"""The host's numbers as counters, and what was lost or changed as marks in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report.perfetto.scene import ABOUT_RANK, HOST_RANK
from gpucorrelate.correlator.report.perfetto.writer import Slices
from gpucorrelate.correlator.search import grouped
from gpucorrelate.correlator.states import clean_waits
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.perfetto.scene import Scene

    I64 = NDArray[np.int64]

LOSS, CHANGE, ABOUT = "loss", "change", "about"
_GROUP = "host, its cgroups and devices"


def draw_counters(scene: Scene) -> None:
    """Draws every number that was recorded, those of threads and processes below their tracks.

    A total is shown as what it grew by: in per cent of the time for lengths of time, else per
    second. Totals since boot or since a process began say nothing of a recording.
    """
    capture = scene.run.capture
    rows = capture.table("counter")
    if not len(rows):
        return
    strings = capture.strings
    metric = capture.table("metric")
    known = {
        name: (strings[unit], nature)
        for name, unit, nature in zip(
            *(metric[c].tolist() for c in ("name", "unit", "nature")), strict=True
        )
    }
    number, first = grouped(rows["metric"], rows["subject"])
    order = np.lexsort((rows["t_ns"], number))
    bounds = np.searchsorted(number[order], np.arange(len(first) + 1)).tolist()
    t, since, value = (rows[c][order] for c in ("t_ns", "since_ns", "value"))
    for k in sorted(range(len(first)), key=lambda k: strings[int(rows["metric"][first[k]])]):
        low, high = bounds[k], bounds[k + 1]
        name = int(rows["metric"][first[k]])
        unit, nature = known.get(name, ("", int(Nature.LEVEL)))
        moments, shown = t[low:high], unit
        values: NDArray[np.generic] = value[low:high]
        if nature == Nature.TOTAL:
            moments, values, shown = _growth(moments, since[low:high], value[low:high], unit)
        seen = _around(scene, moments)
        if seen.any():
            subject = strings[int(rows["subject"][first[k]])]
            scene.writer.readings(
                strings[name], _parent(scene, subject), shown, moments[seen], values[seen]
            )


def _growth(t: I64, since: I64, value: I64, unit: str) -> tuple[I64, NDArray[np.float64], str]:
    """What a total grew by, over the time in which it did; in between it did not."""
    begin = np.maximum(since[1:], t[:-1])
    length = np.maximum(t[1:] - begin, 1)
    rate = np.diff(value).astype(np.float64) / length
    # A counter that began anew grew by nobody knows what.
    rate = np.maximum(rate * (100 if unit == "ns" else 1_000_000_000), 0)
    # Each growth from its begin on, and none behind it until the next one begins.
    ends = np.ones(len(begin), bool)
    ends[:-1] = t[1:-1] < begin[1:]
    moments = np.concatenate([begin, t[1:][ends]])
    values = np.concatenate([rate, np.zeros(int(ends.sum()))])
    order = np.argsort(moments, kind="stable")
    return moments[order], values[order], "%" if unit == "ns" else f"{unit or 'count'}/s"


def _around(scene: Scene, t: I64) -> NDArray[np.bool_]:
    """Readings in the window, and the last one before each part of it."""
    if not len(t):
        return np.zeros(0, bool)
    return scene.window.holds(t, np.append(t[1:], np.iinfo(np.int64).max))


def _parent(scene: Scene, subject: str) -> int:
    kind, _, rest = subject.partition(":")
    if kind == "pid" and rest.isdecimal():
        return scene.below(scene.process(int(rest)), "counters", 5)
    if kind == "tid" and rest.isdecimal():
        threads = scene.run.states.threads
        at = threads.one(int(rest))
        pid = int(threads.tgid[at]) if at >= 0 else 0
        if pid:
            return scene.below(scene.thread(int(rest), pid), "counters", 5)
    group = scene.below(0, _GROUP, HOST_RANK)
    return scene.below(group, scene.describe.subject(subject) or "host")


def draw_marks(scene: Scene) -> None:
    """Draws losses over the time that they may lie in, and changes when they were noticed."""
    capture, writer = scene.run.capture, scene.writer
    strings = capture.strings
    lost = capture.table("loss")
    lost = lost.select(scene.window.holds(lost["since_ns"], lost["t_ns"]))
    if len(lost):
        number, first = grouped(lost["hop"], lost["what"])
        names = [
            f"lost: {strings[int(lost['what'][i])] or 'events'} ({strings[int(lost['hop'][i])]})"
            for i in first.tolist()
        ]
        start = np.where(lost["since_ns"] > 0, lost["since_ns"], scene.run.states.start_ns)
        what = Slices(
            np.minimum(start, lost["t_ns"]), lost["t_ns"], writer.names.all(names)[number],
            writer.categories(LOSS), (writer.number("events", lost["count"]),),
        )  # fmt: skip
        parent = scene.below(0, "what was lost", ABOUT_RANK)
        writer.slices(scene.below(parent, "losses"), what, nested=False, spare=("losses", parent))
    _changes(scene)


def _changes(scene: Scene) -> None:
    capture, writer = scene.run.capture, scene.writer
    strings = capture.strings
    rows = capture.table("change")
    rows = rows.select(scene.window.holds(rows["t_ns"], rows["t_ns"]))
    if not len(rows):
        return
    subjects, what = rows["subject"].tolist(), rows["what"].tolist()
    names = [
        f"{scene.describe.subject(strings[one])}: {strings[about]}"
        for one, about in zip(subjects, what, strict=True)
    ]
    group = scene.below(0, _GROUP, HOST_RANK)
    track = scene.below(group, "changes")
    told = Slices(
        rows["t_ns"], rows["t_ns"], writer.names.all(names), writer.categories(CHANGE),
        (
            writer.text("before", scene.string_texts(rows["before"])),
            writer.text("after", scene.string_texts(rows["after"])),
        ),
    )  # fmt: skip
    writer.moments(np.full(len(rows), track), told)


def draw_about(scene: Scene) -> None:
    """What the trace rests on, as the details of one slice over all of it."""
    run, writer = scene.run, scene.writer
    about = {f"recorded {fact.key}": fact.value for fact in run.capture.facts()}
    for line in run.ledger.lines:
        mark = "LOST/WRONG: " if line.bad else ""
        about[f"{mark}{line.name}"] = f"{line.count:,}{line.note and f' ({line.note})'}"
    device = run.states.device
    if device.ops.invalid or device.calls.invalid:
        about["LOST/WRONG: not drawn, times are not valid"] = (
            f"{device.ops.invalid:,} operations, {device.calls.invalid:,} calls"
        )
    waits = run.capture.table("wait")
    once = len(clean_waits(waits))
    if once < len(waits):
        about["waits recorded again when they ended, or of no length"] = f"{len(waits) - once:,}"
    for k, missing in enumerate(run.ledger.missing, 1):
        about[f"not covered {k}"] = missing
    for name, count in writer.counts.items():
        about[f"drawn {name}"] = f"{count:,}"
    start_ns, end_ns = (np.array([t]) for t in (run.states.start_ns, run.states.end_ns))
    args = tuple(
        writer.text(key, np.array([writer.texts(value or "?")], np.int64))
        for key, value in about.items()
    )
    words = "what it rests on" if run.ledger.clean else "LOST OR WRONG DATA"
    title = np.array([writer.names(f"recording: {words}")], np.int64)
    track = scene.below(0, "gpucorrelate", ABOUT_RANK)
    writer.slices(
        track, Slices(start_ns, end_ns, title, writer.categories(ABOUT), args), nested=False,
        spare=("gpucorrelate", 0),
    )  # fmt: skip
