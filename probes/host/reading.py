# SPDX-License-Identifier: Apache-2.0
"""What a poller reads: numbers with their meaning, and what could not be read with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucorrelate.probes.wire.schema import Nature


@dataclass(frozen=True)
class Metric:
    """What a number is.

    Attributes:
        name: Dotted, as its users know it: ``cpu.stat.throttled``, ``memory.events.oom_kill``.
        unit: ``ns``, ``bytes``, ``count``, ``percent``, ``ppm``, ``mW``, ``MHz``, ``C``; ``""``
            for a plain number.
        nature: How it behaves over time.
        meaning: One sentence for somebody who reads it in a report: what it says, and what it is
            often mistaken for.
    """

    name: str
    unit: str
    nature: Nature
    meaning: str


@dataclass(frozen=True)
class Family:
    """Makes metrics whose names begin alike.

    Attributes:
        prefix: What all of them begin with, the dot included.
    """

    prefix: str = ""

    def level(self, name: str, unit: str, meaning: str) -> Metric:
        """It goes up and down."""
        return Metric(self.prefix + name, unit, Nature.LEVEL, meaning)

    def total(self, name: str, unit: str, meaning: str) -> Metric:
        """It only ever counts up."""
        return Metric(self.prefix + name, unit, Nature.TOTAL, meaning)

    def average(self, name: str, unit: str, meaning: str) -> Metric:
        """It is the mean over some time before it was read."""
        return Metric(self.prefix + name, unit, Nature.AVERAGE, meaning)


@dataclass(frozen=True)
class Reading:
    """A number, of whom, and when.

    Attributes:
        metric: What it is.
        subject: Whose it is: ``host``, ``pid:4711``, ``tid:4712``, ``cgroup:/a/b``, ``node:0``,
            ``gpu:GPU-<uuid>``, ``pci:0000:01:00.0``, ``engine:<name>``.
        value: The number, in the metric's unit.
        t_ns: When it was read, CLOCK_MONOTONIC.
        since_ns: When it was read before that, 0 if it never was: it may have been so since
            then. ``None``: in the round before, like most.
    """

    metric: Metric
    subject: str
    value: int
    t_ns: int
    since_ns: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Missing:
    """What could not be read.

    Attributes:
        what: The metric's name, or the file or library it comes from.
        subject: Whose it would be; see ``Reading``.
        reason: Why not, for whoever misses it.
    """

    what: str
    subject: str
    reason: str


@dataclass(frozen=True)
class Sample:
    """One round of a poller."""

    readings: tuple[Reading, ...] = ()
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True)
class Standing:
    """How a poller's source stands as of its last round.

    Attributes:
        works: Whether anything of it can be read.
        missing: All that cannot be read now, told before or not.
    """

    works: bool = True
    missing: tuple[Missing, ...] = ()


#: What a thread was seen blocked in: of a moment, not until something else is said.
BLOCKED_IN = "blocked in"


@dataclass(frozen=True)
class Change:
    """Something that is no number and became another; see the kind of that name.

    Attributes:
        t_ns: When it was noticed, CLOCK_MONOTONIC.
        since_ns: When it was last seen otherwise; 0 if it never was.
        subject: Whose; see ``Reading``.
        what: ``cgroup``, ``driver``, ``allowed CPUs and nodes``...
        before: What it was; empty: not known, or there was none.
        after: What it is; empty: it is there no more.
    """

    t_ns: int
    since_ns: int
    subject: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Round:
    """What one look of a poller brought: numbers, and what is no number.

    Attributes:
        sample: The numbers.
        changes: What is no number and became another.
        urgent: Something goes wrong now: all should be looked at more often for a while.
    """

    sample: Sample = field(default_factory=Sample)
    changes: tuple[Change, ...] = ()
    urgent: bool = False
