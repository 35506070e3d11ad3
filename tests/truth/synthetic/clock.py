# SPDX-License-Identifier: Apache-2.0
"""A device's own clock: off by something, fast or slow, and read now and then.

Bursts of readings go into the recording as ``clock_pair`` rows. Times of operations are read from
that clock and brought to CLOCK_MONOTONIC by the product's own map of those bursts, as whoever
records devices does, so that they are off by no more than the map says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.clock import Burst, ClockMap, Pair

if TYPE_CHECKING:
    from tests.truth.synthetic.machine import Machine
    from tests.truth.synthetic.options import ClockOptions

_BILLION = 1_000_000_000


class DeviceClock:
    """The clock of one device.

    Attributes:
        name: What the recording calls it.
        uncertainty_ns: The largest uncertainty of any time that was mapped.
        off_ns: By how much any of them was really off.
    """

    def __init__(self, machine: Machine, stream: int, number: int, options: ClockOptions) -> None:
        self.machine, self.stream, self.options = machine, stream, options
        self.name = f"gpu{number}"
        self.bursts: list[Burst | None] = []
        self.uncertainty_ns = self.off_ns = 0

    def reading(self, moment: int) -> int:
        """What the clock shows at a moment."""
        return moment + self.options.offset_ns + moment * self.options.drift_ppb // _BILLION

    def read(self) -> None:
        """A burst of readings, now; the next one follows by itself."""
        machine, options = self.machine, self.options
        at, pairs = machine.now, []
        for _ in range(options.pairs):
            width = machine.some(options.width_us / 4, options.width_us)
            taken = self.reading(machine.random.randint(at, at + width))
            pairs.append(Pair(at, taken, at + width))
            middle = at + width // 2
            machine.records.put(self.stream, "clock_pair", middle, width, self.name, taken)
            at += width + machine.some(0.1, 1)
        self.bursts.append(Burst.of(pairs))
        machine.at(machine.now + int(options.every_us * 1_000), self.read)

    def mapped(self, moments: list[int]) -> list[int]:
        """True moments as they come out when read from this clock and mapped."""
        mapped = ClockMap.of(self.bursts).to_monotonic(
            np.array([self.reading(moment) for moment in moments], np.int64)
        )
        assert mapped.valid.all()
        self.uncertainty_ns = int(mapped.uncertainty_ns.max(initial=0))
        off = np.abs(mapped.ns - np.array(moments, np.int64))
        assert (off <= mapped.uncertainty_ns).all()
        self.off_ns = int(off.max(initial=0))
        return [int(ns) for ns in mapped.ns]
