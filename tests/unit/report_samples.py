# SPDX-License-Identifier: Apache-2.0
"""Report values made by hand: one served request as a recording of a real engine gives it."""

from __future__ import annotations

from dataclasses import replace

from gpucorrelate.correlator.report import verdict
from gpucorrelate.correlator.report.values import (
    Actor,
    Category,
    Cause,
    Evidence,
    Ledger,
    LedgerLine,
    Phase,
    PhaseName,
    RequestReport,
    RequestRow,
    RunSummary,
    Segment,
    StepReport,
    StepRow,
    TokenCheck,
    TokenLeg,
    Wait,
)

API = Actor(4700, 4700, "api.main", "python", "APIServer")
CORE = Actor(4711, 4711, "core.main", "python", "EngineCore")
CORE_OUT = Actor(4718, 4711, "core.output", "process_output_sockets", "EngineCore")
WORKER = Actor(4720, 4720, "worker0.main", "python", "Worker_TP0")
HOG = Actor(9123, 9123, "", "stress-ng-cpu", "stress-ng-cpu", traced=False)
NOBODY = Actor(0, 0, "", "", "")

ARRIVAL = 1_234_567_890_123
US, MS = 1_000, 1_000_000

CLEAN = Ledger(
    lines=(
        LedgerLine("waits", 12_345),
        LedgerLine("short waits summed", 98_765),
        LedgerLine("faults", 41),
        LedgerLine("steps", 33),
        LedgerLine("spans", 402),
        LedgerLine("queue messages", 132),
        LedgerLine("waits lost in the kernel's rings", 0, check=True),
        LedgerLine("rows dropped by agents", 0, check=True),
        LedgerLine("batches missing", 0, check=True),
        LedgerLine("steps that never ended", 0, check=True),
    ),
    missing=("GPU: no GPU agent in the worker", "cgroup throttling: no cgroup v2"),
)
LOSSY = Ledger(
    lines=(
        *CLEAN.lines[:6],
        LedgerLine(
            "waits lost in the kernel's rings", 1_204, "rings of 8 MiB, CPUs 0 and 1", check=True
        ),
        LedgerLine(
            "rows dropped by agents", 17, "EngineCore/4711, daemon stopped for 30 s", check=True
        ),
    ),
    missing=CLEAN.missing,
)


class Path:
    """Builds segments that follow each other, with the phase they are in."""

    def __init__(self, start_ns: int) -> None:
        self.at_ns = start_ns
        self.segments: list[Segment] = []

    def add(
        self, length_ns: int, category: Category, actor: Actor, phase: PhaseName, **more
    ) -> None:
        end_ns = self.at_ns + length_ns
        evidence = more.pop("evidence", (Evidence("span", self.at_ns, end_ns, actor.tid),))
        self.segments.append(
            Segment(self.at_ns, end_ns, category, actor, phase, evidence=evidence, **more)
        )
        self.at_ns = end_ns


def _before_decode(path: Path) -> None:
    receive, tokenise, queue = PhaseName.RECEIVE, PhaseName.TOKENISE, PhaseName.QUEUE
    path.add(311 * US + 7, Category.CPU, API, receive, span="parse")
    path.add(
        98 * US,
        Category.UNEXPLAINED,
        API,
        receive,
        evidence=(Evidence("anchor", 0, 0, 0, "no wait recorded"),),
    )
    path.add(1_180 * US, Category.CPU, API, tokenise, span="tokenise")
    path.add(402 * US, Category.CPU, API, PhaseName.SEND, span="send")
    path.add(310 * US, Category.RUN_QUEUE, CORE, PhaseName.ADMIT, cause=Cause("ran instead:", HOG))
    path.add(388 * US, Category.CPU, CORE, PhaseName.ADMIT)
    path.add(
        7_400 * US, Category.LOCK, CORE, queue,
        cause=Cause("held by", CORE_OUT, "while `schedule`"), span="schedule",
    )  # fmt: skip
    path.add(12_911 * US, Category.CPU, WORKER, queue, span="execute", step=40)
    path.add(1_001 * US, Category.CPU, CORE, PhaseName.PREFILL, span="schedule", step=41)
    path.add(89 * US, Category.SPIN_HANDOFF, WORKER, PhaseName.PREFILL, step=41)
    path.add(38_400 * US, Category.CPU, WORKER, PhaseName.PREFILL, span="execute", step=41)
    path.add(
        2_020 * US,
        Category.PAGE_FAULT,
        WORKER,
        PhaseName.PREFILL,
        span="execute",
        step=41,
        cause=Cause("file", None, "253:1 inode 12345"),
    )
    path.add(6_050 * US, Category.CPU, WORKER, PhaseName.PREFILL, span="sample", step=41)


