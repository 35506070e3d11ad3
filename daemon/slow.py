# SPDX-License-Identifier: Apache-2.0
"""Looks that may block: a GPU's driver, an engine's HTTP server, the page tables of a process.

They are made by a thread of their own, each at its pace, and never hold up the rings of the
kernel probes. What they bring is taken by the daemon's one loop.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.daemon.look_devices import Devices
from gpucorrelate.daemon.look_engine import Engine
from gpucorrelate.daemon.look_gpu import Gpus
from gpucorrelate.daemon.look_nodes import Nodes
from gpucorrelate.daemon.retry import Retry
from gpucorrelate.probes.host.reading import Reading, Round, Sample, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpucorrelate.daemon.look import Found, Look

_MS = 1_000_000
_S = 1000 * _MS
#: Outcomes that nobody took yet. Beyond that no look is made: what is not taken is not news.
_MOST_READY = 256
_MOST_PIDS = 64
#: Numbers of which a session's last values are remembered; the oldest are told again.
_MOST_TOLD = 1 << 16
#: A number that was not read for so long is forgotten where there are too many.
_FORGOTTEN_NS = 120 * _S
#: Looks over which the cost of one is smoothed, roughly: some ask for more than others.
_SMOOTHED = 8
#: The thread sleeps until something is due; who wants something new wakes it.
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.005, 60.0


@dataclass(frozen=True)
class Wanted:
    """What a session wants to know about.

    Attributes:
        generation: Another one: everything is to be told again.
        pids: Its processes.
    """

    generation: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """What a look brought for one session.

    Attributes:
        session: The session.
        source: Name of the look.
        found: What is news to the session.
        standing: How the source stands.
        failing: Why it does not work although it should; empty where it does, or cannot.
        fault: What it failed with, if it raised.
    """

    session: str
    source: str
    found: Round = field(default_factory=Round)
    standing: Standing = field(default_factory=Standing)
    failing: str = ""
    fault: Exception | None = None


@dataclass
class Task:
    """A look with its pace. The loop sets ``every_ns``; the thread everything else.

    Attributes:
        name: What it is called.
        wanted_ns: How often it should be made.
        look: Makes it.
        every_ns: How often it is made, as far as that is not too much.
        cost_ns: CPU time of one, smoothed.
        rest_ns: The last one said that nothing will be there to look at for so long.
        looks: How many were made.
        began_ns: The one being made began; 0: none is.
        ended_ns: The last one ended; 0: there was none.
    """

    name: str
    wanted_ns: int
    look: Look
    every_ns: int = 0
    cost_ns: int = 0
    rest_ns: int = 0
    looks: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    due_ns: int = 0
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        """Begin with the pace that is wanted."""
        self.every_ns = self.every_ns or self.wanted_ns

    @property
    def pace_ns(self) -> int:
        """How long after a look the next one is made."""
        return max(self.every_ns, self.rest_ns)


class _Told:
    """What a session was told: the value of each number, and when that was last read."""

    def __init__(self) -> None:
        self.generation = -1
        self._values: dict[tuple[str, str], tuple[int, int]] = {}
        self._new = False

    def begin(self, generation: int) -> None:
        """A look for a generation follows; in another one everything is news."""
        self._new = generation != self.generation
        self.generation = generation

    def news(self, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Those that the session does not know, each since when it may have been so."""
        found = []
        for one in readings:
            key = one.metric.name, one.subject
            value, read_ns = self._values.get(key, (None, 0))
            self._values[key] = one.value, one.t_ns
            if self._new or value != one.value:
                found.append(Reading(one.metric, one.subject, one.value, one.t_ns, read_ns))
        if len(self._values) > _MOST_TOLD and readings:
            self._forget(readings[-1].t_ns)
        return tuple(found)

    def _forget(self, now_ns: int) -> None:
        kept = {k: v for k, v in self._values.items() if now_ns - v[1] < _FORGOTTEN_NS}
        self._values = kept if len(kept) <= _MOST_TOLD else {}


