# SPDX-License-Identifier: Apache-2.0
"""What threads are in at the end of a capture, and where the last of their paths went.

Reports are of requests that are over. Of one in flight less is known: what a thread is blocked in
has no end yet, and nobody has ended it. Who ended such waits of the thread before is known, and is
told as that. The walk is the same as for reports; what it finds is summed by columns, for a second
of a busy engine's path has tens of thousands of segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import namespaces, states, steps
from gpucorrelate.correlator.causes import Describer, wait_name
from gpucorrelate.correlator.report.values import Actor, Category
from gpucorrelate.correlator.states import CATEGORIES, WaitClass
from gpucorrelate.correlator.walk import LegSpec, Walker
from gpucorrelate.probes.wire.schema import WaitFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.values import Segment

#: How many threads are followed that wait for each other.
_MOST_HOPS = 6
#: Waits of a thread that are looked through for one like the one it is in.
_LOOK_BACK = 4096
#: Categories in which somebody else had the CPU: who it was tells them apart.
_RAN = (CATEGORIES.index(Category.PREEMPTED), CATEGORIES.index(Category.RUN_QUEUE))
_EVIDENCE_WAIT = 1


@dataclass(frozen=True)
class Hold:
    """Who holds a path at a moment, and with what.

    Attributes:
        actor: The thread.
        category: ``cpu`` where it runs; ``run-queue`` or ``preempted`` where it is ready; else
            ``unexplained``: it is blocked, and what ends that is not known yet.
        what: What it is blocked in, ``futex 0x7f00 op 9``, ``epoll fd 12``; empty where it is not.
        for_ns: How long it has been in that.
        by: Who is waited for, or had the CPU before; None where nobody is known.
        assumed: ``by`` ended such waits of this thread before; that it will now is not known.
        waiters: Who waits for the actor, the nearest first, up to the thread that has the request.
    """

    actor: Actor
    category: Category
    what: str
    for_ns: int
    by: Actor | None = None
    assumed: bool = False
    waiters: tuple[Actor, ...] = ()


@dataclass(frozen=True)
class Holder:
    """Somebody's part of a stretch of path.

    Attributes:
        actor: Who.
        category: What it did or suffered.
        what: Its named phase, or what it waited in; empty where nothing says.
        length_ns: How long, over all requests whose path it was.
        cause: Who or what held it up, in words; empty where nothing did or nothing says.
        by: Whoever that was; None where it was nobody, or is not known.
    """

    actor: Actor
    category: Category
    what: str
    length_ns: int
    cause: str = ""
    by: Actor | None = None


@dataclass(frozen=True)
class Ask:
    """A thread that had requests, and when it had each.

    Attributes:
        tid: The thread, as the host numbers it.
        spans: From when to when, for each of its requests.
    """

    tid: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sums:
    """Paths of several requests, summed.

    Attributes:
        categories: Time by category, the largest first.
        holders: Time by who and what, the largest first; the smallest are left out.
    """

    categories: tuple[tuple[Category, int], ...] = ()
    holders: tuple[Holder, ...] = ()


class Current:
    """The end of a capture, correlated as far as that needs."""

    def __init__(self, capture: Capture) -> None:
        self._tids = namespaces._maps(capture)
        capture = namespaces.to_host(capture)
        self._capture = capture
        self._states = states.build(capture)
        self._walker = Walker(self._states)
        self._describe = Describer(self._states, steps.build(capture, steps.rowsets(capture)))

    def host_tid(self, stream: int, tid: int) -> int:
        """A thread's number on the host, by its number in the process that wrote a stream."""
        return self._tids.get(stream, {}).get(tid, tid)

    def together(self, asks: Sequence[Ask], until_ns: int, most: int) -> Sums:
        """Where the paths of all requests went.

        Args:
            asks: Threads and when they had requests.
            until_ns: The paths are walked back from there.
            most: Holders that are told; the rest are in the categories alone.
        """
        parts, weights = self._walked(asks, until_ns)
        if not parts:
            return Sums()
        return self._sum(np.concatenate(parts), np.concatenate(weights), most)

    def apart(self, asks: Sequence[Ask], until_ns: int, most: int) -> list[Sums]:
        """The same for the requests of each thread."""
        parts, weights = self._walked(asks, until_ns)
        return [self._sum(*pair, most) for pair in zip(parts, weights, strict=True)]

    def _walked(
        self, asks: Sequence[Ask], until_ns: int
    ) -> tuple[list[NDArray[np.void]], list[NDArray[np.int64]]]:
        """Segments of each thread's path, and how long they were on paths of requests."""
        legs = []
        for ask in asks:
            start = min((start for start, _ in ask.spans), default=until_ns)
            legs.append(LegSpec(self._states.threads.one(ask.tid), start, until_ns))
        paths = self._walker.walk(legs)
        parts = [paths.leg(k) for k in range(len(legs))]
        return parts, [_weights(part, ask.spans) for part, ask in zip(parts, asks, strict=True)]

    def _sum(self, rows: NDArray[np.void], weight: NDArray[np.int64], most: int) -> Sums:
        if not len(rows):
            return Sums()
        by_category = np.bincount(rows["category"], weight, len(CATEGORIES)).astype(np.int64)
        categories = [(c, int(n)) for c, n in zip(CATEGORIES, by_category, strict=True) if n]
        categories.sort(key=lambda pair: -pair[1])
        found, inverse = np.unique(
            _key(rows["category"], rows["actor"], self._names(rows["span"]), self._ran(rows)),
            return_inverse=True,
        )
        sums = np.bincount(inverse, weight, len(found)).astype(np.int64)
        holders = []
        length = rows["end"] - rows["start"]
        for at in np.argsort(-sums, kind="stable")[:most].tolist():
            if not sums[at]:
                break
            mine = np.flatnonzero(inverse == at)
            k = int(mine[length[mine].argmax()])
            segment = self._describe.segments(rows[k : k + 1], ())[0]
            holders.append(_holder(segment, int(sums[at])))
        return Sums(tuple(categories), tuple(holders))

    def _names(self, span: NDArray[np.int64]) -> NDArray[np.int64]:
        """The name of each span, as a number; -1 for none."""
        spans = self._states.spans
        if not len(spans.row):
            return np.full(len(span), -1, np.int64)
        row = spans.row[np.maximum(span, 0)]
        return np.where(span >= 0, spans.name[row].astype(np.int64), -1)

    def _ran(self, rows: NDArray[np.void]) -> NDArray[np.int64]:
        """Who had the CPU that each waited for; 0 where none was waited for."""
        waits = self._states.waits.table
        asked = np.isin(rows["category"], _RAN) & (rows["evidence_kind"] == _EVIDENCE_WAIT)
        out = np.zeros(len(rows), np.int64)
        at = rows["evidence"][asked]
        preempted = rows["category"][asked] == _RAN[0]
        who = np.where(preempted, waits["waker_tid"][at], waits["ran_tid"][at])
        out[asked] = who.astype(np.int64)
        return out

    # One moment.

    def hold(self, tid: int, t_ns: int) -> Hold | None:
        """Who holds the path of a request that a thread has; None where nothing is known of it.

        The thread, if it runs or is ready; else whoever ended such waits of it before, as far as
        that is itself not blocked in something that nobody is known to end.
        """
        threads = self._states.threads
        thread = threads.one(tid)
        if thread < 0 or not threads.traced[thread]:
            return None
        waiters: list[int] = []
        found = self._one(thread, t_ns)
        while found is not None and found.by is not None and found.assumed:
            peer = threads.one(found.by.tid)
            if peer < 0 or peer in waiters or peer == thread or len(waiters) >= _MOST_HOPS:
                break
            following = self._one(peer, t_ns)
            if following is None:
                break
            waiters.insert(0, thread)
            thread, found = peer, following
        if found is None:
            return None
        actors = tuple(self._describe.actor(one) for one in waiters)
        return Hold(
            found.actor, found.category, found.what, found.for_ns, found.by, found.assumed, actors
        )

    def _one(self, thread: int, t_ns: int) -> Hold | None:
        """What a thread is in."""
        waits, actor = self._states.waits, self._describe.actor(thread)
        if not self._states.threads.traced[thread]:
            return None
        low, high = int(waits.off[thread]), int(waits.off[thread + 1])
        if low == high:
            return Hold(actor, Category.CPU, "", t_ns - int(self._states.threads.first_ns[thread]))
        row, table = high - 1, waits.table
        is_open = int(table["flags"][row]) & WaitFlag.OPEN
        if not is_open:
            if not self._states.closed:
                return None  # nobody says what it waits in
            return Hold(actor, Category.CPU, "", max(0, t_ns - int(waits.end_ns[row])))
        start, wake = int(waits.start_ns[row]), int(waits.wake_ns[row])
        if waits.cls[row] == WaitClass.PREEMPTED:
            category = CATEGORIES[int(waits.leaf[row])]
            ran = self._actor(int(table["waker_tid"][row]), int(table["waker_tgid"][row]))
            return Hold(actor, category, "", t_ns - start, ran)
        if wake:
            ran = self._actor(int(table["ran_tid"][row]), int(table["ran_tgid"][row]))
            return Hold(actor, Category.RUN_QUEUE, "", t_ns - wake, ran)
        by = self._before(low, row)
        what = wait_name(table, row)
        return Hold(actor, Category.UNEXPLAINED, what, t_ns - start, by, assumed=by is not None)

    def _before(self, low: int, row: int) -> Actor | None:
        """Who ended the last wait like this one of the same thread: the same call and object."""
        table = self._states.waits.table
        part = slice(max(low, row - _LOOK_BACK), row)
        same = self._states.waits.peer[part] >= 0
        for name in ("wait_kind", "arg", "op"):
            same &= table[name][part] == table[name][row]
        found = np.flatnonzero(same)
        if not len(found):
            return None
        peer = int(self._states.waits.peer[part.start + int(found[-1])])
        actor = self._describe.actor(peer)
        return actor if actor.traced else None

    def _actor(self, tid: int, tgid: int) -> Actor | None:
        return self._describe.stranger(tid, tgid)


