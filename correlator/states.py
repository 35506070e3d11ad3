# SPDX-License-Identifier: Apache-2.0
"""Thread states on one time line: what every thread waited in, and who could end it.

Each wait record gets a class that decides how the backward walk passes through it:

- ``PREEMPTED``: runnable all along; somebody else had the CPU, or a CPU quota was used up.
- ``GIL``: the futex lies inside ``_PyRuntime``; waits chained by the interpreter's 5 ms
  timeouts (CPython ``sys.setswitchinterval``) take the waker of the chain's last wait.
- ``LOCK``: ``FUTEX_WAIT`` or a PI operation, which glibc uses for mutexes (condition
  variables, semaphores and Python locks use ``FUTEX_WAIT_BITSET``); and locks inside the
  kernel, on a file, a fault or the address space.
- ``MESSAGE``: woken by a traced thread; the path moves there.
- ``LEAF_IDLE``: a timer, the network, an untraced process, or no wake at all.
- ``LEAF_WORK``: disk or an interrupt: part of what the thread itself was doing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.correlator import device as devices
from gpucorrelate.correlator import device_path, device_steps
from gpucorrelate.correlator.gaps import Windows, closed, windows
from gpucorrelate.correlator.native import flatten
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.correlator.search import nested_order
from gpucorrelate.probes.wire.schema import (
    FaultFlag,
    FdKind,
    QueueOp,
    SessionEvent,
    TaskEvent,
    WaitFlag,
    WaitKind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.device import Calls, Device
    from gpucorrelate.correlator.device_path import DevicePath
    from gpucorrelate.correlator.device_steps import DeviceSteps

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    U8 = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

#: Order in which the native core numbers categories.
CATEGORIES: tuple[Category, ...] = tuple(Category)

#: System calls that send on a socket or pipe (x86-64): write, sendto, sendmsg, writev, sendmmsg.
SEND_SYSCALLS = (1, 44, 46, 20, 307)

#: System calls that change the address space (x86-64): mmap, mprotect, munmap, brk, mremap,
#: madvise.
MEMORY_SYSCALLS = (9, 10, 11, 12, 25, 28)

#: Waits on the interpreter lock closer than this belong to one attempt to take it.
GIL_CHAIN_GAP_NS = 200_000

#: A read that found its message within this time did not wait; a write its slot.
SHORT_READ_NS = 1_000
SLOT_WAIT_NS = 50_000

#: Faults closer than this belong to one run; shorter than that they are not cut out alone.
FAULT_GAP_NS = 5_000
FAULT_SHORT_NS = 10_000

_NOT_A_THREAD = (
    WaitFlag.WAKE_TIMER | WaitFlag.WAKE_SOFTIRQ | WaitFlag.WAKE_IRQ | WaitFlag.WAKE_IDLE
)


class WaitClass(enum.IntEnum):
    """How the walk passes through a wait; the numbers are the native core's."""

    PREEMPTED = 0
    GIL = 1
    LOCK = 2
    MESSAGE = 3
    LEAF_IDLE = 4
    LEAF_WORK = 5


@dataclass(frozen=True)
class Threads:
    """Every thread that appears in a capture; all arrays are indexed by thread.

    Attributes:
        tid: Thread ids, ascending.
        tgid: Process of each; 0 unknown.
        traced: Whether the kernel probes covered it.
        first_ns: Start of what is known of it.
        last_ns: End of it.
        named: Whether its own process named it, where the process names its threads at all.
        creator: Index of the thread that created it at ``first_ns``; -1 where that is not known.
    """

    tid: I64
    tgid: I64
    traced: Mask
    first_ns: I64
    last_ns: I64
    named: Mask
    creator: I32

    def index(self, tid: NDArray[np.generic]) -> I32:
        """Thread indices of thread ids; -1 for unknown ones."""
        at = np.searchsorted(self.tid, tid)
        at = np.minimum(at, max(0, len(self.tid) - 1))
        found = (self.tid[at] == tid) & (tid != 0) if len(self.tid) else np.zeros(len(tid), bool)
        return np.where(found, at, -1).astype(np.int32)

    def one(self, tid: int) -> int:
        """The index of one thread id; -1 if unknown."""
        return int(self.index(np.array([tid], np.int64))[0])


