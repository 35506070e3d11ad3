# SPDX-License-Identifier: Apache-2.0
"""What every report of a real engine under load must keep to, in each way of running it."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.correlator.report.values import Category, PhaseName, Segment
from gpucorrelate.probes.wire.schema import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpucorrelate.correlator.report.values import RequestReport
    from tests.engine.traced import Traced

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

_NO_CPU = {Category.RUN_QUEUE, Category.PREEMPTED, Category.THROTTLED}
_UNKNOWN = {Category.UNOBSERVED, Category.UNEXPLAINED}


def _length_ns(segments: Iterable[Segment]) -> int:
    return sum(segment.length_ns for segment in segments)


def _assert_tiles(segments: Sequence[Segment], start_ns: int, end_ns: int) -> None:
    assert segments[0].start_ns == start_ns
    assert segments[-1].end_ns == end_ns
    for before, after in itertools.pairwise(segments):
        assert before.end_ns == after.start_ns
    assert all(segment.length_ns > 0 for segment in segments)
    assert _length_ns(segments) == end_ns - start_ns


@pytest.fixture(scope="module")
def reports(traced: Traced) -> dict[str, RequestReport]:
    """Reports of all traced requests by the client's id."""
    return traced.reports()


def test_every_request_is_reported_once(traced: Traced, reports: dict[str, RequestReport]) -> None:
    assert set(reports) == {result.request.request_id for result in traced.results}
    assert {report.status for report in reports.values()} == {"finished: length"}


def test_segments_tile_every_request_exactly(reports: dict[str, RequestReport]) -> None:
    for report in reports.values():
        _assert_tiles(report.segments, report.arrival_ns, report.end_ns)
        assert sum(phase.length_ns for phase in report.phases) == report.wall_ns
        for before, after in itertools.pairwise(report.phases):
            assert before.end_ns == after.start_ns


def test_segments_tile_the_time_to_first_token(reports: dict[str, RequestReport]) -> None:
    for report in reports.values():
        assert report.first_token_ns is not None
        _assert_tiles(report.ttft_segments, report.arrival_ns, report.first_token_ns)


def test_request_lies_within_what_the_client_saw(
    traced: Traced, reports: dict[str, RequestReport]
) -> None:
    """The hand-over of a chunk may return after the client has read it; what went before not."""
    for result in traced.results:
        report = reports[result.request.request_id]
        assert result.start_ns < report.arrival_ns
        assert report.tokens[0].processed_ns < result.chunks[0].t_ns
        assert report.tokens[-1].processed_ns < result.chunks[-1].t_ns


def test_tokens_agree_at_engine_frontend_and_client(
    traced: Traced, reports: dict[str, RequestReport]
) -> None:
    for result in traced.results:
        report = reports[result.request.request_id]
        assert report.tokens_in == result.prompt_tokens
        assert report.tokens_out == result.completion_tokens
        assert len(report.tokens) == result.completion_tokens
        checks = {check.place: (check.count, check.hash) for check in report.checks}
        seen = (result.completion_tokens, result.token_hash)
        assert checks == {"engine": seen, "frontend": seen, "client": seen}


def test_rows_that_must_sample_equal_tokens(
    traced: Traced, reports: dict[str, RequestReport]
) -> None:
    """Counted here from the recording's own rows, not by the correlator."""
    capture = traced.capture
    rows = capture.table("step_rows")
    samples: dict[tuple[int, int], list[int]] = defaultdict(list)
    for stream, rowset, request, must in zip(
        *(rows[name].tolist() for name in ("stream", "rowset", "request", "must_sample")),
        strict=True,
    ):
        if must:
            samples[stream, rowset].append(request)
    steps = capture.table("step_begin")
    counted: Counter[str] = Counter()
    for key in zip(steps["stream"].tolist(), steps["rowset"].tolist(), strict=True):
        counted.update(capture.strings[request] for request in samples[key])
    for report in reports.values():
        assert counted[report.internal_id] == report.tokens_out


