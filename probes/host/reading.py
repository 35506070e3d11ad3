# SPDX-License-Identifier: Apache-2.0
"""What a poller reads: numbers with their meaning, and what could not be read with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
class Reading:
    """A number, of whom, and when.

    Attributes:
        metric: What it is.
        subject: Whose it is: ``host``, ``pid:4711``, ``tid:4712``, ``cgroup:/a/b``, ``node:0``,
            ``gpu:GPU-<uuid>``, ``pci:0000:01:00.0``, ``engine:<name>``.
        value: The number, in the metric's unit.
        t_ns: When it was read, CLOCK_MONOTONIC.
    """

    metric: Metric
    subject: str
    value: int
    t_ns: int


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
