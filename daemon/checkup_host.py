# SPDX-License-Identifier: Apache-2.0
"""Which of the host's numbers can be read here, each asked for as the daemon would."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.daemon import privileges
from gpucorrelate.daemon.checkup_values import Check, CheckState, ok
from gpucorrelate.daemon.look_engine import endpoint
from gpucorrelate.probes.host import gpu, numa
from gpucorrelate.probes.host.device_events import DeviceMonitor
from gpucorrelate.probes.host.devices import read_gpus
from gpucorrelate.probes.host.psi_triggers import PressureTriggers
from gpucorrelate.probes.host.reading import Missing
from gpucorrelate.probes.host.threads import ThreadPoller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRIVER = Path("proc/driver/nvidia/version")
_COUNTERS = "utilization, memory, clocks, power and temperature of GPUs beside a request"
_SMI = "nvidia-smi"


def run(engines: Sequence[int]) -> list[Check]:
    """Look at all of them.

    Args:
        engines: Processes of engines that run now.
    """
    root = Path("/")
    return [
        cgroups(root), pressure(root), numa_nodes(root / "sys"), threads(), gpus(root), devices(),
        engine_metrics(engines),
    ]  # fmt: skip


def cgroups(root: Path) -> Check:
    """Limits and use of cgroups, below a root of the file system."""
    base = root / "sys/fs/cgroup"
    lost = "which cgroup's limits held the engine: quotas, memory"
    if (base / "cgroup.controllers").exists():
        names = (base / "cgroup.controllers").read_text(encoding="ascii").split()
        found = f"v2 with {', '.join(names) or 'no controllers'}"
        if {"cpu", "memory"} <= set(names):
            return ok("cgroup", f"{found}: limits and use are read")
        mend = "have the controllers cpu and memory on: systemd does where they are compiled in"
        return Check("cgroup", CheckState.DEGRADED, found, lost, mend)
    if not base.is_dir():
        return Check("cgroup", CheckState.MISSING, "no cgroups", lost)
    found = "v1 and v2" if (base / "unified/cgroup.controllers").exists() else "v1"
    there = [name for name in ("cpu", "memory") if (base / name).is_dir()]
    found += f" with {', '.join(there) or 'neither cpu nor memory'}"
    if len(there) == len(("cpu", "memory")):
        return ok("cgroup", f"{found}: limits and use are read")
    mend = "mount the hierarchies of cpu and memory below /sys/fs/cgroup"
    return Check("cgroup", CheckState.DEGRADED, found, lost, mend)


def pressure(root: Path) -> Check:
    """Pressure of the machine, below a root of the file system."""
    if not (root / "proc/pressure/cpu").exists():
        return Check(
            "pressure",
            CheckState.MISSING,
            "the kernel has no PSI",
            "the host's CPU, memory and I/O pressure beside a request",
            "boot with psi=1",
        )
    found = "PSI is on: time lost for want of CPU, memory and disk is read"
    triggers = PressureTriggers(root)
    triggers.poll(())
    standing = triggers.standing()
    triggers.close()
    if standing.works:
        late = " up to 2 s later" if standing.missing else ""
        return ok("pressure", f"{found}; the kernel tells of stalls in between{late}")
    why = dict.fromkeys(one.reason for one in standing.missing)
    return Check(
        "pressure", CheckState.DEGRADED, f"{found}; triggers cannot be set: {'; '.join(why)}",
        "that numbers are read more often at once when tasks stand still",
    )  # fmt: skip


def numa_nodes(sys: Path) -> Check:
    """NUMA nodes, below the root of a sys file system."""
    found = numa.read_topology(sys)
    if isinstance(found, Missing):
        return Check(
            "numa", CheckState.MISSING, found.reason,
            "whether threads, their memory and their GPU are on one node",
        )  # fmt: skip
    count = len(found.nodes)
    if count == 1:
        return ok("numa", "1 node: everything is near everything")
    return ok("numa", f"{count} nodes: what is bound where, and where memory lies, is read")


def threads() -> Check:
    """Threads, tried on a thread of this process that waits."""
    over = threading.Event()
    waiting = threading.Thread(target=over.wait, daemon=True)
    waiting.start()
    poller = ThreadPoller()
    try:
        poller.poll((os.getpid(),), everything=True)
        missing = poller.standing().missing
    finally:
        over.set()
        waiting.join()
        poller.close()
    lost = "how long threads were ready without a CPU, or what they stood blocked in"
    if missing:
        why = "; ".join(f"{one.what}: {one.reason}" for one in missing)
        return Check("threads", CheckState.DEGRADED, why, lost)
    has = privileges.current()
    if has.uid != 0 and "CAP_SYS_PTRACE" not in has.names:
        mend = "sudo gpucorrelate check"
        return Check("threads", CheckState.DEGRADED, "of this user's processes only", lost, mend)
    return ok("threads", "CPU time, run-queue delay, faults and what blocks them is read")


def gpus(root: Path, open_source: Callable[[], gpu.Opened] = gpu.open_source) -> Check:
    """The GPUs' own counters, and who would tell of them.

    Args:
        root: Root of the file system, where the driver shows.
        open_source: Finds who tells of GPUs.
    """
    opened = open_source()
    why = "; ".join(f"{one.what}: {one.reason}" for one in opened.missing)
    if opened.source is None:
        plain = (root / _DRIVER).exists() or "no NVIDIA driver" in why
        found = why if plain else f"no NVIDIA driver ({why})"
        mend = "pip install 'gpucorrelate[gpu]'" if (root / _DRIVER).exists() else ""
        lost = f"{_COUNTERS}; time in kernels and copies shows as the CPU's waits"
        return Check("gpu", CheckState.MISSING, found, lost, mend)
    name, count = opened.source.name, len(opened.source.gpus)
    opened.source.close()
    told = f"{count} {'GPU' if count == 1 else 'GPUs'}: counters are read through {name}"
    profiles = "kernels and copies come from profiles (gpucorrelate import)"
    if name == _SMI:
        return Check(
            "gpu", CheckState.DEGRADED, f"{told}, as {why}; {profiles}",
            f"{_COUNTERS} more often than every 5 s: each look is a process",
            "pip install 'gpucorrelate[gpu]' in the daemon's environment",
        )  # fmt: skip
    return ok("gpu", f"{told}; {profiles}")


def devices() -> Check:
    """GPUs as devices, and whether the kernel tells of those that come and go."""
    count = len(read_gpus())
    found = f"{count} {'GPU' if count == 1 else 'GPUs'} on the PCI bus"
    monitor = DeviceMonitor.open()
    if isinstance(monitor, Missing):
        return Check(
            "devices", CheckState.DEGRADED, f"{found}; {monitor.what}: {monitor.reason}",
            "GPUs and drivers that come and go again within 5 s",
            "pip install 'gpucorrelate[daemon]'; libudev.so.1 and the kernel's uevents are needed",
        )  # fmt: skip
    monitor.close()
    return ok("devices", f"{found}; the kernel tells of GPUs and drivers that come and go")


def engine_metrics(engines: Sequence[int]) -> Check:
    """Where the engines' own metrics would be asked for.

    Args:
        engines: Processes of engines that run now.
    """
    name = "engine.metrics"
    if not engines:
        return ok(name, "no engine runs; where one does its /metrics are read every 5 s")
    found = endpoint(engines)
    if found is None:
        return Check(
            name, CheckState.DEGRADED, "no engine's process listens where its server would",
            "use of the KV cache and queues, where no agent tells of them",
        )  # fmt: skip
    return ok(name, f"http://{found.shown}/metrics is read every 5 s")
