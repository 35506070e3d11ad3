# SPDX-License-Identifier: Apache-2.0
"""What a report says, as frozen values; every rendering takes these and nothing else.

All times are integer nanoseconds on CLOCK_MONOTONIC; all lengths integer nanoseconds.
``None`` means unknown, never zero.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.context_values import Context, HostReport


class Category(enum.StrEnum):
    """What the holder of the path was doing, or what held it up."""

    CPU = "cpu"  # running code
    GIL = "gil"  # waiting for the interpreter lock; the actor is its holder
    LOCK = "lock"  # blocked on a lock or condition, explained no further
    MESSAGE = "message"  # blocked on a socket, pipe, queue or future, explained no further
    SPIN_HANDOFF = "spin-handoff"  # polling loop noticing what was already there
    RUN_QUEUE = "run-queue"  # runnable, waiting for a CPU
    PREEMPTED = "preempted"  # taken off the CPU for another thread
    THROTTLED = "throttled"  # runnable, its cgroup out of quota
    SLEEP = "sleep"  # a timer ended it
    PAGE_FAULT = "page-fault"  # resolving a page fault
    DISK = "disk"  # block I/O
    NETWORK = "network"  # woken by the network stack on behalf of a remote or untraced peer
    IRQ = "irq"  # woken by an interrupt or kernel thread
    EXTERNAL = "external"  # waiting for a process that is not traced
    UNOBSERVED = "unobserved"  # no probe covered the actor then
    UNEXPLAINED = "unexplained"  # covered, but no evidence names a cause
    GPU = "gpu"  # the device ran work of the step that is explained
    GPU_EARLIER = "gpu-earlier"  # the device ran work of another step, launched before
    LAUNCH_GAP = "launch-gap"  # launched and let go by nothing else, not begun yet
    QUEUE_GAP = "queue-gap"  # what it had to wait for on the device has ended, not begun yet
    SYNC_RETURN = "sync-return"  # the device was done, the waiting call had not returned
    HOST = "host"  # the thread's own time; whether it had a CPU then was not recorded


class PhaseName(enum.StrEnum):
    """The named stretches of a request, in the order they are lived through."""

    RECEIVE = "receive"  # ASGI receive to start of tokenising: parse, template, limits
    TOKENISE = "tokenise"
    SEND = "send"  # tokenised to handed to the engine's input socket
    ADMIT = "admit"  # sent to admitted by the engine core
    QUEUE = "queue"  # admitted to first scheduled
    PREFILL = "prefill"  # steps in which the request had prompt tokens, nobody decoded
    MIXED = "mixed"  # steps with prompt tokens of some and decode of others
    DECODE = "decode"  # steps in which all rows decoded
    BETWEEN = "between"  # between the request's steps: not scheduled
    OUTPUT = "output"  # engine's last output to the last byte handed to the transport
    UNKNOWN = "unknown"  # an anchor is missing


@dataclass(frozen=True)
class Actor:
    """Who holds the path: a thread, or somebody outside the traced processes."""

    tid: int
    pid: int
    role: str  # "core.main"; "" if unknown
    name: str  # thread's name
    process: str  # "EngineCore", "APIServer", "Worker_TP0", or comm of an untraced process
    traced: bool = True
    role_by: str = ""  # "name", "behaviour": the role is a guess by that; "": the process said so

    @property
    def label(self) -> str:
        """``EngineCore/4711``; the thread's name is added when it is not the main thread.

        A thread without a name of its own has its role there, with a question mark where that is
        a guess: ``Worker0/4720 openmp?``.
        """
        base = f"{self.process or 'pid'}/{self.pid}" if self.pid else (self.process or "nobody")
        if self.tid == self.pid:
            return base
        name = self.name or (f"{self.role.rpartition('.')[2]}?" if self.role_by else "")
        return f"{base} {name}" if name else base

    @property
    def shown(self) -> str:
        """The label, and that nothing but name and number is known of it where that is so."""
        return self.label if self.traced or not self.pid else f"{self.label} (not traced)"


@dataclass(frozen=True)
class Cause:
    """Why the segment lasted: who or what ended the wait."""

    verb: str  # "held by", "woken by", "ran instead:", "timer", "file"...
    actor: Actor | None = None
    detail: str = ""  # "while schedule", "in write", "253:1 inode 12345"

    @property
    def text(self) -> str:
        """``held by EngineCore/4711 while schedule``; says so where nobody is known.

        A verb that ends with a colon (``ran instead:``) follows its actor without it.
        """
        actor = self.actor.shown if self.actor is not None else ""
        words = [self.verb, actor, self.detail]
        if self.verb.endswith(":"):
            words = [actor, self.verb if not actor else self.verb[:-1], self.detail]
        return " ".join(word for word in words if word) or "cause unknown"


@dataclass(frozen=True)
class Evidence:
    """The record a claim rests on."""

    kind: str  # wait, fault, queue_msg, spin, span, step, anchor
    start_ns: int
    end_ns: int
    tid: int = 0
    note: str = ""  # "futex 0x7f.. op 9", "epoll fd 12", "step 42"


@dataclass(frozen=True)
class Segment:
    """A stretch of the path with one holder and one category."""

    start_ns: int
    end_ns: int
    category: Category
    actor: Actor
    phase: PhaseName
    span: str = ""  # the actor's own named phase: "schedule", "execute"...; "" none
    step: int | None = None
    cause: Cause | None = None
    evidence: tuple[Evidence, ...] = ()
    slack_ns: int | None = None  # margin by which this predecessor was the last one

    @property
    def length_ns(self) -> int:
        """Length of the segment."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Phase:
    """A named stretch between two anchors."""

    name: PhaseName
    start_ns: int
    end_ns: int
    start_anchor: str  # "received", "first scheduled", "step 41 update end"...
    end_anchor: str
    step: int | None = None
    tokens: int | None = None  # tokens of this request computed in it

    @property
    def length_ns(self) -> int:
        """Length of the phase."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Wait:
    """A wait on the path, with who ended it."""

    start_ns: int
    end_ns: int
    waiter: Actor
    kind: str  # "futex", "epoll", "queue read", "gil"...
    cause: Cause
    phase: PhaseName

    @property
    def length_ns(self) -> int:
        """Length of the wait that lies on the path."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class TokenLeg:
    """One token's way out: from the engine's update to the chunk handed to the transport."""

    index: int  # from 0
    step: int | None
    made_ns: int  # the engine's update for its step ended
    processed_ns: int  # the frontend's output processing ended
    written_ns: int | None  # its chunk was handed to the transport
    by_category: tuple[tuple[Category, int], ...] = ()
    worst: Segment | None = None

    @property
    def length_ns(self) -> int:
        """Engine to transport, or to the frontend where no chunk is known."""
        return (self.written_ns or self.processed_ns) - self.made_ns


