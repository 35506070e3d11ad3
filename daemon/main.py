# SPDX-License-Identifier: Apache-2.0
"""The daemon: one process, one loop."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gpucorrelate
from gpucorrelate.daemon import descriptors, privileges
from gpucorrelate.daemon.control import Control
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.ingest import Ingest
from gpucorrelate.daemon.loop import Loop
from gpucorrelate.daemon.notify import Notifier
from gpucorrelate.daemon.pauses import PauseWatch
from gpucorrelate.daemon.sessions import Sessions
from gpucorrelate.daemon.tracing import Tracing
from gpucorrelate.daemon.values import CapabilityInfo, DaemonStatus
from gpucorrelate.probes.wire.errors import EXIT_OK, DaemonError, NotPermittedError, StoreError

if TYPE_CHECKING:
    from types import FrameType

    from gpucorrelate.daemon.config import DaemonConfig

log = logging.getLogger(__name__)

AUTOGROUP = Path("/proc/self/autogroup")
_IDLE_TICK_S = 0.25
_STOP_NS = 1_000_000_000


class Daemon:
    """Everything wired together.

    Args:
        config: The settings.
    """

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._tally = Tally()
        self._loop = Loop()
        self._tracing = Tracing(config, self._tally)
        self._sessions = Sessions(config, self._loop, self._tally, self._tracing)
        self._ingest = Ingest(config, self._loop, self._tally, self._sessions.find)
        self._control = Control(config, self._loop, self._sessions, self.status)
        self._notifier = Notifier()
        self._pauses = PauseWatch()
        self._privileges = privileges.current()
        self._started_ns = time.monotonic_ns()
        self._stopping = False

    def run(self) -> int:
        """Serve until told to stop; returns the exit code.

        Raises:
            GpucorrelateError: it cannot start.
        """
        with contextlib.ExitStack() as stack:
            self._lock(stack)
            stack.callback(self._loop.close)
            self._go_first()
            self._tracing.start()
            stack.callback(self._tracing.stop)
            self._sessions.meet(self._ingest)
            self._sessions.load()
            self._ingest.open()
            stack.callback(self._ingest.close)
            self._control.open()
            stack.callback(self._control.close)
            if self._config.drop_privileges and os.geteuid() == 0:
                self._privileges = privileges.drop()
            self._watch_signals(stack)
            # What is alive now stays alive: spare the collector from walking it every time.
            gc.collect()
            gc.freeze()
            self._notifier.ready(f"{len(self._sessions.running)} sessions")
            log.info("serving on %s; %s", self._config.control_path, self._privileges.text)
            self._serve()
            self._notifier.stopping()
            self._wind_down()
        return EXIT_OK

    def status(self, uid: int) -> DaemonStatus:
        """The daemon and its counters, as a user may see them."""
        self._tracing.refresh()
        segments, size = self._sessions.stored()
        failing = {s.failing for s in self._sessions.running if s.failing}
        store = replace(
            self._tally.store,
            segments=segments,
            stored_bytes=size,
            failing="; ".join(sorted(failing)),
        )
        warnings = [
            f"{s.id}: {text}"
            for s in self._sessions.running
            if uid in (0, s.uid)
            for text in s.warnings()
        ]
        return DaemonStatus(
            version=gpucorrelate.__version__,
            pid=os.getpid(),
            uid=os.geteuid(),
            uptime_s=(time.monotonic_ns() - self._started_ns) / 1e9,
            state_dir=str(self._config.state_dir),
            capabilities=tuple(
                CapabilityInfo(source, state.name.lower(), reason)
                for source, state, reason in self._tracing.capabilities()
            ),
            privileges=self._privileges.text,
            kernel=self._tally.kernel,
            ingest=self._tally.ingest,
            store=store,
            sessions=tuple(self._sessions.infos(uid)),
            warnings=tuple(warnings),
            pauses=self._pauses.count,
            longest_pause=self._pauses.longest.text if self._pauses.longest else "",
        )

    def _serve(self) -> None:
        tick_s = self._config.tick_ms / 1000
        due = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            if now >= due:
                self._tick()
                busy = bool(self._sessions.running)
                due = time.monotonic() + (tick_s if busy else _IDLE_TICK_S)
            self._loop.run_once(max(0.0, due - time.monotonic()))

    def _tick(self) -> None:
        self._pauses.turn()
        self._ingest.tick()
        self._sessions.tick()
        self._control.tick()
        self._notifier.alive()

    def _wind_down(self) -> None:
        """Let agents send what they have, then close every recording."""
        self._sessions.ask_to_stop()
        begun = time.monotonic_ns()
        while self._sessions.running and time.monotonic_ns() - begun < _STOP_NS:
            self._tick()
            if self._sessions.quiet(begun):
                break
            self._loop.run_once(self._config.tick_ms / 1000)
        self._sessions.close_all("the daemon was stopped")

    def _watch_signals(self, stack: contextlib.ExitStack) -> None:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, read)
        stack.callback(os.close, write)
        old = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, old)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
        stack.callback(
            signal.signal, signal.SIGPIPE, signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        )
        self._loop.add(read, lambda _: _discard(read))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _go_first(self) -> None:
        descriptors.allow_many()
        try:
            os.setpriority(os.PRIO_PROCESS, 0, self._config.nice)
            if os.getsid(0) == os.getpid():
                # Where the kernel groups sessions (sched_autogroup), priorities count within
                # the session only; the session's own is set here. Not if others share it.
                AUTOGROUP.write_text(str(self._config.nice), encoding="ascii")
        except FileNotFoundError:
            return
        except OSError as exc:
            log.info("priority cannot be raised, a busy machine may cost events: %s", exc)

    def _lock(self, stack: contextlib.ExitStack) -> None:
        """Make sure that no second daemon uses the same directories."""
        for directory in (self._config.runtime_dir, self._config.state_dir):
            fd = _lock_directory(directory)
            stack.callback(os.close, fd)


def _discard(fd: int) -> None:
    os.read(fd, 512)


def _lock_directory(directory: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(directory / "daemon.lock", flags, 0o640)
    except PermissionError as exc:
        raise NotPermittedError(
            f"cannot write to {directory}",
            hint="the daemon runs as root: sudo gpucorrelate daemon",
        ) from exc
    except OSError as exc:
        raise StoreError(f"cannot use {directory}: {exc.strerror or exc}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        other = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise DaemonError(
            f"another daemon (process {other or '?'}) uses {directory}",
            hint="stop it first, or use it: gpucorrelate status",
        ) from exc
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def run(config: DaemonConfig) -> int:
    """Run the daemon in the foreground until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    Raises:
        GpucorrelateError: it cannot start: no permission, another daemon, a directory or socket
            that cannot be used, or, where they are demanded, no kernel probes.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    return Daemon(config).run()
