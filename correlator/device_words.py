# SPDX-License-Identifier: Apache-2.0
"""Operations and streams of devices in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.kernels import decode
from gpucorrelate.correlator.report.values import Actor, Category, Cause, Evidence
from gpucorrelate.probes.wire.schema import GpuOpKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucorrelate.correlator.device import Device
    from gpucorrelate.correlator.states import States

_NO_STREAM = (1 << 64) - 1


def stream_actor(device: Device, stream: int) -> Actor:
    """A stream as an actor: ``GPU0/4711 stream 7``."""
    one = device.streams[stream]
    number = "no stream" if one.number == _NO_STREAM else f"stream {one.number}"
    pid = device.processes[one.process].pid
    return Actor(0, pid, "gpu.stream", number, f"GPU{one.device}")


class DeviceWords:
    """Names what rows of devices stand for."""

    def __init__(self, states: States) -> None:
        self._s = states
        self._strings = states.capture.strings

    def operation(self, op: int) -> str:
        """A short name: a kernel's decoded, a copy's or a fill's as it is."""
        table = self._s.device.ops.table
        name = self._strings[int(table["name"][op])]
        return decode(name).short if table["op"][op] == GpuOpKind.KERNEL else name

    def owner(self, op: int) -> int:
        """Number of the step that launched it; 0 unknown."""
        steps = self._s.device_steps
        step = int(steps.of[op])
        return int(steps.number[step]) if step >= 0 else 0

    def call(self, call: int) -> str:
        """The name of a call."""
        return self._strings[int(self._s.device.calls.table["name"][call])]

    def cause(self, category: Category, row: int, actor: Callable[[int], Actor]) -> Cause | None:
        """Why a stretch on a stream, or of a synchronisation, lasted."""
        if category is Category.SYNC_RETURN:
            return Cause("had waited for", None, self.operation(int(self._s.path.sync_op[row])))
        ops, path = self._s.device.ops, self._s.path
        call, pred = int(ops.call[row]), int(path.pred[row])
        launch = None
        if call >= 0:
            thread = int(self._s.device.calls.thread[call])
            launch = Cause("launched by", actor(thread), f"in {self.call(call)}")
        if category in (Category.GPU, Category.GPU_EARLIER, Category.LAUNCH_GAP):
            return launch or Cause("launched by a call that is not on record")
        behind = f"behind {self.operation(pred)}" if pred >= 0 else ""
        if category is Category.QUEUE_GAP:
            return Cause(behind)
        if pred < 0:
            return Cause("no launch is on record, and nothing before it on its stream")
        if call < 0:
            return Cause(f"{behind}; its launch is not on record")
        return Cause(f"{behind}; what kept it longer than a queue does is not on record")

    def operation_evidence(self, op: int) -> Evidence:
        """The record of an operation."""
        ops = self._s.device.ops
        correlation = int(ops.table["correlation"][op])
        name = self._strings[int(ops.table["name"][op])]
        note = f"correlation {correlation}: {name}" if correlation else name
        return Evidence("gpu_op", int(ops.start_ns[op]), int(ops.end_ns[op]), 0, note)

    def sync_evidence(self, sync: int) -> Evidence:
        """The call, or run of polls, that waited."""
        path, calls = self._s.path, self._s.device.calls
        call = int(path.sync_call[sync])
        return Evidence(
            "cuda_api",
            int(path.sync_start_ns[sync]),
            int(path.sync_end_ns[sync]),
            int(calls.table["tid"][call]),
            self.call(call),
        )