@dataclass(frozen=True)
class Waits:
    """All waits, sorted by thread and start; ``off`` holds each thread's first row."""

    table: Table
    off: I64
    start_ns: I64
    end_ns: I64
    wake_ns: I64
    peer: I32
    cls: U8
    leaf: U8


@dataclass(frozen=True)
class QueueReads:
    """Reads of shared-memory queues that waited, each joined to the write it waited for."""

    off: I64
    start_ns: I64
    ready_ns: I64
    sent_ns: I64
    peer: I32
    queue: I64
    seq: I64
    slot: Mask  # not a read but a write that waited for a free slot
    unjoined: int  # reads whose write was not recorded


@dataclass(frozen=True)
class Intervals:
    """Non-overlapping intervals by thread."""

    off: I64
    start_ns: I64
    end_ns: I64
    row: I64  # row of the table they come from


@dataclass(frozen=True)
class Spans(Intervals):
    """Flattened named phases.

    Attributes:
        name: Per row, not per piece: an index into ``names``.
        step: Per row: its step; 0 unknown.
        names: All names.
    """

    name: NDArray[np.integer[Any]]
    step: I64
    names: tuple[str, ...]

    def named(self, at: int) -> tuple[str, int]:
        """Name and step of a piece."""
        row = self.row[at]
        return self.names[self.name[row]], int(self.step[row])


@dataclass(frozen=True)
class FaultRuns(Intervals):
    """Page faults, or runs of short ones; ``row`` is the first of each run."""

    count: I64


@dataclass(frozen=True)
class States:
    """All that the walk needs, and what it was made from."""

    capture: Capture
    threads: Threads
    waits: Waits
    reads: QueueReads
    spans: Spans
    faults: FaultRuns
    fault_table: Table
    device: Device
    path: DevicePath
    device_steps: DeviceSteps
    processes: I64  # process ids, ascending
    lost: Windows
    closed: bool  # brought to an end: what threads waited in last is recorded
    start_ns: int
    end_ns: int


def _offsets(thread: NDArray[np.generic], n_threads: int) -> I64:
    """First row of each thread in rows sorted by thread."""
    return np.searchsorted(thread, np.arange(n_threads + 1)).astype(np.int64)


def _i64(values: NDArray[np.generic]) -> I64:
    return np.ascontiguousarray(values, np.int64)


def clean_waits(waits: Table) -> Table:
    """Waits sorted by thread and start, each once, none overlapping the next.

    A wait that was still open when a report was made is recorded again when it ends: the
    finished record counts.
    """
    is_open = (waits["flags"] & WaitFlag.OPEN) != 0
    order = np.lexsort((waits["end_ns"], ~is_open, waits["start_ns"], waits["tid"]))
    waits = waits.select(order)
    tid, start = waits["tid"], waits["start_ns"]
    last = np.ones(len(waits), bool)
    last[:-1] = (tid[1:] != tid[:-1]) | (start[1:] != start[:-1])
    waits = waits.select(last & (waits["end_ns"] > start))
    end, tid, start = waits["end_ns"].copy(), waits["tid"], waits["start_ns"]
    same = tid[1:] == tid[:-1]
    end[:-1] = np.where(same, np.minimum(end[:-1], start[1:]), end[:-1])
    return waits.replace("end_ns", end)


def part_throttled(waits: Table) -> Table:
    """Waits in which a thread was kept from running by a CPU quota, in parts.

    A part of its own is throttled: the first of the time in which it could have run. What it
    waited for before, and who ran instead after, are waits of their own.
    """
    throttled = waits["throttled_ns"].astype(np.int64)
    if not throttled.any():
        return waits
    ready = np.isin(waits["wait_kind"], (WaitKind.PREEMPTED, WaitKind.YIELD))
    begin = np.where(ready, waits["start_ns"], waits["wake_ns"])
    begin = np.clip(begin, waits["start_ns"], waits["end_ns"])
    until = np.minimum(begin + throttled, waits["end_ns"])
    parted = (throttled > 0) & (ready | (waits["wake_ns"] > 0)) & (until > begin)
    none = np.zeros(len(waits), np.int64)
    whole = waits.replace("throttled_ns", none).replace(
        "end_ns", np.where(parted, begin, waits["end_ns"])
    )
    middle = waits.replace("throttled_ns", until - begin).replace("start_ns", begin)
    middle = middle.replace("wake_ns", begin).replace("end_ns", until)
    after = waits.replace("throttled_ns", none).replace("start_ns", until)
    after = after.replace("wake_ns", until)
    parts = [whole, middle.select(parted), after.select(parted)]
    names = ["stream", *(column.name for column in waits.kind.columns)]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.extend({name: part[name] for name in names})
    joined = joined.select(joined["end_ns"] > joined["start_ns"])
    return joined.select(np.lexsort((joined["start_ns"], joined["tid"])))


