# SPDX-License-Identifier: Apache-2.0
"""The daemon tells of a GPU that gets a driver, loses it, goes and comes back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.probes.host.devices import read_gpus
from tests.qemu.inside.kit import GREEDY, IDLE, child, daemons, keep, wait_for

_PCI = Path("/sys/bus/pci")
_MODULES = Path("/lib/modules") / os.uname().release


def test_what_becomes_of_a_gpu_is_recorded() -> None:
    (gpu,) = read_gpus()
    assert gpu.driver is None
    for name in ("uio", "uio_pci_generic"):
        subprocess.run(["busybox", "insmod", str(_MODULES / f"{name}.ko")], check=True)
    device = _PCI / "devices" / gpu.address
    driver = _PCI / "drivers" / "uio_pci_generic"
    subject = f"pci:{gpu.address}"
    with daemons() as yard, child(IDLE) as process:
        daemon = yard.daemon(poll_ms=100, **GREEDY).start()
        session = daemon.client.attach(process.pid).session.session

        def told() -> list[tuple[str, str, str]]:
            found = Capture.from_batches(daemon.client.open_session(session))
            rows = found.table("change")
            return [
                (found.strings[what], found.strings[before], found.strings[after])
                for whose, what, before, after in zip(
                    *(rows[c].tolist() for c in ("subject", "what", "before", "after")),
                    strict=True,
                )
                if found.strings[whose] == subject
            ]

        name = f"AMD 1002:{gpu.model:04x}"
        wait_for(lambda: ("device", "", name) in told(), "the GPU is there", seen=told)
        (driver / "new_id").write_text(f"1002 {gpu.model:04x}")
        if not (device / "driver").exists():
            (driver / "bind").write_text(gpu.address)
        wait_for(lambda: ("driver", "", "uio_pci_generic") in told(), "its driver", seen=told)
        (driver / "unbind").write_text(gpu.address)
        wait_for(lambda: ("driver", "uio_pci_generic", "") in told(), "it has none", seen=told)
        (device / "remove").write_text("1")
        wait_for(lambda: ("device", name, "") in told(), "it is gone", seen=told)
        seen = len(told())
        (_PCI / "rescan").write_text("1")
        wait_for(lambda: ("device", "", name) in told()[seen:], "it is back", seen=told)
        keep("gpu changes", told())
    assert [one.address for one in read_gpus()] == [gpu.address]
    (driver / "remove_id").write_text(f"1002 {gpu.model:04x}")
    if (device / "driver").exists():
        (driver / "unbind").write_text(gpu.address)
