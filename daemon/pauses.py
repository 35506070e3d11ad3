# SPDX-License-Identifier: Apache-2.0
"""Whether the loop comes round in time, and where the time went when it did not.

Rings in the kernel and socket buffers hold a moment's events; a daemon that is kept from
running for longer loses some, and whoever reads the losses should find the reason beside them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass

log = logging.getLogger(__name__)

_LONG_S = 0.5


@dataclass(frozen=True)
class Pause:
    """A turn of the loop that took long.

    Attributes:
        length_s: How long.
        running_s: Of that, on a CPU.
        queued_s: Of that, runnable without a CPU; -1: the kernel does not say. The rest it
            was blocked: disk, most likely.
    """

    length_s: float
    running_s: float
    queued_s: float

    @property
    def text(self) -> str:
        """In words."""
        queued = f", {self.queued_s:.2f} s waiting for a CPU" if self.queued_s >= 0 else ""
        return f"{self.length_s:.2f} s: {self.running_s:.2f} s running{queued}, the rest blocked"


class PauseWatch:
    """Measures turns of the loop in the thread that makes it."""

    def __init__(self) -> None:
        self.last: Pause | None = None
        self.longest: Pause | None = None
        self.count = 0
        # Kept open: it is read at every turn.
        self._schedstat = _open_schedstat()
        self._since = time.monotonic()
        self._ran, self._queued = self._times()

    def turn(self) -> None:
        """A turn begins: look how long the last one took."""
        now = time.monotonic()
        length, self._since = now - self._since, now
        ran, queued = self._times()
        ran_before, queued_before = self._ran, self._queued
        self._ran, self._queued = ran, queued
        if length < _LONG_S:
            return
        known = queued >= 0 and queued_before >= 0
        pause = Pause(length, ran - ran_before, queued - queued_before if known else -1.0)
        self.count += 1
        self.last = pause
        if self.longest is None or pause.length_s > self.longest.length_s:
            self.longest = pause
        log.warning("the loop paused for %s", pause.text)

    def close(self) -> None:
        """Measure no more."""
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def _times(self) -> tuple[float, float]:
        """Seconds on a CPU and in the run queue so far."""
        try:
            ran, queued, _ = os.pread(self._schedstat, 128, 0).split()
        except (OSError, ValueError):
            return time.thread_time(), -1.0
        return int(ran) / 1e9, int(queued) / 1e9


def _open_schedstat() -> int:
    """The kernel's account of this thread; -1 where it keeps none."""
    path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
