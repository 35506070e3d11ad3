# SPDX-License-Identifier: Apache-2.0
"""Looks that may block: a GPU's driver, an engine's HTTP server, the page tables of a process.

They are made by a thread of their own, each at its pace, and never hold up the rings of the
kernel probes. What they bring is taken by the daemon's one loop.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.daemon.tree import looks_like_engine
from gpucorrelate.probes.host import gpu, numa, placement, procfs
from gpucorrelate.probes.host.disagreement import disagreements, spread_of_cpus, spread_of_device
from gpucorrelate.probes.host.engine_scrape import EngineEndpoint
from gpucorrelate.probes.host.listening import read_listeners
from gpucorrelate.probes.host.reading import Missing, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpucorrelate.probes.host.disagreement import Disagreement, Side
    from gpucorrelate.probes.host.placement import Binding
    from gpucorrelate.probes.host.reading import Reading

log = logging.getLogger(__name__)

_S = 1_000_000_000
#: What vLLM listens on unless it is told otherwise.
_ENGINE_PORT = 8000
_MOST_READY = 256
_MOST_PIDS = 64
_PPM = 1_000_000


@dataclass(frozen=True)
class Change:
    """Something that is no number and became another; see the kind of that name."""

    t_ns: int
    since_ns: int
    subject: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Round:
    """What one look of a poller brought.

    Attributes:
        sample: Numbers, and what could not be read.
        changes: What is no number.
        since_ns: When the look before was, 0 if there was none; ``None``: ask who called.
    """

    sample: Sample
    changes: tuple[Change, ...] = ()
    since_ns: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What a session wants to know about.

    Attributes:
        generation: Another one: everything is to be told again.
        pids: Its processes.
    """

    generation: int
    pids: tuple[int, ...]


class _Look(Protocol):
    """One kind of look, for one session."""

    def __call__(self, pids: Collection[int], now_ns: int) -> tuple[Sample, tuple[Change, ...]]:
        """All numbers there are, changed or not."""


@dataclass
class _Task:
    """A look with its pace."""

    name: str
    every_ns: int
    look: _Look
    close: Callable[[], None] = lambda: None
    due_ns: int = 0
    since_ns: int = 0
    generation: int = -1
    told: dict[tuple[str, str], int] = field(default_factory=dict)


class SlowLooks:
    """The thread; it is started by the first session and ends with ``close``."""

    def __init__(self) -> None:
        self._wanted: dict[str, Wanted] = {}
        self._tasks: dict[str, list[_Task]] = {}
        self._ready: deque[tuple[str, str, Round | Exception]] = deque(maxlen=_MOST_READY)
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def want(self, sessions: Mapping[str, Wanted]) -> None:
        """From now on these sessions are looked after, and no others."""
        self._wanted = dict(sessions)
        if sessions and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="host-looks", daemon=True)
            self._thread.start()

    def take(self) -> list[tuple[str, str, Round | Exception]]:
        """Session, name of the look, and what it brought, since the last call."""
        found = []
        while self._ready:
            found.append(self._ready.popleft())
        return found

    def close(self) -> None:
        """End the thread; one that hangs in a driver is left to itself."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._over:
            wanted = self._wanted
            for gone in self._tasks.keys() - wanted.keys():
                for task in self._tasks.pop(gone):
                    task.close()
            for session, one in wanted.items():
                if session not in self._tasks:
                    self._tasks[session] = _tasks()
                for task in self._tasks[session]:
                    if time.monotonic_ns() >= task.due_ns and not self._over:
                        self._ready.append((session, task.name, _play(task, one)))
            self._wake.wait(0.1)


def _play(task: _Task, wanted: Wanted) -> Round | Exception:
    if task.generation != wanted.generation:
        task.generation = wanted.generation
        task.told.clear()
    now_ns = time.monotonic_ns()
    task.due_ns = now_ns + task.every_ns
    try:
        sample, changes = task.look(wanted.pids[:_MOST_PIDS], now_ns)
    except Exception as exc:  # noqa: BLE001 - one look's fault must not end the others
        return exc
    readings = tuple(one for one in sample.readings if _is_news(task.told, one))
    since_ns, task.since_ns = task.since_ns, now_ns
    return Round(Sample(readings, sample.missing), changes, since_ns)


def _is_news(told: dict[tuple[str, str], int], one: Reading) -> bool:
    key = one.metric.name, one.subject
    if told.get(key) == one.value:
        return False
    told[key] = one.value
    return True


def _tasks() -> list[_Task]:
    gpus, engine, nodes = _Gpus(), _Engine(), _Nodes()
    return [
        _Task("gpu", _S // 5, gpus.look, gpus.close),
        _Task("engine", 2 * _S, engine.look),
        _Task("numa", 2 * _S, nodes.look),
    ]


class _Gpus:
    """The GPUs' own counters."""

    _SLOW_NS, _AGAIN_NS = 5 * _S, 60 * _S

    def __init__(self) -> None:
        self._source: gpu.Source | None = None
        self._missing: tuple[Missing, ...] = ()
        self._open_ns = self._slow_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> tuple[Sample, tuple[Change, ...]]:
        del pids  # numbers of processes are told for all
        if self._source is None and now_ns >= self._open_ns:
            opened = gpu.open_source()
            self._source, self._missing = opened.source, opened.missing
            self._open_ns = now_ns + self._AGAIN_NS
        if self._source is None:
            return Sample((), self._missing), ()
        pace = gpu.Pace.FAST
        if now_ns >= self._slow_ns:
            pace, self._slow_ns = gpu.Pace.SLOW, now_ns + self._SLOW_NS
        found = self._source.sample(pace)
        return gpu.unified_memory(self._source.gpus, found), ()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


