# SPDX-License-Identifier: Apache-2.0
"""Counters of NVIDIA's GPUs, from the best source there is: NVML, else nvidia-smi.

Where a GPU has no memory of its own (GB10, Jetson), the machine's stands in for it.
"""

from __future__ import annotations

import enum
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.probes.host.gpu_metrics import MEMORY_USED, UNIFIED_AVAILABLE, UNIFIED_TOTAL
from gpucorrelate.probes.host.kernel_text import Key, parse_sizes
from gpucorrelate.probes.host.numa import read_text
from gpucorrelate.probes.host.procfs import PROC
from gpucorrelate.probes.host.reading import Missing, Reading, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: How a source says that a GPU does not have a number at all.
NOT_SUPPORTED = "this GPU does not support it"

_BUS_ID = re.compile(
    r"(?:([0-9a-fA-F]{4}|[0-9a-fA-F]{8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
)
#: GPUs that are part of the chip and share its memory. A GPU of another name that does not
#: tell its memory (a slice of one, a lost one) does not get the machine's instead.
_INTEGRATED = re.compile(r"\b(?:GB10|Jetson|Tegra|Xavier|Orin|Thor)\b", re.IGNORECASE)
_MEMINFO = {"MemTotal": Key(UNIFIED_TOTAL), "MemAvailable": Key(UNIFIED_AVAILABLE)}


class Pace(enum.IntEnum):
    """How often a number is worth its price."""

    FAST = 0  # some microseconds each: every round
    SLOW = 1  # slow to change, or milliseconds to get: every few seconds


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver knows it.

    Attributes:
        index: Number the driver gave it; CUDA may count in another order.
        uuid: ``GPU-...``, the same after a reboot.
        address: Its place in sysfs, ``0000:01:00.0``; empty if unknown.
        name: What it is: ``NVIDIA H200``.
    """

    index: int
    uuid: str
    address: str
    name: str

    @property
    def subject(self) -> str:
        """Of whom its numbers are."""
        return f"gpu:{self.uuid}"


class Source(Protocol):
    """Where the numbers come from."""

    @property
    def name(self) -> str:
        """``nvml`` or ``nvidia-smi``."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs it tells about."""

    def sample(self, pace: Pace) -> Sample:
        """Ask; ``SLOW`` asks for everything. Blocks as long as the driver takes."""

    def close(self) -> None:
        """Let go; twice does no harm."""


@dataclass(frozen=True)
class Opened:
    """The source that could be had, and why better ones could not."""

    source: Source | None
    missing: tuple[Missing, ...] = ()


def open_source() -> Opened:
    """NVML, else nvidia-smi, else none."""
    # Each imports this module, and most machines need one of them at most.
    from gpucorrelate.probes.host.gpu_nvml import Nvml
    from gpucorrelate.probes.host.gpu_smi import Smi

    missing: list[Missing] = []
    for kind in (Nvml, Smi):
        found = kind.open()
        if not isinstance(found, Missing):
            return Opened(found, tuple(missing))
        missing.append(found)
    return Opened(None, tuple(missing))


def sysfs_address(bus_id: str) -> str:
    """``00000000:01:00.0`` of the driver as sysfs writes it; empty for what is none."""
    match = _BUS_ID.fullmatch(bus_id.strip())
    if match is None:
        return ""
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}"


def shares_memory(gpu: Gpu) -> bool:
    """Whether the GPU is part of the chip and uses the machine's memory, by its name."""
    return _INTEGRATED.search(gpu.name) is not None


def unified_memory(gpus: Iterable[Gpu], sample: Sample, root: Path = PROC) -> Sample:
    """The machine's memory for GPUs that share it and whose driver therefore tells none.

    Args:
        gpus: The GPUs that were asked.
        sample: What they answered.
        root: Of the proc file system.
    """
    silent = {
        missing.subject
        for missing in sample.missing
        if missing.what == MEMORY_USED.name and missing.reason == NOT_SUPPORTED
    }
    wanted = [gpu.subject for gpu in gpus if gpu.subject in silent and shares_memory(gpu)]
    if not wanted:
        return Sample()
    t_ns = time.monotonic_ns()
    values = parse_sizes(read_text(root / "meminfo") or "", _MEMINFO).values
    readings = tuple(
        Reading(one.metric, subject, one.value, t_ns) for subject in wanted for one in values
    )
    if readings:
        return Sample(readings)
    why = "meminfo cannot be read"
    return Sample((), tuple(Missing(UNIFIED_AVAILABLE.name, subject, why) for subject in wanted))