def request(
    request_id: str = "chatcmpl-8f3a1c77b21e4b6f9d0a5c3e2f1b4d6a", tokens: int = 32
) -> RequestReport:
    """A request of one prefill step and ``tokens - 1`` decode steps, with one slow step."""
    path = Path(ARRIVAL)
    _before_decode(path)
    prefill_end = path.at_ns
    path.add(1_700 * US, Category.CPU, CORE, PhaseName.OUTPUT, span="update", step=41)
    path.add(840 * US, Category.CPU, API, PhaseName.OUTPUT, span="output")
    first = path.at_ns
    ttft = tuple(path.segments)
    legs = [TokenLeg(0, 41, prefill_end, first - 100 * US, first, ((Category.CPU, 2_540 * US),))]
    phases = [
        Phase(PhaseName.RECEIVE, ARRIVAL, ARRIVAL + 409 * US + 7, "received", "tokenising"),
        Phase(
            PhaseName.TOKENISE,
            ARRIVAL + 409 * US + 7,
            ARRIVAL + 1_589 * US + 7,
            "tokenising",
            "tokenised",
        ),
        Phase(
            PhaseName.SEND, ARRIVAL + 1_589 * US + 7, ARRIVAL + 1_991 * US + 7, "tokenised", "sent"
        ),
        Phase(
            PhaseName.ADMIT, ARRIVAL + 1_991 * US + 7, ARRIVAL + 2_689 * US + 7, "sent", "admitted"
        ),
        Phase(
            PhaseName.QUEUE,
            ARRIVAL + 2_689 * US + 7,
            ARRIVAL + 23_000 * US + 7,
            "admitted",
            "first scheduled",
        ),
        Phase(
            PhaseName.PREFILL,
            ARRIVAL + 23_000 * US + 7,
            prefill_end,
            "first scheduled",
            "step 41 update end",
            41,
            512,
        ),
    ]
    waits = [
        Wait(
            ARRIVAL + 2_689 * US + 7,
            ARRIVAL + 10_089 * US + 7,
            CORE,
            "futex",
            Cause("held by", CORE_OUT, "while `schedule`"),
            PhaseName.QUEUE,
        )
    ]
    decode_start = path.at_ns
    for index in range(1, tokens):
        step = 41 + index
        begin = path.at_ns
        slow = index == 17
        path.add(310 * US, Category.CPU, CORE, PhaseName.DECODE, span="schedule", step=step)
        path.add(60 * US, Category.SPIN_HANDOFF, WORKER, PhaseName.DECODE, step=step)
        path.add(
            3_900 * US + index * 11,
            Category.CPU,
            WORKER,
            PhaseName.DECODE,
            span="execute",
            step=step,
        )
        if slow:
            path.add(
                28_000 * US,
                Category.PREEMPTED,
                WORKER,
                PhaseName.DECODE,
                span="execute",
                step=step,
                cause=Cause("ran instead:", HOG),
            )
            waits.append(
                Wait(
                    path.at_ns - 28_000 * US,
                    path.at_ns,
                    WORKER,
                    "preempted",
                    Cause("ran instead:", HOG),
                    PhaseName.DECODE,
                )
            )
        path.add(410 * US, Category.CPU, CORE, PhaseName.DECODE, span="update", step=step)
        made = path.at_ns
        path.add(
            95 * US,
            Category.MESSAGE,
            API,
            PhaseName.DECODE,
            cause=Cause("woken by", CORE_OUT, "in write"),
        )
        waits.append(
            Wait(
                path.at_ns - 95 * US,
                path.at_ns,
                API,
                "epoll",
                Cause("woken by", CORE_OUT, "in write"),
                PhaseName.DECODE,
            )
        )
        path.add(240 * US, Category.CPU, API, PhaseName.DECODE, span="output")
        worst = path.segments[-1]
        legs.append(
            TokenLeg(
                index,
                step,
                made,
                path.at_ns - 40 * US,
                path.at_ns,
                ((Category.CPU, 240 * US), (Category.MESSAGE, 95 * US)),
                worst,
            )
        )
        phases.append(
            Phase(
                PhaseName.DECODE,
                begin,
                path.at_ns,
                f"step {step - 1} update end",
                f"step {step} update end",
                step,
                1,
            )
        )
    end = path.at_ns + 180 * US
    path.add(100 * US, Category.CPU, API, PhaseName.OUTPUT, span="output")
    path.add(
        80 * US,
        Category.UNOBSERVED,
        NOBODY,
        PhaseName.OUTPUT,
        cause=Cause("no probe on the thread until 1234.9"),
    )
    phases.append(Phase(PhaseName.OUTPUT, path.at_ns - 180 * US, end, "last output", "last byte"))
    assert path.at_ns == end and decode_start < end
    waits.sort(key=lambda wait: -wait.length_ns)
    return RequestReport(
        request_id=request_id,
        internal_id=f"{request_id}-0",
        arrival_ns=ARRIVAL,
        end_ns=end,
        status="finished: length",
        tokens_in=512,
        tokens_out=tokens,
        cached_tokens=256,
        preemptions=0,
        first_token_ns=first,
        phases=tuple(phases),
        segments=tuple(path.segments),
        ttft_segments=ttft,
        waits=tuple(waits),
        tokens=tuple(legs),
        checks=tuple(
            TokenCheck(place, tokens, 0xFEDC_BA98_7654_3210)
            for place in ("engine", "frontend", "client")
        ),
        boundaries=(
            "arrival: the ASGI server called the application",
            "end: the last chunk was handed to the transport",
        ),
        ledger=CLEAN,
        steps=tuple(range(41, 41 + tokens)),
        verdict=verdict.of(path.segments, waits),
    )


