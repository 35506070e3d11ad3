# SPDX-License-Identifier: Apache-2.0
"""The one declaration of every event that exists: identity, columns, units, meaning.

The C header of the BPF programs and ``docs/events.md`` are generated from here. Standard
library only: this module is imported inside the traced process.

Rules of change: kinds and columns are only ever appended; an id is never reused; a column
never changes its type or its meaning. A reader meets fewer columns than it knows (an older
writer: the missing ones read as zero) or more (a newer writer: the extra ones are ignored).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

SCHEMA_VERSION = 1

#: C type -> (struct code, bytes). ``str`` is an index into the stream's string table; 0 is none.
CTYPES: dict[str, tuple[str, int]] = {
    "u8": ("B", 1),
    "u16": ("H", 2),
    "u32": ("I", 4),
    "u64": ("Q", 8),
    "i16": ("h", 2),
    "i64": ("q", 8),
    "str": ("I", 4),
}


@dataclass(frozen=True)
class Column:
    """One fixed-width column of an event kind.

    Attributes:
        name: Column name; carries its unit as a suffix where it has one.
        ctype: A key of ``CTYPES``.
        meaning: What the value says, and what zero means where that is special.
    """

    name: str
    ctype: str
    meaning: str

    @property
    def code(self) -> str:
        """The ``struct``/``array`` code of one value."""
        return CTYPES[self.ctype][0]

    @property
    def size_bytes(self) -> int:
        """Bytes of one value."""
        return CTYPES[self.ctype][1]


@dataclass(frozen=True)
class Kind:
    """One kind of event: a table whose rows travel in batches."""

    id: int
    name: str
    meaning: str
    columns: tuple[Column, ...]

    def index(self, name: str) -> int:
        """The position of a column. Raises ``KeyError`` for a name it does not have."""
        for i, column in enumerate(self.columns):
            if column.name == name:
                return i
        raise KeyError(name)


class WaitKind(enum.IntEnum):
    """What a thread waited in when it left the CPU."""

    OTHER = 0
    FUTEX = 1
    EPOLL = 2
    POLL = 3
    SELECT = 4
    READ = 5
    WRITE = 6
    SLEEP = 7
    IO_URING = 8
    IOCTL = 9
    FAULT = 10
    PREEMPTED = 11
    YIELD = 12
    EXITING = 13


class FdKind(enum.IntEnum):
    """What the file descriptor of a READ or WRITE wait refers to."""

    NONE = 0
    PIPE = 1
    SOCKET = 2
    FILE = 3
    OTHER = 4


class WaitFlag(enum.IntFlag):
    """Facts about one wait and its wake."""

    OPEN = 1  # still waiting when it was reported: the end is the time of the report
    START_UNKNOWN = 2  # the wait was open when tracing began
    WAKE_TIMER = 4  # woken from an hrtimer callback
    WAKE_SOFTIRQ = 8  # woken from softirq context (network, block completion)
    WAKE_IRQ = 16  # woken from an interrupt that hit user code or a kernel thread
    WAKE_IDLE = 32  # the CPU was idle when the wake came
    WAKE_KTHREAD = 64  # woken by a kernel thread (writeback, kworker, io completion)
    WAKE_EARLY = 128  # the wake came before the thread had left the CPU


class FaultFlag(enum.IntFlag):
    """Facts about one page fault."""

    MAJOR = 1
    WRITE = 2
    KERNEL = 4
    FILE = 8
    OPEN = 16


class TaskEvent(enum.IntEnum):
    """What happened to a task."""

    SEEN = 0
    FORK = 1
    EXEC = 2
    EXIT = 3
    RENAMED = 4


class SpinSource(enum.IntEnum):
    """Who says that a thread was spinning."""

    QUEUE = 1  # the engine's agent: waiting for a shared-memory queue
    YIELD_RUN = 2  # the kernel: a run of sched_yield calls


class QueueOp(enum.IntEnum):
    """Direction of a shared-memory queue operation."""

    WRITE = 1
    READ = 2


class WorkerPhase(enum.IntEnum):
    """Which call of the worker a ``worker_step`` row describes."""

    EXECUTE = 1
    SAMPLE = 2


class Anchor(enum.IntEnum):
    """A named moment in a request's life; what ``value`` means stands behind each."""

    RECEIVED = 1  # first byte of the request reached the ASGI app, before parsing; value 0
    TOKENISE_START = 2  # value 0
    TOKENISED = 3  # value: prompt tokens, 0 if not known there
    SENT = 4  # frontend handed the request to the engine's input socket; value: prompt tokens
    REGISTERED = 5  # frontend's output processor knows it; ties internal to external id
    ADMITTED = 6  # engine core put it in the scheduler's queue; value: prompt tokens
    CHUNK_START = 7  # an ASGI body chunk is being written; value: bytes
    CHUNK_END = 8  # ... and has been handed to the transport; value: bytes
    LAST_BYTE = 9  # the last body chunk was handed to the transport; value: HTTP status
    FINISHED = 10  # engine core: finished; value: output tokens
    ABORTED = 11  # aborted by client or server; value: output tokens so far
    FAILED = 12  # ended with an error; ``detail`` says which
    PREEMPTED = 13  # engine core took its KV blocks away; value: preemptions so far
    PREFIX_HIT = 14  # value: prompt tokens found in the prefix cache
    KV_BLOCKS = 15  # value: KV-cache blocks held when it finished
    LINKED = 16  # ties an HTTP exchange (``http``) to an internal id (``request``)
    HTTP_DISCONNECT = 17  # the client went away before the last byte


