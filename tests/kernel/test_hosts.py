# SPDX-License-Identifier: Apache-2.0
"""Namespaces, missing privileges, broken probes: what a host can do to the tracer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf import selftest, support
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.errors import KernelSupportError, SelfTestError
from gpucorrelate.probes.wire.schema import TaskEvent, WaitKind
from tests.kernel.observe import ROOT, Seen

if TYPE_CHECKING:
    from pathlib import Path

needs_unshare = pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")


@needs_unshare
def test_a_target_in_its_own_pid_namespace_is_told_by_both_ids(tracer: Tracer) -> None:
    seen = Seen(tracer)
    inside = 'unshare --pid --fork sh -c "sleep 0.01; :"'
    command = ["sh", "-c", f"read line; exec {inside}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shell:
        tracer.add_target(shell.pid)
        shell.communicate(b"\n")
    seen.drain()
    init = [row for row in seen.get("task", ns_tgid=1) if row.event == TaskEvent.EXEC]
    assert [row.comm for row in init] == ["sh"]
    assert init[0].tid == init[0].tgid > 1
    sleep = [row for row in seen.get("task", event=TaskEvent.EXEC) if row.comm == "sleep"]
    assert len(sleep) == 1
    assert sleep[0].ns_tid == 2
    assert seen.get("wait", tid=sleep[0].tid, wait_kind=WaitKind.SLEEP)


_INSIDE = """
import json, subprocess, sys
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from tests.kernel.observe import Seen
tracer = Tracer.start(TracerConfig(backend=sys.argv[1]))
seen = Seen(tracer)
child = subprocess.Popen(["sleep", "0.01"])
tracer.add_target(child.pid)
child.wait()
seen.drain()
waits = seen.get("wait")
tasks = {row.ns_tgid: row.tgid for row in seen.get("task")}
states = {item.source: item.state.name for item in tracer.capabilities()}
tracer.stop()
print(json.dumps({"pid": child.pid, "tasks": tasks, "tgids": [w.tgid for w in waits],
                  "state": states["ebpf.pidns"]}))
"""


@needs_unshare
def test_a_tracer_in_a_pid_namespace_finds_its_targets_and_says_so(backend: str) -> None:
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _INSIDE, backend],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["state"] == "DEGRADED"
    inner = told["tasks"][str(told["pid"])]
    assert inner != told["pid"]
    assert set(told["tgids"]) == {inner}


_REFUSED = """
from gpucorrelate.probes.ebpf.tracer import Tracer
from gpucorrelate.probes.wire.errors import KernelSupportError
try:
    Tracer.start()
except KernelSupportError as exc:
    print(exc.exit_code, exc.message, "|", exc.hint)
"""


@needs_setpriv
@pytest.mark.parametrize("keep", ["-all", "-all,+bpf"])
def test_without_privileges_it_says_what_is_missing(keep: str) -> None:
    done = subprocess.run(
        ["setpriv", "--inh-caps=-all", f"--bounding-set={keep}", sys.executable, "-c", _REFUSED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "CAP_PERFMON" in done.stdout
    assert done.stdout.count("\n") == 1


_STARTED = """
import sys
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
Tracer.start(TracerConfig(backend=sys.argv[1])).stop()
print("ok")
"""


@needs_setpriv
def test_two_capabilities_are_enough(backend: str) -> None:
    keep = "-all,+bpf,+perfmon"
    done = subprocess.run(
        ["setpriv", "--inh-caps=-all", f"--bounding-set={keep}", sys.executable, "-c", _STARTED,
         backend],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr


def test_a_missing_object_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(support, "object_path", lambda: tmp_path / "none.bpf.o")
    with pytest.raises(KernelSupportError) as caught:
        Tracer.start(TracerConfig(backend="libbpf"))
    assert "not compiled" in caught.value.message
    assert "ebpf.build" in caught.value.hint


def test_a_damaged_object_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.bpf.o"
    damaged.write_bytes(support.object_path().read_bytes()[:3000])
    monkeypatch.setattr(support, "object_path", lambda: damaged)
    with pytest.raises(KernelSupportError, match=r"damaged\.bpf\.o cannot be opened"):
        Tracer.start()


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(KernelSupportError, match="no backend"):
        Tracer.start(TracerConfig(backend="guesswork"))


def test_probes_that_see_nothing_fail_the_self_test(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Without the program that sees wakes the self-test must notice, not the user."""
    monkeypatch.setattr(support, "SCHED_PROGRAMS", {"wait_switch": "sched_switch"})
    monkeypatch.setattr(selftest, "_TRIES", 2)
    with pytest.raises(SelfTestError, match="woken by thread 0"):
        Tracer.start(TracerConfig(backend=backend))


def test_tracers_do_not_disturb_each_other(tracer: Tracer) -> None:
    other = Tracer.start(TracerConfig(faults=False, backend="libbpf"))
    us = os.getpid()
    other.add_target(us)
    assert tracer.targets() == frozenset()
    assert other.targets() == {us}
    other.stop()
