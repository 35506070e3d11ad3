# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself has to say in a recording: who, what works, what was lost."""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

import gpucorrelate
from gpucorrelate.daemon.losses import OTHERS
from gpucorrelate.daemon.streams import DAEMON_STREAM, KERNEL_STREAM
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.schema import (
    BY_NAME,
    SCHEMA_VERSION,
    CapabilityState,
    SessionEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpucorrelate.daemon.columns import Row
    from gpucorrelate.daemon.shedding import Shedder
    from gpucorrelate.daemon.streams import AgentStream, OwnStream
    from gpucorrelate.probes.wire.schema import Kind

_CHANGE = BY_NAME["change"]
#: The machine's wall clock, as a recording names it.
WALL_CLOCK = "CLOCK_REALTIME"
#: A clock that is slewed at the most that Linux allows (500 ppm) is off by 30 ms after so long.
_CLOCK_EVERY_NS = 60_000_000_000
_CLOCK_READINGS = 5
# An agent may claim to have lost any number; sums of such claims must still fit a column.
_MAX_COUNT = 1 << 48
#: Losses told apart between two writes; while nothing can be written they are kept.
_MOST_LOSSES = 1024
# Within the wire's limit on strings in any script but a few.
_TEXT_CHARS = 900


class Notes:
    """Rows of the daemon's own stream.

    Args:
        session: Session id.
        stream: The daemon's stream in that session's recording.
        append: Takes a frame and its row count into the recording.
        lost: Events known to be lost so far.
        shedder: Says what is not recorded for want of room.
    """

    def __init__(
        self,
        session: str,
        stream: OwnStream,
        append: Callable[[bytes, int], None],
        lost: int,
        shedder: Shedder | None = None,
    ) -> None:
        self.lost = lost
        self._shedder = shedder
        self._session = session
        self._stream = stream
        self._append = append
        self._losses: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._capabilities: dict[str, tuple[CapabilityState, str]] = {}
        self._clock_ns: int | None = None

    def write(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Record rows."""
        if rows and self._shedder is not None and self._shedder.drops(kind.id):
            self._shedder.count(kind.name, len(rows), time.monotonic_ns())
        elif rows:
            for frame, count in self._stream.rows(kind, rows):
                self._append(frame, count)

    def latest_change(self, subject: str, what: str) -> tuple[int, str] | None:
        """When a subject was last said to have become something else, and what."""
        row = self._stream.recall.latest_change(subject, what)
        if row is None:
            return None
        return int(row[_CHANGE.index("t_ns")]), str(row[_CHANGE.index("after")])

    def forget_changes(self, subject: str) -> None:
        """New segments need not say what state a subject is in: it is gone."""
        self._stream.recall.forget_changes(subject)

    def stated(self, prefix: str) -> dict[str, tuple[CapabilityState, str]]:
        """Sources whose names begin so and what the recording says of them, earlier runs' too."""
        kind = BY_NAME["capability"]
        at = [kind.index(name) for name in ("source", "state", "reason")]
        rows = ([row[i] for i in at] for row in self._stream.recall.latest(kind))
        return {
            source: (CapabilityState(state), reason)
            for source, state, reason in rows
            if source.startswith(prefix) and state in set(CapabilityState)
        }

    def forget_tasks(self, tids: Iterable[int]) -> None:
        """Threads that are gone need not be named in new segments."""
        for tid in tids:
            self._stream.recall.forget_task(tid)

    def describe(self, boot_id: str, now_ns: int) -> None:
        """State who writes here and what this host is."""
        streams = [
            (DAEMON_STREAM, os.getpid(), now_ns, "host", "daemon"),
            (KERNEL_STREAM, 0, now_ns, "ebpf", ""),
        ]
        self.write(BY_NAME["stream"], streams)
        uname = platform.uname()
        facts = {
            "boot_id": boot_id,
            "hostname": uname.node,
            "kernel": f"{uname.release} {uname.machine}",
            "schema": str(SCHEMA_VERSION),
            "gpucorrelate.version": gpucorrelate.__version__,
            "session": self._session,
        }
        self.facts(facts, now_ns)
        self.clock(now_ns)

    def clock(self, now_ns: int) -> None:
        """State what the wall clock says, unless that was done a little while ago."""
        if self._clock_ns is not None and now_ns - self._clock_ns < _CLOCK_EVERY_NS:
            return
        self._clock_ns = now_ns
        width, middle, other = min(_read_clock() for _ in range(_CLOCK_READINGS))
        self.write(BY_NAME["clock_pair"], [(middle, width, WALL_CLOCK, other)])

    def facts(self, facts: Mapping[str, str], now_ns: int) -> None:
        """State what is true of the whole recording."""
        self.write(BY_NAME["meta"], [(now_ns, key, value) for key, value in facts.items()])

    def agent(self, stream: AgentStream) -> None:
        """State who writes a stream."""
        start_ns = procfs.start_ns(stream.ticks)
        row = (stream.number, stream.pid, start_ns, stream.producer, stream.role)
        self.write(BY_NAME["stream"], [row])

    def event(self, event: SessionEvent, pid: int, detail: str, now_ns: int) -> None:
        """Record a turn in the session's life."""
        row = (now_ns, int(event), pid, self._session, detail[:_TEXT_CHARS])
        self.write(BY_NAME["session"], [row])

    def capability(self, source: str, state: CapabilityState, reason: str) -> None:
        """Record whether a source of evidence works, if that is news."""
        if self._capabilities.get(source) == (state, reason):
            return
        self._capabilities[source] = (state, reason)
        row = (time.monotonic_ns(), source, int(state), reason[:_TEXT_CHARS])
        self.write(BY_NAME["capability"], [row])

    def capability_state(self, source: str, state: CapabilityState, reason: str) -> None:
        """The same, but another reason alone is no news: it may hold a count."""
        known = self._capabilities.get(source)
        if known is None or known[0] != state:
            self.capability(source, state, reason)

    def knows(self, source: str) -> bool:
        """Whether anything was said of that source."""
        return source in self._capabilities

    def loss(self, hop: str, what: str, count: int, since_ns: int = 0, t_ns: int = 0) -> None:
        """Count lost events; ``write_losses`` records them."""
        t_ns = t_ns or time.monotonic_ns()
        count = min(count, _MAX_COUNT)
        if len(self._losses) >= _MOST_LOSSES and (hop, what) not in self._losses:
            what = OTHERS
        known = self._losses.get((hop, what), (0, since_ns, t_ns))
        self._losses[hop, what] = (
            known[0] + count,
            min(known[1], since_ns),
            max(known[2], t_ns),
        )
        self.lost += count

    def write_losses(self) -> None:
        """Record what was counted since the last time, one row for each hop and kind."""
        rows = self.unwritten()
        self._losses = {}
        self.write(BY_NAME["loss"], rows)

    def unwritten(self) -> list[Row]:
        """Rows of the losses that are not recorded yet."""
        return [
            (t_ns, since_ns, hop, what[:_TEXT_CHARS], count)
            for (hop, what), (count, since_ns, t_ns) in self._losses.items()
        ]

    def last_words(self, pid: int, reason: str, now_ns: int) -> bytes:
        """Frames with the losses not recorded yet and the session's end, for the caller to write.

        They hold every string of the daemon's stream: what stated them before may be lost.
        """
        self._stream.table.restate()
        frames: list[bytes] = []
        self._append = lambda frame, _rows: frames.append(frame)
        self.write_losses()
        self.event(SessionEvent.DETACHED, pid, reason, now_ns)
        return b"".join(frames)

    def complaints(self) -> tuple[str, ...]:
        """Sources that should work and do not."""
        return tuple(
            f"{source}: {reason}"
            for source, (state, reason) in self._capabilities.items()
            if state == CapabilityState.DEGRADED
            or (state == CapabilityState.OFF and source == "ebpf")
        )


def _read_clock() -> tuple[int, int, int]:
    """Distance and middle of two readings of CLOCK_MONOTONIC, and the wall clock between them.

    The narrowest of several is the best one.
    """
    before = time.monotonic_ns()
    other = time.time_ns()
    after = time.monotonic_ns()
    return after - before, (before + after) // 2, other
