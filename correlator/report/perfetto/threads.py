# SPDX-License-Identifier: Apache-2.0
"""What threads did by name: phases that agents tell, calls of an API, queues, faults, polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.causes import file_name
from gpucorrelate.correlator.report.perfetto.scene import mapped, together
from gpucorrelate.correlator.report.perfetto.writer import Flows, Slices
from gpucorrelate.correlator.search import grouped
from gpucorrelate.probes.wire.schema import FaultFlag, QueueOp, WaitKind, WorkerPhase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Table
    from gpucorrelate.correlator.report.perfetto.scene import Scene

    I64 = NDArray[np.int64]

SPAN, API, QUEUE, UNPACK = "span", "api", "queue", "unpack"
FAULT, POLLING, SHORT, WORKER, OUTPUTS = (
    "fault",
    "polling",
    "short waits",
    "worker step",
    "outputs",
)

_PHASES = {int(phase): phase.name.lower() for phase in WorkerPhase}
_OPS = {int(QueueOp.READ): "queue read", int(QueueOp.WRITE): "queue write"}


def draw(scene: Scene, launches: Flows, calls: NDArray[np.generic]) -> None:
    """Draws everything named on threads' own tracks, the rest on tracks below them.

    Args:
        scene: The recording.
        launches: Arrows from calls to what they launched.
        calls: Which calls of the API to draw.
    """
    _named(scene, launches, calls)
    for name, what, rows in (
        ("page faults", _faults, scene.run.states.fault_table),
        ("polling", _polling, scene.run.capture.table("spin")),
        ("short waits, summed", _sums, scene.run.capture.table("wait_sum")),
    ):
        rows = _seen(scene, rows)
        if len(rows):
            _below(scene, name, what(scene, rows), rows["tid"], rows["tgid"])
    for name, kind, what in (
        ("steps", "worker_step", _worker_steps),
        ("outputs", "outputs", _outputs),
    ):
        rows = _seen(scene, scene.run.capture.table(kind))
        if len(rows):
            _below(scene, name, what(scene, rows), rows["tid"], scene.owners(rows["stream"]))


def _seen(scene: Scene, rows: Table) -> Table:
    """The rows in the window."""
    return rows.select(scene.window.holds(rows["start_ns"], rows["end_ns"]))


def _where(known: NDArray[np.bool_], values: NDArray[np.generic]) -> I64:
    """Values where they are known, as a detail has them: -1 is none."""
    return np.where(known, values.astype(np.int64), -1)


def _below(
    scene: Scene, name: str, what: Slices, tid: NDArray[np.generic], pid: NDArray[np.generic]
) -> None:
    group, threads = scene.by_thread(tid, pid)
    tracks = [scene.below(one, name) for one in threads]
    spares = [(name, one) for one in threads]
    scene.writer.each_slices(group, tracks, what, spares, nested=True)


def _named(scene: Scene, launches: Flows, chosen: NDArray[np.generic]) -> None:
    capture = scene.run.capture
    spans, messages = (_seen(scene, capture.table(name)) for name in ("span", "queue_msg"))
    calls = scene.run.states.device.calls.table.select(chosen)
    reads = messages.select(messages["op"] == QueueOp.READ)
    sent, received = _messages(scene, messages, reads)
    parts = [
        _spans(scene, spans),
        _calls(scene, calls, launches),
        _queue(scene, messages, sent),
        _unpack(scene, reads, received),
    ]
    tid = np.concatenate([t["tid"].astype(np.int64) for t in (spans, calls, messages, reads)])
    pid = np.concatenate(
        [
            scene.owners(spans["stream"]),
            calls["pid"].astype(np.int64),
            scene.owners(messages["stream"]),
            scene.owners(reads["stream"]),
        ]
    )
    if len(tid):
        group, threads = scene.by_thread(tid, pid)
        spares = [("overlapping", one) for one in threads]
        scene.writer.each_slices(group, threads, together(parts), spares, nested=True)


def _spans(scene: Scene, rows: Table) -> Slices:
    writer = scene.writer
    args = (writer.number("step", _where(rows["step"] > 0, rows["step"])),)
    name = scene.string_names(rows["name"])
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(SPAN), args)


def _calls(scene: Scene, rows: Table, launches: Flows) -> Slices:
    writer, correlation = scene.writer, rows["correlation"]
    return Slices(
        rows["start_ns"],
        rows["end_ns"],
        scene.string_names(rows["name"]),
        writer.categories(API),
        (writer.number("correlation", _where(correlation != 0, correlation)),),
        launches,
    )


def _messages(scene: Scene, messages: Table, reads: Table) -> tuple[Flows, I64]:
    """Arrows from each message's write to its reads: those that leave, and those that come in."""
    key = np.concatenate([_key(reads), _key(messages)])
    _, number = np.unique(key, return_inverse=True)
    read, every = number[: len(reads)], number[len(reads) :]
    is_write = messages["op"] == QueueOp.WRITE
    begun = np.full(len(key) + 1, np.iinfo(np.int64).max)
    begun[every[is_write]] = messages["start_ns"][is_write]
    joined = np.flatnonzero(begun[read] < reads["ready_ns"])
    order = joined[np.argsort(read[joined], kind="stable")]
    first = scene.writer.flows(len(order))
    into = np.zeros(len(reads), np.int64)
    into[order] = first + np.arange(len(order))
    count = np.bincount(read[order], minlength=len(key) + 1)
    leaves = np.where(is_write, count[every], 0)
    # A message that was recorded twice as written: only one of them may send the arrows.
    again = np.ones(len(messages), bool)
    last = {int(k): i for i, k in enumerate(every.tolist()) if is_write[i]}
    again[list(last.values())] = False
    leaves = np.where(again, 0, leaves)
    return Flows(first + np.searchsorted(read[order], every), leaves), into


