# SPDX-License-Identifier: Apache-2.0
"""PyTorch profiler traces (Kineto's JSON, plain or gzip) as events.

Formats since 2021: capitalised categories and stream names then, lower case later; moments in
microseconds, whole or with decimals, since ``baseTimeNanoseconds`` where that is given. They
become integer nanoseconds by decimal arithmetic, never through a binary fraction.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from gpucorrelate.probes.importers.jsonfile import JsonElements
from gpucorrelate.probes.importers.rows import (
    LONGEST_TEXT,
    NONE_U64,
    ImportedTrace,
    Problems,
    ProcessTrace,
    StepMatcher,
    StepRange,
)
from gpucorrelate.probes.wire.schema import ApiKind, CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_OPS = {
    "kernel": GpuOpKind.KERNEL,
    "gpu_memcpy": GpuOpKind.MEMCPY,
    "memcpy": GpuOpKind.MEMCPY,
    "gpu_memset": GpuOpKind.MEMSET,
    "memset": GpuOpKind.MEMSET,
}
_APIS = {
    "cuda_runtime": ApiKind.RUNTIME,
    "hip_runtime": ApiKind.RUNTIME,
    "runtime": ApiKind.RUNTIME,
    "cuda_driver": ApiKind.DRIVER,
    "hip_driver": ApiKind.DRIVER,
    "driver": ApiKind.DRIVER,
}
_SYNCS = {
    "event sync": SyncKind.EVENT,
    "stream wait event": SyncKind.STREAM_WAIT_EVENT,
    "stream sync": SyncKind.STREAM,
    "context sync": SyncKind.CONTEXT,
}
#: The last of the reader's tables.
_RANGES = 3
#: Of so many categories, beside those that are known, it is remembered that they are not.
_MOST_CATEGORIES = 1000
_COPY = re.compile(r"\b([HDAP])to([HDAP])\b")
_EXPONENT = re.compile(rb"[eE]")
_BASE, _RANK, _GPU = "baseTimeNanoseconds", "distributedInfo", "deviceProperties"
_I64 = 1 << 63
_U32 = 0xFFFFFFFF
#: Stands for any integer that no column holds.
_TOO_LARGE = 1 << 64


class _Args(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's ``args``."""

    device: Any = None
    context: Any = None
    stream: Any = None
    correlation: Any = None
    graph: Any = msgspec.field(default=None, name="graph id")
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    bytes: Any = None
    sync: Any = msgspec.field(default=None, name="cuda_sync_kind")
    event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    record_stream: Any = msgspec.field(default=None, name="wait_on_stream")


