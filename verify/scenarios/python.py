# SPDX-License-Identifier: Apache-2.0
"""What the interpreter adds: its lock, and pools whose threads are all busy."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios.kit import (
    Stage,
    Watched,
    is_asleep,
    now,
    queued_ns,
    set_name,
    sleep,
    until,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

#: How often an operation gives up the interpreter lock and wants it back.
_TAKES = 2
_AWAY_NS = 300_000
_HOG_NS = 100_000_000
_BUSY = 2


class _Hog:
    """A thread of pure Python that runs on command and gives way only when asked to."""

    def __init__(self) -> None:
        self.running = False
        self.ran_ns = 0
        self.tid = 0
        self._order, self._orders = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.tid, "the hog never began")

    def _run(self) -> None:
        set_name("gpc-gil-hog")
        self.tid = threading.get_native_id()
        while os.read(self._order, 1):
            end = now() + _HOG_NS
            while self.running and self.ran_ns < end:
                self.ran_ns = now()

    def start(self) -> None:
        """Begin to hog, once the interpreter lock is free for a moment."""
        self.running = True
        os.write(self._orders, b"g")

    def stop(self) -> None:
        """Rest, and be asleep."""
        self.running = False
        until(lambda: is_asleep(self.tid), "the hog never rested")

    def end(self) -> None:
        """Leave."""
        self.running = False
        os.close(self._orders)
        self._thread.join()


def gil_hog(stage: Stage) -> None:
    """Another thread runs Python: whoever has let go of the interpreter lock waits for it.

    It lets go for a short sleep, and the wait begins when the timer ends that.
    """
    hog = _Hog()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(hog.tid, cpus[:1])
    os.sched_setaffinity(0, cpus[-1:])
    stage.begin()
    for control in stage.rounds():
        waits = []
        if not control:
            hog.start()
        with stage.operation(control=control) as op:
            for _ in range(_TAKES):
                stage.work()
                before, rest = queued_ns(hog.tid), sleep(_AWAY_NS)
                queued = rest.queued_ns + queued_ns(hog.tid) - before
                # Who has run since then had the lock; else there was nobody to wait for.
                if hog.ran_ns > rest.times[1]:
                    waits.append(((rest.times[1], rest.back_ns), queued))
        hog.stop()
        if not control:
            for times, queued in waits:
                op.inject(times, "gil", hog.tid, queued_ns=queued)
    hog.end()


def thread_pool(stage: Stage) -> None:
    """A pool whose threads are all busy with other jobs: the operation's job has to queue.

    The thread that takes it up is to blame: first for its earlier job, then for this one. Both
    sleep.
    """
    ended: dict[int, int] = {}

    def busy(length_ns: int) -> None:
        ended[threading.get_native_id()] = sleep(length_ns).times[1]

    def job(length_ns: int) -> tuple[int, Watched]:
        return threading.get_native_id(), sleep(length_ns)

    stage.begin()
    with ThreadPoolExecutor(_BUSY) as pool:
        for control in stage.rounds():
            others: list[Future[None]] = []
            if not control:
                others = [pool.submit(busy, stage.delay()) for _ in range(_BUSY)]
                until(lambda: pool._work_queue.empty(), "the pool's threads never began")
            length = stage.delay(4)
            with stage.operation(control=control) as op:
                wanted = now()
                tid, slept = pool.submit(job, length).result()
                returned = now()
                stage.work()
            for other in others:
                other.result()
            if control:
                # A job is a job: here too the pool's thread does it.
                op.inject((wanted, returned), "sleep", tid)
                continue
            op.inject((wanted, ended[tid]), "sleep", tid)
            op.inject(slept.times, "sleep", tid, queued_ns=slept.queued_ns)
