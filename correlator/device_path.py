# SPDX-License-Identifier: Apache-2.0
"""How the path leads through devices: what let each operation go, and what callers waited for.

An operation begins when the last of these has happened: it was launched; what lies before it on
its stream has ended; the event its stream waits for has come; within one graph, the nodes before
it have ended. The last of them is its enabler. A call that returns after the operation has begun
was under way when it let it go, so it counts from its start; otherwise from its return.

Where a trace does not say which event a stream waits for, but has the call that made it wait, the
operation of another stream that ended just before is taken for it, and counted as inferred.

A call that synchronises waited for the last operation that it covers, where that ended within it.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.device import CallKind
from gpucorrelate.correlator.device_steps import launched_before
from gpucorrelate.correlator.native.columns import latest
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import (
    first_after,
    grouped,
    last_at_most,
    nested_order,
    running_max,
)
from gpucorrelate.probes.wire.schema import SyncKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.device import Calls, Device, Ops
    from gpucorrelate.correlator.states import Threads

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    U8 = NDArray[np.uint8]

_LEAST = np.iinfo(np.int64).min
_NO_STREAM = (1 << 64) - 1
#: How many operations that ended later but were launched after the call are passed over.
_LOOK_BACK = 16
#: Clocks of hosts and devices are aligned to about a microsecond: an operation that seems to end
#: this much after the call that waited for it returned did not.
_SKEW_NS = 2_000
#: Polls further apart are no loop: the thread did something else meanwhile.
_POLL_GAP_NS = 100_000
#: From the end of one operation to the start of the next on its stream devices take 1 to 5 us.
#: Beyond this something kept it that is not on record, so the gap is not the queue's.
QUEUE_GAP_NS = 20_000
#: So an operation that ended this long before another began may be what that waited for.
_NEAR_NS = QUEUE_GAP_NS
_CODES = {category: code for code, category in enumerate(Category)}
_PAIR = 2
_WAITING = (CallKind.SYNC_DEVICE, CallKind.SYNC_STREAM, CallKind.SYNC_EVENT)


@dataclass(frozen=True)
class DevicePath:
    """What the walk needs of devices.

    Attributes:
        actor: Per operation: its stream as an actor, behind all threads.
        pred: Per operation: the operation that let it go; -1 it was the launch, or is unknown.
        to: Per operation: the actor that let it go; -1 unknown.
        land_ns: Per operation: when that did so, at most its start.
        margin_ns: Per operation: by how much the enabler was the last; -1 unknown.
        gap: Per operation: category of the time from ``land_ns`` to its start.
        sync_off: Per thread: its first synchronisation; one entry more than threads.
        sync_start_ns: Start of each.
        sync_end_ns: End of each.
        sync_op: Operation each waited for; -1 none.
        sync_call: The call, of a run of polls the first.
        guessed: Of how many what they waited for is inferred from when other operations ended.
    """

    actor: I32
    pred: I64
    to: I32
    land_ns: I64
    margin_ns: I64
    gap: U8
    sync_off: I64
    sync_start_ns: I64
    sync_end_ns: I64
    sync_op: I64
    sync_call: I64
    guessed: int


def build(capture: Capture, threads: Threads, device: Device) -> DevicePath:
    """Find what let each operation go, and what each synchronisation waited for."""
    n_threads, ops, calls = len(threads.tid), device.ops, device.calls
    actor = (ops.stream + n_threads).astype(np.int32)
    launch = launched_before(calls, ops)
    order = _StreamOrder.of(calls, ops, launch)
    syncs = _Syncs.of(capture.table("gpu_sync"), device)
    ended_by = _Ended(ops, launch)
    near = _near_edges(device, syncs, order, ended_by)
    events = _Events.of(device, syncs, order)
    graphs = _siblings(ops, order.branched), *_around_graphs(ops, order)
    candidates = (order.previous, *graphs, events.edges, near)
    pred, second = latest(ops.start_ns, ops.end_ns, *candidates)
    key, land = _launch_moments(device)
    ended = np.where(pred >= 0, np.minimum(ops.end_ns[pred], ops.start_ns), _LEAST)
    by_op = (pred >= 0) & (ended >= key)
    thread = calls.thread[ops.call] if len(calls) else np.full(len(ops), -1, np.int32)
    to = np.where(by_op, actor[pred], np.where(ops.call >= 0, thread, -1)).astype(np.int32)
    gap = np.where(by_op, _CODES[Category.QUEUE_GAP], _CODES[Category.LAUNCH_GAP])
    long = by_op & (ops.start_ns - ended > QUEUE_GAP_NS)
    gap = np.where(long, _CODES[Category.UNEXPLAINED], gap)
    # Without its launch nobody knows whether the device or the host kept it waiting.
    gap = np.where((ops.call < 0) | (to < 0), _CODES[Category.UNOBSERVED], gap)
    other = np.where(by_op, np.maximum(second, key), ended)
    margin = np.where(other > _LEAST, np.where(by_op, ended, key) - other, -1)
    spans = _waits(device, syncs, events, ended_by)
    return DevicePath(
        actor,
        np.where(by_op, pred, -1),
        to,
        np.where(by_op, ended, land),
        margin,
        gap.astype(np.uint8),
        *_by_thread(device, spans, n_threads),
        spans.guessed + int(((pred == near) & (near >= 0)).sum()),
    )


def _launch_moments(device: Device) -> tuple[I64, I64]:
    """When each operation was let go by its launch, and where the path lands on the caller."""
    calls, ops = device.calls, device.ops
    if not len(calls):
        least = np.full(len(ops), _LEAST, np.int64)
        return least, ops.start_ns
    start, end = calls.start_ns[ops.call], calls.end_ns[ops.call]
    # A graph's launch has done its part when the first of its operations begins.
    first, several = ops.start_ns, _several(calls, ops)
    if len(several):
        call = ops.call[several]
        least = np.full(int(call.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, call, first[several])
        first = first.copy()
        first[several] = least[call]
    key = np.where(end <= first, end, np.minimum(start, first))
    known = ops.call >= 0
    return np.where(known, key, _LEAST), np.where(known, np.minimum(end, ops.start_ns), 0)


@dataclass(frozen=True)
class _StreamOrder:
    """Each stream's operations in their order."""

    previous: I64  # of those before it on its stream the one that ends last; -1 none
    whole: I64  # where it is on the stream of a branched graph: the graph's last; else itself
    first: I64  # where it is of a branched graph: the graph's first; else -1
    top: I64  # what ends last up to and with it, graphs as a whole
    launched_ns: I64  # the latest launch up to and with it
    branched: I64  # the operations of branched graphs

    @classmethod
    def of(cls, calls: Calls, ops: Ops, launch: I64) -> _StreamOrder:
        n = len(ops)
        reach = running_max(ops.end_ns, ops.off)
        top = np.maximum.accumulate(np.where(ops.end_ns == reach, np.arange(n), 0))
        previous = np.full(n, -1, np.int64)
        same = ops.stream[1:] == ops.stream[:-1]
        previous[1:] = np.where(same, top[:-1], -1)
        branched = _branched(calls, ops)
        whole, graph_first = _graph_ends(ops, branched)
        end = ops.end_ns[whole]
        reach = running_max(end, ops.off)
        top = whole[np.maximum.accumulate(np.where(end == reach, np.arange(n), 0))]
        # A launch that is not on record counts as the one before it.
        first = int(launch[launch > _LEAST].min(initial=0)) - 1
        known = np.where(launch > _LEAST, launch, first)
        launched = running_max(known, ops.off)
        return cls(previous, whole, graph_first, top.astype(np.int64), launched, branched)

    def last_launched(self, ops: Ops, stream: I64, moment: I64) -> I64:
        """The operation of the stream that ends last of those launched by then; -1 none."""
        low, high = _stretch(ops, stream)
        at = last_at_most(self.launched_ns, low, high, moment)
        return np.where(at >= low, self.top[np.maximum(at, 0)] if len(self.top) else -1, -1)

    def next_launched(self, ops: Ops, stream: I64, moment: I64) -> I64:
        """The first operation of the stream launched after a moment; -1 none."""
        low, high = _stretch(ops, stream)
        at = first_after(self.launched_ns, low, high, moment)
        return np.where(at < high, at, -1)