def step(number: int = 58) -> StepReport:
    """One step of three rows in which the worker was preempted."""
    path = Path(ARRIVAL)
    phase = PhaseName.DECODE
    path.add(310 * US, Category.CPU, CORE, phase, span="schedule", step=number)
    path.add(60 * US, Category.SPIN_HANDOFF, WORKER, phase, step=number)
    path.add(3_900 * US, Category.CPU, WORKER, phase, span="execute", step=number)
    path.add(
        28 * MS,
        Category.PREEMPTED,
        WORKER,
        phase,
        span="execute",
        step=number,
        cause=Cause("ran instead:", HOG),
    )
    path.add(410 * US + 3, Category.CPU, CORE, phase, span="update", step=number)
    wait = Wait(
        ARRIVAL + 4_270 * US,
        ARRIVAL + 32_270 * US,
        WORKER,
        "preempted",
        Cause("ran instead:", HOG),
        phase,
    )
    return StepReport(
        step=number, start_ns=ARRIVAL, end_ns=path.at_ns, status="ok", kind="mixed", rows=3,
        tokens=514, prefill_tokens=512, waiting=7,
        request_ids=("chatcmpl-a", "chatcmpl-b", "chatcmpl-c"),
        segments=tuple(path.segments), waits=(wait,), worker_ns=31_900 * US, ledger=CLEAN,
    )  # fmt: skip


def request_row(index: int, **changes) -> RequestRow:
    """One line of a list; later ones are slower."""
    row = RequestRow(
        request_id=f"chatcmpl-{index:08x}77b21e4b6f9d0a5c3e2f1b4d",
        arrival_ns=ARRIVAL + index * 10 * MS,
        wall_ns=100 * MS + index * MS,
        ttft_ns=20 * MS + index * MS,
        tokens_in=512,
        tokens_out=32,
        status="finished: length",
        by_phase=((PhaseName.QUEUE, 10 * MS + index * MS), (PhaseName.DECODE, 90 * MS)),
    )
    return replace(row, **changes)


def step_row(number: int, **changes) -> StepRow:
    """One line of a list of steps."""
    row = StepRow(
        step=number, start_ns=ARRIVAL + number * 5 * MS, wall_ns=5 * MS + number, kind="decode",
        rows=3, tokens=3, prefill_tokens=0, waiting=0, status="ok", worker_ns=4 * MS,
        longest="cpu Worker_TP0/4720",
    )  # fmt: skip
    return replace(row, **changes)


def summary(**changes) -> RunSummary:
    """A recording of fifty requests."""
    value = RunSummary(
        start_ns=ARRIVAL,
        end_ns=ARRIVAL + 12_345 * MS,
        requests=50,
        steps=1_204,
        tokens_out=1_600,
        ttft_ns=tuple(range(20 * MS, 70 * MS, MS)),
        itl_ns=tuple(range(4 * MS, 6 * MS, US)),
        by_phase=(
            (PhaseName.QUEUE, 900 * MS),
            (PhaseName.PREFILL, 2_000 * MS),
            (PhaseName.DECODE, 7_000 * MS),
            (PhaseName.OUTPUT, 100 * MS + 1),
        ),
        by_category=(
            (Category.CPU, 9_000 * MS),
            (Category.RUN_QUEUE, 900 * MS),
            (Category.MESSAGE, 95 * MS + 1),
            (Category.UNOBSERVED, 5 * MS),
        ),
        actors=(
            ("Worker_TP0/4720", 7_000 * MS),
            ("EngineCore/4711", 2_000 * MS),
            ("APIServer/4700", 1_000 * MS + 1),
        ),
        meta=(
            ("model", "tiny-random-llama"),
            ("vllm.version", "0.32.0"),
            ("kernel", "6.1.0-32-amd64"),
        ),
        ledger=CLEAN,
    )
    return replace(value, **changes)
