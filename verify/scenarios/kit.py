# SPDX-License-Identifier: Apache-2.0
"""What scenarios share: the stage they play on, operations, peers, and clocks.

Only the standard library: numpy's threads would wait too. A scenario prepares, calls
``Stage.begin``, which returns when it is traced, and then does operations, each a stretch of one
thread's time. What it did goes out as JSON lines at the end, when nothing is measured any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import mmap
import os
import random
import resource
import signal
import statistics
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate.verify.scenarios.quota import Throttling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The C library. Calls through it release the interpreter lock.
LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_TIMERSLACK, _PR_SET_NAME, _PR_SET_PDEATHSIG = 29, 15, 1

#: Lengths from which random ones are drawn: an operation's own work, and a delay.
WORK_NS = (200_000, 700_000)
DELAY_NS = (2_000_000, 8_000_000)
#: Off the CPU for less than this is an interrupt or a moment's guest, not a stay of another.
GAP_NS = 100_000
#: To find out how long it takes to be on a CPU after a timer.
_NOTICES, _NOTICE_NS, _MOST_NOTICE_NS = 21, 200_000, 100_000
_LONGEST_LINE = 4000
_PATIENCE_S = 20.0

Times = tuple[int, int]


def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def burn(length_ns: int) -> None:
    """Run for a time."""
    end = now() + length_ns
    while now() < end:
        pass


def burn_cpu(length_ns: int) -> list[Times]:
    """Use that much CPU time; returns when the thread was not on a CPU for ``GAP_NS`` or more."""
    end = time.thread_time_ns() + length_ns
    gaps, last = [], now()
    while time.thread_time_ns() < end:
        t = now()
        if t - last >= GAP_NS:
            gaps.append((last, t))
        last = t
    return gaps


def set_name(name: str) -> None:
    """Name the calling thread for the kernel."""
    LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def checked(result: int) -> int:
    """The result of a C call.

    Raises:
        OSError: it is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def is_asleep(tid: int) -> bool:
    """Whether a thread has left the CPU to wait."""
    stat = Path(f"/proc/{tid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "S"


def until(check: Callable[[], object], what: str) -> None:
    """Wait for a condition, outside of operations.

    Raises:
        TimeoutError: it does not come.
    """
    end = time.monotonic() + _PATIENCE_S
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.0002)


def queued_ns(tid: int = 0) -> int:
    """How long a thread of this process, by default the calling one, was ready without a CPU.

    It is the scheduler's own account, which knows nothing of probes.
    """
    tid = tid or threading.get_native_id()
    text = Path(f"/proc/self/task/{tid}/schedstat").read_text("ascii")
    return int(text.split()[1])


def _faults() -> int:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_minflt + used.ru_majflt


@dataclass
class Operation:
    """A stretch of one thread's time that is to be explained.

    The kernel's own accounts of the thread are read around it: they bound what may be said.
    """

    number: int
    control: bool
    tid: int = 0
    start_ns: int = 0
    end_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    notice_ns: int = 0
    throttled_ns: int = 0
    faults: int = 0
    injections: list[dict[str, Any]] = field(default_factory=list)

    def inject(
        self,
        times: Times,
        categories: str | Sequence[str],
        culprit: int | str,
        *,
        cpu_ns: int = 0,
        queued_ns: int = 0,
    ) -> None:
        """Say what was done to it.

        Args:
            times: From when to when, as closely as the injector could measure.
            categories: What may be said of it; usually one.
            culprit: A thread id, or the name of a kind.
            cpu_ns: How long the operation's own thread ran meanwhile.
            queued_ns: How long those who waited or acted were ready without a CPU meanwhile.
        """
        start, end = max(times[0], self.start_ns), min(times[1], self.end_ns)
        if end <= start:
            return
        row: dict[str, Any] = {"start_ns": start, "end_ns": end}
        row |= {"cpu_ns": cpu_ns, "queued_ns": queued_ns}
        row["categories"] = [categories] if isinstance(categories, str) else list(categories)
        row["culprits"] = [culprit] if isinstance(culprit, int) else []
        row["kind"] = culprit if isinstance(culprit, str) else ""
        self.injections.append(row)


@dataclass
class Watched:
    """A stretch of the calling thread's time, with the kernel's accounts of it.

    Attributes:
        times: From when to when.
        back_ns: When the thread was running again after it.
        cpu_ns: On a CPU.
        queued_ns: Ready and without a CPU, and what CPUs take to notice that they are needed.
    """

    times: Times = (0, 0)
    back_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0


def _blocks() -> int:
    """How often the calling thread left its CPU to wait."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@functools.cache
def _notice_ns() -> int:
    """How long it takes from the end of a timer to being on a CPU again, as a rule.

    An idle CPU has to be woken up itself, which the scheduler's account of queueing leaves out.
    """
    late = []
    for _ in range(_NOTICES):
        due = now() + _NOTICE_NS
        time.sleep(_NOTICE_NS / 1e9)
        late.append(now() - due)
    return min(_MOST_NOTICE_NS, max(0, statistics.median_low(late)))


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Measure a stretch; the accounts are read outside of it."""
    found, notice = Watched(), _notice_ns()
    queued, blocks = queued_ns(), _blocks()
    cpu, start = time.thread_time_ns(), now()
    yield found
    found.back_ns = now()
    found.times = start, found.back_ns
    found.cpu_ns = time.thread_time_ns() - cpu
    found.queued_ns = queued_ns() - queued + notice * (_blocks() - blocks)