def build(capture: Capture) -> States:
    """Sort, join and classify everything that happened to threads."""
    waits = part_throttled(clean_waits(capture.table("wait")))
    start_ns, end_ns = _bounds(capture, waits)
    threads = _threads(capture, waits, start_ns, end_ns)
    processes = np.unique(threads.tgid)
    faults = capture.table("fault")
    faults = faults.select(np.lexsort((faults["start_ns"], faults["tid"])))
    device = devices.build(capture, threads)
    return States(
        capture,
        threads,
        _waits(capture, threads, waits),
        _reads(capture, threads),
        _spans(capture, threads, device.calls),
        _faults(threads, faults, _fault_trap_ns(capture)),
        faults,
        device,
        device_path.build(capture, threads, device),
        device_steps.build(capture, threads, device),
        processes,
        windows(capture, processes, (start_ns, end_ns)),
        closed(capture, waits),
        start_ns,
        end_ns,
    )


def _bounds(capture: Capture, waits: Table) -> tuple[int, int]:
    """First and last moment that the recording speaks of."""
    lows: list[int] = []
    highs: list[int] = []
    for table, low, high in (
        (waits, "start_ns", "end_ns"),
        (capture.table("span"), "start_ns", "end_ns"),
        (capture.table("request"), "t_ns", "t_ns"),
        (capture.table("step_begin"), "start_ns", "start_ns"),
        (capture.table("step_update"), "start_ns", "end_ns"),
        (capture.table("session"), "t_ns", "t_ns"),
        (_timed(capture.table("cuda_api")), "start_ns", "end_ns"),
        (_timed(capture.table("gpu_op")), "start_ns", "end_ns"),
    ):
        if len(table):
            lows.append(int(table[low].min()))
            highs.append(int(table[high].max()))
    return (min(lows), max(highs)) if lows else (0, 0)


def _timed(table: Table) -> Table:
    """Rows whose times are valid: a profiler writes 0 for one that it does not know."""
    good = devices.timed(table)
    return table if good.all() else table.select(good)


#: Kinds that name threads of the process whose stream they are in.
_NAMING = (
    "cuda_api", "thread", "span", "queue_msg", "request", "step_begin", "worker_step", "outputs",
)  # fmt: skip


