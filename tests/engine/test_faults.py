# SPDX-License-Identifier: Apache-2.0
"""The daemon absent, killed, stopped, restarted: the engine serves on, and losses are told."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.probes.agents.raised import message_hash
from gpucorrelate.probes.agents.transport import Pace
from gpucorrelate.probes.wire.schema import StepStatus
from tests.engine.client import Load, Result, load, mixed_requests
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import ASYNC, EngineServer, running_server
from tests.engine.traced import Traced, capture_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

_STREAMS = 30
#: An agent sends this often; what the daemon had not read when it died may be as old.
_TICK_NS = int(Pace().tick_s * 1e9)
_CATCH_UP_NS = 1_500_000_000 + _TICK_NS


def _finish(busy: Load) -> list[Result]:
    """All results of a load; each must be as asked for."""
    results = busy.finish()
    assert results
    assert not [result for result in results if not result.ok]
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sockets, recordings, logs."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EngineServer]:
    """An engine that was started when there was no daemon."""
    with running_server(ASYNC, folder, env=ingest_env(folder)) as started:
        yield started


def test_agent_without_a_daemon(server: EngineServer) -> None:
    results = load(server.url, mixed_requests(60, tag="alone"), concurrency=30)
    assert all(result.ok for result in results)


def _lost_steps(traced: Traced) -> int:
    steps = np.sort(traced.capture.table("step_begin")["step"])
    return int(steps[-1] - steps[0]) + 1 - len(steps)


def test_daemon_killed_and_restarted_under_load(server: EngineServer, folder: Path) -> None:
    with running_daemon(folder) as first:
        session = first.attach(server.pid, agents=3)
        busy = Load(server.url, "kill", streams=_STREAMS)
        busy.start()
        time.sleep(2)
        killed_ns = time.monotonic_ns()
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        time.sleep(2)
        with running_daemon(folder) as second:
            # Resumed, not attached anew: nobody asked.
            second.wait_agents(session.session, 3)
            back_ns = time.monotonic_ns()
            time.sleep(3)
            results = _finish(busy)
            time.sleep(1)
            second.client.detach(session=session.session)
            capture = capture_of(second.client, session.session, results)
    traced = Traced.of(ASYNC, server.pid, results, capture)
    reports = traced.reports()
    before = [r for r in results if r.end_ns < killed_ns - _TICK_NS - 300_000_000]
    # What agents kept while the daemon was down comes first, and some of it was dropped.
    after = [r for r in results if r.start_ns > back_ns + _CATCH_UP_NS]
    assert before
    assert after
    for result in [*before, *after]:
        report = reports[result.request.request_id]
        assert report.tokens_out == len(report.tokens) == result.completion_tokens
        assert sum(segment.length_ns for segment in report.segments) == report.wall_ns
    # The kernel's waits of the gap are gone, and the report says so.
    gap = [r for r in results if r.start_ns < killed_ns and r.end_ns > killed_ns]
    assert gap
    ledger = traced.run.summary().ledger
    assert not ledger.clean, ledger


@pytest.mark.parametrize(
    "stopped_s", [5, pytest.param(30, marks=pytest.mark.slow)], ids=["5s", "30s"]
)
def test_daemon_stopped_under_load(server: EngineServer, folder: Path, stopped_s: int) -> None:
    with running_daemon(folder) as daemon:
        session = daemon.attach(server.pid, agents=3)
        busy = Load(server.url, f"stop{stopped_s}x", streams=_STREAMS)
        busy.start()
        time.sleep(1)
        daemon.signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        during = len(busy.results)
        daemon.signal(signal.SIGCONT)
        time.sleep(2)
        results = _finish(busy)
        time.sleep(1)
        daemon.client.detach(session=session.session)
        capture = capture_of(daemon.client, session.session, results)
    assert during > 0, "the engine did not serve while the daemon was stopped"
    traced = Traced.of(ASYNC, server.pid, results, capture)
    told = {line.name: line.count for line in traced.run.summary().ledger.lines if line.bad}
    if _lost_steps(traced):
        assert sum(told.values()) > 0, told
    elif not sum(told.values()):
        assert set(traced.reports()) == {r.request.request_id for r in results}


def test_step_that_raises_is_closed_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "flags").mkdir()
    env = {**ingest_env(tmp_path), "GPUCORRELATE_LAB_DIR": str(tmp_path)}
    with (
        running_daemon(tmp_path) as daemon,
        running_server(ASYNC, tmp_path, env=env) as engine,
    ):
        session = daemon.attach(engine.pid, agents=3)
        assert load(engine.url, mixed_requests(4, tag="good"), concurrency=4)[0].ok
        (tmp_path / "flags" / "core.execute.raise").touch()
        results = load(engine.url, mixed_requests(4, tag="bad"), concurrency=4)
        # The engine dies of it, as vLLM does, and with it its agents.
        assert not any(result.ok for result in results)
        time.sleep(2)
        capture = capture_of(daemon.client, session.session, results)
    ends = capture.table("step_end")
    failed = ends.select(ends["status"] == StepStatus.ERROR)
    # Two when the next one had gone to the workers before the first had failed there.
    assert len(failed) in (1, 2)
    told = [capture.strings[i] for i in failed["error"].tolist()]
    assert all(text.startswith("RuntimeError") for text in told), told
    said = message_hash("gpucorrelate-lab: execute_model raises, as asked")
    assert told[0].endswith(f", message {said}"), told
    begun = capture.table("step_begin")["step"]
    assert np.isin(begun, ends["step"]).all(), "a step was left open"


def test_restarted_daemon_reads_what_it_wrote(server: EngineServer, folder: Path) -> None:
    with running_daemon(folder) as first:
        session = first.attach(server.pid, agents=3)
        results = load(server.url, mixed_requests(10, tag="keep"), concurrency=5)
        time.sleep(1)
        first.client.detach(session=session.session)
    with running_daemon(folder) as second:
        assert session.session in {s.session for s in second.client.sessions()}
        capture = capture_of(second.client, session.session, results)
    traced = Traced.of(ASYNC, server.pid, results, capture)
    assert set(traced.reports()) == {result.request.request_id for result in results}


def test_daemon_leaves_nothing_behind(folder: Path) -> None:
    daemon = DaemonProcess(folder)
    daemon.wait_ready()
    assert daemon.stop() == 0
    assert not list((folder / "run").glob("*.sock"))
