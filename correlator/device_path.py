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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.device import CallKind
from gpucorrelate.correlator.device_steps import launched_before
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import first_after, grouped, last_at_most, running_max
from gpucorrelate.probes.wire.schema import SyncKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.device import Device, Ops
    from gpucorrelate.correlator.states import Threads

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    U8 = NDArray[np.uint8]

_LEAST = np.iinfo(np.int64).min
#: How many operations that ended later but were launched after the call are passed over.
_LOOK_BACK = 16
#: An operation that ended this long before another began may be what that waited for.
_NEAR_NS = 10_000
#: From the end of one operation to the start of the next on its stream devices take 1 to 5 us.
#: Beyond this something kept it that is not on record, so the gap is not the queue's.
QUEUE_GAP_NS = 20_000
_CODES = {category: code for code, category in enumerate(Category)}
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
    order = _StreamOrder.of(ops, launch)
    syncs = _Syncs.of(capture.table("gpu_sync"), device)
    near = _near_edges(device, syncs, order, launch)
    pred = _latest(ops, order.previous, _siblings(ops), _event_edges(device, syncs, order), near)
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
    margin = np.where((key > _LEAST) & (ended > _LEAST), np.abs(ended - key), -1)
    spans = _waits(device, syncs, order)
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
    key = np.where(end <= ops.start_ns, end, np.minimum(start, ops.start_ns))
    known = ops.call >= 0
    return np.where(known, key, _LEAST), np.where(known, np.minimum(end, ops.start_ns), 0)


@dataclass(frozen=True)
class _StreamOrder:
    """Each stream's operations in their order."""

    previous: I64  # of those before it on its stream the one that ends last; -1 none
    top: I64  # the one that ends last up to and with it
    launched_ns: I64  # the latest launch up to and with it

    @classmethod
    def of(cls, ops: Ops, launch: I64) -> _StreamOrder:
        n = len(ops)
        reach = running_max(ops.end_ns, ops.off)
        top = np.maximum.accumulate(np.where(ops.end_ns == reach, np.arange(n), 0))
        previous = np.full(n, -1, np.int64)
        same = ops.stream[1:] == ops.stream[:-1]
        previous[1:] = np.where(same, top[:-1], -1)
        # A launch that is not on record counts as the one before it.
        first = int(launch[launch > _LEAST].min(initial=0)) - 1
        known = np.where(launch > _LEAST, launch, first)
        return cls(previous, top.astype(np.int64), running_max(known, ops.off))

    def last_launched(self, ops: Ops, stream: I64, moment: I64) -> I64:
        """The operation of the stream that ends last of those launched by then; -1 none."""
        good = (stream >= 0) & (stream < len(ops.off) - 1)
        low = ops.off[np.where(good, stream, 0)]
        high = np.where(good, ops.off[np.where(good, stream + 1, 0)], low)
        at = last_at_most(self.launched_ns, low, high, moment)
        return np.where(at >= low, self.top[np.maximum(at, 0)] if len(self.top) else -1, -1)

    def next_launched(self, ops: Ops, stream: I64, moment: I64) -> I64:
        """The first operation of the stream launched after a moment; -1 none."""
        good = (stream >= 0) & (stream < len(ops.off) - 1)
        low = ops.off[np.where(good, stream, 0)]
        high = np.where(good, ops.off[np.where(good, stream + 1, 0)], low)
        at = first_after(self.launched_ns, low, high, moment)
        return np.where(at < high, at, -1)


def _siblings(ops: Ops) -> I64:
    """Of the same launch the operation that ended last before each began; -1 none.

    Only where a launch has operations on several streams: a graph's nodes depend on each other
    across them, and nothing on record says which.
    """
    found = np.full(len(ops), -1, np.int64)
    rows = np.flatnonzero(ops.call >= 0)
    if not len(rows):
        return found
    call = ops.call[rows]
    least = np.full(int(call.max()) + 1, np.iinfo(np.int64).max)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, call, ops.stream[rows])
    np.maximum.at(most, call, ops.stream[rows])
    rows = rows[least[call] != most[call]]
    if not len(rows):
        return found
    by_end = rows[np.lexsort((ops.end_ns[rows], ops.call[rows]))]
    low = np.searchsorted(ops.call[by_end], ops.call[rows])
    high = np.searchsorted(ops.call[by_end], ops.call[rows], side="right")
    at = last_at_most(ops.end_ns[by_end], low, high, ops.start_ns[rows])
    found[rows] = np.where(at >= low, by_end[np.maximum(at, 0)], -1)
    return found


