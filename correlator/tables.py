# SPDX-License-Identifier: Apache-2.0
"""The statistics tables that Nsight Systems' users know, exact, from one recording.

What a column says is what ``nsys stats`` says in it (reports ``cuda_api_sum``,
``cuda_gpu_kern_sum``, ``cuda_gpu_mem_time_sum``, ``cuda_gpu_mem_size_sum``, ``osrt_sum``): the
median of an even count is the mean of the middle two, the deviation is that of a sample. What a
recording cannot say is ``None``, never 0. Rows count only where their times are valid; how many
are not is told. No figure here is a product of a count and a maximum: a tail is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.causes import syscall_name
from gpucorrelate.correlator.device import LAUNCHES, CallKind, call_kind, timed
from gpucorrelate.correlator.search import exact_sum
from gpucorrelate.correlator.states import clean_waits
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind, WaitFlag, WaitKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table

    # Some columns are unsigned; numpy treats them alike.
    Values = NDArray[np.int64]
    Mask = NDArray[np.bool_]

API, KERNELS, MEM_TIME, MEM_SIZE, OS, SIZES = (
    "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum",
    "osrt_sum", "copy_sizes",
)  # fmt: skip
#: Tables made of the device's activity and the calls that caused it.
CUDA_NAMES = (API, KERNELS, MEM_TIME, MEM_SIZE, SIZES)
#: All tables, in the order in which they are shown.
NAMES = (*CUDA_NAMES[:4], SIZES, OS)

#: A value this many times the median belongs to the tail.
TAIL_FACTOR = 10
#: The fact of a recording that says which waits were only summed, in nanoseconds.
THRESHOLD_KEY = "min_wait_ns"

_KIB, _MIB = 1 << 10, 1 << 20
#: Where the classes of copy sizes begin; the first is that of tiny copies.
_CLASSES = (1, 65, _KIB, 16 * _KIB, 256 * _KIB, _MIB, 16 * _MIB, 256 * _MIB)
_LARGE = 16 * _MIB

_ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
#: Waits that are no call of the thread's, whatever call it was in.
_NO_CALL = {
    WaitKind.FAULT: "[page fault]",
    WaitKind.PREEMPTED: "[preempted]",
    WaitKind.EXITING: "[exiting]",
}


@dataclass(frozen=True)
class Row:
    """One line of a table; times in nanoseconds, sizes in bytes, ``None`` for what is unknown.

    Attributes:
        name: A function, a kernel or an operation.
        count: How many.
        total: Their sum.
        mean: The sum over the count, exact.
        median: The middle one, or the mean of the middle two.
        least: The smallest.
        most: The largest.
        deviation: Of a sample, n - 1; 0 of a single one.
        tail: How many are above ``TAIL_FACTOR`` times the median.
    """

    name: str
    count: int
    total: int | None = None
    mean: Fraction | None = None
    median: Fraction | None = None
    least: int | None = None
    most: int | None = None
    deviation: float | None = None
    tail: int | None = None


@dataclass(frozen=True)
class StatTable:
    """One table.

    Attributes:
        name: One of ``NAMES``.
        rows: The largest sum first.
        over: What the sums go over: threads, streams.
        wall_ns: From the first to the last moment of the recording.
        unit: ``ns`` or ``bytes``.
        invalid: Records left out because their times are not valid.
        notes: What else a reader must know.
        threshold_ns: OS waits: shorter ones are only summed; 0: none are, ``None``: unknown.
    """

    name: str
    rows: tuple[Row, ...]
    over: str
    wall_ns: int
    unit: str = "ns"
    invalid: int = 0
    notes: tuple[str, ...] = ()
    threshold_ns: int | None = None

    @property
    def total(self) -> int:
        """The sum of all rows: what the percentages are of."""
        return sum(row.total or 0 for row in self.rows)

    @property
    def equivalents(self) -> Fraction | None:
        """How many of what it is summed over were busy on average; ``None`` for sizes."""
        if self.unit != "ns" or not self.wall_ns:
            return None
        return Fraction(self.total, self.wall_ns)


@dataclass(frozen=True)
class SizeClass:
    """Copies from one size up to, but not with, another; the last class has no end."""

    from_bytes: int
    to_bytes: int | None
    count: int
    total: int


@dataclass(frozen=True)
class CopySizes:
    """How large the copies of one direction are.

    Attributes:
        name: The direction, as the tables name it.
        count: Copies of a known size.
        total: Their bytes.
        dominant_bytes: The size that moved the most bytes.
        dominant_count: Copies of that size.
        classes: Every class that is not empty, by size.
        unsized: Copies whose size is not recorded.
    """

    name: str
    count: int
    total: int
    dominant_bytes: int
    dominant_count: int
    classes: tuple[SizeClass, ...]
    unsized: int

    @property
    def tiny(self) -> int:
        """Copies of 64 bytes at most."""
        return sum(c.count for c in self.classes if c.from_bytes < _CLASSES[1])

    @property
    def large(self) -> int:
        """Copies of 16 MiB and more."""
        return sum(c.count for c in self.classes if c.from_bytes >= _LARGE)


@dataclass(frozen=True)
class Graphs:
    """What is known of the nodes of graphs.

    Attributes:
        launches: Calls that launch a graph.
        silent: Those of them without a record of the device.
        kernels: Kernels under them.
        records: All records under them.
        fewest: Records under the launch that has the fewest, of those that have any.
        most: Records under the launch that has the most.
        marked: Kernels that name the graph they are nodes of.
    """

    launches: int
    silent: int
    kernels: int
    records: int
    fewest: int
    most: int
    marked: int

    @property
    def traced(self) -> bool | None:
        """Whether the device's work in graphs was recorded; ``None``: there is no graph."""
        if not self.launches and not self.marked:
            return None
        return self.records > 0 or self.marked > 0