def _stretch(ops: Ops, stream: I64) -> tuple[I64, I64]:
    """First and one past the last operation of streams; nothing of one that there is not."""
    good = (stream >= 0) & (stream < len(ops.off) - 1)
    low = ops.off[np.where(good, stream, 0)]
    return low, np.where(good, ops.off[np.where(good, stream + 1, 0)], low)


def _several(calls: Calls, ops: Ops) -> I64:
    """Operations whose launch has more of them."""
    if not len(calls):
        return np.zeros(0, np.int64)
    return np.flatnonzero((ops.call >= 0) & (calls.ops[ops.call] > 1))


def _branched(calls: Calls, ops: Ops) -> I64:
    """Operations of launches that have some on several streams, by launch and start."""
    rows = _several(calls, ops)
    if not len(rows):
        return rows
    call = ops.call[rows]
    least = np.full(int(call.max()) + 1, np.iinfo(np.int64).max)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, call, ops.stream[rows])
    np.maximum.at(most, call, ops.stream[rows])
    rows = rows[least[call] != most[call]]
    order: I64 = rows[np.lexsort((ops.start_ns[rows], ops.call[rows]))]
    return order


def _graph_ends(ops: Ops, rows: I64) -> tuple[I64, I64]:
    """Last and first operation of branched graphs, as ``_StreamOrder`` has them.

    A graph as a whole keeps the order of the stream that it was launched on, which is taken to
    be the stream of its first operation.
    """
    whole, first_of = np.arange(len(ops)), np.full(len(ops), -1, np.int64)
    if not len(rows):
        return whole, first_of
    call = ops.call[rows]
    begins = np.flatnonzero(np.concatenate(([True], call[1:] != call[:-1])))
    graph = np.cumsum(np.concatenate(([True], call[1:] != call[:-1]))) - 1
    by_end = np.lexsort((ops.end_ns[rows], call))
    ends = np.concatenate((begins[1:], [len(rows)])) - 1
    first, last = rows[begins][graph], rows[by_end][ends][graph]
    first_of[rows] = first
    on_stream = ops.stream[rows] == ops.stream[first]
    whole[rows[on_stream]] = last[on_stream]
    return whole, first_of