def _event_edges(device: Device, syncs: _Syncs, order: _StreamOrder) -> I64:
    """What each operation's stream was told to wait for before it; -1 nothing."""
    ops = device.ops
    found = np.full(len(ops), -1, np.int64)
    rows = np.flatnonzero((syncs.kind == SyncKind.STREAM_WAIT_EVENT) & (syncs.recorded_ns > 0))
    if not len(rows) or not len(ops):
        return found
    source = order.last_launched(ops, syncs.record_stream[rows], syncs.recorded_ns[rows])
    target = order.next_launched(ops, syncs.stream[rows], syncs.called_ns[rows])
    good = (source >= 0) & (target >= 0)
    source, target = source[good], target[good]
    # Of several events the one that came last; the later assignment stays.
    by_end = np.argsort(ops.end_ns[source], kind="stable")
    found[target[by_end]] = source[by_end]
    return found


def _near_edges(device: Device, syncs: _Syncs, order: _StreamOrder, launch: I64) -> I64:
    """Of operations whose stream was told to wait for an unknown event, the likely one; -1 none.

    Told so is a stream whose next operation is launched after such a call of the same thread.
    """
    calls, ops = device.calls, device.ops
    found = np.full(len(ops), -1, np.int64)
    known = np.zeros(len(calls), bool)
    known[syncs.call[(syncs.call >= 0) & (syncs.recorded_ns > 0)]] = True
    waits = np.flatnonzero((calls.kind == CallKind.WAIT_EVENT) & ~known)
    rows = np.flatnonzero((ops.call >= 0) & (order.previous >= 0))
    if not len(waits) or not len(rows):
        return found
    thread = calls.thread[ops.call[rows]]
    low = np.searchsorted(calls.thread[waits], thread)
    high = np.searchsorted(calls.thread[waits], thread, side="right")
    at = last_at_most(calls.start_ns[waits], low, high, launch[rows])
    told = (at >= low) & (calls.start_ns[waits][np.maximum(at, 0)] > launch[rows - 1])
    rows = rows[told]
    by_end = np.lexsort((ops.end_ns, ops.process))
    low = np.searchsorted(ops.process[by_end], ops.process[rows])
    high = np.searchsorted(ops.process[by_end], ops.process[rows], side="right")
    at = last_at_most(ops.end_ns[by_end], low, high, ops.start_ns[rows])
    op = by_end[np.maximum(at, 0)]
    near = (at >= low) & (ops.start_ns[rows] - ops.end_ns[op] <= _NEAR_NS)
    near &= (ops.stream[op] != ops.stream[rows]) & (ops.end_ns[op] > launch[rows])
    found[rows[near]] = op[near]
    return found


def _latest(ops: Ops, *candidates: I64) -> I64:
    """The candidate that ended last; only those that come before an operation in (start, index).

    That order is strict, so no chain of enablers can lead back to where it began.
    """
    index = np.arange(len(ops))
    best, best_end = np.full(len(ops), -1, np.int64), np.full(len(ops), _LEAST, np.int64)
    for candidate in candidates:
        start = ops.start_ns[candidate] if len(ops) else candidate
        earlier = (start < ops.start_ns) | ((start == ops.start_ns) & (candidate < index))
        end = np.where(
            (candidate >= 0) & earlier, ops.end_ns[candidate] if len(ops) else 0, _LEAST
        )
        end = np.where(end > _LEAST, np.minimum(end, ops.start_ns), _LEAST)
        better = end > best_end
        best = np.where(better, candidate, best)
        best_end = np.where(better, end, best_end)
    return best


@dataclass(frozen=True)
class _Syncs:
    """What the driver says of synchronisations, with the calls they belong to."""

    kind: I64
    call: I64  # -1 unknown
    called_ns: I64
    stream: I64  # index of the stream it names; -1 none
    record_stream: I64
    recorded_ns: I64  # when the event was recorded; 0 unknown

    @classmethod
    def of(cls, rows: Table, device: Device) -> _Syncs:
        process = _process_of(rows, device)
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
        )


def _process_of(rows: Table, device: Device) -> I64:
    known = {(p.stream, p.pid): i for i, p in enumerate(device.processes)}
    pairs = zip(rows["stream"].tolist(), rows["pid"].tolist(), strict=True)
    return np.array([known.get(pair, -1) for pair in pairs], np.int64)