def test_no_step_is_lost(traced: Traced) -> None:
    capture = traced.capture
    begun = np.sort(capture.table("step_begin")["step"])
    assert len(begun) > 0
    assert np.array_equal(begun, np.arange(begun[0], begun[0] + len(begun)))
    ended = capture.table("step_end")["step"]
    assert np.isin(begun, ended).all()
    workers = capture.table("worker_step")
    executed = workers.select(workers["phase"] == WorkerPhase.EXECUTE)
    for rank in range(traced.profile.workers):
        assert np.isin(begun, executed["step"][executed["rank"] == rank]).all()


def test_ledger_is_clean(traced: Traced) -> None:
    ledger = traced.run.summary().ledger
    assert ledger.clean, [line for line in ledger.lines if line.bad and line.count]


def test_little_is_unknown(reports: dict[str, RequestReport]) -> None:
    shares = [
        _length_ns(s for s in report.segments if s.category in _UNKNOWN) / report.wall_ns
        for report in reports.values()
    ]
    assert statistics.median(shares) <= 0.01
    assert statistics.quantiles(shares, n=20)[-1] <= 0.05


def test_cpu_time_has_a_name(reports: dict[str, RequestReport]) -> None:
    cpu = [
        segment
        for report in reports.values()
        for segment in report.segments
        if segment.category is Category.CPU
    ]
    assert _length_ns(segment for segment in cpu if not segment.span) <= 0.10 * _length_ns(cpu)


def _windows(traced: Traced) -> dict[int, tuple[int, int]]:
    """Step -> first start and last end of its workers' execute calls, from the recording.

    Tensor-parallel workers run at the same time and only one of them holds the path.
    """
    workers = traced.capture.table("worker_step")
    found: dict[int, tuple[int, int]] = {}
    for step, phase, start, end in zip(
        *(workers[name].tolist() for name in ("step", "phase", "start_ns", "end_ns")),
        strict=True,
    ):
        if phase == WorkerPhase.EXECUTE:
            first, last = found.get(step, (start, end))
            found[step] = (min(first, start), max(last, end))
    return found


def _overlap_ns(segments: Sequence[Segment], windows: Iterable[tuple[int, int]]) -> int:
    """What segments (ordered, disjoint) and windows have in common, summed over windows."""
    starts = [segment.start_ns for segment in segments]
    total = 0
    for start, end in windows:
        at = max(0, bisect.bisect_right(starts, start) - 1)
        for segment in itertools.islice(segments, at, None):
            if segment.start_ns >= end:
                break
            total += max(0, min(segment.end_ns, end) - max(segment.start_ns, start))
    return total


def _held_ns(
    report: RequestReport, windows: Sequence[tuple[int, int]], mine: Callable[[Segment], bool]
) -> tuple[int, int]:
    """How much of the windows has the path at segments that are mine, and how much at another
    thread that was ready and had no CPU.
    """
    own = [s for s in report.segments if mine(s)]
    no_cpu = [s for s in report.segments if s.category in _NO_CPU and not mine(s)]
    return _overlap_ns(own, windows), _overlap_ns(no_cpu, windows)


def _execution_on_path(traced: Traced, reports: Iterable[RequestReport]) -> tuple[float, float]:
    """Shares of the requests' execute windows: with the path in a worker, and with the path at
    a thread outside the workers that was ready and had no CPU.
    """
    windows = _windows(traced)
    whole = in_worker = no_cpu = 0
    for report in reports:
        mine = [windows[step] for step in report.steps]
        whole += sum(end - start for start, end in mine)
        held, ready = _held_ns(report, mine, _in_worker)
        in_worker += held
        no_cpu += ready
    return in_worker / whole, no_cpu / whole


def _in_worker(segment: Segment) -> bool:
    return segment.actor.role.startswith("worker")


