# SPDX-License-Identifier: Apache-2.0
"""Pressure: how long tasks stood still for want of a CPU, of memory or of a disk.

Read from ``/proc/pressure`` for the machine and from the ``.pressure`` files of a cgroup v2 for
the tasks in it (Linux kernel, Documentation/accounting/psi.rst). The totals are what a window
is judged by; the averages speak of 10, 60 and 300 s whatever the window was. What happens between
two looks the kernel's own triggers tell: ``psi_triggers``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.kernel_text import Parsed, Value, few, number, shown, whole_lines
from gpucorrelate.probes.host.reading import Metric, Missing, Standing
from gpucorrelate.probes.host.source import (
    Collected,
    Descriptors,
    Folder,
    KeptFile,
    Source,
    reason_of,
)
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from gpucorrelate.probes.host.reading import Sample

RESOURCES = ("cpu", "memory", "io", "irq")

_US = 1000

_WANTED = {
    "cpu": "a CPU",
    "memory": "memory (reclaim, refaults, swapping in)",
    "io": "a disk",
    "irq": "interrupt handlers to finish",
}
_WHOSE = {
    "some": "at least one task stood still for want of {}; others may have run",
    "full": "all tasks that were not idle stood still at once for want of {}",
}
_AVERAGES = {"avg10": 10, "avg60": 60, "avg300": 300}
_PERCENT = re.compile(r"([0-9]{1,3})\.([0-9]{2})", re.ASCII)


def _metrics(resource: str, line: str) -> dict[str, Metric]:
    what = _WHOSE[line].format(_WANTED[resource])
    name = f"{resource}.pressure.{line}"
    found = {
        key: Metric(
            f"{name}.{key}",
            "ppm",
            Nature.AVERAGE,
            f"Share of about the last {seconds} s in which {what}. Decays slowly and says "
            "nothing of a shorter window: use the total for that.",
        )
        for key, seconds in _AVERAGES.items()
    }
    found["total"] = Metric(
        f"{name}.total",
        "ns",
        Nature.TOTAL,
        f"Wall time in which {what}. The mean over CPUs, weighted by how busy each was: want on "
        "one of many busy CPUs counts only for its part, and it never adds up over tasks.",
    )
    return found


METRICS: dict[str, dict[str, dict[str, Metric]]] = {
    resource: {line: _metrics(resource, line) for line in ("some", "full")}
    for resource in RESOURCES
}


def parse_pressure(text: str, resource: str, *, machine: bool = False) -> Parsed:
    """The numbers of a pressure file.

    Args:
        text: What the file holds.
        resource: One of ``RESOURCES``.
        machine: It is the whole machine's: there the kernel writes zeros for ``full`` of the
            CPU, which means nothing and is left out.
    """
    rows, problems = whole_lines(text)
    wrong = list(problems)
    values: list[Value] = []
    for row in rows:
        line, *fields = row.split(" ")
        metrics = METRICS[resource].get(line)
        if metrics is None:
            wrong.append(f"no line of a pressure file: {shown(row)}")
        elif not (machine and resource == "cpu" and line == "full"):
            values += _fields(metrics, fields, wrong)
    if not values and not wrong:
        wrong.append("it is empty")
    return Parsed(tuple(values), few(wrong))


def _fields(metrics: dict[str, Metric], fields: list[str], wrong: list[str]) -> list[Value]:
    values: dict[str, Value] = {}
    for field in fields:
        key, _, rest = field.partition("=")
        metric = metrics.get(key)
        if metric is None:
            continue
        value = number(rest, _US) if key == "total" else _ppm(rest)
        if value is None:
            wrong.append(f"{metric.name} is no number: {shown(rest)}")
        else:
            values[key] = Value(metric, value)
    return list(values.values())


def _ppm(text: str) -> int | None:
    match = _PERCENT.fullmatch(text)
    return (int(match[1]) * 100 + int(match[2])) * 100 if match else None


class PsiPoller:
    """Pressure on the whole machine.

    Args:
        root: Root of the file system it is read from.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._folder: Folder | None = None
        self._sources: list[Source] = []
        self._unopened: tuple[Missing, ...] = ()

    def poll(self, *, everything: bool = False) -> Sample:
        """What changed since the last round; with ``everything`` what did not, too."""
        out = Collected(everything=everything)
        if self._folder is None:
            try:
                self._folder = Folder.at(self._root, ("proc", "pressure"))
            except OSError as error:
                reason = f"{reason_of(error)}: no CONFIG_PSI, or started with psi=0"
                self._unopened = (Missing("/proc/pressure", "host", reason),)
                out.missing += self._unopened
                return out.sample()
            self._unopened = ()
            self._sources = [self._source(resource) for resource in RESOURCES]
        for source in self._sources:
            out.now()
            source.poll(out)
        return out.sample()

    def standing(self) -> Standing:
        """How it stands as of the last round."""
        missing = [missing for source in self._sources for missing in source.missing]
        works = not self._unopened
        if self._sources:
            works = any(source.readable for source in self._sources)
        return Standing(works, (*self._unopened, *missing))

    def _source(self, resource: str) -> Source:
        assert self._folder is not None
        return Source(
            KeptFile(self._folder, (resource,), Descriptors(1)),
            f"/proc/pressure/{resource}",
            "host",
            lambda text: parse_pressure(text, resource, machine=True),
            # Only kernels that count the time of interrupts have it.
            quiet=resource == "irq",
        )

    def close(self) -> None:
        """Let go of the files."""
        for source in self._sources:
            source.close()
        if self._folder is not None:
            self._folder.close()
        self._folder, self._sources = None, []
