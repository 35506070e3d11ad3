# SPDX-License-Identifier: Apache-2.0
"""What files of a thread say (proc(5)). Parsers raise for nothing that a file might hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucorrelate.probes.host.kernel_text import number

#: ``include/uapi/linux/sched.h``.
POLICIES = {
    0: "other",
    1: "fifo",
    2: "rr",
    3: "batch",
    5: "idle",
    6: "deadline",
    7: "ext",
}
_STATE = re.compile(r"[A-Za-z]", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][\w.$]*", re.ASCII)
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches", "Cpus_allowed_list")
#: Fields of ``stat`` by their number in proc(5), less the three before the state.
_MINFLT, _MAJFLT, _UTIME, _STIME, _THREADS, _START = 7, 9, 11, 12, 17, 19
_CPU, _POLICY = 36, 38


@dataclass(frozen=True)
class Schedstat:
    """Times of a thread since its start.

    Attributes:
        cpu_ns: It ran.
        delay_ns: It was ready and waited for a CPU.
        slices: Times it was given one.
    """

    cpu_ns: int
    delay_ns: int
    slices: int


@dataclass(frozen=True)
class TaskStat:
    """What ``stat`` of a thread or a process says.

    Attributes:
        name: The kernel's name of it.
        state: One letter.
        minor_faults: Page faults that needed no disk.
        major_faults: Page faults that did.
        ticks: CPU time in clock ticks.
        threads: Threads of its process.
        start_ticks: Start, in clock ticks since boot.
        cpu: CPU it last ran on; -1 if not told.
        policy: How it is scheduled; empty if not told.
    """

    name: str
    state: str
    minor_faults: int
    major_faults: int
    ticks: int
    threads: int
    start_ticks: int
    cpu: int
    policy: str


@dataclass(frozen=True)
class Switches:
    """What ``status`` of a thread says.

    Attributes:
        voluntary: Times it gave up its CPU; -1 if not told.
        involuntary: Times its CPU was taken away.
        pinned_cpu: The one CPU it may run on; -1 for several.
    """

    voluntary: int = -1
    involuntary: int = -1
    pinned_cpu: int = -1


def parse_schedstat(text: str) -> Schedstat | None:
    """Three numbers; None if they are not."""
    fields = text.split()
    if len(fields) != 3 or not text.endswith("\n"):
        return None
    values = [number(field) for field in fields]
    cpu, delay, slices = values
    if cpu is None or delay is None or slices is None:
        return None
    return Schedstat(cpu, delay, slices)


def parse_task_stat(text: str) -> TaskStat | None:
    """The fields that matter; None if it is no such file, or one that is cut."""
    _, opened, rest = text.partition("(")
    name, closed, tail = rest.rpartition(")")
    fields = tail.split()
    if not opened or not closed or len(fields) <= _START or not text.endswith("\n"):
        return None
    minflt, majflt, utime, stime = (
        number(fields[at]) for at in (_MINFLT, _MAJFLT, _UTIME, _STIME)
    )
    threads, start = number(fields[_THREADS]), number(fields[_START])
    if minflt is None or majflt is None or utime is None or stime is None:
        return None
    if threads is None or start is None or not _STATE.fullmatch(fields[0]):
        return None
    cpu = number(fields[_CPU]) if len(fields) > _CPU else None
    policy = number(fields[_POLICY]) if len(fields) > _POLICY else None
    return TaskStat(
        name, fields[0], minflt, majflt, utime + stime, threads, start,
        -1 if cpu is None else cpu, "" if policy is None else POLICIES.get(policy, str(policy)),
    )  # fmt: skip


def parse_switches(text: str) -> Switches:
    """Context switches and affinity; what is not told is -1."""
    found: dict[str, int] = {}
    # They are the last lines of a long file.
    tail = text[max(0, text.rfind("\nCpus_allowed_list:")) :]
    for row in tail.split("\n")[:-1]:
        key, _, rest = row.partition(":\t")
        if key in _SWITCHES:
            value = number(rest)
            if value is not None and value >= 0:
                found[key] = value
    return Switches(*(found.get(key, -1) for key in _SWITCHES))


def parse_wchan(text: str) -> str:
    """The function; empty for none, or where the kernel shows an address or nothing."""
    name = text.strip()
    return name if _FUNCTION.fullmatch(name) else ""
