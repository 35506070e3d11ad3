# SPDX-License-Identifier: Apache-2.0
"""Faults put into a real engine under load; the reports must name who did them and for how long.

Truth is what the test plugin wrote down inside the engine, with its own clock readings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.report.values import Category
from tests.engine.client import load, mixed_requests
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import SYNC, EngineServer, running_server
from tests.engine.traced import Traced, Truth, capture_of, read_truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gpucorrelate.correlator.report.values import RequestReport, Segment

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

#: "Within 5% or 1 ms".
_TOLERANCE = 0.05
_TOLERANCE_NS = 1_000_000
#: Faults whose length the tolerance can tell from nothing.
_MIN_NS = 5_000_000
_LOADS = 4
_FIRSTS, _IDLE_S = 4, 1.5
_NO_CPU = {Category.RUN_QUEUE, Category.PREEMPTED, Category.THROTTLED}
_RUNNING = {Category.CPU, Category.PAGE_FAULT, Category.DISK}


class Lab:
    """An engine with the test plugin's faults, and a daemon."""

    def __init__(self, folder: Path, daemon: DaemonProcess, server: EngineServer) -> None:
        self.folder = folder
        self.daemon = daemon
        self.server = server

    def first_request(self, kind: str, tag: str, *, idle_s: float) -> Traced:
        """Trace one request, the first there is, with a fault in its first step.

        The engine had another one before: its worker waits for a message when tracing begins.
        It polls for a second, and then blocks.
        """
        load(self.server.url, mixed_requests(1, tag=f"{tag}-before"), concurrency=1)
        time.sleep(idle_s)
        session = self.daemon.attach(self.server.pid, agents=3)
        flag = self.folder / "flags" / kind
        flag.touch()
        results = load(self.server.url, mixed_requests(1, tag=tag), concurrency=1)
        flag.unlink()
        time.sleep(0.2)
        self.daemon.client.detach(session=session.session)
        assert results[0].ok
        capture = capture_of(self.daemon.client, session.session, results)
        truth = [row for row in read_truth(self.folder) if results[0].start_ns < row.start_ns]
        return Traced.of(SYNC, self.server.pid, results, capture, truth)

    def traced_load(self, kind: str) -> Traced:
        """Trace a load with one fault switched on in it."""
        session = self.daemon.attach(self.server.pid, agents=3)
        flag = self.folder / "flags" / kind
        flag.touch()
        results = []
        for n in range(_LOADS):
            requests = mixed_requests(30, tag=f"{kind}{n}", seed=n)
            results += load(self.server.url, requests, concurrency=10)
        flag.unlink()
        time.sleep(1)
        self.daemon.client.detach(session=session.session)
        assert not [result for result in results if not result.ok]
        capture = capture_of(self.daemon.client, session.session, results)
        truth = [
            row
            for row in read_truth(self.folder)
            if results[0].start_ns < row.start_ns and row.end_ns < results[-1].end_ns
        ]
        return Traced.of(SYNC, self.server.pid, results, capture, truth)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One engine for all faults.

    Steps follow each other in it. With asynchronous scheduling a worker may still be busy with
    the step before, and only what of a fault outlasts that is on anybody's path.
    """
    folder = tmp_path_factory.mktemp("lab")
    (folder / "flags").mkdir()
    env = {**ingest_env(folder), "GPUCORRELATE_LAB_DIR": str(folder)}
    with (
        running_daemon(folder) as daemon,
        running_server(SYNC, folder, env=env) as server,
    ):
        load(server.url, mixed_requests(20, tag="warm"), concurrency=10)
        yield Lab(folder, daemon, server)


def _agrees(measured_ns: int, least_ns: int, most_ns: int) -> bool:
    """Whether a length is what the truth allows, within the tolerance.

    ``most_ns`` is the fault's length; ``least_ns`` is less by the time in which the thread was
    not blocked but ready, or another thread rightly held the path.
    """
    slack_ns = max(_TOLERANCE * most_ns, _TOLERANCE_NS)
    return least_ns - slack_ns <= measured_ns <= most_ns + slack_ns


def _blames(segment: Segment, tid: int) -> bool:
    """Whether a stretch is a thread's own, or caused by it."""
    cause = segment.cause.actor if segment.cause is not None else None
    return tid in (segment.actor.tid, cause.tid if cause is not None else 0)


