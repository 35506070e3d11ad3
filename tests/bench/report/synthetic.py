# SPDX-License-Identifier: Apache-2.0
"""A recording of any size with the shape of a real one: a steady batch of streaming requests.

Every step takes 3 ms: the engine core schedules, hands over through a shared-memory queue,
the worker executes, the core takes the results in and wakes the API server, which processes
the outputs and writes one chunk per request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.frame import StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor, QueueOp, TokenPlace, WaitKind

if TYPE_CHECKING:
    from collections.abc import Iterator

API, CORE, WORKER = 100, 200, 300
US = 1_000
STEP_NS = 3_000 * US
_STREAMS = {"ebpf": 2, "api": 3, "core": 4, "worker": 5}


class _Rows:
    """Rows per (stream, kind), flushed as batches of a few thousand."""

    def __init__(self) -> None:
        self.writers = {number: StreamWriter(number) for number in (1, *_STREAMS.values())}
        self.rows: dict[tuple[int, str], list[tuple[int | str, ...]]] = {}

    def add(self, by: int, kind_name: str, /, **values: int | str) -> None:
        kind = BY_NAME[kind_name]
        row = tuple(values.get(c.name, "" if c.ctype == "str" else 0) for c in kind.columns)
        self.rows.setdefault((by, kind_name), []).append(row)

    def flush(self) -> Iterator[bytes]:
        for (stream, kind_name), rows in self.rows.items():
            writer, kind = self.writers[stream], BY_NAME[kind_name]
            yield from writer.frames(kind, len(rows), columns_of(kind, rows, writer.strings))
        self.rows.clear()


def frames(requests: int, tokens: int = 50, batch: int = 50) -> Iterator[bytes]:
    """Frames of a recording with that many requests of that many output tokens each."""
    out = _Rows()
    for role, tgid in (("api", API), ("core", CORE), ("worker", WORKER)):
        number = _STREAMS[role]
        out.add(1, "stream", stream=number, tgid=tgid, producer="vllm", role=role)
        out.add(number, "thread", tid=tgid, name="MainThread", role=f"{role}.main")
        out.add(1, "session", event=2, tgid=tgid, session="s")
    waves = (requests + batch - 1) // batch
    for wave in range(waves):
        ids = [f"cmpl-{n}-0" for n in range(wave * batch, min(requests, (wave + 1) * batch))]
        _wave(out, ids, wave * (tokens + 2) * STEP_NS + 10 * STEP_NS, wave * tokens, tokens)
        yield from out.flush()
    out.add(1, "session", t_ns=(waves * (tokens + 2) + 20) * STEP_NS, event=4, session="s")
    yield from out.flush()


def _wave(out: _Rows, ids: list[str], t: int, first_step: int, tokens: int) -> None:
    core, api = _STREAMS["core"], _STREAMS["api"]
    wave = first_step // tokens
    for n, rid in enumerate(ids):
        at, http = t + n * 10 * US, wave * 1000 + n + 1
        out.add(api, "request", http=http, anchor=Anchor.RECEIVED, t_ns=at, tid=API)
        out.add(api, "request", request=rid, http=http, anchor=Anchor.LINKED, t_ns=at + US,
                tid=API, detail=rid)  # fmt: skip
        for anchor, after in ((Anchor.TOKENISE_START, 2), (Anchor.TOKENISED, 4), (Anchor.SENT, 8)):
            out.add(api, "request", request=rid, anchor=anchor, t_ns=at + after * US, tid=API)
        out.add(core, "request", request=rid, anchor=Anchor.ADMITTED, t_ns=t + 900 * US + n,
                tid=CORE, value=20)  # fmt: skip
    for which, scheduled, computed in ((1, 20, 0), (2, 1, 20), (3, 1, 0)):
        for row, rid in enumerate(ids):
            out.add(core, "step_rows", rowset=wave * 3 + which, row=row, request=rid,
                    scheduled=scheduled, computed=computed, prompt=20, must_sample=1)  # fmt: skip
    for row, rid in enumerate(ids):
        out.add(api, "step_rows", rowset=wave + 1, row=row, request=rid, scheduled=1)
    for n in range(tokens):
        _step(out, ids, t + (n + 1) * STEP_NS, first_step + n + 1, n, wave)
    end = t + (tokens + 1) * STEP_NS
    for n, rid in enumerate(ids):
        http = wave * 1000 + n + 1
        out.add(core, "request", request=rid, anchor=Anchor.FINISHED, t_ns=end - 100 * US,
                tid=CORE, detail="length")  # fmt: skip
        out.add(api, "request", http=http, anchor=Anchor.LAST_BYTE, t_ns=end + n * US, tid=API)
        for stream, place in ((core, TokenPlace.ENGINE), (api, TokenPlace.FRONTEND)):
            out.add(stream, "tokens", request=rid, place=place, count=tokens, hash=1)


def _step(out: _Rows, ids: list[str], t: int, step: int, n: int, wave: int) -> None:
    core, api, worker, ebpf = (_STREAMS[k] for k in ("core", "api", "worker", "ebpf"))
    out.add(core, "step_begin", step=step, tid=CORE, sched_start_ns=t, start_ns=t + 150 * US,
            rowset=wave * 3 + min(n + 1, 2), rowset_age=max(0, n - 1), rows=len(ids),
            tokens=len(ids) * (1 if n else 20))  # fmt: skip
    for stream, tid, name, a, b in (
        (core, CORE, "schedule", 0, 140),
        (core, CORE, "update", 2500, 2700),
        (worker, WORKER, "execute", 250, 2300),
        (worker, WORKER, "sample", 2300, 2400),
        (api, API, "output", 2760, 2800),
    ):
        out.add(stream, "span", tid=tid, name=name, start_ns=t + a * US, end_ns=t + b * US,
                step=step)  # fmt: skip
    out.add(worker, "worker_step", step=step, tid=WORKER, phase=1, start_ns=t + 250 * US,
            end_ns=t + 2300 * US)  # fmt: skip
    for name, writer, reader, start, sent, ready in (
        ("to", CORE, WORKER, -400, 200, 240),
        ("from", WORKER, CORE, 220, 2450, 2480),
    ):
        for tid, op, a, b in (
            (writer, QueueOp.WRITE, sent, sent),
            (reader, QueueOp.READ, start, ready),
        ):
            out.add(core if tid == CORE else worker, "queue_msg", tid=tid, queue=name, op=op,
                    seq=step, start_ns=t + a * US, ready_ns=t + b * US,
                    end_ns=t + b * US)  # fmt: skip
    out.add(core, "step_end", step=step, tid=CORE, end_ns=t + 2490 * US)
    out.add(core, "step_update", step=step, tid=CORE, start_ns=t + 2500 * US,
            end_ns=t + 2700 * US, stamp_ns=t, rowset=wave * 3 + 3, tokens=len(ids))  # fmt: skip
    for k in range(10):  # short waits on helper threads, as every real process has
        out.add(ebpf, "wait", tid=CORE + 1 + k % 3, tgid=CORE, start_ns=t + k * 100 * US,
                end_ns=t + (k * 100 + 60) * US, wake_ns=t + (k * 100 + 55) * US,
                wait_kind=WaitKind.FUTEX, op=137, waker_tid=CORE, waker_tgid=CORE)  # fmt: skip
    out.add(ebpf, "wait", tid=API, tgid=API, start_ns=t + 100 * US, end_ns=t + 2750 * US,
            wake_ns=t + 2720 * US, wait_kind=WaitKind.EPOLL, arg=5, waker_tid=CORE,
            waker_tgid=CORE, waker_syscall=1)  # fmt: skip
    for tid in (CORE, WORKER):
        out.add(ebpf, "wait", tid=tid, tgid=tid, start_ns=t + 1000 * US, end_ns=t + 1010 * US,
                wake_ns=t + 1000 * US, wait_kind=WaitKind.PREEMPTED, waker_tid=1)  # fmt: skip
    out.add(api, "outputs", tid=API, start_ns=t + 2760 * US, end_ns=t + 2800 * US, stamp_ns=t,
            rowset=wave + 1, tokens=len(ids))  # fmt: skip
    for i in range(len(ids)):
        a = t + (2810 + 3 * i) * US
        http = wave * 1000 + i + 1
        out.add(api, "request", http=http, anchor=Anchor.CHUNK_START, t_ns=a, tid=API)
        out.add(api, "request", http=http, anchor=Anchor.CHUNK_END, t_ns=a + 2 * US, tid=API)
