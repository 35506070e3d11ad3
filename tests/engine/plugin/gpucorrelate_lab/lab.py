# SPDX-License-Identifier: Apache-2.0
"""What faults share: their switches, their log, and a watch that knows what a thread did."""

from __future__ import annotations

import functools
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

_DEFAULT_MS = 20.0
#: A fault is this much shorter or longer than asked for.
_SPREAD = (0.5, 1.5)
_PAUSE_S = (0.05, 0.25)


def queued_ns() -> int:
    """How long the calling thread has been ready without a CPU so far, by the kernel's account."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


class Stopwatch:
    """What a thread did with a stretch of time; made and read on that thread."""

    def __init__(self) -> None:
        # In this order, so that losing the CPU in between counts as ready, never as blocked.
        self._ready_ns = self._ready()
        self.start_ns = time.monotonic_ns()

    @staticmethod
    def _ready() -> int:
        # CPU time stands in schedstat too, but is only brought up to date by the scheduler's tick,
        # so that the thread's clock is read.
        return time.thread_time_ns() + queued_ns()

    def stop(self) -> tuple[int, int, int]:
        """Start, end, and how long the thread was running or ready in between."""
        end_ns = time.monotonic_ns()
        return self.start_ns, end_ns, self._ready() - self._ready_ns


class Lab:
    """The switches, and the log of what was done, of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._flags = folder / "flags"
        self._log = self._open(f"truth-{os.getpid()}.jsonl")
        self._course = self._open(f"course-{os.getpid()}.jsonl")
        self._random = random.Random(os.getpid())

    def _open(self, name: str) -> int:
        return os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def switched_on(self) -> set[str]:
        """The faults that are wanted now."""
        try:
            return {path.name for path in self._flags.iterdir()}
        except OSError:
            return set()

    def length_ns(self, kind: str) -> int | None:
        """A random length of a fault; ``None`` while it is switched off."""
        try:
            text = (self._flags / kind).read_text().strip()
        except OSError:
            return None
        milliseconds = float(text) if text else _DEFAULT_MS
        return int(milliseconds * self._random.uniform(*_SPREAD) * 1e6)

    def take(self, kind: str) -> str | None:
        """What the switch of a fault that is to happen once says; it is taken away.

        ``None`` where there is no switch.
        """
        try:
            text = (self._flags / kind).read_text()
            (self._flags / kind).unlink()
        except OSError:
            return None
        return text

    def pause_s(self) -> float:
        """A time between two occurrences: irregular, so that nothing locks step with it."""
        return self._random.uniform(*_PAUSE_S)

    def note(self, kind: str, times: tuple[int, int, int], **more: Any) -> None:
        """Write down one occurrence; a single write, so that readers see whole lines."""
        start_ns, end_ns, ready_ns = times
        row = {
            "kind": kind,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "ready_ns": ready_ns,
            **more,
        }
        os.write(self._log, (json.dumps(row) + "\n").encode())

    def tell(self, what: str, **row: Any) -> None:
        """Write down what the engine did by itself."""
        row = {"what": what, "tid": threading.get_native_id(), **row}
        os.write(self._course, (json.dumps(row) + "\n").encode())


@functools.cache
def _lab_of(pid: int) -> Lab:
    # By pid: after a fork the child is another process with a log of its own.
    del pid
    return Lab(Path(os.environ["GPUCORRELATE_LAB_DIR"]))


def lab() -> Lab:
    """The lab of this process."""
    return _lab_of(os.getpid())