def test_execution_lies_on_the_path_with_cpus_to_spare(traced: Traced) -> None:
    in_worker, no_cpu = _execution_on_path(traced, traced.reports("calm").values())
    assert in_worker >= 0.95 * (1 - no_cpu)


def test_execution_lies_on_the_path_under_load(traced: Traced) -> None:
    """Where steps overlap, an engine core that gets no CPU is rightly on the path instead."""
    in_worker, no_cpu = _execution_on_path(traced, traced.reports("load").values())
    assert in_worker >= 0.85 * (1 - no_cpu)


@pytest.mark.synchronous
def test_cores_spans_are_on_the_path_in_the_core(traced: Traced) -> None:
    """What the engine core says it did between a request's steps is what its path shows.

    With one request at a time and no overlap of steps nothing else can hold the path while
    the engine core schedules.
    """
    capture = traced.capture
    spans = capture.table("span")
    wanted = {i for i, text in enumerate(capture.strings) if text in ("schedule", "update")}
    times = [
        (start, end)
        for name, start, end in zip(
            *(spans[c].tolist() for c in ("name", "start_ns", "end_ns")), strict=True
        )
        if name in wanted
    ]
    said = on_path = no_cpu = 0
    for report in traced.reports("calm").values():
        mine = [(a, b) for a, b in times if report.arrival_ns <= a and b <= report.end_ns]
        held, ready = _held_ns(report, mine, lambda s: s.actor.role == "core.main")
        said += sum(end - start for start, end in mine)
        on_path += held
        no_cpu += ready
    assert no_cpu <= 0.4 * said
    assert on_path >= 0.9 * (said - no_cpu)


def test_api_servers_own_times_are_on_the_path(traced: Traced) -> None:
    """From the arrival to the hand-over to the engine the path stays in the API server.

    But where the engine core is still at its last request's end and gets no CPU for it until
    the hand-over is done, it is rightly on the path instead: it was ready last.
    """
    before = {PhaseName.RECEIVE, PhaseName.TOKENISE, PhaseName.SEND}
    said = on_path = no_cpu = 0
    for report in traced.reports("calm").values():
        mine = [(p.start_ns, p.end_ns) for p in report.phases if p.name in before]
        held, ready = _held_ns(report, mine, lambda s: s.actor.pid == traced.pid)
        said += sum(end - start for start, end in mine)
        on_path += held
        no_cpu += ready
    assert no_cpu <= 0.4 * said
    assert on_path >= 0.9 * (said - no_cpu)


def test_hops_between_processes_are_named(reports: dict[str, RequestReport]) -> None:
    hops: Counter[tuple[str, str]] = Counter()
    for report in reports.values():
        for wait in report.waits:
            if wait.cause.actor is not None:
                waiter, waker = wait.waiter.process, wait.cause.actor.process
                hops[waiter.rstrip("0123456789"), waker.rstrip("0123456789")] += 1
    assert hops["APIServer", "EngineCore"] > 0, hops
    assert hops["EngineCore", "Worker"] > 0, hops


def test_waits_name_a_waker_and_lie_within_the_request(
    reports: dict[str, RequestReport],
) -> None:
    for report in reports.values():
        assert report.waits
        for wait in report.waits:
            assert report.arrival_ns <= wait.start_ns < wait.end_ns <= report.end_ns


def test_preemptions_are_seen(traced: Traced, reports: dict[str, RequestReport]) -> None:
    preemptions = sum(report.preemptions or 0 for report in reports.values())
    if traced.profile.preempts:
        assert preemptions > 0
    else:
        assert preemptions == 0


def test_steps_tile_exactly(traced: Traced) -> None:
    rows = traced.run.steps()
    assert rows
    for row in rows[:: max(1, len(rows) // 40)]:
        report = traced.run.step(row.step)
        _assert_tiles(report.segments, report.start_ns, report.end_ns)
