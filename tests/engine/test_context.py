# SPDX-License-Identifier: Apache-2.0
"""A limit put above a real worker's cgroup; the reports must name it and charge it rightly.

Truth is the limited cgroup's own counter, read every millisecond by the test: the kernel adds to
it when it lets the group run again, so each growth is a stretch that ended then.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil
import pytest

from gpucorrelate.correlator.guessed_roles import guessed_roles, stated_roles
from gpucorrelate.correlator.report.values import Category
from tests.engine.client import Load, load, mixed_requests
from tests.engine.daemon import ingest_env, running_daemon
from tests.engine.server import SYNC, running_server
from tests.engine.traced import Traced, capture_of
from tests.kernel.test_host_real import group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpucorrelate.correlator.report.values import Segment
    from tests.engine.client import Result

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

_MS = 1_000_000
_PERIOD_US = 100_000
#: Small: a worker needs little CPU on a fast machine, and has to meet it all the same.
_QUOTA_US = 5_000
#: Shorter stretches are lost in the millisecond between two readings.
_SURE_NS = 5 * _MS
#: Requests are judged by counters that are read a few times a second.
_LONG_NS = 1000 * _MS
#: The load goes on until the quota was met so often, and so many requests were long.
_ENOUGH_STRETCHES = 40
_ENOUGH_REQUESTS = 5
_PATIENCE_S = 120

Stretch = tuple[int, int]


@dataclass(frozen=True)
class Quota:
    """A load whose worker was under a quota that only its parent cgroup has.

    Attributes:
        traced: The load.
        worker: Process id of the worker.
        path: The cgroup with the quota, as the kernel names it.
        stood_still: When nobody in that cgroup could run, by its own counter.
        start_ns: The load began.
        end_ns: The load was over.
    """

    traced: Traced
    worker: int
    path: str
    stood_still: tuple[Stretch, ...]
    start_ns: int
    end_ns: int

    def truth_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of an interval the cgroup was out of quota."""
        return _overlap_ns(self.stood_still, start_ns, end_ns)

    def throttled(self) -> list[Segment]:
        """What the reports say of it, from all requests."""
        return [
            segment
            for report in self.traced.reports("quota").values()
            for segment in report.segments
            if segment.category is Category.THROTTLED and segment.actor.pid == self.worker
        ]

    def steps(self) -> list[Stretch]:
        """The worker's calls in the load."""
        rows = self.traced.capture.table("worker_step")
        calls = zip(rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True)
        return [one for one in calls if self.start_ns <= one[0] and one[1] <= self.end_ns]


def _overlap_ns(stretches: Iterable[Stretch], start_ns: int, end_ns: int) -> int:
    return sum(max(0, min(b, end_ns) - max(a, start_ns)) for a, b in stretches)


def _union(segments: Iterable[Segment]) -> list[Stretch]:
    """Reports of several requests tell the same stretch of the worker."""
    found: list[Stretch] = []
    for start, end in sorted((one.start_ns, one.end_ns) for one in segments):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


@contextmanager
def _watched(folder: Path) -> Iterator[list[tuple[int, int]]]:
    """Readings of a cgroup's time without quota, each time it grew."""
    readings: list[tuple[int, int]] = []
    over = threading.Event()
    stat = os.open(folder / "cpu.stat", os.O_RDONLY)

    def watch() -> None:
        while not over.is_set():
            now_ns = time.monotonic_ns()
            value = int(os.pread(stat, 256, 0).split()[5])
            if not readings or readings[-1][1] != value:
                readings.append((now_ns, value))
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield readings
    finally:
        over.set()
        thread.join()
        os.close(stat)


