# SPDX-License-Identifier: Apache-2.0
"""What ``check`` finds on this host and what it makes of facts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpucorrelate.daemon import checkup, checkup_host
from gpucorrelate.daemon.checkup import CheckReport
from gpucorrelate.daemon.checkup_values import Check, CheckState
from gpucorrelate.probes.ebpf import support
from gpucorrelate.probes.ebpf.bcc import FoundBcc
from gpucorrelate.probes.host.gpu import Gpu, Opened, Pace
from gpucorrelate.probes.host.reading import Missing, Sample

ALL = frozenset(
    {
        *support._TRACEPOINTS,
        *support._SYMBOLS,
    }
)
FULL = support.KernelFacts(
    machine="x86_64",
    release="6.1.0",
    btf=True,
    symbols=ALL,
    capabilities=(1 << 41) - 1,
    perf_event_paranoid=2,
    initial_pid_ns=True,
    lockdown="none",
    libbpf="1.1",
    object_built=True,
)


def named(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def kernel_checks(facts: support.KernelFacts, backend: str = "libbpf") -> list[Check]:
    found = support.decide(facts, backend=backend)
    return [*checkup.facts_of_kernel(facts, found.backend), *checkup.sources_of_kernel(found)]


def test_a_host_that_has_everything_lacks_nothing() -> None:
    checks = kernel_checks(FULL)
    assert {check.state for check in checks} == {CheckState.OK}
    assert not any(check.lost or check.mend for check in checks)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"btf": False}, "kernel.btf"),
        ({"libbpf": None}, "kernel.libbpf"),
        ({"object_built": False}, "kernel.programs"),
        ({"capabilities": 0}, "ebpf.sched"),
        ({"machine": "riscv64"}, "ebpf.sched"),
        ({"lockdown": "confidentiality"}, "ebpf.sched"),
    ],
)
def test_what_the_main_job_needs_is_missing(change: dict[str, object], name: str) -> None:
    facts = replace(FULL, **change)  # type: ignore[arg-type]
    found = kernel_checks(facts)
    check = named(found)[name]
    assert check.state is CheckState.MISSING
    assert check.needed
    assert "waits" in check.lost
    assert not CheckReport("1", "k", tuple(found)).usable


def test_bcc_takes_the_place_of_libbpf_and_of_what_was_compiled() -> None:
    facts = replace(FULL, libbpf=None, object_built=False, bcc=FoundBcc("/usr/lib/bcc", "0.26.0"))
    checks = named(kernel_checks(facts, "bcc"))
    assert {check.state for check in checks.values()} == {CheckState.OK}
    assert "0.26.0 in /usr/lib/bcc" in checks["kernel.bcc"].found
    missing = named(kernel_checks(replace(facts, bcc=None), "bcc"))["kernel.bcc"]
    assert missing.state is CheckState.MISSING and missing.needed
    assert "python3-bpfcc" in missing.mend


def test_debians_stricter_perf_setting_degrades_faults_only() -> None:
    facts = replace(FULL, perf_event_paranoid=3, capabilities=1 << 38 | 1 << 39)
    found = kernel_checks(facts)
    checks = named(found)
    assert checks["kernel.perf_event_paranoid"].state is CheckState.DEGRADED
    assert "sysctl kernel.perf_event_paranoid=2" in checks["kernel.perf_event_paranoid"].mend
    assert checks["ebpf.faults"].state is CheckState.DEGRADED
    assert checks["ebpf.sched"].state is CheckState.OK
    assert CheckReport("1", "k", tuple(found)).usable


def test_a_container_is_named_as_one() -> None:
    facts = replace(FULL, initial_pid_ns=False)
    check = named(checkup.sources_of_kernel(support.decide(facts)))["ebpf.pidns"]
    assert check.state is CheckState.DEGRADED
    assert check.mend


def test_every_leg_is_named_on_this_host() -> None:
    report = checkup.run()
    checks = named(list(report.checks))
    assert len(checks) == len(report.checks), "each once"
    assert {"privileges", "kernel.btf", "kernel.libbpf", "kernel.programs", "ebpf.sched",
            "ebpf.faults", "kernel.perf_event_paranoid", "cgroup", "pressure", "group", "daemon",
            "engine.agent", "engine.environment", "engine.processes", "engine.metrics", "gpu",
            "numa", "threads", "devices"} \
        <= set(checks)  # fmt: skip
    for check in report.checks:
        assert check.found
        assert "\n" not in check.found + check.lost + check.mend
        if check.state is not CheckState.OK:
            assert check.lost, f"{check.name}: what is lost must be said"
    if not Path("/proc/driver/nvidia/version").exists():
        assert checks["gpu"].state is CheckState.MISSING
        assert "no NVIDIA driver" in checks["gpu"].found
    assert report.usable == (
        not any(check.needed and check.state is CheckState.MISSING for check in report.checks)
    )


def test_a_daemon_that_does_not_run_is_a_missing_leg(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUCORRELATE_CONTROL", str(tmp_path / "none"))
    check = named(list(checkup.run().checks))["daemon"]
    assert check.state is CheckState.MISSING
    assert "systemctl start gpucorrelate" in check.mend


def test_pressure_and_cgroups_of_other_hosts(tmp_path: Path) -> None:
    assert checkup_host.cgroups(tmp_path).found.startswith("no cgroups")
    assert checkup_host.pressure(tmp_path).state is CheckState.MISSING
    base = tmp_path / "sys/fs/cgroup"
    base.mkdir(parents=True)
    bare = checkup_host.cgroups(tmp_path)
    assert (bare.found, bare.state) == ("v1 with neither cpu nor memory", CheckState.DEGRADED)
    for name in ("unified", "cpu", "memory"):
        (base / name).mkdir()
    (base / "unified/cgroup.controllers").write_text("\n")
    mixed = checkup_host.cgroups(tmp_path)
    assert mixed.found.startswith("v1 and v2 with cpu, memory")
    assert mixed.state is CheckState.OK
    (base / "cgroup.controllers").write_text("cpu memory\n")
    whole = checkup_host.cgroups(tmp_path)
    assert (whole.found, whole.state) == (
        "v2 with cpu, memory: limits and use are read", CheckState.OK
    )  # fmt: skip
    (base / "cgroup.controllers").write_text("hugetlb\n")
    assert checkup_host.cgroups(tmp_path).state is CheckState.DEGRADED
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/pressure/cpu").touch()
    assert checkup_host.pressure(tmp_path).state is CheckState.OK


class Card:
    """A source of GPUs' numbers, played by the protocol that sources have."""

    gpus = (Gpu(0, "GPU-1", "0000:01:00.0", "NVIDIA H200"),)

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def sample(self, _pace: Pace) -> Sample:
        return Sample()

    def close(self) -> None:
        self.closed = True


