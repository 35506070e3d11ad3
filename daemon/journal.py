# SPDX-License-Identifier: Apache-2.0
"""The daemon's log: one line per event on standard error, with a level, and never a flood.

Where standard error is the journal (``sd-daemon(3)``: ``JOURNAL_STREAM``), lines begin with
``<N>``, by which journald files them under their priority; elsewhere with the level's name.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

#: Priorities of syslog(3).
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
_CRITICAL = 2
#: So many lines of one origin in so long; the rest is counted.
BURST = 20
WINDOW_S = 30.0
_ORIGINS = 1024
_FRAMES = 8
_LONGEST = 2000


class Lines(logging.Formatter):
    """A record as one line, whatever is in it.

    Args:
        journal: Lines begin with a priority instead of the level's name.
    """

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {in_one_line(record.exc_info[1])}"
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_LONGEST])
        if self._journal:
            return f"<{_PRIORITIES.get(record.levelno, _CRITICAL)}>{text}"
        return f"{record.levelname} {text}"


def in_one_line(error: BaseException) -> str:
    """What was raised and where, the innermost call first."""
    calls = list(_calls(error.__traceback__))[::-1]
    more = " < ..." if len(calls) > _FRAMES else ""
    where = " < ".join(calls[:_FRAMES]) + more
    what = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
    return f"{what} [{where}]" if where else what


def _calls(trace: TracebackType | None) -> Iterator[str]:
    for frame in traceback.extract_tb(trace):
        yield f"{frame.name} {Path(frame.filename).name}:{frame.lineno}"


@dataclass
class _Window:
    """What one place in the code has said lately."""

    since_s: float
    said: int
    held: int
    level: int
    name: str


class Quiet(logging.Filter):
    """Lets ``BURST`` records of one origin pass in ``WINDOW_S`` and counts the others.

    An origin is a call of the log, not its text: what strangers cause comes from few places.
    ``overdue`` tells of what was held back.

    Args:
        clock: Seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, int], _Window] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it passes."""
        now = self._clock()
        origin = (record.pathname, record.lineno)
        with self._lock:
            window = self._windows.get(origin)
            if window is None or (now - window.since_s > WINDOW_S and not window.held):
                if len(self._windows) >= _ORIGINS:
                    self._windows.clear()
                window = _Window(now, 0, 0, record.levelno, record.name)
                self._windows[origin] = window
            window.said += 1
            if window.said > BURST:
                window.held += 1
                return False
        return True

    def overdue(self, *, everything: bool = False) -> list[tuple[str, int, int]]:
        """Logger, level and count of what was held back in windows that are over."""
        now = self._clock()
        with self._lock:
            over = [
                origin
                for origin, window in self._windows.items()
                if everything or now - window.since_s > WINDOW_S
            ]
            windows = [self._windows.pop(origin) for origin in over]
        return [(w.name, w.level, w.held) for w in windows if w.held]


class Journal:
    """The process's log.

    Args:
        level: One of ``config.LOG_LEVELS``.
    """

    def __init__(self, level: str) -> None:
        self._quiet = Quiet()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Lines(journal=is_journal()))
        handler.addFilter(self._quiet)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        # The watchdog ends a daemon that hangs by SIGABRT: say where each thread was.
        faulthandler.enable()
        # A log that cannot be written to (a closed terminal, a full disk) must not stop anything.
        logging.raiseExceptions = False

    def set_level(self, level: str) -> None:
        """From now on log this and what is worse."""
        logging.getLogger().setLevel(level.upper())

    def tick(self, *, last: bool = False) -> None:
        """Say how much was held back, once its time is over."""
        for name, level, held in self._quiet.overdue(everything=last):
            logging.getLogger(name).log(level, "%d more messages like the ones before", held)


def is_journal() -> bool:
    """Whether standard error goes to the journal, by ``systemd.exec(5)``."""
    told = os.environ.get("JOURNAL_STREAM", "")
    try:
        stat = os.fstat(2)
    except OSError:
        return False
    return told == f"{stat.st_dev}:{stat.st_ino}"
