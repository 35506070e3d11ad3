# SPDX-License-Identifier: Apache-2.0
"""Nsight Systems' SQLite exports as events.

Tables and columns: "SQLite schema reference" of the Nsight Systems user guide. A table or a
column that an export lacks is nothing there; correlation ids are unique in their process only.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpucorrelate.probes.importers.rows import (
    NONE_U64,
    ImportedTrace,
    Problems,
    ProcessTrace,
    StepMatcher,
    StepRange,
)
from gpucorrelate.probes.wire.errors import TraceError
from gpucorrelate.probes.wire.schema import ApiKind, CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\x00"
_KERNEL, _MEMCPY, _MEMSET, _RUNTIME, _SYNC, _EVENT = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "CUDA_EVENT")
)
# What follows the function's name: the version of its parameters.
_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")
_NO_EVENT = 0xFFFFFFFF
_NO_RECORD = (0, NONE_U64)
#: What the tables of kernels, copies and fills have alike, as ``_op`` takes it.
_COMMON = (
    "globalPid", "deviceId", "contextId", "streamId", "correlationId", "graphId", "graphNodeId",
    "start", "end",
)  # fmt: skip
_ROWS_PER_READ = 2048
_COPIES = {int(kind): kind for kind in CopyKind}
_SYNCS = {int(kind) for kind in SyncKind}


def read_nsys(
    path: Path, matcher: StepMatcher, progress: Callable[[int], None] = lambda _: None
) -> ImportedTrace:
    """The traces of all processes in an export.

    Args:
        path: The ``.sqlite`` file.
        matcher: Which NVTX ranges may be steps.
        progress: Called with the rows read so far.

    Raises:
        TraceError: it is damaged, or no Nsight Systems export with CUDA in it.
    """
    # An export is read as it lies: no journal is looked for, nothing is written beside it.
    place = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(place, uri=True)) as database:
            database.text_factory = _text
            return _Export(path, database, matcher, progress).read()
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        # Of a damaged database not even what SQLite says of it need be text.
        raise TraceError(
            f"{path}: SQLite cannot read it: {exc}", hint="export it again: nsys export -t sqlite"
        ) from exc


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class _Export:
    """One export, read table by table."""

    def __init__(
        self,
        path: Path,
        database: sqlite3.Connection,
        matcher: StepMatcher,
        progress: Callable[[int], None],
    ) -> None:
        self._path = path
        self._database = database
        self._matcher = matcher
        self._progress = progress
        self._problems = Problems()
        self._processes: dict[int, ProcessTrace] = {}
        self._rows = 0
        found = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {str(name) for (name,) in found}
        self._strings: dict[int, str] = {}

    def read(self) -> ImportedTrace:
        """Everything in it."""
        if not self._tables & {_KERNEL, _MEMCPY, _MEMSET, _RUNTIME}:
            raise TraceError(
                f"{self._path}: has none of the tables of CUDA activity",
                hint="record with: nsys profile --trace=cuda,nvtx; export with: "
                "nsys export -t sqlite",
            )
        if "StringIds" in self._tables:
            found = self._database.execute("SELECT id, value FROM StringIds")
            self._strings = {key: text for key, text in found if isinstance(text, str)}
        self._kernels()
        self._copies()
        self._fills()
        self._calls()
        self._syncs()
        self._ranges()
        self._name_processes()
        used = [p for p in self._processes.values() if len(p.api) or len(p.ops) or p.ranges]
        used.sort(key=lambda process: process.pid)
        return ImportedTrace(self._path.name, "nsys", used, self._problems)

    def _select(self, table: str, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        """Row number and values; of a column that the table lacks every value is None."""
        if table not in self._tables:
            return
        there = {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
        names = [f'"{name}"' if name in there else "NULL" for name in columns]
        cursor = self._database.execute(f'SELECT rowid, {", ".join(names)} FROM "{table}"')
        while rows := cursor.fetchmany(_ROWS_PER_READ):
            self._rows += len(rows)
            self._progress(self._rows)
            for number, *values in rows:
                yield number if isinstance(number, int) else 0, values

    def _add(self, table: str, row: int, add: Callable[..., None], *values: Any) -> None:  # noqa: ANN401
        """Have a row added; one that cannot be is counted, with its place."""
        try:
            add(*values)
        except (TypeError, ValueError, OverflowError) as exc:
            self._problems.add(f"{table} rows unread: {exc}", f"row {row}")

    def _process(self, global_id: Any) -> ProcessTrace:  # noqa: ANN401 - what is in the table
        """The process of a globalPid or globalTid; the low 24 bits are the thread's."""
        number = _number(global_id, "globalPid")
        key = number >> 24
        if key not in self._processes:
            self._processes[key] = ProcessTrace(key & 0xFFFFFF)
        return self._processes[key]

    def _kernels(self) -> None:
        columns = (*_COMMON, "demangledName", "shortName")
        for row, values in self._select(_KERNEL, columns):
            *common, long, short = values
            name = self._strings.get(long) or self._strings.get(short) or "?"
            self._add(_KERNEL, row, self._op, common, GpuOpKind.KERNEL, name)

    def _copies(self) -> None:
        columns = (*_COMMON, "bytes", "copyKind")
        for row, values in self._select(_MEMCPY, columns):
            *common, size, copy = values
            kind = _COPIES.get(copy, CopyKind.UNKNOWN)
            name = f"Memcpy {kind.name}"
            self._add(_MEMCPY, row, self._op, common, GpuOpKind.MEMCPY, name, size, int(kind))

    def _fills(self) -> None:
        columns = (*_COMMON, "bytes")
        for row, values in self._select(_MEMSET, columns):
            *common, size = values
            self._add(_MEMSET, row, self._op, common, GpuOpKind.MEMSET, "Memset", size)

    def _op(
        self,
        common: Sequence[Any],
        op: GpuOpKind,
        name: str,
        size: int | None = 0,
        copy: int = 0,
    ) -> None:
        owner, device, context, stream, correlation, graph, node, start, end = common
        process = self._process(owner)
        process.ops.add(
            (
                process.pid,
                device or 0,
                context or 0,
                NONE_U64 if stream is None else stream,
                int(op),
                name,
                correlation or 0,
                graph or 0,
                node or 0,
                _number(start, "start"),
                _number(end, "end"),
                size or 0,
                copy,
            )
        )

    def _calls(self) -> None:
        columns = ("globalTid", "nameId", "correlationId", "start", "end")
        for row, values in self._select(_RUNTIME, columns):
            self._add(_RUNTIME, row, self._call, *values)

    def _call(self, thread: Any, name_id: Any, correlation: Any, start: Any, end: Any) -> None:  # noqa: ANN401
        process = self._process(thread)
        name = _VERSION.sub("", self._strings.get(name_id, "?"))
        driver = name.startswith("cu") and not name.startswith("cuda")
        process.api.add(
            (
                process.pid,
                _number(thread, "globalTid") & 0xFFFFFF,
                name,
                int(ApiKind.DRIVER if driver else ApiKind.RUNTIME),
                correlation or 0,
                _number(start, "start"),
                _number(end, "end"),
            )
        )

    def _syncs(self) -> None:
        columns = (
            "globalPid", "deviceId", "contextId", "syncType", "streamId", "eventId",
            "correlationId", "start", "end", "eventSyncId",
        )  # fmt: skip
        records = self._records()
        for row, values in self._select(_SYNC, columns):
            *most, times = values
            self._add(_SYNC, row, self._synced, records.get((values[0], times), _NO_RECORD), *most)

    def _records(self) -> dict[tuple[Any, Any], tuple[int, int]]:
        """The call that recorded an event, and its stream, by process and ``eventSyncId``.

        That number is new each time an event is recorded; an event's own id is not.
        """
        columns = ("globalPid", "eventSyncId", "correlationId", "streamId")
        return {
            (owner, times): (correlation, NONE_U64 if stream is None else stream)
            for _, (owner, times, correlation, stream) in self._select(_EVENT, columns)
            if times is not None and isinstance(correlation, int)
        }

    def _synced(
        self,
        record: tuple[int, int],
        owner: Any,  # noqa: ANN401
        device: Any,  # noqa: ANN401
        context: Any,  # noqa: ANN401
        kind: Any,  # noqa: ANN401
        *rest: Any,  # noqa: ANN401
    ) -> None:
        stream, event, correlation, start, end = rest
        process = self._process(owner)
        process.syncs.add(
            (
                process.pid,
                device or 0,
                context or 0,
                kind if kind in _SYNCS else 0,
                NONE_U64 if stream is None else stream,
                NONE_U64 if event in (None, _NO_EVENT) else event,
                correlation or 0,
                _number(start, "start"),
                _number(end, "end"),
                *record,
            )
        )

    def _ranges(self) -> None:
        columns = ("globalTid", "start", "end", "text", "textId")
        for row, values in self._select("NVTX_EVENTS", columns):
            thread, start, end, text, text_id = values
            name = text if text and isinstance(text, str) else self._strings.get(text_id, "")
            if end is not None and self._matcher.may_be(name):
                self._add("NVTX_EVENTS", row, self._range, name, thread, start, end)

    def _range(self, name: str, thread: Any, start: Any, end: Any) -> None:  # noqa: ANN401
        tid = _number(thread, "globalTid") & 0xFFFFFF
        one = StepRange(name, tid, _number(start, "start"), _number(end, "end"))
        self._process(thread).ranges.append(one)

    def _name_processes(self) -> None:
        for _, (global_pid, name) in self._select("PROCESSES", ("globalPid", "name")):
            if isinstance(global_pid, int) and (global_pid >> 24) in self._processes:
                self._processes[global_pid >> 24].role = str(name or "")


def _number(value: object, name: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} is missing" if value is None else f"{name} is no number")
    return value
