# SPDX-License-Identifier: Apache-2.0
"""When the recording is known to be blind: windows of loss by process, and how it ends.

A thread is taken to run where no wait of it is recorded. That holds only where no record can
be missing; so every hop that can lose one makes a window in which running is not believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.wire.schema import CapabilityState, SessionEvent, WaitFlag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table

    I64 = NDArray[np.int64]

#: Hops that carry the kernel's records, for all processes.
_ALL_HOPS = ("bpf", "daemon", "store")
#: Hops that carry what agents say: without it a polling loop looks like work.
_AGENT_HOPS = ("agent", "ingest")
#: Sources whose absence means that no waits are recorded.
_KERNEL_SOURCES = ("ebpf", "ebpf.sched")


@dataclass(frozen=True)
class Windows:
    """Merged windows per process; process ``k`` has rows ``off[k]`` to ``off[k + 1]``."""

    off: I64
    start_ns: I64
    end_ns: I64


def windows(capture: Capture, processes: I64, bounds: tuple[int, int]) -> Windows:
    """Windows of loss for each of the processes (by id, in the order given)."""
    everywhere = [
        *_lost(capture, _ALL_HOPS, bounds[0]),
        *_gaps(capture, bounds),
        *_off(capture, bounds),
    ]
    agents = {info.tgid for info in capture.streams if info.producer == "vllm"}
    in_agents = everywhere + _lost(capture, _AGENT_HOPS, bounds[0])
    merged = {True: _union(in_agents), False: _union(everywhere)}
    parts = [merged[int(tgid) in agents] for tgid in processes]
    empty = np.zeros(0, np.int64)
    return Windows(
        np.cumsum([0, *(len(part[0]) for part in parts)]).astype(np.int64),
        np.concatenate([empty, *(part[0] for part in parts)]),
        np.concatenate([empty, *(part[1] for part in parts)]),
    )


def kernel_streams(capture: Capture) -> set[int]:
    """Streams of the kernel probes; by its usual number where no batch says who wrote it."""
    return {info.stream for info in capture.streams if info.producer == "ebpf"} or {2}


def _lost(capture: Capture, hops: tuple[str, ...], begin: int) -> list[tuple[int, int]]:
    rows = capture.table("loss")
    return [
        (since or begin, t)
        for hop, since, t in zip(
            *(rows[c].tolist() for c in ("hop", "since_ns", "t_ns")), strict=True
        )
        if capture.strings[hop].partition(".")[0] in hops
    ]


def _gaps(capture: Capture, bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """Batches missing from the kernel's stream."""
    kernel = kernel_streams(capture)
    return [
        (since or bounds[0], until or max(since, bounds[1]))
        for stream, since, until in capture.intake.gaps
        if stream in kernel
    ]


def _off(capture: Capture, bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """Stretches in which the kernel probes said that they were off."""
    rows = capture.table("capability")
    out: list[tuple[int, int]] = []
    since: int | None = None
    for t, source, state in zip(
        *(rows[c].tolist() for c in ("t_ns", "source", "state")), strict=True
    ):
        if capture.strings[source] not in _KERNEL_SOURCES:
            continue
        if state == CapabilityState.OFF:
            since = t if since is None else since
        elif since is not None:
            out.append((since, t))
            since = None
    return out if since is None else [*out, (since, max(since, bounds[1]))]


def _union(pairs: list[tuple[int, int]]) -> tuple[I64, I64]:
    """Overlapping windows merged, sorted."""
    merged: list[list[int]] = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, max(start, end)])
    return (
        np.array([pair[0] for pair in merged], np.int64),
        np.array([pair[1] for pair in merged], np.int64),
    )


def closed(capture: Capture, waits: Table) -> bool:
    """Whether the recording was brought to an end: open waits written, or a detach."""
    session = capture.table("session")
    detached = bool((session["event"] == SessionEvent.DETACHED).any())
    return detached or bool((waits["flags"] & WaitFlag.OPEN).any())