def _around_graphs(ops: Ops, order: _StreamOrder) -> tuple[I64, I64]:
    """What branched graphs wait for as a whole, and what waits for them as a whole; -1 nothing.

    Any of its operations comes after what was before the first one on its stream; what follows
    on that stream comes after the last of them, wherever that ran.
    """
    before = np.where(order.first >= 0, order.previous[order.first] if len(ops) else -1, -1)
    after = np.full(len(ops), -1, np.int64)
    follows = (ops.stream[1:] == ops.stream[:-1]) & (ops.call[1:] != ops.call[:-1])
    whole = order.whole[:-1]
    after[1:] = np.where(follows & (whole != np.arange(len(whole))), whole, -1)
    return before, after


def _siblings(ops: Ops, rows: I64) -> I64:
    """Of the same launch the operation that ended last before each began; -1 none.

    Only where a launch has operations on several streams: a graph's nodes depend on each other
    across them, and nothing on record says which.
    """
    found = np.full(len(ops), -1, np.int64)
    if not len(rows):
        return found
    by_end = rows[np.lexsort((ops.end_ns[rows], ops.call[rows]))]
    low = np.searchsorted(ops.call[by_end], ops.call[rows])
    high = np.searchsorted(ops.call[by_end], ops.call[rows], side="right")
    at = last_at_most(ops.end_ns[by_end], low, high, ops.start_ns[rows])
    found[rows] = np.where(at >= low, by_end[np.maximum(at, 0)], -1)
    return found


