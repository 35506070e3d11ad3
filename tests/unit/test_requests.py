# SPDX-License-Identifier: Apache-2.0
"""Requests, steps and reports of a small recording whose every moment is known."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category, PhaseName, RequestReport, Segment
from gpucorrelate.probes.wire.errors import NotFoundError, RecordingError, UsageError
from gpucorrelate.probes.wire.frame import Batch, StringTable, columns_of
from gpucorrelate.probes.wire.schema import (
    BY_NAME,
    Anchor,
    QueueOp,
    StepStatus,
    TokenPlace,
    WaitKind,
)
from tests.unit.synth import API, CORE, WORKER, Recording

US = 1_000
STEP = 1_000 * US


def anchor(r: Recording, kind: Anchor, t: int, **more: int | str) -> None:
    by = 4 if kind in (Anchor.ADMITTED, Anchor.FINISHED) else 3
    r.add("request", by, anchor=kind, t_ns=t, tid=CORE if by == 4 else API, **more)


def recording(steps: int = 3, prompt: int = 10) -> Recording:
    """One request: received at 1 ms, sent at 1.3, admitted at 1.5, steps of 1 ms from 2 ms on.

    The engine core polls the response queue while the worker executes; the API server sleeps
    in epoll until the engine core wakes it with each token.
    """
    r = Recording().process(3, API, "api").process(4, CORE, "core").process(5, WORKER, "worker")
    anchor(r, Anchor.RECEIVED, 1_000 * US, http=1, detail="/v1/completions x-1")
    anchor(r, Anchor.TOKENISE_START, 1_100 * US, request="x-1-0-ab")
    anchor(r, Anchor.TOKENISED, 1_200 * US, request="x-1-0-ab", value=prompt)
    anchor(r, Anchor.LINKED, 1_250 * US, request="x-1-0-ab", http=1, detail="x-1-0")
    anchor(r, Anchor.SENT, 1_300 * US, request="x-1-0-ab", value=prompt)
    anchor(r, Anchor.ADMITTED, 1_500 * US, request="x-1-0-ab", value=prompt)
    r.add("step_rows", 4, rowset=1, row=0, request="x-1-0-ab", scheduled=prompt, computed=0,
          prompt=prompt, must_sample=1)  # fmt: skip
    r.add("step_rows", 4, rowset=2, row=0, request="x-1-0-ab", scheduled=1, computed=prompt,
          prompt=prompt, must_sample=1)  # fmt: skip
    r.add("step_rows", 4, rowset=3, row=0, request="x-1-0-ab", scheduled=1)
    r.add("step_rows", 3, rowset=1, row=0, request="x-1-0-ab", scheduled=1)
    for n in range(1, steps + 1):
        t = 1_000 * US + n * STEP
        one_step(r, n, t, prompt)
    end = 1_000 * US + (steps + 1) * STEP
    anchor(r, Anchor.FINISHED, end - 50 * US, request="x-1-0-ab", value=steps, detail="length")
    anchor(r, Anchor.LAST_BYTE, end + 200 * US, http=1, value=200)
    for place, by in ((TokenPlace.ENGINE, 4), (TokenPlace.FRONTEND, 3)):
        r.add("tokens", by, request="x-1-0-ab", place=place, count=steps, hash=77, reason="length")
    for tid in (API, CORE, WORKER):
        r.wait(tid, 1, 10)
    return r


def one_step(r: Recording, n: int, t: int, prompt: int) -> None:
    """schedule 0-100 us, worker 150-800, update 850-950; API woken at 950, chunk at 1000-1050."""
    r.add("step_begin", 4, step=n, tid=CORE, sched_start_ns=t, sched_end_ns=t + 100 * US,
          start_ns=t + 110 * US, rowset=min(n, 2), rowset_age=max(0, n - 2), rows=1,
          tokens=prompt if n == 1 else 1)  # fmt: skip
    r.add("span", 4, tid=CORE, name="schedule", start_ns=t, end_ns=t + 100 * US, step=n)
    r.add("span", 4, tid=CORE, name="update", start_ns=t + 850 * US, end_ns=t + 950 * US, step=n)
    r.add(
        "span", 5, tid=WORKER, name="execute", start_ns=t + 150 * US, end_ns=t + 800 * US, step=n
    )
    r.add("worker_step", 5, step=n, tid=WORKER, phase=1, start_ns=t + 150 * US,
          end_ns=t + 800 * US)  # fmt: skip
    for name, writer, reader, start, sent, ready in (
        ("to", CORE, WORKER, t - 170 * US, t + 120 * US, t + 150 * US),
        ("from", WORKER, CORE, t + 130 * US, t + 820 * US, t + 840 * US),
    ):
        for tid, op, a, b in (
            (writer, QueueOp.WRITE, sent, sent),
            (reader, QueueOp.READ, start, ready),
        ):
            r.add("queue_msg", 4 if tid == CORE else 5, tid=tid, queue=name, op=op, seq=n,
                  start_ns=a, ready_ns=b, end_ns=b)  # fmt: skip
    r.add("step_end", 4, step=n, tid=CORE, end_ns=t + 845 * US)
    r.add("step_update", 4, step=n, tid=CORE, start_ns=t + 850 * US, end_ns=t + 950 * US,
          stamp_ns=t, rowset=3, tokens=1)  # fmt: skip
    asleep = t - 600 * US if n == 1 else t + 100 * US
    r.wait(API, asleep, t + 980 * US, wake=t + 960 * US, waker=CORE, waker_syscall=1,
           kind=WaitKind.EPOLL, arg=5)  # fmt: skip
    r.add("outputs", 3, tid=API, start_ns=t + 985 * US, end_ns=t + 995 * US, stamp_ns=t, rowset=1,
          tokens=1)  # fmt: skip
    anchor(r, Anchor.CHUNK_START, t + 1_000 * US, http=1, value=64)
    anchor(r, Anchor.CHUNK_END, t + 1_050 * US, http=1, value=64)


def report(r: Recording) -> RequestReport:
    return Run.of(r.capture()).request("x-1-0")


def tiles(segments: tuple[Segment, ...], start: int, end: int) -> bool:
    return (
        segments[0].start_ns == start
        and segments[-1].end_ns == end
        and all(a.end_ns == b.start_ns for a, b in itertools.pairwise(segments))
    )


def test_a_request_is_partitioned_exactly() -> None:
    got = report(recording())
    assert (got.arrival_ns, got.end_ns) == (1_000 * US, 5_200 * US)
    assert tiles(got.segments, got.arrival_ns, got.end_ns)
    assert sum(s.length_ns for s in got.segments) == got.wall_ns
    assert got.first_token_ns == 3_050 * US
    assert tiles(got.ttft_segments, got.arrival_ns, 3_050 * US)
    assert (got.tokens_in, got.tokens_out, len(got.tokens)) == (10, 3, 3)
    assert got.status == "finished: length"
    assert got.itl_ns == (STEP, STEP)


def raising(*, after: int = 0) -> Recording:
    """The engine of ``recording`` raises in its third step, as the worker would have begun."""
    r = recording(2)
    t = 4_000 * US
    r.add("step_begin", 4, step=3, tid=CORE, sched_start_ns=t, sched_end_ns=t + 100 * US,
          start_ns=t + 110 * US, rowset=2, rowset_age=1, rows=1, tokens=1)  # fmt: skip
    r.add("step_end", 4, step=3, tid=CORE, end_ns=t + 150 * US, status=StepStatus.ERROR,
          error="RuntimeError: no")  # fmt: skip
    for n in range(4, 4 + after):
        r.add("step_begin", 4, step=n, tid=CORE, sched_start_ns=t + STEP, start_ns=t + STEP)
        r.add("step_end", 4, step=n, tid=CORE, end_ns=t + 2 * STEP)
    return r


def in_flight(r: Recording, tag: str, received: int) -> None:
    """A request that is admitted and then heard of no more."""
    anchor(r, Anchor.RECEIVED, received, http=2, detail=f"/v1/completions {tag}")
    anchor(r, Anchor.LINKED, received + US, request=f"{tag}-0-ab", http=2, detail=f"{tag}-0")
    anchor(r, Anchor.SENT, received + 2 * US, request=f"{tag}-0-ab", value=5)


def test_who_is_with_an_engine_that_raises_has_failed_with_its_error() -> None:
    r = raising()
    in_flight(r, "y-1", 3_900 * US)
    run = Run.of(r.capture())
    got = run.request("y-1-0")
    assert got.status == "failed: the engine core failed: RuntimeError: no"
    assert got.end_ns == 4_150 * US
    assert tiles(got.segments, 3_900 * US, 4_150 * US)
    # The first had all its tokens: the response was out before.
    assert run.request("x-1-0").status == "finished: length"


def test_a_step_that_raised_is_the_last_of_who_was_in_it() -> None:
    r = raising()
    in_flight(r, "y-1", 2_100 * US)
    r.add("step_rows", 4, rowset=9, row=0, request="y-1-0-ab", scheduled=1, computed=5, prompt=5)
    t = 4_200 * US
    r.add("step_begin", 4, step=4, tid=CORE, sched_start_ns=t, start_ns=t, rowset=9, rows=1)
    r.add("step_end", 4, step=4, tid=CORE, end_ns=t + 10 * US, status=StepStatus.ERROR,
          error="RuntimeError: again")  # fmt: skip
    got = Run.of(r.capture()).request("y-1-0")
    # What went wrong first is what is to be told.
    assert got.status == "failed: the engine core failed: RuntimeError: no"
    one = raising()
    in_flight(one, "z-1", 2_100 * US)
    one.add("step_rows", 4, rowset=2, row=1, request="z-1-0-ab", scheduled=1, computed=5, prompt=5)
    got = Run.of(one.capture()).request("z-1-0")
    assert got.status == "failed: step 3 raised: RuntimeError: no"
    assert got.phases[-1].step == 3
    assert got.end_ns == 4_150 * US


def test_a_response_that_ends_with_an_error_is_no_end_of_its_request() -> None:
    r = raising()
    in_flight(r, "y-1", 3_900 * US)
    anchor(r, Anchor.LAST_BYTE, 6_000 * US, http=2, value=200)
    got = Run.of(r.capture()).request("y-1-0")
    assert got.status == "failed: the engine core failed: RuntimeError: no"
    assert got.end_ns == 6_000 * US


def test_an_engine_that_went_on_after_an_error_has_failed_nobody_else() -> None:
    r = raising(after=1)
    in_flight(r, "y-1", 3_900 * US)
    assert Run.of(r.capture()).request("y-1-0").status == "in flight"


def test_phases_tile_it_too_and_are_cut_at_the_anchors() -> None:
    got = report(recording())
    names = [(p.name, p.start_ns // US, p.end_ns // US) for p in got.phases]
    assert names == [
        (PhaseName.RECEIVE, 1_000, 1_100),
        (PhaseName.TOKENISE, 1_100, 1_200),
        (PhaseName.SEND, 1_200, 1_300),
        (PhaseName.ADMIT, 1_300, 1_500),
        (PhaseName.QUEUE, 1_500, 2_000),
        (PhaseName.PREFILL, 2_000, 2_950),
        (PhaseName.BETWEEN, 2_950, 3_000),
        (PhaseName.DECODE, 3_000, 3_950),
        (PhaseName.BETWEEN, 3_950, 4_000),
        (PhaseName.DECODE, 4_000, 4_950),
        (PhaseName.OUTPUT, 4_950, 5_200),
    ]
    assert [p.tokens for p in got.phases if p.step and p.name is not PhaseName.BETWEEN] == [
        10,
        1,
        1,
    ]


def test_the_worker_holds_the_path_while_it_executes() -> None:
    got = report(recording())
    worker = [s for s in got.segments if s.actor.tid == WORKER and s.span == "execute"]
    assert [s.length_ns for s in worker] == [650 * US] * 3
    assert {s.step for s in worker} == {1, 2, 3}
    assert all(s.actor.label == f"Worker/{WORKER}" for s in worker)
    handoff = [s for s in got.segments if s.category is Category.SPIN_HANDOFF]
    assert {(s.actor.tid, s.length_ns // US) for s in handoff} == {(CORE, 20), (WORKER, 30)}


def test_waits_name_who_ended_them_and_what_it_was_doing() -> None:
    got = report(recording())
    epoll = [w for w in got.waits if w.kind == "epoll"]
    assert epoll
    assert epoll[0].cause.verb == "woken by"
    assert epoll[0].cause.actor is not None
    assert epoll[0].cause.actor.label == f"EngineCore/{CORE}"
    assert epoll[0].cause.detail == "while update"


def test_a_lost_step_row_or_flipped_token_id_is_seen_in_the_ledger() -> None:
    r = recording()
    r.add("tokens", 3, request="x-1-0", place=TokenPlace.CLIENT, count=3, hash=78)
    bad = {line.name: line.count for line in report(r).ledger.lines if line.bad and line.count}
    assert bad == {"requests whose token ids differ between places": 1}
    assert not report(recording()).ledger.lines[0].bad
    r = recording()
    r.add("step_begin", 4, step=9, start_ns=9_000 * US, rowset=77, rows=1)
    bad = {line.name: line.count for line in report(r).ledger.lines if line.bad and line.count}
    assert bad["step numbers missing"] == 5
    assert bad["steps whose rows are unknown"] == 1


def test_a_step_is_partitioned_exactly() -> None:
    run = Run.of(recording().capture())
    step = run.step(2)
    assert (step.kind, step.rows, step.tokens, step.worker_ns) == ("decode", 1, 1, 650 * US)
    assert tiles(step.segments, step.start_ns, step.end_ns)
    assert [row.kind for row in run.steps()] == ["prefill", "decode", "decode"]
    assert run.steps()[0].longest == f"cpu Worker/{WORKER}"
    with pytest.raises(NotFoundError):
        run.step(99)


def test_ids_are_found_by_any_name_and_by_an_unambiguous_prefix() -> None:
    run = Run.of(recording().capture())
    for name in ("x-1-0", "x-1-0-ab", "x-1", "x-"):
        assert run.request(name).internal_id == "x-1-0-ab"
    with pytest.raises(NotFoundError):
        run.request("nope")
    r = recording()
    anchor(r, Anchor.ADMITTED, 1_600 * US, request="x-2-0-cd")
    with pytest.raises(UsageError) as told:
        Run.of(r.capture()).request("x-")
    assert told.value.message == "2 requests fit 'x-': x-1-0, x-2-0-cd"


def test_every_id_of_a_request_is_listed() -> None:
    run = Run.of(recording().capture())
    (row,) = run.requests()
    assert (row.request_id, row.internal_id, row.aliases) == ("x-1-0", "x-1-0-ab", ("x-1",))
    report = run.request("x-1")
    assert (report.request_id, report.internal_id, report.aliases) == (*row.ids[:2], ("x-1",))


def test_prompts_of_one_call_share_its_ids_and_are_told_apart_by_their_own() -> None:
    r = recording()
    for n, own in enumerate(("a", "b")):
        anchor(r, Anchor.ADMITTED, (1_600 + n) * US, request=f"cmpl-call-{n}-{own}")
        anchor(r, Anchor.LINKED, (1_550 + n) * US, request=f"cmpl-call-{n}-{own}", http=7,
               detail="cmpl-call")  # fmt: skip
    anchor(r, Anchor.RECEIVED, 1_540 * US, http=7, detail="/v1/completions call")
    run = Run.of(r.capture())
    for shared in ("cmpl-call", "call"):
        with pytest.raises(UsageError, match=r"2 requests fit .*: cmpl-call-0-a, cmpl-call-1-b"):
            run.request(shared)
    rows = {row.request_id: row for row in run.requests()}
    assert rows["cmpl-call-1-b"].aliases == ("cmpl-call", "call")
    assert run.request("cmpl-call-1").internal_id == "cmpl-call-1-b"


def test_an_open_request_ends_with_the_recording_and_says_so() -> None:
    r = Recording().process(3, API, "api")
    anchor(r, Anchor.RECEIVED, 1_000 * US, http=1)
    anchor(r, Anchor.LINKED, 1_100 * US, http=1, request="y", detail="y")
    r.wait(API, 1_200 * US, 2_000 * US)
    got = Run.of(r.capture(end_ns=3_000 * US)).request("y")
    assert got.status == "in flight"
    assert sum(s.length_ns for s in got.segments) == got.wall_ns
    assert got.ttft_ns is None
    assert got.tokens_out is None


def test_the_summary_adds_up() -> None:
    summary = Run.of(recording().capture()).summary()
    wall = 4_200 * US
    assert sum(ns for _, ns in summary.by_phase) == wall
    assert sum(ns for _, ns in summary.by_category) == wall
    assert sum(ns for _, ns in summary.actors) == wall
    assert summary.ttft_ns == (2_050 * US,)
    assert summary.tokens_out == 3


def test_thread_ids_of_a_container_become_the_hosts() -> None:
    r = recording()
    for host in (API, CORE, WORKER):  # in the container every main thread is pid 1
        r.add("task", 1, tid=host, tgid=host, ns_tid=1, ns_tgid=1)
    plain = Run.of(recording().capture()).request("x-1-0")
    inside = Recording()
    inside.frames, inside.writers = r.frames, r.writers
    capture = inside.capture()
    for name in ("span", "request", "queue_msg", "thread", "step_begin", "outputs"):
        capture.table(name)["tid"][:] = 1
    assert Run.of(capture).request("x-1-0").segments == plain.segments


def test_an_exchange_that_never_reached_the_engine_is_a_request_too() -> None:
    r = recording()
    anchor(r, Anchor.RECEIVED, 6_000 * US, http=9, detail="/v1/completions bad-1")
    anchor(r, Anchor.LAST_BYTE, 6_400 * US, http=9, value=400)
    got = Run.of(r.capture()).request("bad-1")
    assert (got.status, got.wall_ns, got.tokens_out) == ("failed: HTTP 400", 400 * US, None)
    assert tiles(got.segments, got.arrival_ns, got.end_ns)


def test_an_exchange_whose_link_was_lost_is_found_by_the_id_the_client_sent() -> None:
    r = recording()
    capture = r.capture()
    rows = capture.table("request")
    lost = rows.select(rows["anchor"] != Anchor.LINKED)
    capture = replace(capture, _tables={**capture._tables, "request": lost})
    run = Run.of(capture)
    assert len(run.requests()) == 1
    assert run.request("x-1").wall_ns == report(recording()).wall_ns


def test_rows_stated_twice_count_once() -> None:
    r = recording()
    for rowset in (1, 2):
        scheduled, computed = (10, 0) if rowset == 1 else (1, 10)
        r.add("step_rows", 4, rowset=rowset, row=0, request="x-1-0-ab", scheduled=scheduled,
              computed=computed, prompt=10, must_sample=1)  # fmt: skip
    assert report(r).phases == report(recording()).phases
    assert report(r).ledger == report(recording()).ledger


def test_two_sessions_in_one_file_are_not_blended() -> None:
    r = recording().add("session", 1, t_ns=5, event=1, tgid=API, session="another")
    with pytest.raises(RecordingError, match="2 sessions"):
        Run.of(r.capture())


def test_values_of_a_newer_or_broken_writer_do_not_end_the_report() -> None:
    r = recording()
    r.wait(API, 5_100 * US, 5_150 * US, kind=255, waker=CORE)  # type: ignore[arg-type]
    r.add("step_begin", 4, step=2**63, start_ns=9_000 * US)
    got = report(r)
    assert sum(s.length_ns for s in got.segments) == got.wall_ns
    counts = {line.name: line.count for line in got.ledger.lines}
    assert counts["step numbers missing"] == 0


def test_reading_a_recording_whose_string_ids_are_reused_takes_no_copies() -> None:
    def batches(rounds: int) -> list[Batch]:
        kind, table = BY_NAME["meta"], StringTable(limit=64)
        made = []
        for n in range(rounds):
            columns = columns_of(kind, [(n, f"key {n}", f"value {n}")], table)
            made.append(Batch(kind.id, 1, columns, n + 1, 0, table.take_fresh(), 3))
        return made

    capture = Capture.from_batches(batches(1000))
    names = [capture.strings[i] for i in capture.table("meta")["key"]]
    assert names == [f"key {n}" for n in range(1000)]


def with_chunks(chunks: list[tuple[int, int]], last: int | None) -> RequestReport:
    """The recording's request with other chunks, in us, and another end."""
    r = recording()
    capture = r.capture()
    rows = capture.table("request")
    chunky = np.isin(rows["anchor"], (Anchor.CHUNK_START, Anchor.CHUNK_END, Anchor.LAST_BYTE))
    capture = replace(capture, _tables={**capture._tables, "request": rows.select(~chunky)})
    more = Recording().process(3, API, "api").process(4, CORE, "core")
    for start, end in chunks:
        anchor(more, Anchor.CHUNK_START, start * US, http=1, value=64)
        anchor(more, Anchor.CHUNK_END, end * US, http=1, value=64)
    if last is None:
        anchor(more, Anchor.HTTP_DISCONNECT, 4_000 * US, http=1)
    else:
        anchor(more, Anchor.LAST_BYTE, last * US, http=1, value=200)
    extra = more.capture().table("request")
    kept = capture.table("request")
    rows = kept.extend({c: extra[c] for c in ("stream", *(c.name for c in extra.kind.columns))})
    capture = replace(capture, _tables={**capture._tables, "request": rows})
    return Run.of(capture).request("x-1-0-ab")


def test_a_response_in_one_piece_has_no_time_to_first_token() -> None:
    got = with_chunks([(5_000, 5_100)], 5_150)
    assert (got.first_token_ns, got.ttft_ns, got.itl_ns, got.ttft_segments) == (None, None, (), ())
    assert got.tokens_out == 3


def test_tokens_that_never_went_out_before_the_client_left_have_no_times() -> None:
    got = with_chunks([], None)
    assert (got.end_ns, got.ttft_ns, got.itl_ns) == (4_000 * US, None, ())
    assert tiles(got.segments, got.arrival_ns, got.end_ns)
