# SPDX-License-Identifier: Apache-2.0
"""Simulated engines as Perfetto traces, read back with Perfetto's own classes: nothing is lost."""

from __future__ import annotations

import io
import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.paths import PathFinder
from gpucorrelate.correlator.report.perfetto import render, states
from gpucorrelate.correlator.report.perfetto.scene import Window
from gpucorrelate.correlator.report.perfetto.writer import Flows, Slices, TraceWriter
from gpucorrelate.correlator.states import clean_waits
from gpucorrelate.probes.wire.schema import Anchor, GpuOpKind, QueueOp, WaitFlag, WaitKind
from tests.truth.synthetic.check import correlate, simulate
from tests.truth.synthetic.loss import Lose, Sieve
from tests.truth.synthetic.machine import MS
from tests.truth.synthetic.options import ALL, DeviceOptions, Options
from tests.unit.perfetto_trace import Slice, Trace
from tests.unit.synth import API, CORE, Recording

#: Much of everything: two ranks with graphs and kernels, steps that overlap, disturbances.
OPTIONS = Options(
    requests=24, answer=(1, 12), ranks=2, depth=2, copier=True, flush_ns=MS, rates=ALL.scaled(4),
    device=DeviceOptions(graph=12, kernels=3, blocks=True),
)  # fmt: skip

#: Phases in which a request waits for others' steps: a report says for which.
OTHERS = ("admit", "queue", "between")


def drawn(run: Run, choice: render.Choice | None = None) -> Trace:
    out = io.BytesIO()
    counts = render.write(run, choice or render.Choice(), out)
    trace = Trace(out.getvalue())
    assert trace.counts == Counter(counts)
    return trace


@pytest.fixture(scope="module")
def run() -> Run:
    return correlate(simulate(OPTIONS)[1])


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    return drawn(run)


# --- nothing is lost ------------------------------------------------------------------------


def test_what_was_recorded_is_drawn_and_no_more(run: Run, trace: Trace) -> None:
    table, counts = run.capture.table, trace.counts
    assert counts["wait"] == len(clean_waits(table("wait"))) > 300
    assert counts["fault"] == len(table("fault")) > 0
    assert counts["span"] == len(table("span")) > 0
    assert counts["api"] == len(table("cuda_api")) > 0
    assert counts["queue"] == len(table("queue_msg")) > 0
    assert counts["worker step"] == len(table("worker_step")) > 0
    assert counts["outputs"] == len(table("outputs")) > 0
    assert counts["synchronisation"] == len(table("gpu_sync"))
    assert counts["step"] == len(table("step_begin")) > 0
    assert counts["request"] == OPTIONS.requests
    assert counts["token"] == sum(r.tokens_out or 0 for r in run.requests_) > 0
    ops = Counter(table("gpu_op")["op"].tolist())
    for kind, category in (
        (GpuOpKind.KERNEL, "kernel"), (GpuOpKind.MEMCPY, "copy"), (GpuOpKind.MEMSET, "fill"),
    ):  # fmt: skip
        assert counts[category] == ops[kind]
    assert counts["kernel"] > 0


def test_moments_are_those_that_were_recorded(run: Run, trace: Trace) -> None:
    kernels = run.capture.table("gpu_op")
    kernels = kernels.select(kernels["op"] == GpuOpKind.KERNEL)
    recorded = sorted(zip(kernels["start_ns"].tolist(), kernels["end_ns"].tolist(), strict=True))
    assert sorted((one.start, one.end) for one in trace.of("kernel")) == recorded
    waits = clean_waits(run.capture.table("wait"))
    starts = sorted(zip(waits["start_ns"].tolist(), waits["tid"].tolist(), strict=True))
    assert sorted((one.start, owner(trace, one)) for one in trace.of("wait")) == starts
    assert trace.clocks == [(3, run.states.start_ns)]


def owner(trace: Trace, one: Slice) -> int:
    """The thread that a slice's track is of."""
    track = one.track
    while not track.tid:
        track = trace.tracks[track.parent]
    return track.tid


