# SPDX-License-Identifier: Apache-2.0
"""From the walk's numbers to words: actors, causes and evidence of segments and waits."""

from __future__ import annotations

import bisect
import re
from functools import cached_property
from typing import TYPE_CHECKING

from gpucorrelate.correlator import device_words
from gpucorrelate.correlator.context import OF_CGROUP, HostContext
from gpucorrelate.correlator.guessed_roles import guessed_roles
from gpucorrelate.correlator.report.values import (
    Actor,
    Category,
    Cause,
    Evidence,
    PhaseName,
    Segment,
    Wait,
)
from gpucorrelate.correlator.states import CATEGORIES, WaitClass
from gpucorrelate.correlator.walk import EVIDENCE_UNREAD
from gpucorrelate.probes.wire.schema import FaultFlag, FdKind, WaitFlag, WaitKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Table
    from gpucorrelate.correlator.requests import Cut
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.steps import Steps
    from gpucorrelate.probes.wire.roles import GuessedRole

_EVIDENCE_WAIT, _EVIDENCE_QUEUE, _EVIDENCE_FAULT, _EVIDENCE_GPU, _EVIDENCE_SYNC = 1, 2, 3, 4, 5
_EVIDENCE_LOST = 6
_MODE_RETURN, _MODE_GIL, _MODE_GIL_INFERRED = 1, 2, 3

#: x86-64 system calls by number, where waiters and wakers are usually found
#: (arch/x86/entry/syscalls/syscall_64.tbl of Linux).
SYSCALLS = {
    0: "read", 1: "write", 3: "close", 7: "poll", 9: "mmap", 10: "mprotect", 11: "munmap",
    16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
    24: "sched_yield", 28: "madvise", 34: "pause", 35: "nanosleep", 41: "socket",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    48: "shutdown", 56: "clone", 57: "fork", 59: "execve", 60: "exit", 61: "wait4", 62: "kill",
    74: "fsync", 75: "fdatasync", 128: "rt_sigtimedwait", 200: "tkill", 202: "futex",
    208: "io_getevents", 230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait",
    233: "epoll_ctl", 234: "tgkill", 247: "waitid", 257: "openat", 262: "newfstatat",
    270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 299: "recvmmsg",
    307: "sendmmsg", 332: "statx", 426: "io_uring_enter", 435: "clone3", 441: "epoll_pwait2",
    449: "futex_waitv", 454: "futex_wake", 455: "futex_wait",
}  # fmt: skip

#: Segments kept for reuse among requests that share a path; about 300 MB when full.
_MADE_LIMIT = 400_000
_AT_ONCE = 8192

#: ``GPU-`` and the first part of a GPU's UUID.
_GPU_LETTERS = 12
#: threading's default name of a thread that runs a function; the function says more.
_THREAD_OF = re.compile(r"Thread-\d+ \((\w+)\)")

_PROCESS_NAMES = {"api": "APIServer", "core": "EngineCore"}
_WAIT_KINDS = frozenset(WaitKind)
_WAITED = frozenset(
    {
        Category.SLEEP,
        Category.DISK,
        Category.NETWORK,
        Category.EXTERNAL,
        Category.IRQ,
        Category.PAGE_FAULT,
        Category.RUN_QUEUE,
        Category.PREEMPTED,
        Category.MESSAGE,
        Category.LOCK,
        Category.THROTTLED,
    }
)


_NOT_SCHEDULED = frozenset({PhaseName.ADMIT, PhaseName.QUEUE, PhaseName.BETWEEN})

#: What keeps a holder of the interpreter lock from getting on.
_OF_A_HOLDER = _WAITED - {Category.MESSAGE, Category.LOCK}


def syscall_name(number: int) -> str:
    """``write``, ``syscall 999``; empty for none."""
    return "" if number < 0 else SYSCALLS.get(number, f"syscall {number}")


