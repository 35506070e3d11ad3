# SPDX-License-Identifier: Apache-2.0
"""Limits of cgroup v2, enforced by real kernels: found above the process, and charged rightly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.qemu.checks import fact, passed
from tests.qemu.guest import Guest

if TYPE_CHECKING:
    from pathlib import Path

#: What the pollers of pressure and of cgroups miss.
_MISSING = """
import json, os
from gpucorrelate.probes.host.cgroup import CgroupPoller
from gpucorrelate.probes.host.psi import PsiPoller
found = PsiPoller().poll(everything=True)
assert not [one for one in found.readings if "pressure" in one.metric.name], found.readings
of_cgroups = CgroupPoller().poll((os.getpid(),), everything=True).sample
assert not [one for one in of_cgroups.readings if "pressure" in one.metric.name]
print(json.dumps([one.what for one in found.missing]))
"""


def test_limits_kills_reads_and_pressure(guest: Guest) -> None:
    assert passed(guest, "check_cgroups")
    # cpu.stat.local came with Linux 6.6.
    assert fact(guest, "cpu.stat.local") == (guest.kernel.series != "6.1")


def test_a_recording_names_the_cgroup_whose_quota_was_used_up(guest: Guest) -> None:
    assert passed(guest, "check_daemon")


def test_pressure_run_delay_and_waits_for_pages(guest: Guest) -> None:
    assert passed(guest, "check_host")
    assert {f"{one}.pressure.some.total" for one in ("cpu", "memory", "io")} <= set(
        fact(guest, "pressure")
    )


def test_a_kernel_without_pressure_is_told(guest: Guest, image: Path) -> None:
    with Guest(guest.kernel, image, "psi=0") as calm:
        report = json.loads(calm.gpucorrelate("check", "--format", "json").text)
        (pressure,) = [one for one in report["checks"] if one["name"] == "pressure"]
        assert pressure["state"] == "missing"
        assert pressure["mend"] == "boot with psi=1"
        told = json.loads(calm.python("-c", _MISSING).text)
    assert [what for what in told if "pressure" in what]
