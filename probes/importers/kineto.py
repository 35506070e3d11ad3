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
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.importers.jsonfile import JsonElements, first_byte
from gpucorrelate.probes.importers.rows import (
    NONE_U64,
    ImportedTrace,
    Problems,
    ProcessTrace,
    StepMatcher,
    StepRange,
)
from gpucorrelate.probes.wire.schema import ApiKind, CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from collections.abc import Callable
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
_COPY = re.compile(r"\b([HDAP])to([HDAP])\b")
_BASE, _RANK, _GPU = "baseTimeNanoseconds", "distributedInfo.rank", "deviceProperties.item.name"
_I64 = 1 << 63
_U32 = 0xFFFFFFFF


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
    events = "item" if first_byte(path) == b"[" else "traceEvents.item"
    wanted = () if events == "item" else (_BASE, _RANK, _GPU)
    elements = JsonElements(path, events, wanted, problems, progress)
    reader = _Reader(matcher, problems)
    for at, event in enumerate(elements):
        reader.take(event, at)
    first = {name: values[0] for name, values in elements.values.items() if values}
    rank = _int(first.get(_RANK), -1)
    process = reader.process
    process.pid = reader.owner()
    process.rank = max(rank, 0) & 0xFFFF
    process.role = f"rank {rank}" if rank >= 0 else ""
    reader.settle(_int(first.get(_BASE), 0))
    facts = {"gpu": str(first[_GPU])} if _GPU in first else {}
    return ImportedTrace(path.name, "kineto", [process], problems, facts)


class _Reader:
    """Sorts events into rows."""

    def __init__(self, matcher: StepMatcher, problems: Problems) -> None:
        self.process = ProcessTrace(0)
        self._matcher = matcher
        self._problems = problems
        self._callers: Counter[int] = Counter()
        self._annotators: Counter[int] = Counter()

    def take(self, event: Any, at: int) -> None:  # noqa: ANN401 - what somebody wrote
        """Keep the event if it is of a kind that is kept."""
        if not isinstance(event, dict):
            self._problems.add("elements that are no events", f"traceEvents[{at}]")
            return
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        try:
            if category in _OPS:
                self._op(event, _OPS[category])
            elif category in _APIS:
                self._api(event, _APIS[category])
            elif category == "cuda_sync":
                self._sync(event)
            elif category == "user_annotation":
                self._range(event)
        except (_UnreadableError, OverflowError) as exc:
            self._problems.add(f"{category} events unread: {exc}", f"traceEvents[{at}]")

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
            correlations = rows.columns[rows.kind.index("correlation")]
            column = rows.columns[rows.kind.index("pid")]
            for i, correlation in enumerate(correlations):
                column[i] = pids.get(correlation, process.pid)
        if not base_ns:
            return
        for rows in (process.api, process.ops, process.syncs):
            for times in rows.times():
                for i, t_ns in enumerate(times):
                    if t_ns:
                        times[i] = min(t_ns + base_ns, _I64 - 1)
        process.ranges = [
            StepRange(r.name, r.tid, r.start_ns + base_ns, r.end_ns + base_ns)
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

    def _op(self, event: dict[str, Any], op: GpuOpKind) -> None:
        args = _args(event)
        start_ns, end_ns = _moments(event)
        name = str(event.get("name", ""))
        self.process.ops.add(
            (
                0,
                _int(args.get("device"), _int(event.get("pid"), 0)),
                _int(args.get("context"), 0),
                _int(args.get("stream"), NONE_U64, least=0),
                int(op),
                name,
                _correlation(args),
                _int(args.get("graph id"), 0, least=0),
                _int(args.get("graph node id"), 0, least=0),
                start_ns,
                end_ns,
                _int(args.get("bytes"), 0, least=0),
                _copy_kind(name) if op == GpuOpKind.MEMCPY else 0,
            )
        )

    def _api(self, event: dict[str, Any], api: ApiKind) -> None:
        pid = _int(event.get("pid"), 0) & _U32
        tid = _int(event.get("tid"), 0) & _U32
        start_ns, end_ns = _moments(event)
        name = str(event.get("name", ""))
        correlation = _correlation(_args(event))
        self.process.api.add((pid, tid, name, int(api), correlation, start_ns, end_ns))
        self._callers[pid] += 1

    def _sync(self, event: dict[str, Any]) -> None:
        args = _args(event)
        start_ns, end_ns = _moments(event)
        kind = str(args.get("cuda_sync_kind", event.get("name", ""))).lower()
        self.process.syncs.add(
            (
                0,
                _int(args.get("device"), _int(event.get("pid"), 0)),
                _int(args.get("context"), 0),
                int(_SYNCS.get(kind, SyncKind.UNKNOWN)),
                _stream(args.get("stream")),
                _int(args.get("wait_on_cuda_event_id"), NONE_U64, least=0),
                _correlation(args),
                start_ns,
                end_ns,
                _int(args.get("wait_on_cuda_event_record_corr_id"), 0, least=0),
                _stream(args.get("wait_on_stream")),
            )
        )

    def _range(self, event: dict[str, Any]) -> None:
        self._annotators[_int(event.get("pid"), 0) & _U32] += 1
        name = str(event.get("name", ""))
        if self._matcher.may_be(name):
            tid = _int(event.get("tid"), 0) & _U32
            self.process.ranges.append(StepRange(name, tid, *_moments(event)))


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args", {})
    if not isinstance(args, dict):
        raise _UnreadableError("args is no object")
    return args


def _stream(value: object) -> int:
    """A stream of a synchronisation; none is written as -1, in 64 bits or in 32."""
    number = _int(value, NONE_U64, least=0)
    return NONE_U64 if number == _U32 else number


def _correlation(args: dict[str, Any]) -> int:
    """The correlation id; 0 where there is none."""
    return _int(args.get("correlation"), 0, least=0)


def _int(value: object, default: int, *, least: int = -_I64) -> int:
    """An integer however it was written (``7``, ``"7"``, ``"0x7"``, ``"stream 7"``)."""
    if isinstance(value, str):
        digits = value.rsplit(" ", 1)[-1]
        try:
            value = int(digits, 0)
        except ValueError:
            return default
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return default
    if isinstance(value, Decimal) and not value.is_finite():
        return default
    number = int(value)
    return number if number >= least else default


def _moments(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in nanoseconds of the trace's own clock."""
    start_ns = to_ns(event.get("ts"), "ts")
    return start_ns, start_ns + to_ns(event.get("dur"), "dur")


def to_ns(value: object, name: str) -> int:
    """Microseconds as JSON gives them, in integer nanoseconds; halves go to the even one.

    Raises:
        ValueError: it is no number, or too large for one.
    """
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            raise _UnreadableError(f"{name} is no number") from None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _UnreadableError(f"{name} is missing" if value is None else f"{name} is no number")
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > 18:
            raise _UnreadableError(f"{name} is out of range")
        return _in_range(int((value * 1000).to_integral_value()), name)
    return _in_range(value * 1000, name)


def _in_range(number: int, name: str) -> int:
    if abs(number) >= _I64:
        raise _UnreadableError(f"{name} is out of range")
    return number


def _copy_kind(name: str) -> int:
    match = _COPY.search(name)
    return int(CopyKind.__members__.get(f"{match[1]}TO{match[2]}", 0)) if match else 0
