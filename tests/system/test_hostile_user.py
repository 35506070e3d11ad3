# SPDX-License-Identifier: Apache-2.0
"""A local user without any right does all it can: the engine's recording is whole all the same."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.faults_kit import Engine, all_told, needs_root, numbers
from tests.unit.daemon_kit import ROOT, Yard, wait_for
from tests.unit.test_ingest_peers import resident_kib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import DaemonProcess

pytestmark = needs_root

NOBODY = 65_534


@contextlib.contextmanager
def attack(daemon: DaemonProcess, what: str, engine: Engine) -> Iterator[dict[str, Any]]:
    """The user at work; what came of it so far."""
    script = ROOT / "tests" / "system" / "hostile_user.py"
    places = (daemon.ingest, str(daemon.client.path), what, str(engine.pid))
    process = subprocess.Popen(
        [sys.executable, script, str(NOBODY), *places],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        word, _, rest = process.stdout.readline().decode().partition(" ")
        assert word == "done"
        yield json.loads(rest)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def open_files(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("what", ["flood", "lies", "halves", "churn", "descriptors"])
def test_what_it_sends_to_the_agents_socket_harms_nobody(yard: Yard, what: str) -> None:
    daemon = yard.daemon().start()
    engine = Engine(daemon)
    try:
        session = engine.attach(daemon)
        files, memory = open_files(daemon), resident_kib(daemon)
        with attack(daemon, what, engine) as found:
            for _ in range(20):
                engine.put(1000)
                assert daemon.client.status().pid, "others are answered"
                time.sleep(0.02)
            if what == "lies":
                assert found["told"] == {"op": "stop"}, "it is asked for nothing"
            if what == "churn":
                assert found["done"] > 500
                late = Engine(daemon)
                wait_for(lambda: late.put()["connected"], "another agent finds its way in")
                late.kill()
        recorded = all_told(daemon, session, engine)
        assert recorded.lost("agent.queue") == 0
        assert numbers(recorded) == list(range(20_000))
        assert recorded.rows("loss") == []
        assert recorded.values("step_end", "step") == [], "nothing of it is in the recording"
        agents = [row for row in recorded.rows("stream") if row[0] > 2]
        assert {row[1] for row in agents} == {engine.pid}
        wait_for(lambda: open_files(daemon) <= files, "it left no descriptor open")
        assert resident_kib(daemon) - memory < 32 << 10
    finally:
        engine.kill()


def test_what_it_asks_of_the_control_socket_is_refused(yard: Yard) -> None:
    """Where an administrator lets it ask at all: the socket is the group's."""
    daemon = yard.daemon().start()
    engine = Engine(daemon)
    try:
        session = engine.attach(daemon)
        engine.put(100)
        daemon.client.path.chmod(0o666)
        with attack(daemon, "asks", engine) as found:
            answers = found["answers"]
        assert answers["status"]["ok"] is True
        assert answers["status"]["status"]["sessions"] == []
        assert answers["sessions"] == {"ok": True, "sessions": []}
        for op in ("progress", "open", "detach", "attach", "nonsense"):
            assert answers[op]["ok"] is False, op
            assert answers[op]["error"]
        assert session not in json.dumps([answers[op] for op in answers if op != "detach"])
        assert daemon.client.progress(session).state == "attached"
        assert numbers(all_told(daemon, session, engine)) == list(range(100))
    finally:
        engine.kill()


def test_callers_that_fill_its_places_leave_room_for_others(yard: Yard) -> None:
    daemon = yard.daemon(limits={"control_idle_s": 1.0}).start()
    engine = Engine(daemon)
    try:
        session = engine.attach(daemon)
        files = open_files(daemon)
        daemon.client.path.chmod(0o666)
        with attack(daemon, "questions", engine) as found:
            assert found["held"] > 16
            engine.put(1000)
            daemon.client.close()
            assert daemon.client.status().callers_refused > 0
            wait_for(lambda: daemon.client.status().callers_cut_off >= 8, "they are cut off")
        assert numbers(all_told(daemon, session, engine)) == list(range(1000))
        wait_for(lambda: open_files(daemon) <= files, "none is left open")
    finally:
        engine.kill()