@dataclass(frozen=True)
class Joined:
    """Calls of one kind against records of the device, whatever their times.

    Attributes:
        call: The kind of call: launch, memcpy, memset.
        record: What it makes: kernel, copy, fill.
        calls: Calls of the kind, those that launch graphs not among them.
        silent: Those of them without a record of the device.
        records: Records of what it makes.
        own: Records whose call is one of these calls.
        graph: Records under the launch of a graph.
        other: Records under a call of another kind.
        orphans: Records whose call is not recorded.
    """

    call: str
    record: str
    calls: int
    silent: int
    records: int
    own: int
    graph: int
    other: int
    orphans: int


@dataclass(frozen=True)
class Reconciliation:
    """Calls and records of the device, joined by process and correlation id."""

    joined: tuple[Joined, ...]
    graphs: Graphs


@dataclass(frozen=True)
class Tables:
    """What was asked for of one recording.

    Attributes:
        names: Which tables, in the order in which they are shown.
        stats: Those of them that are statistics.
        sizes: ``copy_sizes``; ``None`` where it is not among them.
        reconciliation: Calls against records; ``None`` where no table is of the device.
    """

    names: tuple[str, ...]
    stats: tuple[StatTable, ...]
    sizes: tuple[CopySizes, ...] | None
    reconciliation: Reconciliation | None


def tables(capture: Capture, names: Sequence[str]) -> Tables:
    """The tables of these names, and what they must be read with.

    Raises:
        KeyError: there is no table of such a name.
    """
    return Tables(
        tuple(names),
        tuple(table(capture, name) for name in names if name != SIZES),
        copy_sizes(capture) if SIZES in names else None,
        reconcile(capture) if set(names) & set(CUDA_NAMES) else None,
    )


def has_device_activity(capture: Capture) -> bool:
    """Whether there is anything for the tables of ``CUDA_NAMES``."""
    return bool(len(capture.table("cuda_api")) or len(capture.table("gpu_op")))


def has_waits(capture: Capture) -> bool:
    """Whether there is anything for ``osrt_sum``."""
    return bool(len(capture.table("wait")) or len(capture.table("wait_sum")))


def table(capture: Capture, name: str) -> StatTable:
    """A table by its name; ``copy_sizes`` is none of these.

    Raises:
        KeyError: there is no such table.
    """
    return _TABLES[name](capture)


# -- numbers


