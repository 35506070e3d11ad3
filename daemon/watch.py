# SPDX-License-Identifier: Apache-2.0
"""The host around sessions: limits, pressure, CPU, memory and devices, polled while they run.

Every number is recorded with the moment it was read and the moment since when it may have been
so; what did not change is not recorded again. A poller that fails is a missing source, with the
reason in the recording, and is tried again later.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.daemon.slow import Change, Round, SlowLooks, Wanted
from gpucorrelate.probes.host.cgroup import CgroupPoller
from gpucorrelate.probes.host.processes import MemoryPoller, ProcessPoller
from gpucorrelate.probes.host.psi import PsiPoller
from gpucorrelate.probes.host.reading import Sample
from gpucorrelate.probes.host.threads import ThreadPoller
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.notes import Notes
    from gpucorrelate.daemon.session import Session
    from gpucorrelate.probes.host.reading import Metric, Missing

log = logging.getLogger(__name__)

#: How names of these sources begin in capabilities.
SOURCE = "host"
_COUNTER, _METRIC, _CHANGE = (BY_NAME[name] for name in ("counter", "metric", "change"))
_MS = 1_000_000
#: A poller that failed is tried again after so long.
_AGAIN_NS = 60_000 * _MS
#: Sources of which a session says that they are missing, and why; more are only counted.
_MOST_MISSING = 64
_PPM = 1_000_000


class Poller(Protocol):
    """One source of numbers."""

    def __call__(self, pids: Collection[int], *, everything: bool) -> Round:
        """Look; ``everything`` also tells what has not changed."""


def _threads() -> tuple[Poller, Callable[[], None]]:
    poller = ThreadPoller()

    def poll(pids: Collection[int], *, everything: bool) -> Round:
        found = poller.poll(pids, everything=everything)
        blocked = tuple(
            Change(found.t_ns, found.since_ns, f"tid:{look.tid}", "blocked in", "", look.wchan)
            for look in found.looks
            if look.waits_for_page
        )
        return Round(found.sample, blocked)

    return poll, poller.close


def _cgroups() -> tuple[Poller, Callable[[], None]]:
    poller = CgroupPoller()

    def poll(pids: Collection[int], *, everything: bool) -> Round:
        found = poller.poll(pids, everything=everything)
        moves = []
        for move in found.moves:
            what = f"cgroup of {','.join(move.controllers)}" if move.controllers else "cgroup"
            subject = f"pid:{move.pid}"
            moves.append(Change(move.t_ns, move.since_ns, subject, what, move.before, move.after))
        return Round(found.sample, tuple(moves))

    return poll, poller.close


def _processes() -> tuple[Poller, Callable[[], None]]:
    poller = ProcessPoller()

    def poll(pids: Collection[int], *, everything: bool) -> Round:
        return Round(poller.poll(pids, everything=everything))

    return poll, poller.close


def _machine() -> tuple[Poller, Callable[[], None]]:
    pressure, memory = PsiPoller(), MemoryPoller()

    def poll(pids: Collection[int], *, everything: bool) -> Round:
        del pids  # the same for all
        found = [one.poll(everything=everything) for one in (pressure, memory)]
        return Round(
            Sample(
                tuple(reading for one in found for reading in one.readings),
                tuple(missing for one in found for missing in one.missing),
            )
        )

    def close() -> None:
        pressure.close()
        memory.close()

    return poll, close


#: By the name that capabilities give them. Each session has its own: what did not change since a
#: session was told is not the same for all.
_SOURCES: dict[str, Callable[[], tuple[Poller, Callable[[], None]]]] = {
    "cgroups": _cgroups,
    "machine": _machine,
    "processes": _processes,
    "threads": _threads,
}


@dataclass
class _Source:
    """One poller of one session."""

    name: str
    poll: Poller
    close: Callable[[], None]
    due_ns: int = 0
    since_ns: int = 0  # the round before began
    cost_ns: int = 0  # CPU time of a round, smoothed
    everything: bool = True
    told: bool = False


@dataclass
class _Watch:
    """All pollers of one session."""

    sources: list[_Source]
    segment: int
    metrics: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


class HostWatch:
    """Polls for all sessions, within a share of one CPU.

    Args:
        config: The daemon's settings.
    """

    def __init__(self, config: DaemonConfig) -> None:
        self._poll_ns = config.poll_ms * _MS
        self._share_ppm = config.poll_share_ppm
        self._watches: dict[str, _Watch] = {}
        self._slow = SlowLooks()

    def tick(self, sessions: Sequence[Session], now_ns: int) -> None:
        """Look at what is due."""
        if not self._poll_ns:
            return
        running = {session.id for session in sessions}
        for gone in self._watches.keys() - running:
            self._end(self._watches.pop(gone))
        for session in sessions:
            watch = self._watches.get(session.id)
            if watch is None:
                sources = [_Source(name, *make()) for name, make in _SOURCES.items()]
                watch = self._watches[session.id] = _Watch(sources, session.segment_number)
            if session.segment_number != watch.segment:
                # A new file of the recording: it must be readable without those before it.
                watch.segment = session.segment_number
                for source in watch.sources:
                    source.everything = True
            for source in watch.sources:
                if now_ns >= source.due_ns:
                    self._look(session, watch, source, now_ns)
        self._look_slowly({session.id: session for session in sessions})

    def _look_slowly(self, sessions: dict[str, Session]) -> None:
        """Say what is wanted of looks that may block, and record what they brought."""
        self._slow.want(
            {
                session.id: Wanted(session.segment_number, tuple(session.processes.living()))
                for session in sessions.values()
            }
        )
        for name, source, found in self._slow.take():
            session, watch = sessions.get(name), self._watches.get(name)
            if session is None or watch is None:
                continue
            if isinstance(found, Round):
                self._write(session.notes, watch, found, found.since_ns or 0)
            else:
                log.error("%s of session %s: %s", source, name, found)
                reason = f"failed: {type(found).__name__}: {found}"
                session.notes.capability(f"{SOURCE}.{source}", CapabilityState.DEGRADED, reason)

    def close(self) -> None:
        """Let go of all files."""
        for watch in self._watches.values():
            self._end(watch)
        self._watches = {}
        self._slow.close()

    @staticmethod
    def _end(watch: _Watch) -> None:
        for source in watch.sources:
            source.close()

    def _look(self, session: Session, watch: _Watch, source: _Source, now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        pids = session.processes.living()
        name = f"{SOURCE}.{source.name}"
        try:
            found = source.poll(pids, everything=source.everything)
        except Exception as exc:  # a poller's fault must not end the recording of waits
            log.exception("%s of session %s", name, session.id)
            source.close()
            source.due_ns = now_ns + _AGAIN_NS
            source.everything = True
            source.told = False
            reason = f"failed: {type(exc).__name__}: {exc}"
            session.notes.capability(name, CapabilityState.DEGRADED, reason)
            return
        if not source.told:
            source.told = True
            session.notes.capability(name, CapabilityState.ON, "")
        self._write(session.notes, watch, found, source.since_ns)
        if not source.everything:  # what costs more, and is rare
            cost_ns = time.thread_time_ns() - began_ns
            source.cost_ns += (cost_ns - source.cost_ns) // (4 if source.cost_ns else 1)
        source.since_ns, source.everything = now_ns, False
        source.due_ns = now_ns + max(self._poll_ns, self._least_ns(source))

    def _least_ns(self, source: _Source) -> int:
        """The least time between two looks that keeps all of them within their share.

        What is cheap is looked at as often as wanted; the others divide what that leaves.
        """
        costs = [one.cost_ns for watch in self._watches.values() for one in watch.sources]
        share = self._poll_ns * self._share_ppm // _PPM  # CPU time there is in one interval
        costs.sort()
        for at, cost in enumerate(costs):
            fair = share // (len(costs) - at)
            if cost > fair:
                rare = source.cost_ns > fair
                return source.cost_ns * self._poll_ns // max(1, fair) if rare else 0
            share -= cost
        return 0

    @staticmethod
    def _write(notes: Notes, watch: _Watch, found: Round, since_ns: int) -> None:
        readings = found.sample.readings
        notes.write(_METRIC, _metrics(watch.metrics, {r.metric.name: r.metric for r in readings}))
        notes.write(
            _COUNTER,
            [(r.t_ns, since_ns, r.metric.name, r.subject, r.value) for r in readings],
        )
        notes.write(
            _CHANGE,
            [(c.t_ns, c.since_ns, c.subject, c.what, c.before, c.after) for c in found.changes],
        )
        _tell_missing(notes, watch.missing, found.sample.missing)


def _metrics(told: set[str], metrics: dict[str, Metric]) -> list[tuple[int | str | None, ...]]:
    new = [one for name, one in metrics.items() if name not in told]
    told.update(one.name for one in new)
    return [(one.name, one.unit, int(one.nature), one.meaning) for one in new]


def _tell_missing(notes: Notes, told: set[str], missing: Iterable[Missing]) -> None:
    """What cannot be read, once, with the first subject it was missing of."""
    for one in missing:
        if one.what in told or len(told) >= _MOST_MISSING:
            continue
        told.add(one.what)
        notes.capability(
            f"{SOURCE}.{one.what}", CapabilityState.OFF, f"{one.subject}: {one.reason}"
        )
