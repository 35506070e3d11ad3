# SPDX-License-Identifier: Apache-2.0
"""The product on Debian's stable kernels: probes load, see what is made, say what lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.qemu.checks import fact, passed
from tests.qemu.kernels import CACHE

if TYPE_CHECKING:
    from tests.qemu.guest import Guest

#: Written by scripts/capture_kernel_facts.py; the unit tests decide by them, too.
RECORDED = Path(__file__).resolve().parents[1] / "unit" / "data" / "kernels"
#: What a bare guest has not got, whatever its kernel.
BARE = {"daemon", "engine.agent", "gpu", "group", "kernel.perf_event_paranoid"}


def test_check_says_what_this_kernel_lacks(guest: Guest) -> None:
    done = guest.gpucorrelate("check", "--format", "json")
    report: dict[str, Any] = json.loads(done.text)
    checks = {one["name"]: one for one in report["checks"]}
    assert report["usable"]
    assert report["kernel"].startswith(guest.kernel.release)
    assert checks["ebpf.selftest"]["state"] == "ok"
    lacks = {name for name, one in checks.items() if one["state"] != "ok"} - BARE
    # mm_filemap_fault came with Linux 6.10.
    assert lacks == ({"ebpf.faults"} if guest.kernel.series == "6.1" else set())
    for name in lacks:
        assert checks[name]["state"] == "degraded" and checks[name]["found"]


def test_every_program_loads_and_the_recorded_facts_still_hold(guest: Guest) -> None:
    assert passed(guest, "check_kernel")
    found = fact(guest, "facts")
    recorded = json.loads((RECORDED / f"{guest.kernel.series}.json").read_text())
    for name in ("machine", "btf", "symbols", "perf_event_paranoid", "initial_pid_ns"):
        assert found[name] == recorded[name], name


def test_waits_faults_and_births_are_seen_rightly(guest: Guest) -> None:
    assert passed(guest, "check_waits")


@pytest.mark.bcc
@pytest.mark.parametrize("checks", ["check_kernel", "check_waits"])
def test_the_same_holds_by_way_of_bcc(guest: Guest, checks: str) -> None:
    """Compiled in the guest, where there are no headers of any kernel."""
    headers = f"/lib/modules/{guest.kernel.release}/build"
    assert guest.run("busybox", "test", "-e", headers, check=False).code
    assert passed(guest, checks, backend="bcc") >= 3
    if checks == "check_kernel":
        assert fact(guest, "backend") == "bcc"


def test_delays_made_on_purpose_are_attributed(guest: Guest) -> None:
    """Short of what holds on real machines: an emulated one's CPUs take turns."""
    done = guest.gpucorrelate("verify", "--quick", "-o", "/root/truth.json", check=False)
    assert done.code in (0, 8), done.text
    truth = json.loads(guest.read("/root/truth.json"))
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / f"verify-{guest.kernel.series}.json").write_text(json.dumps(truth, indent=1))
    total = truth["total"]
    assert total["category_share"] > 0.6, done.text
    assert total["culprit_share"] > 0.6, done.text
    assert total["false_share"] < 0.05, done.text
    rows = {row["name"]: row for row in truth["scenarios"]}
    for name in ("epoll", "poll", "read", "nanosleep", "untraced-peer", "fork-exec"):
        assert rows[name]["category_share"] > 0.6, done.text
