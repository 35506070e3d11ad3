# SPDX-License-Identifier: Apache-2.0
"""Imported traces as the frames of one recording: a stream per process."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from gpucorrelate.probes.importers.rows import StepRange, numbered
from gpucorrelate.probes.wire.frame import StreamWriter, columns_of, packed
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpucorrelate.probes.importers.rows import (
        ImportedTrace,
        ProcessTrace,
        Rows,
        StepMatcher,
    )

_ROWS_PER_BATCH = 4096


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
                starts.append(min((t for t in start if t > 0), default=0))
                ends.append(max(end, default=0))
    return min((t for t in starts if t > 0), default=0), max(ends, default=0)


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
        for name in ("pid", "tid"):
            found.update(process.api.columns[process.api.kind.index(name)])
        found.update(process.ops.columns[process.ops.kind.index("pid")])
        found.update(process.syncs.columns[process.syncs.kind.index("pid")])
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
    return {
        *process.api.columns[process.api.kind.index("tid")],
        *(one.tid for one in process.ranges),
    }


def _table(writer: StreamWriter, rows: Rows, ids: Mapping[int, int]) -> Iterator[bytes]:
    """Columns in batches, so that no string id is used again before it was written."""
    texts = list(rows.texts)
    for at in range(0, len(rows), _ROWS_PER_BATCH):
        columns = []
        for column, values in zip(rows.kind.columns, rows.columns, strict=True):
            part = values[at : at + _ROWS_PER_BATCH]
            if column.ctype == "str":
                part = array("Q", (writer.strings.id(texts[i]) for i in part))
            elif column.name in ("pid", "tid"):
                part = array("Q", map(ids.__getitem__, part))
            columns.append(packed(column.code, part))
        count = min(_ROWS_PER_BATCH, len(rows) - at)
        yield from writer.frames(rows.kind, count, columns)


def _rows(
    writer: StreamWriter, kind_name: str, rows: Sequence[Sequence[int | str | None]]
) -> Iterator[bytes]:
    kind = BY_NAME[kind_name]
    for at in range(0, len(rows), _ROWS_PER_BATCH):
        part = rows[at : at + _ROWS_PER_BATCH]
        yield from writer.frames(kind, len(part), columns_of(kind, part, writer.strings))
