# SPDX-License-Identifier: Apache-2.0
"""A thread that stands in for the daemon's loop where a disk may make it wait.

A write to a disk that is slow, or hangs, returns when it likes. The loop must not wait for it: the
kernel's rings fill meanwhile, agents' rows pile up, callers get no answer. So whatever changes a
recording's files is done here, in order; the loop waits a moment, and goes on if it takes longer.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: How long the loop waits: much longer than a write into the page cache takes, much shorter than
#: the kernel's rings last.
PATIENCE_S = 0.25
#: What waits to be written to disks that do not keep up, all recordings together.
MOST_HELD_BYTES = 64 << 20
#: How long the thread may take to end, and how often that is looked for.
_END_S, _LOOK_S = 1.0, 0.001
_THREADS = Path("/proc/self/task")


class Job(Generic[T]):
    """Some work on a disk.

    Attributes:
        begun_ns: When it was handed over, then when it began; CLOCK_MONOTONIC.
        ended_ns: When it was done; 0 while it is not.
    """

    __slots__ = ("_done", "_error", "_result", "_work", "begun_ns", "ended_ns")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self.begun_ns = time.monotonic_ns()
        self.ended_ns = 0

    def run(self) -> None:
        """Do it; what it raises is kept for ``result``."""
        # A turn that it waited for behind others, or for a CPU, says nothing of the disk.
        self.begun_ns = time.monotonic_ns()
        try:
            self._result = self._work()
        except Exception as exc:  # noqa: BLE001 - raised again where the work was asked for
            self._error = exc
        self.ended_ns = time.monotonic_ns()
        self._done.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is done, or is within so long."""
        if self.ended_ns:
            return True
        if not self._done.acquire(timeout=timeout_s):
            return False
        self._done.release()
        return True

    def result(self) -> T:
        """What it came to, or raises what it raised. Only once it is done."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    @property
    def took_ns(self) -> int:
        """How long it took, or takes already."""
        return (self.ended_ns or time.monotonic_ns()) - self.begun_ns


class Writer:
    """The thread and what it has to do. It is begun with the first job."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job[object] | None = None
        self._current: Job[object] | None = None
        self._held: dict[int, int] = {}

    def start(self, work: Callable[[], T]) -> Job[T]:
        """Have something done behind all that was handed over before.

        Returns at once, or after ``PATIENCE_S`` at the latest if it takes longer than that; where
        something before it does, there is no waiting.
        """
        behind = self._last is not None and not self._last.ended_ns
        job = Job(work)
        self._last = job  # type: ignore[assignment]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._jobs.put(job)  # type: ignore[arg-type]
        job.wait(0 if behind else PATIENCE_S)
        return job

    def rest(self) -> None:
        """End the thread once all is done; the next job begins another.

        Capabilities are a thread's own: one begun before they were given up would keep them.
        """
        thread = self._thread
        if thread is None:
            return
        self._jobs.put(None)
        thread.join(_END_S)
        self._thread, self._jobs = None, queue.SimpleQueue()
        # Joined is when its Python has ended; the kernel's thread ends a little later.
        end = time.monotonic() + _END_S
        while _THREADS.joinpath(str(thread.native_id)).exists() and time.monotonic() < end:
            time.sleep(_LOOK_S)

    @property
    def waits_ns(self) -> int:
        """How long the disk has not answered; 0: it is asked nothing."""
        job = self._current
        return job.took_ns if job is not None else 0

    def hold(self, who: int, size_bytes: int) -> bool:
        """Note what one recording keeps in memory now; whether there is room for it."""
        self._held.pop(who, None)
        if size_bytes:
            self._held[who] = size_bytes
        return sum(self._held.values()) <= MOST_HELD_BYTES

    def _run(self) -> None:
        jobs = self._jobs
        while (job := jobs.get()) is not None:
            self._current = job
            job.run()
            self._current = None


#: All recordings are below one folder, so on one disk.
WRITER = Writer()
