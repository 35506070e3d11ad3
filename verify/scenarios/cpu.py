# SPDX-License-Identifier: Apache-2.0
"""Contention for CPUs: others that run, quotas that are used up, loops that only look busy.

Hogs are told to stop after each operation, and stop by themselves before long.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass

from gpucorrelate.verify.scenarios.kit import (
    GAP_NS,
    LIBC,
    Board,
    Peer,
    Stage,
    Times,
    burn_cpu,
    checked,
    now,
    queued_ns,
    sleep,
    watched,
)
from gpucorrelate.verify.scenarios.quota import QUOTA_US, Quota, own_quota

#: CPU time that an operation needs beside a hog, and the longest that a hog runs.
_NEED_NS = 4_000_000
_HOG_NS = 60_000_000
_STOP, _STINTS = 0, 1
_PTHREAD_PROCESS_SHARED = 1
#: By then the kernel has counted what ended with a gap, on the other CPUs too.
_SETTLED_NS = 300_000
#: Of a gap, this part must be the hog's, or in the kernel's own count of throttled time.
_MOST = 0.8
_SPINNERS = 2
#: How long a lock is held, if its holder can run.
_HELD_NS = 2_000_000


def _hog(peer: Peer, longest_ns: int) -> None:
    """Run until told to stop, and note the stretches in which it was really running."""
    board = peer.board
    start = begun = last = now()
    count = 0
    while board[_STOP] == 0 and last - start < longest_ns:
        t = now()
        if t - last >= GAP_NS:
            count = _noted(board, count, (begun, last))
            begun = t
        last = t
    board[_STINTS] = _noted(board, count, (begun, last))


def _noted(board: Board, count: int, stint: Times) -> int:
    at = 2 + 2 * count
    if at + 1 >= Board.SLOTS:
        return count
    board[at], board[at + 1] = stint
    return count + 1


def _stints(board: Board) -> list[Times]:
    return [(board[2 + 2 * k], board[3 + 2 * k]) for k in range(board[_STINTS])]


def _started(hog: Peer) -> None:
    hog.board[_STOP] = hog.board[_STINTS] = 0
    hog.tell()


def _stopped(hog: Peer) -> list[Times]:
    """When it ran."""
    hog.board[_STOP] = 1
    hog.heard()
    return _stints(hog.board)


def _blamable(gaps: list[Times], stints: list[Times]) -> list[Times]:
    """Gaps in which a thread was off its CPU and the hog had most of it: it alone is to blame."""
    return [
        (start, end)
        for start, end in gaps
        if sum(max(0, min(end, b) - max(start, a)) for a, b in stints) >= _MOST * (end - start)
    ]


def cpu_hog(stage: Stage) -> None:
    """A process that only burns, on the operation's own CPU: where it ran, the other did not."""
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    stage.begin()
    hog = stage.peer(lambda peer: _hog(peer, _HOG_NS), "gpc-hog")
    for control in stage.rounds():
        if not control:
            _started(hog)
        with stage.operation(control=control) as op:
            gaps = burn_cpu(_NEED_NS + stage.delay())
        if not control:
            for gap in _blamable(gaps, _stopped(hog)):
                op.inject(gap, "preempted", hog.pid)


