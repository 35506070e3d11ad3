# SPDX-License-Identifier: Apache-2.0
"""Files of a cgroup v1 (Linux kernel, Documentation/admin-guide/cgroup-v1/)."""

from __future__ import annotations

from gpucorrelate.probes.host import cgroup_metrics as m
from gpucorrelate.probes.host.cgroup_files import CgroupFile, bound, flat, one
from gpucorrelate.probes.host.cgroup_v2 import is_device
from gpucorrelate.probes.host.kernel_text import (
    Key,
    Parsed,
    Value,
    few,
    number,
    shown,
    whole_lines,
)

_US = 1000

CPU_STAT = {
    "nr_periods": Key(m.CPU_PERIODS),
    "nr_throttled": Key(m.CPU_THROTTLED),
    "throttled_time": Key(m.CPU_THROTTLED_TIME),
    "nr_bursts": Key(m.CPU_BURSTS),
}
CPU_STAT_LOCAL = {"throttled_time": Key(m.CPU_HELD_TIME)}
OOM_CONTROL = {"under_oom": Key(m.UNDER_OOM), "oom_kill": Key(m.V1_OOM_KILL)}
#: Those with ``total_`` count what is below, as v2 does.
MEMORY_STAT = {
    "total_rss": Key(m.MEMORY_STAT["anon"]),
    "total_cache": Key(m.MEMORY_STAT["file"]),
    "total_shmem": Key(m.MEMORY_STAT["shmem"]),
    "total_dirty": Key(m.MEMORY_STAT["file_dirty"]),
    "total_writeback": Key(m.MEMORY_STAT["file_writeback"]),
    "total_unevictable": Key(m.MEMORY_STAT["unevictable"]),
    "total_pgfault": Key(m.MEMORY_STAT["pgfault"]),
    "total_pgmajfault": Key(m.MEMORY_STAT["pgmajfault"]),
    "total_workingset_refault_anon": Key(m.MEMORY_STAT["workingset_refault_anon"]),
    "total_workingset_refault_file": Key(m.MEMORY_STAT["workingset_refault_file"]),
    "total_workingset_refault": Key(m.MEMORY_STAT["workingset_refault"]),
}
_BYTES = {"Read": "rbytes", "Write": "wbytes", "Discard": "dbytes"}
_COUNTS = {"Read": "rios", "Write": "wios", "Discard": "dios"}


def _parse_blkio(text: str, columns: dict[str, str]) -> Parsed:
    rows, problems = whole_lines(text)
    wrong = list(problems)
    found: dict[tuple[str, str], Value] = {}
    for row in rows:
        fields = row.split()
        if len(fields) != 3 or not is_device(fields[0]):
            # The last line is a total over all devices.
            if fields[:1] != ["Total"]:
                wrong.append(f"no device, operation and number: {shown(row)}")
            continue
        device, operation, rest = fields
        name = columns.get(operation)
        if name is None:
            continue
        value = number(rest)
        if value is None:
            wrong.append(f"{operation} of {device} is no number: {shown(rest)}")
        else:
            found[device, name] = Value(m.IO_STAT[name], value, device)
    return Parsed(tuple(found.values()), few(wrong))


def parse_service_bytes(text: str) -> Parsed:
    """``blkio.throttle.io_service_bytes``: ``8:0 Read 4096``, then a total of all."""
    return _parse_blkio(text, _BYTES)


def parse_serviced(text: str) -> Parsed:
    """``blkio.throttle.io_serviced``: ``8:0 Read 1``, then a total of all."""
    return _parse_blkio(text, _COUNTS)


FILES = (
    bound("cpu", "cpu.cfs_quota_us", m.CPU_QUOTA, _US),
    one("cpu", "cpu.cfs_period_us", m.CPU_PERIOD, _US),
    one("cpu", "cpu.cfs_burst_us", m.CPU_BURST, _US, optional=True),
    one("cpu", "cpu.shares", m.CPU_SHARES),
    flat("cpu", "cpu.stat", CPU_STAT),
    flat("cpu", "cpu.stat.local", CPU_STAT_LOCAL, optional=True),
    one("cpuacct", "cpuacct.usage", m.CPUACCT_USAGE),
    one("memory", "memory.usage_in_bytes", m.MEMORY_CURRENT),
    bound("memory", "memory.limit_in_bytes", m.MEMORY_MAX),
    bound("memory", "memory.soft_limit_in_bytes", m.MEMORY_SOFT_LIMIT, optional=True),
    one("memory", "memory.failcnt", m.MEMORY_FAILCNT),
    one("memory", "memory.memsw.usage_in_bytes", m.MEMSW_CURRENT, optional=True),
    bound("memory", "memory.memsw.limit_in_bytes", m.MEMSW_MAX, optional=True),
    one("memory", "memory.memsw.failcnt", m.MEMSW_FAILCNT, optional=True),
    flat("memory", "memory.oom_control", OOM_CONTROL),
    flat("memory", "memory.stat", MEMORY_STAT),
    CgroupFile(
        "blkio",
        ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"),
        parse_service_bytes,
    ),
    CgroupFile(
        "blkio",
        ("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced"),
        parse_serviced,
    ),
    one("blkio", "blkio.weight blkio.bfq.weight", m.BLKIO_WEIGHT, optional=True),
)
