# SPDX-License-Identifier: Apache-2.0
"""Steps and requests that a program marks itself, from the program to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.daemon_kit import ROOT, Yard, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon_kit import DaemonProcess

PROGRAM = """
import asyncio, sys, time
from gpucorrelate import agent

@agent.step("train", tokens=7)
def train():
    time.sleep(0.002)

@agent.step("served")
async def served():
    await asyncio.sleep(0.002)

print("up", flush=True)
sys.stdin.readline()
with agent.request("r-1", prompt_tokens=5) as one:
    for number in range(20):
        with agent.step("prefill" if number == 0 else "decode", requests=["r-1", "r-2"], tokens=2):
            time.sleep(0.003)
        one.output_tokens += 1
for _ in range(5):
    train()
asyncio.run(served())
try:
    with agent.step("broken"):
        raise ValueError("a secret prompt")
except ValueError:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


class Marked:
    """A program that marks its steps, attached."""

    def __init__(self, daemon: DaemonProcess, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, cwd=ROOT, env=env,
        )  # fmt: skip
        self.hears("up")
        self.daemon = daemon

    def hears(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _environment(daemon: DaemonProcess) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUCORRELATE_INGEST": str(daemon.ingest),
        "RANK": "0",
    }


@pytest.fixture
def recorded(yard: Yard, tmp_path: Path) -> Path:
    """What a marked program left."""
    daemon = yard.daemon().start()
    marked = Marked(daemon, _environment(daemon))
    try:
        client = daemon.client
        # The agent begins with the first mark's use; the program waits for its turn until then.
        session = client.attach(marked.process.pid).session.session
        marked.goes_on()
        marked.hears("done")
        wait_for(lambda: client.progress(session).steps >= 1, "its steps")
        client.detach(session)
        out = tmp_path / "marked.gpcf"
        with out.open("wb") as file:
            client.copy_session(session, file)
        marked.goes_on()
    finally:
        marked.close()
    import shutil

    shutil.copy(out, "/tmp/marked.gpcf")
    return out


def cli(*args: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", "from gpucorrelate.cli.main import main; main()", *args],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert "lost events or does not match" not in found.stderr
    return found.stdout


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_steps_and_requests_come_out_as_they_were_marked(recorded: Path) -> None:
    rows = documents(cli("steps", str(recorded), "--format", "json", "--limit", "0"))
    kinds = [row["kind"] for row in rows]
    assert kinds == ["prefill"] + ["decode"] * 19 + ["train"] * 5 + ["served", "broken"]
    assert [row["step"] for row in rows] == list(range(1, 28))
    assert [row["rows"] for row in rows] == [2] * 20 + [0] * 7
    assert [row["tokens"] for row in rows[:21]] == [2] * 20 + [7]
    assert all(row["wall_ns"] >= 2_000_000 for row in rows[:26])
    assert {row["status"] for row in rows[:26]} == {"ok"}
    assert rows[26]["status"] == "error"
    (one,) = documents(cli("requests", str(recorded), "--format", "json"))
    assert (one["request_id"], one["status"]) == ("r-1", "finished")
    assert (one["tokens_in"], one["tokens_out"]) == (5, 20)
    inside = sum(row["wall_ns"] for row in rows[:20])
    assert one["wall_ns"] >= inside
    whole = json.loads(cli("report", str(recorded), "--request", "r-1", "--format", "json"))
    names = [phase["name"] for phase in whole["phases"]]
    assert {"prefill", "decode"} <= set(names)
    for parts in (whole["phases"], whole["segments"]):
        assert sum(part["end_ns"] - part["start_ns"] for part in parts) == whole["wall_ns"]


def test_what_a_step_raised_is_told_without_its_message(recorded: Path) -> None:
    assert b"secret" not in recorded.read_bytes()
    text = cli("report", str(recorded), "--step", "27")
    assert "ValueError in <module>" in text


@pytest.mark.parametrize("disable", [False, True])
def test_marks_of_a_program_that_nobody_observes_do_nothing(tmp_path: Path, disable: bool) -> None:
    """Without a daemon, or with the agent switched off: same results, no error, little time."""
    code = """
import time
from gpucorrelate import agent
from gpucorrelate.probes.agents import current
began = time.perf_counter()
for _ in range(20_000):
    with agent.step("s", requests=("a",)):
        pass
print((time.perf_counter() - began) / 20_000 * 1e9, current._agent is None)
@agent.step("f")
def f(a, *, b):
    "doc"
    return a + b
print(f(1, b=2), f.__name__, f.__doc__)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GPUCORRELATE_INGEST": str(tmp_path / "none")}
    env |= {"GPUCORRELATE_DISABLE": "1"} if disable else {}
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    cost, called = found.stdout.splitlines()
    assert cost.split()[1] == str(disable), "switched off there is no agent at all"
    assert called == "3 f doc"
    assert found.stderr == ""


def test_two_users_in_one_process_share_an_agent() -> None:
    """vLLM's plugin and a program's own marks."""
    code = """
from gpucorrelate.probes.agents.vllm.plugin import start
first = start()
from gpucorrelate import agent
from gpucorrelate.probes.agents import current, marks
assert current.process_agent("x") is first is start()
assert marks._marks().agent is first
print("same")
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert found.stdout == "same\n"