def test_states_tile_what_is_known_of_each_thread(run: Run, trace: Trace) -> None:
    lengths: dict[int, int] = defaultdict(int)
    ends: dict[int, int] = {}
    for one in trace.slices:
        if one.category in ("wait", "ready", "running"):
            tid = owner(trace, one)
            assert ends.get(tid, one.start) <= one.start
            ends[tid] = one.end
            lengths[tid] += one.length
            assert one.depth == 0
    threads = run.states.threads
    known = dict(
        zip(threads.tid.tolist(), (threads.last_ns - threads.first_ns).tolist(), strict=True)
    )
    first = dict(zip(threads.tid.tolist(), threads.first_ns.tolist(), strict=True))
    waits = run.states.waits
    for tid, length in lengths.items():
        at = threads.one(tid)
        if waits.off[at] < waits.off[at + 1]:
            known[tid] += first[tid] - min(first[tid], int(waits.start_ns[waits.off[at]]))
        assert length == known[tid], tid


def test_the_path_of_a_request_is_that_of_its_report(run: Run, trace: Trace) -> None:
    reports = {report.request_id: report for report in run.all_requests()}
    inside: dict[str, list[Slice]] = defaultdict(list)
    phases: dict[str, Counter[str]] = defaultdict(Counter)
    for one in trace.of("critical path"):
        top = one
        while top.inside is not None:
            top = top.inside
        if top.category == "request":
            inside[top.name].append(one)
            assert one.inside is not None
            phases[top.name][one.inside.name] += one.length
    assert set(inside) == set(reports)
    for name, path in inside.items():
        report = reports[name]
        assert path[0].start == report.arrival_ns
        assert path[-1].end == report.end_ns
        assert all(a.end == b.start for a, b in itertools.pairwise(path))
        sums: Counter[tuple[str, str, str, int]] = Counter()
        for one in path:
            cause, step = one.args.get("cause", ""), one.args.get("step", 0)
            step = 0 if one.inside is None or one.inside.name in OTHERS else step
            sums[one.name.partition(":")[0], one.args["held by"], cause, step] += one.length
        expected: Counter[tuple[str, str, str, int]] = Counter()
        by_phase: Counter[str] = Counter()
        for segment in report.segments:
            cause = segment.cause.text if segment.cause else ""
            step = 0 if segment.phase in OTHERS else segment.step or 0
            expected[str(segment.category), segment.actor.shown, cause, step] += segment.length_ns
            by_phase[str(segment.phase)] += segment.length_ns
        assert sums == expected
        assert phases[name] == by_phase


def test_steps_that_overlap_are_in_rows_of_their_own_with_their_paths(
    run: Run, trace: Trace
) -> None:
    steps = trace.of("step")
    assert any(a.end > b.start for a, b in itertools.pairwise(steps))
    assert {one.depth for one in steps} == {0}
    assert len({one.track for one in steps}) > 1
    one = steps[3]
    report = run.step(one.args["step"])
    path = [s for s in trace.of("critical path") if s.inside is one]
    assert sum(s.length for s in path) == report.wall_ns == one.length
    assert path[0].start == report.segments[0].start_ns


def test_names_are_those_that_a_reader_looks_for(trace: Trace) -> None:
    places = {trace.place(one.track) for one in trace.slices}
    named = {place.partition(" ")[0] for place in places}
    assert {"APIServer", "EngineCore", "Worker0", "Worker1"} <= named
    assert any(" / GPU 0 / stream " in place for place in places)
    assert any(place.endswith("/ state") for place in places)
    assert {"futex", "preempted", "running", "ready, no CPU"} <= {s.name for s in trace.slices}
    counters = {track.name for track in trace.tracks.values() if track.counter}
    assert {"requests in the step", "requests waiting", "tokens in the step"} <= counters


# --- arrows ---------------------------------------------------------------------------------


