# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself takes from the machine besides CPU time, and how full its limits are.

CPU time is counted elsewhere (``effort``), all the time; this is read when somebody asks.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from pathlib import Path

from gpucorrelate.probes.ebpf import footprint

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_KIB = 1024


@dataclass(frozen=True)
class ProgramCost:
    """A kernel program, or several whose names begin alike: the kernel keeps 15 letters.

    Attributes:
        name: Its name.
        run_ns: Time spent in it while the kernel measured, all CPUs together.
        runs: Times it ran meanwhile.
        missed: Times it was not run as it was running already on that CPU.
    """

    name: str
    run_ns: int = 0
    runs: int = 0
    missed: int = 0


@dataclass(frozen=True)
class Overhead:
    """What the daemon holds. None: it cannot be told here.

    Attributes:
        rss_bytes: Memory of the process that is in RAM.
        peak_rss_bytes: The most that it was.
        memory_limit_bytes: What its control group allows; None: no limit is known.
        threads: Threads.
        descriptors: Open files.
        descriptors_most: As many as it may have.
        bpf_programs: Kernel programs loaded.
        bpf_maps: Maps of them, rings included.
        bpf_bytes: Memory of the kernel that both take.
        measured: Whether ``kernel.bpf_stats_enabled`` has the kernel measure programs.
        programs: What the kernel measured of them, since it does.
    """

    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    memory_limit_bytes: int | None = None
    threads: int | None = None
    descriptors: int | None = None
    descriptors_most: int | None = None
    bpf_programs: int | None = None
    bpf_maps: int | None = None
    bpf_bytes: int | None = None
    measured: bool = False
    programs: tuple[ProgramCost, ...] = ()


@dataclass(frozen=True)
class Fill:
    """How full a limit is.

    Attributes:
        name: Of what.
        used: So much of it is used.
        most: So much may be.
        unit: ``bytes``, or empty for a count.
    """

    name: str
    used: int
    most: int
    unit: str = ""


@dataclass(frozen=True)
class HopLoss:
    """What was lost at one hop since the daemon started.

    Attributes:
        hop: Its name, as in recordings; ``bpf`` is all hops within the kernel.
        lost: How many.
        unit: Of what.
    """

    hop: str
    lost: int
    unit: str = "rows"


def read() -> Overhead:
    """What this process holds now; takes a few milliseconds."""
    status = _kib_and_counts(_read(_STATUS))
    found = Overhead(
        rss_bytes=status.get("VmRSS"),
        peak_rss_bytes=status.get("VmHWM"),
        memory_limit_bytes=_memory_limit(),
        threads=status.get("Threads"),
        descriptors=_descriptors(),
        descriptors_most=_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        measured=footprint.setting_on(),
    )
    try:
        loaded = footprint.read()
    except OSError:
        return found
    memory = sum(one.memory_bytes for one in loaded.programs)
    memory += sum(one.memory_bytes for one in loaded.maps)
    return replace(
        found,
        bpf_programs=len(loaded.programs),
        bpf_maps=len(loaded.maps),
        bpf_bytes=memory,
        programs=costs(loaded.programs),
    )


def costs(programs: tuple[footprint.ProgramUse, ...]) -> tuple[ProgramCost, ...]:
    """Programs by name, those that ran for the longest time first."""
    found: dict[str, ProgramCost] = {}
    for one in programs:
        name = one.name or f"program {one.number}"
        known = found.get(name, ProgramCost(name))
        found[name] = ProgramCost(
            name,
            known.run_ns + one.run_ns,
            known.runs + one.runs,
            known.missed + one.missed,
        )
    return tuple(sorted(found.values(), key=lambda cost: (-cost.run_ns, cost.name)))


def between(
    before: tuple[ProgramCost, ...], after: tuple[ProgramCost, ...]
) -> tuple[ProgramCost, ...]:
    """What programs did between two readings; those that did nothing are left out."""
    known = {one.name: one for one in before}
    found = []
    for one in after:
        old = known.get(one.name, ProgramCost(one.name))
        if one.runs > old.runs:
            missed = one.missed - old.missed
            cost = ProgramCost(one.name, one.run_ns - old.run_ns, one.runs - old.runs, missed)
            found.append(cost)
    return tuple(sorted(found, key=lambda cost: (-cost.run_ns, cost.name)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kib_and_counts(text: str) -> dict[str, int]:
    """Numbers of ``/proc/self/status``; sizes are told in kB, which are KiB."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if number.isdecimal():
            found[name] = int(number) * (_KIB if unit == "kB" else 1)
    return found


def _descriptors() -> int | None:
    try:
        # The one that lists them is none of them.
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    except OSError:
        return None


def _finite(limit: int) -> int | None:
    return limit if limit != resource.RLIM_INFINITY else None


def _memory_limit() -> int | None:
    """``memory.max`` of this process's own group of cgroup v2; ancestors may allow less."""
    for line in _read(_CGROUP).splitlines():
        if not line.startswith("0::/"):
            continue
        for root in _CGROUP_ROOTS:
            text = _read(root / line[4:] / "memory.max").strip()
            if text.isdecimal():
                return int(text)
    return None