def _load_until_met(url: str, readings: list[tuple[int, int]]) -> list[Result]:
    """How much a load is throttled depends on the machine: so much that there is what to judge."""
    busy = Load(url, "quota", streams=6)
    busy.start()
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        long = sum(one.end_ns - one.start_ns >= _LONG_NS for one in busy.results)
        if len(readings) > _ENOUGH_STRETCHES and long >= _ENOUGH_REQUESTS:
            break
        time.sleep(0.1)
    return busy.finish()


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Quota:
    folder = tmp_path_factory.mktemp("quota")
    with (
        running_daemon(folder) as daemon,
        running_server(SYNC, folder, env=ingest_env(folder)) as server,
        group("cpu", "limited/inner") as inner,
    ):
        load(server.url, mixed_requests(10, tag="warm"), concurrency=4)
        (worker,) = (
            process.pid
            for process in psutil.Process(server.pid).children(recursive=True)
            if process.name().endswith("Worker")
        )
        session = daemon.attach(server.pid, agents=3).session
        # What a worker polled for when tracing began is not on record: it is behind us then.
        load(server.url, mixed_requests(2, tag="first"), concurrency=1)
        limited = inner.parent
        (limited / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (limited / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        (inner / "cgroup.procs").write_text(str(worker))
        # The daemon polls a few times a second: by then it is on record where the worker is.
        time.sleep(1)
        start_ns = time.monotonic_ns()
        with _watched(limited) as readings:
            results = _load_until_met(server.url, readings)
        end_ns = time.monotonic_ns()
        (limited / "cpu.cfs_quota_us").write_text("-1")
        (limited.parent / "cgroup.procs").write_text(str(worker))
        time.sleep(1)
        daemon.client.detach(session=session)
        assert all(result.ok for result in results)
        return Quota(
            Traced.of(SYNC, server.pid, results, capture_of(daemon.client, session, results)),
            worker,
            f"/{limited.name}",
            tuple((t_ns - (value - old), t_ns) for (_, old), (t_ns, value) in pairwise(readings)),
            start_ns,
            end_ns,
        )


def test_the_right_share_of_a_workers_steps_is_throttled(quota: Quota) -> None:
    steps = quota.steps()
    told = _union(quota.throttled())
    truly = {step for step in steps if quota.truth_ns(*step) >= _SURE_NS}
    said = {step for step in steps if _overlap_ns(told, *step) >= _SURE_NS}
    assert len(truly) >= 10, "the quota was hardly met"
    assert len(truly ^ said) <= 0.1 * len(truly), f"{len(truly)} steps were, {len(said)} are told"
    true_ns = sum(quota.truth_ns(*step) for step in truly)
    said_ns = sum(_overlap_ns(told, *step) for step in truly)
    assert said_ns == pytest.approx(true_ns, rel=0.1)


def test_the_limit_is_named_though_it_is_an_ancestors(quota: Quota) -> None:
    throttled = quota.throttled()
    whole_ns = sum(one.length_ns for one in throttled)
    named_ns = sum(
        one.length_ns
        for one in throttled
        if one.cause is not None and one.cause.detail.endswith(f"cgroup {quota.path}")
    )
    assert whole_ns
    # The last stretch ends after the last reading before the quota was lifted.
    assert named_ns >= 0.9 * whole_ns, f"{named_ns / whole_ns:.0%} of the time names the cgroup"


def test_a_requests_context_tells_the_limit(quota: Quota) -> None:
    judged = telling = 0
    for report in quota.traced.reports("quota").values():
        whole_ns = report.end_ns - report.arrival_ns
        if whole_ns < _LONG_NS or quota.truth_ns(report.arrival_ns, report.end_ns) < whole_ns / 4:
            continue
        judged += 1
        assert report.context is not None
        noted = {
            number.subject
            for number in report.context.numbers
            if number.metric == "cpu.stat.throttled" and number.note
        }
        assert noted <= {f"cgroup:{quota.path}"}, "the limit is the parent's"
        telling += bool(noted)
    assert judged >= 3
    assert telling == judged


def test_native_threads_have_guessed_roles_and_python_threads_their_own(quota: Quota) -> None:
    capture = quota.traced.capture
    host = quota.traced.run.summary().host
    assert host is not None
    told = {(one.role, one.role_by) for one in host.roles}
    for process in ("api", "core"):
        assert (f"{process}.main", "process") in told
        assert (f"{process}.zmq", "name") in told
    assert ("worker0.main", "process") in told
    guessed = guessed_roles(capture)
    rows = capture.table("task")
    names = {
        tid: capture.strings[comm]
        for tid, comm in zip(rows["tid"].tolist(), rows["comm"].tolist(), strict=True)
    }
    zmq = [tid for tid, name in names.items() if name.startswith("ZMQbg")]
    assert len(zmq) > 5
    assert {guessed[tid].role.rpartition(".")[2] for tid in zmq} == {"zmq"}
    assert not guessed.keys() & stated_roles(capture).keys()
