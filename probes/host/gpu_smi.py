# SPDX-License-Identifier: Apache-2.0
"""GPU counters through the program nvidia-smi, where NVML cannot be used directly.

A process for every look: tens of milliseconds up to seconds where the driver must first wake,
so seldom. Its fields and words: ``nvidia-smi --help-query-gpu`` and its manual. Parsers are
pure and never raise.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import gpu_metrics as metrics
from gpucorrelate.probes.host.gpu import NOT_SUPPORTED, Gpu, Pace, sysfs_address
from gpucorrelate.probes.host.reading import Metric, Missing, Reading, Sample
from gpucorrelate.probes.host.run_bounded import Finished, run_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S = 10.0
#: A machine of 16 GPUs writes about 4 KiB; a thousand processes, 60 KiB.
_LIMIT_BYTES = 1 << 20
#: Lines that could not be understood, of which somebody is told.
_MOST_PROBLEMS = 3
_MIB = 1 << 20
_MILLI = 1000
#: Newer programs know more fields, older ones fewer: each that is refused costs a run once.
_MOST_REFUSALS = 24

_DECIMAL = re.compile(r"(-?)([0-9]{1,15})(?:\.([0-9]{1,9}))?", re.ASCII)
_HEX = re.compile(r"0x([0-9a-fA-F]{1,16})", re.ASCII)
_PSTATE = re.compile(r"P([0-9]{1,2})", re.ASCII)
_REFUSED = re.compile(r'Field "([^"\n]{1,100})" is not a valid field to query')
_WORDS = {
    "n/a": NOT_SUPPORTED,
    "not supported": NOT_SUPPORTED,
    "unknown error": "nvidia-smi says: unknown error",
    "insufficient permissions": "not permitted",
    "gpu requires reset": "the GPU must be reset",
    "gpu is lost": "the GPU fell off the bus",
    "": "nvidia-smi says nothing",
}


@dataclass(frozen=True)
class Field:
    """A field to ask for.

    Attributes:
        names: Its names, newest first; a program that refuses one is asked for the next.
        metric: What it is.
        scale: Factor from nvidia-smi's unit, with ``nounits``, to the metric's.
    """

    names: tuple[str, ...]
    metric: Metric
    scale: int = 1


FIELDS: tuple[Field, ...] = (
    Field(("utilization.gpu",), metrics.UTILIZATION),
    Field(("utilization.memory",), metrics.UTILIZATION_MEMORY),
    Field(("memory.used",), metrics.MEMORY_USED, _MIB),
    Field(("memory.free",), metrics.MEMORY_FREE, _MIB),
    Field(("memory.total",), metrics.MEMORY_TOTAL, _MIB),
    Field(("memory.reserved",), metrics.MEMORY_RESERVED, _MIB),
    Field(("power.draw",), metrics.POWER, _MILLI),
    Field(("enforced.power.limit", "power.limit"), metrics.POWER_LIMIT, _MILLI),
    Field(("clocks.sm",), metrics.CLOCK_SM),
    Field(("clocks.mem",), metrics.CLOCK_MEMORY),
    Field(("clocks.max.sm",), metrics.CLOCK_SM_MAX),
    Field(("temperature.gpu",), metrics.TEMPERATURE),
    Field(
        ("clocks_event_reasons.active", "clocks_throttle_reasons.active"), metrics.EVENT_REASONS
    ),
    Field(("pstate",), metrics.PSTATE),
    Field(("pcie.link.gen.current",), metrics.PCIE_GENERATION),
    Field(("pcie.link.gen.max",), metrics.PCIE_GENERATION_MAX),
    Field(("pcie.link.width.current",), metrics.PCIE_WIDTH),
    Field(("pcie.link.width.max",), metrics.PCIE_WIDTH_MAX),
    Field(("ecc.errors.corrected.volatile.total",), metrics.ECC_CORRECTED),
    Field(("ecc.errors.uncorrected.volatile.total",), metrics.ECC_UNCORRECTED),
)
_IDENTITY = ("index", "uuid", "pci.bus_id", "name")
_APPS = ("gpu_uuid", "pid", "used_gpu_memory")


@dataclass(frozen=True)
class Table:
    """Rows that have as many values as were asked for, and the lines that have not."""

    rows: tuple[tuple[str, ...], ...] = ()
    problems: tuple[str, ...] = ()


def parse_csv(text: str, columns: int) -> Table:
    """Output with ``--format=csv,noheader,nounits``; the last value may hold commas."""
    rows: list[tuple[str, ...]] = []
    problems: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        values = tuple(value.strip() for value in line.split(",", columns - 1))
        if len(values) == columns:
            rows.append(values)
        elif len(problems) < _MOST_PROBLEMS:
            problems.append(f"{len(values)} values where {columns} were asked for: {line[:80]!r}")
    return Table(tuple(rows), tuple(problems))


def parse_value(text: str, scale: int = 1) -> int | str:
    """A value, times ``scale``, or the reason why there is none.

    Numbers are taken with a point only: the program is run in the C locale, and a comma would
    be the end of the value.
    """
    word = text.strip()
    match = _DECIMAL.fullmatch(word)
    if match is not None:
        fraction = match[3] or ""
        ones: int = 10 ** len(fraction)
        scaled = int(match[2] + fraction) * scale
        # Half up, away from zero: 45.1275 W are 45128 mW.
        value = (2 * scaled + ones) // (2 * ones)
        return -value if match[1] else value
    match = _HEX.fullmatch(word)
    if match is not None:
        return int(match[1], 16)
    match = _PSTATE.fullmatch(word)
    if match is not None:
        return int(match[1])
    bare = word.removeprefix("[").removesuffix("]").strip().lower()
    return _WORDS.get(bare) or f"nvidia-smi says: {word[:60]!r}"


def refused_field(text: str) -> str | None:
    """The field that the program says it does not know; None if it says no such thing."""
    match = _REFUSED.search(text)
    return match[1] if match else None


def parse_identity(text: str) -> tuple[Gpu, ...]:
    """GPUs by ``index,uuid,pci.bus_id,name``; lines that name none are skipped."""
    found: list[Gpu] = []
    for index, uuid, bus_id, name in parse_csv(text, len(_IDENTITY)).rows:
        if index.isascii() and index.isdecimal() and uuid.startswith("GPU-"):
            found.append(Gpu(int(index[:9]), uuid, sysfs_address(bus_id), name))
    return tuple(found)


def parse_gpus(text: str, fields: tuple[Field, ...], t_ns: int) -> Sample:
    """Numbers of all GPUs, asked for as ``uuid`` and then ``fields``."""
    table = parse_csv(text, len(fields) + 1)
    readings: list[Reading] = []
    missing = [Missing("nvidia-smi", "host", problem) for problem in table.problems]
    for uuid, *values in table.rows:
        subject = f"gpu:{uuid}"
        for field, word in zip(fields, values, strict=True):
            value = parse_value(word, field.scale)
            if isinstance(value, str):
                missing.append(Missing(field.metric.name, subject, value))
            else:
                readings.append(Reading(field.metric, subject, value, t_ns))
    return Sample(tuple(readings), tuple(missing))


def parse_processes(text: str, t_ns: int) -> Sample:
    """Memory of processes, by ``gpu_uuid,pid,used_gpu_memory``."""
    readings: list[Reading] = []
    missing: list[Missing] = []
    for uuid, pid, word in parse_csv(text, len(_APPS)).rows:
        if not pid.isascii() or not pid.isdecimal():
            continue
        subject = f"gpu:{uuid} pid:{pid}"
        value = parse_value(word, _MIB)
        if isinstance(value, str):
            missing.append(Missing(metrics.PROCESS_MEMORY.name, subject, value))
        else:
            readings.append(Reading(metrics.PROCESS_MEMORY, subject, value, t_ns))
    return Sample(tuple(readings), tuple(missing))


def without(fields: tuple[Field, ...], refused: str) -> tuple[Field, ...]:
    """The fields after one name was refused: by its next name, or without it."""
    kept: list[Field] = []
    for field in fields:
        names = tuple(name for name in field.names if name != refused)
        if names:
            kept.append(Field(names, field.metric, field.scale))
    return tuple(kept)


def why_failed(finished: Finished) -> str:
    """Why a run gave nothing, by what the program wrote."""
    if finished.problem:
        return f"nvidia-smi {finished.problem}"
    said = " ".join((finished.output or finished.errors).split())[:160]
    return f"nvidia-smi ended with code {finished.code}" + (f": {said}" if said else "")


class Smi:
    """nvidia-smi, found and asked once. For one thread: each question waits for a process.

    Args:
        path: The program.
        gpus: The GPUs it knows.
    """

    name = "nvidia-smi"

    def __init__(self, path: str, gpus: tuple[Gpu, ...]) -> None:
        self._path = path
        self._gpus = gpus
        self._fields = FIELDS

    @classmethod
    def open(cls, path: str | None = None) -> Smi | Missing:
        """Find the program and its GPUs; the reason where that cannot be done."""
        found = path or shutil.which("nvidia-smi")
        if found is None:
            return Missing("nvidia-smi", "host", "no nvidia-smi in PATH")
        finished = _ask(found, f"--query-gpu={','.join(_IDENTITY)}")
        gpus = parse_identity(finished.output) if finished.ok else ()
        if not gpus:
            return Missing("nvidia-smi", "host", why_failed(finished))
        return cls(found, gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that were there when it was opened."""
        return self._gpus

    def sample(self, pace: Pace) -> Sample:
        """Ask; nothing for ``FAST``, since a process for each round would cost too much."""
        if pace is Pace.FAST:
            return Sample()
        start_ns = time.monotonic_ns()
        finished = self._ask_fields()
        end_ns = time.monotonic_ns()
        if not finished.ok:
            return Sample((), (Missing("nvidia-smi", "host", why_failed(finished)),))
        # The program reads somewhere between its start and its end.
        t_ns = (start_ns + end_ns) // 2
        told = parse_gpus(finished.output, self._fields, t_ns)
        wall = [
            Reading(metrics.POLL_WALL, gpu.subject, end_ns - start_ns, t_ns) for gpu in self._gpus
        ]
        refused = [
            Missing(metric.name, gpu.subject, "this nvidia-smi does not know it")
            for metric in self._refused()
            for gpu in self._gpus
        ]
        processes = self._processes()
        return Sample(
            (*told.readings, *wall, *processes.readings),
            (*told.missing, *refused, *processes.missing),
        )

    def close(self) -> None:
        """Nothing is held between questions."""

    def _ask_fields(self) -> Finished:
        for _ in range(_MOST_REFUSALS):
            names = ",".join(("uuid", *(field.names[0] for field in self._fields)))
            finished = _ask(self._path, f"--query-gpu={names}")
            refused = None if finished.ok else refused_field(finished.output + finished.errors)
            fields = self._fields if refused is None else without(self._fields, refused)
            if fields == self._fields or not fields:
                break
            self._fields = fields
        return finished

    def _refused(self) -> Iterable[Metric]:
        known = {field.metric for field in self._fields}
        return (field.metric for field in FIELDS if field.metric not in known)

    def _processes(self) -> Sample:
        start_ns = time.monotonic_ns()
        finished = _ask(self._path, f"--query-compute-apps={','.join(_APPS)}")
        if not finished.ok:
            why = why_failed(finished)
            return Sample((), (Missing(metrics.PROCESS_MEMORY.name, "host", why),))
        return parse_processes(finished.output, (start_ns + time.monotonic_ns()) // 2)


def _ask(path: str, query: str) -> Finished:
    command = (path, query, "--format=csv,noheader,nounits")
    return run_bounded(command, timeout_s=_TIMEOUT_S, limit_bytes=_LIMIT_BYTES)