@dataclass(frozen=True)
class _Events:
    """What streams were told to wait for, and what a stream or an event stands for then.

    An event stands for the last operation of its stream launched before it was recorded, and for
    everything that the stream had been told to wait for by then.
    """

    order: _StreamOrder
    edges: I64  # per operation: what its stream was told to wait for before it; -1 nothing
    _ends: I64
    _told: dict[int, tuple[list[int], list[int]]]  # stream: since when, the last to wait for

    @classmethod
    def of(cls, device: Device, syncs: _Syncs, order: _StreamOrder) -> _Events:
        ops = device.ops
        edges = np.full(len(ops), -1, np.int64)
        events = cls(order, edges, ops.end_ns, {})
        told = (syncs.kind == SyncKind.STREAM_WAIT_EVENT) & (syncs.recorded_ns > 0)
        rows = np.flatnonzero(told)
        rows = rows[np.argsort(syncs.called_ns[rows], kind="stable")]
        if not len(rows) or not len(ops):
            return events
        direct = order.last_launched(ops, syncs.record_stream[rows], syncs.recorded_ns[rows])
        target = order.next_launched(ops, syncs.stream[rows], syncs.called_ns[rows])
        for row, own, op in zip(rows.tolist(), direct.tolist(), target.tolist(), strict=True):
            source = events.stands_for(
                int(syncs.record_key[row]), int(syncs.recorded_ns[row]), own
            )
            if source < 0:
                continue
            events._tell(int(syncs.stream_key[row]), int(syncs.called_ns[row]), source)
            if op >= 0:
                edges[op] = events._later(int(edges[op]), source)
        return events

    def stands_for(self, stream: int, moment: int, own: int) -> int:
        """What all work given to a stream by then ends with; ``own`` is its last operation."""
        since, last = self._told.get(stream, ([], []))
        at = bisect.bisect_right(since, moment) - 1
        return self._later(own, last[at]) if at >= 0 else own

    def _tell(self, stream: int, moment: int, source: int) -> None:
        since, last = self._told.setdefault(stream, ([], []))
        since.append(moment)
        last.append(self._later(last[-1], source) if last else source)

    def _later(self, a: int, b: int) -> int:
        if a < 0 or b < 0:
            return max(a, b)
        return a if self._ends[a] >= self._ends[b] else b


class _ByEnd:
    """Operations of each owner, a process or one of its devices, by when they ended."""

    def __init__(self, ops: Ops, owner: I64) -> None:
        self.order = np.lexsort((ops.end_ns, owner))
        self._owner, self._end_ns = owner[self.order], ops.end_ns[self.order]

    def last(self, owner: I64, until: I64) -> tuple[I64, I64]:
        """Where each owner's operations begin, and the last of them that ended by a moment."""
        low = np.searchsorted(self._owner, owner)
        high = np.searchsorted(self._owner, owner, side="right")
        return low, last_at_most(self._end_ns, low, high, until)


class _Ended:
    """What had ended by a moment; the operations are sorted once for all who ask."""

    def __init__(self, ops: Ops, launch: I64) -> None:
        self._ops = ops
        self.launch = launch

    @cached_property
    def of_process(self) -> _ByEnd:
        return _ByEnd(self._ops, self._ops.process)

    @cached_property
    def _of_device(self) -> _ByEnd:
        return _ByEnd(self._ops, _device_key(self._ops.process, self._ops.table["device"]))

    def last(self, process: I64, where: I64, until: I64, launched_by: I64) -> I64:
        """Of operations launched by a moment the last that ended by another; -1 none.

        Of the process, or where that is given of the process's device.
        """
        found = np.full(len(until), -1, np.int64)
        if not len(self._ops):
            return found
        known = where >= 0
        if not known.all():
            self._find(found, self.of_process, process, (~known, until, launched_by))
        if known.any():
            self._find(found, self._of_device, where, (known, until, launched_by))
        return found

    def _find(
        self, found: I64, by_end: _ByEnd, owner: I64, asked: tuple[NDArray[np.bool_], I64, I64]
    ) -> None:
        mask, until, launched_by = asked
        rows = np.flatnonzero(mask)
        low, at = by_end.last(owner[rows], until[rows])
        for _ in range(_LOOK_BACK):
            here = (at >= low) & (found[rows] < 0)
            op = by_end.order[np.where(here, at, 0)]
            fits = here & (self.launch[op] <= launched_by[rows])
            found[rows[fits]] = op[fits]
            at = at - 1