class TokenPlace(enum.IntEnum):
    """Where a request's output token ids were counted and hashed."""

    ENGINE = 1
    FRONTEND = 2
    CLIENT = 3


class StepStatus(enum.IntEnum):
    """How a step ended."""

    OK = 0
    ERROR = 1
    ABANDONED = 2  # the engine process went away with the step in flight


class CapabilityState(enum.IntEnum):
    """Whether a source of evidence works."""

    ON = 1
    OFF = 2
    DEGRADED = 3


class ApiKind(enum.IntEnum):
    """Which interface an API call belongs to."""

    RUNTIME = 1
    DRIVER = 2


class GpuOpKind(enum.IntEnum):
    """What a device did."""

    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3


class CopyKind(enum.IntEnum):
    """From where to where a copy went; CUPTI's numbers."""

    UNKNOWN = 0
    HTOD = 1
    DTOH = 2
    HTOA = 3
    ATOH = 4
    ATOA = 5
    ATOD = 6
    DTOA = 7
    DTOD = 8
    HTOH = 9
    PTOP = 10


class SyncKind(enum.IntEnum):
    """What a synchronisation waited for; CUPTI's numbers."""

    UNKNOWN = 0
    EVENT = 1
    STREAM_WAIT_EVENT = 2  # a stream waits for an event; the calling thread goes on
    STREAM = 3
    CONTEXT = 4


class Nature(enum.IntEnum):
    """How a number behaves over time."""

    LEVEL = 0  # holds at the moment it was read: memory in use, a limit, a clock rate
    TOTAL = 1  # only ever counts up: the difference of two readings is what happened between
    AVERAGE = 2  # stands for the time before it, as long as its source says


class SessionEvent(enum.IntEnum):
    """What happened to a session."""

    ATTACHED = 1
    PROCESS_ADDED = 2
    PROCESS_GONE = 3
    DETACHED = 4
    RESUMED = 5


def _c(name: str, ctype: str, meaning: str) -> Column:
    return Column(name, ctype, meaning)


_TID = _c("tid", "u32", "thread id in the initial pid namespace")
_TGID = _c("tgid", "u32", "process id in the initial pid namespace")

