# SPDX-License-Identifier: Apache-2.0
"""The product's own check of itself, end to end: scenarios, real probes, scores."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.verify import observe, score
from gpucorrelate.verify.scenarios import BY_NAME, CATALOGUE
from tests.kernel.observe import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.probes.ebpf.tracer import Tracer
    from gpucorrelate.verify.truth import Played

GPUCORRELATE = (sys.executable, "-c", "from gpucorrelate.cli.main import main; main()")
_ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
_TRIES, _MADE_PART = 8, 0.1


@pytest.fixture(scope="module")
def tracer(backend: str) -> Iterator[Tracer]:
    with observe.tracer(backend) as made:
        yield made


def _played(tracer: Tracer, name: str) -> Played:
    """A scenario in which some of what was to happen happened.

    On a busy machine who was to be held up may get its turn when the other is long through: of
    the microseconds that are left then no share can be told.
    """
    for seed in range(7, 7 + _TRIES):
        played = observe.play(tracer, BY_NAME[name], seed=seed, rounds=6)
        if played.impossible:
            pytest.skip(played.impossible)
        whole_ns = sum(op.end_ns - op.start_ns for op in played.operations if not op.control)
        if score.of(played).injected_ns > _MADE_PART * whole_ns:
            return played
    raise AssertionError(f"nothing happened in {_TRIES} tries: the machine is too busy")


@pytest.mark.parametrize(
    "name",
    ["pthread-mutex", "gil-hog", "epoll", "untraced-peer", "nanosleep", "major-faults",
     "yield-spin", "sigstop", "fork-exec"],
)  # fmt: skip
def test_a_scenario_is_explained(tracer: Tracer, name: str) -> None:
    played = _played(tracer, name)
    found = score.of(played)
    assert found.operations == found.controls == 6
    assert found.injections
    assert found.category_share is not None and found.culprit_share is not None
    # Short of what the product aims at: tests share their machine with whatever else runs.
    assert found.category_share > 0.6, found
    assert found.culprit_share > 0.6, found
    assert found.false_share is not None and found.false_share < 0.05, found
    for op, segments in zip(played.operations, played.explained, strict=True):
        lengths = sum(segment.length_ns for segment in segments)
        assert lengths == op.end_ns - op.start_ns


def test_a_quota_is_told_from_a_busy_cpu(tracer: Tracer) -> None:
    played = observe.play(tracer, BY_NAME["cpu-quota"], seed=7, rounds=6)
    if played.impossible:
        pytest.skip(played.impossible)
    controls = [
        segment
        for op, segments in zip(played.operations, played.explained, strict=True)
        for segment in segments
        if op.control
    ]
    assert not [segment for segment in controls if segment.category is Category.THROTTLED]
    throttled = [s for segments in played.explained for s in segments
                 if s.category is Category.THROTTLED]  # fmt: skip
    assert throttled
    for segment in throttled:
        assert segment.cause is not None and "quota" in segment.cause.text


def test_a_seed_makes_the_same_again(tracer: Tracer) -> None:
    """What was random is the seed's; what differs is the machine's."""
    runs = [observe.play(tracer, BY_NAME["nanosleep"], seed=3, rounds=4) for _ in range(2)]
    lengths = [[i.length_ns for i in played.injections] for played in runs]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) == 4


def test_the_command_says_what_can_be_attributed(tmp_path: Path) -> None:
    out = tmp_path / "truth.json"
    command = [*GPUCORRELATE, "verify", "--quick", "--scenario", "read", "--scenario", "timerfd"]
    done = subprocess.run(
        [*command, "-o", str(out)], capture_output=True, text=True, env=_ENV, check=False
    )
    assert done.returncode in {0, 8}, done.stderr
    document = json.loads(out.read_text())
    assert [row["name"] for row in document["scenarios"]] == ["read", "timerfd"]
    assert document["total"]["injected_ns"] == sum(
        row["injected_ns"] for row in document["scenarios"]
    )
    assert document["passed"] == (done.returncode == 0)
    for row in document["scenarios"]:
        word = "yes" if row["attributable"] else "no"
        assert re.search(rf"^{re.escape(row['cause'])} +{word} ", done.stdout, re.MULTILINE)


def test_an_unknown_scenario_is_a_matter_of_usage() -> None:
    command = [*GPUCORRELATE, "verify", "--scenario", "nonesuch"]
    done = subprocess.run(command, capture_output=True, text=True, env=_ENV, check=False)
    assert done.returncode == 2
    assert "nonesuch" in done.stderr and CATALOGUE[0].name in done.stderr


def _scenarios_of(pid: int) -> list[int]:
    """Scenario processes that name a process as their parent."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _gone(pid: int) -> bool:
    return _state(pid) in {"", "Z"}


@contextlib.contextmanager
def _in_the_midst(
    cgroups: frozenset[str],
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A run in the midst of a scenario that limits its own cgroup, and its processes."""
    if not cgroups:
        pytest.skip("no cgroup with a quota")
    with subprocess.Popen(
        [*GPUCORRELATE, "verify", "--scenario", "cpu-quota"], env=_ENV, stdout=subprocess.PIPE
    ) as made:
        wait_until(lambda: _cgroups() > cgroups, "the scenario's cgroup", 30)
        children = _scenarios_of(made.pid)
        assert children
        yield made, children


def test_nothing_is_left_when_it_is_killed() -> None:
    """Not even with SIGKILL."""
    cgroups = _cgroups()
    with _in_the_midst(cgroups) as (made, children):
        time.sleep(0.05)
        made.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(_gone, children)), "the scenario ends with its parent", 30)
    assert _cgroups() == cgroups


def test_what_all_of_a_killed_run_leaves_the_next_one_removes() -> None:
    cgroups = _cgroups()
    with _in_the_midst(cgroups) as (made, children):
        for pid in children:  # before its parent: it cannot clean up
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
        made.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(_gone, children)), "the scenario is gone", 30)
    assert _cgroups() > cgroups
    subprocess.run(
        [*GPUCORRELATE, "verify", "--quick", "--scenario", "timerfd"],
        env=_ENV,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert _cgroups() == cgroups


def test_ctrl_c_is_for_the_command_which_ends_its_scenario() -> None:
    """A peer that has stopped the scenario must live to let it go on."""
    # On a busy machine it may be through before it hears.
    codes = [_interrupted() for _ in range(3)]
    assert set(codes) <= {0, 130}
    assert 130 in codes


def _interrupted() -> int:
    with subprocess.Popen(
        [*GPUCORRELATE, "verify", "--scenario", "sigstop"], env=_ENV, stdout=subprocess.PIPE
    ) as made:
        children = wait_until(lambda: _scenarios_of(made.pid), "the scenario", 30)
        wait_until(lambda: _state(children[0]) == "T", "it is stopped", 30)
        assert [os.getpgid(pid) for pid in children] == children
        made.send_signal(signal.SIGINT)
        code = made.wait(60)
    assert all(map(_gone, children))
    return code


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _cgroups() -> frozenset[str]:
    """The cgroups of scenarios, and a word of where they would be."""
    from gpucorrelate.verify.scenarios.quota import quota_folder

    base = quota_folder()
    if base is None:
        return frozenset()
    return frozenset({str(base), *map(str, base.glob("gpucorrelate-verify-*"))})