def priority_inversion(stage: Stage) -> None:
    """A mutex whose holder is kept off its CPU by a hog of higher priority.

    The holder would let go soon, if it ran. While the hog ran it could not: the holder is
    preempted, and the hog is to blame.
    """
    cpus = sorted(os.sched_getaffinity(0))
    board = Board()
    mutex = ctypes.c_void_p(board.address(0))
    attributes = ctypes.create_string_buffer(64)
    checked(-LIBC.pthread_mutexattr_init(attributes))
    checked(-LIBC.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED))
    checked(-LIBC.pthread_mutex_init(mutex, attributes))

    def low(peer: Peer) -> None:
        os.sched_setaffinity(0, cpus[:1])
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        LIBC.pthread_mutex_lock(mutex)
        peer.told()
        peer.board[_STINTS] = 0
        for gap in burn_cpu(_HELD_NS):
            peer.board[_STINTS] = _noted(peer.board, peer.board[_STINTS], gap)
        LIBC.pthread_mutex_unlock(mutex)

    def medium(peer: Peer) -> None:
        os.sched_setaffinity(0, cpus[:1])
        _hog(peer, _HOG_NS // 5)

    os.sched_setaffinity(0, cpus[-1:])
    stage.begin()
    holder, hog = stage.peer(low, "gpc-low"), stage.peer(medium, "gpc-hog")
    for control in stage.rounds():
        if not control:
            holder.tell()
            holder.heard()
            _started(hog)
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            LIBC.pthread_mutex_lock(mutex)
            LIBC.pthread_mutex_unlock(mutex)
            stage.work()
        if not control:
            holder.heard()
            for start, end in _blamable(_stints(holder.board), _stopped(hog)):
                op.inject((max(start, wanted), end), "preempted", hog.pid)


@dataclass
class _Gap:
    """When a thread was throttled, and how long it could have run and did not besides."""

    times: Times
    queued_ns: int


def _burn_within(quota: Quota, length_ns: int, cpus: int) -> list[_Gap]:
    """Use CPU time on a CPU of one's own; returns the gaps in which the thread was throttled.

    The kernel counts throttled time of all the group's CPUs together. What the others can have
    had at most since it was last read is no evidence; the rest must be this one's.
    """
    end = time.thread_time_ns() + length_ns
    found: list[_Gap] = []
    last = read = now()
    counted, queued = quota.throttled_ns(), queued_ns()
    gap: Times | None = None
    while time.thread_time_ns() < end:
        t = now()
        if t - last >= GAP_NS:
            gap = (last, t) if gap is None else (gap[0], gap[0])  # two in a row: neither is clear
        elif t - (gap[1] if gap else read) > _SETTLED_NS:
            total, waited = quota.throttled_ns(), queued_ns()
            least = total - counted - (cpus - 1) * (t - read)
            if gap and least >= _MOST * (gap[1] - gap[0]) > 0:
                # The scheduler's account of standing in line has the throttled time in it.
                found.append(_Gap(gap, max(0, waited - queued - least)))
            counted, queued, gap = total, waited, None
            t = read = now()
        last = t
    return found


def cpu_quota(stage: Stage) -> None:
    """A cgroup whose CPU quota the operation itself uses up."""
    with own_quota() as quota:
        stage.begin()
        for control in stage.rounds():
            quota.limit(on=not control)
            with stage.operation(control=control) as op:
                gaps = _burn_within(quota, 1_000 * QUOTA_US + stage.delay(), 1)
            quota.limit(on=False)
            for gap in gaps:
                op.inject(gap.times, "throttled", "cgroup", queued_ns=gap.queued_ns)


class _Spinners:
    """Threads that have work in parallel regions, and burn CPU until the next one.

    As an OpenMP pool with an active wait policy. They burn in C, so without the interpreter lock.
    """

    _BYTES = 256 << 10

    def __init__(self, count: int) -> None:
        self.active = False
        self._ended = False
        self._wake = [threading.Semaphore(0) for _ in range(count)]
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, k: int) -> None:
        block = ctypes.create_string_buffer(self._BYTES)
        while True:
            self._wake[k].acquire()
            if self._ended:
                return
            end = now() + _HOG_NS
            while self.active and now() < end:
                LIBC.memset(block, 1, self._BYTES)

    def region(self) -> None:
        """A parallel region begins: they run, and go on when it has ended."""
        self.active = True
        for wake in self._wake:
            wake.release()

    def rest(self) -> None:
        """They block."""
        self.active = False

    def end(self) -> None:
        """They leave."""
        self._ended, self.active = True, False
        for wake in self._wake:
            wake.release()
        for thread in self._threads:
            thread.join()


def spinning_pool(stage: Stage) -> None:
    """A pool spins after each parallel region and uses up the quota of its cgroup."""
    cpus = sorted(os.sched_getaffinity(0))
    used = 1 + min(_SPINNERS, len(cpus) - 1)
    with own_quota() as quota:
        stage.begin()
        os.sched_setaffinity(0, cpus[:-1] or cpus)
        pool = _Spinners(_SPINNERS)
        os.sched_setaffinity(0, cpus[-1:])
        try:
            for control in stage.rounds():
                quota.limit(on=not control)
                with stage.operation(control=control) as op:
                    if not control:
                        pool.region()
                    gaps = _burn_within(quota, 1_000 * QUOTA_US + stage.delay(), used)
                pool.rest()
                quota.limit(on=False)
                sleep(1_000_000)
                for gap in gaps:
                    op.inject(gap.times, "throttled", "cgroup", queued_ns=gap.queued_ns)
        finally:
            pool.end()


def yield_spin(stage: Stage) -> None:
    """A loop of ``sched_yield`` until another process has set a flag in shared memory.

    The kernel sees that a thread yields, and cannot see which memory it looks at: for whom it
    waits cannot be known. Right is to say that it is not known, and not that it worked.
    """
    flag = Board()

    def act(peer: Peer) -> None:
        sleep(peer.board[0])
        peer.board[1] = now()
        flag[0] = 1

    stage.begin()
    peer = stage.peer(act)
    for control in stage.rounds():
        flag[0] = int(control)
        peer.board[0] = stage.delay()
        with stage.operation(control=control) as op:
            stage.work()
            if not control:
                peer.tell()
            with watched() as spin:
                while flag[0] == 0:
                    os.sched_yield()
            stage.work()
        if not control:
            peer.heard()
            times = spin.times[0], peer.board[1]
            op.inject(times, "unexplained", "nobody", queued_ns=spin.queued_ns)
