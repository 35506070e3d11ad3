# SPDX-License-Identifier: Apache-2.0
"""Streams of a device: operations that follow each other, calls that launch and wait.

An operation begins a little after the last of what it had to wait for: its launch, what is before
it on its stream, the event its stream was told to wait for. Which of them that was the simulator
keeps (``Op.enabler``). When it will end is known as soon as it is launched, so a thread that
waits for it simply returns then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind, SyncKind
from tests.truth.synthetic.clock import DeviceClock
from tests.truth.synthetic.machine import DRIVER, US, Did
from tests.truth.synthetic.records import NONE

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.truth.synthetic.machine import Body, Machine, Process, Thread
    from tests.truth.synthetic.options import DeviceOptions

_KERNELS = ("gemm_kernel", "attention_kernel", "rms_norm_kernel", "silu_kernel")
MAIN, COPY = 7, 13
_START = 9  # column of an operation's start
_KERNEL, _MEMCPY = int(GpuOpKind.KERNEL), int(GpuOpKind.MEMCPY)


class Op:
    """An operation of a device."""

    __slots__ = ("call_end", "enabler", "end", "name", "pid", "start", "step", "stream", "thread")

    def __init__(self, pid: int, stream: int, thread: Thread, step: int, name: str) -> None:
        self.pid, self.stream, self.thread = pid, stream, thread
        self.step, self.name = step, name
        self.start = self.end = self.call_end = 0
        self.enabler: Op | None = None  # None: its launch


class Event:
    """Work of a stream up to a moment."""

    __slots__ = ("number", "of", "op")

    def __init__(self, number: int, of: int, op: Op | None) -> None:
        self.number, self.of, self.op = number, of, op


class Device:
    """The device of one worker."""

    def __init__(
        self, machine: Machine, process: Process, number: int, options: DeviceOptions
    ) -> None:
        self.machine, self.process, self.number, self.options = machine, process, number, options
        clock = machine.options.clock
        self.clock = DeviceClock(machine, process.stream, number, clock) if clock else None
        if self.clock is not None:
            machine.at(machine.now, self.clock.read)
        self._held: list[tuple[Any, ...]] = []
        self.last: dict[int, Op] = {}
        self.told: dict[int, Op] = {}  # what a stream was told to wait for
        self.queued: deque[Op] = deque()
        self.ids = 0
        self.step = 0

    def __bool__(self) -> bool:
        return bool(self.options)

    def _room(self, moment: int) -> Op | None:
        """Of a full launch queue the operation whose end makes room in it."""
        queued = self.queued
        while queued and queued[0].end <= moment:
            queued.popleft()
        return queued[-self.options.queue] if len(queued) >= self.options.queue else None

    def _call(
        self, thread: Thread, name: str, start: int, end: int, room: Op | None = None
    ) -> int:
        """A call that is over; the thread had a CPU all along, but may have waited for room."""
        self.ids += 1
        self.machine.records.call(thread, name, self.ids, start, end)
        before, thread.span = thread.span, name
        if room is not None:
            thread.add(Did.DEVICE, start, room.end, moment=room.end, source=room)
            start = room.end
        thread.add(Did.RUN, start, end)
        thread.span = before
        return self.ids

    def _op(
        self, thread: Thread, stream: int, name: str, end: int, length: int, call: int,
        node: int = 0, kind: int = _KERNEL,
    ) -> Op:  # fmt: skip
        """An operation launched by a call that returned at ``end``."""
        op = Op(self.process.pid, stream, thread, self.step, name)
        op.call_end = end
        ready, enabler = end, None
        for before in (self.last.get(stream), self.told.pop(stream, None)):
            if before is not None and before.end > ready:
                ready, enabler = before.end, before
        if self.machine.keep:
            op.enabler = enabler
        op.start = ready + self.machine.some(1, 3)
        op.end = op.start + length
        self.last[stream] = op
        if self.options.kernels:
            self.queued.append(op)
        copied = (4, int(CopyKind.DTOH)) if kind == _MEMCPY else (0, 0)
        row = (self.process.pid, self.number, 1, stream, kind, name, call, 1 if node else 0, node,
               op.start, op.end, *copied)  # fmt: skip
        if self.clock is None:
            self.machine.records.put(self.process.stream, "gpu_op", *row)
        else:
            self._held.append(row)
        return op

    def settle(self) -> None:
        """Write the operations that waited for their times to be mapped."""
        if self.clock is not None and self._held:
            moments = [row[k] for row in self._held for k in (_START, _START + 1)]
            times = iter(self.clock.mapped(moments))
            for row in self._held:
                start, end = next(times), next(times)
                self.machine.records.put(
                    self.process.stream, "gpu_op", *row[:_START], start, end, *row[_START + 2 :]
                )

    def _length(self, mean: float) -> int:
        spread = self.options.spread
        return self.machine.some(mean * (1 - spread), mean * (1 + spread))

    def forward(self, thread: Thread, step: int, tokens: int) -> Body:
        """The model's kernels, by calls of their own or as one graph."""
        options, some = self.options, self.machine.some
        self.step = step
        mean = options.kernel + options.per_token * tokens
        at = self.machine.now
        for k in range(options.kernels):
            start = at + some(0.3, options.launch / 2)
            thread.add(Did.RUN, at, start)
            at = start + some(options.launch / 2, options.launch)
            room = self._room(start)
            at += max(0, room.end - start) if room is not None else 0
            call = self._call(thread, "cudaLaunchKernel", start, at, room)
            self._op(thread, MAIN, _KERNELS[k % 4], at, self._length(mean), call)
        if options.graph:
            start = at + some(0.3, 3)
            thread.add(Did.RUN, at, start)
            at = start + some(options.launch, options.launch * 4)
            call = self._call(thread, "cudaGraphLaunch", start, at)
            for k in range(options.graph):
                self._op(thread, MAIN, _KERNELS[k % 4], at, self._length(mean), call, k + 1)
        tail = at + some(0.3, 2)
        thread.add(Did.RUN, at, tail)
        yield self.machine.now - tail

    def results(self, thread: Thread) -> Generator[int | None, None, Event]:
        """Sample on the device and have the result copied; returns the event of that."""
        some = self.machine.some
        at = self.machine.now
        stream = COPY if self.options.copy_stream else MAIN

        def call(name: str, low: float, high: float) -> tuple[int, int, int]:
            nonlocal at
            start = at + some(0.3, 2)
            thread.add(Did.RUN, at, start)
            at = start + some(low, high)
            return self._call(thread, name, start, at), start, at

        launch, _, end = call("cudaLaunchKernel", 2, 5)
        self._op(thread, MAIN, "sample_kernel", end, some(10, 40), launch)
        if stream != MAIN:
            record, _, _ = call("cudaEventRecord", 0.5, 2)
            waits, start, end = call("cudaStreamWaitEvent", 0.5, 2)
            self._sync_row(SyncKind.STREAM_WAIT_EVENT, waits, start, end, stream, record, MAIN)
            self.told[stream] = self.last[MAIN]
        copy, _, end = call("cudaMemcpyAsync", 3, 8)
        op = self._op(thread, stream, "DtoH", end, some(2, 6), copy, kind=_MEMCPY)
        record, _, _ = call("cudaEventRecord", 0.5, 2)
        tail = at + some(0.3, 2)
        thread.add(Did.RUN, at, tail)
        yield self.machine.now - tail
        return Event(record, stream, op)

    def _sync_row(
        self, kind: SyncKind, call: int, start: int, end: int, stream: int, record: int, of: int
    ) -> None:
        self.machine.records.put(
            self.process.stream, "gpu_sync", self.process.pid, self.number, 1, int(kind), stream,
            NONE, call, start, end, record, of,
        )  # fmt: skip

    def wait(self, thread: Thread, event: Event) -> Body:
        """Wait until an event has come."""
        machine, options, op = self.machine, self.options, event.op
        yield machine.some(0.3, 2)
        start = machine.now
        over = self._length(options.over)
        assert op is not None
        end = max(start, op.end) + over
        blocks = options.blocks and op.end - start > 4 * US
        yield -(end - start)
        self.ids += 1
        call = self.ids
        machine.records.call(thread, "cudaEventSynchronize", call, start, end)
        self._sync_row(SyncKind.EVENT, call, start, end, NONE, event.number, event.of)
        before, thread.span = thread.span, "cudaEventSynchronize"
        if op.end <= start:
            thread.add(Did.RUN, start, end)
        else:
            thread.add(Did.DEVICE, start, op.end, moment=op.end, source=op)
            back = op.end
            if blocks:
                wake = op.end + (end - op.end) // 4
                back = op.end + (end - op.end) // 2
                machine.records.wait(thread, start + US, wake, back, DRIVER, None, machine.hog)
                self._return(thread, op.end, wake)
                thread.add(Did.NO_CPU, wake, back, category=Category.RUN_QUEUE, source=machine.hog)
            self._return(thread, back, end)
        thread.span = before

    def _return(self, thread: Thread, start: int, end: int) -> None:
        thread.add(Did.HANDOFF, start, end, category=Category.SYNC_RETURN)
