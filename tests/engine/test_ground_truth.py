# SPDX-License-Identifier: Apache-2.0
"""Faults put into a real engine under load; the reports must name who did them and for how long.

Truth is what the test plugin wrote down inside the engine, with its own clock readings.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.engine.client import load, mixed_requests
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import ASYNC, EngineServer, running_server
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


class Lab:
    """An engine with the test plugin's faults, and a daemon."""

    def __init__(self, folder: Path, daemon: DaemonProcess, server: EngineServer) -> None:
        self.folder = folder
        self.daemon = daemon
        self.server = server

    def traced_load(self, kind: str) -> Traced:
        """Trace a load with one fault switched on in it."""
        session = self.daemon.attach(self.server.pid, agents=3)
        flag = self.folder / "flags" / kind
        flag.touch()
        results = []
        for n in range(_LOADS):
            requests = mixed_requests(40, tag=f"{kind}{n}", seed=n)
            results += load(self.server.url, requests, concurrency=40)
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
        return Traced.of(ASYNC, self.server.pid, results, capture, truth)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One engine for all faults."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "flags").mkdir()
    env = {**ingest_env(folder), "GPUCORRELATE_LAB_DIR": str(folder)}
    with (
        running_daemon(folder) as daemon,
        running_server(ASYNC, folder, env=env) as server,
    ):
        load(server.url, mixed_requests(20, tag="warm"), concurrency=10)
        yield Lab(folder, daemon, server)


def _close(measured_ns: int, true_ns: int) -> bool:
    return abs(measured_ns - true_ns) <= max(_TOLERANCE * true_ns, _TOLERANCE_NS)


def _blames(segment: Segment, tid: int) -> bool:
    caused = segment.cause is not None and segment.cause.actor is not None
    return segment.actor.tid == tid or (
        caused and segment.cause is not None and segment.cause.actor is not None
        and segment.cause.actor.tid == tid
    )  # fmt: skip


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


def _lock_waits(truth: Sequence[Truth]) -> list[tuple[int, int, int]]:
    """(holder, start, end) of the times the scheduling thread stood before the held lock."""
    waits = []
    for wait in (row for row in truth if row.kind == "lock-wait"):
        for hold in (row for row in truth if row.kind == "lock"):
            start, end = max(wait.start_ns, hold.start_ns), min(wait.end_ns, hold.end_ns)
            if end - start >= _MIN_NS:
                waits.append((hold.tid, start, end))
    return waits


def test_lock_in_the_engine_core(lab: Lab) -> None:
    traced = lab.traced_load("lock")
    waits = _lock_waits(traced.truth)
    assert waits, "the load met no held lock"
    reports = list(traced.reports().values())
    judged = right = 0
    for holder, start, end in waits:
        for report in reports:
            if _in_steps(report, start, end):
                judged += 1
                right += _close(_blamed_ns(report.segments, holder, start, end), end - start)
    assert judged
    assert right >= 0.95 * judged, f"{right} of {judged} reports blame the holder as long"


def test_lock_is_named_among_the_longest_waits(lab: Lab) -> None:
    traced = lab.traced_load("lock")
    found = 0
    waits = _lock_waits(traced.truth)
    for holder, start, end in waits:
        found += any(
            wait.cause.actor is not None
            and wait.cause.actor.tid == holder
            and wait.waiter.role == "core.main"
            and _close(wait.length_ns, end - start)
            for report in traced.reports().values()
            for wait in report.waits
            if wait.start_ns < end and start < wait.end_ns
        )
    assert waits
    assert found == len(waits)


def test_interpreter_hog_in_the_api_server(lab: Lab) -> None:
    """80% of what a hog and a request's path in the API server share goes to the hog."""
    traced = lab.traced_load("gil")
    hogs = [row for row in traced.truth if row.kind == "gil"]
    assert hogs, "the hog never ran"
    shared = blamed = 0
    for report in traced.reports().values():
        for hog in hogs:
            mine = [
                segment
                for segment in report.segments
                if segment.actor.pid == hog.pid
                and hog.overlap_ns(segment.start_ns, segment.end_ns)
            ]
            shared += sum(hog.overlap_ns(s.start_ns, s.end_ns) for s in mine)
            blamed += _blamed_ns(mine, hog.tid, hog.start_ns, hog.end_ns)
    assert shared
    assert blamed >= 0.80 * shared, f"{blamed / shared:.0%} blamed on the hog"


def test_interpreter_hog_on_the_tokens_way_out(lab: Lab) -> None:
    traced = lab.traced_load("gil")
    hogs = [row for row in traced.truth if row.kind == "gil"]
    judged = right = 0
    for report in traced.reports().values():
        for leg in report.tokens:
            end_ns = leg.written_ns or leg.processed_ns
            overlaps = [hog for hog in hogs if hog.overlap_ns(leg.made_ns, end_ns) >= _MIN_NS]
            if len(overlaps) == 1 and overlaps[0].overlap_ns(leg.made_ns, end_ns) > 0.5 * (
                end_ns - leg.made_ns
            ):
                judged += 1
                right += leg.worst is not None and _blames(leg.worst, overlaps[0].tid)
    assert judged
    assert right >= 0.80 * judged, f"{right} of {judged} tokens' legs blame the hog"


def test_sleep_before_scheduling(lab: Lab) -> None:
    traced = lab.traced_load("sleep")
    sleeps = [row for row in traced.truth if row.kind == "sleep"]
    assert sleeps, "it never slept"
    judged = right = 0
    for sleep in sleeps:
        for report in traced.reports().values():
            if _in_steps(report, sleep.start_ns, sleep.end_ns):
                judged += 1
                on_path = sum(
                    sleep.overlap_ns(segment.start_ns, segment.end_ns)
                    for segment in report.segments
                    if segment.actor.tid == sleep.tid and segment.category == "sleep"
                )
                right += _close(on_path, sleep.end_ns - sleep.start_ns)
    assert judged
    assert right >= 0.95 * judged, f"{right} of {judged} reports show the sleep as long"
