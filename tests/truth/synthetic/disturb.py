# SPDX-License-Identifier: Apache-2.0
"""What gets in the way of threads: other threads, disks, faults, locks, a busy host."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import FaultFlag, FdKind, WaitKind
from tests.truth.synthetic.machine import (
    DISK,
    FAULT,
    GIL,
    MS,
    US,
    YIELD,
    Did,
    Lock,
    Stranger,
    Thread,
    WaitAs,
    World,
)

if TYPE_CHECKING:
    from tests.truth.synthetic.machine import Body, Machine, Process
    from tests.truth.synthetic.options import Rates

_TIMEOUT_NS = 5 * MS
_DISK = World(Category.DISK, DISK)
_FAULT = World(Category.PAGE_FAULT, FAULT)
_OTHER = Stranger(9_200, 9_200, "sidecar")
# Reading an answer: a thread that comes to wait for events while it writes waits for its client.
_EXTERNAL = World(Category.EXTERNAL, WaitAs(WaitKind.READ, 0, FdKind.PIPE, 17, 1), _OTHER)
_TIMER = World(Category.SLEEP, WaitAs(GIL.kind, 202, 0x80 | 9, GIL.arg, -2, 4 | 32))


class _Gil(Lock):
    """The interpreter lock: waited for in turns of 5 ms."""

    def acquire(self, thread: Thread) -> Body:
        """Take it, asking again every 5 ms while somebody else has it."""
        first, machine = len(thread.pieces), self.machine
        while self.taken:
            start = machine.now
            self.waiting.append(thread)
            turn = [start]
            machine.at(start + _TIMEOUT_NS, partial(self._timeout, thread, turn))
            yield from thread.park(GIL)
            turn.clear()
            waker = thread.waker
            how = _TIMER.how if isinstance(waker, World) else GIL
            by = None if isinstance(waker, World) else waker
            wake, now = thread.wake, machine.now
            machine.records.wait(thread, start, wake, now, how, by, thread.ran)
            thread.add(Did.GIL, start, wake, moment=wake, source=by, lock=self)
            thread.add(Did.NO_CPU, wake, now, category=Category.RUN_QUEUE, source=thread.ran)
            if by is not None:
                for piece in thread.pieces[first:]:
                    piece.source = by if piece.did is Did.GIL else piece.source
                return
            yield machine.some(2, 15)
        # It came free while the thread was not waiting: nobody woke it.
        for piece in thread.pieces[first:]:
            piece.untold = piece.did is Did.GIL
        self._give(thread)

    def _timeout(self, thread: Thread, turn: list[int]) -> None:
        if turn and thread in self.waiting:
            self.waiting.remove(thread)
            self.machine.wake(thread, _TIMER)


class Disturb:
    """Chance, and who suffers from it."""

    def __init__(self, machine: Machine, rates: Rates) -> None:
        self.machine, self.rates = machine, rates
        self.over = False
        kinds = {
            self._preempted: rates.preempted,
            self._fault: rates.fault,
            self._minor: rates.minor,
            self._sleep: rates.sleep,
            self._disk: rates.disk,
            self._external: rates.external,
            self._lock: rates.lock,
            self._gil: rates.gil,
            self._yield: rates.yielding,
        }
        self._kinds = [kind for kind, rate in kinds.items() if rate]
        self._weights = [rate for rate in kinds.values() if rate]
        self._per_ns = sum(self._weights) / 1e9
        self.locks: dict[int, tuple[Lock, _Gil]] = {}

    def inhabit(self, process: Process) -> None:
        """Threads of a process that take its locks now and then."""
        machine = self.machine
        self.locks[process.pid] = Lock(machine), _Gil(machine, GIL)
        if self.rates.lock:
            for k in (8, 9):
                helper = Thread(machine, process, process.pid + k, f"helper{k}", "other")
                helper.start(self._helper(helper))
        if self.rates.gil:
            hog = Thread(machine, process, process.pid + 7, "hog", "other")
            hog.start(self._hog(hog))

    def _helper(self, thread: Thread) -> Body:
        machine, chance = self.machine, self.machine.random
        lock, _ = self.locks[thread.pid]
        while not self.over:
            yield from thread.sleep(machine.some(100, 4_000))
            yield machine.some(5, 20)
            yield from lock.acquire(thread)
            yield machine.some(20, 400)
            if chance.random() < 0.3:
                yield from chance.choice((self._sleep, self._disk, self._preempted))(thread)
                yield machine.some(5, 50)
            lock.release(thread)
            yield machine.some(5, 20)

    def _hog(self, thread: Thread) -> Body:
        machine, chance = self.machine, self.machine.random
        _, gil = self.locks[thread.pid]
        while not self.over:
            yield from thread.sleep(machine.some(500, 9_000))
            yield machine.some(5, 20)
            yield from gil.acquire(thread)
            yield machine.some(50, 8_000 if chance.random() < 0.3 else 600)
            if chance.random() < 0.3:
                yield from self._preempted(thread)
                yield machine.some(5, 50)
            gil.release(thread)
            yield machine.some(5, 20)

    # --- when, and which

    def strikes(self, ns: int) -> bool:
        """Whether something gets in the way of so much work."""
        return self.machine.random.random() < ns * self._per_ns

    def by(self, thread: Thread) -> Body:
        """What it is."""
        (kind,) = self.machine.random.choices(self._kinds, self._weights)
        yield from kind(thread)

    def cpu_delay(self, delay: int) -> tuple[int, Thread | Stranger | None]:
        """How long a thread that was woken has no CPU, and who had it."""
        if self.machine.random.random() * 100 < self.rates.late:
            return self.machine.some(20, 900), self._other()
        return delay, None

    def while_polling(self, thread: Thread) -> Body:
        """A polling thread may lose its CPU."""
        if self.rates.yielding and self.machine.random.random() < 0.3:
            yield from thread.preempted(self.machine.some(5, 80), self._other(), YIELD)
        elif self.rates.preempted and self.machine.random.random() < 0.1:
            yield from thread.preempted(self.machine.some(10, 300), self._other())

    def _other(self) -> Thread | Stranger:
        """Somebody who had the CPU."""
        return self.machine.random.choice((self.machine.hog, _OTHER, self.machine.threads[-1]))

    # --- what

    def _preempted(self, thread: Thread) -> Body:
        yield from thread.preempted(self.machine.some(30, 1_500), self.machine.hog)

    def _yield(self, thread: Thread) -> Body:
        yield from thread.preempted(self.machine.some(3, 200), self._other(), YIELD)

    def _sleep(self, thread: Thread) -> Body:
        yield from thread.sleep(self.machine.some(50, 2_000))

    def _disk(self, thread: Thread) -> Body:
        yield from thread.world(_DISK, self.machine.some(80, 3_000), Did.WORK)

    def _external(self, thread: Thread) -> Body:
        yield from thread.world(_EXTERNAL, self.machine.some(50, 1_500))

    def _lock(self, thread: Thread) -> Body:
        lock, _ = self.locks[thread.pid]
        yield from lock.acquire(thread)
        yield self.machine.some(5, 60)
        lock.release(thread)

    def _gil(self, thread: Thread) -> Body:
        _, gil = self.locks[thread.pid]
        yield from gil.acquire(thread)
        yield self.machine.some(20, 200)
        gil.release(thread)

    def _fault(self, thread: Thread) -> Body:
        """A major fault: the thread blocks in it."""
        machine, records = self.machine, self.machine.records
        start = machine.now
        yield from self._resolving(thread, machine.some(1, 4))
        blocked = machine.now
        yield from thread.world(_FAULT, machine.some(60, 2_500), Did.WORK)
        wake = thread.wake
        yield from self._resolving(thread, machine.some(1, 4))
        records.fault(thread, start, machine.now, wake=wake, block=wake - blocked,
                      inode=machine.random.randint(1, 9), flags=int(FaultFlag.MAJOR))  # fmt: skip

    def _resolving(self, thread: Thread, ns: int) -> Body:
        start = self.machine.now
        yield -ns
        thread.add(Did.RUN, start, start + ns, category=Category.PAGE_FAULT)

    def _minor(self, thread: Thread) -> Body:
        """Minor faults, one close behind the other: long enough together to be seen as one."""
        machine, records = self.machine, self.machine.records
        start = at = machine.now
        while at - start < 12 * US or machine.random.random() < 0.9:
            end = at + machine.some(1, 2)
            records.fault(thread, at, end)
            at = end + machine.some(0.05, 0.2)
        yield from self._resolving(thread, end - start)
