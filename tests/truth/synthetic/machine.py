# SPDX-License-Identifier: Apache-2.0
"""Threads on a simulated host: they run, block, wake each other, and everything is remembered.

A thread's body is a generator. What it yields is how long it runs, in nanoseconds; ``None`` parks
it until somebody wakes it. Each stretch of its life is a ``Piece``, pieces of one thread tile its
time, and a piece in which it did not get on names its *source*: who or what ended that. Sources
are the simulator's own links, never looked up in records. CPUs are as many as threads; that a
thread has none is injected (a delay after a wake, a preemption), with who ran instead.
"""

from __future__ import annotations

import enum
import random
from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import FdKind, WaitFlag, WaitKind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.truth.synthetic.options import Options
    from tests.truth.synthetic.records import Recorder

    Body = Generator[int | None, None, None]

#: The simulation starts here, in nanoseconds of CLOCK_MONOTONIC.
ZERO = 1_000_000_000
US = 1_000
MS = 1_000_000

#: Where the interpreter lock of each process lies.
GIL_ADDRESS = 0x7F00_0000_1000


class Did(enum.IntEnum):
    """What a thread did in a stretch of time."""

    RUN = 0  # had a CPU; ``category`` cpu, or page-fault
    MESSAGE = 1  # blocked until ``source``, a thread, woke it at ``moment``
    LOCK = 2  # blocked until ``source``, who had the lock, let go of it at ``moment``
    GIL = 3  # the same for the interpreter lock; ``lock`` knows all who had it
    LEAF = 4  # blocked for something outside all threads, which came at ``moment``
    WORK = 5  # the same, but part of what the thread itself was doing: a disk, a fault
    NO_CPU = 6  # without a CPU; ``category`` run-queue or preempted, ``source`` ran instead
    POLL = 7  # polled a queue until ``source`` had written at ``moment``, its end
    HANDOFF = 8  # polled on, although the message of ``source`` was there
    DEVICE = 9  # in a call that waited for ``source``, an operation that ended at ``moment``


class Piece:
    """A stretch ``(start, end]`` of a thread's life."""

    __slots__ = ("category", "did", "end", "lock", "moment", "source", "span", "start", "untold")

    def __init__(
        self,
        did: Did,
        start: int,
        end: int,
        span: str,
        *,
        category: Category = Category.CPU,
        moment: int = 0,
        source: Any = None,
        lock: Any = None,
    ) -> None:
        self.did, self.start, self.end, self.span = did, start, end, span
        self.category, self.moment, self.source, self.lock = category, moment, source, lock
        self.untold = False


@dataclass(frozen=True)
class Process:
    """A process; ``stream`` is the recording's stream of its agent, 0 for one not traced."""

    pid: int
    stream: int
    role: str


@dataclass(frozen=True)
class Stranger:
    """A thread outside the traced processes."""

    tid: int
    pid: int
    comm: str


@dataclass(frozen=True)
class WaitAs:
    """How a wait looks to the kernel's probes."""

    kind: WaitKind
    syscall: int = -1
    op: int = 0
    arg: int = 0
    waker_syscall: int = -1
    flags: int = 0


FUTEX = WaitAs(WaitKind.FUTEX, 202, 0x80 | 9, 0x7F10_0000_2000, 202)
MUTEX = WaitAs(WaitKind.FUTEX, 202, 0x80, 0x7F10_0000_3000, 202)
GIL = WaitAs(WaitKind.FUTEX, 202, 0x80 | 9, GIL_ADDRESS + 64, 202)
EPOLL = WaitAs(WaitKind.EPOLL, 232, 0, 5, 1)
SOCKET = WaitAs(WaitKind.POLL, 7, 0, 0x7FFC_0000_0000, 46)
NETWORK = WaitAs(WaitKind.EPOLL, 232, 0, 5, -2, WaitFlag.WAKE_SOFTIRQ | WaitFlag.WAKE_IDLE)
SLEEP = WaitAs(WaitKind.SLEEP, 230, 0, 0, -2, WaitFlag.WAKE_TIMER | WaitFlag.WAKE_IDLE)
DISK = WaitAs(WaitKind.READ, 0, FdKind.FILE, 9, -2, WaitFlag.WAKE_SOFTIRQ)
FAULT = WaitAs(WaitKind.FAULT, -1, 0, 0, -2, WaitFlag.WAKE_IDLE)
DRIVER = WaitAs(WaitKind.POLL, 7, 0, 0x7FFC_0000_1000, -2, WaitFlag.WAKE_IRQ)
PREEMPTED = WaitAs(WaitKind.PREEMPTED)
YIELD = WaitAs(WaitKind.YIELD, 24)


