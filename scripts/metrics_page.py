# SPDX-License-Identifier: Apache-2.0
"""Write docs/metrics.md: every number that is read of the host, from the code's own tables.

``python -m scripts.metrics_page`` writes it; ``--check`` writes nothing and fails when the page
is not what the code says.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpucorrelate.probes import host
from gpucorrelate.probes.host import (
    cgroup_metrics,
    cgroup_v1,
    cgroup_v2,
    devices,
    engine_metrics,
    gpu_metrics,
    numa,
    placement,
    process_metrics,
    psi,
    thread_metrics,
)
from gpucorrelate.probes.host.kernel_text import Key
from gpucorrelate.probes.host.reading import Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpucorrelate.probes.host.cgroup_files import CgroupFile

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

_HEAD = """\
# Numbers of the host

<!-- Made by scripts/metrics_page.py from the tables in probes/host: edit those and run it. -->

What the daemon reads of the host around an engine, as `context` and `host` of the reports' JSON
name it ([report.md](report.md#the-host-meanwhile)). A number is recorded when it changed.

| nature | what it is |
|---|---|
| level | it goes up and down, and is what it was when it was read |
| total | it only ever counts up: reports say what it grew by in a window |
| average | whoever counts it has averaged it over some time of its own |

Subjects: `host`, `pid:N` and `tid:N`, `cgroup:/PATH`, `node:N` (NUMA), `gpu:UUID` and
`gpu:UUID pid:N`, `pci:ADDRESS`, `engine:NAME`. Times are nanoseconds, shares `ppm` (millionths).
"""


@dataclass(frozen=True)
class Row:
    """A metric and where it is read."""

    metric: Metric
    source: str


@dataclass(frozen=True)
class Group:
    """A part of the page."""

    title: str
    rows: tuple[Row, ...]


def groups() -> tuple[Group, ...]:
    """Everything that the page lists."""
    return (
        Group("Cgroups: limits and what they cost", tuple(_cgroups())),
        Group("Pressure (PSI)", tuple(_pressure())),
        Group("Threads", tuple(_threads())),
        Group("Processes", tuple(_processes())),
        Group("The machine's memory", tuple(_all(process_metrics.MEMINFO, "`/proc/meminfo`"))),
        Group("NUMA", tuple(_numa())),
        Group("GPUs", tuple(_gpus())),
        Group("The engine's own", tuple(_engine())),
    )


def _all(metrics: Mapping[str, Metric], source: str) -> Iterator[Row]:
    return (Row(metric, source) for metric in metrics.values())


def _cgroups() -> Iterator[Row]:
    sources: dict[Metric, list[str]] = {}
    for version, files in (("v2", cgroup_v2.FILES), ("v1", cgroup_v1.FILES)):
        for file in files:
            for metric in _of_file(file):
                said = f"{version} `{file.names[0]}`"
                if said not in sources.setdefault(metric, []):
                    sources[metric].append(said)
    return (Row(metric, ", ".join(where)) for metric, where in sources.items())


def _of_file(file: CgroupFile) -> Iterator[Metric]:
    """Metrics that a cgroup's file gives, but pressure, which is told apart."""
    parse = file.parse
    own: dict[object, Iterable[Metric]] = {
        cgroup_v2.parse_cpu_max: (cgroup_metrics.CPU_QUOTA, cgroup_metrics.CPU_PERIOD),
        cgroup_v2.parse_io_stat: cgroup_metrics.IO_STAT.values(),
        cgroup_v2.parse_io_weight: (cgroup_metrics.IO_WEIGHT,),
        cgroup_v1.parse_service_bytes: _io("rbytes", "wbytes"),
        cgroup_v1.parse_serviced: _io("rios", "wios"),
    }
    if parse in own:
        yield from own[parse]
    elif isinstance(parse, partial):
        key = parse.keywords.get("key")
        if isinstance(key, Key):
            yield key.metric
        keys = cast("Mapping[str, Key]", parse.keywords.get("keys", {}))
        yield from (one.metric for one in keys.values())


def _io(*keys: str) -> tuple[Metric, ...]:
    return tuple(cgroup_metrics.IO_STAT[key] for key in keys)


def _pressure() -> Iterator[Row]:
    for resource, lines in psi.METRICS.items():
        source = f"`/proc/pressure/{resource}`"
        if resource != "irq":
            source += f", v2 `{resource}.pressure`"
        for metrics in lines.values():
            yield from (Row(metric, source) for metric in metrics.values())


def _threads() -> Iterator[Row]:
    m = thread_metrics
    files = {m.CPU: "schedstat", m.RUN_DELAY: "schedstat", m.TIMESLICES: "schedstat",
             m.VOLUNTARY: "status", m.INVOLUNTARY: "status"}  # fmt: skip
    for metric in m.THREAD:
        yield Row(metric, f"`/proc/PID/task/TID/{files.get(metric, 'stat')}`")


def _processes() -> Iterator[Row]:
    m = process_metrics
    for metric in (m.CPU, m.MINOR_FAULTS, m.MAJOR_FAULTS, m.THREADS):
        yield Row(metric, "`/proc/PID/stat`")
    yield from _all(m.IO, "`/proc/PID/io`")
    yield from _all(m.ROLLUP, "`/proc/PID/smaps_rollup`")


def _numa() -> Iterator[Row]:
    node = "/sys/devices/system/node/nodeN"
    yield from _all(numa.ALLOCATIONS, f"`{node}/numastat`")
    yield from _all(numa.MEMORY, f"`{node}/meminfo`")
    yield from (Row(metric, "`/proc/PID/numa_maps`") for metric in placement.PLACED.values())


def _gpus() -> Iterator[Row]:
    m = gpu_metrics
    elsewhere = {
        m.UNIFIED_TOTAL: "`/proc/meminfo`",
        m.UNIFIED_AVAILABLE: "`/proc/meminfo`",
        m.POLL_WALL: "measured",
    }
    for metric in _metrics_in(vars(m)):
        yield Row(metric, elsewhere.get(metric, "NVML, or `nvidia-smi` where that has it"))
    link = "`/sys/bus/pci/devices/ADDRESS/current_link_"
    yield Row(devices.LINK_SPEED, f"{link}speed`")
    yield Row(devices.LINK_WIDTH, f"{link}width`")


def _engine() -> Iterator[Row]:
    for series in engine_metrics.SERIES:
        source = f"its server's `/metrics`: `{series.names[0]}`"
        if series.split:
            source += f", one for each `{series.split}`, which follows the name"
        yield Row(series.metric, source)


def _metrics_in(value: object) -> Iterator[Metric]:
    """Every metric in a module's values, wherever it is in them."""
    if isinstance(value, Metric):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _metrics_in(one)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for one in value:
            yield from _metrics_in(one)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _metrics_in(getattr(value, field.name))


def declared() -> frozenset[Metric]:
    """Every metric that any module of the host's probes declares."""
    found: set[Metric] = set()
    for module in pkgutil.iter_modules(host.__path__):
        names = vars(importlib.import_module(f"{host.__name__}.{module.name}"))
        own = {name: value for name, value in names.items() if not name.startswith("__")}
        found.update(_metrics_in(own))
    return frozenset(found)


def page() -> str:
    """The page's text."""
    parts = [_HEAD.rstrip()]
    for group in groups():
        parts += [f"\n## {group.title}\n", "| metric | unit | nature | read from | meaning |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for row in group.rows:
            one = row.metric
            meaning = one.meaning.replace("|", "\\|")
            parts.append(
                f"| `{one.name}` | {one.unit or 'number'} | {one.nature.name.lower()} "
                f"| {row.source} | {meaning} |"
            )
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the page or check it; the exit code."""
    parser = argparse.ArgumentParser(description="docs/metrics.md from the code's tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    check = parser.parse_args().check
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE}: not what the code says; run python -m scripts.metrics_page",
              file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
