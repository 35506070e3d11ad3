# SPDX-License-Identifier: Apache-2.0
"""From the daemon's counters to what its status tells: losses by hop, how full limits are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.overhead import Fill, HopLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import IngestCounters, KernelCounters, StoreCounters
    from gpucorrelate.daemon.overhead import Overhead
    from gpucorrelate.daemon.session import Session


def hops(
    kernel: KernelCounters, ingest: IngestCounters, store: StoreCounters
) -> tuple[HopLoss, ...]:
    """What was lost at each hop since the daemon started, along the way of the data."""
    return (
        HopLoss("bpf", kernel.lost, "events"),
        HopLoss("agent.queue", ingest.agent_dropped),
        HopLoss("ingest.stream", ingest.missing, "batches"),
        HopLoss("ingest.damage", ingest.damaged, "stretches"),
        HopLoss("daemon.shed", store.shed_rows),
        HopLoss("store.disk", store.lost_rows),
        HopLoss("store.retention", store.deleted_segments, "segments"),
    )


def fills(
    config: DaemonConfig,
    overhead: Overhead,
    sessions: Sequence[Session],
    *,
    agents: int,
    callers: int,
    stored_bytes: int,
) -> tuple[Fill, ...]:
    """Limits and how full they are; of what each session has, the fullest one's."""
    limits = config.limits
    found = [
        Fill("sessions", len(sessions), limits.sessions),
        Fill("processes of a session", _most(sessions, _processes), limits.processes),
        Fill("agents", agents, limits.clients),
        Fill("callers", callers, limits.control_clients),
        Fill("recording", _most(sessions, _size), config.session_max_bytes, "bytes"),
        Fill("recordings", stored_bytes, config.total_max_bytes, "bytes"),
    ]
    if overhead.descriptors is not None and overhead.descriptors_most:
        found.append(Fill("open files", overhead.descriptors, overhead.descriptors_most))
    if overhead.rss_bytes is not None and overhead.memory_limit_bytes:
        found.append(Fill("memory", overhead.rss_bytes, overhead.memory_limit_bytes, "bytes"))
    return tuple(found)


def _most(sessions: Sequence[Session], of: Callable[[Session], int]) -> int:
    return max(map(of, sessions), default=0)


def _processes(session: Session) -> int:
    return len(session.processes.living())


def _size(session: Session) -> int:
    return session.size_bytes
