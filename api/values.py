# SPDX-License-Identifier: Apache-2.0
"""Rows of the tables as frozen values: the one declaration of every column and its meaning.

A class is a table, a field is a column. ``schema`` reads them, docs/schema.md is made from them,
Parquet files carry their meanings. Times are integer nanoseconds of CLOCK_MONOTONIC, lengths
integer nanoseconds, names carry units; ``None`` is unknown, never zero. Columns are only ever
appended within a version of the schema, and never change their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final


@dataclass(frozen=True)
class Mark:
    """How a column is stored, where its Python type does not say."""

    shared: bool = False
    unsigned: bool = False


#: Few different texts in many rows: stored once each.
SHARED: Final = Mark(shared=True)
#: Identifiers that use all 64 bits.
UNSIGNED: Final = Mark(unsigned=True)


@dataclass(frozen=True)
class Request:
    """One request, in order of arrival. Its phases sum to its wall time."""

    request_key: Annotated[int, "its place in order of arrival, from 0; an id may occur twice"]
    request_id: Annotated[str, "the id that the API gave it"]
    internal_id: Annotated[str | None, "the engine's own id"]
    aliases: Annotated[tuple[str, ...], "more ids: the client's X-Request-Id, a shared one"]
    status: Annotated[str, "finished: length, aborted, failed: ..., in flight", SHARED]
    arrival_ns: Annotated[int, "it arrived: the first byte, or the first that is on record"]
    end_ns: Annotated[int, "its last byte was handed over, or the recording ended"]
    wall_ns: Annotated[int, "arrival to end"]
    first_token_ns: Annotated[int | None, "its first output was handed to the transport"]
    ttft_ns: Annotated[int | None, "time to first token: arrival to first_token_ns"]
    tokens_in: Annotated[int | None, "prompt tokens"]
    tokens_out: Annotated[int | None, "output tokens"]
    cached_tokens: Annotated[int | None, "prompt tokens found in the prefix cache"]
    preemptions: Annotated[int, "times that the scheduler took it out again"]
    steps: Annotated[int, "engine steps that it was in"]
    complete: Annotated[bool, "it ended within the recording"]
    http_path: Annotated[str | None, "path of the URL; null: not over HTTP", SHARED]
    http_status: Annotated[int | None, "status of the response; null: none was completed"]
    trace_id: Annotated[str | None, "the caller's trace (W3C traceparent), 32 hex digits"]
    phase_receive_ns: Annotated[int, "from the first byte to the start of tokenising"]
    phase_tokenise_ns: Annotated[int, "tokenising"]
    phase_send_ns: Annotated[int, "tokenised to handed to the engine's input socket"]
    phase_admit_ns: Annotated[int, "sent to admitted by the engine core"]
    phase_queue_ns: Annotated[int, "admitted to first scheduled"]
    phase_prefill_ns: Annotated[int, "steps in which it had prompt tokens and nobody decoded"]
    phase_mixed_ns: Annotated[int, "steps with prompt tokens of some and decode of others"]
    phase_decode_ns: Annotated[int, "steps in which all rows decoded"]
    phase_between_ns: Annotated[int, "between its steps: not scheduled"]
    phase_output_ns: Annotated[int, "the engine's last output to the last byte handed over"]
    phase_unknown_ns: Annotated[int, "a moment that would tell is not on record"]


@dataclass(frozen=True)
class Token:
    """One output of a request on its way out; one row may hold several tokens of one step."""

    request_key: Annotated[int, "requests.request_key"]
    index: Annotated[int, "its place among the request's outputs, from 0"]
    step: Annotated[int | None, "number of the step that made it"]
    made_ns: Annotated[int, "the engine's update of its step ended"]
    processed_ns: Annotated[int, "the frontend had processed it"]
    written_ns: Annotated[int | None, "its chunk was handed to the transport"]


@dataclass(frozen=True)
class Segment:
    """A stretch of a request's critical path, with one holder and one reason.

    The segments of a request follow each other from arrival to end and sum to its wall time.
    Requests of one batch wait for the same things at the same time: sums over several requests
    are request time, not wall time.
    """

    request_key: Annotated[int, "requests.request_key"]
    request_id: Annotated[str, "requests.request_id", SHARED]
    phase: Annotated[str, "phase of the request: queue, prefill, decode...", SHARED]
    step: Annotated[int | None, "number of the step it belongs to; null: none, or one of others"]
    start_ns: Annotated[int, "start"]
    end_ns: Annotated[int, "end; the start of the next"]
    length_ns: Annotated[int, "length"]
    category: Annotated[str, "what the holder did or waited for: cpu, gil, run-queue...", SHARED]
    actor: Annotated[str, "who held the path: process/pid and thread", SHARED]
    tid: Annotated[int | None, "thread id of the actor"]
    span: Annotated[str | None, "the actor's own phase: schedule, execute...", SHARED]
    cause: Annotated[str | None, "why it lasted, in words: held by ..., woken by ...", SHARED]
    cause_key: Annotated[int, "causes.cause_key"]
    slack_ns: Annotated[int | None, "margin by which this predecessor was the last one"]


@dataclass(frozen=True)
class Step:
    """One step of an engine core, or of a profile. Steps overlap: never sum their wall times."""

    step_key: Annotated[int, "its place in the recording, from 0; numbers may occur twice"]
    step: Annotated[int, "its number"]
    process: Annotated[str, "the engine core, or the profile's process", SHARED]
    name: Annotated[str | None, "what a profile calls it", SHARED]
    start_ns: Annotated[int, "schedule() began; of a profile: its first moment"]
    end_ns: Annotated[int | None, "update ended; unknown while in flight"]
    wall_ns: Annotated[int | None, "start to end"]
    kind: Annotated[str | None, "prefill, decode, mixed, empty, unknown", SHARED]
    status: Annotated[str | None, "how it ended", SHARED]
    rows: Annotated[int | None, "requests in it"]
    tokens: Annotated[int | None, "tokens scheduled"]
    prefill_tokens: Annotated[int | None, "of them prompt tokens"]
    waiting: Annotated[int | None, "requests that still waited in the scheduler"]
    worker_ns: Annotated[int | None, "busy union of the workers' execute and sample calls"]
    gpu_ops: Annotated[int | None, "of a profile: operations of the device that it owns"]
    gpu_launches: Annotated[int | None, "of a profile: calls that launched them"]
    gpu_sum_ns: Annotated[int | None, "of a profile: total of them, overlap counted each time"]
    gpu_busy_ns: Annotated[int | None, "of a profile: the same, overlap counted once"]


@dataclass(frozen=True)
class Membership:
    """A request in a step of an engine core."""

    step_key: Annotated[int, "steps.step_key"]
    step: Annotated[int, "steps.step"]
    request_key: Annotated[int, "requests.request_key"]
    request_id: Annotated[str, "requests.request_id", SHARED]
    tokens: Annotated[int | None, "tokens of the request that were scheduled in it"]


@dataclass(frozen=True)
class StepSegment:
    """A stretch of a step's critical path. Those of a step sum to its wall time."""

    step_key: Annotated[int, "steps.step_key"]
    step: Annotated[int, "steps.step"]
    start_ns: Annotated[int, "start"]
    end_ns: Annotated[int, "end; the start of the next"]
    length_ns: Annotated[int, "length"]
    category: Annotated[str, "as in segments", SHARED]
    actor: Annotated[str, "as in segments", SHARED]
    tid: Annotated[int | None, "thread id of the actor"]
    span: Annotated[str | None, "as in segments", SHARED]
    cause: Annotated[str | None, "as in segments", SHARED]
    cause_key: Annotated[int, "causes.cause_key"]
    slack_ns: Annotated[int | None, "as in segments"]


