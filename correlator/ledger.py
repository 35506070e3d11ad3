# SPDX-License-Identifier: Apache-2.0
"""The ledger: what a report rests on, what was lost on the way, and which legs are missing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.gaps import kernel_streams
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.values import Ledger, LedgerLine
from gpucorrelate.correlator.search import clipped, exact_sum, union
from gpucorrelate.correlator.states import imported
from gpucorrelate.probes.wire.schema import MARKS, CapabilityState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.requests import Request
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.steps import Steps


_DAY_NS = 86_400 * 10**9
_MOST_DAYS = 31
#: How long agents and rings may keep a record back. Where a recording breaks off, the last of it
#: is not all there; and what a missing batch held may be that much older than the batch before.
_LATE_NS = 2 * 10**9


def of_run(capture: Capture, states: States, steps: Steps, requests: Sequence[Request]) -> Ledger:
    """The ledger of a whole recording; every report of it carries this."""
    if imported(capture):
        return Ledger(tuple(_losses(capture)), _missing(capture, states))
    lines = [
        *_counts(capture, requests),
        *_joins(capture, states, steps, requests),
        *_losses(capture),
    ]
    return Ledger(tuple(lines), _missing(capture, states))


def _counts(capture: Capture, requests: Sequence[Request]) -> list[LedgerLine]:
    sums = capture.table("wait_sum")
    return [
        LedgerLine("waits recorded", len(capture.table("wait"))),
        LedgerLine("short waits summed", int(sums["count"].sum()) if len(sums) else 0),
        LedgerLine("page faults", len(capture.table("fault"))),
        LedgerLine("steps", len(capture.table("step_begin"))),
        LedgerLine("requests", len(requests)),
        LedgerLine("queue messages", len(capture.table("queue_msg"))),
    ]


def _joins(
    capture: Capture, states: States, steps: Steps, requests: Sequence[Request]
) -> list[LedgerLine]:
    gaps = _step_gaps(steps)
    return [
        LedgerLine("step numbers missing", gaps,
                   "steps begun that no record tells of", check=True),
        LedgerLine("step ends without a begin", steps.missing_begin,
                   "steps in flight when tracing began"),
        LedgerLine("steps without an end", steps.missing_end, "in flight at the end, or lost"),
        LedgerLine("steps whose rows are unknown", steps.missing_rows, check=True),
        LedgerLine("queue reads without their write", states.reads.unjoined),
        LedgerLine("requests whose rows and tokens differ",
                   sum(not rows_match(r) for r in requests),
                   "rows that must sample against tokens made", check=True),
        LedgerLine("requests whose token ids differ between places",
                   sum(not checks_agree(r) for r in requests), check=True),
        LedgerLine("requests with nothing to compare their tokens to",
                   sum(len(r.checks) < 2 and bool(r.tokens_out) for r in requests)),
        LedgerLine("requests in steps that no anchor names",
                   _without_anchor(capture, steps, requests), check=True),
    ]  # fmt: skip


def _without_anchor(capture: Capture, steps: Steps, requests: Sequence[Request]) -> int:
    """Requests that steps name and nothing else does; a program's own marks need not."""
    marked = {info.stream for info in capture.streams if info.producer == MARKS}
    if set(np.unique(steps.stream).tolist()) <= marked:
        return 0
    named = {r.internal_id for r in requests}
    return sum(capture.strings[rid] not in named for rid in steps.request_ids if rid)


def _step_gaps(steps: Steps) -> int:
    missing = 0
    for stream in np.unique(steps.stream):
        numbers = steps.number[steps.stream == stream]
        missing += int(numbers.max()) - int(numbers.min()) + 1 - len(numbers)
    return missing


def rows_match(request: Request) -> bool:
    """Whether rows that had to sample equal the tokens made; True where one is unknown.

    Only finished requests that the recording saw from admission on can be judged.
    """
    whole = any(a.name == "ADMITTED" for a, _ in request.marks) and request.complete
    if not whole or request.tokens_out is None or not request.status.startswith("finished"):
        return True
    return request.must_sample == request.tokens_out or request.must_sample == 0


def checks_agree(request: Request) -> bool:
    """Whether count and hash of the output token ids are the same at every place known."""
    return len({(count, digest) for _, count, digest, _ in request.checks}) <= 1


def doubts(capture: Capture, states: States, steps: Steps, request: Request) -> tuple[str, ...]:
    """Names of bad lines that reach into a request's time, and whose harm its path does not show.

    Records lost at a hop are no such line: the walk believes nothing where they may have been, so
    there the path is unobserved.
    """
    found = []
    if request.arrival_lost:
        found.append("its arrival was not recorded")
    if request.steps:
        # The steps of one engine core lie side by side, in the order of their numbers.
        first, last = request.steps[0], request.steps[-1]
        if int(steps.number[last] - steps.number[first]) != last - first:
            found.append("step numbers missing")
    if steps.missing_rows:
        within = (steps.sched_ns >= request.arrival_ns) & (steps.sched_ns <= request.end_ns)
        if (within & (steps.prefill_tokens < 0) & (steps.rows > 0)).any():
            found.append("steps whose rows are unknown")
    if not rows_match(request):
        found.append("its rows and tokens differ")
    intake = capture.intake
    if intake.missing and _reach(capture, request):
        found.append("batches missing from the recording")
    if intake.damage and not states.closed and states.end_ns - request.end_ns < _LATE_NS:
        found.append("the recording's end is unreadable")
    return tuple(found)


