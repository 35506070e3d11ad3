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
from gpucorrelate.daemon import descriptors, overhead, privileges, told
from gpucorrelate.daemon.behind import Behind
from gpucorrelate.daemon.control import Control
from gpucorrelate.daemon.effort import Part
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.ingest import Ingest
from gpucorrelate.daemon.journal import Journal
from gpucorrelate.daemon.loop import Loop
from gpucorrelate.daemon.metrics import Metrics, demand_package
from gpucorrelate.daemon.notify import Notifier
from gpucorrelate.daemon.pauses import PauseWatch
from gpucorrelate.daemon.reload import reload
from gpucorrelate.daemon.sessions import Sessions
from gpucorrelate.daemon.tracing import Tracing
from gpucorrelate.daemon.values import CapabilityInfo, DaemonStatus
from gpucorrelate.daemon.writer import WRITER
from gpucorrelate.probes.wire.errors import (
    EXIT_OK,
    DaemonError,
    GpucorrelateError,
    NotPermittedError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gpucorrelate.daemon.config import DaemonConfig

log = logging.getLogger(__name__)

AUTOGROUP = Path("/proc/self/autogroup")
_IDLE_TICK_S = 0.25
#: While sessions record and nobody waits for a turn, turns are so much rarer than ticks. The
#: kernel's rings ask for one when they fill, and sockets are read when something comes.
_CALM_TICKS = 2.5
#: The same while next to nothing happens; the host's numbers are read in time all the same.
_QUIET_TICKS = 10
_STOP_NS = 1_000_000_000


class Daemon:
    """Everything wired together.

    Args:
        config: The settings.
        again: Reads the settings again; None: they cannot change.
    """

    def __init__(
        self, config: DaemonConfig, again: Callable[[], DaemonConfig] | None = None
    ) -> None:
        self._config = config
        self._again = again
        self._settings_note = ""
        self._journal = Journal(config.log_level)
        self._tally = Tally()
        self._loop = Loop()
        self._meter = self._loop.meter
        self._tracing = Tracing(config, self._tally, self._meter)
        self._sessions = Sessions(config, self._loop, self._tally, self._tracing)
        agents, callers = self._loop.of(Part.AGENTS), self._loop.of(Part.CALLERS)
        self._ingest = Ingest(config, agents, self._tally, self._sessions.find)
        self._control = Control(config, callers, self._sessions, self.status)
        self._notifier = Notifier()
        self._pauses = PauseWatch()
        self._behind = Behind()
        self._metrics = Metrics(config.metrics, self.status, config.control_path)
        self._privileges = privileges.current()
        self._started_ns = time.monotonic_ns()
        self._stopping = self._woken = self._reloading = False

    def run(self) -> int:
        """Serve until told to stop; returns the exit code.

        Raises:
            GpucorrelateError: it cannot start.
        """
        demand_package(self._config.metrics)
        with contextlib.ExitStack() as stack:
            self._lock(stack)
            stack.callback(self._loop.close)
            self._go_first()
            self._tracing.start()
            stack.callback(self._tracing.stop)
            self._tracing.watch(self._loop, self._wake)
            stack.callback(self._pauses.close)
            self._sessions.meet(self._ingest)
            self._sessions.load()
            self._ingest.open()
            stack.callback(self._ingest.close)
            self._control.open()
            stack.callback(self._control.close)
            if self._config.drop_privileges and os.geteuid() == 0:
                WRITER.rest()
                self._privileges = privileges.drop()
            self._watch_signals(stack)
            # After the privileges are gone: its thread has none of them.
            self._metrics.open()
            stack.callback(self._metrics.close)
            # What is alive now stays alive: spare the collector from walking it every time.
            gc.collect()
            gc.freeze()
            self._notifier.ready(self._in_a_line())
            log.info("serving on %s; %s", self._config.control_path, self._privileges.text)
            self._serve()
            self._notifier.stopping()
            self._wind_down()
            self._journal.tick(last=True)
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
        if self._settings_note:
            warnings.append(f"settings: {self._settings_note}")
        if self._metrics.fault:
            warnings.append(f"metrics: {self._metrics.fault}")
        held = overhead.read()
        kernel, ingest = self._tally.kernel, self._tally.ingest
        sources = self._sessions.sources(uid)
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
            kernel=kernel,
            ingest=ingest,
            store=store,
            sessions=tuple(self._sessions.infos(uid)),
            sources=sources,
            polling=self._sessions.polling(),
            warnings=tuple(warnings),
            callers_refused=self._control.refused,
            callers_cut_off=self._control.cut_off,
            pauses=self._pauses.count,
            longest_pause=self._pauses.longest.text if self._pauses.longest else "",
            effort=self._meter.effort(),
            overhead=held,
            hops=told.hops(kernel, ingest, store),
            limits=told.fills(
                self._config, held, self._sessions.running,
                agents=ingest.clients, callers=self._control.callers, stored_bytes=size,
            ),
            behind=self._behind.texts(time.monotonic_ns(), kernel, ingest, store, sources),
        )  # fmt: skip

    def _serve(self) -> None:
        ticked = float("-inf")
        while not self._stopping:
            if self._reloading:
                self._reloading = False
                self._reload()
            left_s = ticked + self._rest_s() - time.monotonic()
            if left_s > 0:
                self._loop.run_once(left_s)
            else:
                self._tick()
                ticked = time.monotonic()

    def _rest_s(self) -> float:
        """How long to wait from one turn to the next, if nothing happens before."""
        tick_s = self._config.tick_ms / 1000
        if self._woken or self._sessions.hurried:
            return tick_s
        if not self._sessions.running:
            return _IDLE_TICK_S
        if self._sessions.idle:
            return max(tick_s, min(tick_s * _QUIET_TICKS, self._config.poll_ms / 1000 or 1.0))
        return tick_s * _CALM_TICKS

    def _wake(self) -> None:
        """The kernel's rings fill, or there is a new process: go round as soon as may be."""
        self._woken = True

    def _tick(self) -> None:
        self._woken = False
        self._meter.turns += 1
        self._pauses.turn()
        with self._meter.part(Part.AGENTS):
            self._ingest.tick()
        self._sessions.tick()
        with self._meter.part(Part.CALLERS):
            self._control.tick()
            self._metrics.tick()
        self._behind.note(
            time.monotonic_ns(), self._tally.kernel, self._tally.ingest, self._tally.store,
            self._pauses,
        )  # fmt: skip
        self._journal.tick()
        if self._notifier.wants_status():
            self._notifier.status(self._in_a_line())
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

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A terminal that is closed says SIGHUP too, and then nobody is left to ask for an end.
        if number == signal.SIGHUP and not _has_terminal():
            self._reloading = True
        else:
            self._stopping = True

    def _reload(self) -> None:
        """Take over new settings as far as that can be; bad ones change nothing."""
        self._notifier.reloading()
        try:
            if self._again is None:
                raise DaemonError("they do not come from a file")
            found = reload(self._config, self._again())
            demand_package(found.config.metrics)
        except GpucorrelateError as exc:
            self._settings_note = f"not reloaded, the old ones stay: {exc.message}"
            log.error("settings %s", self._settings_note)  # noqa: TRY400 - the user's mistake
        else:
            self._config = found.config
            self._sessions.reconfigure(found.config)
            self._ingest.reconfigure(found.config)
            self._control.reconfigure(found.config)
            self._metrics.reconfigure(found.config.metrics)
            self._journal.set_level(found.config.log_level)
            needs = ", ".join(found.left)
            self._settings_note = f"changed, but need a restart: {needs}" if needs else ""
            log.warning("settings reloaded; %s", found.text)
        self._notifier.ready(self._in_a_line())

    def _in_a_line(self) -> str:
        """How things are, for ``systemctl status``."""
        running = self._sessions.running
        kernel = self._tally.kernel
        lost = sum(session.lost for session in running)
        failing = next((s.failing for s in running if s.failing), "")
        parts = [
            f"{len(running)} session{'' if len(running) == 1 else 's'}",
            f"kernel probes {kernel.state}",
            f"{self._tally.ingest.clients} agents",
            f"{lost} events lost" if lost else "nothing lost",
        ]
        parts += [f"writing fails: {failing}"] if failing else []
        parts += [f"metrics: {self._metrics.fault}"] if self._metrics.fault else []
        parts += list(self._behind.texts(
            time.monotonic_ns(), kernel, self._tally.ingest, self._tally.store
        ))  # fmt: skip
        parts += [f"settings {self._settings_note}"] if self._settings_note else []
        return ", ".join(parts)

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


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


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


def run(config: DaemonConfig, again: Callable[[], DaemonConfig] | None = None) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT; returns the exit code.

    Args:
        config: The settings.
        again: Reads them again on SIGHUP; what it raises leaves the old ones in place.

    Raises:
        GpucorrelateError: it cannot start: no permission, another daemon, a directory or socket
            that cannot be used, or, where they are demanded, no kernel probes.
    """
    return Daemon(config, again).run()