def _near_edges(device: Device, syncs: _Syncs, order: _StreamOrder, ended: _Ended) -> I64:
    """Of operations whose stream was told to wait for an unknown event, the likely one; -1 none.

    Told so is a stream whose next operation is launched after such a call of the same thread.
    """
    calls, ops, launch = device.calls, device.ops, ended.launch
    found = np.full(len(ops), -1, np.int64)
    known = np.zeros(len(calls), bool)
    known[syncs.call[(syncs.call >= 0) & (syncs.recorded_ns > 0)]] = True
    waits = np.flatnonzero((calls.kind == CallKind.WAIT_EVENT) & ~known)
    rows = np.flatnonzero((ops.call >= 0) & (order.previous >= 0))
    if not len(waits) or not len(rows):
        return found
    # Calls are sorted by thread and start.
    call = ops.call[rows]
    wait = waits[np.maximum(np.searchsorted(waits, call) - 1, 0)]
    told = (wait < call) & (calls.thread[wait] == calls.thread[call])
    rows = rows[told & (calls.start_ns[wait] > launch[rows - 1])]
    low, at = ended.of_process.last(ops.process[rows], ops.start_ns[rows])
    op = ended.of_process.order[np.maximum(at, 0)]
    near = (at >= low) & (ops.start_ns[rows] - ops.end_ns[op] <= _NEAR_NS)
    near &= (ops.stream[op] != ops.stream[rows]) & (ops.end_ns[op] > launch[rows])
    found[rows[near]] = op[near]
    return found


@dataclass(frozen=True)
class _Syncs:
    """What the driver says of synchronisations, with the calls they belong to."""

    kind: I64
    call: I64  # -1 unknown
    called_ns: I64
    stream: I64  # index of the stream it names; -1 none that has operations
    record_stream: I64
    recorded_ns: I64  # when the event was recorded; 0 unknown
    stream_key: I64  # a number for the stream it names, with operations or without; -1 none
    record_key: I64
    device: I64  # index of process and device

    @classmethod
    def of(cls, rows: Table, device: Device) -> _Syncs:
        process = _process_of(rows, device)
        rows = rows.replace("device", _device_of(rows, process, device))
        call = _call_of(rows["correlation"], process, device)
        record = _call_of(rows["record"], process, device)
        starts = device.calls.start_ns
        if not len(device.calls):
            starts = np.zeros(1, np.int64)
        return cls(
            rows["sync"].astype(np.int64),
            call,
            np.where(call >= 0, starts[call], rows["start_ns"]),
            _stream_of(rows, "gpu_stream", process, device),
            _stream_of(rows, "record_stream", process, device),
            np.where(record >= 0, starts[record], 0),
            *_stream_keys(rows, process),
            _device_key(process, rows["device"]),
        )


def _device_of(rows: Table, process: I64, device: Device) -> I64:
    """The device of each row's context, as operations tell it, else the row's own.

    Nsight Systems writes device 0 for synchronisations of every device.
    """
    ops = device.ops
    if not len(rows):
        return np.zeros(0, np.int64)
    context = ops.table["context"].astype(np.int64)
    keys, first = np.unique((ops.process << 32) | context, return_index=True)
    wanted = (process << 32) | rows["context"].astype(np.int64)
    own = rows["device"].astype(np.int64)
    if not len(keys):
        return own
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = (keys[at] == wanted) & (rows["context"] != 0)
    return np.where(known, ops.table["device"][first[at]], own).astype(np.int64)


def _stream_keys(rows: Table, process: I64) -> tuple[I64, I64]:
    """One number for each stream of a process that is named as either; -1 for none."""
    n = len(rows)
    named = np.concatenate((rows["gpu_stream"], rows["record_stream"]))
    device = np.concatenate((rows["device"], rows["device"]))
    key, _ = grouped(np.concatenate((process, process)), device, named)
    key = np.where(named == np.uint64(_NO_STREAM), -1, key).astype(np.int64)
    return key[:n], key[n:]


def _device_key(process: I64, device: NDArray[np.generic]) -> I64:
    """One number for a device of a process."""
    return (process.astype(np.int64) << 32) | device.astype(np.int64)


