# SPDX-License-Identifier: Apache-2.0
"""The shared-memory message queue between engine core and workers.

Its waiting is invisible to the kernel: writer and readers spin, on the CPU. So each operation
reports when its waiting began and ended, and under which number, which writer and readers
count alike from the queue's creation, started or not.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import PART_QUEUE
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.wire.schema import QueueOp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

_SEQ = "_gpucorrelate_seq"
_TIMES = "_gpucorrelate_times"
_WRITE, _READ = int(QueueOp.WRITE), int(QueueOp.READ)


class _Timed:
    """A slot being acquired: what the queue's own context manager does, and when.

    Leaves ``(acquiring, acquired, done)`` with the queue. ``done`` is taken before the slot is
    released, a few instructions before its message becomes visible: a writer may lose the CPU
    right after, and the reader then runs long before the writer could look at a clock. Taken
    here, a write never seems to end after it was read.
    """

    __slots__ = ("_acquired", "_acquiring", "_inner", "_queue")

    def __init__(self, queue: Any, inner: Any) -> None:
        self._queue = queue
        self._inner = inner
        self._acquiring = self._acquired = 0

    def __enter__(self) -> Any:
        self._acquiring = time.monotonic_ns()
        slot = self._inner.__enter__()
        self._acquired = time.monotonic_ns()
        return slot

    def __exit__(self, *error: object) -> Any:
        self._queue.__dict__[_TIMES] = (self._acquiring, self._acquired, time.monotonic_ns())
        return self._inner.__exit__(*error)


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the message queue."""
    part = agent.part(PART_QUEUE)
    if not checked(part, module):
        return
    queue = module.MessageQueue
    hooks = _Hooks(agent)
    setattr(queue, _SEQ, 0)
    setattr(queue, _TIMES, None)
    wrap(queue, "acquire_write", hooks.acquiring)
    wrap(queue, "acquire_read", hooks.acquiring)
    wrap(queue, "enqueue", hooks.enqueueing)
    wrap(queue, "dequeue", hooks.dequeueing)


class _Hooks:
    def __init__(self, agent: Agent) -> None:
        self._part = agent.part(PART_QUEUE)
        self._put = agent.rows("queue_msg").put
        self._span = agent.rows("span").put
        self._seen_missed = False

    def acquiring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Timed even while dormant: a reader may wait from before the start until after it.
        def acquire(queue: Any, *args: Any, **kwargs: Any) -> Any:
            return _Timed(queue, original(queue, *args, **kwargs))

        return acquire

    def enqueueing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now = self._part, time.monotonic_ns

        def enqueue(queue: Any, *args: Any, **kwargs: Any) -> Any:
            before = queue.current_idx
            start = now() if part.on else 0
            try:
                return original(queue, *args, **kwargs)
            finally:
                if queue.current_idx != before:
                    self._moved(queue, before, _WRITE, start)

        return enqueue

    def dequeueing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dequeue(queue: Any, *args: Any, **kwargs: Any) -> Any:
            before = queue.current_idx
            try:
                return original(queue, *args, **kwargs)
            finally:
                if queue.current_idx != before:
                    self._moved(queue, before, _READ, 0)

        return dequeue

    def _moved(self, queue: Any, before: int, op: int, start: int) -> None:
        """A message was written or read: count it, and report it when started."""
        try:
            own = queue.__dict__
            seq = own.get(_SEQ, 0)
            if seq < 0 or (not seq and before):
                self._missed(own)
                return
            own[_SEQ] = seq = seq + 1
            if not self._part.on:
                return
            times = own.pop(_TIMES, None)
            if times is None:
                return
            acquiring, acquired, done = times
            tid = threading.get_native_id()
            name = queue.buffer.shared_memory.name
            if op == _WRITE:
                if start:
                    self._span((tid, "serialise", start, acquiring, 0))
                self._put((tid, name, op, 0, seq, acquiring, acquired, done))
            else:
                end = time.monotonic_ns()
                reader = queue.local_reader_rank
                self._put((tid, name, op, reader, seq, acquiring, acquired, end))
            self._part.works()
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _missed(self, own: dict[str, Any]) -> None:
        """The queue had moved before it was hooked: its numbers would not agree."""
        own[_SEQ] = -1
        if not self._seen_missed:
            self._seen_missed = True
            self._part.lack("a queue was in use before the agent came: its messages are left out")
