# SPDX-License-Identifier: Apache-2.0
"""Waits made on purpose, each in a process of its own that says what it did.

``python -m tests.kernel.scenarios NAME [ARG...]`` prints ``ready``, begins when a line comes on
standard input, prints what it did as one JSON object and stays until its input ends. Only the
standard library: numpy's threads would wait too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NAME = 15
_SYS_FUTEX = 202
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
#: How long made waits last: long beside a context switch, short beside the suite.
WAIT_S = 0.02

Truth = dict[str, Any]


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def set_name(name: str) -> None:
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def sleeping(tid: int) -> bool:
    """Whether a thread of any process has left the CPU to wait."""
    stat = Path(f"/proc/{tid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def until_sleeping(tid: int) -> None:
    for _ in range(20_000):
        if sleeping(tid):
            return
        time.sleep(0.0002)
    raise TimeoutError(f"thread {tid} never slept")


def _wait_and_wake(wait: Callable[[], object], wake: Callable[[], object], delay: float) -> Truth:
    """A thread waits, a second one ends its wait; who and when."""
    truth: Truth = {"tgid": os.getpid(), "waker_tgid": os.getpid()}
    entered = threading.Event()

    def waiter() -> None:
        set_name("gpc-waiter")
        truth["tid"] = threading.get_native_id()
        entered.set()
        truth["start"] = now()
        wait()
        truth["end"] = now()

    def waker() -> None:
        set_name("gpc-waker")
        truth["waker"] = threading.get_native_id()
        entered.wait()
        until_sleeping(truth["tid"])
        time.sleep(delay)
        truth["wake"] = now()
        wake()

    threads = [threading.Thread(target=part) for part in (waiter, waker)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return truth


def lock() -> Truth:
    held = threading.Lock()
    held.acquire()
    return _wait_and_wake(held.acquire, held.release, WAIT_S)


def pthread_mutex() -> Truth:
    mutex = ctypes.create_string_buffer(64)
    _LIBC.pthread_mutex_init(mutex, None)
    _LIBC.pthread_mutex_lock(mutex)
    truth = _wait_and_wake(
        lambda: _LIBC.pthread_mutex_lock(mutex), lambda: _LIBC.pthread_mutex_unlock(mutex), WAIT_S
    )
    truth["addr"] = ctypes.addressof(mutex)
    return truth


def condition() -> Truth:
    ready = threading.Condition()

    def wait() -> None:
        with ready:
            ready.wait()

    def wake() -> None:
        with ready:
            ready.notify()

    return _wait_and_wake(wait, wake, WAIT_S)


def _peer(code: str, fd: int) -> subprocess.Popen[str]:
    """Another process that runs ``code`` with descriptor ``fd``, once told to."""
    text = (
        "import ctypes, os, sys, time\n"
        "ctypes.CDLL(None).prctl(15, b'gpc-peer', 0, 0, 0)\n"
        f"fd = {fd}\nprint('up', flush=True)\nsys.stdin.readline()\n{code}"
    )
    peer = subprocess.Popen(
        [sys.executable, "-S", "-c", text],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    peer.stdout.readline()
    return peer


def _woken_by_peer(fd: int, wait: Callable[[], object], code: str) -> Truth:
    """Wait in the main thread for what another process does with ``fd``."""
    peer = _peer(f"time.sleep({WAIT_S})\n{code}", fd)
    assert peer.stdin is not None
    peer.stdin.write("\n")
    peer.stdin.flush()
    truth: Truth = {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": now()}
    wait()
    truth |= {"end": now(), "waker": peer.pid, "waker_tgid": peer.pid}
    peer.communicate()
    return truth


def epoll() -> Truth:
    ours, theirs = socket.socketpair()
    poller = select.epoll()
    poller.register(ours.fileno(), select.EPOLLIN)
    truth = _woken_by_peer(theirs.fileno(), poller.poll, "os.write(fd, b'x')")
    return truth | {"fd": poller.fileno()}


def poll() -> Truth:
    reader, writer = os.pipe()
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    return _woken_by_peer(writer, poller.poll, "os.write(fd, b'x')")


def select_() -> Truth:
    reader, writer = os.pipe()
    return _woken_by_peer(writer, lambda: select.select([reader], [], []), "os.write(fd, b'x')")


def pipe_reader() -> Truth:
    reader, writer = os.pipe()
    return _woken_by_peer(writer, lambda: os.read(reader, 1), "os.write(fd, b'x')") | {
        "fd": reader
    }


def pipe_writer() -> Truth:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    code = "while len(os.read(fd, 65536)) == 65536: pass"
    return _woken_by_peer(reader, lambda: os.write(writer, b"y" * 4096), code) | {"fd": writer}


def socket_reader() -> Truth:
    ours, theirs = socket.socketpair()
    return _woken_by_peer(theirs.fileno(), lambda: ours.recv(1), "os.write(fd, b'x')") | {
        "fd": ours.fileno()
    }


def eventfd_reader() -> Truth:
    fd = os.eventfd(0)
    return _woken_by_peer(fd, lambda: os.eventfd_read(fd), "os.eventfd_write(fd, 1)") | {"fd": fd}


def shared_futex() -> Truth:
    """Two processes and one word of shared memory."""
    fd = os.memfd_create("gpc-futex")
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    word = ctypes.c_uint32.from_buffer(memory)
    code = (
        "import mmap\nm = mmap.mmap(fd, mmap.PAGESIZE)\nw = ctypes.c_uint32.from_buffer(m)\n"
        "w.value = 1\n"
        f"ctypes.CDLL(None).syscall({_SYS_FUTEX}, ctypes.byref(w), {_FUTEX_WAKE}, 1, 0, 0, 0)"
    )

    def wait() -> None:
        while word.value == 0:
            _LIBC.syscall(_SYS_FUTEX, ctypes.byref(word), _FUTEX_WAIT, 0, 0, 0, 0)

    return _woken_by_peer(fd, wait, code) | {"addr": ctypes.addressof(word)}


def nanosleep(cpu: str) -> Truth:
    os.sched_setaffinity(0, {int(cpu)})
    truth: Truth = {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": now()}
    time.sleep(WAIT_S)
    return truth | {"end": now()}


def _cold_file(size: int) -> tuple[int, os.stat_result]:
    """A file of random bytes none of which is in memory; on a disk, not in tmpfs."""
    fd, path = tempfile.mkstemp(prefix="gpc-cold-", dir="/var/tmp")
    try:
        for _ in range(size >> 20):
            os.write(fd, os.urandom(1 << 20))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        Path(path).unlink()
    return fd, os.fstat(fd)


def major_fault() -> Truth:
    fd, stat = _cold_file(16 << 20)
    memory = mmap.mmap(fd, 16 << 20, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_RANDOM)
    view = memoryview(memory)
    faults = []
    for offset in range(2 << 20, 14 << 20, 2 << 20):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        start = now()
        _ = view[offset]
        end = now()
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        faults.append({"start": start, "end": end, "offset": offset, "slept": slept})
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines()
            if f" {stat.st_ino} " in line]  # fmt: skip
    return {
        "tid": threading.get_native_id(),
        "tgid": os.getpid(),
        "inode": stat.st_ino,
        "major": os.major(stat.st_dev),
        "minor": os.minor(stat.st_dev),
        "base": int(maps[0].partition("-")[0], 16),
        "faults": faults,
    }


def minor_fault() -> Truth:
    memory = mmap.mmap(-1, 1 << 20)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = now()
    memory[5 * mmap.PAGESIZE] = 1
    return {
        "tid": threading.get_native_id(),
        "tgid": os.getpid(),
        "addr": base + 5 * mmap.PAGESIZE,
        "start": start,
        "end": now(),
    }


def file_reader() -> Truth:
    fd, _ = _cold_file(8 << 20)
    os.lseek(fd, 0, os.SEEK_SET)
    truth: Truth = {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": now()}
    os.read(fd, 8 << 20)
    return truth | {"end": now(), "fd": fd}


def hog(cpu: str) -> Truth:
    """Share a CPU with a process that only burns: time-boxed, under half of the time."""
    os.sched_setaffinity(0, {int(cpu)})
    with contextlib.suppress(PermissionError):
        os.nice(-19)  # both: whoever else wants the CPU gets little of it
    code = (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'gpc-hog', 0, 0, 0)\n"
        "print('up', flush=True)\nend = time.monotonic() + 0.4\n"
        "while time.monotonic() < end:\n    pass\n"
    )
    burner = subprocess.Popen(
        ["timeout", "5", sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert burner.stdout is not None
    burner.stdout.readline()
    children = Path(f"/proc/{burner.pid}/task/{burner.pid}/children").read_text().split()
    truth: Truth = {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": now()}
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        pass
    truth |= {"end": now(), "hog": int(children[0])}
    burner.wait()
    return truth


_EARLY_PEER = """
import os, mmap, signal
os.sched_setaffinity(0, {cpu})
m = mmap.mmap(fd, mmap.PAGESIZE)
turn = 1
while m[1] == 0:
    while m[0] != turn and m[1] == 0:
        pass
    for _ in range(turn % 40):
        pass
    os.write({writer}, b"x")
    turn = turn % 200 + 1