def test_who_would_tell_of_gpus_is_named(tmp_path: Path) -> None:
    nvml = Missing("nvml", "host", "nvidia-ml-py is not installed")
    smi = Missing("nvidia-smi", "host", "no nvidia-smi in PATH")
    best, second = Card("nvml"), Card("nvidia-smi")
    found = checkup_host.gpus(tmp_path, lambda: Opened(best))
    assert (found.state, best.closed) == (CheckState.OK, True)
    assert "1 GPU: counters are read through nvml" in found.found
    found = checkup_host.gpus(tmp_path, lambda: Opened(second, (nvml,)))
    assert found.state is CheckState.DEGRADED
    assert "through nvidia-smi, as nvml: nvidia-ml-py is not installed" in found.found
    assert "gpucorrelate[gpu]" in found.mend
    found = checkup_host.gpus(tmp_path, lambda: Opened(None, (nvml, smi)))
    assert found.state is CheckState.MISSING
    assert "no NVIDIA driver" in found.found
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.touch()
    found = checkup_host.gpus(tmp_path, lambda: Opened(None, (nvml, smi)))
    assert found.found == "nvml: nvidia-ml-py is not installed; nvidia-smi: no nvidia-smi in PATH"
    assert "gpucorrelate[gpu]" in found.mend


def test_numa_of_other_hosts(tmp_path: Path) -> None:
    assert checkup_host.numa_nodes(tmp_path).state is CheckState.MISSING
    for number in (0, 1):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{number}\n")
        found = checkup_host.numa_nodes(tmp_path)
        assert found.state is CheckState.OK
        assert found.found.startswith(f"{number + 1} node")


def test_an_engine_that_serves_nobody_has_no_metrics() -> None:
    found = checkup_host.engine_metrics([os.getpid()])
    assert (found.state, bool(found.lost)) == (CheckState.DEGRADED, True)


def test_a_variable_that_switches_the_agent_off_is_named_with_where_it_is_set() -> None:
    look = checkup.engine_environment
    assert look({}, {}) == Check(
        "engine.environment", CheckState.OK, "nothing switches the agent off here"
    )
    fine = {"GPUCORRELATE_DISABLE": "0", "VLLM_PLUGINS": "lora,gpucorrelate"}
    assert look(fine, {7: {}}).found == (
        "nothing switches the agent off here or in 1 running process"
    )
    off = look({}, {7: {}, 9: {"GPUCORRELATE_DISABLE": "1"}})
    assert off.state is CheckState.DEGRADED
    assert off.found == "GPUCORRELATE_DISABLE is set in process 9"
    assert "unset GPUCORRELATE_DISABLE" in off.mend
    other = look({"VLLM_PLUGINS": "lora"}, {})
    assert other.found == "VLLM_PLUGINS leaves gpucorrelate out here"
    assert "requests" in other.lost
    hidden = look({}, {7: None})
    assert (hidden.state, hidden.mend) == (CheckState.DEGRADED, "sudo gpucorrelate check")


def test_of_a_processs_variables_only_two_are_read() -> None:
    env = {"GPUCORRELATE_DISABLE": "1", "VLLM_PLUGINS": "a", "HF_TOKEN": "secret"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = checkup._environment(process.pid)
        process.communicate(b"\n")
    assert found == {"GPUCORRELATE_DISABLE": "1", "VLLM_PLUGINS": "a"}
    assert checkup._environment(process.pid) is None
