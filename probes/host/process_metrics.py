# SPDX-License-Identifier: Apache-2.0
"""Numbers of processes and of the machine's memory, by the names of their files."""

from __future__ import annotations

from gpucorrelate.probes.host.reading import Family

_OF = Family()
_level, _total = _OF.level, _OF.total

CPU = _total(
    "process.cpu",
    "ns",
    "CPU time of all its threads, those that have ended included, in steps of a clock tick "
    "(mostly 10 ms). Spinning while waiting counts as well.",
)
MINOR_FAULTS = _total(
    "process.minor_faults",
    "count",
    "Page faults of all its threads that needed no disk: new memory, or page cache.",
)
MAJOR_FAULTS = _total(
    "process.major_faults",
    "count",
    "Page faults of all its threads that had to read from a disk.",
)
THREADS = _level("process.threads", "count", "Threads it has.")

IO = {
    "rchar": _total(
        "process.io.rchar",
        "bytes",
        "Asked for by read and its like: files, pipes, sockets and terminals, mostly from memory.",
    ),
    "wchar": _total(
        "process.io.wchar", "bytes", "Given to write and its like, mostly into memory."
    ),
    "syscr": _total("process.io.syscr", "count", "Calls of read and its like."),
    "syscw": _total("process.io.syscw", "count", "Calls of write and its like."),
    "read_bytes": _total(
        "process.io.read_bytes",
        "bytes",
        "Fetched from disks for it; mapped files and reading ahead count, page cache does not.",
    ),
    "write_bytes": _total(
        "process.io.write_bytes",
        "bytes",
        "Made dirty in page cache, to be written to disks later; no write may have happened yet.",
    ),
    "cancelled_write_bytes": _total(
        "process.io.cancelled_write_bytes",
        "bytes",
        "Made dirty by somebody and dropped before it was written, as of deleted files.",
    ),
}

_ONCE = "adds up over processes to what they use together"
ROLLUP = {
    "Rss": _level(
        "process.rss",
        "bytes",
        "Resident memory. Shared pages count in full for each process: never add it up.",
    ),
    "Pss": _level(
        "process.pss",
        "bytes",
        f"Resident memory, shared pages counted by their part of it: {_ONCE}.",
    ),
    "Pss_Anon": _level("process.pss.anon", "bytes", f"Of it, what no file backs; {_ONCE}."),
    "Pss_File": _level("process.pss.file", "bytes", f"Of it, mapped files; {_ONCE}."),
    "Pss_Shmem": _level("process.pss.shmem", "bytes", f"Of it, shared memory; {_ONCE}."),
    "AnonHugePages": _level("process.huge.anon", "bytes", "Its memory that lies in huge pages."),
    "Shared_Hugetlb": _level(
        "process.hugetlb.shared", "bytes", "Reserved huge pages it shares; not in RSS or PSS."
    ),
    "Private_Hugetlb": _level(
        "process.hugetlb.private", "bytes", "Reserved huge pages of its own; not in RSS or PSS."
    ),
    "Swap": _level("process.swap", "bytes", "Its memory that lies in swap."),
    "SwapPss": _level("process.swap.pss", "bytes", f"Swap counted by its part; {_ONCE}."),
    "Locked": _level(
        "process.locked",
        "bytes",
        "Its memory locked by mlock, by its part; memory that a driver pinned is not in it.",
    ),
}

MEMINFO = {
    "MemTotal": _level("MemTotal", "bytes", "Memory the kernel has."),
    "MemFree": _level(
        "MemFree", "bytes", "Memory used for nothing at all; low is normal, see MemAvailable."
    ),
    "MemAvailable": _level(
        "MemAvailable",
        "bytes",
        "Memory that programs could still get without swapping, as the kernel estimates.",
    ),
    "Buffers": _level("Buffers", "bytes", "Page cache of disks themselves."),
    "Cached": _level(
        "Cached",
        "bytes",
        "Page cache of files, and shared memory: most of it, not all, can be dropped.",
    ),
    "SwapCached": _level("SwapCached", "bytes", "Memory that also lies in swap still."),
    "Unevictable": _level("Unevictable", "bytes", "Memory that cannot be reclaimed."),
    "Mlocked": _level(
        "Mlocked", "bytes", "Memory locked by mlock; memory that a driver pinned is not in it."
    ),
    "SwapTotal": _level("SwapTotal", "bytes", "Swap there is."),
    "SwapFree": _level("SwapFree", "bytes", "Swap not used."),
    "Dirty": _level("Dirty", "bytes", "Page cache that must still be written to a disk."),
    "Writeback": _level("Writeback", "bytes", "Page cache on its way to a disk."),
    "AnonPages": _level("AnonPages", "bytes", "Memory of programs that no file backs."),
    "Mapped": _level("Mapped", "bytes", "Page cache mapped by programs."),
    "Shmem": _level("Shmem", "bytes", "Shared memory and tmpfs; in Cached as well."),
    "PageTables": _level("PageTables", "bytes", "Memory that page tables take."),
    "HugePages_Total": _level("HugePages_Total", "count", "Reserved huge pages there are."),
    "HugePages_Free": _level("HugePages_Free", "count", "Reserved huge pages not used."),
}
