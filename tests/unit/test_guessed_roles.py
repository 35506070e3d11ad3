# SPDX-License-Identifier: Apache-2.0
"""Roles that were guessed: kept in recordings, shown as guesses, and never above what is said."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.causes import Describer
from gpucorrelate.correlator.context import HostContext, OnPath
from gpucorrelate.correlator.context_roles import by_role
from gpucorrelate.correlator.guessed_roles import guessed_roles
from gpucorrelate.correlator.report import text_context, units
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.json import Actors
from gpucorrelate.correlator.report.page import Page, TextOptions
from gpucorrelate.probes.wire.roles import ROLE, GuessedRole
from tests.unit.synth import CORE, MS, WORKER, Recording

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.values import Actor

ZMQ, POOL, PLAIN, PYTHON = CORE + 1, WORKER + 1, WORKER + 2, CORE + 2


def guess(made: Recording, tid: int, role: str, basis: str = "name", at: int = 5) -> None:
    text = GuessedRole(role, basis).text if role else ""
    made.add("change", 1, t_ns=at * MS, subject=f"tid:{tid}", what=ROLE, after=text)


@pytest.fixture
def recording() -> Recording:
    """An engine core and a worker, each with native threads that no agent knows."""
    made = Recording()
    made.process(4, CORE, "core")
    made.process(5, WORKER, "worker")
    made.add("thread", 5, tid=WORKER, name="MainThread", role="worker3.main")
    made.add("thread", 4, tid=PYTHON, name="Thread-1 (monitor)", role="core.monitor")
    for tid, tgid, comm in (
        (CORE, CORE, "VLLM::EngineCor"), (ZMQ, CORE, "ZMQbg/IO/0"),
        (PYTHON, CORE, "VLLM::EngineCor"), (WORKER, WORKER, "VLLM::Worker"),
        (POOL, WORKER, "VLLM::Worker"), (PLAIN, WORKER, "VLLM::Worker"),
    ):  # fmt: skip
        made.add("task", 1, tid=tid, tgid=tgid, t_ns=1, event=4, comm=comm)
        made.wait(tid, 10, 20, tgid=tgid)
    return made


def actors(capture: Capture) -> dict[int, Actor]:
    run = Run.of(capture)
    describe = Describer(run.states, run.steps_)
    tids = run.states.threads.tid.tolist()
    return {tid: describe.actor(index) for index, tid in enumerate(tids)}


def test_a_guess_stands_where_the_process_says_nothing(recording: Recording) -> None:
    guess(recording, ZMQ, "core.zmq")
    guess(recording, POOL, "worker.openmp", "behaviour")
    found = actors(recording.capture(100 * MS))
    assert (found[ZMQ].role, found[ZMQ].role_by) == ("core.zmq", "name")
    assert found[ZMQ].label == f"EngineCore/{CORE} ZMQbg/IO/0"
    # Which of the workers it is the process says; its name is no more than the process's.
    assert (found[POOL].role, found[POOL].role_by) == ("worker3.openmp", "behaviour")
    assert found[POOL].label == f"Worker3/{WORKER} openmp?"
    assert (found[PLAIN].role, found[PLAIN].role_by) == ("", "")
    assert found[PLAIN].label == f"Worker3/{WORKER} VLLM::Worker"


def test_what_the_process_says_counts_and_is_no_guess(recording: Recording) -> None:
    guess(recording, CORE, "api.main")
    guess(recording, PYTHON, "core.zmq", "behaviour")
    found = actors(recording.capture(100 * MS))
    assert [(found[tid].role, found[tid].role_by) for tid in (CORE, PYTHON)] == [
        ("core.main", ""), ("core.monitor", ""),
    ]  # fmt: skip
    table = Actors()
    for actor in found.values():
        table.label(actor)
    by = {row["tid"]: row["role_by"] for row in table.table()}
    assert (by[CORE], by[PYTHON], by[PLAIN]) == ("process", "process", None)


def test_the_last_guess_counts_and_one_taken_back_at_the_end_is_kept(recording: Recording) -> None:
    guess(recording, ZMQ, "zmq", at=5)
    guess(recording, ZMQ, "core.output", "behaviour", at=9)
    guess(recording, ZMQ, "", at=12)
    assert guessed_roles(recording.capture(100 * MS)) == {
        ZMQ: GuessedRole("core.output", "behaviour")
    }


@pytest.mark.parametrize(
    ("subject", "after"),
    [("tid:x", "a (guessed by its name)"), ("pid:7", "a (guessed by its name)"),
     ("tid:7", "a"), ("tid:7", "a (guessed by)"), ("tid:\u0667", "a (guessed by its name)")],
)  # fmt: skip
def test_what_is_no_guess_is_none(recording: Recording, subject: str, after: str) -> None:
    recording.add("change", 1, t_ns=5, subject=subject, what=ROLE, after=after)
    assert guessed_roles(recording.capture(100 * MS)) == {}


def test_a_reports_text_says_which_roles_are_guesses(recording: Recording) -> None:
    recording.add("counter", 1, t_ns=5 * MS, metric="thread.cpu", subject=f"tid:{ZMQ}", value=1)
    guess(recording, ZMQ, "core.zmq")
    guess(recording, POOL, "worker.openmp", "behaviour")
    guess(recording, CORE, "core.main")
    capture = recording.capture(100 * MS)
    run = Run.of(capture)
    host = HostContext(capture, Describer(run.states, run.steps_).subject)

    def said(*tids: int) -> str:
        path = OnPath(frozenset(tids), frozenset())
        found = host.of(10 * MS, 90 * MS, path)
        assert found is not None
        assert found.changes == ()
        out = io.StringIO()
        text_context.context(Page(out, TextOptions(width=200)), found)
        return " ".join(out.getvalue().split())

    assert said(ZMQ, POOL, CORE) == (
        f"roles core.zmq (guessed by its name): EngineCore/{CORE} ZMQbg/IO/0; "
        f"worker3.openmp (guessed by its behaviour): Worker3/{WORKER} openmp?"
    )
    assert said(CORE) == ""


def test_a_whole_recording_tells_cpu_time_by_role(recording: Recording) -> None:
    guess(recording, ZMQ, "core.zmq")
    guess(recording, POOL, "worker.openmp", "behaviour")
    recording.add("metric", 1, name="thread.cpu", unit="ns", nature=1)
    recording.add("metric", 1, name="thread.run_delay", unit="ns", nature=1)
    grown = {ZMQ: 2, PYTHON: 10, CORE: 40, POOL: 5, PLAIN: 3}
    for tid, percent in grown.items():
        for metric, by in (("thread.cpu", percent * MS), ("thread.run_delay", MS)):
            for t, value in ((1, 7), (90, 7 + by)):
                recording.add("counter", 1, t_ns=t * MS, since_ns=(t - 1) * MS, metric=metric,
                              subject=f"tid:{tid}", value=value)  # fmt: skip
    capture = recording.capture(100 * MS)
    context = HostContext(capture).of(0, 100 * MS)
    assert context is not None
    found = by_role(capture, context.numbers)
    assert [(r.role, r.role_by, r.threads, r.cpu_ns // MS, r.delay_ns // MS) for r in found] == [
        ("core.main", "process", 1, 40, 1), ("core.monitor", "process", 1, 10, 1),
        ("worker3.openmp", "behaviour", 1, 5, 1), ("", "", 1, 3, 1),
        ("core.zmq", "name", 1, 2, 1),
    ]  # fmt: skip
    out = io.StringIO()
    text_context.threads(Page(out, TextOptions(width=300)), found)
    length = found[0].length_ns
    assert f"core.zmq (guessed by name) {units.share(2 * MS, length)}" in out.getvalue()
    assert f"no known role {units.share(3 * MS, length)}" in out.getvalue()
