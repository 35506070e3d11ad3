# SPDX-License-Identifier: Apache-2.0
"""Numbers of cgroups, by the names of v2; v1's numbers that mean the same carry them, too.

What v1 alone has, or counts in another way, keeps the name of its file.
"""

from __future__ import annotations

from gpucorrelate.probes.host.reading import Family

_OF = Family()
_level, _total = _OF.level, _OF.total

_NONE = "-1: no limit of its own, though one above may hold."
_HELD = "Threads held by it look ready to run, however idle the CPUs are."

CPU_QUOTA = _level(
    "cpu.max.quota",
    "ns",
    "CPU time that the cgroup and all below may use in a period, over all CPUs together; "
    "above one period it is several CPUs. " + _NONE,
)
CPU_PERIOD = _level(
    "cpu.max.period", "ns", "How often the CPU quota is given anew; 100 ms unless changed."
)
CPU_BURST = _level(
    "cpu.max.burst", "ns", "CPU time saved in idle periods that a later one may add to its quota."
)
CPU_WEIGHT = _level(
    "cpu.weight",
    "",
    "Share of a CPU beside sibling cgroups while they compete for it, 100 unless changed "
    "(0: only what is left idle). Limits nothing on an idle machine.",
)
CPU_SHARES = _level(
    "cpu.shares",
    "",
    "Share of a CPU beside sibling cgroups while they compete for it, 1024 unless changed. "
    "Limits nothing on an idle machine.",
)
CPU_PERIODS = _total(
    "cpu.stat.nr_periods",
    "count",
    "Quota periods in which the cgroup wanted to run; idle ones are not counted.",
)
CPU_THROTTLED = _total(
    "cpu.stat.nr_throttled", "count", "Quota periods in which it ran out of quota. " + _HELD
)
CPU_THROTTLED_TIME = _total(
    "cpu.stat.throttled",
    "ns",
    "Time it was out of quota, summed over CPUs (so above wall time on several), threads that "
    "wanted to run or not. " + _HELD,
)
CPU_HELD_TIME = _total(
    "cpu.stat.local.throttled",
    "ns",
    "Time, summed over CPUs, in which threads of this cgroup or below wanted to run and a quota "
    "here or above held them; whose quota it was, the cgroups' own counts say.",
)
CPU_BURSTS = _total("cpu.stat.nr_bursts", "count", "Quota periods that used saved CPU time.")
CPU_USAGE = _total("cpu.stat.usage", "ns", "CPU time used by it and all below.")
CPU_USER = _total("cpu.stat.user", "ns", "Part of the CPU time spent in programs.")
CPU_SYSTEM = _total("cpu.stat.system", "ns", "Part of the CPU time spent in the kernel.")
CPUACCT_USAGE = _total(
    "cpuacct.usage", "ns", "CPU time used by it and all below, in cgroup v1's own hierarchy."
)

MEMORY_CURRENT = _level(
    "memory.current",
    "bytes",
    "Memory charged to it and all below: processes, page cache and kernel objects. Near the "
    "limit is normal: page cache fills what there is.",
)
MEMORY_MAX = _level(
    "memory.max", "bytes", "Memory at which it must reclaim or be killed. " + _NONE
)
MEMORY_HIGH = _level(
    "memory.high",
    "bytes",
    "Memory above which its threads are put to sleep while they reclaim; nothing is killed. "
    + _NONE,
)
MEMORY_LOW = _level(
    "memory.low", "bytes", "Memory that others' need takes last. -1: all of it is protected."
)
MEMORY_MIN = _level(
    "memory.min", "bytes", "Memory that others' need never takes. -1: all of it is protected."
)
MEMORY_SOFT_LIMIT = _level(
    "memory.soft_limit_in_bytes",
    "bytes",
    "Memory above which it is the first to give while the machine is short. " + _NONE,
)
SWAP_CURRENT = _level("memory.swap.current", "bytes", "Its memory that lies in swap.")
SWAP_MAX = _level("memory.swap.max", "bytes", "Most of its memory that may lie in swap. " + _NONE)
MEMSW_CURRENT = _level(
    "memory.memsw.usage_in_bytes", "bytes", "Its memory and swap together, as v1 counts it."
)
MEMSW_MAX = _level(
    "memory.memsw.limit_in_bytes", "bytes", "Most of its memory and swap together. " + _NONE
)
MEMORY_FAILCNT = _total(
    "memory.failcnt",
    "count",
    "Times a charge met its limit. Mostly page cache was dropped and all went on: not a count "
    "of failures. Stays as it is where the limit on memory and swap together is not above: that "
    "one is met first.",
)
MEMSW_FAILCNT = _total(
    "memory.memsw.failcnt",
    "count",
    "Times a charge met its limit on memory and swap together. Newer kernels (seen with "
    "6.18) leave it at 0: only kills tell then.",
)
UNDER_OOM = _level(
    "memory.oom_control.under_oom",
    "",
    "1 while it is out of memory and its threads stand still until something is killed or freed.",
)
V1_OOM_KILL = _total(
    "memory.oom_control.oom_kill",
    "count",
    "Processes right in this cgroup killed for want of memory, whoever's limit it was.",
)