def _threads(capture: Capture, waits: Table, start_ns: int, end_ns: int) -> Threads:
    owner = {info.stream: info.tgid for info in capture.streams}
    known: dict[int, int] = {}
    for name in _NAMING:
        table = capture.table(name)
        pairs = np.unique((table["tid"].astype(np.uint64) << 32) | table["stream"])
        found = ((pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist())
        known.update((tid, owner.get(stream, 0)) for tid, stream in found if tid)
    pairs = np.unique(np.stack([waits["tid"], waits["tgid"]]), axis=1)
    known.update((int(t), int(g)) for t, g in pairs.T)
    forked = _forked(capture)
    known.update(forked)
    traced_tgids = {int(g) for g in np.unique(waits["tgid"])}
    tid = np.array(sorted(known), np.int64)
    tgid = np.array([known[int(t)] for t in tid], np.int64)
    # One that never waited runs all the time from its birth on: that too is recorded.
    traced = np.isin(tgid, list(traced_tgids)) | np.isin(tid, list(forked))
    if len(waits):
        traced |= np.isin(tgid, _members(capture))
    begin, finish = _lifetimes(capture, waits, start_ns, end_ns)
    first = np.array([begin(int(t), int(g)) for t, g in zip(tid, tgid, strict=True)], np.int64)
    last = np.array([finish(int(t)) for t in tid], np.int64)
    last = np.where(traced, np.maximum(last, first), first)
    if imported(capture):
        # A profile says what threads called, of all its time; whether they had a CPU it does not.
        first, last = np.full_like(first, start_ns), np.full_like(last, end_ns)
    named = np.isin(tid, capture.table("thread")["tid"])
    named |= ~np.isin(tgid, tgid[named])
    nobody = np.full(len(tid), -1, np.int32)
    threads = Threads(tid, tgid, traced, first, last, named, nobody)
    return replace(threads, creator=_creators(capture, threads))


def _creators(capture: Capture, threads: Threads) -> I32:
    """Index of the thread that created each, where what is known of it begins with that."""
    task = capture.table("task")
    task = task.select((task["event"] == TaskEvent.FORK) & (task["parent_tid"] != 0))
    creator = np.full(len(threads.tid), -1, np.int32)
    child, parent = threads.index(task["tid"]), threads.index(task["parent_tid"])
    since = threads.first_ns[child] == task["t_ns"]
    good = (child >= 0) & (parent >= 0) & (parent != child) & since
    creator[child[good]] = parent[good]
    return creator


def _forked(capture: Capture) -> dict[int, int]:
    """Threads whose birth was recorded, which is so in traced processes alone; their process."""
    task = capture.table("task")
    task = task.select(task["event"] == TaskEvent.FORK)
    return dict(zip(task["tid"].tolist(), task["tgid"].tolist(), strict=True))


def _members(capture: Capture) -> I64:
    """Processes that a session took in: where waits are recorded at all, theirs are."""
    session = capture.table("session")
    added = np.isin(session["event"], (SessionEvent.ATTACHED, SessionEvent.PROCESS_ADDED))
    return np.unique(session["tgid"][added]).astype(np.int64)


def imported(capture: Capture) -> bool:
    """Whether it is a profile by another tool, with times of its own clock and no waits."""
    return any(fact.value == "trace" for fact in capture.facts("clock"))


def _lifetimes(capture: Capture, waits: Table, start_ns: int, end_ns: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Functions that give the start and end of what is known of a thread."""
    session, task = capture.table("session"), capture.table("task")
    since: dict[int, int] = {}
    for t, event, tgid in zip(session["t_ns"], session["event"], session["tgid"], strict=True):
        if event in (SessionEvent.ATTACHED, SessionEvent.PROCESS_ADDED, SessionEvent.RESUMED):
            since.setdefault(int(tgid), int(t))
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    for tid, t, event in zip(task["tid"], task["t_ns"], task["event"], strict=True):
        if event == TaskEvent.FORK:
            born[int(tid)] = int(t)
        elif event == TaskEvent.EXIT:
            died[int(tid)] = int(t)
    tids, at = np.unique(waits["tid"], return_index=True)
    last_at = np.concatenate((at[1:], [len(waits)]))[: len(at)] - 1
    first_wait = {int(t): int(waits["start_ns"][i]) for t, i in zip(tids, at, strict=True)}
    last_wait = {int(t): int(waits["end_ns"][i]) for t, i in zip(tids, last_at, strict=True)}
    whole = closed(capture, waits)
    _outlive(died, born, waits)

    def begin(tid: int, tgid: int) -> int:
        # Who is born of a traced process is traced from then on, however late a session takes
        # notice of the new process.
        known = born.get(tid) or since.get(tgid, start_ns)
        return min(known, first_wait.get(tid, known))

    def finish(tid: int) -> int:
        # A recording cut off in the middle does not say what its threads waited in last.
        return died.get(tid, end_ns if whole else last_wait.get(tid, 0))

    return begin, finish


def _outlive(died: dict[int, int], born: dict[int, int], waits: Table) -> None:
    """Threads that still woke others after their exit had begun were on a CPU until then.

    Kernels tell of an exit when it begins. Tearing down the address space takes a while, and
    only then the parent is woken.
    """
    late = np.isin(waits["waker_tid"], list(died))
    for tid, wake in zip(waits["waker_tid"][late].tolist(), waits["wake_ns"][late].tolist(),
                         strict=True):  # fmt: skip
        if wake > died[tid] > born.get(tid, 0):
            died[tid] = wake


def _gil_ranges(capture: Capture) -> dict[int, tuple[int, int]]:
    """Address range of ``_PyRuntime`` per process."""
    owner = {info.stream: info.tgid for info in capture.streams}
    ranges: dict[int, tuple[int, int]] = {}
    for fact in capture.facts("gil"):
        base, _, size = fact.value.partition(":")
        try:
            ranges[owner.get(fact.stream, 0)] = (int(base, 16), int(base, 16) + int(size))
        except ValueError:
            continue
    return ranges


def _is_gil(capture: Capture, waits: Table) -> Mask:
    futex = waits["wait_kind"] == WaitKind.FUTEX
    gil = np.zeros(len(waits), bool)
    for tgid, (low, high) in _gil_ranges(capture).items():
        gil |= futex & (waits["tgid"] == tgid) & (waits["arg"] >= low) & (waits["arg"] < high)
    return gil


def _waits(capture: Capture, threads: Threads, waits: Table) -> Waits:
    thread = threads.index(waits["tid"])
    peer = threads.index(waits["waker_tid"])
    gil = _is_gil(capture, waits)
    cls, leaf = _classify(threads, waits, peer, gil)
    peer = _gil_holders(threads, waits, thread, peer, gil)
    return Waits(
        waits,
        _offsets(thread, len(threads.tid)),
        _i64(waits["start_ns"]),
        _i64(waits["end_ns"]),
        _i64(waits["wake_ns"]),
        np.ascontiguousarray(peer, np.int32),
        np.ascontiguousarray(cls, np.uint8),
        np.ascontiguousarray(leaf, np.uint8),
    )


def _classify(threads: Threads, waits: Table, peer: I32, gil: Mask) -> tuple[U8, U8]:
    """Class and leaf category of every wait."""
    kind, flags, op = waits["wait_kind"], waits["flags"], waits["op"]
    futex = kind == WaitKind.FUTEX
    traced = (peer >= 0) & threads.traced[peer]
    sending = np.isin(waits["waker_syscall"], SEND_SYSCALLS)
    timer = (flags & WaitFlag.WAKE_TIMER) != 0
    soft = ((flags & WaitFlag.WAKE_SOFTIRQ) != 0) & ~timer
    irq = ((flags & (WaitFlag.WAKE_IRQ | WaitFlag.WAKE_IDLE)) != 0) & ~timer & ~soft
    kthread = ((flags & WaitFlag.WAKE_KTHREAD) != 0) & ~timer & ~soft & ~irq
    file_io = np.isin(kind, (WaitKind.READ, WaitKind.WRITE)) & (op == FdKind.FILE)
    fault = kind == WaitKind.FAULT
    no_wake = (waits["wake_ns"] == 0) | (waits["waker_tid"] == 0) & ~timer & ~soft & ~irq

    cls = np.full(len(waits), WaitClass.LEAF_IDLE, np.uint8)
    leaf = np.full(len(waits), CATEGORIES.index(Category.EXTERNAL), np.uint8)

    def mark(mask: Mask, category: Category, wait_class: WaitClass) -> None:
        cls[mask] = wait_class
        leaf[mask] = CATEGORIES.index(category)

    mark(traced & ~timer, Category.MESSAGE, WaitClass.MESSAGE)
    mark(irq | kthread, Category.IRQ, WaitClass.LEAF_WORK)
    mark(soft & ~(sending & traced), Category.NETWORK, WaitClass.LEAF_IDLE)
    mark(soft & sending & ~traced, Category.EXTERNAL, WaitClass.LEAF_IDLE)
    mark(no_wake, Category.UNEXPLAINED, WaitClass.LEAF_IDLE)
    mark(timer, Category.SLEEP, WaitClass.LEAF_IDLE)
    from_io = soft | irq | kthread | no_wake
    mark(file_io & from_io, Category.DISK, WaitClass.LEAF_WORK)
    mark(fault & (from_io | ~traced), Category.PAGE_FAULT, WaitClass.LEAF_WORK)
    locked = futex & np.isin(op & 0x7F, (0, 6, 13))
    # A thread that ends another's wait on a file, a fault or the address space lets go of a
    # lock inside the kernel (inode, page, mmap_lock): it sends nothing.
    in_memory = (kind == WaitKind.OTHER) & np.isin(waits["syscall"], MEMORY_SYSCALLS)
    locked |= file_io | fault | in_memory
    mark(locked & (cls == WaitClass.MESSAGE), Category.LOCK, WaitClass.LOCK)
    mark(gil, Category.GIL, WaitClass.GIL)
    idle = (kind == WaitKind.PREEMPTED) | (kind == WaitKind.YIELD)
    mark(idle, Category.PREEMPTED, WaitClass.PREEMPTED)
    mark(waits["throttled_ns"] > 0, Category.THROTTLED, WaitClass.PREEMPTED)
    return cls, leaf


def _gil_holders(threads: Threads, waits: Table, thread: I32, peer: I32, gil: Mask) -> I32:
    """For waits on the interpreter lock, the thread that gave it up in the end; else as is."""
    rows = np.flatnonzero(gil)
    if not len(rows):
        return peer
    same_process = waits["waker_tgid"][rows] == waits["tgid"][rows]
    direct = (
        same_process
        & (peer[rows] >= 0)
        & (peer[rows] != thread[rows])
        & ((waits["flags"][rows] & _NOT_A_THREAD) == 0)
    )
    gap = waits["start_ns"][rows[1:]] - waits["end_ns"][rows[:-1]]
    linked = (thread[rows[1:]] == thread[rows[:-1]]) & (gap < GIL_CHAIN_GAP_NS)
    chain = np.concatenate(([0], np.cumsum(~linked)))
    n = len(rows)
    following = np.where(direct, np.arange(n), n)
    following = np.minimum.accumulate(following[::-1])[::-1]
    safe = np.minimum(following, n - 1)
    found = (following < n) & (chain[safe] == chain)
    out = peer.copy()
    out[rows] = np.where(found, peer[rows[safe]], -1)
    return out


def _with_yield_runs(capture: Capture) -> Table:
    """Queue messages, and runs of yields of threads whose queues nobody tells of.

    A run looks like a write that waits for its slot: a poll of which the other end is unknown.
    """
    messages, spins = capture.table("queue_msg"), capture.table("spin")
    runs = spins.select((spins["count"] > 1) & ~np.isin(spins["tid"], messages["tid"]))
    if not len(runs):
        return messages
    zero = np.zeros(len(runs), np.int64)
    end = runs["end_ns"]
    columns = {"stream": runs["stream"], "tid": runs["tid"], "op": zero + QueueOp.WRITE}
    columns |= {"start_ns": runs["start_ns"], "ready_ns": end, "end_ns": end}
    return messages.extend({**dict.fromkeys(("queue", "reader", "seq"), zero), **columns})


def _reads(capture: Capture, threads: Threads) -> QueueReads:
    """Queue reads that waited, joined to their writes by queue and message number."""
    messages = _with_yield_runs(capture)
    is_read = messages["op"] == QueueOp.READ
    writes = messages.select(messages["op"] == QueueOp.WRITE)
    waited = messages["ready_ns"] - messages["start_ns"] > SHORT_READ_NS
    full = messages["ready_ns"] - messages["start_ns"] > SLOT_WAIT_NS
    reads = messages.select(np.where(is_read, waited, full))
    thread = threads.index(reads["tid"])
    order = np.lexsort((reads["start_ns"], thread))
    order = order[thread[order] >= 0]
    reads, thread = reads.select(order), thread[order]
    w_key = (writes["queue"].astype(np.int64) << 40) | _i64(writes["seq"])
    r_key = (reads["queue"].astype(np.int64) << 40) | _i64(reads["seq"])
    w_order = np.argsort(w_key, kind="stable")
    at = np.searchsorted(w_key[w_order], r_key)
    inside = at < len(w_order)
    at = w_order[np.minimum(at, max(0, len(w_order) - 1))] if len(w_order) else at
    found = inside & (w_key[at] == r_key) if len(w_order) else np.zeros(len(reads), bool)
    slot = reads["op"] == QueueOp.WRITE
    found &= ~slot
    sent, peer = _i64(reads["ready_ns"]), np.full(len(reads), -1, np.int32)
    if len(w_order):
        visible = np.minimum(writes["end_ns"][at], reads["ready_ns"])
        sent = np.where(found, visible, sent)
        peer = np.where(found, threads.index(writes["tid"][at]), -1).astype(np.int32)
    # A thread reads one queue at a time: what overlaps is cut at the next read's start.
    ready = _i64(reads["ready_ns"])
    same = thread[1:] == thread[:-1]
    ready[:-1] = np.where(same, np.minimum(ready[:-1], reads["start_ns"][1:]), ready[:-1])
    return QueueReads(
        _offsets(thread, len(threads.tid)),
        _i64(reads["start_ns"]),
        ready,
        _i64(sent),
        np.ascontiguousarray(peer),
        _i64(reads["queue"]),
        _i64(reads["seq"]),
        slot,
        int(((peer < 0) & ~slot).sum()),
    )


def _spans(capture: Capture, threads: Threads, calls: Calls) -> Spans:
    """Named phases flattened, the innermost winning.

    The agents' own spans; calls of the CUDA API; and one that follows from what agents say of
    queues: from a message being there to the read's return, the reader unpacks it.
    """
    spans, messages = capture.table("span"), capture.table("queue_msg")
    reads = messages.select(messages["op"] == QueueOp.READ)
    unpack = np.full(len(reads), len(capture.strings))
    name = np.concatenate([spans["name"], calls.table["name"], unpack])
    step = np.zeros(len(name), np.int64)
    step[: len(spans)] = spans["step"]
    start = np.concatenate([spans["start_ns"], calls.start_ns, reads["ready_ns"]])
    end = np.concatenate([spans["end_ns"], calls.end_ns, reads["end_ns"]])
    thread = np.concatenate(
        [threads.index(spans["tid"]), calls.thread, threads.index(reads["tid"])]
    )
    order = nested_order(thread, start, end)
    bounds = _offsets(thread[order], len(threads.tid))
    off, start, end, piece = flatten(bounds, start[order], end[order])
    return Spans(off, start, end, order[piece], name, step, (*capture.strings, "deserialise"))


def _fault_trap_ns(capture: Capture) -> int:
    """What the kernel probes measured that a fault costs besides what its record covers."""
    told = capture.fact("fault_trap_ns")
    return int(told) if told.isdecimal() else 0


def _faults(threads: Threads, faults: Table, trap_ns: int) -> FaultRuns:
    """Page faults that matter as intervals: long ones alone, dense runs of short ones joined.

    A minor fault takes about a microsecond; cut out one by one they would split the path into
    dust. A run of faults less than ``FAULT_GAP_NS`` apart that take most of their run is one
    interval; single short minor faults stay part of the CPU time around them. A fault
    takes, of the gap after it, what entering and leaving the kernel cost besides (``trap_ns``), as
    measured when the probes started; on a busier machine it is more.
    """
    thread = threads.index(faults["tid"])
    keep = np.flatnonzero((thread >= 0) & ((faults["flags"] & FaultFlag.OPEN) == 0))
    order = keep[np.argsort(thread[keep], kind="stable")]
    thread = thread[order]
    end, start = _i64(faults["end_ns"][order]), _i64(faults["start_ns"][order])
    if not len(order):
        return FaultRuns(_offsets(thread, len(threads.tid)), start, end, _i64(order), start)
    same = thread[1:] == thread[:-1]
    end[:-1] = np.where(same, np.minimum(end[:-1], start[1:]), end[:-1])
    length = end - start
    alone = (length >= FAULT_SHORT_NS) | ((faults["flags"][order] & FaultFlag.MAJOR) != 0)
    near = same & (start[1:] - end[:-1] < FAULT_GAP_NS) & ~alone[1:] & ~alone[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~near)))
    count = np.diff(np.concatenate((first, [len(order)])))
    run_end = end[first + count - 1]
    gap = np.zeros(len(order), np.int64)
    gap[:-1] = np.where(near, np.minimum(start[1:] - end[:-1], trap_ns), 0)
    filled = np.add.reduceat(length + gap, first)
    whole = run_end - start[first]
    good = alone[first] | ((whole >= FAULT_SHORT_NS) & (2 * filled >= whole))
    first, run_end, count = first[good], run_end[good], count[good]
    return FaultRuns(
        _offsets(thread[first], len(threads.tid)),
        _i64(start[first]),
        _i64(run_end),
        _i64(order[first]),
        _i64(count),
    )