@dataclass(frozen=True)
class LedgerLine:
    """One count of the ledger."""

    name: str  # "waits recorded", "waits lost in the kernel's rings"...
    count: int
    note: str = ""
    check: bool = False  # counts losses or mismatches, so it must be zero

    @property
    def bad(self) -> bool:
        """Whether something was lost or does not match: a check that is not zero."""
        return self.check and self.count != 0


@dataclass(frozen=True)
class Ledger:
    """What the report rests on, and what is missing."""

    lines: tuple[LedgerLine, ...] = ()
    missing: tuple[str, ...] = ()  # legs not observed at all, each with the reason

    @property
    def clean(self) -> bool:
        """Whether nothing was lost and everything matched."""
        return not any(line.bad for line in self.lines)


@dataclass(frozen=True)
class TokenCheck:
    """Output token ids counted and hashed at one place."""

    place: str  # engine, frontend, client
    count: int
    hash: int


@dataclass(frozen=True)
class Share:
    """A part of a request's wall time, in words."""

    what: str  # "execute in Worker0/4720", "waiting for a CPU"
    length_ns: int
    ran: Actor | None = None  # who had the CPU for most of it, where a CPU was waited for
    ran_ns: int = 0  # how long of it


@dataclass(frozen=True)
class Verdict:
    """Where most of a request's time went and who made it wait, as far as that can be said."""

    text: str  # one sentence; its figures are rounded from what follows
    parts: tuple[Share, ...] = ()  # those that the sentence names, the largest first
    stall: Wait | None = None  # the longest stretch in which the path's holder did not get on
    unknown_ns: int = 0  # unobserved or unexplained
    doubts: tuple[str, ...] = ()  # why there is none; empty where there is


