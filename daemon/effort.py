# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself uses of a CPU, and for which part of its work.

One thread does nearly all of it, so its CPU clock, read wherever one part of the work ends and
another begins, tells the parts apart. Reading it takes about a microsecond.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Part(enum.StrEnum):
    """Parts of the daemon's work. What none of the others claims is ``LOOP``."""

    LOOP = "loop"
    RINGS = "rings"
    STATISTICS = "statistics"
    AGENTS = "agents"
    PROCESSES = "processes"
    HOST = "host"
    STORING = "storing"
    CALLERS = "callers"


#: What threads beside the loop's own use: looks that may block, and writing.
OTHER_THREADS = "other threads"


@dataclass(frozen=True)
class PartEffort:
    """CPU time of one part of the work since the daemon serves."""

    name: str
    cpu_ns: int = 0


@dataclass(frozen=True)
class Effort:
    """What the daemon itself takes from the machine, since it serves.

    Attributes:
        cpu_ns: CPU time of all its threads.
        wall_ns: How long that is.
        turns: Turns of its loop.
        parts: The CPU time by part of the work; they add up to all of it.
    """

    cpu_ns: int = 0
    wall_ns: int = 0
    turns: int = 0
    parts: tuple[PartEffort, ...] = ()

    @property
    def cpus(self) -> float:
        """CPUs used on average; 0.01 is one percent of one."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else 0.0


class _Stretch:
    """Some work of one part; a class, because a generator would cost more than the clock."""

    __slots__ = ("_before", "_meter", "_part")

    def __init__(self, meter: Meter, part: Part) -> None:
        self._meter = meter
        self._part = self._before = part

    def __enter__(self) -> None:
        self._before = self._meter.turn_to(self._part)

    def __exit__(self, *_: object) -> None:
        self._meter.turn_to(self._before)


class Meter:
    """Counts the CPU time of the thread that makes it, by what it is doing.

    Attributes:
        turns: Turns of the loop, counted by whoever makes them.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._spent = dict.fromkeys(Part, 0)
        self._doing = Part.LOOP
        self._began_ns = time.monotonic_ns()
        self._before_ns = time.process_time_ns()
        self._since_ns = time.thread_time_ns()

    def part(self, part: Part) -> AbstractContextManager[None]:
        """What is done inside belongs to this part, unless another is named within."""
        return _Stretch(self, part)

    def turn_to(self, part: Part) -> Part:
        """From now on the thread does this; returns what it did."""
        now = time.thread_time_ns()
        before = self._doing
        self._spent[before] += now - self._since_ns
        self._since_ns, self._doing = now, part
        return before

    def effort(self) -> Effort:
        """What was used up to now."""
        self.turn_to(self._doing)
        cpu_ns = time.process_time_ns() - self._before_ns
        # Both clocks are read one after the other, so that the rest may seem to be negative.
        rest = max(0, cpu_ns - sum(self._spent.values()))
        parts = [PartEffort(part.value, spent) for part, spent in self._spent.items()]
        return Effort(
            cpu_ns=cpu_ns,
            wall_ns=time.monotonic_ns() - self._began_ns,
            turns=self.turns,
            parts=(*parts, PartEffort(OTHER_THREADS, rest)),
        )
