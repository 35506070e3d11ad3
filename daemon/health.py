# SPDX-License-Identifier: Apache-2.0
"""Counters at every hop, as one frozen snapshot that ``status`` shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class KernelCounters:
    """The kernel probes.

    Attributes:
        state: ``on``, ``degraded`` or ``off``.
        reason: What is lost and why; empty when all is well.
        backend: Which loader runs the programs; empty when none does.
        targets: Processes traced.
        drained: Rows taken from the rings.
        lost: Events the kernel could not hand over.
        detail: The probes' own counters, by name.
    """

    state: str = "off"
    reason: str = ""
    backend: str = ""
    targets: int = 0
    drained: int = 0
    lost: int = 0
    detail: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class IngestCounters:
    """The agents' socket.

    Attributes:
        clients: Connected now.
        started: Of those, told to send.
        accepted: Connections taken since the start.
        refused: Connections turned away: limits, unknown peer.
        cut_off: Connections closed on a peer that broke the rules.
        frames: Valid frames read.
        rows: Rows in them.
        read_bytes: Bytes read.
        damaged: Damaged stretches skipped.
        damaged_bytes: Bytes in them.
        unknown: Frames of a kind this version does not know: kept, not understood.
        unasked: Frames of processes in no session: thrown away.
        repeated: Frames refused because their number was already taken.
        missing: Frames that never came.
        agent_dropped: Rows that agents say they dropped themselves.
    """

    clients: int = 0
    started: int = 0
    accepted: int = 0
    refused: int = 0
    cut_off: int = 0
    frames: int = 0
    rows: int = 0
    read_bytes: int = 0
    damaged: int = 0
    damaged_bytes: int = 0
    unknown: int = 0
    unasked: int = 0
    repeated: int = 0
    missing: int = 0
    agent_dropped: int = 0


@dataclass(frozen=True)
class StoreCounters:
    """The recordings.

    Attributes:
        written_bytes: Bytes written since the start.
        frames: Frames written.
        segments: Segments on disk, all sessions.
        stored_bytes: Bytes on disk, all sessions.
        lost_frames: Frames that could not be written.
        lost_rows: Rows in them.
        shed_rows: Rows thrown away for want of room, by the order of ``shedding``.
        deleted_segments: Segments deleted to keep the limits.
        deleted_sessions: Finished sessions deleted to keep the limits.
        failing: What the last failed write said; empty while writing works.
    """

    written_bytes: int = 0
    frames: int = 0
    segments: int = 0
    stored_bytes: int = 0
    lost_frames: int = 0
    lost_rows: int = 0
    shed_rows: int = 0
    deleted_segments: int = 0
    deleted_sessions: int = 0
    failing: str = ""


@dataclass(frozen=True)
class PollingCounters:
    """Polling of the host.

    Attributes:
        every_ms: How often the cheap sources are looked at; 0: polling is off.
        limit_ppm: Most of one CPU that it may take, in millionths.
        loop_ppm: What it took in the daemon's loop, measured over the last ten seconds.
        thread_ppm: What looks that may block took in their thread, likewise, the programs
            that they ran included.
        looks: Looks made since the start.
        failed: Of those, failed.
        skipped: Looks that were not made as the loop did not take what others brought.
        hurried: Sessions that are looked at more often now, as a request is slow or tasks stand
            still.
    """

    every_ms: int = 0
    limit_ppm: int = 0
    loop_ppm: int = 0
    thread_ppm: int = 0
    looks: int = 0
    failed: int = 0
    skipped: int = 0
    hurried: int = 0


#: What one message may add: an agent's word alone must not make a number too big to send.
_MAX_COUNT = 1 << 48


class Tally:
    """Running counters, which can be read as one of the frozen snapshots."""

    def __init__(self) -> None:
        self.kernel = KernelCounters()
        self._ingest: Counter[str] = Counter()
        self._store: Counter[str] = Counter()

    @property
    def ingest(self) -> IngestCounters:
        """The agents' socket as it is now."""
        return replace(IngestCounters(), **self._ingest)

    @property
    def store(self) -> StoreCounters:
        """The recordings as they are now; what is on disk is not in it."""
        return replace(StoreCounters(), **dict(self._store))  # type: ignore[arg-type]

    def count_ingest(self, **more: int) -> None:
        """Add to counters of the agents' socket."""
        self._ingest.update({name: min(count, _MAX_COUNT) for name, count in more.items()})

    def count_store(self, **more: int) -> None:
        """Add to counters of the recordings."""
        self._store.update(more)