def _process_of(rows: Table, device: Device) -> I64:
    known = {(p.stream, p.pid): i for i, p in enumerate(device.processes)}
    pairs = zip(rows["stream"].tolist(), rows["pid"].tolist(), strict=True)
    return np.array([known.get(pair, -1) for pair in pairs], np.int64)


def _call_of(ids: I64, process: I64, device: Device) -> I64:
    """The call with an id in a process; -1 none."""
    calls = device.calls
    found = np.full(len(ids), -1, np.int64)
    first, last = calls.by_id.find(process, ids)
    known = (last > first) & (ids != 0)
    found[known] = calls.by_id.order[first[known]]
    return found


def _stream_of(rows: Table, column: str, process: I64, device: Device) -> I64:
    known = {(s.process, s.device, s.number): i for i, s in enumerate(device.streams)}
    triples = zip(process.tolist(), rows["device"].tolist(), rows[column].tolist(), strict=True)
    return np.array([known.get(triple, -1) for triple in triples], np.int64)


@dataclass(frozen=True)
class _Spans:
    """Calls that waited, with what for."""

    call: I64
    start_ns: I64
    end_ns: I64
    op: I64
    guessed: int


def _waits(device: Device, syncs: _Syncs, events: _Events, ended_by: _Ended) -> _Spans:
    calls, ops = device.calls, device.ops
    waiting = np.flatnonzero(np.isin(calls.kind, _WAITING))
    told, known, where = _told(device, waiting, syncs, events)
    told, known, where = (_from_within(calls, waiting, c) for c in (told, known, where))
    start, end = calls.start_ns[waiting], calls.end_ns[waiting]
    # What ended well after the call's return is not what the call waited for.
    ended = np.where(told >= 0, ops.end_ns[told] if len(ops) else 0, 0)
    told = np.where((told >= 0) & (ended <= end + _SKEW_NS), told, -1)
    inferred = ended_by.last(calls.process[waiting], where, end, start)
    within = (inferred >= 0) & (_ends(ops, inferred) > start)
    late = ended_by.last(calls.process[waiting], where, end + _SKEW_NS, start)
    inferred = np.where(within, inferred, late)
    # One that names a stream or an event is not guessed at, even if that had nothing to wait for.
    op = np.where(known > 0, told, inferred)
    guessed = (known <= 0) & (where < 0) & (_ends(ops, op) > start)
    polls, poll_end, poll_op = _polls(device, ended_by)
    copies, copy_op = _blocking(device)
    return _Spans(
        np.concatenate([waiting, polls, copies]),
        np.concatenate([start, calls.start_ns[polls], calls.start_ns[copies]]),
        np.concatenate([end, poll_end, calls.end_ns[copies]]),
        np.concatenate([op, poll_op, copy_op]),
        int(guessed.sum() + (poll_op >= 0).sum()),
    )


def _ends(ops: Ops, op: I64) -> I64:
    """When operations ended; the least number for none."""
    return np.where(op >= 0, ops.end_ns[op] if len(ops) else _LEAST, _LEAST)


def _from_within(calls: Calls, waiting: I64, own: I64) -> I64:
    """Of each waiting call its value, or that of the waiting call nested in it where it has none.

    A runtime call that waits may do so by a call of the driver, and the record names either.
    """
    if len(own) < _PAIR:
        return own
    outer, inner = waiting[:-1], waiting[1:]
    nested = (calls.thread[outer] == calls.thread[inner]) & (
        calls.end_ns[inner] <= calls.end_ns[outer]
    )
    own[:-1] = np.where((own[:-1] < 0) & nested, own[1:], own[:-1])
    return own


