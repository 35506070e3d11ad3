# SPDX-License-Identifier: Apache-2.0
"""Limits of cgroup v2 that this kernel enforces, the process's own and those above it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.cgroup import CgroupPoller
from gpucorrelate.probes.host.kernel_text import NO_LIMIT
from gpucorrelate.probes.host.threads import ThreadPoller
from tests.qemu.inside.kit import BUSY, IDLE, MIB, cgroups, child, cold_file, grown, keep, values

if TYPE_CHECKING:
    from pathlib import Path

    from tests.qemu.inside.kit import Values

OUTER, INNER = "cgroup:/outer", "cgroup:/outer/inner"
#: Takes all the memory it can get.
EATER = "kept = [bytearray(1 << 20) for _ in range(400)]"


def reader(path: Path, rounds: int, *, again: bool = True) -> str:
    """Reads a file's pages again and again; from the disk, unless there is room to keep them."""
    forget = "" if again else "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
    return (
        f"import os, time\nfd = os.open('{path}', os.O_RDONLY)\n"
        f"for _ in range({rounds}):\n{forget}"
        "    os.lseek(fd, 0, os.SEEK_SET)\n    while os.read(fd, 1 << 16): pass\n"
        "print('read', flush=True)\ntime.sleep(100)"
    )


def test_a_quota_of_the_parent_is_found_and_charged_to_it() -> None:
    poller, threads = CgroupPoller(), ThreadPoller()
    with cgroups("outer", "inner") as (outer, inner), child(BUSY, inner) as hog:
        (outer / "cpu.max").write_text("20000 100000")
        time.sleep(1)
        first = values(poller.poll((hog.pid,), everything=True).sample)
        ran = threads.poll((hog.pid,), everything=True).sample
        time.sleep(6)
        last = values(poller.poll((hog.pid,), everything=True).sample)
        ran_later = threads.poll((hog.pid,), everything=True).sample
        (outer / "cpu.max").write_text("max")
    poller.close()
    threads.close()
    assert last["cpu.max.quota", INNER] == NO_LIMIT
    assert last["cpu.max.quota", OUTER] == 20_000_000
    assert last["cpu.max.period", OUTER] == 100_000_000
    periods = grown(first, last, "cpu.stat.nr_periods", OUTER)
    throttled = grown(first, last, "cpu.stat.nr_throttled", OUTER)
    assert periods >= 10
    assert 0.8 * periods <= throttled <= periods
    assert grown(first, last, "cpu.stat.nr_throttled", INNER) == 0
    begun, ended = values(ran), values(ran_later)
    tid = f"tid:{hog.pid}"
    used_ns = grown(begun, ended, "thread.cpu", tid)
    assert used_ns > 0
    # It always wants to run: what it was not given is in its run-queue delay.
    waited_ns = grown(begun, ended, "thread.run_delay", tid)
    times = {one.metric.name: one.t_ns for one in ran_later.readings}
    earlier = {one.metric.name: one.t_ns for one in ran.readings}
    wall_ns = times["thread.cpu"] - earlier["thread.cpu"]
    assert 0.05 < used_ns / wall_ns < 0.4
    assert 0.8 < (used_ns + waited_ns) / wall_ns < 1.2
    held_ns = grown(first, last, "cpu.stat.throttled", OUTER)
    assert 0.5 < held_ns / (wall_ns - used_ns) < 1.2
    local = ("cpu.stat.local.throttled", INNER) in last
    keep("cpu.stat.local", local)
    if local:
        below_ns = grown(first, last, "cpu.stat.local.throttled", INNER)
        assert 0.8 < below_ns / held_ns < 1.2, "held by a quota that is not its own"


def _after_a_kill(limit: str) -> tuple[Values, Values]:
    poller = CgroupPoller()
    with cgroups("outer", "inner") as (outer, inner), child(IDLE, inner) as keeper:
        (outer / limit).write_text(str(48 * MIB))
        first = values(poller.poll((keeper.pid,), everything=True).sample)
        with child(EATER, inner) as eater:
            assert eater.wait(timeout=300) == -signal.SIGKILL
        last = values(poller.poll((keeper.pid,), everything=True).sample)
    poller.close()
    return first, last