def _blamed_ns(segments: Iterable[Segment], tid: int, start_ns: int, end_ns: int) -> int:
    """How much of an interval the segments blame on a thread."""
    return sum(
        max(0, min(segment.end_ns, end_ns) - max(segment.start_ns, start_ns))
        for segment in segments
        if _blames(segment, tid)
    )


def _in_steps(report: RequestReport, start_ns: int, end_ns: int) -> bool:
    """Whether an interval lies between the request's first step and its last output."""
    steps = [phase for phase in report.phases if phase.step is not None]
    return bool(steps) and steps[0].start_ns <= start_ns and end_ns <= steps[-1].end_ns


@dataclass(frozen=True)
class LockWait:
    """The scheduling thread before the held lock.

    Attributes:
        holder: The thread that held it.
        start_ns: Both had begun: the one to hold, the other to want it.
        end_ns: The holder was about to let go.
        whole_ns: From wanting the lock to having it, as the scheduling thread measured it.
        ready_ns: Of that, running or without a CPU.
    """

    holder: int
    start_ns: int
    end_ns: int
    whole_ns: int
    ready_ns: int

    def agrees(self, measured_ns: int) -> bool:
        """Whether a report's length of this wait is right."""
        return _agrees(measured_ns, self.end_ns - self.start_ns - self.ready_ns, self.whole_ns)


def _lock_waits(truth: Sequence[Truth]) -> list[LockWait]:
    waits = []
    for wait in (row for row in truth if row.kind == "core.schedule.lock-wait"):
        for hold in (row for row in truth if row.kind == "core.schedule.lock"):
            start, end = max(wait.start_ns, hold.start_ns), min(wait.end_ns, hold.end_ns)
            if end - start >= _MIN_NS:
                whole_ns = wait.end_ns - wait.start_ns
                waits.append(LockWait(hold.tid, start, end, whole_ns, wait.ready_ns))
    return waits


def test_lock_in_the_engine_core(lab: Lab) -> None:
    traced = lab.traced_load("core.schedule.lock")
    waits = _lock_waits(traced.truth)
    assert waits, "the load met no held lock"
    judged = right = 0
    for wait in waits:
        for report in traced.reports().values():
            if _in_steps(report, wait.start_ns, wait.end_ns):
                judged += 1
                right += wait.agrees(
                    _blamed_ns(report.segments, wait.holder, wait.start_ns, wait.end_ns)
                )
    assert judged
    assert right >= 0.95 * judged, f"{right} of {judged} reports blame the holder as long"
    # And it stands among the waits that a report lists, by the name of who held it; between two
    # loads nobody waits for the scheduling thread.
    reports = traced.reports().values()
    for wait in waits:
        if not any(_in_steps(report, wait.start_ns, wait.end_ns) for report in reports):
            continue
        assert any(
            listed.cause.actor is not None
            and listed.cause.actor.tid == wait.holder
            and listed.waiter.role == "core.main"
            and wait.agrees(listed.length_ns)
            for report in traced.reports().values()
            for listed in report.waits
            if listed.start_ns < wait.end_ns and wait.start_ns < listed.end_ns
        ), f"no report lists the wait of {(wait.end_ns - wait.start_ns) / 1e6:.1f} ms"


def _hogs_doing(segment: Segment, hog: Truth) -> bool:
    """Whether a stretch in the hog's process can be the hog's doing at all.

    It is not where another thread of the process ran (then that one had the interpreter), nor
    where the CPU was taken by someone else.
    """
    if segment.actor.tid == hog.tid:
        return True
    if segment.category in _NO_CPU:
        return _blames(segment, hog.tid)
    return segment.category not in _RUNNING