class Describer:
    """Turns rows of the walk into report values; caches what repeats."""

    def __init__(self, states: States, steps: Steps) -> None:
        self._s = states
        self._steps = steps
        self._strings = states.capture.strings
        self._actors: dict[int, Actor] = {}
        self._strangers: dict[tuple[int, int], Actor] = {}
        self._span_names: dict[int, tuple[str, int]] = {}
        self._made: dict[tuple[object, ...], Segment] = {}

    @cached_property
    def host(self) -> HostContext:
        """The host's numbers, its threads and processes named as everywhere else."""
        return HostContext(self._s.capture, self.subject)

    @cached_property
    def _words(self) -> device_words.DeviceWords:
        return device_words.DeviceWords(self._s)

    @cached_property
    def _names(self) -> dict[int, tuple[str, str]]:
        """Thread -> (name, role) as the process itself says; the latest counts."""
        rows = self._s.capture.table("thread")
        return {
            tid: (self._strings[name], self._strings[role])
            for tid, name, role in zip(
                *(rows[c].tolist() for c in ("tid", "name", "role")), strict=True
            )
        }

    @cached_property
    def _guessed(self) -> dict[int, GuessedRole]:
        return guessed_roles(self._s.capture)

    @cached_property
    def _comms(self) -> dict[int, str]:
        rows = self._s.capture.table("task")
        return {
            tid: self._strings[comm]
            for tid, comm in zip(rows["tid"].tolist(), rows["comm"].tolist(), strict=True)
            if comm
        }

    @cached_property
    def _processes(self) -> dict[int, str]:
        """Process id -> name, from the roles its streams and threads claim."""
        names: dict[int, str] = {}
        for info in self._s.capture.streams:
            if info.producer == "vllm" and info.role and info.role != "?":
                names[info.tgid] = _PROCESS_NAMES.get(info.role, info.role.capitalize())
            elif info.producer == "import" and info.role:
                names[info.tgid] = info.role
        tgid = dict(zip(self._s.threads.tid.tolist(), self._s.threads.tgid.tolist(), strict=True))
        for tid, (_, role) in self._names.items():
            head = role.partition(".")[0]
            if head.startswith("worker") and tgid.get(tid):
                names[tgid[tid]] = f"Worker{head[6:]}"
        return names

    def actor(self, thread: int) -> Actor:
        """The actor of a thread index; nobody for -1."""
        found = self._actors.get(thread)
        if found is None:
            found = self._actors[thread] = self._actor(thread)
        return found

    def _actor(self, thread: int) -> Actor:
        if thread < 0:
            return Actor(0, 0, "", "", "unknown", traced=False)
        threads = self._s.threads
        if thread >= len(threads.tid):
            return device_words.stream_actor(self._s.device, thread - len(threads.tid))
        tid, tgid = int(threads.tid[thread]), int(threads.tgid[thread])
        name, role = self._names.get(tid, ("", ""))
        process = self._processes.get(tgid) or self._comms.get(tgid, "")
        if role.endswith(".main"):
            name = ""
        target = _THREAD_OF.fullmatch(name)
        name = target.group(1) if target else name
        comm = "" if tid == tgid else self._comms.get(tid, "")
        guess = self._guessed.get(tid)
        if guess is not None:
            role = guess.role
            # The kernel's name of most threads is their process's, which says less than a guess.
            comm = "" if comm == self._comms.get(tgid) else comm
        return Actor(
            tid, tgid, role, name or comm, process, traced=bool(threads.traced[thread]),
            role_by=guess.basis if guess is not None else "",
        )  # fmt: skip

    def stranger(self, tid: int, tgid: int) -> Actor | None:
        """The actor of a waker that may be outside the traced processes; None for nobody."""
        if tid == 0:
            return None
        index = self._s.threads.one(tid)
        if index >= 0:
            return self.actor(index)
        key = (tid, tgid)
        if key not in self._strangers:
            comm = self._comms.get(tid, "") or self._comms.get(tgid, "")
            self._strangers[key] = Actor(tid, tgid or tid, "", "", comm, traced=False)
        return self._strangers[key]

    def subject(self, subject: str) -> str:
        """What people call the subject of one of the host's numbers."""
        kind, _, rest = subject.partition(":")
        if kind == "gpu":
            device, _, pid = rest.partition(" pid:")
            return (
                f"{device[:_GPU_LETTERS]} {self.subject(f'pid:{pid}')}"
                if pid
                else (device[:_GPU_LETTERS])
            )
        if kind not in ("tid", "pid") or not rest.isdecimal():
            return "the host" if subject == "host" else subject.replace(":", " ", 1)
        number = int(rest)
        if kind == "pid":
            process = self._processes.get(number) or self._comms.get(number, "")
            return f"{process}/{rest}" if process else f"process {rest}"
        index = self._s.threads.one(number)
        return self.actor(index).label if index >= 0 else f"thread {rest}"

    def span_name(self, span: int) -> tuple[str, int]:
        """Name and step of a row of the flattened spans."""
        if span < 0:
            return "", 0
        found = self._span_names.get(span)
        if found is None:
            found = self._span_names[span] = self._s.spans.named(span)
        return found

    def span_before(self, thread: int, t_ns: int) -> str:
        """What the thread was in just before a moment; empty if nothing is known."""
        if not 0 <= thread < len(self._s.threads.tid):
            return ""
        spans = self._s.spans
        low, high = spans.off[thread], spans.off[thread + 1]
        at = low + spans.start_ns[low:high].searchsorted(t_ns) - 1
        # A waker signals from inside its phase, or right after it: allow for the call's own time.
        if at >= low and spans.end_ns[at] + 20_000 >= t_ns:
            return self.span_name(int(at))[0]
        return ""

    def segments(self, rows: NDArray[np.void], cuts: Sequence[Cut]) -> list[Segment]:
        """Report values of the walk's segments, adjacent equal ones joined."""
        return list(self.each(rows, cuts))

    def each(self, rows: NDArray[np.void], cuts: Sequence[Cut]) -> Iterator[Segment]:
        """The same, one after another: a path may have more segments than memory should hold."""
        last: Segment | None = None
        for at in range(0, len(rows), _AT_ONCE):
            for row in rows[at : at + _AT_ONCE].tolist():
                segment = self._segment(row, cuts)
                if last is not None and _mergeable(last, segment):
                    last = _merged(last, segment)
                    continue
                if last is not None:
                    yield last
                last = segment
        if last is not None:
            yield last

    def _segment(
        self,
        row: tuple[int, ...],
        cuts: Sequence[Cut],
    ) -> Segment:
        start, end, evidence, span, slack, held_by, *row_of = row
        thread, _, held, _, phase, cat, ekind, guess, _ = row_of
        cut = cuts[phase] if 0 <= phase < len(cuts) else None
        phase_name = cut.phase if cut else PhaseName.UNKNOWN
        name, step = self.span_name(span)
        if not step and cut is not None:
            step = self._step_of(cut, start, end, thread)
        # Requests of one batch share most of their path: so do their segments.
        key = (
            start,
            end,
            evidence,
            slack,
            thread,
            cat,
            ekind,
            phase_name,
            name,
            step,
            held,
            guess,
        )
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _MADE_LIMIT:
                self._made.clear()
            category = CATEGORIES[cat]
            if category in (Category.GPU, Category.GPU_EARLIER):
                name, step = self._words.operation(evidence), self._words.owner(evidence)
            made = self._made[key] = Segment(
                start,
                end,
                category,
                self.actor(thread),
                phase_name,
                name,
                step or None,
                self.why(row),
                self._evidence(ekind, evidence) or self._running(span, thread, held_by),
                None if slack < 0 else slack,
            )
        return made

    def why(self, row: tuple[int, ...]) -> Cause | None:
        """Why a row of the walk lasted; None where nothing needs a reason or none is known."""
        start, _, evidence, _, _, _, thread, related, held, _, _, cat, ekind, guess, _ = row
        category = CATEGORIES[cat]
        at = (start, thread, held, guess)
        cause = self._cause(category, ekind, evidence, related, at)
        return _guessed(cause) if cause and guess and category in _OF_A_HOLDER else cause

    def does(self, row: tuple[int, ...]) -> str:
        """What the holder of a row of the walk was in by its own name; empty: it has none."""
        evidence, span, cat = row[2], row[3], row[11]
        if CATEGORIES[cat] in (Category.GPU, Category.GPU_EARLIER):
            return self._words.operation(evidence)
        return self.span_name(span)[0]

    def _step_of(self, cut: Cut, start: int, end: int, thread: int) -> int:
        """The step that a stretch without a step of its own belongs to; 0 for none.

        While a request is not scheduled it waits for others' steps.
        """
        if cut.phase not in _NOT_SCHEDULED:
            return int(self._steps.number[cut.step]) if cut.step >= 0 else 0
        if not 0 <= thread < len(self._s.threads.tid):
            return 0
        engine = int(self._s.threads.tgid[thread]) in self._engine
        return self._steps.alone_in(start, end) if engine else 0

    @cached_property
    def _engine(self) -> set[int]:
        """Processes of engine cores and workers."""
        roles = {info.tgid: info.role for info in self._s.capture.streams}
        return {tgid for tgid, role in roles.items() if role.startswith(("core", "worker"))}

    def _cause(
        self,
        category: Category,
        ekind: int,
        evidence: int,
        related: int,
        at: tuple[int, int, int, int],
    ) -> Cause | None:
        start, thread, held, guess = at
        if category is Category.GIL:
            waiter = self.actor(held) if held >= 0 else None
            sure = "holds" if not guess else "was on a CPU, so probably held"
            return Cause(f"{sure} the interpreter lock for which waits", waiter)
        if ekind == _EVIDENCE_QUEUE:
            if category is Category.UNEXPLAINED:
                if not self._s.reads.slot[evidence]:
                    return Cause("polling a queue; the write was not recorded")
                told = int(self._s.reads.queue[evidence])
                return Cause("polling a queue for a free slot" if told else "yielding in a loop")
            return Cause("message from", self.actor(related))
        if ekind == _EVIDENCE_FAULT:
            return self._fault_cause(evidence)
        if ekind in (_EVIDENCE_GPU, _EVIDENCE_SYNC):
            return self._words.cause(category, evidence, self.actor)
        if ekind == _EVIDENCE_WAIT:
            return self._wait_cause(category, evidence)
        if ekind == EVIDENCE_UNREAD:
            return Cause("the response could not be written on: its client did not read")
        if category is Category.UNOBSERVED:
            if ekind == _EVIDENCE_LOST:
                return Cause("records of waits were lost then")
            return self._not_observed(start, thread)
        if held >= 0:
            return Cause("holds the lock for which waits", self.actor(held))
        return None

    def _not_observed(self, start: int, thread: int) -> Cause:
        """Why nothing is known of a thread from a moment on."""
        threads = self._s.threads
        if thread >= len(threads.tid):
            return Cause("nothing on record lies before it on the stream")
        if thread < 0:
            return Cause("the thread that held the path is not known")
        if not threads.traced[thread]:
            return Cause("no waits of its process were recorded")
        if start < threads.first_ns[thread]:
            return Cause("before tracing of it began")
        if start >= threads.last_ns[thread]:
            return Cause("after its last record")
        return Cause("records of waits were lost then")

    def _fault_cause(self, fault: int) -> Cause:
        table, row = self._s.fault_table, int(self._s.faults.row[fault])
        flags = int(table["flags"][row])
        kind = "major fault" if flags & FaultFlag.MAJOR else "minor fault"
        count = int(self._s.faults.count[fault])
        if count > 1:
            kind = f"{count} minor faults"
        return Cause(kind, None, file_name(int(table["dev"][row]), int(table["inode"][row])))

    def _wait_cause(self, category: Category, row: int) -> Cause | None:
        table = self._s.waits.table
        waker = self.stranger(int(table["waker_tid"][row]), int(table["waker_tgid"][row]))
        kind = _wait_kind(table, row)
        call = syscall_name(int(table["waker_syscall"][row]))
        if category is Category.PREEMPTED:
            return Cause("ran instead:", waker)
        if category is Category.THROTTLED:
            begin, end = int(table["start_ns"][row]), int(table["end_ns"][row])
            path = self.host.throttled_by(int(table["tgid"][row]), begin, end)
            return Cause("out of CPU quota", None, f"{OF_CGROUP}{path}" if path else "")
        if category is Category.RUN_QUEUE:
            ran = self._ran_instead(row)
            return Cause("ran instead:", ran) if ran else Cause("runnable, no CPU yet")
        if category is Category.SLEEP:
            what = "sleep" if kind is WaitKind.SLEEP else f"timeout of {wait_name(table, row)}"
            return Cause("timer", None, what)
        if category is Category.UNEXPLAINED:
            if self._s.waits.cls[row] == WaitClass.GIL:
                return Cause("waits for the interpreter lock; its holder is not known")
            open_ = int(table["flags"][row]) & (WaitFlag.OPEN | WaitFlag.START_UNKNOWN)
            return Cause("still waiting when it was reported" if open_ else "no wake was seen")
        if category is Category.PAGE_FAULT:
            return self._blocked_fault(row) or Cause("page fault")
        if category in (Category.DISK, Category.IRQ):
            return Cause("completed by", waker, wait_name(table, row))
        return Cause("woken by", waker, f"in {call}" if call else "")

    def _ran_instead(self, row: int) -> Actor | None:
        table = self._s.waits.table
        return self.stranger(int(table["ran_tid"][row]), int(table["ran_tgid"][row]))

    def _blocked_fault(self, row: int) -> Cause | None:
        """The fault a thread was blocked in: the one of its faults around the wait."""
        table, faults = self._s.waits.table, self._s.faults
        thread = self._s.threads.one(int(table["tid"][row]))
        if thread < 0:
            return None
        low, high = faults.off[thread], faults.off[thread + 1]
        at = low + faults.start_ns[low:high].searchsorted(table["end_ns"][row]) - 1
        if at >= low and faults.end_ns[at] >= table["start_ns"][row]:
            return self._fault_cause(int(at))
        return None

    def _evidence(self, ekind: int, row: int) -> tuple[Evidence, ...]:
        if ekind == _EVIDENCE_WAIT:
            table = self._s.waits.table
            return (
                Evidence("wait", int(table["start_ns"][row]), int(table["end_ns"][row]),
                         int(table["tid"][row]), wait_name(table, row)),
            )  # fmt: skip
        if ekind == _EVIDENCE_QUEUE:
            reads = self._s.reads
            name = self._strings[int(reads.queue[row])]
            return (
                Evidence("queue_msg", int(reads.start_ns[row]), int(reads.ready_ns[row]), 0,
                         f"{name} message {int(reads.seq[row])}"),
            )  # fmt: skip
        if ekind == _EVIDENCE_FAULT:
            table, at = self._s.fault_table, int(self._s.faults.row[row])
            return (
                Evidence("fault", int(table["start_ns"][at]), int(table["end_ns"][at]),
                         int(table["tid"][at]), f"address {int(table['addr'][at]):#x}"),
            )  # fmt: skip
        if ekind == _EVIDENCE_GPU:
            return (self._words.operation_evidence(row),)
        if ekind == _EVIDENCE_SYNC:
            return (self._words.sync_evidence(row),)
        return ()

    def _running(self, span: int, thread: int, held_by: int) -> tuple[Evidence, ...]:
        """What time on a CPU rests on: the wait for a lock held then, or the named phase."""
        if held_by >= 0:
            return self._evidence(_EVIDENCE_WAIT, held_by)
        if span < 0 or thread < 0:
            return ()
        spans = self._s.spans
        name, _ = self.span_name(span)
        tid = int(self._s.threads.tid[thread])
        at = (int(spans.start_ns[span]), int(spans.end_ns[span]))
        return (Evidence("span", *at, tid, name),)

    def waits(
        self, hops: NDArray[np.void], segments: Sequence[Segment], cuts: Sequence[Cut]
    ) -> list[Wait]:
        """Waits on the path with who ended them, longest first."""
        times = [cut.t_ns for cut in cuts]
        out = [self._hop(h, times, cuts) for h in hops.tolist() if h[1] > h[0]]
        out += [
            Wait(s.start_ns, s.end_ns, s.actor, _leaf_kind(s), s.cause or Cause(""), s.phase)
            for s in segments
            if s.category in _WAITED
        ]
        return sorted(out, key=lambda w: w.start_ns - w.end_ns)

    def _hop(self, hop: tuple[int, ...], times: list[int], cuts: Sequence[Cut]) -> Wait:
        start, end, evidence, waiter, to, _, ekind, mode, _ = hop
        at = bisect.bisect_left(times, end) - 1
        phase = cuts[at].phase if at >= 0 else PhaseName.UNKNOWN
        doing = self.span_before(to, end)
        if ekind == _EVIDENCE_SYNC:
            call = self._words.call(int(self._s.path.sync_call[evidence]))
            op = self._words.operation(int(self._s.path.sync_op[evidence]))
            cause = Cause("waited for", self.actor(to), f"in {op}")
            return Wait(start, end, self.actor(waiter), call, cause, phase)
        if ekind == _EVIDENCE_QUEUE:
            kind = "queue read"
        elif mode >= _MODE_GIL:
            kind = "interpreter lock"
        else:
            kind = wait_name(self._s.waits.table, evidence).partition(" ")[0]
        verb = "held by" if mode in (_MODE_RETURN, _MODE_GIL) else "woken by"
        if mode == _MODE_GIL_INFERRED:
            verb = "probably held by"
        if ekind == _EVIDENCE_QUEUE:
            verb = "message from"
        detail = f"while {doing}" if doing else ""
        cause = Cause(verb, self.actor(to), detail)
        return Wait(start, end, self.actor(waiter), kind, cause, phase)