_EVENTS = {
    "low": "Times it was reclaimed from though below its protection: too much is protected",
    "high": "Times threads were put to sleep to reclaim because it was above memory.high",
    "max": "Times a charge met memory.max; mostly reclaiming helped",
    "oom": "Times reclaiming did not help at memory.max; a kill may or may not have followed",
    "oom_kill": "Processes killed for want of memory",
    "oom_group_kill": "Times all of it was killed together for want of memory",
}
MEMORY_EVENTS = {
    key: _total(f"memory.events.{key}", "count", f"{text}; those below are counted in.")
    for key, text in _EVENTS.items()
}
MEMORY_EVENTS_LOCAL = {
    key: _total(
        f"memory.events.local.{key}",
        "count",
        f"{text}; "
        + (
            "only of processes right in it."
            if key in ("oom_kill", "oom_group_kill")
            else "only for its own limit, so the cgroup whose limit it was is this one."
        ),
    )
    for key, text in _EVENTS.items()
}

_STAT_BYTES = {
    "anon": "Memory of processes that no file backs",
    "file": "Page cache, shared memory included",
    "shmem": "Shared memory and tmpfs, which only swap could free",
    "kernel": "Memory of the kernel on its behalf",
    "slab": "Kernel objects on its behalf, such as inodes",
    "file_dirty": "Page cache that must be written before it can be dropped",
    "file_writeback": "Page cache on its way to the disk",
    "unevictable": "Memory that cannot be reclaimed, mostly locked",
}
_STAT_COUNTS = {
    "pgfault": "Page faults, of which most need no disk",
    "pgmajfault": "Page faults that had to read from a disk",
    "workingset_refault_anon": "Pages swapped out that were wanted again soon: too little memory",
    "workingset_refault_file": "Page cache dropped that was wanted again soon: too little memory",
    "workingset_refault": "Pages dropped that were wanted again soon: too little memory",
    "pgscan_direct": "Pages looked at by threads that had to reclaim before they got memory",
    "pgsteal_direct": "Pages reclaimed by threads that had to before they got memory",
}
MEMORY_STAT = {
    key: _level(f"memory.stat.{key}", "bytes", f"{text}, of it and all below.")
    for key, text in _STAT_BYTES.items()
} | {
    key: _total(f"memory.stat.{key}", "count", f"{text}, of it and all below.")
    for key, text in _STAT_COUNTS.items()
}

IO_STAT = {
    "rbytes": _total("io.stat.rbytes", "bytes", "Read from the device, not from page cache."),
    "wbytes": _total(
        "io.stat.wbytes",
        "bytes",
        "Written to the device; page cache is written later, often by nobody in particular.",
    ),
    "rios": _total("io.stat.rios", "count", "Reads sent to the device."),
    "wios": _total("io.stat.wios", "count", "Writes sent to the device."),
    "dbytes": _total("io.stat.dbytes", "bytes", "Discarded on the device."),
    "dios": _total("io.stat.dios", "count", "Discards sent to the device."),
}
IO_WEIGHT = _level(
    "io.weight",
    "",
    "Share of a disk beside sibling cgroups while they compete for it, 100 unless changed.",
)
BLKIO_WEIGHT = _level(
    "blkio.weight", "", "Share of a disk beside sibling cgroups, where the scheduler has shares."
)