def test_a_kill_at_the_parents_memory_limit_is_counted_where_it_happened() -> None:
    first, last = _after_a_kill("memory.max")
    assert last["memory.max", OUTER] == 48 * MIB
    assert last["memory.max", INNER] == NO_LIMIT
    for subject in (OUTER, INNER):  # that of the parent has all below counted in
        assert grown(first, last, "memory.events.oom_kill", subject) == 1
    assert grown(first, last, "memory.events.max", OUTER) > 0
    assert grown(first, last, "memory.events.local.max", OUTER) > 0, "its own limit"
    assert grown(first, last, "memory.events.local.max", INNER) == 0
    assert grown(first, last, "memory.events.local.oom_kill", INNER) == 1, "the victim was in it"


def test_memory_above_high_is_reclaimed_and_the_time_shows_as_pressure() -> None:
    poller, path = CgroupPoller(), cold_file(48)
    with cgroups("outer", "inner") as (outer, inner):
        (outer / "memory.high").write_text(str(16 * MIB))
        with child(reader(path, 4), inner) as busy:
            first = values(poller.poll((busy.pid,), everything=True).sample)
            assert busy.stdout is not None
            assert busy.stdout.readline() == b"read\n"
            last = values(poller.poll((busy.pid,), everything=True).sample)
    poller.close()
    path.unlink()
    assert last["memory.high", OUTER] == 16 * MIB
    assert last["memory.high", INNER] == NO_LIMIT
    assert grown(first, last, "memory.events.high", OUTER) > 0
    assert grown(first, last, "memory.events.local.high", INNER) == 0
    assert grown(first, last, "memory.stat.workingset_refault_file", INNER) > 0
    assert grown(first, last, "memory.pressure.some.total", INNER) > 0
    assert last["memory.stat.file", OUTER] < 32 * MIB


def _device(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_reads_are_counted_by_device_and_a_limit_on_them_is_pressure() -> None:
    poller, path = CgroupPoller(), cold_file(16)
    device = _device(path)
    with cgroups("outer", "inner") as (outer, inner):
        (outer / "io.max").write_text(f"{device} rbps={4 * MIB}")
        with child(reader(path, 1, again=False), inner) as busy:
            first = values(poller.poll((busy.pid,), everything=True).sample)
            assert busy.stdout is not None
            assert busy.stdout.readline() == b"read\n"
            last = values(poller.poll((busy.pid,), everything=True).sample)
    poller.close()
    path.unlink()
    for subject in (f"{OUTER} dev:{device}", f"{INNER} dev:{device}"):
        read = last["io.stat.rbytes", subject] - first.get(("io.stat.rbytes", subject), 0)
        # Some pages of it may have stayed in memory all the same.
        assert 15 * MIB <= read < 20 * MIB
        assert last["io.stat.rios", subject] > first.get(("io.stat.rios", subject), 0)
    stood_ns = grown(first, last, "io.pressure.some.total", INNER)
    # 16 MiB at 4 MiB a second: most of it is standing still.
    assert stood_ns > 1_000_000_000


def test_cpu_pressure_is_that_of_the_cgroup_that_wants_more_than_there_is() -> None:
    poller = CgroupPoller()
    pinned = f"import os; os.sched_setaffinity(0, {{1}})\n{BUSY}"
    with (
        cgroups("outer", "inner") as (_, inner),
        child(pinned, inner) as one,
        child(pinned, inner),
    ):
        time.sleep(1)
        first = values(poller.poll((one.pid,), everything=True).sample)
        began_ns = time.monotonic_ns()
        time.sleep(5)
        last = values(poller.poll((one.pid,), everything=True).sample)
        wall_ns = time.monotonic_ns() - began_ns
    poller.close()
    for subject in (OUTER, INNER):
        assert grown(first, last, "cpu.pressure.some.total", subject) > 0.5 * wall_ns


def test_what_is_missing_here_is_known() -> None:
    poller = CgroupPoller()
    with cgroups("outer", "inner") as (_, inner), child(IDLE, inner) as process:
        missing = poller.poll((process.pid,), everything=True).sample.missing
    poller.close()
    keep("cgroup.missing", sorted({f"{one.what}: {one.reason}" for one in missing}))
    assert not [one for one in missing if one.subject in ("host", f"pid:{process.pid}")]
