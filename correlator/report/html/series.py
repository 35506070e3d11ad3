# SPDX-License-Identifier: Apache-2.0
"""What the host and its devices did over time, as readings under a page's time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.search import grouped
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture

    I64 = NDArray[np.int64]
    F64 = NDArray[np.float64]

#: What is drawn, in this order, and what it is called. Totals are drawn as what they grew by.
METRICS = {
    "cpu.stat.throttled": "out of CPU quota",
    "thread.run_delay": "ready without a CPU",
    "cpu.pressure.some.total": "a task wanted a CPU",
    "memory.pressure.some.total": "a task wanted memory",
    "io.pressure.some.total": "a task wanted a disk",
    "process.major_faults": "faults that waited for a disk",
    "process.minor_faults": "faults that needed no disk",
    "process.cpu": "CPU time used",
    "gpu.utilization.gpu": "a kernel ran",
    "gpu.utilization.memory": "GPU memory accessed",
    "gpu.clocks.sm": "SM clock",
    "gpu.power.draw": "GPU power",
    "gpu.temperature.gpu": "GPU temperature",
    "gpu.violation.thermal": "clocks lowered for heat",
    "gpu.violation.power": "clocks lowered for power",
    "gpu.memory.used": "GPU memory allocated",
    "pcie.tx": "sent over PCIe",
    "pcie.rx": "received over PCIe",
    "engine.kv_cache.usage": "KV cache in use",
    "engine.requests.running": "requests running",
    "engine.requests.waiting": "requests waiting",
    "engine.preemptions": "requests preempted",
    "MemAvailable": "memory available",
}
#: Of one metric so many subjects are drawn, those with the largest values; in all so many rows.
_SUBJECTS, _ROWS = 3, 24
_READINGS = 1_000


@dataclass(frozen=True)
class Series:
    """One number of one subject over time: each reading holds from its start to its end.

    Attributes:
        metric: Its name.
        what: What it is, in words.
        who: Whose it is.
        unit: Of the values; "%" of the time for a length of time that grew.
        start_ns: Starts.
        end_ns: Ends.
        value: Values, the largest of each stretch where there were too many readings to draw.
        merged: How many readings each value stands for at most.
    """

    metric: str
    what: str
    who: str
    unit: str
    start_ns: I64
    end_ns: I64
    value: F64
    merged: int


def of(
    capture: Capture,
    label: Callable[[str], str],
    window: tuple[int, int],
    concerns: Callable[[str], bool],
) -> list[Series]:
    """The numbers that changed within a window.

    Args:
        capture: The recording.
        label: What people call a subject.
        window: Its first and last moment.
        concerns: Whether a subject's numbers can matter.
    """
    found: dict[str, list[Series]] = {}
    for metric, subject, unit, nature, rows in _tables(capture):
        if metric not in METRICS or not concerns(subject):
            continue
        one = _series(metric, label(subject), unit, nature, rows, window)
        if one is not None:
            found.setdefault(metric, []).append(one)
    out: list[Series] = []
    for metric in METRICS:
        some = sorted(found.get(metric, ()), key=lambda one: -float(one.value.max()))
        out += some[:_SUBJECTS]
    return out[:_ROWS]


def _tables(capture: Capture) -> Iterator[tuple[str, str, str, int, tuple[I64, I64, I64]]]:
    """Each metric of each subject, with its unit, its nature and its readings in order."""
    rows = capture.table("counter")
    if not len(rows):
        return
    strings, metric = capture.strings, capture.table("metric")
    known = {
        name: (strings[unit], nature)
        for name, unit, nature in zip(
            *(metric[c].tolist() for c in ("name", "unit", "nature")), strict=True
        )
    }
    number, first = grouped(rows["metric"], rows["subject"])
    order = np.lexsort((rows["t_ns"], number))
    bounds = np.searchsorted(number[order], np.arange(len(first) + 1)).tolist()
    t, since, value = (rows[c][order].astype(np.int64) for c in ("t_ns", "since_ns", "value"))
    for k, at in enumerate(first.tolist()):
        low, high = bounds[k], bounds[k + 1]
        name = int(rows["metric"][at])
        unit, nature = known.get(name, ("", int(Nature.LEVEL)))
        subject = strings[int(rows["subject"][at])]
        readings = (t[low:high], since[low:high], value[low:high])
        yield strings[name], subject, unit, nature, readings


def _series(
    metric: str,
    who: str,
    unit: str,
    nature: int,
    rows: tuple[I64, I64, I64],
    window: tuple[int, int],
) -> Series | None:
    t, since, value = rows
    start: I64
    end: I64
    if nature == Nature.TOTAL:
        start, end = np.maximum(since[1:], t[:-1]), t[1:]
        # A counter that began anew grew by nobody knows what.
        grown = np.maximum(np.diff(value), 0).astype(np.float64)
        lasted = np.maximum(end - start, 1)
        numbers = grown / lasted * (100.0 if unit == "ns" else 1e9)
        shown = "% of the time" if unit == "ns" else f"{unit if unit != 'count' else ''}/s"
    else:
        start, end = t, np.append(t[1:], window[1])
        numbers, shown = value.astype(np.float64), "" if unit == "count" else unit
    seen = (end > window[0]) & (start < window[1]) & (end > start)
    start, end, numbers = start[seen], end[seen], numbers[seen]
    if not len(start) or not numbers.any():
        return None
    start, end, numbers, merged = _thinned(start, end, numbers)
    return Series(metric, METRICS[metric], who, shown, start, end, numbers, merged)


def _thinned(start: I64, end: I64, value: F64) -> tuple[I64, I64, F64, int]:
    """At most about a thousand readings; the largest value of several stands for them."""
    many = -(-len(start) // _READINGS)
    if many <= 1:
        return start, end, value, 1
    first = np.arange(0, len(start), many)
    last = np.minimum(first + many, len(start)) - 1
    return start[first], end[last], np.maximum.reduceat(value, first), many


def concerned(tids: Collection[int], pids: Collection[int]) -> Callable[[str], bool]:
    """Whether a subject is the whole host's or of somebody who held a path."""

    def concerns(subject: str) -> bool:
        kind, _, rest = subject.partition(":")
        if kind in ("tid", "pid"):
            return rest.isdecimal() and int(rest) in (tids if kind == "tid" else pids)
        _, _, pid = rest.partition(" pid:")
        return not pid or (pid.isdecimal() and int(pid) in pids)

    return concerns