def test_arrows_lead_from_the_waker_to_whom_it_woke(run: Run, trace: Trace) -> None:
    table = run.capture.table("wait")
    woken = {
        (tid, wake): waker
        for tid, wake, waker in zip(
            *(table[c].tolist() for c in ("tid", "wake_ns", "waker_tid")), strict=True
        )
    }
    arrows = [(a, b) for a, b in trace.arrows if a.category == "wake"]
    assert len(arrows) == trace.counts["wake"] > 100
    for source, target in arrows:
        assert target.category in ("ready", "running")
        assert source.start <= target.start
        assert woken[owner(trace, target), source.start] == owner(trace, source)


def test_arrows_lead_from_a_launch_to_each_of_its_operations(run: Run, trace: Trace) -> None:
    arrows = [(a, b) for a, b in trace.arrows if a.category == "api"]
    ops = run.states.device.ops
    assert len(arrows) == int((ops.call >= 0).sum()) > 0
    for source, target in arrows:
        assert source.args["correlation"] == target.args["correlation"]
        assert source.start <= target.start
    most = Counter(id(source) for source, _ in arrows)
    assert max(most.values()) >= 12  # a graph's nodes


def test_arrows_lead_from_each_message_to_its_reads(run: Run, trace: Trace) -> None:
    arrows = [(a, b) for a, b in trace.arrows if a.category == "queue"]
    assert len(arrows) == int((run.capture.table("queue_msg")["op"] == QueueOp.READ).sum()) > 0
    assert all(a.name == "queue write" and b.category == "unpack" for a, b in arrows)


# --- what is not known ----------------------------------------------------------------------


def test_where_records_were_lost_nobody_is_said_to_run() -> None:
    run = correlate(simulate(OPTIONS, Sieve(Lose("wait", 0.05)))[1])
    trace = drawn(run)
    unseen = trace.of(states.UNSEEN)
    assert unseen
    assert trace.of("loss")
    assert any("LOST OR WRONG" in one.name for one in trace.of("about"))
    lost, threads = run.states.lost, run.states.threads
    for one in trace.of("running"):
        process = np.searchsorted(
            run.states.processes, threads.tgid[threads.one(owner(trace, one))]
        )
        low, high = lost.off[process], lost.off[process + 1]
        overlap = (lost.start_ns[low:high] < one.end) & (lost.end_ns[low:high] > one.start)
        assert not overlap.any()


def test_operations_without_valid_times_are_counted_in_words(run: Run) -> None:
    table = run.capture.table("gpu_op")
    start = table["start_ns"].copy()
    start[:5] = 0
    changed = {**run.capture._tables, "gpu_op": table.replace("start_ns", start)}
    capture = replace(run.capture, _tables=changed)
    trace = drawn(Run.of(capture))
    (about,) = trace.of("about")
    told = about.args["LOST/WRONG: not drawn, times are not valid"]
    assert told.startswith("5 operations")
    drawn_ops = sum(trace.counts[one] for one in ("kernel", "copy", "fill"))
    assert drawn_ops == len(table) - 5


def test_an_empty_recording_is_a_trace_too() -> None:
    trace = drawn(Run.of(Recording().capture()))
    assert set(trace.counts) == {"about"}


def test_hostile_names_numbers_and_times_are_drawn_all_the_same() -> None:
    r = Recording().process(3, API, "api")
    r.add("span", 3, tid=API, name="a" * 9_000, start_ns=-5, end_ns=7)
    r.add("span", 3, tid=API, name="\ud800;\n", start_ns=50, end_ns=10)
    r.add("span", 3, tid=(1 << 32) - 1, name="x", start_ns=1, end_ns=(1 << 63) - 1)
    r.wait(API, 10, 20, kind=WaitKind.FUTEX, arg=(1 << 64) - 1, flags=WaitFlag.OPEN)
    r.add("request", 3, request="r", anchor=Anchor.TOKENISED, t_ns=5, tid=API, detail="")
    trace = drawn(Run.of(r.capture()))
    assert trace.counts["span"] == 3
    assert all(len(one.name) <= 4096 for one in trace.slices)
    assert {one.length for one in trace.of("span")} == {7, 0, (1 << 63) - 2}


# --- a part of it ---------------------------------------------------------------------------


