# SPDX-License-Identifier: Apache-2.0
"""The host around sessions: limits, pressure, CPU, memory and devices, polled while they run.

Every number is recorded with the moment it was read and the moment since when it may have been
so; what did not change is not recorded again. While a request takes longer than requests do, and
when the kernel says that tasks stand still, the cheap sources are looked at more often. A poller
that fails is a missing source, with the reason in the recording, and is tried again later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.health import PollingCounters
from gpucorrelate.daemon.host_sources import SOURCES, WATCHING
from gpucorrelate.daemon.retry import Retry
from gpucorrelate.daemon.share import Demand, paces
from gpucorrelate.daemon.slow import SlowLooks, Wanted, session_tasks, shared_tasks
from gpucorrelate.daemon.spending import Spending, Spent
from gpucorrelate.daemon.standing import Said, Standings
from gpucorrelate.daemon.values import SourceInfo
from gpucorrelate.probes.host.reading import BLOCKED_IN
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.host_sources import Poller
    from gpucorrelate.daemon.notes import Notes
    from gpucorrelate.daemon.session import Session
    from gpucorrelate.daemon.slow import Outcome
    from gpucorrelate.probes.host.reading import Change, Metric, Round

_COUNTER, _METRIC, _CHANGE = (BY_NAME[name] for name in ("counter", "metric", "change"))
_MS = 1_000_000
_S = 1000 * _MS
#: While a request is slow, looks are so many times as frequent, but no more than one in 10 ms.
_FASTER, _FASTEST_NS = 4, 10 * _MS
#: What a trigger says may be late already; and how long looks are more frequent when it fired.
_WATCHING_NS, _URGENT_NS = 100 * _MS, 2 * _S
#: How often it is looked whether what was missing still is, and how looks share the CPU.
_JUDGE_NS, _PLAN_NS = 5 * _S, _S
#: The same where something new was missing.
_DOUBT_NS = _S
#: A look that may block and has not come back after so long, or has not been made, is a fault.
_HANGS_NS = 15 * _S
_ENGINE_OFF = Said(CapabilityState.OFF, "switched off: --no-engine-metrics")
_PPM = 1_000_000


@dataclass
class _Source:
    """One poller of one session."""

    name: str
    poller: Poller
    every_ns: int
    due_ns: int = 0
    looked_ns: int = 0  # the last round that worked began; 0: none did
    judged_ns: int = 0
    cost_ns: int = 0  # CPU time of a round, smoothed
    everything: bool = True
    retry: Retry = field(default_factory=Retry)


@dataclass
class _Watch:
    """All pollers of one session."""

    sources: list[_Source]
    standings: Standings
    segment: int
    began_ns: int
    hurry: bool = False  # a request is slow, or tasks stand still
    urgent_ns: int = 0  # until then, because of the latter
    metrics: set[str] = field(default_factory=set)


class HostWatch:
    """Polls for all sessions, within a share of one CPU.

    Args:
        config: The daemon's settings.
    """

    def __init__(self, config: DaemonConfig) -> None:
        self._poll_ns = config.poll_ms * _MS
        self._fast_ns = max(_FASTEST_NS, self._poll_ns // _FASTER)
        self._share_ppm = config.poll_share_ppm
        self._engine = config.engine_metrics
        self._watches: dict[str, _Watch] = {}
        every_ns = config.engine_every_ms * _MS if config.engine_metrics else 0
        self._slow = SlowLooks(shared_tasks, lambda: session_tasks(engine_every_ns=every_ns))
        self._planned_ns = self._reckoned_ns = 0
        self._costly = False  # a look has just cost more than all may
        self._looks = self._failed = self._skipped = 0
        self._spending = Spending(config.poll_share_ppm)
        self._spent_ns = self._looks_ns = 0  # in the loop; of that, for looks

    def tick(self, sessions: Sequence[Session], now_ns: int) -> None:
        """Look at what is due."""
        if self._poll_ns and (sessions or self._watches):
            began_ns = time.thread_time_ns()
            self._tick(sessions, now_ns)
            self._spent_ns += time.thread_time_ns() - began_ns

    def _tick(self, sessions: Sequence[Session], now_ns: int) -> None:
        running = {session.id: session for session in sessions}
        for gone in self._watches.keys() - running.keys():
            _end(self._watches.pop(gone))
        plan = self._costly or now_ns - self._planned_ns >= _PLAN_NS
        for session in sessions:
            plan |= self._prepare(session, now_ns)
        if now_ns - self._reckoned_ns >= _PLAN_NS:
            self._reckoned_ns = now_ns
            slow = self._slow
            beside_ns = self._spent_ns - self._looks_ns + slow.beside_ns
            self._spending.note(Spent(now_ns, self._spent_ns, slow.spent_ns, beside_ns))
        if plan:
            self._plan(now_ns)
        for session in sessions:
            watch = self._watches[session.id]
            for source in watch.sources:
                if now_ns >= source.due_ns:
                    self._look(session, watch, source, now_ns)
        self._look_slowly(running, now_ns)

    def close(self) -> None:
        """Let go of all files."""
        for watch in self._watches.values():
            _end(watch)
        self._watches = {}
        self._slow.close()

    # What is told.

    def sources(self, session: str) -> tuple[SourceInfo, ...]:
        """How the sources of a session stand, and how often they are looked at."""
        watch = self._watches.get(session)
        if watch is None:
            return ()
        now_ns = time.monotonic_ns()
        paced = {one.name: (one.every_ns, one.looked_ns) for one in watch.sources}
        for task in self._slow.tasks(session):
            paced[task.name] = task.pace_ns, task.ended_ns
        if not self._engine:
            paced["engine"] = 0, 0
        found = []
        for name, (every_ns, looked_ns) in sorted(paced.items()):
            said = watch.standings.of(name)
            found.append(
                SourceInfo(
                    session=session,
                    source=name,
                    state=said.state.name.lower() if said is not None else "unknown",
                    reason=said.reason if said is not None else "not looked at yet",
                    every_ms=every_ns // _MS,
                    age_ms=(now_ns - looked_ns) // _MS if looked_ns else None,
                    missing=watch.standings.lacks(name),
                )
            )
        return tuple(found)

    @property
    def hurried(self) -> bool:
        """Whether a session is looked at more often now."""
        return any(watch.hurry for watch in self._watches.values())

    def counters(self) -> PollingCounters:
        """What polling does and costs."""
        return PollingCounters(
            every_ms=self._poll_ns // _MS,
            limit_ppm=self._share_ppm,
            loop_ppm=self._spending.loop_ppm,
            thread_ppm=self._spending.thread_ppm,
            looks=self._looks,
            failed=self._failed,
            skipped=self._skipped,
            hurried=sum(watch.hurry for watch in self._watches.values()),
        )

    # Inside.

    def _prepare(self, session: Session, now_ns: int) -> bool:
        """Begin, or take note of what a session has become; whether looks get another pace."""
        watch = self._watches.get(session.id)
        new = watch is None
        if watch is None:
            sources = [_Source(name, make(), self._poll_ns) for name, make in SOURCES.items()]
            standings = Standings(session.id, session.notes)
            watch = _Watch(sources, standings, session.segment_number, now_ns)
            self._watches[session.id] = watch
            if not self._engine:
                standings.say("engine", _ENGINE_OFF)
        if session.segment_number != watch.segment:
            # A new file of the recording: it must be readable without those before it.
            watch.segment = session.segment_number
            for source in watch.sources:
                source.everything = True
        hurry = session.counts.flights.slow(now_ns) or now_ns < watch.urgent_ns
        changed, watch.hurry = hurry != watch.hurry, hurry
        return new or changed

    def _plan(self, now_ns: int) -> None:
        """Give every look its pace: what is wanted, as far as all of it is not too much."""
        self._planned_ns, self._costly = now_ns, False
        sources = [(watch, one) for watch in self._watches.values() for one in watch.sources]
        tasks = self._slow.all_tasks()
        demands = [Demand(one.cost_ns, self._pace_ns(one, watch)) for watch, one in sources]
        demands += [
            Demand(one.cost_ns, max(one.wanted_ns, self._poll_ns, one.rest_ns)) for one in tasks
        ]
        granted = paces(demands, self._spending.for_looks_ppm)
        for (_, source), every_ns in zip(sources, granted, strict=False):
            if not source.retry.failing:
                source.due_ns = min(source.due_ns, source.looked_ns + every_ns)
            source.every_ns = every_ns
        for task, every_ns in zip(tasks, granted[len(sources) :], strict=True):
            task.every_ns = every_ns

    def _pace_ns(self, source: _Source, watch: _Watch) -> int:
        """How often it should be looked at, whatever that costs."""
        if source.name == WATCHING:
            return min(self._poll_ns, _WATCHING_NS)
        return self._fast_ns if watch.hurry else self._poll_ns

    def _look(self, session: Session, watch: _Watch, source: _Source, now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        everything = source.everything
        self._looks += 1
        try:
            found = source.poller.poll(session.processes.living(), everything=everything)
        except Exception as exc:  # noqa: BLE001 - must not end the recording of waits
            self._failed += 1
            source.poller.close()
            source.due_ns = source.retry.failed(now_ns)
            source.everything = True
            reason = f"failed: {type(exc).__name__}: {exc}"
            watch.standings.say(source.name, Said(CapabilityState.DEGRADED, reason), exc)
            return
        self._write(session.notes, watch, found, source.looked_ns)
        doubts = watch.standings.doubts(source.name)
        due = now_ns - source.judged_ns >= (_DOUBT_NS if doubts else _JUDGE_NS)
        if everything or due or (found.sample.missing and not doubts):
            source.judged_ns = now_ns
            watch.standings.judge(source.name, source.poller.standing())
        source.retry.worked()
        cost_ns = time.thread_time_ns() - began_ns
        self._looks_ns += cost_ns
        if not everything:  # what costs more, and is rare
            source.cost_ns += (cost_ns - source.cost_ns) // (4 if source.cost_ns else 1)
            self._costly |= source.cost_ns * _PPM > self._share_ppm * source.every_ns
        source.looked_ns, source.everything = now_ns, False
        source.due_ns = now_ns + source.every_ns
        if found.urgent:
            watch.hurry, watch.urgent_ns = True, now_ns + _URGENT_NS
            self._plan(now_ns)

    def _look_slowly(self, sessions: dict[str, Session], now_ns: int) -> None:
        """Say what is wanted of looks that may block, and record what they brought."""
        self._slow.want(
            {
                session.id: Wanted(session.segment_number, tuple(session.processes.living()))
                for session in sessions.values()
            }
        )
        for outcome in self._slow.take():
            session, watch = sessions.get(outcome.session), self._watches.get(outcome.session)
            if session is not None and watch is not None:
                self._take(session, watch, outcome)
        for (name, source), count in self._slow.take_skipped().items():
            self._skipped += count
            if name in sessions:
                what = f"looks at {source}: what others brought was not taken"
                sessions[name].notes.loss("daemon.host", what, count)
        if now_ns == self._planned_ns:
            self._find_hanging(now_ns)

    def _take(self, session: Session, watch: _Watch, outcome: Outcome) -> None:
        self._looks += 1
        self._failed += outcome.fault is not None
        self._write(session.notes, watch, outcome.found, 0)
        if outcome.failing:
            said = Said(CapabilityState.DEGRADED, outcome.failing)
            watch.standings.say(outcome.source, said, outcome.fault)
        else:
            watch.standings.judge(outcome.source, outcome.standing)

    def _find_hanging(self, now_ns: int) -> None:
        """Looks that block do so unseen: nobody else can say that they do."""
        busy = [t for t in self._slow.all_tasks() if 0 < t.began_ns < now_ns - _HANGS_NS]
        for name, watch in self._watches.items() if busy else ():
            for task in self._slow.tasks(name):
                ended_ns = task.ended_ns or watch.began_ns
                if task in busy:
                    why = f"has not come back for {_HANGS_NS // _S} s and more"
                elif busy and now_ns - ended_ns > task.pace_ns + _HANGS_NS:
                    why = f"waits for the one at {busy[0].name}, which does not come back"
                else:
                    continue
                said = Said(CapabilityState.DEGRADED, f"the look {why}")
                watch.standings.say(task.name, said)

    @staticmethod
    def _write(notes: Notes, watch: _Watch, found: Round, since_ns: int) -> None:
        readings = found.sample.readings
        notes.write(_METRIC, _metrics(watch.metrics, {r.metric.name: r.metric for r in readings}))
        notes.write(
            _COUNTER,
            [
                (
                    r.t_ns, since_ns if r.since_ns is None else r.since_ns,
                    r.metric.name, r.subject, r.value,
                )
                for r in readings
            ],
        )  # fmt: skip
        notes.write(
            _CHANGE,
            [
                (c.t_ns, c.since_ns, c.subject, c.what, c.before, c.after)
                for c in _news(notes, found.changes, since_ns)
            ],
        )


def _end(watch: _Watch) -> None:
    for source in watch.sources:
        source.poller.close()


def _metrics(told: set[str], metrics: dict[str, Metric]) -> list[tuple[int | str | None, ...]]:
    new = [one for name, one in metrics.items() if name not in told]
    told.update(one.name for one in new)
    return [(one.name, one.unit, int(one.nature), one.meaning) for one in new]


def _news(notes: Notes, changes: Iterable[Change], since_ns: int) -> Iterable[Change]:
    """Changes, as far as the recording does not have them.

    A poller that begins anew, after a fault or in another run of the daemon, takes for the
    beginning what the recording knows better.
    """
    for one in changes:
        known = notes.latest_change(one.subject, one.what) if one.since_ns == 0 else None
        if known is None or one.what == BLOCKED_IN:
            yield one
        elif known[1] != one.after:
            yield replace(one, before=known[1], since_ns=max(known[0], since_ns))