def sleep(length_ns: int) -> Watched:
    """Block until a timer ends it: that is not when a CPU is free again."""
    with watched() as found:
        time.sleep(length_ns / 1e9)
    found.times = found.times[0], found.times[0] + length_ns
    return found


class Stage:
    """Where a scenario plays: its random numbers, its rounds, its log.

    Args:
        seed: Of the random numbers.
        rounds: Operations with delays; there are as many without.
    """

    def __init__(self, seed: int, rounds: int) -> None:
        self.random = random.Random(seed)
        self.operations: list[Operation] = []
        self._rounds = rounds
        self._peers: list[Peer] = []
        self._throttling = Throttling()
        LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _notice_ns()  # known before anything is traced or forked

    def begin(self) -> None:
        """Everything is prepared, the cgroup is the last: wait until tracing is on."""
        self._throttling.close()
        self._throttling = Throttling()
        say("ready")
        if not sys.stdin.readline():
            sys.exit(1)  # who asked for it is gone

    def rounds(self) -> Iterator[bool]:
        """For each operation, whether it is a control; mixed at random."""
        # What is used for the first time is faulted in, or even loaded: two do not count.
        yield from (True, False)
        self.operations.clear()
        kinds = [False, True] * self._rounds
        self.random.shuffle(kinds)
        yield from kinds

    @contextlib.contextmanager
    def operation(self, *, control: bool) -> Iterator[Operation]:
        """An operation of the calling thread; as little as possible is done around it."""
        op = Operation(len(self.operations), control, threading.get_native_id())
        throttled, faults = self._throttling.total_ns(), _faults()
        blocks, queued = _blocks(), queued_ns()
        cpu = time.thread_time_ns()
        op.start_ns = now()
        yield op
        op.end_ns = now()
        op.cpu_ns = time.thread_time_ns() - cpu
        op.queued_ns = queued_ns() - queued
        op.notice_ns = _notice_ns() * (_blocks() - blocks)
        op.faults = _faults() - faults
        op.throttled_ns = self._throttling.total_ns() - throttled
        self.operations.append(op)

    def work(self) -> None:
        """The operation's own work."""
        burn(self.random.randint(*WORK_NS))

    def delay(self, shrink: int = 1) -> int:
        """Length of a delay."""
        return self.random.randint(*DELAY_NS) // shrink

    def peer(self, act: Callable[[Peer], None], name: str = "gpc-peer") -> Peer:
        """Another process that acts when it is told to; traced if made after ``begin``."""
        made = Peer(act, name)
        self._peers.append(made)
        return made

    def end(self) -> None:
        """Everything is done: peers leave, the log goes out."""
        for peer in self._peers:
            peer.end()
        for op in self.operations:
            row = dict(vars(op))
            for injection in row.pop("injections"):
                say(json.dumps({"injection": {"operation": op.number, **injection}}))
            say(json.dumps({"operation": row}))


class Board:
    """A few numbers that processes share."""

    SLOTS = 512

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * self.SLOTS)

    def __getitem__(self, at: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * at)[0])

    def __setitem__(self, at: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * at, value)

    def address(self, at: int) -> int:
        """Where a number lies, for calls into C."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + 8 * at


class Peer:
    """A process forked from the scenario's, which acts on command.

    What it has to say, times above all, it writes on its board.
    """

    def __init__(self, act: Callable[[Peer], None], name: str) -> None:
        self.board = Board()
        self._act = act
        self._name = name
        self._commands, self._command = os.pipe()
        self._answer, self._answers = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(parent)
        self.heard()

    def _run(self, parent: int) -> None:
        # Nothing of the parent's may run here, whatever happens.
        try:
            LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.close(self._command)
            set_name(self._name)
            os.write(self._answers, b"r")
            while os.getppid() == parent and os.read(self._commands, 1) == b"g":
                self._act(self)
                os.write(self._answers, b"d")
        finally:
            os._exit(0)

    def tell(self) -> None:
        """Begin to act."""
        os.write(self._command, b"g")

    def told(self) -> None:
        """In the peer: what ``heard`` waits for."""
        os.write(self._answers, b"h")

    def heard(self) -> None:
        """Wait until the peer is there, has said so, or is done."""
        os.read(self._answer, 1)

    def end(self) -> None:
        """Let it go."""
        os.write(self._command, b"q")
        os.waitpid(self.pid, 0)


#: Slots of the board of a peer that runs and then sleeps: how long each, and what came of it.
RUN, SLEEP, BEGUN, SLEPT, DUE, WOKEN, QUEUED = range(7)


def run_and_sleep(board: Board) -> None:
    """In a peer: run for a while, sleep for a while, and note when."""
    with watched() as both:
        burn(board[RUN])
        slept = now()
        time.sleep(board[SLEEP] / 1e9)
    board[BEGUN], board[SLEPT], board[DUE] = both.times[0], slept, slept + board[SLEEP]
    board[QUEUED], board[WOKEN] = both.queued_ns, now()


def injected(op: Operation, peer: Peer, wanted: int) -> None:
    """An operation waited, since ``wanted``, for a peer that ran and slept."""
    board = peer.board
    # Who has asked may lose its CPU to the peer before it waits.
    queued = board[QUEUED] + op.queued_ns
    op.inject((max(wanted, board[BEGUN]), board[SLEPT]), "cpu", peer.pid, queued_ns=queued)
    op.inject((max(wanted, board[SLEPT]), board[DUE]), "sleep", peer.pid, queued_ns=queued)


def say(line: str) -> None:
    """One line of output."""
    if len(line) > _LONGEST_LINE:
        raise ValueError("a line that would not be written as a whole")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