def test_the_time_around_a_request_is_drawn_whole(run: Run, trace: Trace) -> None:
    at = 3
    request = run.requests_[at]
    ((start, end),) = render.around([(request.arrival_ns, request.end_ns)])
    margin = request.arrival_ns - start
    assert margin == end - request.end_ns >= 1_000_000
    part = drawn(run, render.Choice(((start, end),), (at,)))
    for category in ("kernel", "fault", "span", "step", "request", "running"):
        inside = [s for s in trace.of(category) if s.end >= start and s.start <= end]
        assert sorted((s.name, s.start, s.end) for s in part.of(category)) == sorted(
            (s.name, s.start, s.end) for s in inside
        )
    # A wait without a CPU behind it is drawn in two parts, both or none of them.
    waits = clean_waits(run.capture.table("wait"))
    overlap = (waits["end_ns"] >= start) & (waits["start_ns"] <= end)
    assert part.counts["wait"] == int(overlap.sum()) < len(waits)
    tops = set()
    for one in part.of("critical path"):
        top = one
        while top.inside is not None:
            top = top.inside
        if top.category == "request":
            tops.add(top.name)
    assert tops == {request.external_id}


def test_windows_hold_what_overlaps_any_of_them() -> None:
    window = Window(((10, 20), (15, 30), (50, 60)))
    start = np.array([0, 0, 30, 31, 40, 60, 61])
    end = np.array([9, 10, 31, 49, 70, 99, 99])
    assert window.holds(start, end).tolist() == [False, True, True, False, True, True, False]
    assert Window().holds(start, end).all()


def test_paths_come_the_same_in_small_and_large_portions(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sums() -> list[tuple[int, int, int]]:
        return [
            (some[owner], int(length[mine].sum()), int(mine.sum()))
            for some, path in PathFinder(run).requests(run.requests_)
            for length in (path.end_ns - path.start_ns,)
            for owner in np.unique(path.owner).tolist()
            for mine in (path.owner == owner,)
        ]

    whole = sums()
    monkeypatch.setattr("gpucorrelate.correlator.report.paths._ROWS", 1)
    monkeypatch.setattr("gpucorrelate.correlator.report.paths._FIRST", 1)
    assert sums() == whole


# --- the writer -----------------------------------------------------------------------------


def test_events_that_do_not_fit_into_a_portion_are_whole_all_the_same() -> None:
    out = io.BytesIO()
    writer = TraceWriter(out, 0)
    count = 110_000  # arrows from one call, more than 1 MB of them
    first = writer.flows(count)
    track, below = writer.track("calls"), writer.track("device")
    one, many = np.zeros(1, np.int64), np.zeros(count, np.int64)
    call = Slices(
        one + 1, one + 5, one + writer.names("launch"), writer.categories("api"), (),
        Flows(one + first, one + count),
    )  # fmt: skip
    writer.slices(track, call, nested=True, spare=("calls", 0))
    start = 2 + np.arange(count)
    ops = Slices(
        start, start + 1, many + writer.names("k"), writer.categories("kernel"), (),
        Flows(into=first + np.arange(count)),
    )  # fmt: skip
    writer.slices(below, ops, nested=False, spare=("device", 0))
    trace = Trace(out.getvalue())
    assert len(trace.arrows) == count
    assert {target.track.uuid for _, target in trace.arrows} == {below}


def test_a_total_is_drawn_as_what_it_grew_by() -> None:
    r = Recording().process(3, API, "api").process(4, CORE, "core")
    r.add("metric", 1, name="throttled", unit="ns", nature=1, meaning="")
    for t, since, value in ((100, 0, 7), (300, 200, 57), (500, 300, 257)):
        r.add("counter", 1, t_ns=t, since_ns=since, metric="throttled", subject=f"pid:{API}",
              value=value)  # fmt: skip
    trace = drawn(Run.of(r.capture(1_000)))
    (track,) = (one for one in trace.tracks.values() if one.name == "throttled")
    # 50 of 100 ns, then 200 of 200, then no more that anybody knows.
    assert trace.readings[track.uuid] == [(200, 50.0), (300, 100.0), (500, 0.0)]
    assert track.unit == "%"
    assert trace.place(track) == f"APIServer {API} / counters / throttled"
