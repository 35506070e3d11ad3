# SPDX-License-Identifier: Apache-2.0
"""From a recording's CLOCK_MONOTONIC to the time of day, and how surely.

The daemon notes now and then what the wall clock says. Between two such readings it may have
been stepped or slewed, which nobody saw; how far shows in the next reading. A request is moved
as a whole, by the reading before it, so that what lies within it keeps its lengths exactly.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture

#: The wall clock's name in ``clock_pair`` rows.
WALL_CLOCK = "CLOCK_REALTIME"

RECORDED, THIS_BOOT, GIVEN = "recorded", "this boot", "given"


@dataclass(frozen=True)
class Offset:
    """What is to be added to CLOCK_MONOTONIC for the time since 1970, UTC.

    Attributes:
        offset_ns: That.
        uncertainty_ns: How far it may be from what the machine's wall clock said then; ``None``
            if that is not known.
    """

    offset_ns: int
    uncertainty_ns: int | None


@dataclass(frozen=True)
class WallClock:
    """Readings of a wall clock, by time.

    Attributes:
        times_ns: Moments on CLOCK_MONOTONIC.
        offsets: What held at each.
        source: Who says so: ``recorded``, ``this boot`` (read now, for a recording of the boot
            that still runs), ``given`` by the user.
    """

    times_ns: tuple[int, ...]
    offsets: tuple[Offset, ...]
    source: str

    def at(self, t_ns: int) -> Offset:
        """The offset for what began at a moment.

        It is that of the last reading before, or of the first one; its uncertainty covers what
        the next reading says as well.
        """
        here = max(0, bisect.bisect_right(self.times_ns, t_ns) - 1)
        found = self.offsets[here]
        if found.uncertainty_ns is None or here + 1 >= len(self.offsets):
            return found
        moved = abs(self.offsets[here + 1].offset_ns - found.offset_ns)
        return Offset(found.offset_ns, found.uncertainty_ns + moved)


def recorded(capture: Capture) -> WallClock | None:
    """What a recording says of the wall clock; ``None`` if it says nothing."""
    rows = capture.table("clock_pair")
    columns = (rows[name].tolist() for name in ("clock", "t_ns", "width_ns", "other"))
    found = sorted(
        (t_ns, width_ns, other)
        for clock, t_ns, width_ns, other in zip(*columns, strict=True)
        if capture.strings[clock] == WALL_CLOCK
    )
    # A segment of a recording restates the reading before it.
    readings = [row for row, _ in itertools.groupby(found)]
    if not readings:
        return None
    return WallClock(
        tuple(t_ns for t_ns, _, _ in readings),
        tuple(Offset(other - t_ns, (width + 1) // 2) for t_ns, width, other in readings),
        RECORDED,
    )


def of_this_boot(capture: Capture, boot_id: str, offset_ns: int) -> WallClock | None:
    """A wall clock read now, for a recording of the boot that still runs.

    It may have been set since; how far off that is cannot be known.

    Args:
        capture: The recording.
        boot_id: This machine's boot.
        offset_ns: Its wall clock less its CLOCK_MONOTONIC.

    Returns:
        ``None`` if the recording is of another boot, or does not say of which.
    """
    facts = capture.facts("boot_id")
    if not facts or not boot_id or facts[-1].value != boot_id:
        return None
    return WallClock((0,), (Offset(offset_ns, None),), THIS_BOOT)


def given(start_ns: int, unix_ns: int) -> WallClock:
    """A recording's clock, by the time of day at which it began."""
    return WallClock((start_ns,), (Offset(unix_ns - start_ns, None),), GIVEN)
