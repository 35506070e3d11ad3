# SPDX-License-Identifier: Apache-2.0
"""Processes that others stop, or that the operation has to wait for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios.kit import (
    LIBC,
    Peer,
    Stage,
    burn_cpu,
    checked,
    now,
    sleep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_NEED_NS = 3_000_000


def _stopped(stage: Stage, stop: Callable[[int], object], go_on: Callable[[int], object]) -> None:
    """Operations that a peer stops in the midst of their work, and lets go on after a sleep."""
    target = os.getpid()

    def act(peer: Peer) -> None:
        sleep(peer.board[0])
        peer.board[2] = now()
        stop(target)
        rest = sleep(peer.board[1])
        peer.board[3], peer.board[4] = rest.times[1], rest.queued_ns
        go_on(target)

    stage.begin()
    peer = stage.peer(act, "gpc-stopper")
    for control in stage.rounds():
        peer.board[0], peer.board[1] = 1_000_000, stage.delay()
        with stage.operation(control=control) as op:
            if not control:
                peer.tell()
            burn_cpu(_NEED_NS)
        if not control:
            peer.heard()
            times = peer.board[2], peer.board[3]
            # Who is in line for a CPU when the stop comes is not stopped before it has one.
            op.inject(times, "sleep", peer.pid, queued_ns=peer.board[4] + op.queued_ns)


def sigstop(stage: Stage) -> None:
    """SIGSTOP, and SIGCONT after a sleep: the path is with the one who stopped it."""
    _stopped(
        stage, lambda pid: os.kill(pid, signal.SIGSTOP), lambda pid: os.kill(pid, signal.SIGCONT)
    )


def ptrace(stage: Stage) -> None:
    """A debugger interrupts the thread, sleeps and detaches."""
    LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    LIBC.ptrace.restype = ctypes.c_long

    def stop(pid: int) -> None:
        checked(LIBC.ptrace(_PTRACE_SEIZE, pid, None, None))
        checked(LIBC.ptrace(_PTRACE_INTERRUPT, pid, None, None))
        os.waitpid(pid, _WALL)

    def go_on(pid: int) -> None:
        checked(LIBC.ptrace(_PTRACE_DETACH, pid, None, None))

    _stopped(stage, stop, go_on)


#: Writes when it began and when it went to sleep, and how long it had queued for a CPU until then.
_PROGRAM = """
import os, sys, time
def now(): return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
def queued(): return int(open("/proc/self/schedstat").read().split()[1])
first, begun = queued(), now()
while now() - begun < int(sys.argv[2]): pass
second, slept = queued(), now()
time.sleep(int(sys.argv[3]) / 1e9)
os.write(int(sys.argv[1]), f"{begun} {slept} {first} {second}".encode())
"""


def fork_exec(stage: Stage) -> None:
    """A program is started and waited for: it loads, then runs, then sleeps.

    Loading is a mixture of code and page faults, and either may be said of it.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # noqa: FBT003 - its only form
    stage.begin()
    for control in stage.rounds():
        run, rest = stage.delay(2), stage.delay()
        with stage.operation(control=control) as op:
            stage.work()
            if not control:
                command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
                command += [str(writer), str(run), str(rest)]
                started = now()
                pid = os.posix_spawn(sys.executable, command, os.environ)
                os.waitpid(pid, 0)
            stage.work()
        if not control:
            begun, slept, first, second = map(int, os.read(reader, 200).split())
            op.inject((started, begun), ["cpu", "page-fault"], pid, queued_ns=first)
            op.inject((begun, slept), "cpu", pid, queued_ns=second - first)
            op.inject((slept, slept + rest), "sleep", pid)