"""


def early_wake(rounds: str) -> Truth:
    """Announce each read right before it; a peer on another CPU writes into that moment.

    Its delay sweeps the microseconds in which the reader has decided to sleep and has not yet
    left its CPU.
    """
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    fd = os.memfd_create("gpc-turn")
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    os.set_inheritable(fd, True)
    code = f"fd = {fd}\n" + _EARLY_PEER.format(cpu={cpus[-1]}, writer=writer)
    peer = subprocess.Popen(
        ["timeout", "10", sys.executable, "-S", "-c", code], pass_fds=[fd, writer]
    )
    truth: Truth = {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": now()}
    turn = 1
    for _ in range(int(rounds)):
        memory[0] = turn
        os.read(reader, 1)
        turn = turn % 200 + 1
    truth["end"] = now()
    memory[1] = 1
    children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
    peer.wait()
    return truth | {"waker": int(children[0])}


def sleeps(count: str, length_us: str, cpu: str = "") -> Truth:
    """A known number of waits, on one CPU if so wished."""
    if cpu:
        os.sched_setaffinity(0, {int(cpu)})
    span = int(length_us) / 1e6
    for _ in range(int(count)):
        time.sleep(span)
    return {"tid": threading.get_native_id(), "tgid": os.getpid()}


def yields(count: str) -> Truth:
    """One run of sched_yield, ended by another syscall."""
    os.getppid()
    start = now()
    for _ in range(int(count)):
        os.sched_yield()
    end = now()
    os.getppid()
    return {"tid": threading.get_native_id(), "tgid": os.getpid(), "start": start, "end": end}


def births() -> Truth:
    """A thread, a fork that waits, an exec, a rename; and their ends."""
    truth: Truth = {"tgid": os.getpid()}

    def body() -> None:
        truth["thread"] = threading.get_native_id()
        set_name("gpc-thread")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        time.sleep(WAIT_S)
        os._exit(0)
    os.waitpid(child, 0)
    program = subprocess.Popen(["sleep", str(WAIT_S)])
    program.wait()
    return truth | {"child": child, "exec": program.pid}


def grandchild() -> Truth:
    """A child that stays, for who wants to see it followed."""
    child = os.fork()
    if child == 0:
        set_name("gpc-grandchild")
        signal.pause()
        os._exit(0)
    truth: Truth = {"tgid": os.getpid(), "child": child}
    say(json.dumps(truth))
    sys.stdin.readline()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {}


_NAMES: dict[str, Callable[..., Truth]] = {
    value.__name__: value
    for value in (
        lock, pthread_mutex, condition, epoll, poll, select_, pipe_reader, pipe_writer,
        socket_reader, eventfd_reader, shared_futex, nanosleep, major_fault, minor_fault,
        file_reader, hog, early_wake, sleeps, yields, births, grandchild,
    )
}  # fmt: skip


def main() -> None:
    name, *arguments = sys.argv[1:]
    set_name("gpc-scenario")
    say("ready")
    sys.stdin.readline()
    say(json.dumps(_NAMES[name](*arguments)))
    sys.stdin.read()


if __name__ == "__main__":
    main()
