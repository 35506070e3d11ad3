# SPDX-License-Identifier: Apache-2.0
"""Delays made on purpose, by family; each scenario is a process of its own.

The catalogue names every scenario, what it shows, and whether it may run on anybody's host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios import (
    cpu,
    faults,
    locks,
    processes,
    python,
    timers,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucorrelate.verify.scenarios.kit import Stage


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: Its name in tables and documents.
        cause: The cause that it makes, in a user's words.
        play: Does it.
        quick: Whether it is part of the quick run: it stops nobody, limits nobody, needs little.
        rounds: Operations with delays at most, where they take longer than others.
    """

    name: str
    cause: str
    play: Callable[[Stage], None]
    quick: bool = True
    rounds: int = 0


CATALOGUE: tuple[Scenario, ...] = (
    Scenario("pthread-mutex", "a lock (pthread mutex)", locks.pthread_mutex),
    Scenario("python-lock", "a lock (Python)", locks.python_lock),
    Scenario("condition", "a condition variable", locks.condition),
    Scenario("rwlock", "a read-write lock", locks.rwlock),
    Scenario("semaphore", "a semaphore", locks.semaphore),
    Scenario("convoy", "a convoy of three on a lock", locks.convoy),
    Scenario("mutex-process", "a lock of another process", locks.mutex_of_a_process),
    Scenario("gil-hog", "the interpreter lock", python.gil_hog),
    Scenario("thread-pool", "a busy thread pool", python.thread_pool),
    Scenario("epoll", "a message (epoll)", waits.epoll),
    Scenario("poll", "a message (poll)", waits.poll),
    Scenario("select", "a message (select)", waits.select_),
    Scenario("read", "a message (read)", waits.read),
    Scenario("futex-process", "a futex of another process", waits.futex_of_a_process),
    Scenario("untraced-peer", "a process that is not traced", waits.untraced_peer),
    Scenario("nanosleep", "a sleep", timers.nanosleep),
    Scenario("timerfd", "a timer", timers.timerfd),
    Scenario("major-faults", "page faults from disk", faults.major_faults),
    Scenario("minor-faults", "a storm of minor page faults", faults.minor_faults),
    Scenario("file-read", "a read from disk", faults.file_read),
    Scenario("fsync", "a write to disk (fsync)", faults.fsync),
    Scenario("cpu-hog", "another process on the CPU", cpu.cpu_hog),
    Scenario("priority-inversion", "a lock holder without a CPU", cpu.priority_inversion),
    Scenario("cpu-quota", "a CPU quota", cpu.cpu_quota, quick=False, rounds=20),
    Scenario("yield-spin", "a loop of sched_yield", cpu.yield_spin),
    Scenario(
        "spinning-pool",
        "a spinning pool and a CPU quota",
        cpu.spinning_pool,
        quick=False,
        rounds=20,
    ),
    Scenario("sigstop", "a stopped process (SIGSTOP)", processes.sigstop, quick=False),
    Scenario("ptrace", "a debugger", processes.ptrace, quick=False),
    Scenario("fork-exec", "a program that is started", processes.fork_exec),
)

BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}
