# SPDX-License-Identifier: Apache-2.0
"""Which numbers of the host are worth a word in a report, and from where on."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.correlator.report.context_values import ContextNumber

PPM = 1_000_000
#: Shares of the time, in millionths, from which lost time is worth a word.
_CPU_PPM, _OTHER_PPM, _CLOCK_PPM = 100_000, 10_000, 100_000
#: A number that speaks for more than three halves of the window tells of another time too much.
_MOST_AROUND = (3, 2)

#: Time out of quota: said apart, beside what the path shows of it.
THROTTLED = "cpu.stat.throttled"
#: What a thread was seen blocked in, at a moment.
BLOCKED = "blocked in"
APART = "on different nodes"
BOUND = "allowed CPUs and nodes"

_CPUS = re.compile(r"CPUs ([0-9,-]+|none)(?=,|$)", re.ASCII)
#: No machine has more (NR_CPUS of the kernel is 8,192 at most).
_MOST_CPUS = 1 << 16
#: Where a thread of Linux stands that waits for a page to be read, written or unlocked.
_PAGE_WAIT = re.compile(
    r"(folio_wait_|__folio_lock|folio_put_wait_locked|(__)?wait_on_page_|__lock_page"
    r"|sleep_on_(page|buffer)|filemap_update_page|put_and_wait_on_page)"
)


@dataclass(frozen=True)
class _Rule:
    """When a total that grew matters.

    Attributes:
        metric: Its name.
        least_ppm: Share of the time from which it does; None: any growth.
        says: What it means.
        grave: Said even where it may have been at another time.
    """

    metric: str
    least_ppm: int | None
    says: str
    grave: bool = False


# In the order in which they are said.
_RULES = (
    _Rule("memory.events.oom_kill", None, "killed for want of memory", grave=True),
    _Rule("memory.oom_control.oom_kill", None, "killed for want of memory", grave=True),
    _Rule("gpu.ecc.uncorrected", None, "GPU memory errors that could not be corrected",
          grave=True),
    _Rule(THROTTLED, _OTHER_PPM, "out of CPU quota"),
    _Rule("memory.events.oom", None, "at its memory limit, and reclaiming did not help"),
    _Rule("memory.events.max", None, "at its memory limit"),
    _Rule("memory.failcnt", None, "at its memory limit"),
    _Rule("memory.memsw.failcnt", None, "at its limit on memory and swap"),
    _Rule("memory.events.high", None, "above memory.high: slowed down to reclaim"),
    _Rule("memory.pressure.some.total", _OTHER_PPM, "tasks stood still for want of memory"),
    _Rule("io.pressure.some.total", _CPU_PPM, "tasks stood still for want of a disk"),
    _Rule("process.major_faults", None, "faults that waited for a disk"),
    _Rule("engine.preemptions", None, "requests preempted for want of KV cache"),
    _Rule("gpu.violation.thermal", _CLOCK_PPM, "GPU clocks lowered for heat"),
    _Rule("gpu.violation.power", _CLOCK_PPM, "GPU clocks lowered to stay within power"),
    _Rule("gpu.violation.board_limit", _CLOCK_PPM, "GPU clocks lowered by a limit of the board"),
    _Rule("cpu.pressure.some.total", _CPU_PPM, "tasks wanted a CPU"),
    _Rule("thread.run_delay", _CPU_PPM, "ready without a CPU"),
    _Rule("numa.miss", None, "memory put here that was wanted on another NUMA node"),
)  # fmt: skip
_BY_METRIC = {rule.metric: (rank, rule) for rank, rule in enumerate(_RULES)}


def judged(one: ContextNumber, window_ns: int) -> ContextNumber:
    """A number with why it is worth a word in a window of that length, if it is."""
    rank, rule = _BY_METRIC.get(one.metric, (0, None))
    if rule is None or one.nature != "total" or one.grown <= 0:
        return one
    times, per = _MOST_AROUND
    if one.length_ns * per > window_ns * times and not rule.grave:
        return one
    least_ppm = rule.least_ppm or 0
    if one.grown * PPM < least_ppm * max(window_ns, one.length_ns):
        return one
    return replace(one, note=rule.says, rank=rank, least_ppm=rule.least_ppm)


def is_page_wait(where: str) -> bool:
    """Whether a thread that is blocked in this function of the kernel waits for a page's I/O."""
    return _PAGE_WAIT.match(where) is not None


def cpus_of(binding: str) -> frozenset[int]:
    """The CPUs that a binding (``CPUs 0-3,8, nodes 0``) names; none where it names none."""
    found = _CPUS.match(binding)
    cpus: set[int] = set()
    for part in found.group(1).split(",") if found else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            low, high = int(first), int(last or first)
            cpus.update(range(low, min(high, _MOST_CPUS) + 1))
    return frozenset(cpus)


def noted_state(what: str, value: str, machine: frozenset[int]) -> str:
    """Why a state is worth a word; empty where it is not.

    Args:
        what: Which state.
        value: What it is.
        machine: CPUs that anybody was seen on or may run on.
    """
    if what == APART:
        return "on different NUMA nodes"
    if what == BOUND and value:
        own = cpus_of(value)
        return "bound to some of the CPUs" if own and own < machine else ""
    return ""


def widest(bindings: Iterable[str]) -> frozenset[int]:
    """All CPUs that bindings name together."""
    return frozenset().union(*map(cpus_of, bindings))
