# SPDX-License-Identifier: Apache-2.0
"""What the daemon and the engine hold, as the kernel tells it; neither is asked."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from gpucorrelate.probes.ebpf import footprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What was held at one moment.

    Attributes:
        rss_bytes: Memory of the daemon that is in RAM.
        descriptors: Open files of the daemon.
        threads: Threads of the daemon.
        programs: BPF programs that it has loaded.
        maps: BPF maps that it has open.
        bpf_bytes: Memory of the kernel that both take.
        disk_bytes: Size of all recordings.
        engine_rss_bytes: Memory of the engine's processes that is in RAM.
        engine_descriptors: Open files of the engine's processes.
        engine_threads: Threads of the engine's processes.
    """

    rss_bytes: int
    descriptors: int
    threads: int
    programs: int
    maps: int
    bpf_bytes: int
    disk_bytes: int
    engine_rss_bytes: int
    engine_descriptors: int
    engine_threads: int


def take(daemon: int, state_dir: Path, engine: Iterable[int]) -> Sample:
    """The sample of this moment.

    Args:
        daemon: Process id of the daemon.
        state_dir: Where its recordings are.
        engine: Process ids of the engine.

    Raises:
        psutil.NoSuchProcess: the daemon is gone.
        OSError: its descriptors may not be read.
    """
    process = psutil.Process(daemon)
    loaded = footprint.read(daemon)
    served = [held for held in map(_held, engine) if held]
    return Sample(
        rss_bytes=process.memory_info().rss,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        programs=len(loaded.programs),
        maps=len(loaded.maps),
        bpf_bytes=sum(one.memory_bytes for one in loaded.programs)
        + sum(one.memory_bytes for one in loaded.maps),
        disk_bytes=sum(_size(path) for path in state_dir.rglob("*")),
        engine_rss_bytes=sum(rss for rss, _, _ in served),
        engine_descriptors=sum(fds for _, fds, _ in served),
        engine_threads=sum(threads for _, _, threads in served),
    )


def _held(pid: int) -> tuple[int, int, int] | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.memory_info().rss, process.num_fds(), process.num_threads()
    return None


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0


@dataclass(frozen=True)
class Rule:
    """What flat means of one of a sample's numbers.

    Attributes:
        field: The number's name in ``Sample``.
        label: Its name in the table.
        share: It may grow by so much of its level in the second half.
        floor: It may grow by so much whatever its level: less is no growth, or cannot be told.
        unit: What it is divided by in the table; 1 for a count.
        limit: It may never be more; for what comes and goes in big pieces, so that a slope over
            a few minutes says nothing. None: it has none, and its slope is judged.
    """

    field: str
    label: str
    share: float
    floor: float
    unit: int = 1
    limit: float | None = None


#: All recordings, by the daemon's settings; whole ones are deleted, and only every other second.
DISK_BYTES = 32 * _MIB
_DISK_SLACK_BYTES = 8 * _MIB

#: A twentieth of the memory, for allocators never give back all; of what can be counted not one.
RULES = (
    Rule("rss_bytes", "memory, MiB", 0.05, 4 * _MIB, _MIB),
    Rule("descriptors", "open files", 0.0, 0.9),
    Rule("threads", "threads", 0.0, 0.9),
    Rule("programs", "BPF programs", 0.0, 0.9),
    Rule("maps", "BPF maps", 0.0, 0.9),
    Rule("bpf_bytes", "BPF memory, MiB", 0.02, _MIB / 4, _MIB),
    Rule("disk_bytes", "recordings, MiB", 0.0, 0.0, _MIB, DISK_BYTES + _DISK_SLACK_BYTES),
    Rule("engine_rss_bytes", "engine's memory, MiB", 0.02, 8 * _MIB, _MIB),
    Rule("engine_descriptors", "engine's open files", 0.0, 0.9),
    Rule("engine_threads", "engine's threads", 0.0, 0.9),
)


@dataclass(frozen=True)
class Trend:
    """How a number went in the second half of the run.

    Attributes:
        rule: Whose, and what it may do.
        first: Its median in the first quarter of the whole run.
        level: Its median in the second half.
        growth: What it grew by from the beginning of the second half to the end, by its slope.
        most: The most that it was in the whole run.
    """

    rule: Rule
    first: float
    level: float
    growth: float
    most: float

    @property
    def allowed(self) -> float:
        """What it may grow by; where it has a limit, that less its level."""
        if self.rule.limit is not None:
            return self.rule.limit - self.level
        return max(self.rule.share * self.level, self.rule.floor)

    @property
    def flat(self) -> bool:
        """Whether it did not grow, or stayed below its limit."""
        if self.rule.limit is not None:
            return self.most <= self.rule.limit
        return self.growth <= self.allowed


#: With fewer points a slope says nothing.
LEAST_POINTS = 4


def trend(rule: Rule, samples: Sequence[Sample]) -> Trend:
    """How one number went, of samples that were taken in the same state of things.

    Raises:
        ValueError: fewer than ``2 * LEAST_POINTS`` samples.
    """
    if len(samples) < 2 * LEAST_POINTS:
        raise ValueError(f"{len(samples)} samples are too few to tell a slope")
    values = [float(getattr(sample, rule.field)) for sample in samples]
    late = values[len(values) // 2 :]
    return Trend(
        rule,
        first=statistics.median(values[: len(values) // 4]),
        level=statistics.median(late),
        growth=slope(late) * (len(late) - 1),
        most=max(values),
    )


def slope(values: Sequence[float]) -> float:
    """Growth from one value to the next: the median of the slopes of all pairs (Theil-Sen).

    A single value far off, up to three in ten of them, does not move it.
    """
    return statistics.median(
        (values[b] - values[a]) / (b - a)
        for a in range(len(values))
        for b in range(a + 1, len(values))
    )
