# SPDX-License-Identifier: Apache-2.0
"""Slots of the memory that the BPF programs and the tracer share, declared once.

Everything shared besides records is an array of 64-bit words, so that there is no layout to
get wrong: only positions, which ``layout.gen.h`` gives the C side under the same names.
``python -m gpucorrelate.probes.ebpf.build`` writes that header.
"""

from __future__ import annotations

import enum
from pathlib import Path

from gpucorrelate.probes.ebpf import syscall_kinds
from gpucorrelate.probes.wire import cgen

HEADER_PATH = Path(__file__).resolve().parent / "layout.gen.h"

#: Words of the target bitmap: one bit for each of the 2^22 process ids Linux can have
#: (PID_MAX_LIMIT of include/linux/threads.h).
TARGET_WORDS = 1 << 16
#: CPUs with counters and a ring; the index is masked with this less one in C.
MAX_CPUS = 1024
#: Words of one CPU's counters: two cache lines, so that CPUs do not share one.
CPU_WORDS = 16
CONTROL_WORDS = 8
CONFIG_WORDS = 8
#: Threads and kinds that one window of short-wait sums can hold; beyond it waits are streamed.
SUM_ENTRIES = 16384
#: Sizes of what lies in the maps; C asserts them, for every compiler.
STATE_BYTES = 168
SUM_KEY_BYTES = 12
SUM_BYTES = 48
STINTS_BYTES = 200
REC_BYTES = 80
#: Where a program that BCC compiled names map N it has this plus N until the map is made.
MAP_MARK = 0x47500000


class ConfigSlot(enum.IntEnum):
    """Settings fixed when the programs are loaded."""

    MIN_WAIT_NS = 0
    FAULT_PROGRAMS = 1
    WAKE_BYTES = 2


class ControlSlot(enum.IntEnum):
    """What the tracer tells running programs."""

    EPOCH = 0
    SUM_WINDOW = 1
    ITER_MODE = 2
    ITER_TGID = 3


class CpuSlot(enum.IntEnum):
    """Counters and marks of one CPU. Drops are at ``KernelRecord`` positions 1 to 4."""

    IN_HARD_TIMER = 0
    DROP_WAIT = 1
    DROP_FAULT = 2
    DROP_TASK = 3
    DROP_SPIN = 4
    IN_SOFT_TIMER = 5
    FIRST_DROP_NS = 6
    LAST_DROP_NS = 7
    FAIL_STORAGE = 8
    FAIL_READ = 9
    SUMS_FULL = 10
    IN_SOFTIRQ = 11
    IN_IRQ = 12
    RECOVERED = 13


class IterMode(enum.IntEnum):
    """What a walk over the tasks is for."""

    REPORT = 0
    ATTACH = 1
    FORGET = 2


class MapSlot(enum.IntEnum):
    """What the programs share, for a compiler that does not declare it to the loader."""

    CONFIG = 0
    KINDS = 1
    CONTROL = 2
    TARGETS = 3
    CPUS = 4
    STINTS = 5
    WALK = 6
    RINGS = 7
    STATES = 8
    SUMS_EVEN = 9
    SUMS_ODD = 10


_ENUMS = (
    (ConfigSlot, "GPC_CFG"),
    (ControlSlot, "GPC_CTL"),
    (CpuSlot, "GPC_CPU"),
    (IterMode, "GPC_ITER"),
    (MapSlot, "GPC_MAP"),
)


def header() -> str:
    """The text of ``layout.gen.h``."""
    parts = [
        "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */",
        "/* Made from layout.py by build.py: edit that and run it. */",
        "#ifndef GPC_LAYOUT_GEN_H",
        "#define GPC_LAYOUT_GEN_H",
        "",
        f"#define GPC_TARGET_WORDS {TARGET_WORDS}",
        f"#define GPC_MAX_CPUS {MAX_CPUS}",
        f"#define GPC_CPU_WORDS {CPU_WORDS}",
        f"#define GPC_CONTROL_WORDS {CONTROL_WORDS}",
        f"#define GPC_CONFIG_WORDS {CONFIG_WORDS}",
        f"#define GPC_SUM_ENTRIES {SUM_ENTRIES}",
        f"#define GPC_STATE_BYTES {STATE_BYTES}",
        f"#define GPC_SUM_KEY_BYTES {SUM_KEY_BYTES}",
        f"#define GPC_SUM_BYTES {SUM_BYTES}",
        f"#define GPC_STINTS_BYTES {STINTS_BYTES}",
        f"#define GPC_REC_BYTES {REC_BYTES}",
        f"#define GPC_MAP_MARK {MAP_MARK:#x}",
        "",
        syscall_kinds.c_table(),
        "",
    ]
    for members, prefix in _ENUMS:
        parts += [cgen.c_enum(members, prefix), ""]
    parts += ["#endif", ""]
    return "\n".join(parts)
