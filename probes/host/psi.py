# SPDX-License-Identifier: Apache-2.0
"""Pressure: how long tasks stood still for want of a CPU, of memory or of a disk.

Read from ``/proc/pressure`` for the machine and from the ``.pressure`` files of a cgroup v2 for
the tasks in it (Linux kernel, Documentation/accounting/psi.rst). The totals are what a window
is judged by; the averages speak of 10, 60 and 300 s whatever the window was.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.kernel_text import Parsed, Value, few, number, shown, whole_lines
from gpucorrelate.probes.host.reading import Metric, Missing
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
    from types import TracebackType

    from gpucorrelate.probes.host.reading import Sample

RESOURCES = ("cpu", "memory", "io", "irq")

_US = 1000
_S = 1_000_000_000
_CAP_SYS_RESOURCE = 24
#: Bounds of ``kernel/sched/psi.c``, and the grid for those without CAP_SYS_RESOURCE.
_SHORTEST_WINDOW_NS, _LONGEST_WINDOW_NS, _COMMON_WINDOW_NS = _S // 2, 10 * _S, 2 * _S

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

    def poll(self, *, everything: bool = False) -> Sample:
        """What changed since the last round; with ``everything`` what did not, too."""
        out = Collected(everything=everything)
        if self._folder is None:
            try:
                self._folder = Folder.at(self._root, ("proc", "pressure"))
            except OSError as error:
                reason = f"{reason_of(error)}: no CONFIG_PSI, or started with psi=0"
                out.missing.append(Missing("/proc/pressure", "host", reason))
                return out.sample()
            self._sources = [self._source(resource) for resource in RESOURCES]
        for source in self._sources:
            out.now()
            source.poll(out)
        return out.sample()

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


@dataclass(frozen=True)
class Threshold:
    """When a trigger fires.

    Attributes:
        resource: One of ``RESOURCES``.
        line: ``some`` or ``full``.
        stall_ns: Time standing still within the window from which on it fires.
        window_ns: The window, 0.5 s to 10 s; multiples of 2 s without CAP_SYS_RESOURCE.
    """

    resource: str
    line: str
    stall_ns: int
    window_ns: int

    @property
    def order(self) -> bytes:
        """What is written into the pressure file to ask for it."""
        return b"%s %d %d\0" % (self.line.encode(), self.stall_ns // _US, self.window_ns // _US)

    def problem(self, *, privileged: bool) -> str:
        """Why the kernel would refuse it; empty if it would not.

        Args:
            privileged: Whether this process has CAP_SYS_RESOURCE.
        """
        if self.resource not in RESOURCES or self.line not in _WHOSE:
            return f"there is no {self.line} of {self.resource}"
        if not _SHORTEST_WINDOW_NS <= self.window_ns <= _LONGEST_WINDOW_NS:
            return "a window has 0.5 s to 10 s"
        if not 0 < self.stall_ns <= self.window_ns:
            return "the time standing still must be above nothing and within the window"
        if not privileged and self.window_ns % _COMMON_WINDOW_NS:
            return "without CAP_SYS_RESOURCE windows are multiples of 2 s"
        return ""


def may_choose_window(root: Path = Path("/")) -> bool:
    """Whether this process has CAP_SYS_RESOURCE, which allows any window."""
    try:
        text = (root / "proc/self/status").read_text("utf-8", "replace")
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", text, re.MULTILINE)
    return bool(found and int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)


class PsiTrigger:
    """A descriptor that becomes ready while there is too much pressure.

    Wait for ``POLLPRI`` with ``poll``; the kernel tells at most once a window. ``POLLERR`` says
    that the cgroup is gone: close it then. Made by ``open_trigger``.

    Args:
        fd: Descriptor of a pressure file that the order was written to; owned from now on.
        threshold: When it fires.
        subject: Whose pressure.
    """

    def __init__(self, fd: int, threshold: Threshold, subject: str) -> None:
        self._fd = fd
        self.threshold = threshold
        self.subject = subject

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        return self._fd

    def close(self) -> None:
        """Withdraw it; twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PsiTrigger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_trigger(
    threshold: Threshold, file: Path | None = None, subject: str = "host"
) -> PsiTrigger | Missing:
    """Ask the kernel to tell of pressure.

    Args:
        threshold: When.
        file: The pressure file; the machine's by default.
        subject: Whose pressure it is.

    Returns:
        The trigger, or why there is none.
    """
    what = f"trigger on {threshold.resource}.pressure.{threshold.line}"
    if problem := threshold.problem(privileged=may_choose_window()):
        return Missing(what, subject, problem)
    path = file or Path("/proc/pressure") / threshold.resource
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.write(fd, threshold.order)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        return Missing(what, subject, _refusal(error))
    return PsiTrigger(fd, threshold, subject)


def _refusal(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted: older kernels want CAP_SYS_RESOURCE for it"
    if error.errno == errno.EINVAL:
        return "refused: this kernel wants CAP_SYS_RESOURCE for such a window, or has no triggers"
    return reason_of(error)