@dataclass(frozen=True)
class Cause:
    """What is said of segments, each said once, with how much of all paths it explains."""

    cause_key: Annotated[int, "made from what is said: the same in every file"]
    category: Annotated[str, "as in segments"]
    actor: Annotated[str, "as in segments"]
    tid: Annotated[int | None, "thread id of the actor"]
    pid: Annotated[int | None, "its process"]
    process: Annotated[str | None, "what that is: EngineCore, APIServer, Worker_TP0, a comm"]
    role: Annotated[str | None, "the thread's role in the engine: core.main..."]
    traced: Annotated[bool, "the actor is of a process that is traced"]
    span: Annotated[str | None, "the actor's own phase"]
    verb: Annotated[str | None, "held by, woken by, ran instead:, timer, file..."]
    by_actor: Annotated[str | None, "who made the actor wait"]
    by_tid: Annotated[int | None, "thread id of that one"]
    by_pid: Annotated[int | None, "its process"]
    detail: Annotated[str | None, "more: while schedule, in write, 253:1 inode 12345"]
    cause: Annotated[str | None, "verb, by and detail as one text"]
    request_segments: Annotated[int, "rows of segments that say so"]
    request_ns: Annotated[int, "their total length"]
    step_segments: Annotated[int, "rows of step_segments that say so"]
    step_ns: Annotated[int, "their total length"]