@dataclass(frozen=True)
class TraceContext:
    """The distributed trace that a request's caller counts it to (W3C traceparent)."""

    trace_id: int  # 128 bits, never 0
    parent_id: int  # the caller's span, 64 bits, never 0
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether the caller says that the trace is recorded."""
        return bool(self.flags & 1)


@dataclass(frozen=True)
class RequestReport:
    """One request: an exact partition of arrival to last byte, and what it rests on."""

    request_id: str
    internal_id: str
    arrival_ns: int
    end_ns: int
    status: str  # "finished: length", "aborted", "failed: ...", "in flight"
    tokens_in: int | None
    tokens_out: int | None
    cached_tokens: int | None
    preemptions: int | None
    first_token_ns: int | None  # first output chunk handed to the transport
    phases: tuple[Phase, ...]
    segments: tuple[Segment, ...]  # tile arrival_ns..end_ns
    ttft_segments: tuple[Segment, ...]  # tile arrival_ns..first_token_ns; () if unknown
    waits: tuple[Wait, ...]  # on the path, longest first
    tokens: tuple[TokenLeg, ...]
    checks: tuple[TokenCheck, ...]
    boundaries: tuple[str, ...]  # what "arrival" and "end" mean here, in words
    ledger: Ledger
    verdict: Verdict
    steps: tuple[int, ...] = ()
    http: bool = False  # it came in over HTTP, so tokens count as out when written
    aliases: tuple[str, ...] = ()  # more ids: the client's X-Request-Id, one shared with others
    context: Context | None = None  # None: the host was not read
    path: str = ""  # of the URL; "" if it did not come in over HTTP
    http_status: int | None = None  # None: no response was completed
    trace: TraceContext | None = None  # None: it came with none, or with one that is malformed

    @property
    def wall_ns(self) -> int:
        """Arrival to end."""
        return self.end_ns - self.arrival_ns

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token; ``None`` if no token was seen."""
        return None if self.first_token_ns is None else self.first_token_ns - self.arrival_ns

    @property
    def itl_ns(self) -> tuple[int, ...]:
        """Gaps between the moments tokens were written (inter-token latencies).

        Empty where tokens did not go out one by one: a response that is not streamed, or one
        that was never written.
        """
        if self.first_token_ns is None:
            return ()
        times = [
            leg.written_ns or leg.processed_ns
            for leg in self.tokens
            if leg.written_ns or not self.http
        ]
        return tuple(b - a for a, b in itertools.pairwise(times))


@dataclass(frozen=True)
class StepReport:
    """One engine step: an exact partition of schedule start to update end."""

    step: int
    start_ns: int
    end_ns: int
    status: str
    kind: str  # prefill, decode, mixed, empty
    rows: int
    tokens: int
    prefill_tokens: int | None
    waiting: int
    request_ids: tuple[str, ...]
    segments: tuple[Segment, ...]
    waits: tuple[Wait, ...]
    worker_ns: int | None  # busy union of the workers' execute and sample calls
    ledger: Ledger
    context: Context | None = None  # as in RequestReport
    requests: tuple[tuple[str, str], ...] = ()  # the client's id and the engine's, of each row
    error: str = ""  # what it raised: kind and place, never a message

    @property
    def wall_ns(self) -> int:
        """Schedule start to update end. Steps overlap: never sum these."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RequestRow:
    """One line of a list of requests."""

    request_id: str
    arrival_ns: int
    wall_ns: int
    ttft_ns: int | None
    tokens_in: int | None
    tokens_out: int | None
    status: str
    by_phase: tuple[tuple[PhaseName, int], ...]
    internal_id: str = ""
    aliases: tuple[str, ...] = ()  # as in RequestReport

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids it goes by."""
        return tuple(name for name in (self.request_id, self.internal_id, *self.aliases) if name)


@dataclass(frozen=True)
class StepRow:
    """One line of a list of steps."""

    step: int
    start_ns: int
    wall_ns: int
    kind: str
    rows: int
    tokens: int
    prefill_tokens: int | None
    waiting: int
    status: str
    worker_ns: int | None
    longest: str = ""  # category and actor of its longest stretch


@dataclass(frozen=True)
class RunSummary:
    """A whole recording in a few numbers."""

    start_ns: int
    end_ns: int
    requests: int
    steps: int
    tokens_out: int
    ttft_ns: tuple[int, ...] = ()  # one per request that has one, sorted
    itl_ns: tuple[int, ...] = ()
    by_phase: tuple[tuple[PhaseName, int], ...] = ()  # summed over requests
    by_category: tuple[tuple[Category, int], ...] = ()
    actors: tuple[tuple[str, int], ...] = ()  # label -> path time over all requests
    meta: tuple[tuple[str, str], ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    host: HostReport | None = None  # None: the host was not read
