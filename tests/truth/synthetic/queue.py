# SPDX-License-Identifier: Apache-2.0
"""Queues in shared memory: whoever reads polls until the next message is visible."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import QueueOp
from tests.truth.synthetic.machine import Did

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.truth.synthetic.machine import Body, Machine, Thread


class Queue:
    """A shared-memory queue: one writer at a time, every reader reads every message."""

    def __init__(self, machine: Machine, name: str, readers: int) -> None:
        self.machine, self.name = machine, name
        self.messages: deque[tuple[int, Thread, Any]] = deque()  # visible since, by whom
        self.first = 1
        self.next = [1] * readers
        self.polling: list[Thread | None] = [None] * readers
        self.seq = 0

    def write(self, thread: Thread, item: Any, cost: float = 8) -> Body:
        """Make a message visible to all readers."""
        machine = self.machine
        thread.begin("serialise")
        yield from thread.work(machine.some(cost / 2, cost))
        thread.finish()
        start = machine.now
        yield machine.some(0.1, 0.8)
        ready = machine.now
        yield machine.some(0.5, 3)
        self.seq += 1
        self.messages.append((machine.now, thread, item))
        put, stream = machine.records.put, thread.process.stream
        put(stream, "queue_msg", thread.tid, self.name, int(QueueOp.WRITE), 0, self.seq, start,
            ready, machine.now)  # fmt: skip
        for k, reader in enumerate(self.polling):
            if reader is not None:
                self.polling[k] = None
                machine.at(machine.now, reader.resume)

    def read(self, thread: Thread, k: int = 0) -> Generator[int | None, None, Any]:
        """Poll until the next message is there, and take it."""
        machine = self.machine
        start, seq = machine.now, self.next[k]
        if seq - self.first < len(self.messages):
            yield machine.some(0.1, 0.9)
        else:
            self.polling[k] = thread
            yield None
            yield from self._noticed(thread, start)
        ready = machine.now
        item = self.messages[seq - self.first][2]
        self.next[k] = seq + 1
        while self.messages and min(self.next) > self.first:
            self.messages.popleft()
            self.first += 1
        span, thread.span = thread.span, "deserialise"
        yield machine.some(2, 9)
        thread.span = span
        machine.records.put(thread.process.stream, "queue_msg", thread.tid, self.name,
                            int(QueueOp.READ), k, seq, start, ready, machine.now)  # fmt: skip
        return item

    def _noticed(self, thread: Thread, start: int) -> Body:
        machine = self.machine
        sent, writer, _ = self.messages[-1]
        thread.add(Did.POLL, start, sent, moment=sent, source=writer)
        for lose in (False, True):
            if lose:
                if machine.disturb is None:
                    break
                yield from machine.disturb.while_polling(thread)
            since = machine.now
            yield -machine.some(1.1, 4)
            thread.add(Did.HANDOFF, since, machine.now, category=Category.SPIN_HANDOFF,
                       source=writer)  # fmt: skip
