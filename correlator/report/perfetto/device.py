# SPDX-License-Identifier: Apache-2.0
"""What devices did, on a track for each stream: overlapping operations in rows of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.kernels import decode
from gpucorrelate.correlator.report.perfetto.scene import mapped
from gpucorrelate.correlator.report.perfetto.writer import Flows, Slices
from gpucorrelate.correlator.search import grouped
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.native.trace import Argument
    from gpucorrelate.correlator.report.perfetto.scene import Scene

    I64 = NDArray[np.int64]
    Mask = NDArray[np.bool_]

KINDS = {GpuOpKind.KERNEL: "kernel", GpuOpKind.MEMCPY: "copy", GpuOpKind.MEMSET: "fill"}
OTHER, SYNC = "device", "synchronisation"

_NO_STREAM = (1 << 64) - 1


def launches(scene: Scene) -> tuple[Flows, Flows, Mask, Mask]:
    """Arrows from calls to what they launched, and which of both are drawn.

    Returns:
        Those that leave the calls drawn, those that come into the operations drawn, and which
        those are.
    """
    device = scene.run.states.device
    calls, ops = device.calls, device.ops
    drawn = scene.window.holds(ops.start_ns, ops.end_ns)
    called = scene.window.holds(calls.start_ns, calls.end_ns)
    # What launched an operation in the window is worth seeing, however long before.
    called[ops.call[drawn & (ops.call >= 0)]] = True
    linked = drawn & (ops.call >= 0)
    # One that seems to begin before its launch (the clocks differ) cannot have an arrow.
    linked[linked] = ops.start_ns[linked] >= calls.start_ns[ops.call[linked]]
    order = np.flatnonzero(linked)
    order = order[np.argsort(ops.call[order], kind="stable")]
    first = scene.writer.flows(len(order))
    into = np.zeros(len(ops), np.int64)
    into[order] = first + np.arange(len(order))
    count = np.bincount(ops.call[order], minlength=len(calls))
    start = first + np.searchsorted(ops.call[order], np.arange(len(calls)))
    return Flows(start[called], count[called]), Flows(into=into[drawn]), drawn, called


def draw(scene: Scene, flows: Flows, drawn: Mask) -> None:
    """Draws the operations of every stream, and synchronisations."""
    device = scene.run.states.device
    writer = scene.writer
    rows = np.flatnonzero(drawn)
    if len(rows):
        used, group = np.unique(device.ops.stream[rows], return_inverse=True)
        tracks, spares = [], []
        for one in used.tolist():
            stream = device.streams[one]
            gpu = _gpu(scene, stream.process, stream.device)
            name = "no stream" if stream.number == _NO_STREAM else f"stream {stream.number}"
            tracks.append(scene.below(gpu, name))
            spares.append((name, gpu))
        writer.each_slices(group, tracks, _ops(scene, rows, flows), spares, nested=False)
    _syncs(scene)


def _gpu(scene: Scene, process: int, number: int) -> int:
    return scene.below(scene.device_process(process), f"GPU {number}", -1)


def _ops(scene: Scene, rows: I64, flows: Flows) -> Slices:
    states, writer = scene.run.states, scene.writer
    table = states.device.ops.table.select(rows)
    strings = scene.run.capture.strings
    kernel = (table["op"] == GpuOpKind.KERNEL).astype(np.int64)
    number, first = grouped(table["name"].astype(np.int64), kernel)
    full = [strings[int(table["name"][i])] for i in first.tolist()]
    short = [
        decode(name).short if kernel[i] else name
        for name, i in zip(full, first.tolist(), strict=True)
    ]
    told = [
        writer.texts(name) if name != brief else 0 for name, brief in zip(full, short, strict=True)
    ]
    of = states.device_steps.of[rows]
    numbers = states.device_steps.number.astype(np.int64)
    step = np.where(of >= 0, numbers[of], -1) if len(numbers) else np.full(len(rows), -1)

    def known(name: str, column: str) -> Argument:
        values = table[column].astype(np.int64)
        return writer.number(name, np.where(values != 0, values, -1))

    kinds = {int(kind): writer.categories(name) for kind, name in KINDS.items()}
    other = writer.categories(OTHER)
    return Slices(
        table["start_ns"],
        table["end_ns"],
        writer.names.all(name or "?" for name in short)[number],
        mapped(table["op"], lambda one: kinds.get(one, other)),
        (
            writer.text("name", np.array(told, np.int64)[number]),
            writer.number("step", step),
            known("correlation", "correlation"),
            known("graph", "graph"),
            known("graph node", "graph_node"),
            known("bytes", "bytes"),
            writer.text("direction", mapped(table["copy"], lambda one: _direction(scene, one))),
        ),
        flows,
    )


def _direction(scene: Scene, copy: int) -> int:
    known = copy in set(CopyKind) and copy != CopyKind.UNKNOWN
    return scene.writer.texts(CopyKind(copy).name) if known else 0


def _syncs(scene: Scene) -> None:
    """Synchronisations as the driver tells them: the calls that wait are on their threads.

    Not all tools say of which device one was, so they are below the process.
    """
    device, writer = scene.run.states.device, scene.writer
    rows = scene.run.capture.table("gpu_sync")
    rows = rows.select(scene.window.holds(rows["start_ns"], rows["end_ns"]))
    if not len(rows):
        return
    places = {(one.stream, one.pid): i for i, one in enumerate(device.processes)}
    key, first = grouped(rows["stream"], rows["pid"])
    spares = []
    for i in first.tolist():
        whose = places.get((int(rows["stream"][i]), int(rows["pid"][i])))
        pid = int(rows["pid"][i])
        spares.append((SYNC, scene.process(pid) if whose is None else scene.device_process(whose)))
    tracks = [scene.below(parent, name) for name, parent in spares]

    def named(kind: int) -> int:
        known = SyncKind(kind) if kind in set(SyncKind) else SyncKind.UNKNOWN
        return writer.names(f"wait for {known.name.lower().replace('_', ' ')}")

    correlation = rows["correlation"].astype(np.int64)
    args = (
        writer.number("correlation", np.where(correlation != 0, correlation, -1)),
        writer.number("stream", rows["gpu_stream"]),
    )
    what = Slices(
        rows["start_ns"], rows["end_ns"], mapped(rows["sync"], named), writer.categories(SYNC),
        args,
    )  # fmt: skip
    writer.each_slices(key, tracks, what, spares, nested=False)