def _call_of(ids: NDArray[np.generic], process: I64, device: Device) -> I64:
    """The call with an id in a process; -1 none."""
    calls = device.calls
    key, _ = grouped(
        np.concatenate([calls.process, process]), np.concatenate([calls.table["correlation"], ids])
    )
    mine, theirs = key[: len(calls)], key[len(calls) :]
    order = np.argsort(mine, kind="stable")
    at = np.searchsorted(mine[order], theirs)
    if not len(order):
        return np.full(len(theirs), -1, np.int64)
    row = order[np.minimum(at, len(order) - 1)]
    return np.where((mine[row] == theirs) & (ids != 0), row, -1).astype(np.int64)


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


def _waits(device: Device, syncs: _Syncs, order: _StreamOrder) -> _Spans:
    calls, ops = device.calls, device.ops
    waiting = np.flatnonzero(np.isin(calls.kind, _WAITING))
    told = _told(device, syncs, order)[waiting]
    ended = np.where(told >= 0, ops.end_ns[told] if len(ops) else 0, 0)
    # What ended after the call's return is not what the call waited for.
    told = np.where((told >= 0) & (ended <= calls.end_ns[waiting]), told, -1)
    inferred = _last_ended(device, waiting, calls.end_ns[waiting], calls.start_ns[waiting])
    op = np.where(told >= 0, told, inferred)
    polls, poll_end, poll_op = _polls(device)
    copies, copy_op = _blocking(device)
    return _Spans(
        np.concatenate([waiting, polls, copies]),
        np.concatenate([calls.start_ns[waiting], calls.start_ns[polls], calls.start_ns[copies]]),
        np.concatenate([calls.end_ns[waiting], poll_end, calls.end_ns[copies]]),
        np.concatenate([op, poll_op, copy_op]),
        int(((told < 0) & (inferred >= 0)).sum() + (poll_op >= 0).sum()),
    )


def _told(device: Device, syncs: _Syncs, order: _StreamOrder) -> I64:
    """Per call the operation that its synchronisation record says it waited for; -1 none."""
    calls, ops = device.calls, device.ops
    found = np.full(len(calls), -1, np.int64)
    of_stream = (syncs.kind == SyncKind.STREAM) & (syncs.stream >= 0)
    of_event = (syncs.kind == SyncKind.EVENT) & (syncs.recorded_ns > 0)
    rows = np.flatnonzero((syncs.call >= 0) & (of_stream | of_event))
    if not len(rows) or not len(ops):
        return found
    stream = np.where(of_stream, syncs.stream, syncs.record_stream)[rows]
    moment = np.where(of_stream, syncs.called_ns, syncs.recorded_ns)[rows]
    found[syncs.call[rows]] = order.last_launched(ops, stream, moment)
    return found


def _last_ended(device: Device, calls: I64, until: I64, launched_by: I64) -> I64:
    """Of operations launched before a call, of its process, the last that ended by ``until``."""
    ops = device.ops
    if not len(ops) or not len(calls):
        return np.full(len(calls), -1, np.int64)
    launch = launched_before(device.calls, ops)
    by_end = np.lexsort((ops.end_ns, ops.process))
    process = device.calls.process[calls]
    low = np.searchsorted(ops.process[by_end], process)
    high = np.searchsorted(ops.process[by_end], process, side="right")
    at = last_at_most(ops.end_ns[by_end], low, high, until)
    found = np.full(len(calls), -1, np.int64)
    for _ in range(_LOOK_BACK):
        here = at >= low
        op = by_end[np.where(here, at, 0)]
        fits = here & (launch[op] <= launched_by) & (found < 0)
        found = np.where(fits, op, found)
        at = at - 1
    return found


def _polls(device: Device) -> tuple[I64, I64, I64]:
    """Runs of polls with nothing between them: first call, end, what they waited for.

    What they waited for ended between the last poll but one, which still said no, and the last.
    """
    calls = device.calls
    poll = calls.kind == CallKind.POLL
    joined = np.zeros(len(calls), bool)
    if len(calls) > 1:
        joined[1:] = poll[1:] & poll[:-1] & (calls.thread[1:] == calls.thread[:-1])
    last = np.flatnonzero(joined & ~np.concatenate((joined[1:], [False])))
    first = np.maximum.accumulate(np.where(joined, 0, np.arange(len(calls))))[last]
    op = _last_ended(device, last, calls.end_ns[last], calls.start_ns[first])
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
    order = np.lexsort((-spans.end_ns, spans.start_ns, thread))
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
