# SPDX-License-Identifier: Apache-2.0
"""Following a session while it runs: a live line, and the three ways in which that ends."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from threading import Event
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.names import clip, safe
from gpucorrelate.probes.wire.errors import EXIT_NOT_FOUND, ControlError, DaemonUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpucorrelate.daemon.client import Client
    from gpucorrelate.daemon.values import Progress

#: How long the daemon stays attached after the time is over, should nobody detach.
GRACE_S = 5.0
ATTACHED = "attached"
_POLL_S = 0.5
# Where nobody watches the line change, in a log, once in this time is enough.
_LOG_S = 10.0


@contextlib.contextmanager
def stoppable() -> Iterator[Event]:
    """Turns the first SIGINT or SIGTERM into an event; the second interrupts as usual.

    Both must end in a detach: a command that dies attached would leave the engine traced.
    """
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class LiveLine:
    """One line on standard error that changes in place; in a log a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._logged = time.monotonic() - _LOG_S
        self._before: Progress | None = None

    def show(self, now: Progress) -> None:
        """Show the session's numbers, with rates since they were last shown."""
        text = self._text(now)
        if self._live:
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{clip(text, room)}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._logged >= _LOG_S:
            self._logged = time.monotonic()
            print(safe(text), file=sys.stderr, flush=True)
        self._before = now

    def _text(self, now: Progress) -> str:
        running = now.requests_received - now.requests_finished
        text = (
            f"requests {now.requests_received:,} ({max(running, 0):,} running)  "
            f"steps {now.steps:,}  tokens {now.tokens:,}{self._rate('tokens', now)}  "
            f"waits {now.waits:,}{self._rate('waits', now)}  lost {now.lost:,}  "
            f"{now.size_bytes / 1e6:.1f} MB"
        )
        return f"{text}  ! {now.warnings[0]}" if now.warnings else text

    def _rate(self, name: str, now: Progress) -> str:
        before = self._before
        if before is None or now.t_ns <= before.t_ns:
            return ""
        rate = (getattr(now, name) - getattr(before, name)) * 1e9 / (now.t_ns - before.t_ns)
        return f" ({max(rate, 0):,.0f}/s)"

    def close(self) -> None:
        """Leave the line as it is and go to the next."""
        if self._live:
            print(file=sys.stderr)


def follow(client: Client, session: str, duration_s: float | None, stop: Event) -> str:
    """Show a session's numbers until it is enough.

    Returns:
        Why it ended, in words: the time is over, the user stopped it, the engine is gone.
    """
    line = LiveLine()
    deadline = None if duration_s is None else time.monotonic() + duration_s
    try:
        while not stop.is_set():
            now = client.progress(session)
            line.show(now)
            if now.state != ATTACHED or not now.processes:
                return "the engine is gone"
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                return "the time is over"
            stop.wait(left)
        return "stopped"
    finally:
        line.close()


def limit_s(duration_s: float | None) -> float | None:
    """When the daemon ends a session by itself: a little after the caller should have done so."""
    return None if duration_s is None else duration_s + GRACE_S


@contextlib.contextmanager
def watched(pid: int) -> Iterator[None]:
    """While attached, an unreachable daemon is one that went away, not one to be started.

    Raises:
        DaemonUnreachableError: it went away, and what becomes of the session.
    """
    try:
        yield
    except DaemonUnreachableError as exc:
        if isinstance(exc.__cause__, TimeoutError):  # it is there, only busy or stopped
            raise
        raise DaemonUnreachableError(
            f"the daemon went away while attached to {pid}; the session goes on when it is back: "
            "gpucorrelate status"
        ) from exc


def leave(client: Client, session: str) -> None:
    """Detach; a session that has ended meanwhile, with its engine, is as good.

    Raises:
        DaemonError: the daemon cannot be asked, or refuses.
    """
    try:
        client.detach(session)
    except ControlError as exc:
        if exc.exit_code != EXIT_NOT_FOUND:
            raise