def _guessed(cause: Cause) -> Cause:
    """What kept somebody who is only thought to have held the interpreter lock."""
    if cause.verb.endswith(":"):
        verb = f"{cause.verb[:-1]} of who probably held the interpreter lock:"
    else:
        verb = f"probably held the interpreter lock; {cause.verb}"
    return Cause(verb, cause.actor, cause.detail)


def file_name(dev: int, inode: int) -> str:
    """``253:1 inode 42`` from the kernel's device encoding; ``anonymous`` without an inode."""
    return f"{dev >> 20}:{dev & 0xFFFFF} inode {inode}" if inode else "anonymous memory"


def _wait_kind(table: Table, row: int) -> WaitKind:
    """The kind of a wait; one that this version does not know is another."""
    value = int(table["wait_kind"][row])
    return WaitKind(value) if value in _WAIT_KINDS else WaitKind.OTHER


def wait_name(table: Table, row: int) -> str:
    """``futex 0x7f00 op 9``, ``epoll fd 12``, ``read pipe fd 3``: what a wait was in."""
    kind = _wait_kind(table, row)
    arg, op, nr = int(table["arg"][row]), int(table["op"][row]), int(table["syscall"][row])
    if kind is WaitKind.FUTEX:
        return f"futex {arg:#x} op {op}"
    if kind in (WaitKind.READ, WaitKind.WRITE):
        what = FdKind(op).name.lower() if op in set(FdKind) else ""
        return f"{kind.name.lower()} {what} fd {arg}"
    if kind in (WaitKind.EPOLL, WaitKind.IO_URING, WaitKind.IOCTL):
        return f"{kind.name.lower()} fd {arg}"
    if kind is WaitKind.OTHER:
        return syscall_name(nr) or "kernel"
    return kind.name.lower()


_NAMED_BY_CATEGORY = (
    Category.RUN_QUEUE, Category.PREEMPTED, Category.THROTTLED, Category.PAGE_FAULT,
)  # fmt: skip


def _leaf_kind(segment: Segment) -> str:
    note = segment.evidence[0].note if segment.evidence else ""
    if segment.category in _NAMED_BY_CATEGORY:
        return str(segment.category)
    return note.partition(" ")[0] or str(segment.category)


def _mergeable(a: Segment, b: Segment) -> bool:
    return (
        a.category is b.category
        and a.end_ns == b.start_ns
        and a.actor == b.actor
        and a.phase is b.phase
        and a.span == b.span
        and a.step == b.step
        and a.cause == b.cause
        and a.evidence == b.evidence
    )


def _merged(a: Segment, b: Segment) -> Segment:
    return Segment(
        a.start_ns, b.end_ns, a.category, a.actor, a.phase, a.span, a.step, a.cause, a.evidence,
        b.slack_ns if b.slack_ns is not None else a.slack_ns,
    )  # fmt: skip
