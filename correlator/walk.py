# SPDX-License-Identifier: Apache-2.0
"""The backward walk, the one algorithm: legs in, segments that tile them out.

To explain ``[start, end]`` ending on a thread, go backward from the end; at every instant
exactly one thread holds the path, so the segments follow each other without gap or overlap
and their lengths sum to the interval exactly. How the path moves:

- A wait that a traced thread ended by a message (socket, pipe, eventfd, queue, condition):
  go on at the waker, just before the wake. If the waker turns out to sit in a timer, external
  or idle wait that began before the waiter blocked, that explains only the wait: clip it
  there and return to the waiter.
- A lock (mutex, interpreter lock): what its holder did explains the wait, then the path
  returns to the waiter at the moment it blocked. A holder of the interpreter lock is never
  followed into a sleep: whoever sleeps does not hold it.
- A polling loop on a shared-memory queue is a wait of its own: the path goes to the writer at
  the moment its message was visible; noticing it is ``spin-handoff``.
- Runnable is ``run-queue``, or ``preempted`` with who ran instead, or ``throttled``.
- Before a thread was born the path is with the one that created it.
- Where waits were lost, being on a CPU proves nothing: ``unobserved``.
- Where a response could not be written on because its client did not read, what the event loop's
  thread did was for others: ``network``, without a walk.

The inner loop is C (``native/walk.c``); this module hands it columns.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.native import SEGMENT, Columns, NativeWalk
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.states import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.states import States

    I64 = NDArray[np.int64]

#: Evidence of a segment, beside the walk's own kinds: a response could not be written on.
EVIDENCE_UNREAD = 7


@dataclass(frozen=True)
class LegSpec:
    """A stretch to explain.

    Attributes:
        thread: Index of the actor at which it ends, a thread or a stream; -1 unknown.
        start_ns: Start.
        end_ns: End.
        cuts_ns: Moments at which segments are split, ascending; ``phase`` of a segment is the
            index of the last cut before it.
    """

    thread: int
    start_ns: int
    end_ns: int
    cuts_ns: tuple[int, ...] = ()
    op: int = -1  # where it ends on a stream: the operation that it ends with
    held_back: bool = False  # nothing to walk: a client did not read its response


@dataclass(frozen=True)
class Paths:
    """Segments of several legs; within a leg oldest first.

    ``segments`` and ``hops`` have the layouts of ``native.SEGMENT`` and ``native.HOP``.
    """

    segments: NDArray[np.void]
    hops: NDArray[np.void]
    first: I64  # first segment of each leg; one entry more than legs
    first_hop: I64

    def leg(self, k: int) -> NDArray[np.void]:
        """Segments of one leg, oldest first."""
        return self.segments[self.first[k] : self.first[k + 1]]

    def leg_hops(self, k: int) -> NDArray[np.void]:
        """Hops of one leg, newest first."""
        return self.hops[self.first_hop[k] : self.first_hop[k + 1]]


class Walker:
    """Walks legs over one capture's states."""

    def __init__(self, states: States) -> None:
        threads, waits, reads = states.threads, states.waits, states.reads
        n = len(threads.tid)
        procs, proc = states.processes, np.searchsorted(states.processes, threads.tgid)
        # Who may hold the interpreter lock: threads that the interpreter itself knows.
        members = np.flatnonzero(threads.traced & threads.named)
        members = members[np.argsort(proc[members], kind="stable")]
        offsets = np.searchsorted(proc[members], np.arange(len(procs) + 1))
        self._native = NativeWalk(
            Columns(
                w_off=waits.off,
                w_start=waits.start_ns,
                w_end=waits.end_ns,
                w_wake=waits.wake_ns,
                w_peer=waits.peer,
                w_class=waits.cls,
                w_leaf=waits.leaf,
                q_off=reads.off,
                q_start=reads.start_ns,
                q_ready=reads.ready_ns,
                q_sent=reads.sent_ns,
                q_peer=reads.peer,
                s_off=states.spans.off,
                s_start=states.spans.start_ns,
                s_end=states.spans.end_ns,
                f_off=states.faults.off,
                f_start=states.faults.start_ns,
                f_end=states.faults.end_ns,
                t_first=np.ascontiguousarray(threads.first_ns, np.int64),
                t_last=np.ascontiguousarray(threads.last_ns, np.int64),
                t_proc=np.ascontiguousarray(proc, np.int32) if n else np.zeros(0, np.int32),
                p_off=np.ascontiguousarray(offsets, np.int64),
                p_threads=np.ascontiguousarray(members, np.int32),
                l_off=states.lost.off,
                l_start=states.lost.start_ns,
                l_end=states.lost.end_ns,
                t_host=np.ascontiguousarray(~threads.traced, np.uint8),
                y_off=states.path.sync_off,
                y_start=states.path.sync_start_ns,
                y_end=states.path.sync_end_ns,
                y_op=states.path.sync_op,
                g_off=states.device.ops.off,
                g_start=states.device.ops.start_ns,
                g_end=states.device.ops.end_ns,
                g_pred=states.path.pred,
                g_land=states.path.land_ns,
                g_margin=states.path.margin_ns,
                g_actor=states.path.actor,
                g_to=states.path.to,
                g_gap=states.path.gap,
                t_from=threads.creator,
            )
        )

    def walk(self, legs: Sequence[LegSpec]) -> Paths:
        """Explain legs. An empty or negative leg yields no segments."""
        n = len(legs)
        within = [_cuts_within(leg) for leg in legs]
        cut_off = np.zeros(n + 1, np.int64)
        np.cumsum([last - first for first, last in within], out=cut_off[1:])
        parts = zip(legs, within, strict=True)
        cuts = np.array([t for leg, (a, b) in parts for t in leg.cuts_ns[a:b]], np.int64)
        segments, hops = self._native.run(
            np.array([leg.thread for leg in legs], np.int32),
            np.array([leg.op for leg in legs], np.int64),
            np.array([leg.end_ns for leg in legs], np.int64),
            np.array([leg.end_ns if leg.held_back else leg.start_ns for leg in legs], np.int64),
            cut_off,
            cuts,
        )
        held_back = _held_back(legs)
        segments = np.concatenate([segments, held_back])
        walked = segments[: len(segments) - len(held_back)]
        walked["phase"] += np.array([first for first, _ in within], np.int32)[walked["leg"]]
        order = np.lexsort((segments["start"], segments["leg"]))
        segments = segments[order]
        at = np.arange(n + 1)
        return Paths(
            segments,
            hops,
            np.searchsorted(segments["leg"], at).astype(np.int64),
            np.searchsorted(hops["leg"], at).astype(np.int64),
        )


