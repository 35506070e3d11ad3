# SPDX-License-Identifier: Apache-2.0
"""When something was, told without trust in the wall clock, which people and daemons set.

CLOCK_MONOTONIC is never set, but begins anew with each boot, and files have times of the wall
clock only. So within a boot the one decides, and across boots the other, as far as it is
plausible.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.streams import DAEMON_STREAM, KERNEL_STREAM
from gpucorrelate.probes.wire.schema import BY_ID

if TYPE_CHECKING:
    from gpucorrelate.daemon.saved import SavedSession
    from gpucorrelate.probes.wire.frame import Batch

_NS = 1_000_000_000
#: The distance between the clocks may change by this much while a session lasts: more than
#: slewing does in a day (500 ppm, adjtimex(2)). A step, or a suspend, changes it by more.
_STEP_NS = 60 * _NS
#: 2024-01-01: before it there was no gpucorrelate. Clocks without a battery begin at 1970.
_FIRST_UNIX_S = 1_704_067_200
_MOMENTS = ("end_ns", "t_ns")


def latest_ns(batch: Batch) -> int:
    """Last moment that a batch speaks of, CLOCK_MONOTONIC; 0 if it has none to be trusted.

    Of the daemon's and its kernel probes' own streams: what an agent says may be any number.
    """
    kind = BY_ID.get(batch.kind)
    if kind is None or not batch.count or batch.stream not in (DAEMON_STREAM, KERNEL_STREAM):
        return 0
    names = {each.name for each in kind.columns}
    found = (column(kind, batch.columns, n, batch.count).max() for n in _MOMENTS if n in names)
    return max((int(moment) for moment in found), default=0)


def written_ns(saved: SavedSession, mtime_ns: int, known_ns: int) -> int:
    """When a recording was last written, CLOCK_MONOTONIC of this boot.

    Args:
        saved: The session.
        mtime_ns: What the file system says, on the wall clock.
        known_ns: A moment in it that is certain.

    Returns:
        The file's time where the wall clock can have been set neither since the session began
        nor in between; else the moment that is certain, which is earlier: a hole is then told
        longer than it was, never shorter.
    """
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    known_ns = max(known_ns, saved.started_ns)
    before = int(saved.started_unix_s * 1e9) - saved.started_ns
    by_file_ns = now_ns - (wall_ns - mtime_ns)
    set_since = abs((wall_ns - now_ns) - before) > _STEP_NS
    if set_since or not known_ns <= by_file_ns <= now_ns:
        return min(known_ns, now_ns)
    return by_file_ns


def age_s(saved: SavedSession, boot_id: str, found_s: float) -> float:
    """Seconds since a session ended, in which its recording was only kept.

    Args:
        saved: The session.
        boot_id: This boot.
        found_s: How long this daemon has known it, which counts where nothing else does.
    """
    last_ns = max((segment.last_ns for segment in saved.segments), default=0)
    if last_ns and saved.boot_id == boot_id:
        return (time.monotonic_ns() - last_ns) / _NS
    ended_unix_s = saved.ended_unix_s or saved.started_unix_s
    if ended_unix_s < _FIRST_UNIX_S:
        return found_s
    return time.time() - ended_unix_s