KINDS: tuple[Kind, ...] = (
    Kind(
        1,
        "wait",
        "One interval a thread spent off CPU: blocked, preempted or yielding.",
        (
            _TID,
            _TGID,
            _c("start_ns", "i64", "the thread left the CPU"),
            _c("wake_ns", "i64", "it was made runnable; 0: no wake seen. end - wake is run queue"),
            _c("end_ns", "i64", "it was on a CPU again"),
            _c("wait_kind", "u8", "WaitKind"),
            _c("flags", "u8", "WaitFlag bits"),
            _c("cpu", "u16", "CPU it came back on"),
            _c("syscall", "i16", "syscall number it waited in; -1: none (user code or fault)"),
            _c("waker_syscall", "i16", "syscall the waker was in; -1: none, -2: kernel or idle"),
            _c("op", "u32", "futex: operation; READ/WRITE: FdKind"),
            _c("arg", "u64", "first argument: futex address, fd"),
            _c("waker_tid", "u32", "thread that woke it; preempted: the one that ran instead"),
            _c("waker_tgid", "u32", "process of that thread; 0: unknown"),
            _c("ran_tid", "u32", "thread that had the CPU right before; 0: idle or unknown"),
            _c("ran_tgid", "u32", "process of that thread"),
            _c(
                "throttled_ns",
                "u64",
                "of the time it could have run, kept from it by a CPU quota of its cgroup or of "
                "one above; that comes first",
            ),
        ),
    ),
    Kind(
        2,
        "wait_sum",
        "Short waits of one thread and kind, summed in the kernel over a window.",
        (
            _TID,
            _TGID,
            _c("start_ns", "i64", "start of the window"),
            _c("end_ns", "i64", "end of the window"),
            _c("wait_kind", "u8", "WaitKind"),
            _c("count", "u64", "waits summed"),
            _c("sum_ns", "u64", "their total length, run queue included"),
            _c("runq_ns", "u64", "of that, waiting for a CPU after the wake"),
            _c("max_ns", "u64", "the longest"),
        ),
    ),
    Kind(
        3,
        "fault",
        "One page fault, from entry to resolution.",
        (
            _TID,
            _TGID,
            _c("start_ns", "i64", "fault entry"),
            _c("end_ns", "i64", "fault resolved"),
            _c("wake_ns", "i64", "last wake while blocked in it; 0: never blocked"),
            _c("block_ns", "u64", "time off CPU inside it"),
            _c("addr", "u64", "faulting address"),
            _c("inode", "u64", "inode of the mapped file; 0: none"),
            _c("dev", "u32", "device of that file, kernel encoding (major << 20 | minor)"),
            _c("flags", "u8", "FaultFlag bits"),
            _c("waker_tid", "u32", "thread that woke it, 0: none"),
            _c("waker_tgid", "u32", "process of that thread"),
        ),
    ),
    Kind(
        5,
        "task",
        "Birth, name, exec and death of a task, and names of wakers outside the targets.",
        (
            _TID,
            _TGID,
            _c("t_ns", "i64", "when"),
            _c("event", "u8", "TaskEvent"),
            _c("comm", "str", "kernel's name of the thread (15 bytes at most)"),
            _c("parent_tgid", "u32", "process that created it; 0: unknown"),
            _c("ns_tid", "u32", "thread id in its own pid namespace; 0: unknown"),
            _c("ns_tgid", "u32", "process id in its own pid namespace; 0: unknown"),
            _c("parent_tid", "u32", "fork: thread that created it; 0: unknown"),
        ),
    ),
    Kind(
        6,
        "thread",
        "A thread's name and role as its own process knows them.",
        (
            _TID,
            _c("name", "str", "threading name"),
            _c(
                "role",
                "str",
                "role in the engine: api.main, core.main, core.input...",
            ),
        ),
    ),
    Kind(
        7,
        "spin",
        "A thread was on CPU but only waiting: a polling loop.",
        (
            _TID,
            _TGID,
            _c("start_ns", "i64", "first turn"),
            _c("end_ns", "i64", "last turn"),
            _c("count", "u32", "turns; 0: not counted"),
            _c("source", "u8", "SpinSource"),
        ),
    ),
    Kind(
        8,
        "queue_msg",
        "One operation on the engine's shared-memory message queue.",
        (
            _TID,
            _c("queue", "str", "name of the queue's shared memory"),
            _c("op", "u8", "QueueOp"),
            _c("reader", "u16", "reader's rank on the queue; writer: 0"),
            _c("seq", "u64", "message number on this queue, from 1; writer and readers agree"),
            _c("start_ns", "i64", "the call began (waiting for a slot or a message starts)"),
            _c("ready_ns", "i64", "the slot was free, or the message was there: spinning ended"),
            _c("end_ns", "i64", "the call returned: the message is visible, or was read"),
        ),
    ),
    Kind(
        9,
        "step_begin",
        "The scheduler's output went to the executor.",
        (
            _c("step", "u64", "step number of this engine core, from 1; workers see the same"),
            _TID,
            _c("sched_start_ns", "i64", "schedule() began; 0: not seen"),
            _c("sched_end_ns", "i64", "schedule() returned"),
            _c("start_ns", "i64", "handed to the executor"),
            _c("rowset", "u32", "rows of this step: a rowset of this stream; 0: none"),
            _c("rowset_age", "u32", "steps since the rowset was stated: add age * scheduled"),
            _c("rows", "u32", "requests in the step"),
            _c("tokens", "u32", "tokens scheduled"),
            _c("waiting", "u32", "requests still waiting in the scheduler"),
        ),
    ),
    Kind(
        10,
        "step_end",
        "The step's future finished and sampling returned.",
        (
            _c("step", "u64", "step number"),
            _TID,
            _c("end_ns", "i64", "when"),
            _c("status", "u8", "StepStatus"),
            _c("error", "str", "what was raised, if anything"),
        ),
    ),
    Kind(
        11,
        "step_update",
        "The scheduler took in a step's results and made outputs of them.",
        (
            _c("step", "u64", "step number"),
            _TID,
            _c("start_ns", "i64", "update_from_output() began"),
            _c("end_ns", "i64", "it returned"),
            _c(
                "stamp_ns",
                "i64",
                "stamp on the outputs, which the frontend sees too; 0: none",
            ),
            _c("rowset", "u32", "requests with output, in order: a rowset of this stream"),
            _c("tokens", "u32", "tokens produced"),
            _c("finished", "u32", "requests finished"),
        ),
    ),
    Kind(
        12,
        "step_rows",
        "Rows of a rowset, stated once and referred to until they change.",
        (
            _c("rowset", "u32", "rowset number in this stream, from 1"),
            _c("row", "u32", "position"),
            _c("request", "str", "internal request id"),
            _c("scheduled", "u32", "tokens scheduled; in an output rowset: tokens produced"),
            _c("computed", "u32", "tokens computed before, when the rowset was stated"),
            _c("prompt", "u32", "prompt tokens"),
            _c("preemptions", "u32", "times preempted so far"),
            _c("must_sample", "u8", "1: this row completes its context and yields a token"),
        ),
    ),
    Kind(
        14,
        "worker_step",
        "A call of the model runner in a worker.",
        (
            _c("step", "u64", "step number from the engine core; 0: unknown"),
            _TID,
            _c("rank", "u16", "worker rank"),
            _c("phase", "u8", "WorkerPhase"),
            _c("start_ns", "i64", "call began"),
            _c("end_ns", "i64", "call returned"),
            _c("rowset", "u32", "rows as packed by the runner: a rowset of this stream; 0: none"),
        ),
    ),
    Kind(
        15,
        "request",
        "An anchor in a request's life.",
        (
            _c("request", "str", "internal request id; 0: not known yet (then http is set)"),
            _c("http", "u64", "HTTP exchange number in this process; 0: none"),
            _c("anchor", "u8", "Anchor"),
            _c("t_ns", "i64", "when"),
            _TID,
            _c("value", "u64", "see Anchor"),
            _c("detail", "str", "external id, path, error or finish reason"),
        ),
    ),
    Kind(
        17,
        "outputs",
        "The frontend processed one batch of engine outputs.",
        (
            _TID,
            _c("start_ns", "i64", "process_outputs() began"),
            _c("end_ns", "i64", "it returned"),
            _c("stamp_ns", "i64", "engine's stamp on the outputs: equals step_update's"),
            _c("rowset", "u32", "requests in it: a rowset of this stream"),
            _c("tokens", "u32", "tokens in it"),
        ),
    ),
    Kind(
        18,
        "tokens",
        "Count and hash of a request's output token ids at one place. Text is never kept.",
        (
            _c("request", "str", "internal request id; at the client: the external id"),
            _c("place", "u8", "TokenPlace"),
            _c("count", "u32", "output tokens"),
            _c("hash", "u64", "crc32 of the ids as little-endian u32, seeded with 0"),
            _c("t_ns", "i64", "when"),
            _c("reason", "str", "finish reason, where known"),
        ),
    ),
    Kind(
        19,
        "span",
        "A named phase of work on a thread.",
        (
            _TID,
            _c(
                "name",
                "str",
                "schedule, update, execute, sample, tokenise, output, send...",
            ),
            _c("start_ns", "i64", "began"),
            _c("end_ns", "i64", "ended"),
            _c("step", "u64", "step it belongs to; 0: none"),
        ),
    ),
    Kind(
        20,
        "capability",
        "A source of evidence came up, degraded or is missing, and why.",
        (
            _c("t_ns", "i64", "when"),
            _c("source", "str", "ebpf.sched, ebpf.faults, vllm.engine, vllm.frontend..."),
            _c("state", "u8", "CapabilityState"),
            _c("reason", "str", "what is lost without it, and how to mend it"),
        ),
    ),
    Kind(
        21,
        "loss",
        "Events that were lost, by the hop that lost them. Counts are increments.",
        (
            _c("t_ns", "i64", "when it was noticed"),
            _c("since_ns", "i64", "the loss lies between here and t_ns; 0: unknown"),
            _c("hop", "str", "bpf.ring, agent.queue, ingest.stream, store.disk..."),
            _c("what", "str", "kind of event, where known"),
            _c("count", "u64", "events"),
        ),
    ),
    Kind(
        22,
        "meta",
        "A fact about the capture: host, boot, engine version, model, settings.",
        (
            _c("t_ns", "i64", "when"),
            _c("key", "str", "name"),
            _c("value", "str", "value"),
        ),
    ),
    Kind(
        23,
        "stream",
        "The daemon's list of who wrote what: one row per producer's stream.",
        (
            _c("stream", "u32", "stream number: the header of each of its frames"),
            _TGID,
            _c("start_ns", "i64", "process start, as the kernel tells it"),
            _c("producer", "str", "ebpf, vllm, host, client"),
            _c("role", "str", "api, core, worker... as the producer says"),
        ),
    ),
    Kind(
        26,
        "session",
        "Life of a tracing session.",
        (
            _c("t_ns", "i64", "when"),
            _c("event", "u8", "SessionEvent"),
            _TGID,
            _c("session", "str", "session id"),
            _c("detail", "str", "command line, or why it ended"),
        ),
    ),
    Kind(
        24,
        "clock_pair",
        "One reading of another clock between two of CLOCK_MONOTONIC.",
        (
            _c("t_ns", "i64", "middle of the two readings of CLOCK_MONOTONIC"),
            _c("width_ns", "u64", "time between them"),
            _c("clock", "str", "the other clock"),
            _c("other", "u64", "its reading, in its own unit"),
        ),
    ),
    Kind(
        27,
        "cuda_api",
        "A call of the CUDA or HIP API; the stream's meta tells the clock.",
        (
            _c("pid", "u32", "process that called"),
            _TID,
            _c("name", "str", "function"),
            _c("api", "u8", "ApiKind"),
            _c("correlation", "u64", "correlation id, unique in its process only; 0: none"),
            _c("start_ns", "i64", "the call began"),
            _c("end_ns", "i64", "it returned"),
        ),
    ),
    Kind(
        28,
        "gpu_op",
        "A kernel, copy or fill on a device.",
        (
            _c("pid", "u32", "process that owns it; 0: unknown"),
            _c("device", "u32", "device number as that process sees it"),
            _c("context", "u32", "context; 0: unknown"),
            _c("gpu_stream", "u64", "stream on the device; all bits set: none"),
            _c("op", "u8", "GpuOpKind"),
            _c("name", "str", "kernel name, or what is copied or filled"),
            _c("correlation", "u64", "that of the call that launched it; 0: none"),
            _c("graph", "u64", "graph it is a node of; 0: none or unknown"),
            _c("graph_node", "u64", "node of that graph; 0: none or unknown"),
            _c("start_ns", "i64", "it began on the device; 0: not recorded"),
            _c("end_ns", "i64", "it ended there"),
            _c("bytes", "u64", "bytes copied or filled; 0: none or unknown"),
            _c("copy", "u8", "CopyKind"),
        ),
    ),
    Kind(
        29,
        "gpu_sync",
        "A synchronisation, as the driver's activity records tell it.",
        (
            _c("pid", "u32", "process that owns it; 0: unknown"),
            _c("device", "u32", "device number as that process sees it"),
            _c("context", "u32", "context; 0: unknown"),
            _c("sync", "u8", "SyncKind"),
            _c("gpu_stream", "u64", "stream that was waited for; all bits set: none"),
            _c("event", "u64", "event that was waited for; all bits set: none"),
            _c("correlation", "u64", "that of the call; 0: none"),
            _c("start_ns", "i64", "the wait began"),
            _c("end_ns", "i64", "it ended"),
            _c("record", "u64", "correlation id of the call that recorded the event; 0: unknown"),
            _c("record_stream", "u64", "stream it was recorded on; all bits set: unknown"),
        ),
    ),
    Kind(
        25,
        "counter",
        "A number of the host, a process or a device. Where nothing changed there is no row.",
        (
            _c("t_ns", "i64", "it was read"),
            _c("since_ns", "i64", "it may have changed since then; 0: since its subject began"),
            _c("metric", "str", "what it is: the name of a metric row"),
            _c("subject", "str", "whose: host, pid:1, tid:1, cgroup:/a, node:0, gpu:..."),
            _c("value", "i64", "the number, in the metric's unit; -1 of a limit: none"),
        ),
    ),
    Kind(
        30,
        "metric",
        "What the numbers of a name are.",
        (
            _c("name", "str", "name, as counter rows have it"),
            _c("unit", "str", "ns, bytes, count, percent, ppm...; 0: a plain number"),
            _c("nature", "u8", "Nature"),
            _c("meaning", "str", "what it says, and what it is often mistaken for"),
        ),
    ),
    Kind(
        31,
        "change",
        "Something of the host that is no number became another.",
        (
            _c("t_ns", "i64", "it was noticed"),
            _c("since_ns", "i64", "it happened after this moment; 0: so from the beginning"),
            _c("subject", "str", "whose; as in counter"),
            _c("what", "str", "cgroup, allowed CPUs, driver..."),
            _c("before", "str", "what it was; 0: not known, or there was none"),
            _c("after", "str", "what it is; 0: it is there no more"),
        ),
    ),
    Kind(
        32,
        "trace_context",
        "The trace that a request's caller counts it to: its W3C traceparent, checked. Other "
        "headers are not kept.",
        (
            _c("request", "str", "internal request id; 0: not known yet (then http is set)"),
            _c("http", "u64", "HTTP exchange number in this process; 0: none"),
            _c("t_ns", "i64", "when it was read"),
            _c("trace_high", "u64", "trace id, upper half"),
            _c("trace_low", "u64", "trace id, lower half; both halves are never 0"),
            _c("parent", "u64", "id of the caller's span, never 0"),
            _c("flags", "u8", "trace flags: 1 sampled, 2 the trace id's lower 7 bytes are random"),
        ),
    ),
    Kind(
        33,
        "gpu_window",
        "A stretch in which a process's GPU work was recorded. Where a stream has such rows, "
        "nothing is known of its GPU outside them.",
        (
            _c("window", "u32", "number of the window in this process, from 1"),
            _c("start_ns", "i64", "recorded from here"),
            _c("end_ns", "i64", "to here, or on: the next row says"),
            _c("what", "u8", "bits: 1 graphs as wholes, 2 their nodes, 4 waits, 8 API calls"),
        ),
    ),
)