@dataclass(frozen=True)
class Wait:
    """A time that a traced thread was off a CPU, whether on a path or not.

    A wait in which a CPU quota ran out is several rows. Waits too short to be recorded one by one
    are not here; their time is in segments.
    """

    tid: Annotated[int, "the thread that waited"]
    pid: Annotated[int, "its process"]
    actor: Annotated[str | None, "who that is, as in segments", SHARED]
    kind: Annotated[
        str, "in what: futex, epoll, read socket, interpreter lock, preempted...", SHARED
    ]
    target: Annotated[int | None, "address of the futex, or file descriptor", UNSIGNED]
    start_ns: Annotated[int, "it left the CPU"]
    woken_ns: Annotated[int | None, "it could run again; null: no wake seen, or it always could"]
    end_ns: Annotated[int, "it was on a CPU again"]
    length_ns: Annotated[int, "length"]
    run_queue_ns: Annotated[int | None, "of that, after woken_ns: ready and without a CPU"]
    category: Annotated[str, "what it is when it holds a path and leads no further", SHARED]
    by_actor: Annotated[str | None, "who woke it; of preempted: who ran instead", SHARED]
    by_tid: Annotated[int | None, "thread id of that one"]
    by_pid: Annotated[int | None, "its process"]
    by_call: Annotated[str | None, "the system call in which it woke", SHARED]
    open: Annotated[bool, "still waiting when it was reported: end_ns is that moment"]


@dataclass(frozen=True)
class GpuOp:
    """A kernel, copy or fill on a device."""

    process: Annotated[str, "whose: pid 6583", SHARED]
    pid: Annotated[int | None, "its process id"]
    device: Annotated[int, "device as that process numbers it"]
    stream: Annotated[int | None, "stream on the device", UNSIGNED]
    kind: Annotated[str | None, "kernel, copy, fill", SHARED]
    name: Annotated[str, "kernel's name, or what is copied or filled", SHARED]
    start_ns: Annotated[int, "it began on the device"]
    end_ns: Annotated[int, "it ended there"]
    length_ns: Annotated[int, "length"]
    bytes: Annotated[int | None, "size of a copy or fill"]
    step: Annotated[int | None, "number of the step that launched it"]
    step_key: Annotated[int | None, "steps.step_key, of a profile"]
    call: Annotated[str | None, "the call that launched it", SHARED]
    call_tid: Annotated[int | None, "thread that called"]
    call_start_ns: Annotated[int | None, "the call began"]
    call_end_ns: Annotated[int | None, "the call returned"]
    correlation: Annotated[int | None, "correlation id; unique in its process only", UNSIGNED]


