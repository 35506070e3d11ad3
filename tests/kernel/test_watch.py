# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate watch``: what a real kernel does to a process shows, with whose limit it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.cli import view_watch
from gpucorrelate.daemon.vitals import VitalSigns
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import NoSuchProcessError, NotAnEngineError
from tests.kernel.test_host_real import BUSY, IDLE, child, group
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from pathlib import Path

RUN = "from gpucorrelate.cli.main import main; main()"
_QUOTA = "cpu.cfs_quota_us"


def watching(pid: int, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, "watch", "--pid", str(pid), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def throttled_ns(folder: Path) -> int:
    rows = dict(row.split() for row in (folder / "cpu.stat").read_text().splitlines())
    return int(rows["throttled_time"])


def documents(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_the_quota_of_a_cgroup_above_is_told_and_as_much_as_the_kernel_counted() -> None:
    with group("cpu", "outer/inner") as inner:
        outer = inner.parent
        (outer / _QUOTA).write_text("3000")
        with child(BUSY, inner) as busy:
            before_ns = throttled_ns(outer)
            command = watching(
                busy.pid, "--interval", "0.4", "--duration", "4s", "--format", "json"
            )
            out, err = command.communicate(timeout=60)
            counted_ns = throttled_ns(outer) - before_ns
    assert command.returncode == 0, err
    assert "watching 1 process" in err
    found = documents(out)
    quota = [one for one in found if one.get("metric") == "cpu.stat.throttled"]
    assert {one["subject"] for one in quota} == {f"cgroup:/{outer.name}"}, "it has the limit"
    assert {one["says"] for one in quota} == {"out of CPU quota"}
    assert 0.2 * counted_ns < sum(one["grown"] for one in quota) <= counted_ns
    for one in quota:
        assert one["grown"] == one["after"] - one["before"] > 0
        share = one["grown"] / (one["t_ns"] - one["since_ns"])
        assert one["share_ppm"] == pytest.approx(share * 1e6, abs=1)
        assert one["share_ppm"] >= one["least_ppm"]
    delays = [one for one in found if one.get("metric") == "thread.run_delay"]
    assert {one["subject"] for one in delays} <= {f"tid:{busy.pid}"}


def test_text_names_the_cgroup_and_ends_with_the_process_or_on_ctrl_c() -> None:
    with group("cpu", "outer/inner") as inner:
        outer = inner.parent
        (outer / _QUOTA).write_text("3000")
        with child(BUSY, inner) as busy:
            first, second = (watching(busy.pid, "--interval", "0.3") for _ in range(2))
            assert first.stdout is not None and second.stdout is not None
            assert first.stdout.readline().rstrip() == view_watch.HEADING
            line = wait_for(
                lambda: next((row for row in first.stdout or () if "quota" in row), ""), "a line"
            )
            assert line.rstrip().endswith(f"out of CPU quota{'':24}cgroup /{outer.name}")
            second.stdout.readline()
            second.send_signal(signal.SIGINT)
            assert second.wait(20) == 0
        out, err = first.communicate(timeout=20)
    assert first.returncode == 0
    assert f"process {busy.pid} has ended" in err
    assert "Traceback" not in err + out + second.communicate()[1]


def test_children_belong_to_it_and_their_end_is_told() -> None:
    code = (
        "import subprocess, sys, time\n"
        "one = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "input()\n"
        "one.kill(); one.wait()\n"
        "time.sleep(20)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process, VitalSigns(process.pid) as signs:
        try:
            wait_for(lambda: signs.look().processes == 2, "its child is there")
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            ended = wait_for(
                lambda: [one for one in signs.look().changes if one.what == "process"], "it ends"
            )
            assert [bool(one.before) and not one.after for one in ended] == [True]
            assert ended[0].who == f"{ended[0].before}/{ended[0].subject[4:]}"
        finally:
            process.kill()
    assert signs.look().processes == 0


def test_where_nothing_happens_nothing_is_said() -> None:
    with child(IDLE) as idle:
        command = watching(idle.pid, "--interval", "0.2", "--duration", "2s", "--format", "json")
        out, err = command.communicate(timeout=60)
    assert command.returncode == 0, err
    of_it = [one for one in documents(out) if str(idle.pid) in one.get("subject", "")]
    assert of_it == []


def test_who_cannot_be_watched() -> None:
    with pytest.raises(NoSuchProcessError):
        VitalSigns(4_000_000)
    kernels = procfs.read_stat(2)
    if kernels is not None and kernels.kernel_thread:
        with pytest.raises(NotAnEngineError):
            VitalSigns(2)
    command = watching(4_000_000)
    out, err = command.communicate(timeout=20)
    assert command.returncode == 3
    assert (out, err.splitlines()[0]) == ("", "gpucorrelate: no process 4000000")