def _told(device: Device, waiting: I64, syncs: _Syncs, events: _Events) -> tuple[I64, I64, I64]:
    """Of each waiting call what its synchronisation record says.

    Returns:
        The operation it waited for, -1 none; 1 where the record names a stream or an event that
        was recorded, else -1; process and device that it waited for, -1 not said.
    """
    ops = device.ops
    found, known, where = np.full((3, len(waiting)), -1, np.int64)
    if not len(waiting) or not len(syncs.call):
        return found, known, where
    at = np.minimum(np.searchsorted(waiting, syncs.call), len(waiting) - 1)
    waits = waiting[at] == syncs.call
    of_stream = (syncs.kind == SyncKind.STREAM) & (syncs.stream_key >= 0)
    of_event = (syncs.kind == SyncKind.EVENT) & (syncs.recorded_ns > 0)
    rows = np.flatnonzero(waits & (of_stream | of_event))
    known[at[rows]] = 1
    whole = np.flatnonzero(waits & (syncs.kind == SyncKind.CONTEXT))
    where[at[whole]] = syncs.device[whole]
    if not len(rows) or not len(ops):
        return found, known, where
    stream = np.where(of_stream, syncs.stream, syncs.record_stream)[rows]
    key = np.where(of_stream, syncs.stream_key, syncs.record_key)[rows]
    moment = np.where(of_stream, syncs.called_ns, syncs.recorded_ns)[rows]
    own = events.order.last_launched(ops, stream, moment)
    found[at[rows]] = [
        events.stands_for(*one)
        for one in zip(key.tolist(), moment.tolist(), own.tolist(), strict=True)
    ]
    return found, known, where


def _polls(device: Device, ended_by: _Ended) -> tuple[I64, I64, I64]:
    """Runs of polls with nothing between them: first call, end, what they waited for.

    What they waited for ended between the last poll but one, which still said no, and the last.
    """
    calls = device.calls
    polls = np.flatnonzero(calls.kind == CallKind.POLL)
    # Which polls go on where the one before them left off.
    joined = np.zeros(len(polls), bool)
    before, poll = polls[:-1], polls[1:]
    joined[1:] = (poll == before + 1) & (calls.thread[poll] == calls.thread[before])
    joined[1:] &= calls.start_ns[poll] - calls.end_ns[before] <= _POLL_GAP_NS
    ends = np.flatnonzero(joined & ~np.concatenate((joined[1:], [False])))
    begins = np.maximum.accumulate(np.where(joined, 0, np.arange(len(polls))))[ends]
    first, last = polls[begins], polls[ends]
    process, anywhere = calls.process[last], np.full(len(last), -1, np.int64)
    op = ended_by.last(process, anywhere, calls.end_ns[last], calls.start_ns[first])
    since = calls.start_ns[last - 1] if len(last) else last
    ended = device.ops.end_ns[op] if len(device.ops) else op
    good = (op >= 0) & (ended > since)
    return first[good], calls.end_ns[last[good]], op[good]


def _blocking(device: Device) -> tuple[I64, I64]:
    """Copies and fills whose call returned only after their own operation had ended."""
    calls, ops = device.calls, device.ops
    rows = np.flatnonzero(ops.call >= 0)
    call = ops.call[rows]
    kind = calls.kind[call] if len(calls) else call
    copies = (kind == CallKind.COPY) | (kind == CallKind.FILL)
    rows, call = rows[copies], call[copies]
    if not len(rows):
        return call, rows
    rows = rows[ops.end_ns[rows] <= calls.end_ns[call]]
    by_end = rows[np.argsort(ops.end_ns[rows], kind="stable")]
    op = np.full(len(calls), -1, np.int64)
    op[ops.call[by_end]] = by_end
    found = np.flatnonzero(op >= 0)
    return found, op[found]


def _by_thread(device: Device, spans: _Spans, n_threads: int) -> tuple[I64, I64, I64, I64, I64]:
    """Spans by thread and start, the outermost of nested ones."""
    thread = device.calls.thread[spans.call].astype(np.int64)
    order = nested_order(thread, spans.start_ns, spans.end_ns)
    order = order[thread[order] >= 0]
    thread = thread[order]
    off = np.searchsorted(thread, np.arange(n_threads + 1)).astype(np.int64)
    reach = running_max(spans.end_ns[order], off)
    outer = np.ones(len(order), bool)
    same = thread[1:] == thread[:-1]
    outer[1:] = ~same | (spans.start_ns[order][1:] >= reach[:-1])
    order, thread = order[outer], thread[outer]
    off = np.searchsorted(thread, np.arange(n_threads + 1)).astype(np.int64)
    columns = (spans.start_ns, spans.end_ns, spans.op, spans.call)
    start, end, op, call = (np.ascontiguousarray(c[order], np.int64) for c in columns)
    return off, start, end, op, call