class _Engine:
    """The engine's own metrics, from the port that its server listens on."""

    _AGAIN_NS = 10 * _S

    def __init__(self) -> None:
        self._endpoint: EngineEndpoint | None = None
        self._find_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> tuple[Sample, tuple[Change, ...]]:
        if self._endpoint is None:
            if now_ns < self._find_ns:
                return Sample(), ()
            self._find_ns = now_ns + self._AGAIN_NS
            self._endpoint = _endpoint(pids)
            if self._endpoint is None:
                reason = "no process of it listens where an engine's server would"
                return Sample((), (Missing("engine.metrics", "host", reason),)), ()
        found = self._endpoint.sample("vllm")
        if not found.readings:
            self._endpoint = None
        return found, ()


def _endpoint(pids: Iterable[int]) -> EngineEndpoint | None:
    """Where an engine's server answers.

    Only a port that its arguments name, or the usual one, and only if that very process listens
    on it: what else may listen there would not know what to make of a question over HTTP.
    """
    for pid in pids:
        process = procfs.read_process(pid)
        if process is None or not looks_like_engine(process):
            continue
        port = _port(process.argv)
        for listener in read_listeners(pid):
            if listener.port == port:
                return EngineEndpoint(listener.reached_by, port)
    return None


def _port(argv: tuple[str, ...]) -> int:
    """The port that a command line names."""
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name == "--port":
            text = value or (argv[at + 1] if at + 1 < len(argv) else "")
            return int(text) if text.isdecimal() and len(text) < 6 else 0
    return _ENGINE_PORT


class _Nodes:
    """NUMA: the nodes' numbers, what processes are bound to, and where their memory lies."""

    _PLACED_NS = 30 * _S

    def __init__(self) -> None:
        self._bound: dict[int, Binding] = {}
        self._apart: dict[str, str] = {}
        self._placed_ns = self._since_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> tuple[Sample, tuple[Change, ...]]:
        topology = numa.read_topology()
        if isinstance(topology, Missing):
            return Sample((), (topology,)), ()
        found = numa.read_nodes(topology)
        changes = list(self._rebound(pids, now_ns))
        readings = list(found.readings)
        if len(topology.with_cpus) > 1 and now_ns >= self._placed_ns:
            self._placed_ns = now_ns + self._PLACED_NS
            for pid in pids:
                more, apart = self._place(topology, pid, now_ns)
                readings += more
                changes += apart
        self._since_ns = now_ns
        return Sample(tuple(readings), found.missing), tuple(changes)

    def _rebound(self, pids: Collection[int], now_ns: int) -> Iterable[Change]:
        after = {}
        for pid in pids:
            affinity = placement.read_affinity(pid)
            if affinity is not None:
                after[pid] = placement.Binding(f"pid:{pid}", affinity, now_ns)
        before = self._bound
        for one in placement.rebindings(before.values(), after.values()):
            yield Change(
                one.after.t_ns, one.before.t_ns, one.after.subject, "allowed CPUs and nodes",
                _bound_to(one.before), _bound_to(one.after),
            )  # fmt: skip
        for pid in after.keys() - before.keys():
            yield Change(now_ns, 0, f"pid:{pid}", "allowed CPUs and nodes", "",
                         _bound_to(after[pid]))  # fmt: skip
        self._bound = after

    def _place(
        self, topology: numa.Topology, pid: int, now_ns: int
    ) -> tuple[tuple[Reading, ...], list[Change]]:
        found = placement.read_placement(pid)
        if isinstance(found, Missing):
            return (), []
        cpus = [placement.read_last_cpu(pid, tid) for tid in procfs.thread_ids(pid)[:256]]
        ran = spread_of_cpus(topology, [cpu for cpu in cpus if cpu is not None])
        memory = found.spread if found.complete else None
        apart = disagreements(topology, f"pid:{pid}", ran, memory, _near_gpus())
        said = "; ".join(_apart(one) for one in apart)
        subject, before = f"pid:{pid}", self._apart.get(f"pid:{pid}", "")
        self._apart[subject] = said
        changes = []
        if said != before:
            changes.append(
                Change(now_ns, self._since_ns, subject, "on different nodes", before, said)
            )
        return placement.placement_readings(pid, found, now_ns), changes


def _near_gpus() -> Iterable[placement.Spread | None]:
    from gpucorrelate.probes.host.devices import read_gpus

    with contextlib.suppress(OSError):
        for one in read_gpus():
            yield spread_of_device(f"pci:{one.address}", one.numa_node)


def _bound_to(one: Binding) -> str:
    return f"CPUs {_ids(one.affinity.cpus)}, nodes {_ids(one.affinity.nodes)}"


def _ids(numbers: tuple[int, ...]) -> str:
    """``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def _apart(one: Disagreement) -> str:
    return f"{_side(one.one)}, {_side(one.other)}"


def _side(side: Side) -> str:
    where = " and ".join(
        f"{share * 100 // _PPM}% on node {node}" for node, share in side.shares if share
    )
    return f"{side.spread.what} {where}"