def row_of(name: str, values: Values) -> Row:
    """The statistics of one or more non-negative integers in ascending order."""
    count, total = len(values), exact_sum(values)
    middle_two = int(values[(count - 1) // 2]) + int(values[count // 2])
    most, limit = int(values[-1]), TAIL_FACTOR * middle_two // 2
    return Row(
        name,
        count,
        total,
        Fraction(total, count),
        Fraction(middle_two, 2),
        int(values[0]),
        most,
        float(np.std(values.astype(np.float64), ddof=1)) if count > 1 else 0.0,
        # A plain integer would be compared as a float: 2^59 and one more are the same then.
        0
        if most <= limit
        else count - int(np.searchsorted(values, values.dtype.type(limit), "right")),
    )


def _groups(keys: Values, values: Values) -> Iterator[tuple[int, Values]]:
    """Every key with its values in ascending order."""
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    found, first = np.unique(keys, return_index=True)
    bounds = [*first.tolist(), len(keys)]
    for i, key in enumerate(found.tolist()):
        yield key, values[bounds[i] : bounds[i + 1]]


def _sorted(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (-(row.total or 0), row.name)))


# -- which records count


def _timed(rows: Table) -> tuple[Table, int]:
    """The rows whose times are valid, and how many are not."""
    valid = timed(rows)
    return (rows, 0) if valid.all() else (rows.select(valid), int((~valid).sum()))


def _lengths(rows: Table) -> Values:
    return rows["end_ns"] - rows["start_ns"]


def _wall(capture: Capture) -> int:
    """From the first to the last moment of anything that has valid times."""
    lows, highs = [], []
    for name in ("cuda_api", "gpu_op", "gpu_sync", "wait", "wait_sum", "span"):
        rows, _ = _timed(capture.table(name))
        if len(rows):
            lows.append(int(rows["start_ns"].min()))
            highs.append(int(rows["end_ns"].max()))
    moments = capture.table("session")["t_ns"]
    moments = moments[moments > 0]
    if len(moments):
        lows.append(int(moments.min()))
        highs.append(int(moments.max()))
    return max(highs) - min(lows) if lows else 0


# -- tables


def cuda_api_sum(capture: Capture) -> StatTable:
    """Calls of the CUDA or HIP API by function."""
    calls, invalid = _timed(capture.table("cuda_api"))
    rows = [
        row_of(capture.strings[name], lengths)
        for name, lengths in _groups(calls["name"], _lengths(calls))
    ]
    return StatTable(API, _sorted(rows), "threads", _wall(capture), invalid=invalid)


def cuda_gpu_kern_sum(capture: Capture) -> StatTable:
    """Kernels by name."""
    ops = capture.table("gpu_op")
    kernels, invalid = _timed(ops.select(ops["op"] == GpuOpKind.KERNEL))
    rows = [
        row_of(capture.strings[name], lengths)
        for name, lengths in _groups(kernels["name"], _lengths(kernels))
    ]
    return StatTable(KERNELS, _sorted(rows), "streams", _wall(capture), invalid=invalid)


def cuda_gpu_mem_time_sum(capture: Capture) -> StatTable:
    """How long copies, by direction, and fills took on the device."""
    ops, invalid = _memory(capture)
    rows = [
        row_of(operation_name(key), lengths) for key, lengths in _groups(_keys(ops), _lengths(ops))
    ]
    return StatTable(MEM_TIME, _sorted(rows), "streams", _wall(capture), invalid=invalid)


def cuda_gpu_mem_size_sum(capture: Capture) -> StatTable:
    """How much copies, by direction, and fills moved.

    A size that is not recorded counts nowhere but in a note; where none is, only the number of
    operations is known.
    """
    ops, invalid = _memory(capture)
    rows, notes = [], []
    for key, sizes in _groups(_keys(ops), ops["bytes"]):
        name, known = operation_name(key), sizes[sizes > 0]
        if len(known) < len(sizes):
            notes.append(f"{name}: no size recorded of {len(sizes) - len(known):,} operations")
        rows.append(row_of(name, known) if len(known) else Row(name, len(sizes)))
    return StatTable(
        MEM_SIZE, _sorted(rows), "streams", _wall(capture), "bytes", invalid, tuple(notes)
    )


def _memory(capture: Capture) -> tuple[Table, int]:
    ops = capture.table("gpu_op")
    return _timed(ops.select((ops["op"] == GpuOpKind.MEMCPY) | (ops["op"] == GpuOpKind.MEMSET)))


_FILL = -1


def _keys(ops: Table) -> Values:
    """The direction of each copy, ``_FILL`` for a fill."""
    return np.where(ops["op"] == GpuOpKind.MEMSET, _FILL, ops["copy"].astype(np.int64))


def operation_name(key: int) -> str:
    """The name Nsight Systems has for copies of a ``CopyKind``, and for fills (-1)."""
    if key == _FILL:
        return "[CUDA memset]"
    kind = CopyKind(key) if key in set(CopyKind) else CopyKind.UNKNOWN
    if kind is CopyKind.UNKNOWN:
        return "[CUDA memcpy Unknown]"
    return f"[CUDA memcpy {_ENDS[kind.name[0]]}-to-{_ENDS[kind.name[-1]]}]"


def osrt_sum(capture: Capture) -> StatTable:
    """What threads waited in off the CPU, by system call.

    Short waits that were only summed stand by kind in rows of their own: no more than their
    number, sum and maximum is known.
    """
    waits, invalid = _timed(capture.table("wait"))
    waits = clean_waits(waits)
    keys = waits["wait_kind"].astype(np.int64) << 16 | (waits["syscall"].astype(np.int64) & 0xFFFF)
    found, which = np.unique(keys, return_inverse=True)
    names, merged = np.unique([_wait_name(key) for key in found.tolist()], return_inverse=True)
    groups = merged[which]
    rows = [row_of(str(names[at]), lengths) for at, lengths in _groups(groups, _lengths(waits))]
    short, bad = _short_waits(capture)
    opened = int(((waits["flags"] & (WaitFlag.OPEN | WaitFlag.START_UNKNOWN)) != 0).sum())
    notes = [
        f"{opened:,} of the waits began before or end after the recording: longer than listed"
    ]
    return StatTable(
        OS,
        _sorted([*rows, *short]),
        "threads",
        _wall(capture),
        invalid=invalid + bad,
        notes=tuple(notes if opened else ()),
        threshold_ns=_threshold(capture),
    )


def _wait_name(key: int) -> str:
    """``epoll_wait``, or the kind in brackets where it was no call."""
    kind, number = key >> 16, key & 0xFFFF
    known = WaitKind(kind) if kind in set(WaitKind) else WaitKind.OTHER
    if known in _NO_CALL:
        return _NO_CALL[known]
    if number < 0x8000:
        return syscall_name(number)
    return "[kernel]" if known is WaitKind.OTHER else f"[{known.name.lower()}]"


def _short_waits(capture: Capture) -> tuple[list[Row], int]:
    """A row for each kind of wait that was summed, and how many sums are not valid."""
    sums, invalid = _timed(capture.table("wait_sum"))
    rows = []
    for kind in np.unique(sums["wait_kind"]).tolist():
        own = sums.select(sums["wait_kind"] == kind)
        count, total = exact_sum(own["count"]), exact_sum(own["sum_ns"])
        name = f"{_wait_name(kind << 16 | 0xFFFF)} short waits, summed"
        if count:
            mean = Fraction(total, count)
            rows.append(Row(name, count, total, mean, most=int(own["max_ns"].max())))
    return rows, invalid


def _threshold(capture: Capture) -> int | None:
    """Waits shorter than this are only summed, as the recording's facts say."""
    known = (fact.value for fact in capture.facts(THRESHOLD_KEY))
    return next((int(value) for value in known if value.isdecimal()), None)


_TABLES: dict[str, Callable[[Capture], StatTable]] = {
    API: cuda_api_sum,
    KERNELS: cuda_gpu_kern_sum,
    MEM_TIME: cuda_gpu_mem_time_sum,
    MEM_SIZE: cuda_gpu_mem_size_sum,
    OS: osrt_sum,
}


# -- sizes of copies


def copy_sizes(capture: Capture) -> tuple[CopySizes, ...]:
    """The sizes of copies by direction; the direction that moved the most comes first."""
    ops = capture.table("gpu_op")
    copies, _ = _timed(ops.select(ops["op"] == GpuOpKind.MEMCPY))
    found = [_sizes(operation_name(k), s) for k, s in _groups(_keys(copies), copies["bytes"])]
    return tuple(sorted(found, key=lambda one: (-one.total, one.name)))


def _sizes(name: str, sizes: Values) -> CopySizes:
    """The classes of sizes in ascending order."""
    known = sizes[sizes > 0]
    distinct, counts = (a.tolist() for a in np.unique(known, return_counts=True))
    moved = [size * count for size, count in zip(distinct, counts, strict=True)]
    top = moved.index(max(moved)) if moved else None
    ends = [*_CLASSES[1:], None]
    bounds = [*np.searchsorted(known, _CLASSES).tolist(), len(known)]
    classes = tuple(
        SizeClass(begin, end, until - since, exact_sum(known[since:until]))
        for begin, end, since, until in zip(_CLASSES, ends, bounds, bounds[1:], strict=False)
        if until > since
    )
    return CopySizes(
        name,
        len(known),
        sum(moved),
        0 if top is None else distinct[top],
        0 if top is None else counts[top],
        classes,
        len(sizes) - len(known),
    )


# -- calls and records

_NOBODY = -1
_KINDS = (
    (CallKind.LAUNCH, "launch", "kernel", GpuOpKind.KERNEL),
    (CallKind.COPY, "memcpy", "copy", GpuOpKind.MEMCPY),
    (CallKind.FILL, "memset", "fill", GpuOpKind.MEMSET),
)


def reconcile(capture: Capture) -> Reconciliation:
    """Calls against records of the device, before a claim is built on the numbers of either."""
    calls, ops = capture.table("cuda_api"), capture.table("gpu_op")
    kinds = np.array([call_kind(text) for text in capture.strings], np.int64)
    call_kinds = kinds[calls["name"]]
    call_ids, op_ids = _ids(capture, calls, ops)
    most = max(int(call_ids.max(initial=0)), int(op_ids.max(initial=0)))
    made = np.bincount(op_ids, minlength=most + 1)
    caller = np.full(most + 1, _NOBODY)
    # Where calls share an id, the one that makes the device do something is written last.
    order = np.argsort(np.isin(call_kinds, LAUNCHES), kind="stable")
    caller[call_ids[order]] = call_kinds[order]
    made[0], caller[0] = 0, _NOBODY
    records, callers = made[call_ids], caller[op_ids]
    joined = []
    for kind, call, record, op in _KINDS:
        own, under = records[call_kinds == kind], callers[ops["op"] == op]
        tally = [int((under == one).sum()) for one in (kind, CallKind.GRAPH_LAUNCH, _NOBODY)]
        rest = len(under) - sum(tally)
        joined.append(
            Joined(
                call, record, len(own), int((own == 0).sum()), len(under),
                tally[0], tally[1], rest, tally[2],
            )
        )  # fmt: skip
    kernel = ops["op"] == GpuOpKind.KERNEL
    under, marked = kernel & (callers == CallKind.GRAPH_LAUNCH), kernel & (ops["graph"] != 0)
    graphs = _graphs(
        records[call_kinds == CallKind.GRAPH_LAUNCH], int(under.sum()), int(marked.sum())
    )
    return Reconciliation(tuple(joined), graphs)


def _graphs(records: Values, kernels: int, marked: int) -> Graphs:
    """From the number of records under each launch."""
    some = records[records > 0]
    return Graphs(
        len(records),
        len(records) - len(some),
        kernels,
        int(some.sum()),
        int(some.min(initial=int(some.max(initial=0)))),
        int(some.max(initial=0)),
        marked,
    )


def _ids(capture: Capture, *tables: Table) -> tuple[Values, ...]:
    """A number, from 1, for each correlation id of a process; 0 where there is none.

    Ranks of several containers may have the same process id. An imported stream is one process.
    """
    imported = [info.stream for info in capture.streams if info.producer == "import"]
    parts = []
    for rows in tables:
        stream = np.where(np.isin(rows["stream"], imported), rows["stream"], 0)
        parts.append((stream.astype(np.uint64) << np.uint64(32)) | rows["pid"].astype(np.uint64))
    _, owner = np.unique(np.concatenate(parts), return_inverse=True)
    found = [rows["correlation"] for rows in tables]
    known, number = np.unique(np.concatenate(found), return_inverse=True)
    _, ids = np.unique(owner * len(known) + number, return_inverse=True)
    ids = np.where(np.concatenate(found) == 0, 0, ids + 1)
    return tuple(np.split(ids, np.cumsum([len(rows) for rows in tables])[:-1]))
