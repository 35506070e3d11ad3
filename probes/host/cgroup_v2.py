# SPDX-License-Identifier: Apache-2.0
"""Files of a cgroup v2 (Linux kernel, Documentation/admin-guide/cgroup-v2.rst)."""

from __future__ import annotations

from functools import partial

from gpucorrelate.probes.host import cgroup_metrics as m
from gpucorrelate.probes.host.cgroup_files import CgroupFile, bound, flat, one
from gpucorrelate.probes.host.kernel_text import (
    Key,
    Parsed,
    Value,
    few,
    limit,
    number,
    shown,
    whole_lines,
)
from gpucorrelate.probes.host.psi import parse_pressure

_US = 1000

CPU_STAT = {
    "usage_usec": Key(m.CPU_USAGE, _US),
    "user_usec": Key(m.CPU_USER, _US),
    "system_usec": Key(m.CPU_SYSTEM, _US),
    "nr_periods": Key(m.CPU_PERIODS),
    "nr_throttled": Key(m.CPU_THROTTLED),
    "throttled_usec": Key(m.CPU_THROTTLED_TIME, _US),
    "nr_bursts": Key(m.CPU_BURSTS),
}
CPU_STAT_LOCAL = {"throttled_usec": Key(m.CPU_HELD_TIME, _US)}
MEMORY_EVENTS = {key: Key(metric) for key, metric in m.MEMORY_EVENTS.items()}
MEMORY_EVENTS_LOCAL = {key: Key(metric) for key, metric in m.MEMORY_EVENTS_LOCAL.items()}
MEMORY_STAT = {key: Key(metric) for key, metric in m.MEMORY_STAT.items()}


def parse_cpu_max(text: str) -> Parsed:
    """``cpu.max``: quota, or ``max`` for none, and period."""
    rows, problems = whole_lines(text)
    fields = rows[0].split() if rows else []
    if problems or len(fields) != 2:
        return Parsed(problems=problems or (f"no quota and period: {shown(text)}",))
    quota, period = limit(fields[0], _US), number(fields[1], _US)
    if quota is None or period is None:
        return Parsed(problems=(f"no numbers: {shown(rows[0])}",))
    return Parsed((Value(m.CPU_QUOTA, quota), Value(m.CPU_PERIOD, period)))


def parse_io_stat(text: str) -> Parsed:
    """``io.stat``: a line a device, ``8:0 rbytes=1 wbytes=2 ...``, some empty but for that."""
    rows, problems = whole_lines(text)
    wrong = list(problems)
    found: dict[tuple[str, str], Value] = {}
    for row in rows:
        device, *fields = row.split() or [""]
        if not is_device(device):
            wrong.append(f"no device: {shown(row)}")
            continue
        for field in fields:
            key, _, rest = field.partition("=")
            metric = m.IO_STAT.get(key)
            if metric is None:
                continue
            value = number(rest)
            if value is None:
                wrong.append(f"{key} of {device} is no number: {shown(rest)}")
            else:
                found[device, key] = Value(metric, value, device)
    return Parsed(tuple(found.values()), few(wrong))


def is_device(text: str) -> bool:
    """Whether it is ``major:minor``."""
    major, colon, minor = text.partition(":")
    return bool(colon) and number(major) is not None and number(minor) is not None


def parse_io_weight(text: str) -> Parsed:
    """``io.weight``: ``default 100``, then exceptions by device, which are left out."""
    rows, problems = whole_lines(text)
    for row in rows:
        name, _, rest = row.partition(" ")
        value = number(rest.strip()) if name == "default" else None
        if value is not None:
            return Parsed((Value(m.IO_WEIGHT, value),))
    return Parsed(problems=problems or (f"no default in it: {shown(text)}",))


FILES = (
    flat("", "cpu.stat", CPU_STAT),
    flat("cpu", "cpu.stat.local", CPU_STAT_LOCAL, optional=True),
    CgroupFile("cpu", ("cpu.max",), parse_cpu_max),
    one("cpu", "cpu.max.burst", m.CPU_BURST, _US, optional=True),
    one("cpu", "cpu.weight", m.CPU_WEIGHT),
    one("memory", "memory.current", m.MEMORY_CURRENT),
    bound("memory", "memory.max", m.MEMORY_MAX),
    bound("memory", "memory.high", m.MEMORY_HIGH),
    bound("memory", "memory.low", m.MEMORY_LOW),
    bound("memory", "memory.min", m.MEMORY_MIN),
    flat("memory", "memory.events", MEMORY_EVENTS),
    flat("memory", "memory.events.local", MEMORY_EVENTS_LOCAL, optional=True),
    flat("memory", "memory.stat", MEMORY_STAT),
    one("memory", "memory.swap.current", m.SWAP_CURRENT, optional=True),
    bound("memory", "memory.swap.max", m.SWAP_MAX, optional=True),
    CgroupFile("io", ("io.stat",), parse_io_stat),
    CgroupFile("io", ("io.weight", "io.bfq.weight"), parse_io_weight, optional=True),
    CgroupFile("", ("cpu.pressure",), partial(parse_pressure, resource="cpu")),
    CgroupFile("", ("memory.pressure",), partial(parse_pressure, resource="memory")),
    CgroupFile("", ("io.pressure",), partial(parse_pressure, resource="io")),
)
