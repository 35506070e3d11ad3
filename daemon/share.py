# SPDX-License-Identifier: Apache-2.0
"""How often everything can be looked at so that all looks stay within a share of one CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PPM = 1_000_000


@dataclass(frozen=True)
class Demand:
    """What somebody would like to do.

    Attributes:
        cost_ns: CPU time of a look.
        every_ns: How often it is wanted.
    """

    cost_ns: int
    every_ns: int

    @property
    def ppm(self) -> int:
        """Share of one CPU, in millionths."""
        return self.cost_ns * _PPM // max(1, self.every_ns)


def paces(demands: Sequence[Demand], share_ppm: int) -> list[int]:
    """Times between looks that keep all of them within a share.

    What asks for little has what it wants; the others divide what that leaves.

    Args:
        demands: What is wanted.
        share_ppm: All there is, in millionths of one CPU.
    """
    granted = [demand.every_ns for demand in demands]
    left = share_ppm
    ordered = sorted(range(len(demands)), key=lambda at: demands[at].ppm)
    for done, at in enumerate(ordered):
        fair = max(1, left // (len(ordered) - done))
        if demands[at].ppm > fair:
            granted[at] = demands[at].cost_ns * _PPM // fair
            left -= fair
        else:
            left -= demands[at].ppm
    return granted
