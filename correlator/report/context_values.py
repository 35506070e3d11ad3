# SPDX-License-Identifier: Apache-2.0
"""What the host did in a window, as frozen values. Times and lengths as in ``values``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContextNumber:
    """A number of the host that changed within a window."""

    metric: str  # "cpu.stat.throttled", "thread.run_delay"
    subject: str  # "host", "pid:1", "tid:1", "cgroup:/a"
    unit: str  # "ns", "bytes", "count"...; "" a plain number
    nature: str  # level, total (only ever counts up), average
    meaning: str
    before: int
    after: int
    since_ns: int  # it changed after this moment, which may lie before the window...
    until_ns: int  # ...and before this one, which may lie behind it
    note: str = ""  # why it matters; "" where it does not, or tells of another time more
    rank: int = 0  # of those that matter the lowest comes first
    least_ppm: int | None = None  # share of the time from which it is noted; None: any growth
    who: str = ""  # whose it is, for people: "Worker0/4720"
    concerns: bool = True  # it is of the whole host, or of somebody on the path

    @property
    def grown(self) -> int:
        """By how much it changed."""
        return self.after - self.before

    @property
    def length_ns(self) -> int:
        """How long a time it speaks of."""
        return self.until_ns - self.since_ns


@dataclass(frozen=True)
class ContextChange:
    """Something of the host that is no number and became another within a window."""

    t_ns: int  # it was noticed
    since_ns: int  # it happened after this moment
    subject: str
    what: str
    before: str
    after: str
    who: str = ""
    concerns: bool = True


@dataclass(frozen=True)
class ContextState:
    """Something of the host that is no number, as it was at a window's end."""

    t_ns: int  # it was noticed
    subject: str
    what: str  # "cgroup of cpu", "allowed CPUs and nodes", "on different nodes"
    value: str
    note: str = ""  # why it matters; "" where it does not
    who: str = ""
    concerns: bool = True


@dataclass(frozen=True)
class ContextLevel:
    """A number that goes up and down, over a window: what it was most of the time, and extremes.

    It is taken to have stayed as it was read until it was read anew.
    """

    metric: str
    subject: str
    unit: str
    nature: str
    meaning: str
    least: int
    mean: int  # over time
    most: int
    readings: int  # within the window


@dataclass(frozen=True)
class ContextQuota:
    """A cgroup's CPU quota: what the path shows of it beside what the kernel counted."""

    cgroup: str  # "" unknown
    path_ns: int  # of the path, spent out of quota
    counted_ns: int | None  # by the kernel for all its threads, CPUs summed; None: not read
    since_ns: int  # the kernel counted it after this moment...
    until_ns: int  # ...and before this one
    periods: int | None  # in which it wanted to run; None: not read
    throttled_periods: int | None  # and ran out of quota
    quota_ns: int | None  # CPU time that it has in each period; None: no limit, or not read
    period_ns: int | None

    @property
    def length_ns(self) -> int:
        """How long a time the kernel's count speaks of."""
        return self.until_ns - self.since_ns

    @property
    def contradicts(self) -> bool:
        """Whether the path shows more than the kernel counted.

        The kernel counts a stretch when it ends, which may be a period after a window does.
        """
        late_ns = self.period_ns or _PERIOD_NS
        return self.counted_ns is not None and self.path_ns > self.counted_ns + late_ns


#: What the kernel uses unless told otherwise (Documentation/scheduler/sched-bwc.rst).
_PERIOD_NS = 100_000_000


@dataclass(frozen=True)
class Context:
    """What the host did in a window."""

    start_ns: int
    end_ns: int
    numbers: tuple[ContextNumber, ...]
    changes: tuple[ContextChange, ...]
    missing: tuple[str, ...]  # what could not be read, each with the reason
    states: tuple[ContextState, ...] = ()
    levels: tuple[ContextLevel, ...] = ()  # of GPUs, of the engine, and of the host's memory
    quotas: tuple[ContextQuota, ...] = ()

    @property
    def window_ns(self) -> int:
        """The window's length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class MemoryPeak:
    """The most that was seen of a memory level while the engine was in one phase.

    Levels are read a few times a second: what was shorter than that is not seen.
    """

    metric: str
    subject: str
    who: str
    phase: str  # prefill, mixed or decode steps; "between" steps
    most_bytes: int
    readings: int


@dataclass(frozen=True)
class KillPhase:
    """What the engine did about when something was killed for want of memory."""

    subject: str
    who: str
    count: int
    since_ns: int
    until_ns: int
    phases: tuple[str, ...]  # kinds of its steps then; empty: it was in none


@dataclass(frozen=True)
class RoleShare:
    """What threads of one role took of the CPUs."""

    role: str  # core.main, worker0.zmq...; "": nobody knows what they are there for
    role_by: str  # "process": it says so; "name", "behaviour": guessed by that; "": not known
    threads: int  # that ran
    cpu_ns: int
    delay_ns: int  # they were ready and without a CPU
    length_ns: int  # in a time of this length


@dataclass(frozen=True)
class HostReport:
    """What the host did during a whole recording."""

    context: Context
    memory: tuple[MemoryPeak, ...] = ()
    kills: tuple[KillPhase, ...] = ()
    unseen: tuple[str, ...] = ()  # what no source here tells, each with what that means
    roles: tuple[RoleShare, ...] = ()