@dataclass(frozen=True)
class World:
    """What is no thread and wakes threads: a network, a timer, a disk."""

    category: Category
    how: WaitAs
    by: Stranger | None = None


class Thread:
    """A thread of a traced process."""

    def __init__(self, machine: Machine, process: Process, tid: int, name: str, role: str) -> None:
        self.machine, self.process, self.tid, self.name, self.role = (
            machine, process, tid, name, role,
        )  # fmt: skip
        self.pid = process.pid
        self.pieces: list[Piece] = []
        self.span = ""
        self._open: list[tuple[str, int, int, str]] = []
        self.body: Body | None = None
        self.wake = 0
        self.waker: Thread | Stranger | World | None = None
        self.ran: Thread | Stranger | None = None
        self.asleep: tuple[int, WaitAs] | None = None  # since when it blocks, and in what
        machine.threads.append(self)
        machine.records.thread(self)

    def start(self, body: Body) -> Thread:
        """Begin at the machine's present moment."""
        self.body = body
        self.machine.at(self.machine.now, self.resume)
        return self

    def resume(self) -> None:
        """Go on until it parks, or until something else comes first."""
        machine, body, heap = self.machine, self.body, self.machine.heap
        assert body is not None
        while True:
            ns = next(body, None)
            if ns is None:
                return
            now = machine.now
            end = now + ns if ns >= 0 else now - ns
            if ns > 0:
                self.add(Did.RUN, now, end)
            if heap and heap[0][0] <= end:
                machine.at(end, self.resume)
                return
            machine.now = end

    def add(self, did: Did, start: int, end: int, **more: Any) -> None:
        """Remember a stretch; one that is as the one before makes that longer."""
        if end <= start or not self.machine.keep:
            return
        pieces = self.pieces
        if did is Did.RUN and not more and pieces:
            last = pieces[-1]
            if last.did is Did.RUN and last.span == self.span and last.category is Category.CPU:
                last.end = end
                return
        pieces.append(Piece(did, start, end, self.span, **more))

    # --- named phases

    def begin(self, name: str, step: int = 0) -> None:
        """A named phase of work begins."""
        self._open.append((self.span, self.machine.now, step, name))
        self.span = name

    def finish(self) -> tuple[int, int]:
        """The phase ends; returns when it began and ended."""
        before, start, step, name = self._open.pop()
        now = self.machine.now
        self.span = before
        self.machine.records.span(self, name, start, now, step)
        return start, now

    # --- work, and what gets in its way

    def work(self, ns: int) -> Body:
        """Run for so long, plus whatever gets in the way."""
        disturb = self.machine.disturb
        if disturb is None or ns < 2 or not disturb.strikes(ns):
            yield ns
            return
        first = self.machine.random.randint(1, ns - 1)
        yield first
        yield from disturb.by(self)
        yield ns - first

    # --- waits

    def park(self, how: WaitAs) -> Body:
        """Block until somebody wakes it."""
        self.asleep = self.machine.now, how
        yield None
        self.asleep = None

    def blocked(self, did: Did, start: int, how: WaitAs, **more: Any) -> None:
        """The thread is back on a CPU after a wait that began at ``start``."""
        machine, wake, waker, ran = self.machine, self.wake, self.waker, self.ran
        now = machine.now
        source: Any = waker
        if isinstance(waker, World):
            did = Did.WORK if did is Did.WORK else Did.LEAF
            more.setdefault("category", waker.category)
            source, how = waker.by, waker.how
        machine.records.wait(self, start, wake, now, how, source, ran)
        self.add(did, start, wake, moment=wake, source=source, **more)
        self.add(Did.NO_CPU, wake, now, category=Category.RUN_QUEUE, source=ran)

    def sleep(self, ns: int) -> Body:
        """Wait for a timer."""
        yield from self.world(World(Category.SLEEP, SLEEP), ns)

    def world(self, world: World, ns: int, did: Did = Did.LEAF) -> Body:
        """Wait for something that is no thread."""
        machine, start = self.machine, self.machine.now
        machine.at(start + ns, lambda: machine.wake(self, world))
        yield from self.park(world.how)
        self.blocked(did, start, world.how)

    def preempted(self, ns: int, ran: Thread | Stranger, how: WaitAs = PREEMPTED) -> Body:
        """Lose the CPU to somebody."""
        start = self.machine.now
        self.wake, self.waker, self.ran = start, ran, ran
        self.machine.records.wait(self, start, start, start + ns, how, ran, ran)
        self.add(Did.NO_CPU, start, start + ns, category=Category.PREEMPTED, source=ran)
        yield -ns


