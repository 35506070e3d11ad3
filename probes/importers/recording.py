# SPDX-License-Identifier: Apache-2.0
"""Imported traces as the frames of one recording: a stream per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.probes.importers.rows import StepRange, numbered
from gpucorrelate.probes.wire.frame import (
    MAX_STRINGS_PER_STREAM,
    StreamWriter,
    StringTable,
    columns_of,
)
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.probes.importers.rows import (
        ImportedTrace,
        ProcessTrace,
        Rows,
        StepMatcher,
    )

_ROWS_PER_BATCH = 4096
_LATEST_NS = (1 << 63) - 1


def frames_of(traces: Sequence[ImportedTrace], matcher: StepMatcher) -> Iterator[bytes]:
    """The frames of a recording that holds all the traces.

    Stream 1 is the importer's own: who wrote what, which clock, what could not be read.
    """
    own = StreamWriter(1)
    first_ns, last_ns = _span(traces)
    processes = [process for trace in traces for process in trace.processes]
    ids = _Ids()
    known = [ids.of(process) for process in processes]
    yield from _rows(own, "meta", _facts(traces, first_ns))
    yield from _rows(
        own,
        "stream",
        [
            (i, own_ids[p.pid], 0, "import", p.role)
            for i, (p, own_ids) in enumerate(zip(processes, known, strict=True), 2)
        ],
    )
    session = "import"
    begin, end = int(SessionEvent.ATTACHED), int(SessionEvent.DETACHED)
    yield from _rows(own, "session", [(first_ns, begin, 0, session, "imported")])
    for number, (process, own_ids) in enumerate(zip(processes, known, strict=True), 2):
        steps = matcher.steps(process.ranges)
        yield from _process(StreamWriter(number), process, steps, own_ids)
    for trace in traces:
        lost = [
            (last_ns, 0, f"import.{trace.tool}", f"{trace.source}: {what}", count)
            for what, count in trace.problems.lines()
        ]
        if lost:
            yield from _rows(own, "loss", lost)
    yield from _rows(own, "session", [(last_ns, end, 0, session, "end of the trace")])


def _facts(traces: Sequence[ImportedTrace], first_ns: int) -> list[Sequence[int | str | None]]:
    facts = [("clock", "trace")]
    for trace in traces:
        facts += [("import", f"{trace.tool}: {trace.source}"), *trace.facts.items()]
    return [(first_ns, key, value) for key, value in facts]


def _span(traces: Sequence[ImportedTrace]) -> tuple[int, int]:
    """First and last moment of anything that has a valid time."""
    starts: list[int] = []
    ends: list[int] = []
    for trace in traces:
        for process in trace.processes:
            for rows in (process.api, process.ops):
                start, end = rows.times()
                starts.append(int(start.min(where=start > 0, initial=_LATEST_NS)))
                ends.append(int(end.max(initial=0)))
    first_ns = min(starts, default=_LATEST_NS)
    return 0 if first_ns == _LATEST_NS else first_ns, max(ends, default=0)


class _Ids:
    """Ids of processes and threads that are one's own in the whole recording.

    Ranks of several hosts or containers have the same ids for different threads. The first that
    comes keeps an id; the others get one that no Linux has: above PID_MAX_LIMIT, 4,194,304.
    """

    def __init__(self) -> None:
        self._taken = {0}
        self._next = (1 << 22) + 1

    def of(self, process: ProcessTrace) -> dict[int, int]:
        """The ids of one process, as the trace has them, with those of the recording."""
        found = {process.pid, *(one.tid for one in process.ranges)}
        for rows, name in (
            (process.api, "pid"),
            (process.api, "tid"),
            (process.ops, "pid"),
            (process.syncs, "pid"),
        ):
            found |= _distinct(rows.column(name))
        ids = {one: self._own(one) for one in sorted(found)}
        self._taken.update(ids.values())
        return {**ids, 0: 0} if 0 in found and process.pid else ids

    def _own(self, one: int) -> int:
        if one not in self._taken:
            return one
        while self._next in self._taken:
            self._next += 1
        self._taken.add(self._next)
        return self._next


def _process(
    writer: StreamWriter,
    process: ProcessTrace,
    steps: Sequence[StepRange],
    ids: Mapping[int, int],
) -> Iterator[bytes]:
    for rows in (process.api, process.ops, process.syncs):
        yield from _table(writer, rows, ids)
    threads = sorted({one for one in _tids(process) if one and one != process.pid})
    yield from _rows(writer, "thread", [(ids[one], f"thread {one}", "") for one in threads])
    known = [
        (number, StepRange(s.name, ids[s.tid], s.start_ns, s.end_ns))
        for number, s in numbered(steps)
    ]
    execute = int(WorkerPhase.EXECUTE)
    yield from _rows(
        writer,
        "worker_step",
        [(n, s.tid, process.rank, execute, s.start_ns, s.end_ns, 0) for n, s in known],
    )
    yield from _rows(writer, "span", [(s.tid, s.name, s.start_ns, s.end_ns, n) for n, s in known])


def _tids(process: ProcessTrace) -> set[int]:
    return _distinct(process.api.column("tid")) | {one.tid for one in process.ranges}


def _distinct(values: NDArray[Any]) -> set[int]:
    """The different values, of which many the same lie one after another."""
    changed = np.flatnonzero(values[1:] != values[:-1])
    return {*values[:1].tolist(), *np.unique(values[1:][changed]).tolist()}


def _table(writer: StreamWriter, rows: Rows, ids: Mapping[int, int]) -> Iterator[bytes]:
    """Columns in batches, so that no string id is used again before it was written."""
    texts = _Texts(list(rows.texts), writer.strings)
    numbers = _Numbers(ids)
    columns = [np.asarray(values) for values in rows.columns]
    for at in range(0, len(rows), _ROWS_PER_BATCH):
        packed = []
        for column, values in zip(rows.kind.columns, columns, strict=True):
            part = values[at : at + _ROWS_PER_BATCH]
            if column.ctype == "str":
                part = texts.ids(part)
            elif column.name in ("pid", "tid"):
                part = numbers.own(part)
            packed.append(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
        count = min(_ROWS_PER_BATCH, len(rows) - at)
        yield from writer.frames(rows.kind, count, packed)


class _Texts:
    """Ids of texts in a stream's table, by their numbers in a process's."""

    def __init__(self, texts: Sequence[str], strings: StringTable) -> None:
        self._texts = texts
        self._strings = strings
        self._ids = np.zeros(len(texts), np.uint32)

    def ids(self, numbers: NDArray[Any]) -> NDArray[np.uint32]:
        """For one batch; new ids are given in the order in which their texts come."""
        if len(self._texts) > MAX_STRINGS_PER_STREAM:
            self._ids[:] = 0  # an id may have another text since
        found: NDArray[np.uint32] = self._ids[numbers]
        if not found.all():
            for number in dict.fromkeys(numbers[found == 0].tolist()):
                self._ids[number] = self._strings.id(self._texts[number])
            found = self._ids[numbers]
        return found


class _Numbers:
    """Ids of processes and threads in the recording, by those in the trace."""

    def __init__(self, ids: Mapping[int, int]) -> None:
        self._there = np.array(sorted(ids), np.uint32)
        self._own = np.array([ids[one] for one in sorted(ids)], np.uint32)
        self._same = bool((self._there == self._own).all())

    def own(self, values: NDArray[Any]) -> NDArray[Any]:
        """Those of the recording."""
        return values if self._same else self._own[np.searchsorted(self._there, values)]


def _rows(
    writer: StreamWriter, kind_name: str, rows: Sequence[Sequence[int | str | None]]
) -> Iterator[bytes]:
    kind = BY_NAME[kind_name]
    for at in range(0, len(rows), _ROWS_PER_BATCH):
        part = rows[at : at + _ROWS_PER_BATCH]
        yield from writer.frames(kind, len(part), columns_of(kind, part, writer.strings))
