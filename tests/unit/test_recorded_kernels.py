# SPDX-License-Identifier: Apache-2.0
"""What follows from facts that Debian's stable kernels said of themselves.

``scripts/capture_kernel_facts.py`` recorded them; tests/qemu sees that they still hold.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucorrelate.probes.ebpf import support
from gpucorrelate.probes.ebpf.support import KernelFacts
from gpucorrelate.probes.ebpf.syscall_numbers import ARM64

KERNELS = Path(__file__).parent / "data" / "kernels"


def recorded(series: str) -> KernelFacts:
    found = json.loads((KERNELS / f"{series}.json").read_text())
    return KernelFacts(**found | {"symbols": frozenset(found["symbols"])})


@pytest.mark.parametrize("series", ["6.1", "6.12"])
def test_a_stable_kernel_can_be_traced(series: str) -> None:
    facts = recorded(series)
    assert facts.release.startswith(f"{series}.")
    found = support.decide(facts)
    assert found.usable and found.spins
    assert {"wait_switch", "wait_waking", "fault_user", "fault_major"} <= set(found.programs)
    assert set(support.CONTEXT_PROGRAMS) <= set(found.programs)


def test_linux_6_12_lacks_nothing() -> None:
    found = support.decide(recorded("6.12"))
    assert found.missing == ()
    assert "fault_file" in found.programs


def test_linux_6_1_does_not_name_the_files_of_faults() -> None:
    found = support.decide(recorded("6.1"))
    (missing,) = found.missing
    assert (missing.what, missing.fatal) == ("ebpf.faults", False)
    assert "mm_filemap_fault" in missing.why
    assert "fault_file" not in found.programs


def test_debians_paranoia_is_in_the_facts_and_matters_to_a_daemon_without_sys_admin() -> None:
    for path in sorted(KERNELS.glob("*.json")):
        facts = recorded(path.stem)
        assert facts.perf_event_paranoid == 3
        modest = KernelFacts(**{**vars(facts), "capabilities": 1 << 38 | 1 << 39})
        assert not set(support.FAULT_EVENTS) & set(support.decide(modest).programs)
        wanted = set() if facts.machine == ARM64 else set(support.FAULT_EVENTS)
        assert set(support.FAULT_EVENTS) & set(support.decide(facts).programs) == wanted
