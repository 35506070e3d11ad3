# SPDX-License-Identifier: Apache-2.0
"""All sessions: attaching, following processes, detaching, resuming, keeping the limits."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon import tree
from gpucorrelate.daemon.archive import Archive
from gpucorrelate.daemon.config import MAX_SEGMENTS
from gpucorrelate.daemon.effort import Part
from gpucorrelate.daemon.follow import Follower
from gpucorrelate.daemon.saved import CLOSING, DETACHED, SavedSession
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.daemon.session import Session, load_session
from gpucorrelate.daemon.streams import KERNEL_STREAM
from gpucorrelate.daemon.tracing import frames_of_open_waits
from gpucorrelate.daemon.values import AttachAnswer, Progress, SessionInfo, SourceInfo
from gpucorrelate.daemon.watch import HostWatch
from gpucorrelate.daemon.writer import WRITER
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import (
    NotFoundError,
    NotPermittedError,
    StoreError,
    TargetError,
)
from gpucorrelate.probes.wire.gpu import GpuPlan
from gpucorrelate.probes.wire.schema import SessionEvent

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import PollingCounters, Tally
    from gpucorrelate.daemon.ingest import Ingest
    from gpucorrelate.daemon.loop import Loop
    from gpucorrelate.daemon.tracing import Tracing
    from gpucorrelate.probes.host.procfs import Process

log = logging.getLogger(__name__)

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_SCAN_NS = 1_000_000_000
#: How often the names of all threads are read where the kernel probes tell of them as well.
_LOOK_NS = 5_000_000_000
_TRIM_NS = 2_000_000_000
#: A disk that has not answered for so long is given no new recording.
_SLOW_NS = 1_000_000_000
#: How long the end of all sessions waits for the disk, and how often it asks.
_DISK_S, _DISK_AGAIN_S = 10.0, 0.05
#: How long a session that ends waits for what its agents still send, and what silence means.
_TAIL_NS = 1_000_000_000
_QUIET_NS = 150_000_000
#: Rows that may come in a turn of which it is said that nothing happens.
_FEW_ROWS = 64
_DAY_NS = 86_400_000_000_000

NO_AGENT = (
    "no engine agent in process {pid}: only OS waits are recorded; "
    "is gpucorrelate installed in the engine's environment?"
)


class Sessions:
    """All sessions of the daemon.

    Args:
        config: The daemon's settings.
        loop: The event loop.
        tally: Where things are counted.
        tracing: The kernel probes.
    """

    def __init__(self, config: DaemonConfig, loop: Loop, tally: Tally, tracing: Tracing) -> None:
        self._config = config
        self._meter = loop.meter
        self._tally = tally
        self._tracing = tracing
        self._base = config.state_dir / "sessions"
        self._active: dict[str, Session] = {}
        self.archive = Archive(self._base, config, tally)
        self._closing: dict[str, tuple[int, str]] = {}
        self._unsettled: dict[str, Session] = {}
        self._scan_ns = self._trim_ns = self._look_ns = 0
        self._rows = 0
        self._few_rows = False
        self._watch = HostWatch(config)
        self._follower = Follower(
            loop.of(Part.PROCESSES), tracing, lambda: self.running, self._all_gone
        )
        self._ingest: Ingest | None = None

    @property
    def running(self) -> list[Session]:
        """Sessions that record."""
        return list(self._active.values())

    @property
    def hurried(self) -> bool:
        """Whether somebody waits for what the next turns bring."""
        return bool(self._closing or self._unsettled)

    @property
    def idle(self) -> bool:
        """Whether no request is in flight, the last turn brought hardly a row, nothing hurries."""
        return (
            self._few_rows
            and not self._watch.hurried
            and not any(s.counts.requests_in_flight for s in self.running)
        )

    def meet(self, ingest: Ingest) -> None:
        """From now on agents are told what sessions want of them."""
        self._ingest = self._follower.ingest = ingest

    def reconfigure(self, config: DaemonConfig) -> None:
        """From now on keep other limits; what is open or loaded stays as it is."""
        self._config = config
        self.archive.reconfigure(config)

    def find(self, process: Process) -> Session | None:
        """The session of a process; a child of one of its processes is taken in."""
        return self._follower.find(process)

    # Beginning.

    def load(self) -> None:
        """Find what earlier runs left; take up what was running.

        Raises:
            StoreError: the state directory cannot be used.
        """
        os.close(open_directory(self._config.state_dir, create=True))
        fd = open_directory(self._base, create=True)
        # The service's group may use the control socket, which gives each user what is theirs;
        # past the socket it must not read the recordings of all.
        os.fchmod(fd, 0o700)
        os.close(fd)
        for place in sorted(self._base.iterdir()):
            if place.is_symlink() or not place.is_dir() or not _ID.fullmatch(place.name):
                continue
            try:
                saved = load_session(place)
            except StoreError as exc:
                log.warning("session %s cannot be taken up: %s", place.name, exc)
                saved = SavedSession(place.name, state=DETACHED, reason=f"lost: {exc}")
            if saved.state == DETACHED or not self._config.resume:
                self.archive.add(replace(saved, session=place.name, state=DETACHED), measure=True)
            else:
                self._resume(place, replace(saved, session=place.name))

    def attach(
        self,
        pid: int,
        uid: int,
        for_s: float | None = None,
        gpu: GpuPlan | None = None,
    ) -> AttachAnswer:
        """Begin to record the engine that a process belongs to.

        Args:
            pid: A process of it.
            uid: Who asks.
            for_s: Seconds after which a new session ends; by default it goes on.
            gpu: What a new session records of the GPU; by default windows.

        Raises:
            TargetError: the process cannot be traced.
            StoreError: the recording cannot be written.
        """
        if WRITER.waits_ns > _SLOW_NS:
            raise StoreError(
                f"the disk of {self._base} has not answered for {WRITER.waits_ns / 1e9:.0f} s",
                hint="see what else writes there, and try again",
            )
        process = tree.target(pid, uid)
        known = self._follower.session_of(process.pid)
        if known is not None:
            self._check(known.uid, uid, known.id)
            return AttachAnswer(known.info(), already=True, warnings=self._advice(known))
        self._check_room(uid)
        root = tree.topmost(process, uid, self._has_agent)
        members = [
            p for p in tree.with_descendants(root, uid) if self._follower.session_of(p.pid) is None
        ]
        now, wall = time.monotonic_ns(), time.time()
        saved = SavedSession(
            session=self._new_id(wall, root.pid),
            uid=uid,
            boot_id=procfs.boot_id(),
            root_pid=root.pid,
            command=procfs.command_line(root.argv) or root.stat.comm,
            started_ns=now,
            started_unix_s=wall,
            until_ns=now + int(for_s * 1e9) if for_s is not None else 0,
            gpu=gpu or GpuPlan(),
        )
        session = Session(self._base / saved.session, self._config, self._tally, saved)
        try:
            session.begin()
        except StoreError:
            session.discard()
            raise
        self._active[session.id] = session
        session.notes.event(SessionEvent.ATTACHED, root.pid, saved.command, now)
        self._tracing.describe(session)
        for member in members:
            self._follower.add(session, member, now)
        session.flush()
        session.save()
        return AttachAnswer(session.info(), warnings=self._advice(session))

    # The turn of the loop.

    def tick(self) -> None:
        """Drain the kernel, follow processes, write, keep the limits."""
        now = time.monotonic_ns()
        with self._meter.part(Part.PROCESSES):
            self._follower.drain(now)
            if now - self._scan_ns > _SCAN_NS:
                self._scan_ns = now
                self._scan(now)
            for session in self.running:
                session.look(now)
        with self._meter.part(Part.HOST):
            self._watch.tick([s for s in self.running if s.id not in self._closing], now)
        with self._meter.part(Part.STORING):
            self._write(now)

    def _scan(self, now: int) -> None:
        self._tracing.update(self.running)
        # The kernel tells of names as they change; what a full ring lost is looked for.
        look = not self._tracing.on or now - self._look_ns > _LOOK_NS
        if look:
            self._look_ns = now
        for session in self.running:
            self._follower.scan(session, now)
            if look:
                session.processes.look_later()

    def _write(self, now: int) -> None:
        if any(session.segment_ends for session in self.running):
            # A file of a recording tells all losses of its time.
            self._tracing.take_losses(self.running)
        for session in self.running:
            session.tick(now)
            if 0 < session.until_ns <= now:
                self.detach(session.id, "the time it was attached for is over")
            if session.id in self._closing:
                self._close_if_quiet(session, now)
        for session in list(self._unsettled.values()):
            self._settle(session, now)
        rows = sum(session.counts.rows for session in self.running)
        self._few_rows = rows - self._rows <= _FEW_ROWS
        self._rows = rows
        # Deleting waits for the disk.
        if now - self._trim_ns > _TRIM_NS and not WRITER.waits_ns:
            self._trim_ns = now
            self._trim(now)

    def ask_to_stop(self) -> None:
        """Tell all agents to send no more, as the daemon goes down."""
        for session in self.running:
            if self._ingest is not None:
                self._ingest.stop(session)

    def quiet(self, since_ns: int) -> bool:
        """Whether no agent sent anything for a while, counted from ``since_ns``."""
        last = since_ns
        for session in self.running:
            if self._ingest is not None:
                last = max(last, self._ingest.quiet_since_ns(session))
        return time.monotonic_ns() - last > _QUIET_NS

    def close_all(self, reason: str) -> None:
        """End every session's recording for now; they are taken up again at the next start."""
        self._watch.close()
        for session in self.running:
            resumable = session.id not in self._closing
            self._finish(
                session, self._closing.get(session.id, (0, reason))[1], resumable=resumable
            )
        end = time.monotonic() + _DISK_S
        while any(one.writing for one in self._unsettled.values()) and time.monotonic() < end:
            time.sleep(_DISK_AGAIN_S)
            for session in list(self._unsettled.values()):
                self._settle(session, time.monotonic_ns())

    # What callers ask.

    def resolve(self, name: str, uid: int) -> str:
        """The id that a caller means: an id, the unique beginning of one, or the latest.

        Raises:
            NotFoundError: there is none, or more than one.
            NotPermittedError: it belongs to another user.
        """
        mine = [item.session for item in self.infos(uid)]
        if not name:
            if not mine:
                raise NotFoundError("there is no session")
            return mine[0]
        everything = [*self._active, *self.archive.names()]
        found = [one for one in everything if one == name] or [
            one for one in everything if one.startswith(name)
        ]
        allowed = [one for one in found if one in mine]
        if len(allowed) == 1:
            return allowed[0]
        if allowed:
            raise NotFoundError(f"{len(allowed)} sessions begin with {name!r}")
        if found:
            self._check(self._uid_of(found[0]), uid, found[0])
        raise NotFoundError(f"no session {name!r}", hint="gpucorrelate status lists them")

    def of_pid(self, pid: int, uid: int) -> str:
        """The running session of a process.

        Raises:
            NotFoundError: it is in none.
            NotPermittedError: it belongs to another user.
        """
        session = self._follower.session_of(pid)
        if session is None:
            raise NotFoundError(f"process {pid} is in no session")
        self._check(session.uid, uid, session.id)
        return session.id

    def active(self, name: str) -> Session | None:
        """The running session of that id."""
        return self._active.get(name)

    def detach(self, name: str, reason: str) -> None:
        """Begin to end a session: its agents are told, and what they still send is awaited."""
        session = self._active.get(name)
        if session is None or name in self._closing:
            return
        session.state = CLOSING
        self._closing[name] = (time.monotonic_ns() + _TAIL_NS, reason)
        if self._ingest is not None:
            self._ingest.stop(session)

    def info(self, name: str) -> SessionInfo:
        """A session, running or finished."""
        session = self._active.get(name)
        return session.info() if session is not None else self.archive.info(name)

    def infos(self, uid: int) -> list[SessionInfo]:
        """Sessions that the user may see: running ones first, then the latest."""
        running = [session.info() for session in self._active.values()]
        done = [self.archive.info(name) for name in self.archive.names()]
        running.sort(key=lambda item: -item.started_unix_s)
        done.sort(key=lambda item: -item.started_unix_s)
        return [item for item in running + done if uid in (0, item.uid)]

    def progress(self, name: str) -> Progress:
        """Live numbers of a session; of a finished one only its state and size."""
        session = self._active.get(name)
        if session is not None:
            return session.progress()
        return self.archive.progress(name)

    def open(self, name: str) -> list[tuple[int, int]]:
        """Descriptors of a session's recording and the bytes to read of each, in order.

        Of a running session everything up to now, waits that have not ended and losses that
        are not recorded yet included; those are in a file of their own, so that the recording
        does not hold them twice.

        Raises:
            StoreError: it cannot be read.
        """
        session = self._active.get(name)
        if session is None:
            opened = self.archive.open(name)
            return _with_tail(opened, b"".join(s.tail() for s in self._unsettled_of(name)))
        now = time.monotonic_ns()
        self._follower.drain(now)
        self._tracing.take_losses(self.running)
        rows = []
        for kind, count, columns in self._tracing.open_waits(
            session, alone=len(self._active) == 1
        ):
            if kind.name == "wait_sum":
                # A window of sums was closed for this: it will not be seen again.
                session.take_kernel(kind, count, columns, now)
            else:
                rows.append((kind, count, columns))
        session.flush()
        opened = session.open_segments()
        return _with_tail(opened, frames_of_open_waits(rows, KERNEL_STREAM) + session.tail())

    def sources(self, uid: int) -> tuple[SourceInfo, ...]:
        """How the host's sources stand for the running sessions that a user may see."""
        mine = [session for session in self.running if uid in (0, session.uid)]
        return tuple(one for session in mine for one in self._watch.sources(session.id))

    def polling(self) -> PollingCounters:
        """What reading the host does and costs."""
        return self._watch.counters()

    def stored(self) -> tuple[int, int]:
        """Segments and bytes on disk, all sessions."""
        segments, size = self.archive.stored()
        for session in self._active.values():
            segments += session.segment_count
            size += session.size_bytes
        return segments, size

    # Inside.

    def _resume(self, place: Path, saved: SavedSession) -> None:
        now = time.monotonic_ns()
        try:
            session = Session(place, self._config, self._tally, saved)
            last_ns = session.read_back()
        except (OSError, StoreError) as exc:
            log.warning("session %s cannot be taken up: %s", saved.session, exc)
            reason = f"could not be taken up: {exc}"
            self.archive.add(replace(saved, state=DETACHED, reason=reason), measure=True)
            return
        self._active[session.id] = session
        same_boot = saved.boot_id == procfs.boot_id()
        for item in saved.targets:
            session.processes.remember(item)
        if same_boot:
            session.notes.loss("daemon.down", "everything but what agents kept", 1, last_ns, now)
        session.notes.event(
            SessionEvent.RESUMED, saved.root_pid, "the daemon was started again", now
        )
        self._tracing.describe(session)
        for pid, target in list(session.processes.targets.items()):
            if not target.alive:
                continue
            if same_boot and target.same(procfs.read_stat(pid)):
                self._follower.follow(session, target)
            else:
                session.gone(pid, now)
        if not same_boot:
            self._finish(session, "the machine was started again")
        elif not session.processes.living():
            self._finish(session, "all processes ended while the daemon was down")
        else:
            self._follower.scan(session, now)
            session.flush()
            session.save()

    def _all_gone(self, session: Session) -> None:
        self.detach(session.id, "all its processes ended")

    def _close_if_quiet(self, session: Session, now: int) -> None:
        deadline, reason = self._closing[session.id]
        quiet = self._ingest.quiet_since_ns(session) if self._ingest is not None else 0
        started = deadline - _TAIL_NS
        if now >= deadline or now - max(quiet, started) >= _QUIET_NS:
            self._finish(session, reason)

    def _finish(self, session: Session, reason: str, *, resumable: bool = False) -> None:
        now = time.monotonic_ns()
        self._follower.drain(now)
        self._tracing.take_losses(self.running)
        for kind, count, columns in self._tracing.open_waits(
            session, alone=len(self._active) == 1
        ):
            session.take_kernel(kind, count, columns, now)
        if self._ingest is not None:
            self._ingest.release(session)
        self._follower.release(session)
        self._active.pop(session.id, None)
        self._closing.pop(session.id, None)
        self.archive.add(session.close(reason, resumable=resumable))
        if not session.settled:
            self._unsettled[session.id] = session

    def _settle(self, session: Session, now: int) -> None:
        """Try again to write the end of a session for which there was no room."""
        if session.id not in self.archive:
            session.abandon()
        else:
            self.archive.add(session.settle(now))
        if session.settled:
            del self._unsettled[session.id]

    def _unsettled_of(self, name: str) -> list[Session]:
        session = self._unsettled.get(name)
        return [session] if session is not None else []

    def _trim(self, now: int) -> None:
        config = self._config
        before = now - config.max_age_s * 1_000_000_000
        for session in self.running:
            session.trim(config.session_max_bytes, before, MAX_SEGMENTS)
        total = self.archive.trim(sum(session.size_bytes for session in self.running))
        for session in self.running:
            over = total - config.total_max_bytes
            if over > 0:
                before_bytes = session.size_bytes
                session.trim(max(config.segment_bytes, before_bytes - over), before, MAX_SEGMENTS)
                total -= before_bytes - session.size_bytes

    def _advice(self, session: Session) -> tuple[str, ...]:
        """What will not be recorded, for whoever attaches."""
        found = []
        if not session.agents:
            found.append(NO_AGENT.format(pid=session.root_pid))
        if not self._tracing.on:
            found += [reason for _, _, reason in self._tracing.capabilities()]
        return tuple(found)

    def _has_agent(self, pid: int) -> bool:
        return self._ingest is not None and self._ingest.has_agent(pid)

    def _new_id(self, wall: float, pid: int) -> str:
        base = f"{time.strftime('%Y%m%dT%H%M%S', time.localtime(wall))}-{pid}"
        name, number = base, 1
        while name in self._active or name in self.archive or (self._base / name).exists():
            number += 1
            name = f"{base}-{number}"
        return name

    def _uid_of(self, name: str) -> int:
        session = self._active.get(name)
        return session.uid if session is not None else self.archive.owner(name)

    def _check_room(self, uid: int) -> None:
        limits = self._config.limits
        mine = sum(1 for session in self.running if session.uid == uid)
        if len(self._active) >= limits.sessions or (uid != 0 and mine >= limits.sessions_per_uid):
            raise TargetError(
                f"there are {len(self._active)} sessions already, {mine} of them yours",
                hint="end one: gpucorrelate detach",
            )

    def _check(self, owner: int, uid: int, name: str) -> None:
        if uid not in (0, owner):
            raise NotPermittedError(
                f"session {name} belongs to another user", hint="only root may use it"
            )


def _with_tail(opened: list[tuple[int, int]], tail: bytes) -> list[tuple[int, int]]:
    """The files, and one more in memory for what is in none of them."""
    if tail:
        fd = os.memfd_create("gpucorrelate-tail", os.MFD_CLOEXEC)
        os.write(fd, tail)
        os.lseek(fd, 0, os.SEEK_SET)
        opened.append((fd, len(tail)))
    return opened
