# SPDX-License-Identifier: Apache-2.0
"""Locks that somebody holds: what the holder does meanwhile is what the wait is made of."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios.kit import (
    LIBC,
    RUN,
    SLEEP,
    Board,
    Operation,
    Peer,
    Stage,
    Watched,
    checked,
    injected,
    is_asleep,
    now,
    run_and_sleep,
    set_name,
    sleep,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_PTHREAD_PROCESS_SHARED = 1
#: Room for any of glibc's synchronisation objects.
_OBJECT_BYTES = 64


class Holder:
    """A thread that holds something when told to, and says until when.

    Args:
        take: Takes it.
        give: Gives it up.
    """

    def __init__(self, take: Callable[[], object], give: Callable[[], object]) -> None:
        self._take, self._give = take, give
        self._order, self._orders = os.pipe()
        self._answer, self._answers = os.pipe()
        self._delay_ns = 0
        self.tid = 0
        self.slept = Watched()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.heard()

    def _run(self) -> None:
        set_name("gpc-holder")
        self.tid = threading.get_native_id()
        os.write(self._answers, b"r")
        while os.read(self._order, 1):
            self._take()
            os.write(self._answers, b"h")
            self.slept = sleep(self._delay_ns)
            self._give()
            os.write(self._answers, b"d")

    def hold(self, delay_ns: int) -> None:
        """Begin to hold it for a time, as soon as it can be had."""
        self._delay_ns = delay_ns
        os.write(self._orders, b"g")

    def heard(self) -> None:
        """Wait until it has it, or has given it up."""
        os.read(self._answer, 1)

    def end(self) -> None:
        """Let it go."""
        os.close(self._orders)
        self._thread.join()


def _injected(op: Operation, holder: Holder, wanted: int) -> None:
    """An operation waited, since ``wanted``, for a holder that slept."""
    start, end = holder.slept.times
    queued = holder.slept.queued_ns
    op.inject((max(wanted, start), end), "sleep", holder.tid, queued_ns=queued)


def _held(
    stage: Stage, holder: Holder, take: Callable[[], object], give: Callable[[], object]
) -> None:
    """Operations that take what the holder may have; a holder is asleep all the while."""
    stage.begin()
    for control in stage.rounds():
        if not control:
            holder.hold(stage.delay())
            holder.heard()
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            take()
            give()
            stage.work()
        if not control:
            holder.heard()
            _injected(op, holder, wanted)
    holder.end()


def pthread_mutex(stage: Stage) -> None:
    """A pthread mutex that another thread holds, asleep."""
    mutex = ctypes.create_string_buffer(_OBJECT_BYTES)
    checked(-LIBC.pthread_mutex_init(mutex, None))

    def take() -> None:
        LIBC.pthread_mutex_lock(mutex)

    def give() -> None:
        LIBC.pthread_mutex_unlock(mutex)

    _held(stage, Holder(take, give), take, give)


def python_lock(stage: Stage) -> None:
    """A ``threading.Lock`` that another thread holds, asleep."""
    lock = threading.Lock()
    _held(stage, Holder(lock.acquire, lock.release), lock.acquire, lock.release)


def rwlock(stage: Stage) -> None:
    """A pthread read-write lock: the operation reads, a sleeping writer has it."""
    lock = ctypes.create_string_buffer(_OBJECT_BYTES)
    checked(-LIBC.pthread_rwlock_init(lock, None))

    def give() -> None:
        LIBC.pthread_rwlock_unlock(lock)

    holder = Holder(lambda: LIBC.pthread_rwlock_wrlock(lock), give)
    _held(stage, holder, lambda: LIBC.pthread_rwlock_rdlock(lock), give)


def semaphore(stage: Stage) -> None:
    """A POSIX semaphore with one unit, which another thread has, asleep."""
    units = ctypes.create_string_buffer(_OBJECT_BYTES)
    checked(LIBC.sem_init(units, 0, 1))

    def take() -> None:
        LIBC.sem_wait(units)

    def give() -> None:
        LIBC.sem_post(units)

    _held(stage, Holder(take, give), take, give)


def condition(stage: Stage) -> None:
    """A ``threading.Condition`` whose predicate another thread makes true after a sleep."""
    ready = threading.Condition()
    state = {"set": True}

    def give() -> None:
        with ready:
            state["set"] = True
            ready.notify()

    def take() -> None:
        with ready:
            ready.wait_for(lambda: state["set"])

    holder = Holder(lambda: state.update(set=False), give)
    _held(stage, holder, take, lambda: None)


def convoy(stage: Stage) -> None:
    """Three threads queue for one mutex: two holders in turn, asleep, then the operation."""
    mutex = ctypes.create_string_buffer(_OBJECT_BYTES)
    checked(-LIBC.pthread_mutex_init(mutex, None))

    def take() -> None:
        LIBC.pthread_mutex_lock(mutex)

    def give() -> None:
        LIBC.pthread_mutex_unlock(mutex)

    first, second = Holder(take, give), Holder(take, give)
    stage.begin()
    for control in stage.rounds():
        if not control:
            first.hold(stage.delay())
            first.heard()
            second.hold(stage.delay())
            until(lambda: is_asleep(second.tid), "the second of the convoy never queued")
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            take()
            give()
            stage.work()
        if not control:
            first.heard()
            second.heard()  # has it
            second.heard()  # has given it up
            for holder in (first, second):
                _injected(op, holder, wanted)
    first.end()
    second.end()


def mutex_of_a_process(stage: Stage) -> None:
    """A mutex in shared memory that another process holds, first running, then asleep."""
    board = Board()
    mutex = ctypes.c_void_p(board.address(0))
    attributes = ctypes.create_string_buffer(_OBJECT_BYTES)
    checked(-LIBC.pthread_mutexattr_init(attributes))
    checked(-LIBC.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED))
    checked(-LIBC.pthread_mutex_init(mutex, attributes))

    def act(peer: Peer) -> None:
        LIBC.pthread_mutex_lock(mutex)
        peer.told()
        run_and_sleep(peer.board)
        LIBC.pthread_mutex_unlock(mutex)

    stage.begin()
    peer = stage.peer(act)
    for control in stage.rounds():
        if not control:
            peer.board[RUN], peer.board[SLEEP] = stage.delay(), stage.delay()
            peer.tell()
            peer.heard()
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            LIBC.pthread_mutex_lock(mutex)
            LIBC.pthread_mutex_unlock(mutex)
            stage.work()
        if not control:
            peer.heard()
            injected(op, peer, wanted)