def test_interpreter_hog_in_the_api_server(lab: Lab) -> None:
    """80% of what waits in the API server while the hog runs is charged to the hog."""
    traced = lab.traced_load("api.gil")
    hogs = [row for row in traced.truth if row.kind == "api.gil"]
    assert hogs, "the hog never ran"
    shared = blamed = 0
    legs = right = 0
    for report in traced.reports().values():
        for hog in hogs:
            mine = [
                segment
                for segment in report.segments
                if segment.actor.pid == hog.pid
                and hog.overlap_ns(segment.start_ns, segment.end_ns)
                and _hogs_doing(segment, hog)
            ]
            shared += sum(hog.overlap_ns(s.start_ns, s.end_ns) for s in mine)
            blamed += _blamed_ns(mine, hog.tid, hog.start_ns, hog.end_ns)
        for hog, worst in _hogged_legs(report, hogs):
            legs += 1
            right += _blames(worst, hog.tid)
    assert shared
    assert blamed >= 0.80 * shared, f"{blamed / shared:.0%} blamed on the hog"
    assert legs
    assert right >= 0.80 * legs, f"{right} of {legs} tokens' legs blame the hog"


def _hogged_legs(report: RequestReport, hogs: Sequence[Truth]) -> Iterator[tuple[Truth, Segment]]:
    """Tokens whose way out was mostly spent beside a hog, with their longest stretch."""
    for leg in report.tokens:
        end_ns = leg.written_ns or leg.processed_ns
        beside = [hog for hog in hogs if hog.overlap_ns(leg.made_ns, end_ns) >= _MIN_NS]
        if len(beside) != 1 or leg.worst is None:
            continue
        mostly = beside[0].overlap_ns(leg.made_ns, end_ns) > 0.5 * (end_ns - leg.made_ns)
        in_process = leg.worst.actor.pid == beside[0].pid
        if mostly and in_process and _hogs_doing(leg.worst, beside[0]):
            yield beside[0], leg.worst


def test_sleep_before_scheduling(lab: Lab) -> None:
    """A sleep is on the path as far as the worker was not still busy with the step before."""
    traced = lab.traced_load("core.schedule.sleep")
    sleeps = [row for row in traced.truth if row.kind == "core.schedule.sleep"]
    assert sleeps, "it never slept"
    calls = traced.capture.table("worker_step")
    worker = list(zip(calls["start_ns"].tolist(), calls["end_ns"].tolist(), strict=True))
    judged = right = 0
    for sleep in sleeps:
        length_ns = sleep.end_ns - sleep.start_ns
        busy_ns = (
            max(
                (
                    end
                    for _, end in worker
                    if sleep.overlap_ns(sleep.start_ns, end) and end < sleep.end_ns
                ),
                default=sleep.start_ns,
            )
            - sleep.start_ns
        )
        for report in traced.reports().values():
            if _in_steps(report, sleep.start_ns, sleep.end_ns):
                judged += 1
                on_path_ns = sum(
                    sleep.overlap_ns(segment.start_ns, segment.end_ns)
                    for segment in report.segments
                    if segment.actor.tid == sleep.tid and segment.category == Category.SLEEP
                )
                right += _agrees(on_path_ns, length_ns - busy_ns - sleep.ready_ns, length_ns)
    assert judged
    assert right >= 0.95 * judged, f"{right} of {judged} reports show the sleep as long"


def test_the_first_step_is_not_charged_to_a_worker_that_waits_for_it(lab: Lab) -> None:
    """What a worker waits for when tracing begins is found as any other message."""
    kind = "core.schedule.sleep"
    slept_ns = blamed_ns = 0
    for n in range(_FIRSTS):
        traced = lab.first_request(kind, f"first{n}", idle_s=_IDLE_S * (n % 2))
        (report,) = traced.reports().values()
        first = next(row for row in traced.truth if row.kind == kind)
        (worker,) = {int(tid) for tid in traced.capture.table("worker_step")["tid"]}
        assert traced.capture.table("worker_step")["start_ns"].min() > first.start_ns
        slept_ns += first.end_ns - first.start_ns - first.ready_ns
        blamed_ns += _blamed_ns(report.segments, first.tid, first.start_ns, first.end_ns)
        charged_ns = _blamed_ns(report.segments, worker, first.start_ns, first.end_ns)
        assert charged_ns < 0.05 * (first.end_ns - first.start_ns)
    assert blamed_ns >= 0.95 * slept_ns, f"{blamed_ns / slept_ns:.0%} blamed on who slept"