@dataclass(frozen=True)
class HostNumber:
    """A number of the host, a process or a device that changed during the recording."""

    metric: Annotated[str, "its name; docs/metrics.md has them all"]
    subject: Annotated[str, "whose: host, pid:1, tid:1, cgroup:/a, node:0, gpu:..."]
    who: Annotated[str | None, "whose it is, for people: Worker0/4720"]
    unit: Annotated[str | None, "ns, bytes, count, percent...; null: a plain number"]
    nature: Annotated[str, "level, total (only ever counts up), average"]
    before: Annotated[int, "at the beginning"]
    after: Annotated[int, "at the end"]
    grown: Annotated[int, "by how much it changed"]
    since_ns: Annotated[int, "it changed after this moment"]
    until_ns: Annotated[int, "and before this one"]
    note: Annotated[str | None, "why it matters; null where it does not"]
    meaning: Annotated[str | None, "what it says, and what it is often mistaken for"]


@dataclass(frozen=True)
class Counter:
    """A reading of a number of the host. Where nothing changed there is no row."""

    t_ns: Annotated[int, "it was read"]
    since_ns: Annotated[int | None, "it may have changed since then"]
    metric: Annotated[str, "as in context", SHARED]
    subject: Annotated[str, "as in context", SHARED]
    unit: Annotated[str | None, "as in context", SHARED]
    nature: Annotated[str | None, "as in context", SHARED]
    value: Annotated[int, "the number in its unit; -1 of a limit: none"]


@dataclass(frozen=True)
class Change:
    """Something of the host that is no number and became another."""

    t_ns: Annotated[int, "it was noticed"]
    since_ns: Annotated[int | None, "it happened after this moment; null: so from the beginning"]
    subject: Annotated[str, "whose; as in context"]
    what: Annotated[str, "cgroup, allowed CPUs, driver..."]
    before: Annotated[str | None, "what it was; null: not known, or there was none"]
    after: Annotated[str | None, "what it is; null: it is there no more"]


@dataclass(frozen=True)
class LedgerEntry:
    """What all of this rests on: one count, or one thing that was not observed."""

    name: Annotated[str, "what is counted, or what is missing and why"]
    count: Annotated[int | None, "how many; null of what is missing"]
    note: Annotated[str | None, "a remark"]
    kind: Annotated[str, "count, check (must be zero), missing"]
    bad: Annotated[bool, "a check that is not zero: something was lost or does not match"]


@dataclass(frozen=True)
class Loss:
    """Events that were lost, by the hop that lost them; counts are increments."""

    t_ns: Annotated[int, "it was noticed"]
    since_ns: Annotated[int | None, "the loss lies between here and t_ns"]
    hop: Annotated[str, "bpf.ring, agent.queue, ingest.stream, store.disk..."]
    what: Annotated[str | None, "kind of event"]
    count: Annotated[int, "events"]


@dataclass(frozen=True)
class Capability:
    """A source of evidence came up, degraded or is missing."""

    t_ns: Annotated[int, "when"]
    source: Annotated[str, "ebpf.sched, vllm.engine, host.psi..."]
    state: Annotated[str, "on, off, degraded"]
    reason: Annotated[str | None, "what is lost without it, and how to mend it"]


@dataclass(frozen=True)
class Fact:
    """A fact about the recording, as a producer stated it; the last one of a key holds."""

    key: Annotated[str, "name"]
    value: Annotated[str, "value"]
    stream: Annotated[int, "number of the producer's stream"]


#: A row of any table.
Row = (
    Request | Token | Segment | Step | Membership | StepSegment | Cause | Wait | GpuOp
    | HostNumber | Counter | Change | LedgerEntry | Loss | Capability | Fact
)  # fmt: skip

#: Every table by its name, in the order in which they are written and documented.
ROWS: Final[dict[str, type[Row]]] = {
    "requests": Request,
    "tokens": Token,
    "segments": Segment,
    "steps": Step,
    "step_requests": Membership,
    "step_segments": StepSegment,
    "causes": Cause,
    "waits": Wait,
    "gpu_ops": GpuOp,
    "context": HostNumber,
    "counters": Counter,
    "changes": Change,
    "ledger": LedgerEntry,
    "losses": Loss,
    "capabilities": Capability,
    "meta": Fact,
}