class _Event(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event. Numbers that are no integers are the text of the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: _Args = _Args()


class _ByCategory(dict[str, int]):
    """Numbers by category however it is capitalised; -1 where there is none."""

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__(numbers)
        self._numbers = numbers

    def __missing__(self, category: str) -> int:
        number = self._numbers.get(category.lower(), -1)
        if len(self) < _MOST_CATEGORIES:
            self[category] = number
        return number


class _UnreadableError(ValueError):
    """An event without something it must have."""


def read_kineto(
    path: Path, matcher: StepMatcher, progress: Callable[[int], None] = lambda _: None
) -> ImportedTrace:
    """The trace of one process.

    Args:
        path: A ``.json`` or ``.json.gz`` file.
        matcher: Which annotations may be steps.
        progress: Called with the bytes of text read so far.

    Raises:
        TraceError: it is no JSON.
        OSError: it cannot be read.
    """
    problems = Problems()
    decoder = msgspec.json.Decoder(list[_Event], float_hook=str.encode)
    wanted = (_BASE, _RANK, _GPU)
    elements = JsonElements(path, "traceEvents", wanted, decoder, problems, progress)
    reader = _Reader(matcher, problems)
    for at, events in elements:
        reader.take(events, at)
    rank = _int(_members(elements.values.get(_RANK)).get("rank"), -1)
    process = reader.process
    process.pid = reader.owner()
    process.rank = max(rank, 0) & 0xFFFF
    process.role = f"rank {rank}" if rank >= 0 else ""
    base_ns = _int(elements.values.get(_BASE), 0)
    if not 0 <= base_ns < _I64:
        problems.add(f"{_BASE} is out of range")
        base_ns = 0
    reader.settle(base_ns)
    return ImportedTrace(
        path.name, "kineto", [process], problems, _facts(elements.values.get(_GPU))
    )


def _facts(devices: object) -> dict[str, str]:
    """The first device's name."""
    for device in devices if isinstance(devices, list) else ():
        if "name" in _members(device):
            return {"gpu": _words(device["name"])}
    return {}


def _members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Reader:
    """Sorts events into rows."""

    def __init__(self, matcher: StepMatcher, problems: Problems) -> None:
        self.process = ProcessTrace(0)
        self._matcher = matcher
        self._problems = problems
        self._callers: Counter[int] = Counter()
        self._annotators: Counter[int] = Counter()
        self._tables = (self._ops, self._calls, self._syncs, self._ranges)
        self._op_of = _ByCategory({category: int(op) for category, op in _OPS.items()})
        self._api_of = _ByCategory({category: int(api) for category, api in _APIS.items()})
        names = (list(_OPS), list(_APIS), ["cuda_sync"], ["user_annotation"])
        self._table_of = _ByCategory({name: i for i, own in enumerate(names) for name in own})

    def take(self, events: Sequence[Any], at: int) -> None:
        """Keep the events that are of a kind that is kept; ``at`` is the first one's place."""
        unread: list[tuple[int, str]] = []
        if set(map(type, events)) != {_Event}:
            events = [
                one if type(one) is _Event else self._loose(one, place, unread)
                for place, one in enumerate(events, at)
            ]
        chosen: list[list[_Event]] = [[] for _ in self._tables]
        table_of = self._table_of
        for event in events:
            table = table_of[event.cat]
            if table >= 0 and event.ph == "X":
                chosen[table].append(event)
        self._annotators.update(_low_bits([event.pid for event in chosen[_RANGES]]))
        for table, rows in enumerate(chosen):
            try:
                if rows:
                    self._tables[table](rows)
            except (_UnreadableError, OverflowError):
                unread += self._one_by_one(table, events, at)
        for place, what in sorted(unread):
            self._problems.add(what, f"traceEvents[{place}]")

    def _one_by_one(
        self, table: int, events: Sequence[_Event], at: int
    ) -> Iterator[tuple[int, str]]:
        """Keep those of one table that can be kept; where and what is wrong with the others."""
        for place, event in enumerate(events, at):
            if event.ph == "X" and self._table_of[event.cat] == table:
                try:
                    self._tables[table]([event])
                except (_UnreadableError, OverflowError) as exc:
                    yield place, f"{event.cat.lower()} events unread: {exc}"

    def owner(self) -> int:
        """The process whose trace it is: the one that calls the API, else that of the ranges."""
        callers = self._callers or self._annotators
        return callers.most_common(1)[0][0] if callers else 0

    def settle(self, base_ns: int) -> None:
        """Give device records their process, and all moments their origin.

        A start of 0 stays 0: it says that the moment was not recorded.
        """
        process = self.process
        pids = self._pid_of_correlation() if len(self._callers) > 1 else {}
        for rows in (process.ops, process.syncs):
            ids = rows.columns[rows.kind.index("correlation")]
            rows.replace("pid", [pids.get(correlation, process.pid) for correlation in ids])
        if not base_ns:
            return
        last = _I64 - 1
        for rows in (process.api, process.ops, process.syncs):
            for name, times in zip(("start_ns", "end_ns"), rows.times(), strict=True):
                moved = [min(t_ns + base_ns, last) if t_ns else 0 for t_ns in times]
                rows.replace(name, moved)
        process.ranges = [
            StepRange(
                r.name, r.tid, min(r.start_ns + base_ns, last), min(r.end_ns + base_ns, last)
            )
            for r in process.ranges
        ]

    def _pid_of_correlation(self) -> dict[int, int]:
        """In a trace of several processes: ids that only one of them used."""
        api = self.process.api
        found: dict[int, int] = {}
        pids, ids = (api.columns[api.kind.index(name)] for name in ("pid", "correlation"))
        for pid, correlation in zip(pids, ids, strict=True):
            if found.setdefault(correlation, pid) != pid:
                found[correlation] = 0
        return found

    def _loose(self, element: object, place: int, unread: list[tuple[int, str]]) -> _Event:
        """An event that the decoder refused; an empty one if it is of no use."""
        if not isinstance(element, dict):
            unread.append((place, "elements that are no events"))
            return _NO_EVENT
        category = element.get("cat")
        if element.get("ph") != "X" or not isinstance(category, str):
            return _NO_EVENT
        table = self._table_of[category]
        args = {} if table in (-1, _RANGES) else element.get("args", {})
        if not isinstance(args, dict):
            unread.append((place, f"{category.lower()} events unread: args is no object"))
            return _NO_EVENT
        pid, tid, ts, dur = map(element.get, ("pid", "tid", "ts", "dur"))
        known = _Args(*map(args.get, _Args.__struct_encode_fields__))
        name = _words(element.get("name", ""))
        return _Event("X", category, name, pid, tid, ts, dur, known)

    def _ops(self, events: list[_Event]) -> None:
        args = [event.args for event in events]
        ops = [self._op_of[event.cat] for event in events]
        starts, ends = _moments(events)
        self.process.ops.extend(
            (
                [0] * len(events),
                _devices(events),
                _ints([a.context for a in args], 0, least=-_I64),
                _ints([a.stream for a in args], NONE_U64),
                ops,
                [event.name for event in events],
                _ints([a.correlation for a in args], 0),
                _ints([a.graph for a in args], 0),
                _ints([a.graph_node for a in args], 0),
                starts,
                ends,
                _ints([a.bytes for a in args], 0),
                [
                    _copy_kind(event.name) if op == GpuOpKind.MEMCPY else 0
                    for op, event in zip(ops, events, strict=True)
                ],
            )
        )

    def _calls(self, events: list[_Event]) -> None:
        pids = _low_bits([event.pid for event in events])
        starts, ends = _moments(events)
        self.process.api.extend(
            (
                pids,
                _low_bits([event.tid for event in events]),
                [event.name for event in events],
                [self._api_of[event.cat] for event in events],
                _ints([event.args.correlation for event in events], 0),
                starts,
                ends,
            )
        )
        self._callers.update(pids)

    def _syncs(self, events: list[_Event]) -> None:
        args = [event.args for event in events]
        starts, ends = _moments(events)
        self.process.syncs.extend(
            (
                [0] * len(events),
                _devices(events),
                _ints([a.context for a in args], 0, least=-_I64),
                [_sync_kind(event) for event in events],
                _streams([a.stream for a in args]),
                _ints([a.event for a in args], NONE_U64),
                _ints([a.correlation for a in args], 0),
                starts,
                ends,
                _ints([a.record for a in args], 0),
                _streams([a.record_stream for a in args]),
            )
        )

    def _ranges(self, events: list[_Event]) -> None:
        found = [event for event in events if self._matcher.may_be(event.name[:LONGEST_TEXT])]
        tids = _low_bits([event.tid for event in found])
        starts, ends = _moments(found)
        if max(ends, default=0) >= _I64:
            raise OverflowError("end_ns is out of range")
        for event, *values in zip(found, tids, starts, ends, strict=True):
            self.process.ranges.append(StepRange(event.name[:LONGEST_TEXT], *values))


_NO_EVENT = _Event()


def _words(value: object) -> str:
    """A name, whatever it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bytes):
        return value.decode()
    return "?" if isinstance(value, dict | list) else str(value)


def _devices(events: Sequence[_Event]) -> list[int]:
    """Device numbers; where ``args`` tells none, it is in place of the process id."""
    values = [event.args.device for event in events]
    if set(map(type, values)) == {int}:
        return values
    return [_int(value, _int(event.pid, 0)) for value, event in zip(values, events, strict=True)]


def _sync_kind(event: _Event) -> int:
    kind = event.name if event.args.sync is None else event.args.sync
    return int(_SYNCS.get(kind.lower() if isinstance(kind, str) else "", SyncKind.UNKNOWN))


def _streams(values: list[Any]) -> list[int]:
    """Streams of synchronisations; none is written as -1, in 64 bits or in 32."""
    return [NONE_U64 if value == _U32 else value for value in _ints(values, NONE_U64)]


def _low_bits(values: list[Any]) -> list[int]:
    """Process or thread ids."""
    return [value & _U32 for value in _ints(values, 0, least=-_I64)]


def _ints(values: list[Any], default: int, *, least: int = 0) -> list[int]:
    """``_int`` of each; quick where all are integers or missing."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return [default] * len(values)
    if kinds == {int, type(None)}:
        values = [default if value is None else value for value in values]
        kinds = {int}
    if kinds == {int} and min(values) >= least:
        return values
    return [_int(value, default, least=least) for value in values]


def _int(value: object, default: int, *, least: int = -_I64) -> int:
    """An integer however it was written (``7``, ``"7"``, ``"0x7"``, ``"stream 7"``, 7.0)."""
    if isinstance(value, str):
        digits = value.rsplit(" ", 1)[-1]
        try:
            value = int(digits, 0)
        except ValueError:
            return default
    elif isinstance(value, bytes):
        try:
            number = Decimal(value.decode())
        except InvalidOperation:
            return default
        value = int(number) if number.adjusted() < 20 else _TOO_LARGE * (1 if number > 0 else -1)
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return value if value >= least else default


def _moments(events: Sequence[_Event]) -> tuple[list[int], list[int]]:
    """Starts and ends in nanoseconds of the trace's own clock."""
    starts = _all_ns([event.ts for event in events], "ts")
    return starts, list(map(add, starts, _all_ns([event.dur for event in events], "dur")))


def _all_ns(values: list[Any], name: str) -> list[int]:
    """``to_ns`` of each; quick where all have no decimals, or three, as Kineto writes them."""
    kinds = set(map(type, values))
    if kinds == {int}:
        limit = _I64 // 1000
        if -limit < min(values) and max(values) < limit:
            return [value * 1000 for value in values]
    elif kinds == {bytes} and max(map(len, values)) < 20:
        text = b" ".join(values)
        if {value[-4:-3] for value in values} == {b"."} and not _EXPONENT.search(text):
            return list(map(int, text.replace(b".", b"").split()))
    return [to_ns(value, name) for value in values]


def _rounded_ns(text: bytes | str, name: str) -> int:
    if isinstance(text, bytes):
        whole, _, decimals = text.partition(b".")
        if len(decimals) <= 3 and decimals.isdigit() and len(whole) < 20:
            return int(whole + decimals.ljust(3, b"0"))
    try:
        value = Decimal(text.decode() if isinstance(text, bytes) else text)
    except InvalidOperation:
        wrong = "out of range" if isinstance(text, bytes) else "no number"
        raise _UnreadableError(f"{name} is {wrong}") from None
    if not value.is_finite() or value.adjusted() > 18:
        raise _UnreadableError(f"{name} is out of range")
    return int((value * 1000).to_integral_value())


def to_ns(value: object, name: str) -> int:
    """Microseconds as JSON gives them, in integer nanoseconds; halves go to the even one.

    Args:
        value: An integer, a number's text, or a string with a number in it.
        name: What it is, for the message.

    Raises:
        ValueError: it is no number, or too large for one.
    """
    if isinstance(value, bytes | str):
        return _in_range(_rounded_ns(value, name), name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _UnreadableError(f"{name} is missing" if value is None else f"{name} is no number")
    return _in_range(value * 1000, name)


def _in_range(number: int, name: str) -> int:
    if abs(number) >= _I64:
        raise _UnreadableError(f"{name} is out of range")
    return number


@lru_cache(maxsize=256)
def _copy_kind(name: str) -> int:
    match = _COPY.search(name)
    return int(CopyKind.__members__.get(f"{match[1]}TO{match[2]}", 0)) if match else 0
