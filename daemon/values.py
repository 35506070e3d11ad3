# SPDX-License-Identifier: Apache-2.0
"""What the control socket carries, as frozen values; both ends use these and no dicts.

A value travels as a msgpack map of its fields. A field that the other side does not know is
ignored, one that it does not send keeps its default, so that a command line and a daemon of
neighbouring versions understand each other.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpucorrelate.daemon.effort import Effort
from gpucorrelate.daemon.health import (
    IngestCounters,
    KernelCounters,
    PollingCounters,
    StoreCounters,
)
from gpucorrelate.daemon.overhead import Fill, HopLoss, Overhead
from gpucorrelate.probes.wire.errors import DaemonError

V = TypeVar("V")
_MAX_INT = (1 << 63) - 1


class ValueFormatError(DaemonError):
    """An answer that does not hold what it must."""


@dataclass(frozen=True)
class ProcessInfo:
    """A process of a session.

    Attributes:
        pid: Process id as the daemon sees it.
        comm: Kernel's name of it.
        role: What its agent says it is: api, core, worker...; empty without an agent.
        agent: Whether an engine agent in it is connected.
        alive: Whether it still runs.
        command: Its command line, shortened and without secrets.
    """

    pid: int
    comm: str = ""
    role: str = ""
    agent: bool = False
    alive: bool = True
    command: str = ""


@dataclass(frozen=True)
class SessionInfo:
    """A tracing session.

    Attributes:
        session: Session id.
        state: ``attached``, ``closing`` or ``detached``.
        uid: User it belongs to.
        root_pid: Topmost process.
        command: Command line of that process.
        started_unix_s: When it was attached, on the wall clock.
        ended_unix_s: When it ended; None while it runs.
        reason: Why it ended.
        processes: Its processes, dead ones included.
        segments: Files of its recording.
        size_bytes: Their size.
        lost: Events known to be lost, at any hop.
    """

    session: str
    state: str = "attached"
    uid: int = 0
    root_pid: int = 0
    command: str = ""
    started_unix_s: float = 0.0
    ended_unix_s: float | None = None
    reason: str = ""
    processes: tuple[ProcessInfo, ...] = ()
    segments: int = 0
    size_bytes: int = 0
    lost: int = 0


@dataclass(frozen=True)
class AttachAnswer:
    """What ``attach`` did.

    Attributes:
        session: The session.
        already: It was running before; nothing was changed.
        warnings: What will not be recorded, and why; one line each.
    """

    session: SessionInfo
    already: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """Live numbers of a session, counted while rows pass through.

    Attributes:
        session: Session id.
        state: See ``SessionInfo``.
        t_ns: When the numbers were read, CLOCK_MONOTONIC.
        requests_received: Requests that came in.
        requests_finished: Requests that ended, in whatever way.
        steps: Engine steps begun.
        steps_in_flight: Steps begun and not ended.
        tokens: Output tokens produced.
        waits: Waits recorded.
        rows: Rows recorded, all kinds.
        lost: Events known to be lost, at any hop.
        processes: Processes alive.
        agents: Of those, with a connected agent.
        threads: Threads known.
        size_bytes: Size of the recording.
        warnings: What is wrong now, one line each.
    """

    session: str
    state: str = "attached"
    t_ns: int = 0
    requests_received: int = 0
    requests_finished: int = 0
    steps: int = 0
    steps_in_flight: int = 0
    tokens: int = 0
    waits: int = 0
    rows: int = 0
    lost: int = 0
    processes: int = 0
    agents: int = 0
    threads: int = 0
    size_bytes: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CapabilityInfo:
    """Whether a source of evidence works: ``on``, ``degraded`` or ``off``, and why."""

    source: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class SourceInfo:
    """A source of the host's numbers, for one session.

    Attributes:
        session: Session id.
        source: Its name: ``cgroups``, ``threads``, ``gpu``...
        state: ``on``, ``degraded``, ``off``, or ``unknown`` before the first look.
        reason: Why it is not on; empty where it is.
        every_ms: How often it is looked at now; 0: it is not.
        age_ms: How long ago it was looked at; None: it never was.
        missing: Single things that it cannot read, with whose and why.
    """

    session: str
    source: str
    state: str
    reason: str = ""
    every_ms: int = 0
    age_ms: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class DaemonStatus:
    """The daemon and its counters at every hop.

    Attributes:
        version: The daemon's version.
        pid: Its process id.
        uid: The user it runs as.
        uptime_s: Seconds since it started.
        state_dir: Where recordings are.
        capabilities: Sources of evidence and whether they work.
        privileges: What it may still do, in words.
        kernel: Counters of the kernel probes.
        ingest: Counters of the agents' socket.
        store: Counters of the recordings.
        sessions: Sessions that the caller may see, running ones first.
        sources: Sources of the host's numbers, of the running ones of those sessions.
        polling: What reading them does and costs.
        warnings: What is wrong now, one line each.
        callers_refused: Callers of the control socket turned away: limits.
        callers_cut_off: Callers disconnected because they broke the rules or fell silent.
        pauses: Times the daemon did not come round for half a second or more.
        longest_pause: The longest of them, and where the time went.
        effort: CPU time that the daemon itself has used, by part of its work.
        overhead: What else it takes from the machine.
        hops: What was lost since it started, at every hop that can lose something.
        limits: Limits and how full they are.
        behind: What does not keep up now, one line each.
    """

    version: str
    pid: int = 0
    uid: int = 0
    uptime_s: float = 0.0
    state_dir: str = ""
    capabilities: tuple[CapabilityInfo, ...] = ()
    privileges: str = ""
    kernel: KernelCounters = field(default_factory=KernelCounters)
    ingest: IngestCounters = field(default_factory=IngestCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    sessions: tuple[SessionInfo, ...] = ()
    sources: tuple[SourceInfo, ...] = ()
    polling: PollingCounters = field(default_factory=PollingCounters)
    warnings: tuple[str, ...] = ()
    callers_refused: int = 0
    callers_cut_off: int = 0
    pauses: int = 0
    longest_pause: str = ""
    effort: Effort = field(default_factory=Effort)
    overhead: Overhead = field(default_factory=Overhead)
    hops: tuple[HopLoss, ...] = ()
    limits: tuple[Fill, ...] = ()
    behind: tuple[str, ...] = ()


def to_map(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the values above
    """The value as a map that msgpack can carry."""
    return dataclasses.asdict(value, dict_factory=_bounded)


def _bounded(items: list[tuple[str, Any]]) -> dict[str, Any]:
    # msgpack carries 64 bits; a total built from what agents claim may be larger.
    return {name: min(value, _MAX_INT) if type(value) is int else value for name, value in items}


def from_map(cls: type[V], data: object) -> V:
    """The value in a map.

    Raises:
        ValueFormatError: a field that must be there is not, or has another type.
    """
    if not isinstance(data, dict):
        raise ValueFormatError(f"{cls.__name__}: not a map")
    hints = typing.get_type_hints(cls)
    known: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if item.name in data:
            known[item.name] = _value(hints[item.name], data[item.name], item.name)
    try:
        return cls(**known)
    except TypeError as exc:
        raise ValueFormatError(f"{cls.__name__}: {exc}") from exc


def _value(hint: Any, data: Any, name: str) -> Any:  # noqa: ANN401
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_map(hint, data)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise ValueFormatError(f"{name}: not a list")
        each = args[:1] * len(data) if args[-1] is Ellipsis else args
        return tuple(_value(hint, part, name) for hint, part in zip(each, data, strict=False))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(data)
        except ValueError as exc:
            raise ValueFormatError(f"{name}: {exc}") from exc
    allowed = args if args else (hint,)
    if float in allowed and isinstance(data, int):
        return float(data)
    if not isinstance(data, allowed):
        raise ValueFormatError(f"{name}: {type(data).__name__} where {hint} was expected")
    return data