BY_ID: dict[int, Kind] = {kind.id: kind for kind in KINDS}
BY_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS}

#: Producer of the streams of programs that mark their own steps.
MARKS = "marks"

#: Ids spoken for by kinds of the design that are not written yet; never reuse them.
RESERVED_IDS = {4: "oncpu_sample"}


class KernelRecord(enum.IntEnum):
    """What a kernel record describes (``rec_kind``)."""

    WAIT = 1
    FAULT = 2
    TASK = 3
    SPIN = 4


#: The fixed-size record the BPF programs write; C and numpy layouts are made from this.
#: 80 bytes, so that with the ring's 8-byte header every record stays 8-byte aligned.
KERNEL_RECORD: tuple[Column, ...] = (
    Column("start_ns", "i64", "wait or fault start; task: when; spin: first turn"),
    Column("wake_ns", "i64", "wake, 0 none"),
    Column("end_ns", "i64", "end"),
    Column("arg", "u64", "wait: first syscall argument; fault: address; task: comm bytes 0-7"),
    Column(
        "arg2",
        "u64",
        "wait: who ran before, tgid << 32 | tid; fault: inode; task: comm bytes 8-15; spin: turns",
    ),
    Column("block_ns", "u64", "fault: time off CPU inside it; wait: throttled"),
    Column("tid", "u32", "thread"),
    Column("tgid", "u32", "process"),
    Column("waker_tid", "u32", "waker; preempted: who ran instead; task: parent tgid"),
    Column("waker_tgid", "u32", "its process; task: thread that created it"),
    Column("op", "u32", "futex op or FdKind; fault: device; task: TaskEvent"),
    Column("cpu", "u16", "CPU"),
    Column("syscall", "i16", "own syscall"),
    Column("waker_syscall", "i16", "waker's syscall"),
    Column("rec_kind", "u8", "KernelRecord"),
    Column("wait_kind", "u8", "WaitKind"),
    Column("flags", "u8", "WaitFlag or FaultFlag"),
    Column("pad0", "u8", "zero"),
    Column("pad1", "u16", "zero"),
)