def _cuts_within(leg: LegSpec) -> tuple[int, int]:
    """Which of a leg's cuts can matter in it: the last one before it, and those within.

    A request has a leg and a cut for every token, and all its legs share its cuts: taken whole
    they would be as many as its tokens squared.
    """
    first = max(0, bisect.bisect_right(leg.cuts_ns, leg.start_ns) - 1)
    return first, max(first, bisect.bisect_left(leg.cuts_ns, leg.end_ns))


def _held_back(legs: Sequence[LegSpec]) -> NDArray[np.void]:
    """Segments of the legs that need no walk, split at their cuts as the walk's are."""
    rows = []
    for k, leg in enumerate(legs):
        if not leg.held_back:
            continue
        inner = [t for t in leg.cuts_ns if leg.start_ns < t < leg.end_ns]
        for start, end in itertools.pairwise([leg.start_ns, *inner, leg.end_ns]):
            phase = bisect.bisect_left(leg.cuts_ns, end) - 1
            rows.append((start, end, leg.thread, k, phase))
    found = np.zeros(len(rows), SEGMENT)
    for name in ("evidence", "span", "slack", "held_by", "related", "held"):
        found[name] = -1
    for at, name in enumerate(("start", "end", "actor", "leg", "phase")):
        found[name] = [row[at] for row in rows]
    found["category"] = CATEGORIES.index(Category.NETWORK)
    found["evidence_kind"] = EVIDENCE_UNREAD
    return found
