# SPDX-License-Identifier: Apache-2.0
"""The walk through devices against simulated programs, of which the truth is known.

A small simulator runs threads that launch, wait and wake each other, and streams that take one
operation after another. It writes the records that a profiler would write, and keeps for itself
what really let each operation and each thread go: of all that had to happen before, whatever
happened last. Following that backward from an end is the critical path, and the walk, which sees
the records alone, has to find the same one. Nothing here looks at how the walk does it.

Where records cannot tell (a call was under way when something else happened too), the simulator
knows that as well, and a path that leads there is compared from its end down to that moment only.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpucorrelate.correlator import states as states_
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec, Walker
from gpucorrelate.probes.wire.frame import Decoder, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, GpuOpKind, SyncKind, WaitFlag, WaitKind

NONE = (1 << 64) - 1
ZERO = 1_000_000
US = 1_000
#: Nothing is of another trace's process, so one capture holds many: that is faster, and ids of
#: different processes are the same.
TRACES_PER_CAPTURE = 40
CAPTURES = 50

#: What few programs do; each is compared by itself.
JOINS = "a stream's last work is an event's: it is waited for or recorded without an operation"
OPEN_GRAPHS = "graphs that begin and end with nodes on several streams"
SLOW_GRAPHS = "graph launches that return while the graph runs"
IDLE = "synchronisations with a stream or an event that has had no work yet"
DRIVER_WAITS = "synchronisations that block, and wait for a CPU afterwards"


@dataclass(eq=False)
class Op:
    """An operation; ``candidates`` is all that had to happen, with when it did."""

    stream: int
    start: int = 0
    end: int = 0
    call: tuple[int, int, int] = (0, 0, 0)  # thread, start, end
    candidates: list[tuple[int, Op | None]] = field(default_factory=list)  # None: the launch
    doubtful: bool = False

    @property
    def enabler(self) -> Op | None:
        return max(self.candidates, key=lambda c: c[0])[1]


@dataclass
class Piece:
    """What a thread did in ``(start, end]``; ``since`` is when what it waited for happened."""

    kind: str  # code, wait, sleep, sync, preempted
    start: int
    end: int
    since: int = 0
    source: Op | int | None = None  # operation waited for, or the thread that woke
    cpu: int = 0  # sync: from when to when it was runnable without a CPU
    cpu_end: int = 0
    doubtful: bool = False


@dataclass
class Thread:
    number: int
    now: int = ZERO
    pieces: list[Piece] = field(default_factory=list)
    blocked_since: int = 0
    polled: bool = False

    def spend(self, kind: str, end: int, **more) -> None:
        if end > self.now:
            self.pieces.append(Piece(kind, self.now, end, **more))
            self.now = end

    def at(self, moment: int) -> Piece:
        """What it did just before a moment."""
        return self.pieces[bisect_left([p.end for p in self.pieces], moment)]


class Program:
    """One process, simulated until it has made enough calls."""

    def __init__(self, seed: int, pid: int, *, waits: bool, extra: frozenset[str]) -> None:
        self.random, self.pid, self.waits, self.extra = random.Random(seed), pid, waits, extra
        self.threads = [Thread(k) for k in range(self.random.randint(1, 3))]
        self.streams = [7 + k for k in range(self.random.randint(1, 3))]
        #: Per stream: what whatever comes next on it has to wait for.
        self.frontier: dict[int, list[Op]] = {s: [] for s in self.streams}
        self.last: dict[int, Op] = {}  # of each stream, those within graphs included
        self.events: list[tuple[int, int, list[Op]]] = []  # id of the record, stream, work before
        self.ops: list[Op] = []
        self.driver_free = ZERO
        self.ids = 0
        self.rows: dict[str, list[dict[str, int | str]]] = {}
        budget = self.random.randint(4, 40)
        while budget > 0 and (ready := [t for t in self.threads if not t.blocked_since]):
            # The one whose clock is furthest behind, so that nothing happens before its cause.
            self.act(min(ready, key=lambda t: t.now))
            budget -= 1

    # --- records ---------------------------------------------------------------------------

    def tid(self, thread: Thread | int) -> int:
        return self.pid + 1 + (thread if isinstance(thread, int) else thread.number)

    def row(self, kind: str, **values: int | str) -> None:
        self.rows.setdefault(kind, []).append(values)

    def api(self, thread: Thread, name: str, start: int, end: int) -> int:
        self.ids += 1
        self.row("cuda_api", pid=self.pid, tid=self.tid(thread), name=name, api=1,
                 correlation=self.ids, start_ns=start, end_ns=end)  # fmt: skip
        self.driver_free = max(self.driver_free, start + 1)
        thread.polled = False
        return self.ids

    def sync_row(self, kind: SyncKind, start: int, end: int, stream=NONE, record=0, of=NONE):
        self.row("gpu_sync", pid=self.pid, sync=int(kind), gpu_stream=stream, event=NONE,
                 correlation=self.ids, start_ns=start, end_ns=end, record=record,
                 record_stream=of)  # fmt: skip

    def wait_row(self, thread: Thread, start: int, end: int, wake: int, waker: int, **more: int):
        if waker:
            more["waker_tgid"] = self.pid
        self.row("wait", tid=self.tid(thread), tgid=self.pid, start_ns=start, end_ns=end,
                 wake_ns=wake, waker_tid=waker, **more)  # fmt: skip

    # --- what threads do -------------------------------------------------------------------

    def some(self, low: float, high: float) -> int:
        """A time between, in microseconds; odd nanoseconds keep moments apart."""
        return self.random.randint(int(low * US), int(high * US))

    def act(self, thread: Thread) -> None:
        thread.spend("code", thread.now + self.some(1, 60))
        doing = [self.launch, self.launch, self.launch, self.graph, self.copy, self.record,
                 self.stream_wait, self.sync, self.sync, self.poll]  # fmt: skip
        if self.waits:
            doing += [self.block, self.block, self.wake, self.wake, self.wake, self.sleep,
                      self.preempt]  # fmt: skip
        self.random.choice(doing)(thread)

    def enter(self, thread: Thread) -> int:
        """The start of a call; the driver takes one at a time, which orders submissions."""
        thread.spend("code", max(thread.now, self.driver_free) + self.some(0.1, 1))
        return thread.now

    def launch(self, thread: Thread) -> None:
        start, stream = self.enter(thread), self.random.choice(self.streams)
        op = Op(stream)
        idle = all(o.end < start for o in self.frontier[stream])
        if idle and self.random.random() < 0.3:
            return self.launch_slowly(thread, op, start)
        end = start + self.some(2, 12)
        self.submit(op, thread, start, end, end)
        return self.launched(thread, "cudaLaunchKernel", [op])

    def launch_slowly(self, thread: Thread, op: Op, start: int) -> None:
        """The operation begins before the call returns."""
        submitted = start + self.some(1, 5)
        self.submit(op, thread, start, submitted, 0)
        op.call = (thread.number, start, op.start + self.some(0.1, 9))
        self.launched(thread, "cudaLaunchKernel", [op])

    def submit(self, op: Op, thread: Thread, start: int, submitted: int, end: int) -> None:
        """When an operation runs: after all that has to happen, and a while."""
        before = list(self.frontier[op.stream])
        self.run(op, [(submitted, None), *((o.end, o) for o in before)])
        op.call = (thread.number, start, end)
        # From the call's start on the records cannot tell the launch from what ended meanwhile.
        if submitted != end:
            op.doubtful |= any(start <= o.end < submitted for o in before)
        self.frontier[op.stream] = [op]

    def run(self, op: Op, candidates: list[tuple[int, Op | None]], length=(5, 200)) -> None:
        op.candidates = candidates
        moments = sorted(moment for moment, _ in candidates)
        op.doubtful |= len(moments) > 1 and moments[-1] == moments[-2]
        far = op.enabler is None and self.random.random() < 0.1
        op.start = moments[-1] + (self.some(20, 90) if far else self.some(1, 4))
        op.end = op.start + self.some(*length)
        self.last[op.stream] = op
        self.ops.append(op)

    def launched(self, thread: Thread, name: str, ops: list[Op], kind=GpuOpKind.KERNEL) -> None:
        _, start, end = ops[0].call
        call = self.api(thread, name, start, end)
        self.driver_free = max(self.driver_free, min(end, ops[0].start))
        if kind == GpuOpKind.KERNEL:
            thread.spend("code", end)
        for op in ops:
            self.row("gpu_op", pid=self.pid, gpu_stream=op.stream, op=int(kind), name="k",
                     correlation=call, start_ns=op.start, end_ns=op.end)  # fmt: skip

    def graph(self, thread: Thread) -> None:
        """Rows of nodes, each row let go by the whole row before it."""
        start, stream = self.enter(thread), self.random.choice(self.streams)
        submitted = end = start + self.some(5, 30)
        slow = SLOW_GRAPHS in self.extra and self.random.random() < 0.7
        open_ = OPEN_GRAPHS in self.extra
        nodes: list[Op] = []
        row = self.frontier[stream]
        depth = self.random.randint(1, 4)
        for level in range(depth):
            single = level in (0, depth - 1) and not open_
            width = 1 if single else self.random.randint(1, 3)
            above, row = row, []
            for k in range(width):
                node = Op(stream if k == 0 else 100 + k)
                candidates = {id(o): o for o in above}
                if k and node.stream in self.last:
                    other = self.last[node.stream]
                    candidates[id(other)] = other
                self.run(node, [(submitted, None), *((o.end, o) for o in candidates.values())])
                row.append(node)
            nodes += row
        self.frontier[stream] = row
        for node in nodes:
            # Which of a graph's nodes wait for which is not on record, only when they ended.
            latest = max(moment for moment, _ in node.candidates)
            node.doubtful |= any(latest < o.end <= node.start for o in nodes)
        if slow:
            end = self.random.randint(nodes[0].start, max(n.end for n in nodes))
            # As with a launch: what ended while the call was under way may have come after it.
            first = nodes[0]
            first.doubtful |= any(start <= m < submitted for m, o in first.candidates if o)
        for node in nodes:
            node.call = (thread.number, start, end)
        self.launched(thread, "cudaGraphLaunch", nodes)

    def copy(self, thread: Thread) -> None:
        """A copy that its own call waits for."""
        start, op = self.enter(thread), Op(self.random.choice(self.streams))
        submitted = start + self.some(1, 5)
        self.submit(op, thread, start, submitted, 0)
        op.call = (thread.number, start, op.end + self.some(0.1, 30))
        self.launched(thread, "cudaMemcpyAsync", [op], GpuOpKind.MEMCPY)
        if op.enabler is None:
            # Until it began the time is the call's own.
            thread.spend("code", op.start, doubtful=op.doubtful)
        self.waited(thread, op, op.call[2], since=start)

    def waited(self, thread: Thread, op: Op, end: int, *, since: int, doubtful=False) -> None:
        """The thread returns from a wait for a device."""
        piece: dict[str, int] = {}
        if self.waits and self.random.random() < 0.5 and op.end - thread.now > 3 * US:
            wake = op.end + (end - op.end) // 4
            on = op.end + (end - op.end) // 2 if DRIVER_WAITS in self.extra else wake
            self.wait_row(thread, thread.now + 1 * US, on, wake, 0, wait_kind=WaitKind.POLL,
                          flags=WaitFlag.WAKE_IRQ)  # fmt: skip
            piece = {"cpu": wake, "cpu_end": on}
        thread.spend("sync", end, since=op.end, source=op, doubtful=doubtful, **piece)

    def settled(self, stream: int) -> bool:
        """Whether a stream's own last operation is all that what comes next waits for."""
        return JOINS in self.extra or all(
            o.stream == stream or o.stream >= 100 for o in self.frontier[stream]
        )

    def record(self, thread: Thread, stream: int = 0) -> None:
        stream = stream or self.random.choice(self.streams)
        if not self.settled(stream):
            return
        start = self.enter(thread)
        work = list(self.frontier[stream])
        thread.spend("code", start + self.some(0.5, 2))
        self.events.append((self.api(thread, "cudaEventRecord", start, thread.now), stream, work))

    def stream_wait(self, thread: Thread) -> None:
        if not self.events:
            self.record(thread)
            return
        record, of, work = self.random.choice(self.events[-4:])
        stream = self.random.choice(self.streams)
        start = self.enter(thread)
        thread.spend("code", start + self.some(0.5, 2))
        self.api(thread, "cudaStreamWaitEvent", start, thread.now)
        self.sync_row(SyncKind.STREAM_WAIT_EVENT, start, thread.now, stream, record, of)
        self.frontier[stream] += [o for o in work if o not in self.frontier[stream]]
        if JOINS in self.extra:
            # Nothing comes between, on this stream, that would wait for the event itself.
            self.random.choice((self.sync_stream, self.record))(thread, stream)

    def sync_stream(self, thread: Thread, stream: int) -> None:
        self.sync(thread, SyncKind.STREAM, stream)

    def sync(self, thread: Thread, kind: SyncKind | None = None, stream: int = 0) -> None:
        kind = kind or self.random.choice((SyncKind.STREAM, SyncKind.EVENT, SyncKind.CONTEXT))
        stream = stream or self.random.choice(self.streams)
        if (kind == SyncKind.STREAM and not self.settled(stream)) or (
            kind == SyncKind.EVENT and not self.events
        ):
            return
        start = self.enter(thread)
        record, of = 0, NONE
        if kind == SyncKind.STREAM:
            name, work = "cudaStreamSynchronize", self.frontier[stream]
        elif kind == SyncKind.EVENT:
            record, of, work = self.random.choice(self.events[-4:])
            name, stream = "cudaEventSynchronize", NONE
        else:
            name, work, stream = "cudaDeviceSynchronize", list(self.last.values()), NONE
        if not work and IDLE not in self.extra:
            return
        over = self.some(0.1, 30)
        op = max(work, key=lambda o: o.end, default=None)
        end = (op.end if op and op.end > start else start) + over
        self.api(thread, name, start, end)
        self.sync_row(kind, start, end, stream, record, of)
        if op is None or op.end <= start:
            thread.spend("code", end)
        else:
            tie = sum(o.end == op.end for o in work) > 1
            self.waited(thread, op, end, since=start, doubtful=tie)

    def poll(self, thread: Thread) -> None:
        if thread.polled or not self.events:
            return
        _, _, work = self.random.choice(self.events[-4:])
        op = max(work, key=lambda o: o.end, default=None)
        first = self.enter(thread)
        start = first
        while True:
            end = start + self.some(0.5, 1)
            self.api(thread, "cudaEventQuery", start, end)
            if op is None or op.end <= start:
                break
            # Each poll takes the driver for itself, or others would never come to call.
            start = end + self.some(1, 2) + max(0, (op.end - end) // 5)
        if op is None or op.end <= first:
            thread.spend("code", end)
        else:
            # Whose event it was the records do not say: another operation may be taken for it.
            also = any(op.end <= o.end <= end for o in self.ops if o is not op)
            thread.spend("sync", end, since=op.end, source=op, doubtful=also)
        thread.polled = True

    # --- what the kernel probes see --------------------------------------------------------

    def block(self, thread: Thread) -> None:
        if sum(not t.blocked_since for t in self.threads) > 1:
            thread.blocked_since = thread.now

    def wake(self, thread: Thread) -> None:
        blocked = [t for t in self.threads if t.blocked_since and t.blocked_since < thread.now]
        if not blocked:
            return
        other = self.random.choice(blocked)
        # Whoever wakes goes on a while, so that it had a CPU at that moment.
        end = thread.now + self.some(0, 30)
        self.wait_row(other, other.blocked_since, end, thread.now, self.tid(thread),
                      wait_kind=WaitKind.FUTEX, op=128 | 9)  # fmt: skip
        other.blocked_since = 0
        other.spend("wait", end, since=thread.now, source=thread.number)
        other.spend("code", end + 1)

    def sleep(self, thread: Thread) -> None:
        start, wake = thread.now, thread.now + self.some(5, 150)
        end = wake + self.some(0, 20)
        self.wait_row(thread, start, end, wake, 0, wait_kind=WaitKind.SLEEP,
                      flags=WaitFlag.WAKE_TIMER)  # fmt: skip
        thread.spend("sleep", end, since=wake)
        thread.spend("code", end + 1)

    def preempt(self, thread: Thread) -> None:
        start, end = thread.now, thread.now + self.some(1, 40)
        self.wait_row(thread, start, end, start, 0, wait_kind=WaitKind.PREEMPTED)
        thread.spend("preempted", end)
        thread.spend("code", end + 1)


# --- the truth ------------------------------------------------------------------------------

Segment = tuple[int, int, str, str]


class Truth:
    """The critical path back from an end, by what the simulator knows; newest first."""

    def __init__(self, program: Program, start: int, end: int, on: Thread | Op) -> None:
        self.program, self.start, self.now = program, start, end
        self.segments: list[Segment] = []
        self.doubtful_until = start  # from here back the records cannot tell
        #: Those that the path left while they waited, with when that began.
        self.left: list[tuple[int, Thread]] = []
        at: Thread | Op = on
        while self.now > start:
            at = self.through_op(at) if isinstance(at, Op) else self.through_thread(at)

    def spend(self, since: int, category: str, who: Thread | Op) -> None:
        since = max(since, self.start)
        if since < self.now:
            name = f"gpu{who.stream}" if isinstance(who, Op) else f"thread{who.number}"
            self.segments.append((since, self.now, category, name))
            self.now = since

    def doubt(self) -> None:
        self.doubtful_until = max(self.doubtful_until, self.now)

    def through_op(self, op: Op) -> Thread | Op:
        self.spend(op.start, "gpu", op)
        if op.doubtful:
            self.doubt()
        enabler = op.enabler
        if enabler is not None:
            self.spend(enabler.end, "queue-gap", op)
            return enabler
        thread, _, end = op.call
        self.spend(min(end, op.start), "launch-gap", op)
        return self.program.threads[thread]

    def through_thread(self, thread: Thread) -> Thread | Op:
        piece = thread.at(self.now)
        if piece.kind == "code":
            if piece.doubtful:
                self.doubt()
            self.spend(piece.start, "cpu" if self.program.waits else "host", thread)
            return thread
        if piece.kind == "preempted":
            self.spend(piece.start, "preempted", thread)
            return thread
        if piece.kind == "sync":
            return self.through_sync(thread, piece)
        if self.now > piece.since:
            self.spend(piece.since, "run-queue", thread)
        if piece.kind == "wait":
            self.left.append((piece.start, thread))
            assert isinstance(piece.source, int)
            return self.program.threads[piece.source]
        return self.through_sleep(thread, piece)

    def through_sync(self, thread: Thread, piece: Piece) -> Op:
        if piece.doubtful:
            self.doubt()
        if self.now > piece.cpu_end > piece.cpu:
            self.spend(piece.cpu_end, "sync-return", thread)
            self.spend(piece.cpu, "run-queue", thread)
        self.spend(piece.since, "sync-return", thread)
        self.left.append((piece.start, thread))
        assert isinstance(piece.source, Op)
        return piece.source

    def through_sleep(self, thread: Thread, piece: Piece) -> Thread:
        """A sleep from before somebody waited for its end explains no more than that wait."""
        within = [k for k, (since, _) in enumerate(self.left) if piece.start < since < self.now]
        if not within:
            self.spend(piece.start, "sleep", thread)
            return thread
        k = max(within, key=lambda k: (self.left[k][0], k))
        since, waiter = self.left[k]
        self.spend(since, "sleep", thread)
        del self.left[k:]
        return waiter


def test_the_truth_is_the_longest_chain_of_what_had_to_happen() -> None:
    """Of all chains through everything that an operation had to wait for, the truth is longest.

    By brute force: every chain of operations back to a launch, the time within operations and
    between them counted; the one without slack is the truth.
    """
    compared = 0
    for seed in range(60):
        program = Program(seed, 1_000, waits=False, extra=frozenset())
        for op in program.ops:
            chains = list(chains_to(op, 6))
            if op.doubtful or len(chains) > 2_000:
                continue
            least = min(chains, key=lambda chain: chain[0])
            again = op
            for step in least[1]:
                assert again.enabler is step
                again = step or op
            compared += len(chains) > 1
    assert compared > 100


def chains_to(op: Op, depth: int):
    """(time in no activity, operations back) of every chain of a limited length.

    The dispatch of a device is not slack: what comes last has that time and no more.
    """
    latest = max(moment for moment, _ in op.candidates)
    for moment, source in op.candidates:
        slack = latest - moment
        if source is None or depth == 0:
            yield slack, [source]
        else:
            for more, chain in chains_to(source, depth - 1):
                yield slack + more, [source, *chain]


# --- comparison -----------------------------------------------------------------------------


def captured(programs: list[Program], *, waits: bool) -> Capture:
    frames: list[bytes] = []
    end = max((t.now for p in programs for t in p.threads), default=ZERO) + 1_000 * US
    own = StreamWriter(1)

    def add(writer: StreamWriter, kind_name: str, rows: list[Any]) -> None:
        kind = BY_NAME[kind_name]
        values = [
            [row.get(c.name, "" if c.ctype == "str" else 0) for c in kind.columns] for row in rows
        ]
        frames.extend(writer.frames(kind, len(rows), columns_of(kind, values, writer.strings)))

    if not waits:
        add(own, "meta", [{"t_ns": ZERO, "key": "clock", "value": "trace"}])
    for number, program in enumerate(programs, 2):
        pid, writer = program.pid, StreamWriter(number)
        add(own, "stream", [{"stream": number, "tgid": pid, "producer": "vllm", "role": "worker"}])
        add(own, "session", [{"t_ns": ZERO, "event": 2, "tgid": pid, "session": "s"}])
        threads = [{"tid": program.tid(t), "name": "t", "role": "t"} for t in program.threads]
        add(writer, "thread", threads)
        rows = dict(program.rows)
        if waits:
            # That a wait of a process is on record makes its threads traced.
            first: dict[str, int | str] = {
                "tid": pid + 1,
                "tgid": pid,
                "start_ns": ZERO - 20,
                "end_ns": ZERO - 10,
            }
            rows["wait"] = [first, *rows.get("wait", [])]
        for kind_name, some in rows.items():
            add(writer, kind_name, some)
    add(own, "session", [{"t_ns": end, "event": 4, "session": "s"}])
    decoder = Decoder()
    items = [item for frame in frames for item in decoder.feed(frame)]
    return Capture.from_batches([item[0] for item in items if isinstance(item, tuple)])


def merged(segments: list[Segment], down_to: int) -> list[Segment]:
    """Oldest first; neighbours that say the same joined, what lies before a moment cut off."""
    out: list[Segment] = []
    for start, end, category, who in sorted(segments):
        start = max(start, down_to)
        if start >= end:
            continue
        if out and out[-1][1:] == (start, category, who):
            start = out.pop()[0]
        out.append((start, end, category, who))
    return out


def ends_of(program: Program) -> list[tuple[int, int, Thread | Op]]:
    """Where to begin: ends of threads' own time and of operations, back to a few starts."""
    choose = program.random
    ends: list[tuple[int, Thread | Op]] = []
    for thread in program.threads:
        own = [p.end for p in thread.pieces if p.kind == "code"]
        ends += [(own[-1], thread), (choose.choice(own), thread)] if own else []
    if program.ops:
        ends += [(op.end, op) for op in choose.sample(program.ops, min(3, len(program.ops)))]
        last = max(program.ops, key=lambda o: o.end)
        ends.append((last.end, last))
    return [
        (choose.choice((ZERO, ZERO, choose.randint(ZERO, end - 1))), end, on) for end, on in ends
    ]


def compare(seeds: range, *, waits: bool, extra: frozenset[str] = frozenset()) -> dict[str, int]:
    """Walk programs and compare; returns how much of what was compared."""
    counts = {"traces": 0, "paths": 0, "whole": 0, "segments": 0, "devices": 0}
    programs = [
        Program(seed, 1_000 + 10 * k, waits=waits, extra=extra) for k, seed in enumerate(seeds)
    ]
    states = states_.build(captured(programs, waits=waits))
    ops, n_threads = states.device.ops, len(states.threads.tid)
    rows = {
        (int(pid), int(stream), int(start)): i
        for i, (pid, stream, start) in enumerate(
            zip(ops.table["pid"], ops.table["gpu_stream"], ops.start_ns, strict=True)
        )
    }
    legs, wanted = [], []
    for program in programs:
        counts["traces"] += 1
        for start, end, on in ends_of(program):
            if isinstance(on, Op):
                op = rows[program.pid, on.stream, on.start]
                actor = int(states.path.actor[op])
            else:
                op, actor = -1, states.threads.one(program.tid(on))
            legs.append(LegSpec(actor, start, end, (), op))
            wanted.append((program, Truth(program, start, end, on)))

    def name(program: Program, actor: int) -> str:
        if actor < 0:
            return "nobody"
        if actor >= n_threads:
            stream = states.device.streams[actor - n_threads]
            assert states.device.processes[stream.process].pid == program.pid
            return f"gpu{stream.number}"
        return f"thread{int(states.threads.tid[actor]) - program.pid - 1}"

    paths = Walker(states).walk(legs)
    for k, (leg, (program, truth)) in enumerate(zip(legs, wanted, strict=True)):
        found = paths.leg(k)
        assert found["start"][0] == leg.start_ns
        assert found["end"][-1] == leg.end_ns
        assert (found["start"][1:] == found["end"][:-1]).all()
        assert int((found["end"] - found["start"]).sum()) == leg.end_ns - leg.start_ns
        segments = [
            (int(s["start"]), int(s["end"]), str(CATEGORIES[s["category"]]),
             name(program, int(s["actor"]))) for s in found
        ]  # fmt: skip
        since = truth.doubtful_until
        expected = merged(truth.segments, since)
        assert merged(segments, since) == expected, (seeds[0], program.pid, leg)
        counts["paths"] += 1
        counts["whole"] += since == leg.start_ns
        counts["segments"] += len(expected)
        counts["devices"] += sum(s[3].startswith("gpu") for s in expected)
    return counts


def total(base: int, captures: int, **more) -> dict[str, int]:
    sums: dict[str, int] = {}
    for k in range(captures):
        first = base + k * TRACES_PER_CAPTURE
        for key, count in compare(range(first, first + TRACES_PER_CAPTURE), **more).items():
            sums[key] = sums.get(key, 0) + count
    return sums


@pytest.mark.parametrize("waits", [False, True], ids=["profile", "with waits"])
def test_the_walk_finds_the_path_that_the_simulator_took(waits: bool) -> None:
    counts = total(0 if waits else 1_000_000, CAPTURES, waits=waits)
    assert counts["traces"] == CAPTURES * TRACES_PER_CAPTURE
    # Nearly all paths have to be told in full, and to lead over devices.
    assert counts["whole"] > 0.8 * counts["paths"]
    assert counts["devices"] > 2 * counts["paths"]


def rare(extra: str, name: str, *, profile: bool = True, known: str = ""):
    """Cases of what few programs do, in a profile and with waits on record."""
    marks = [pytest.mark.xfail(strict=True, reason=known)] if known else []
    return [
        pytest.param(
            extra, waits, marks=marks, id=f"{name}, {'with waits' if waits else 'profile'}"
        )
        for waits in ([False, True] if profile else [True])
    ]


@pytest.mark.parametrize(
    ("extra", "waits"),
    [
        *rare(JOINS, "joins"),
        *rare(
            OPEN_GRAPHS, "open graphs", known="no record says on which stream a graph was launched"
        ),
        *rare(SLOW_GRAPHS, "slow graphs"),
        *rare(IDLE, "idle"),
        *rare(DRIVER_WAITS, "driver waits", profile=False),
    ],
)
def test_what_few_programs_do_is_walked_too(extra: str, waits: bool) -> None:
    counts = total(2_000_000, 15, waits=waits, extra=frozenset({extra}))
    assert counts["whole"] > 0.8 * counts["paths"]
