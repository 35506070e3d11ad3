# SPDX-License-Identifier: Apache-2.0
"""A worker of one rank: it polls for steps, executes them, and replies.

With ``copier`` another thread waits for each step's result and replies, so that the main thread
can execute the next meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.schema import WorkerPhase
from tests.truth.synthetic.device import Device
from tests.truth.synthetic.machine import FUTEX, Mailbox, Thread

if TYPE_CHECKING:
    from tests.truth.synthetic.device import Event
    from tests.truth.synthetic.engine import Engine
    from tests.truth.synthetic.machine import Body, Process


class Worker:
    """Threads of a worker's process, and its device."""

    def __init__(self, engine: Engine, process: Process, rank: int) -> None:
        self.engine, self.machine, self.records = engine, engine.machine, engine.records
        self.options, self.costs, self.rank = engine.options, engine.costs, rank
        self.results = Mailbox(self.machine, FUTEX)
        self.device = Device(self.machine, process, rank, self.options.device)
        engine.thread(process, 0, "MainThread", f"worker{rank}.main", self._main)
        if self.options.copier:
            engine.thread(process, 1, "copier", f"worker{rank}.copy", self._copier)

    def _main(self, thread: Thread) -> Body:
        costs, put, r = self.costs, self.records.put, self.rank
        device, results = self.device, self.results
        # A process of which no wait is recorded counts as not traced.
        yield from thread.sleep(self.machine.some(5, 10))
        yield self.machine.some(1, 3)
        while True:
            step = yield from self.engine.broadcast.read(thread, r)
            thread.begin("execute", step.number)
            yield from thread.work(self.engine.cost(costs.prepare))
            if device:
                yield from device.forward(thread, step.number, step.tokens)
            else:
                tokens = costs.per_token * step.tokens
                yield from thread.work(self.engine.cost(costs.execute + tokens))
            start, end = thread.finish()
            put(thread.process.stream, "worker_step", step.number, thread.tid, r,
                int(WorkerPhase.EXECUTE), start, end, 0)  # fmt: skip
            yield self.machine.some(1, 4)
            thread.begin("sample", step.number)
            yield from thread.work(self.engine.cost(costs.sample))
            event: Event | None = None
            if device:
                event = yield from device.results(thread)
            if not self.options.copier and event is not None:
                yield from device.wait(thread, event)
            start, end = thread.finish()
            put(thread.process.stream, "worker_step", step.number, thread.tid, r,
                int(WorkerPhase.SAMPLE), start, end, 0)  # fmt: skip
            yield self.machine.some(1, 4)
            if self.options.copier:
                results.put((step, event), thread)
            else:
                yield from thread.work(self.engine.cost(costs.reply))
                yield from self.engine.replies[self.rank].write(thread, step)
            yield self.machine.some(1, 3)

    def _copier(self, thread: Thread) -> Body:
        device, results = self.device, self.results
        while True:
            step, event = yield from results.get(thread)
            yield self.machine.some(1, 4)
            if event is not None:
                yield from device.wait(thread, event)
            yield from thread.work(self.engine.cost(self.costs.reply))
            yield from self.engine.replies[self.rank].write(thread, step)
            yield self.machine.some(1, 3)