def _reach(capture: Capture, request: Request) -> bool:
    """Whether batches may be missing from a request's time.

    Those of the kernel's stream are no doubt of their own: nothing is believed there.
    """
    kernel = kernel_streams(capture)
    return not capture.intake.gaps or any(
        since - _LATE_NS <= request.end_ns
        and (not until or until + _LATE_NS >= request.arrival_ns)
        for stream, since, until in capture.intake.gaps
        if stream not in kernel
    )


def _losses(capture: Capture) -> list[LedgerLine]:
    rows, strings = capture.table("loss"), capture.strings
    by_hop: Counter[tuple[str, str]] = Counter()
    for hop, what, count in zip(
        *(rows[c].tolist() for c in ("hop", "what", "count")), strict=True
    ):
        by_hop[strings[hop], strings[what]] += count
    told = {hop.partition(".")[0] for hop, _ in by_hop}
    lines = [
        LedgerLine(words, 0, check=True)
        for hop, words in (("bpf", "lost in the kernel's rings"), ("agent", "dropped by agents"))
        if hop not in told
    ]
    lines += [
        LedgerLine(f"lost at {hop}", count, what, check=True)
        for (hop, what), count in sorted(by_hop.items())
    ]
    intake = capture.intake
    skipped = sum(d.size_bytes for d in intake.damage)
    reasons = ", ".join(sorted({d.reason for d in intake.damage}))
    lines += [
        LedgerLine("bytes of the recording unreadable", skipped, reasons, check=True),
        LedgerLine("batches missing from the recording", intake.missing, check=True),
        LedgerLine("batches repeated", intake.repeated, "sent again after a reconnect; used once"),
        LedgerLine("batches of unknown kinds", intake.unknown_kinds, "from a newer version"),
    ]
    return [line for line in lines if line.count or line.check]


def _missing(capture: Capture, states: States) -> tuple[str, ...]:
    """Legs that were not observed, each with the reason."""
    if imported(capture):
        return _missing_of_profile(states)
    rows, strings = capture.table("capability"), capture.strings
    latest: dict[str, tuple[int, str]] = {}
    for source, state, reason in zip(
        *(rows[c].tolist() for c in ("source", "state", "reason")), strict=True
    ):
        latest[strings[source]] = (state, strings[reason])
    missing = [
        f"{source}: {reason}" if reason else source
        for source, (state, reason) in sorted(latest.items())
        if state != CapabilityState.ON
        # Counting yields in the kernel is for engines whose agent does not tell of its polling.
        and not (source == "ebpf.spins" and len(capture.table("queue_msg")))
    ]
    if not len(capture.table("wait")):
        missing.append("OS waits: none recorded, so no thread's time can be explained")
    if not len(capture.table("step_begin")):
        missing.append("engine steps: none recorded")
    if len(np.unique(capture.table("step_begin")["stream"])) > 1:
        missing.append("workers' calls by step: several engine cores number their steps alike")
    missing += _without_gil(capture)
    days = (states.end_ns - states.start_ns) // _DAY_NS
    if days > _MOST_DAYS:
        missing.append(f"times: the recording spans {days} days, so some of them cannot be right")
    if not states.closed:
        missing.append("the end: the recording stops in the middle, what came last is unknown")
    if not len(states.reads.start_ns) and len(capture.table("worker_step")):
        missing.append("shared-memory queues: no messages recorded (one-process executor?)")
    if not states.device.records:
        missing.append("GPU: no device activity in this recording")
    missing += _outside_windows(capture, states)
    return tuple(missing)


def _outside_windows(capture: Capture, states: States) -> list[str]:
    """How much of the time the GPU was not recorded, where it was in windows."""
    rows = capture.table("gpu_window")
    if not len(rows):
        return []
    streams = np.unique(rows["stream"])
    recorded = 0
    for stream in streams:
        own = rows.select(np.flatnonzero(rows["stream"] == stream))
        start, end = union(own["start_ns"], own["end_ns"])
        start, end = clipped(start, end, states.start_ns, states.end_ns)
        recorded += exact_sum(end - start)
    whole = (states.end_ns - states.start_ns) * len(streams)
    windows = len(np.unique(np.stack((rows["stream"], rows["window"])), axis=1).T)
    if recorded >= whole or not whole:
        return []
    return [
        f"GPU outside its windows: recorded in {windows:,}, {units.share(recorded, whole)} of the "
        "time; elsewhere a step's GPU work shows only as what its threads waited for"
    ]


def _missing_of_profile(states: States) -> tuple[str, ...]:
    """What no profile holds, and what this one does not."""
    missing = ["OS waits: a profile holds none, so why a thread did not get on is not known"]
    if not len(states.capture.table("gpu_sync")):
        missing.append(
            "synchronisation records: what calls waited for is inferred from when GPU work ended"
        )
    if len(states.device.processes) > 1:
        missing.append(
            "one clock of all processes: whether they share it is not known, so no path leads "
            "from one to another"
        )
    return tuple(missing)


def _without_gil(capture: Capture) -> list[str]:
    """Engine processes whose interpreter lock has no known address."""
    told = {fact.stream for fact in capture.facts("gil") if not fact.value.endswith(":0")}
    return [
        f"interpreter lock of {info.role or 'process'}/{info.tgid}: its address is not known, "
        "waits for it look like messages"
        for info in capture.streams
        if info.producer == "vllm" and info.stream not in told
    ]
