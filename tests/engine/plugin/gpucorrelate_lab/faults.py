# SPDX-License-Identifier: Apache-2.0
"""Faults with known times: who did what to the engine, and when, to the nanosecond.

A file ``DIR/flags/<kind>`` switches a fault on while it exists; the number in it, if any,
replaces the default length in milliseconds. Each occurrence is one line of JSON in
``DIR/truth-<pid>.jsonl``: ``kind``, ``pid``, ``tid``, ``start_ns`` and ``end_ns`` on
CLOCK_MONOTONIC, and ``ready_ns``: how much of that time the thread ran, or was ready and had no
CPU. On a machine with fewer CPUs than busy threads that is never nothing.

``lock`` (20 ms)
    Engine core: a thread of its own holds a lock that ``Scheduler.schedule`` takes first. What
    that cost the scheduling thread is a row of its own, ``lock-wait``.
``gil`` (30 ms)
    API server: a thread computes without a pause, so that the loop waits for the interpreter.
``sleep`` (20 ms)
    Engine core: the main thread sleeps before ``Scheduler.schedule``, once in 20 calls.
``raise``
    Engine core: the executor's ``execute_model`` raises, once; the flag is taken away.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

_DEFAULT_MS = {"lock": 20.0, "gil": 30.0, "sleep": 20.0}
_SLEEP_EVERY = 20
#: Taking a free lock is not waiting.
_LOCK_WAIT_NS = 500_000

_lock = threading.Lock()


class Stopwatch:
    """What a thread did with a stretch of time; made and read on that thread."""

    def __init__(self) -> None:
        # In this order, so that losing the CPU in between counts as ready, never as blocked.
        self._ready_ns = self._ready()
        self.start_ns = time.monotonic_ns()

    @staticmethod
    def _ready() -> int:
        # The second number: time spent waiting on a run queue, in ns. The first, CPU time, is
        # only brought up to date by the scheduler's tick, so that the thread's clock is read.
        delay = Path("/proc/thread-self/schedstat").read_text().split()[1]
        return time.thread_time_ns() + int(delay)

    def stop(self) -> tuple[int, int, int]:
        """Start, end, and how long the thread was running or ready in between."""
        end_ns = time.monotonic_ns()
        return self.start_ns, end_ns, self._ready() - self._ready_ns


class Lab:
    """The flags, and the log of what was done, of one process."""

    def __init__(self, folder: Path) -> None:
        self._flags = folder / "flags"
        self._log = folder / f"truth-{os.getpid()}.jsonl"
        self._random = random.Random(os.getpid())
        self._calls = 0

    def length_s(self, kind: str) -> float | None:
        """The wanted length of a fault in seconds; ``None`` while it is switched off."""
        try:
            text = (self._flags / kind).read_text().strip()
        except OSError:
            return None
        return (float(text) if text else _DEFAULT_MS.get(kind, 0.0)) / 1000

    def note(self, kind: str, start_ns: int, end_ns: int, ready_ns: int) -> None:
        """Write down one occurrence; a single append, so that readers see whole lines."""
        row = {
            "kind": kind,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "ready_ns": ready_ns,
        }
        with self._log.open("a") as log:
            log.write(json.dumps(row) + "\n")

    def pause(self) -> None:
        """Wait between two occurrences: irregular, so that nothing locks step with it."""
        time.sleep(self._random.uniform(0.05, 0.25))

    def hold_lock_forever(self) -> None:
        """The lock holder's thread."""
        while True:
            self.pause()
            length_s = self.length_s("lock")
            if length_s is None:
                continue
            with _lock:
                watch = Stopwatch()
                time.sleep(length_s)
                held = watch.stop()
            self.note("lock", *held)

    def hog_interpreter_forever(self) -> None:
        """The interpreter hog's thread."""
        while True:
            self.pause()
            length_s = self.length_s("gil")
            if length_s is None:
                continue
            watch = Stopwatch()
            stop_ns = watch.start_ns + int(length_s * 1e9)
            while time.monotonic_ns() < stop_ns:
                pass
            self.note("gil", *watch.stop())

    def before_schedule(self) -> None:
        """What the engine core's main thread goes through before it schedules."""
        watch = Stopwatch()
        with _lock:
            waited = watch.stop()
        if waited[1] - waited[0] > _LOCK_WAIT_NS:
            self.note("lock-wait", *waited)
        self._calls += 1
        if self._calls % _SLEEP_EVERY:
            return
        length_s = self.length_s("sleep")
        if length_s is not None:
            watch = Stopwatch()
            time.sleep(length_s)
            self.note("sleep", *watch.stop())

    def before_execute(self) -> None:
        """Raise once if asked.

        Raises:
            RuntimeError: the flag was there.
        """
        if self.length_s("raise") is None:
            return
        (self._flags / "raise").unlink()
        now_ns = time.monotonic_ns()
        self.note("raise", now_ns, now_ns, 0)
        raise RuntimeError("gpucorrelate-lab: execute_model raises, as asked")


@functools.cache
def _lab(pid: int) -> Lab:
    # By pid: after a fork the child is another process with a log of its own.
    del pid
    return Lab(Path(os.environ["GPUCORRELATE_LAB_DIR"]))


@functools.cache
def _start_lock_holder(pid: int) -> None:
    thread = threading.Thread(
        target=_lab(pid).hold_lock_forever, name="lab-lock-holder", daemon=True
    )
    thread.start()


def _patch_scheduler() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    original = Scheduler.schedule

    @functools.wraps(original)
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        pid = os.getpid()
        _start_lock_holder(pid)
        _lab(pid).before_schedule()
        return original(self, *args, **kwargs)

    Scheduler.schedule = schedule


def _patch_executor() -> None:
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    original = MultiprocExecutor.execute_model

    @functools.wraps(original)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        _lab(os.getpid()).before_execute()
        return original(self, *args, **kwargs)

    MultiprocExecutor.execute_model = execute_model


def install() -> None:
    """Patch the classes everywhere; in the API server start the hog's thread as well."""
    _patch_scheduler()
    _patch_executor()
    if multiprocessing.parent_process() is None:
        hog = threading.Thread(
            target=_lab(os.getpid()).hog_interpreter_forever, name="lab-gil-hog", daemon=True
        )
        hog.start()
