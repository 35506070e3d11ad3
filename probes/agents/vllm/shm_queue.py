# SPDX-License-Identifier: Apache-2.0
"""The shared-memory message queue between engine core and workers.

Its waiting is invisible to the kernel: writer and readers spin, on the CPU. So each operation
reports when its waiting began and ended, and under which number, which writer and readers
count alike from the queue's creation, started or not.
"""

from __future__ import annotations

import time
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import PART_QUEUE
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.wire.schema import QueueOp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

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
        times = (self._acquiring, self._acquired, time.monotonic_ns())
        self._queue._gpucorrelate_times = times
        return self._inner.__exit__(*error)


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the message queue."""
    part = agent.part(PART_QUEUE)
    if not checked(part, module):
        return
    queue = module.MessageQueue
    hooks = _Hooks(agent)
    queue._gpucorrelate_seq = 0
    queue._gpucorrelate_times = None
    queue._gpucorrelate_name = 0
    wrap(queue, "acquire_write", hooks.acquiring)
    wrap(queue, "acquire_read", hooks.acquiring)
    wrap(queue, "enqueue", hooks.enqueueing)
    wrap(queue, "dequeue", hooks.dequeueing)


class _Hooks:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._part = agent.part(PART_QUEUE)
        self._put = agent.rows("queue_msg").put
        self._span = agent.rows("span").put
        self._texts = agent.texts
        self._serialise = agent.texts.number("serialise")
        self._seen_missed = False

    def acquiring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part = self._part

        def acquire(queue: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(queue, *args, **kwargs)
            return _Timed(queue, original(queue, *args, **kwargs))

        return acquire

    def enqueueing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, wrote, missed = self._part, time.monotonic_ns, self._wrote, self._missed

        def enqueue(queue: Any, *args: Any, **kwargs: Any) -> Any:
            before = queue.current_idx
            start = now() if part.on else 0
            try:
                return original(queue, *args, **kwargs)
            finally:
                if queue.current_idx != before:
                    seq = queue._gpucorrelate_seq + 1
                    if seq < 1 or (seq == 1 and before):
                        missed(queue)
                    else:
                        queue._gpucorrelate_seq = seq
                        if part.on:
                            wrote(queue, seq, start)

        return enqueue

    def dequeueing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, read, missed = self._part, self._read, self._missed

        def dequeue(queue: Any, *args: Any, **kwargs: Any) -> Any:
            before = queue.current_idx
            try:
                return original(queue, *args, **kwargs)
            finally:
                if queue.current_idx != before:
                    seq = queue._gpucorrelate_seq + 1
                    if seq < 1 or (seq == 1 and before):
                        missed(queue)
                    else:
                        queue._gpucorrelate_seq = seq
                        if part.on:
                            read(queue, seq)

        return dequeue

    def _wrote(self, queue: Any, seq: int, start: int) -> None:
        try:
            end, since = time.monotonic_ns(), self._agent.started_ns
            acquiring, acquired, done = queue._gpucorrelate_times or (0, 0, 0)
            queue._gpucorrelate_times = None
            tid = get_native_id()
            name = queue._gpucorrelate_name or self._name(queue)
            if start < since or acquiring < since:
                # Begun before the start: whether it waited for a slot is not known.
                self._put((tid, name, _WRITE, 0, seq, end, end, end))
                return
            self._span((tid, self._serialise, start, acquiring, 0))
            self._put((tid, name, _WRITE, 0, seq, acquiring, acquired, done))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _read(self, queue: Any, seq: int) -> None:
        try:
            end, since = time.monotonic_ns(), self._agent.started_ns
            acquiring, acquired, _ = queue._gpucorrelate_times or (0, 0, 0)
            queue._gpucorrelate_times = None
            if acquiring < since:
                # It waited before the start, and has not been timed: that it did and when it
                # returned are known, which is enough to find whom it waited for. The moments in
                # which it unpacked this one message count as waiting.
                acquiring, acquired = since, end
            name, reader = queue._gpucorrelate_name or self._name(queue), queue.local_reader_rank
            self._put((get_native_id(), name, _READ, reader, seq, acquiring, acquired, end))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _name(self, queue: Any) -> int:
        queue._gpucorrelate_name = number = self._texts.number(queue.buffer.shared_memory.name)
        self._part.works()
        return number

    def _missed(self, queue: Any) -> None:
        """The queue had moved before it was hooked: its numbers would not agree."""
        queue._gpucorrelate_seq = -1
        if not self._seen_missed:
            self._seen_missed = True
            self._part.lack("a queue was in use before the agent came: its messages are left out")