def shared_tasks() -> list[Task]:
    """Looks at what is the same for all sessions."""
    gpus = Gpus()
    # As R132 has it: NVML's own numbers change a few times a second.
    asked = Task("gpu", _S // 5, gpus)

    def again() -> None:
        gpus.again()
        asked.due_ns = 0

    return [Task("devices", _S, Devices(again)), asked]


def session_tasks(*, engine_every_ns: int) -> list[Task]:
    """Looks at one session's processes.

    Args:
        engine_every_ns: How often its engine is asked for its metrics; 0: never.
    """
    found = [Task("numa", 2 * _S, Nodes())]
    if engine_every_ns:
        found.append(Task("engine", engine_every_ns, Engine()))
    return found


class SlowLooks:
    """The thread; it is started by the first session and ends with ``close``.

    Attributes:
        spent_ns: CPU time of the thread so far, and of the programs that it ran.
        beside_ns: Of that, for all but looks.

    Args:
        shared: Makes the looks at what all sessions share.
        own: Makes the looks of one session.
    """

    def __init__(self, shared: Callable[[], list[Task]], own: Callable[[], list[Task]]) -> None:
        self._make_shared, self._make_own = shared, own
        self._wanted: dict[str, Wanted] = {}
        self._shared: tuple[Task, ...] = ()
        self._own: dict[str, tuple[Task, ...]] = {}
        self._told: dict[tuple[str, str], _Told] = {}
        self._ready: deque[Outcome] = deque()
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None
        self._looks_ns = 0  # of the turn that is made
        self.spent_ns = self.beside_ns = 0

    def want(self, sessions: Mapping[str, Wanted]) -> None:
        """From now on these sessions are looked after, and no others."""
        before, self._wanted = self._wanted, dict(sessions)
        if {name: one.generation for name, one in before.items()} != {
            name: one.generation for name, one in sessions.items()
        }:
            self._wake.set()
        if sessions and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="host-looks", daemon=True)
            self._thread.start()

    def take(self) -> list[Outcome]:
        """What looks brought since the last call."""
        found = []
        while self._ready:
            found.append(self._ready.popleft())
        return found

    def take_skipped(self) -> dict[tuple[str, str], int]:
        """Looks, by session and name, that were not made as nobody took what others brought."""
        if not self._skipped:
            return {}
        with self._lock:
            found, self._skipped = self._skipped, Counter()
        return found

    def tasks(self, session: str) -> tuple[Task, ...]:
        """The looks that are made for a session."""
        return (*self._shared, *self._own.get(session, ()))

    def all_tasks(self) -> list[Task]:
        """All looks there are."""
        return [*self._shared, *(task for own in list(self._own.values()) for task in own)]

    def close(self) -> None:
        """End the thread; one that hangs in a driver is left to itself."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def _run(self) -> None:
        counted_ns = 0
        while not self._over:
            self._wake.clear()
            wanted = self._wanted
            self._prepare(wanted)
            for task in self._shared:
                self._turn(task, wanted)
            for session, own in self._own.items():
                for task in own:
                    self._turn(task, {session: wanted[session]})
            now_ns = _spent_ns()
            self.spent_ns += now_ns - counted_ns
            self.beside_ns += now_ns - counted_ns - self._looks_ns
            counted_ns, self._looks_ns = now_ns, 0
            if not self._over:
                self._wake.wait(self._wait_s())
        self._prepare({})

    def _wait_s(self) -> float:
        now_ns = time.monotonic_ns()
        due_ns = min((task.due_ns for task in self.all_tasks()), default=now_ns + 60 * _S)
        return min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, (due_ns - now_ns) / _S))

    def _prepare(self, wanted: Mapping[str, Wanted]) -> None:
        """Begin and end looks with their sessions. The loop sees whole values only."""
        if wanted and not self._shared:
            self._shared = tuple(self._make_shared())
        elif not wanted and self._shared:
            _end(self._shared)
            self._shared = ()
        own = dict(self._own)
        for gone in own.keys() - wanted.keys():
            _end(own.pop(gone))
            self._told = {key: told for key, told in self._told.items() if key[0] != gone}
        for new in wanted.keys() - own.keys():
            own[new] = tuple(self._make_own())
        if own.keys() != self._own.keys():
            self._own = own

    def _turn(self, task: Task, wanted: Mapping[str, Wanted]) -> None:
        now_ns = time.monotonic_ns()
        news = [name for name, one in wanted.items() if self._is_news(task, name, one)]
        # A new file of a recording has to be told everything, soon.
        if self._over or not wanted or (now_ns < task.due_ns and not news):
            return
        if task.retry.failing and now_ns < task.due_ns:
            return
        if len(self._ready) >= _MOST_READY:
            task.due_ns = now_ns + task.every_ns
            with self._lock:
                self._skipped.update((name, task.name) for name in wanted)
            return
        pids = tuple(dict.fromkeys(pid for one in wanted.values() for pid in one.pids))
        outcome = self._play(task, pids[:_MOST_PIDS], now_ns)
        for name, one in wanted.items():
            self._tell(task, name, one, outcome)

    def _play(self, task: Task, pids: tuple[int, ...], now_ns: int) -> Found | Exception:
        spent_ns = _spent_ns()
        task.began_ns = now_ns
        found: Found | Exception
        try:
            found = task.look.look(pids, now_ns)
            task.retry.worked()
            task.rest_ns = found.rest_ns
            task.due_ns = now_ns + task.pace_ns
        except Exception as exc:  # noqa: BLE001 - one look's fault must not end the others
            found = exc
            task.look.close()
            task.rest_ns = 0
            task.due_ns = task.retry.failed(now_ns)
        cost_ns = _spent_ns() - spent_ns
        self._looks_ns += cost_ns
        task.looks += 1
        if not isinstance(found, Exception) and not found.opened:
            task.cost_ns += (cost_ns - task.cost_ns) // (_SMOOTHED if task.cost_ns else 1)
        task.began_ns, task.ended_ns = 0, time.monotonic_ns()
        return found

    def _is_news(self, task: Task, session: str, wanted: Wanted) -> bool:
        told = self._told.get((session, task.name))
        return told is None or told.generation != wanted.generation

    def _tell(self, task: Task, session: str, wanted: Wanted, found: Found | Exception) -> None:
        if isinstance(found, Exception):
            reason = f"failed: {type(found).__name__}: {found}"
            self._ready.append(Outcome(session, task.name, failing=reason, fault=found))
            return
        told = self._told.setdefault((session, task.name), _Told())
        changes = found.changes if told.generation >= 0 else found.present
        told.begin(wanted.generation)
        readings = told.news(found.sample.readings)
        self._ready.append(
            Outcome(
                session, task.name, Round(Sample(readings), changes), found.standing, found.failing
            )
        )


def _end(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        task.look.close()


def _spent_ns() -> int:
    """CPU time of this thread, and of the programs that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time_ns() + int((children.ru_utime + children.ru_stime) * _S)