def _key(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """One number for each combination of values: these sort much quicker than rows do."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = column.astype(np.int64)
        low = int(values.min())
        size = int(values.max()) - low + 1
        if (int(key.max()) + 1) * size >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
        key = key * size + (values - low)
    return key


def _weights(rows: NDArray[np.void], spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """How long each segment was on the paths of all requests of a thread together."""
    if not len(rows) or not spans:
        return np.zeros(len(rows), np.int64)
    edges = np.array(spans, np.int64).reshape(-1, 2)
    moments = np.concatenate([edges[:, 0], edges[:, 1]])
    steps = np.repeat(np.array([1, -1], np.int64), len(edges))
    order = np.argsort(moments, kind="stable")
    moments, alive = moments[order], np.cumsum(steps[order])
    # Request time up to each moment; between two of them it grows by those that were alive.
    passed = np.concatenate([[0], np.cumsum(np.diff(moments) * alive[:-1])])

    def until(t: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.searchsorted(moments, t, side="right") - 1
        known = np.maximum(at, 0)
        found = passed[known] + (t - moments[known]) * alive[known]
        return np.where(at < 0, 0, found)

    return until(rows["end"]) - until(rows["start"])


def _holder(segment: Segment, length_ns: int) -> Holder:
    cause = segment.cause
    note = segment.evidence[0].note if segment.evidence else ""
    what = segment.span
    if not what and segment.category not in (Category.RUN_QUEUE, Category.PREEMPTED):
        what = note
    return Holder(
        segment.actor,
        segment.category,
        what,
        length_ns,
        cause.text if cause is not None else "",
        cause.actor if cause is not None else None,
    )