def _key(rows: Table) -> I64:
    return np.asarray((rows["queue"].astype(np.int64) << 40) | rows["seq"].astype(np.int64))


def _queue(scene: Scene, rows: Table, flows: Flows) -> Slices:
    writer = scene.writer
    name = mapped(rows["op"], lambda one: writer.names(_OPS.get(one, "queue")))
    waited = rows["ready_ns"] - rows["start_ns"]
    args = (
        writer.text("queue", scene.string_texts(rows["queue"])),
        writer.number("message", rows["seq"]),
        writer.number("reader", _where(rows["op"] == QueueOp.READ, rows["reader"])),
        writer.number("waited, ns", waited),
    )
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(QUEUE), args, flows)


def _unpack(scene: Scene, reads: Table, into: I64) -> Slices:
    name = np.full(len(reads), scene.writer.names("deserialise"), np.int64)
    return Slices(
        reads["ready_ns"], reads["end_ns"], name, scene.writer.categories(UNPACK), (),
        Flows(into=into),
    )  # fmt: skip


def _faults(scene: Scene, rows: Table) -> Slices:
    writer, flags = scene.writer, rows["flags"]
    number, first = grouped(rows["dev"].astype(np.int64), rows["inode"].astype(np.int64))
    files = [
        writer.texts(file_name(int(rows["dev"][i]), int(rows["inode"][i]))) for i in first.tolist()
    ]
    names = [writer.names(text) for text in ("minor fault", "major fault")]
    return Slices(
        rows["start_ns"],
        rows["end_ns"],
        np.array(names, np.int64)[((flags & FaultFlag.MAJOR) != 0).astype(np.int64)],
        writer.categories(FAULT),
        (
            writer.text("file", np.array(files, np.int64)[number]),
            writer.pointer("address", rows["addr"]),
            writer.number("off the CPU, ns", _where(rows["block_ns"] > 0, rows["block_ns"])),
            writer.text("woken by", scene.who(rows["waker_tid"], rows["waker_tgid"])),
        ),
    )


def _polling(scene: Scene, rows: Table) -> Slices:
    writer, turns = scene.writer, rows["count"]
    name = np.full(len(rows), writer.names("polling"), np.int64)
    args = (writer.number("turns", _where(turns > 0, turns)),)
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(POLLING), args)


def _sums(scene: Scene, rows: Table) -> Slices:
    writer = scene.writer

    def named(kind: int) -> int:
        known = WaitKind(kind) if kind in set(WaitKind) else WaitKind.OTHER
        return writer.names(f"{known.name.lower()} waits too short to record")

    args = tuple(
        writer.number(text, rows[column])
        for text, column in (
            ("waits", "count"), ("length, ns", "sum_ns"), ("ready, ns", "runq_ns"),
            ("longest, ns", "max_ns"),
        )
    )  # fmt: skip
    name = mapped(rows["wait_kind"], named)
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(SHORT), args)


def _worker_steps(scene: Scene, rows: Table) -> Slices:
    writer, step = scene.writer, rows["step"]
    name = mapped(rows["phase"], lambda one: writer.names(_PHASES.get(one, "call")))
    args = (
        writer.number("step", _where(step > 0, step)),
        writer.number("rank", rows["rank"]),
    )
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(WORKER), args)


def _outputs(scene: Scene, rows: Table) -> Slices:
    writer = scene.writer
    name = np.full(len(rows), writer.names("outputs processed"), np.int64)
    args = (writer.number("tokens", rows["tokens"]),)
    return Slices(rows["start_ns"], rows["end_ns"], name, writer.categories(OUTPUTS), args)
