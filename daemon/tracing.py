# SPDX-License-Identifier: Apache-2.0
"""The kernel probes as the daemon uses them: one tracer, its rows dealt out to sessions."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from gpucorrelate.daemon.columns import column, select
from gpucorrelate.daemon.effort import Meter, Part
from gpucorrelate.daemon.health import KernelCounters
from gpucorrelate.daemon.numeric import np
from gpucorrelate.daemon.streams import LivingTable
from gpucorrelate.probes.wire.errors import GpucorrelateError, KernelSupportError
from gpucorrelate.probes.wire.frame import Batch, encode
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import Tally
    from gpucorrelate.daemon.loop import Loop
    from gpucorrelate.daemon.session import Session
    from gpucorrelate.probes.wire.frame import StringTable
    from gpucorrelate.probes.wire.schema import Kind

log = logging.getLogger(__name__)

SOURCE = "ebpf"
LOST_WITHOUT = "no OS waits, wakers, run queue or page faults are recorded"

_TASK = BY_NAME["task"]

#: How long rows of a process that was let go may still come out of the rings: far longer than
#: the daemon takes from one drain to the next.
_LEFT_NS = 10_000_000_000
#: How often the kernel's counters are read: what a full ring lost is noticed at every drain,
#: the rest (no memory for a thread's state, a program that was running already) is rare.
_COUNTERS_NS = 1_000_000_000


class KernelRows(Protocol):
    """Rows of one kind from the tracer."""

    @property
    def kind(self) -> Kind:
        """Their kind."""

    @property
    def count(self) -> int:
        """How many."""

    @property
    def columns(self) -> tuple[bytes, ...]:
        """Their columns."""


class Tracer(Protocol):
    """What the daemon asks of the kernel probes."""

    @property
    def backend(self) -> str:
        """What loaded them."""

    def add_target(self, tgid: int) -> None:
        """Trace a process and what it forks."""

    def remove_target(self, tgid: int) -> None:
        """Trace it no more."""

    def targets(self) -> frozenset[int]:
        """What is traced."""

    def fileno(self) -> int:
        """Readable when a drain is due before its time."""

    def calm(self) -> None:
        """A drain follows."""

    @property
    def dropping(self) -> bool:
        """Whether a ring was full since losses were asked for."""

    def drain(self, strings: StringTable) -> Sequence[KernelRows]:
        """Rows since the last call."""

    def open_waits(self, now_ns: int, strings: StringTable) -> Sequence[KernelRows]:
        """Waits that have not ended."""

    def losses(self) -> Sequence[Any]:
        """Events lost since the last call."""

    def capabilities(self) -> Sequence[Any]:
        """What works."""

    @property
    def fault_trap_ns(self) -> int:
        """What a page fault costs besides what its record covers."""

    def new_targets(self, *, told: bool = False) -> Sequence[tuple[int, int]]:
        """Processes that targets forked since the last call, with their parents.

        With ``told`` only those that drained rows tell of, at no cost.
        """

    def stats(self) -> Any:  # noqa: ANN401
        """The probes' own counters."""

    def stop(self) -> None:
        """Unload."""


def _load_tracer(config: DaemonConfig) -> Tracer:
    try:
        module = importlib.import_module("gpucorrelate.probes.ebpf.tracer")
    except ImportError as exc:
        raise KernelSupportError(
            f"kernel probes are not installed: {exc}",
            hint="pip install 'gpucorrelate[daemon]'",
        ) from exc
    settings = module.TracerConfig(
        ring_bytes=config.ring_bytes,
        min_wait_ns=config.min_wait_ns,
        faults=config.faults,
        yields=config.yields,
        backend=config.backend,
    )
    tracer: Tracer = module.Tracer.start(settings)
    return tracer


