# SPDX-License-Identifier: Apache-2.0
"""Where faults befall the engine: places on its threads' way, and threads that get in it.

A place performs acts on the thread that passes it, and takes a lock there, which a thread of its
own may be holding. A hog computes in Python, so that others wait for the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

from gpucorrelate_lab.acts import ACTS, GAP_NS, Part, now, sleep
from gpucorrelate_lab.lab import Stopwatch, lab

#: Taking a free lock is not waiting.
_LOCK_WAIT_NS = 500_000
#: So often a place looks whether something is switched on.
_LOOK_NS = 20_000_000
#: The hog's looks at another thread, so far apart.
_WATCH_NS = 40_000


class Place:
    """A place that a thread of the engine passes again and again.

    Args:
        name: Begins the kinds of its faults: ``core.schedule`` has ``core.schedule.sleep``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self._due_ns = 0

    def passed(self) -> None:
        """The engine's thread is here."""
        self._through_lock()
        if now() < self._due_ns:
            return
        self._due_ns = now() + _LOOK_NS
        for kind in lab().switched_on():
            place, _, act = kind.rpartition(".")
            if place == self.name and act in ACTS:
                self._act(kind, act)

    def _act(self, kind: str, act: str) -> None:
        length_ns = lab().length_ns(kind)
        if length_ns is None:
            return
        watch = Stopwatch()
        parts, detail = ACTS[act](length_ns)
        times = watch.stop()
        lab().note(kind, times, parts=parts, detail=detail)
        self._due_ns = now() + int(lab().pause_s() * 1e9)

    def _through_lock(self) -> None:
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return
        watch = Stopwatch()
        with self.lock:
            waited = watch.stop()
        if waited[1] - waited[0] > _LOCK_WAIT_NS:
            lab().note(f"{self.name}.lock-wait", waited)


class Holder(threading.Thread):
    """Holds a place's lock, asleep, again and again."""

    def __init__(self, place: Place) -> None:
        super().__init__(name="lab-lock-holder", daemon=True)
        self._place = place

    def run(self) -> None:
        """Forever."""
        kind = f"{self._place.name}.lock"
        while True:
            time.sleep(lab().pause_s())
            length_ns = lab().length_ns(kind)
            if length_ns is None:
                continue
            with self._place.lock:
                watch = Stopwatch()
                parts, _ = sleep(length_ns)
                held = watch.stop()
            lab().note(kind, held, parts=parts)


class _Watched:
    """The state of the process's main thread, looked at without letting go of the interpreter."""

    def __init__(self) -> None:
        self._pread = ctypes.PyDLL(None).pread
        self._pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
        self._fd = os.open(f"/proc/self/task/{os.getpid()}/stat", os.O_RDONLY)
        self._buffer = ctypes.create_string_buffer(512)

    def asleep(self) -> bool:
        """Whether it is blocked."""
        size = self._pread(self._fd, self._buffer, 512, 0)
        return self._buffer.raw[:size].rpartition(b")")[2][1:2] == b"S"


class Hog(threading.Thread):
    """Computes for a while without a pause, again and again.

    Noted are the stretches in which it went on all the time, so that it had the interpreter, and
    found the process's main thread blocked all the time.
    """

    def __init__(self, process: str) -> None:
        super().__init__(name="lab-gil-hog", daemon=True)
        self._kind = f"{process}.gil"

    def run(self) -> None:
        """Forever."""
        watched = _Watched()
        while True:
            time.sleep(lab().pause_s())
            length_ns = lab().length_ns(self._kind)
            if length_ns is None:
                continue
            watch = Stopwatch()
            parts = _blocked(watched, watch.start_ns + length_ns)
            lab().note(self._kind, watch.stop(), parts=parts)


def _blocked(watched: _Watched, stop_ns: int) -> list[Part]:
    """Compute until then; when the main thread was blocked, and this one never interrupted."""
    parts: list[Part] = []
    begun = seen = last = now()
    asleep = False
    while last < stop_ns:
        t = now()
        if t - last >= GAP_NS:
            if asleep:
                parts.append((begun, seen, 0, 0))
            asleep = False
        last = t
        if t - seen < _WATCH_NS and asleep:
            continue
        still = watched.asleep()
        if still and not asleep:
            begun = t
        if asleep and not still:
            parts.append((begun, seen, 0, 0))
        asleep, seen = still, t
    if asleep:
        parts.append((begun, seen, 0, 0))
    return [part for part in parts if part[1] > part[0]]