class Mailbox:
    """Things for one thread to take, in order; it blocks where there are none."""

    def __init__(self, machine: Machine, how: WaitAs) -> None:
        self.machine, self.how = machine, how
        self.items: deque[Any] = deque()
        self.waiting: Thread | None = None

    def put(self, item: Any, by: Thread | World) -> None:
        """Add something; whoever waits for it is woken."""
        self.items.append(item)
        if self.waiting is not None:
            thread, self.waiting = self.waiting, None
            self.machine.wake(thread, by)

    def get(self, thread: Thread) -> Generator[int | None, None, Any]:
        """Take the next."""
        if not self.items:
            start, self.waiting = self.machine.now, thread
            yield from thread.park(self.how)
            thread.blocked(Did.MESSAGE, start, self.how)
        return self.items.popleft()


class Lock:
    """A mutex, given to whoever waits longest; or the interpreter lock of a process."""

    def __init__(self, machine: Machine, how: WaitAs = MUTEX) -> None:
        self.machine, self.how = machine, how
        self.owner: Thread | None = None
        self.waiting: deque[Thread] = deque()
        self.held: list[tuple[int, Thread]] = []  # since when, by whom

    @property
    def taken(self) -> bool:
        """Whether somebody has it."""
        return self.owner is not None

    def _give(self, thread: Thread) -> None:
        self.owner = thread
        if self.machine.keep:
            self.held.append((self.machine.now, thread))

    def acquire(self, thread: Thread) -> Body:
        """Take it, blocking while somebody else has it."""
        if self.owner is None:
            self._give(thread)
            return
        start = self.machine.now
        self.waiting.append(thread)
        yield from thread.park(self.how)
        thread.blocked(Did.LOCK, start, self.how)

    def release(self, thread: Thread) -> None:
        """Let go of it."""
        assert self.owner is thread
        self.owner = None
        if self.waiting:
            following = self.waiting.popleft()
            self._give(following)
            self.machine.wake(following, thread)


class Machine:
    """The host: moments in order, threads, and chance."""

    def __init__(self, options: Options, records: Recorder) -> None:
        self.options, self.records = options, records
        self.random = random.Random(options.seed)
        self.keep = options.truth
        self.now = ZERO
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.threads: list[Thread] = []
        self.disturb: Any = None
        self.hog = Stranger(9_100, 9_100, "stress")

    def at(self, moment: int, call: Callable[[], None]) -> None:
        """Do something at a moment; of equal moments what was said first."""
        self._order += 1
        heappush(self.heap, (moment, self._order, call))

    def some(self, low: float, high: float) -> int:
        """A time between, in microseconds; odd nanoseconds keep moments apart."""
        return self.random.randint(int(low * US), int(high * US))

    def wake(self, thread: Thread, by: Thread | World) -> None:
        """Make a thread runnable; it has a CPU a little later."""
        delay = self.some(0.3, 6)
        thread.wake, thread.waker, thread.ran = self.now, by, None
        if self.disturb is not None:
            delay, thread.ran = self.disturb.cpu_delay(delay)
        self.at(self.now + delay, thread.resume)

    def open_waits(self, end: int) -> None:
        """Write the waits that are not over, as the probes do when they stop."""
        for thread in self.threads:
            if thread.asleep is not None:
                start, how = thread.asleep
                still = replace(how, flags=WaitFlag.OPEN, waker_syscall=-1)
                self.records.wait(thread, start, 0, end, still, None, None)

    def run(self, until: int) -> None:
        """Let everything happen up to a moment."""
        heap, tick, flush = self.heap, self.now, self.records.flush
        step = self.options.flush_ns
        while heap and heap[0][0] <= until:
            self.now, _, call = heappop(heap)
            call()
            if self.now > tick:
                flush(self.now)
                tick = self.now + step