class Tracing:
    """The tracer, present or not.

    Args:
        config: The daemon's settings.
        tally: Where things are counted.
        meter: Where the CPU time it takes is counted.
    """

    def __init__(self, config: DaemonConfig, tally: Tally, meter: Meter | None = None) -> None:
        self._config = config
        self._tally = tally
        self._meter = meter or Meter()
        self._unwatch: Callable[[], None] = lambda: None
        self._counters_ns = 0
        self._tracer: Tracer | None = None
        self._strings = LivingTable()
        self._left: dict[int, int] = {}
        self.off_reason = ""

    @property
    def on(self) -> bool:
        """Whether the kernel probes run."""
        return self._tracer is not None

    def start(self) -> None:
        """Load the probes.

        Raises:
            ProbeError: they cannot run and the settings demand them.
        """
        if not self._config.ebpf:
            self._off("switched off")
            return
        try:
            self._tracer = _load_tracer(self._config)
        except (GpucorrelateError, OSError) as exc:
            if self._config.require_ebpf:
                raise
            hint = getattr(exc, "hint", "")
            self._off(f"{exc}{f' ({hint})' if hint else ''}")
            return
        self._tally.kernel = KernelCounters(state="on", backend=self._tracer.backend)

    def watch(self, loop: Loop, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when a drain is due before its time."""
        tracer = self._tracer
        if tracer is None:
            return
        fd = tracer.fileno()

        def due(_events: int) -> None:
            tracer.calm()
            wake()

        loop.add(fd, due)
        self._unwatch = lambda: loop.remove(fd)

    def stop(self) -> None:
        """Unload the probes."""
        self._unwatch()
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.stop()

    def add(self, session: Session, pid: int) -> None:
        """Trace a process for a session; failing is recorded, not raised."""
        if self._tracer is None:
            return
        self._left.pop(pid, None)
        try:
            self._tracer.add_target(pid)
        except (GpucorrelateError, OSError) as exc:
            session.notes.capability(
                f"{SOURCE}.target", CapabilityState.DEGRADED, f"process {pid}: {exc}"
            )

    def remove(self, pid: int) -> None:
        """Trace a process no more."""
        if self._tracer is None:
            return
        try:
            self._tracer.remove_target(pid)
        except (GpucorrelateError, OSError) as exc:
            log.info("process %d: %s", pid, exc)

    def leave(self, pid: int) -> None:
        """Trace a living process no more: what the rings still hold of it is nobody's."""
        self._left[pid] = time.monotonic_ns() + _LEFT_NS
        self.remove(pid)

    def describe(self, session: Session) -> None:
        """Record in a session what works, and give it the strings that are alive."""
        session.streams.kernel_strings.give(tuple(self._strings.living.items()))
        if self._tracer is None:
            reason = f"{self.off_reason}: {LOST_WITHOUT}"
            session.notes.capability(SOURCE, CapabilityState.OFF, reason)
            return
        # Shorter waits are in sums alone: tables of waits have to say so.
        told = {"min_wait_ns": str(self._config.min_wait_ns)}
        # Storms of small faults are told from work by what they really cost.
        told["fault_trap_ns"] = str(self._tracer.fault_trap_ns)
        session.notes.facts(told, time.monotonic_ns())
        for item in self._tracer.capabilities():
            session.notes.capability(item.source, item.state, item.reason)

    def update(self, sessions: Sequence[Session]) -> None:
        """Record what has come to work, or no longer does, since the sessions were told."""
        if self._tracer is None:
            return
        for item in self._tracer.capabilities():
            for session in sessions:
                session.notes.capability_state(item.source, item.state, item.reason)

    def capabilities(self) -> tuple[tuple[str, CapabilityState, str], ...]:
        """What works, for the status."""
        if self._tracer is None:
            return ((SOURCE, CapabilityState.OFF, f"{self.off_reason}: {LOST_WITHOUT}"),)
        return tuple((c.source, c.state, c.reason) for c in self._tracer.capabilities())

    def drain(self, sessions: Sequence[Session]) -> list[tuple[int, int]]:
        """Deal out what the kernel has; returns new processes with their parents.

        A tracer that breaks is switched off and every session says so.
        """
        if self._tracer is None:
            return []
        now = time.monotonic_ns()
        try:
            with self._meter.part(Part.RINGS):
                rows = self._tracer.drain(self._strings)
                dropping = self._tracer.dropping
            count_now = dropping or now - self._counters_ns > _COUNTERS_NS
            with self._meter.part(Part.STATISTICS if count_now else Part.RINGS):
                born = list(self._tracer.new_targets(told=not count_now))
        except (GpucorrelateError, OSError) as exc:
            self._break(exc, sessions)
            return []
        with self._meter.part(Part.STORING):
            self._pass_strings(sessions)
            if self._left:
                self._left = {pid: until for pid, until in self._left.items() if until > now}
            members = self._members(sessions, born) if rows else []
            for item in rows:
                for session, count, columns in self._deal(item, members):
                    session.take_kernel(item.kind, count, columns, now)
        if rows:
            self._count(sum(item.count for item in rows), 0)
        if count_now:
            self.take_losses(sessions)
        return born

    def take_losses(self, sessions: Sequence[Session]) -> None:
        """Count what was lost up to now.

        ``drain`` does so where a ring was full, and else about once a second; whoever says that
        a recording, or a part of it, is complete asks for it.
        """
        if self._tracer is None:
            return
        with self._meter.part(Part.STATISTICS):
            self._counters_ns = time.monotonic_ns()
            try:
                losses = self._tracer.losses()
            except (GpucorrelateError, OSError) as exc:
                self._break(exc, sessions)
                return
            for loss in losses:
                for session in sessions:
                    session.notes.loss(loss.hop, loss.what, loss.count, loss.since_ns, loss.t_ns)
            if losses:
                self._count(0, sum(loss.count for loss in losses))

    def open_waits(self, session: Session, *, alone: bool) -> list[tuple[Kind, int, Any]]:
        """Kind, count and columns of the session's waits that have not ended."""
        if self._tracer is None:
            return []
        try:
            rows = self._tracer.open_waits(time.monotonic_ns(), self._strings)
        except (GpucorrelateError, OSError) as exc:
            log.warning("open waits: %s", exc)
            return []
        self._pass_strings([session])
        pids = None if alone else np.array(list(session.processes.targets), "<u4")
        found = []
        for item in rows:
            for _, count, columns in self._deal(item, [(session, pids)]):
                found.append((item.kind, count, columns))
        return found

    def _members(
        self, sessions: Sequence[Session], born: Sequence[tuple[int, int]]
    ) -> list[tuple[Session, Any]]:
        """Sessions with the processes whose rows are theirs; None: all that nobody left."""
        if len(sessions) == 1:
            return [(sessions[0], None)]
        members = []
        for session in sessions:
            pids = set(session.processes.targets)
            for pid, parent in born:
                if parent in pids:
                    pids.add(pid)
            members.append((session, np.array(sorted(pids), "<u4")))
        return members

    def _deal(
        self, item: KernelRows, members: Sequence[tuple[Session, Any]]
    ) -> Iterator[tuple[Session, int, tuple[bytes, ...]]]:
        if not item.count:
            return
        if len(members) == 1 and members[0][1] is None and not self._left:
            yield members[0][0], item.count, item.columns
            return
        everybody = [pids for _, pids in members if pids is not None]
        tgids = column(item.kind, item.columns, "tgid", item.count)
        left = np.array(list(self._left), "<u4")
        for session, pids in members:
            if item.kind is _TASK:
                # Names of wakers outside all sessions concern whoever they woke.
                mask = ~np.isin(tgids, np.concatenate([np.array([], "<u4"), *everybody]))
                if pids is not None:
                    mask |= np.isin(tgids, pids)
            elif pids is None:
                mask = ~np.isin(tgids, left)
            else:
                mask = np.isin(tgids, pids)
            count = int(mask.sum())
            if count == item.count:
                yield session, count, item.columns
            elif count:
                yield session, count, select(item.kind, item.columns, mask)

    def _pass_strings(self, sessions: Sequence[Session]) -> None:
        fresh = self._strings.take_fresh()
        if fresh:
            for session in sessions:
                session.streams.kernel_strings.give(fresh)

    def _off(self, reason: str) -> None:
        log.warning("kernel probes are off: %s: %s", reason, LOST_WITHOUT)
        self.off_reason = reason
        self._tally.kernel = KernelCounters(state="off", reason=f"{reason}: {LOST_WITHOUT}")

    def _break(self, exc: Exception, sessions: Sequence[Session]) -> None:
        log.error("kernel probes failed: %s", exc)
        self._unwatch()
        self._tracer = None
        self._off(f"kernel probes failed: {exc}")
        for session in sessions:
            self.describe(session)

    def refresh(self) -> None:
        """Read the probes' own state and counters, for the status."""
        if self._tracer is None:
            return
        worst = [c for c in self._tracer.capabilities() if c.state == CapabilityState.DEGRADED]
        stats = self._tracer.stats()
        fields: dict[str, object] = {}
        if dataclasses.is_dataclass(stats) and not isinstance(stats, type):
            fields = dataclasses.asdict(stats)
        numbers = {name: value for name, value in fields.items() if isinstance(value, int)}
        self._tally.kernel = dataclasses.replace(
            self._tally.kernel,
            state="degraded" if worst else "on",
            reason="; ".join(f"{c.source}: {c.reason}" for c in worst),
            targets=len(self._tracer.targets()),
            detail=tuple(numbers.items()),
        )

    def _count(self, drained: int, lost: int) -> None:
        known = self._tally.kernel
        self._tally.kernel = dataclasses.replace(
            known, drained=known.drained + drained, lost=known.lost + lost
        )


def frames_of_open_waits(rows: Sequence[tuple[Kind, int, Any]], stream: int) -> bytes:
    """Frames outside the stream's order, for a reader of a recording that still goes on."""
    return b"".join(
        encode(Batch(kind.id, count, tuple(columns), stream=stream))
        for kind, count, columns in rows
        if count
    )
