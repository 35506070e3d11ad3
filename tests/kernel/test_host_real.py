# SPDX-License-Identifier: Apache-2.0
"""Limits, pressure and waits that a real kernel enforces, seen by the pollers.

Hogs run for a few seconds at most, in cgroups of their own that are removed afterwards; a quota
is lifted before anybody leaves its group. Times are compared with each other, never with a
number of seconds.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gpucorrelate.probes.host import psi
from gpucorrelate.probes.host.cgroup import CgroupPoller, CgroupRound
from gpucorrelate.probes.host.kernel_text import NO_LIMIT
from gpucorrelate.probes.host.processes import ProcessPoller
from gpucorrelate.probes.host.psi_triggers import PressureTriggers
from gpucorrelate.probes.host.source import Descriptors, Folder, KeptFile, reason_of
from gpucorrelate.probes.host.threads import ThreadPoller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucorrelate.probes.host.reading import Change, Sample
    from gpucorrelate.probes.host.thread_group import ThreadLook

S = 1_000_000_000
#: Longest that a child runs, whatever becomes of the test.
CHILD_S = 20
BUSY = f"import time\nend = time.monotonic() + {CHILD_S}\nwhile time.monotonic() < end: pass"
IDLE = f"import time\ntime.sleep({CHILD_S})"
EATER = "import time\nkept = bytearray(192 << 20)\ntime.sleep(5)"


def directory(controller: str) -> Path:
    """This process's own cgroup in the v1 hierarchy of a controller, or in v2 for none."""
    poller = CgroupPoller()
    poller.poll((os.getpid(),))
    chains = poller.places(os.getpid())
    poller.close()
    for places in chains:
        if places and (
            controller in places[0].controllers if controller else places[0].version == 2
        ):
            return Path("/", *places[0].directory)
    pytest.skip(f"no cgroup of {controller or 'v2'} to make others in")


@contextmanager
def group(controller: str, names: str = "gpucorrelate-test") -> Iterator[Path]:
    """A cgroup below this process's, with others in it; the innermost is given."""
    top = directory(controller)
    made: list[Path] = []
    try:
        folder = top
        for name in names.split("/"):
            folder = folder / f"{name}-{os.getpid()}"
            folder.mkdir()
            made.append(folder)
        yield folder
    finally:
        for folder in reversed(made):
            _remove(folder, top)


def _remove(folder: Path, top: Path) -> None:
    quota = folder / "cpu.cfs_quota_us"
    if quota.exists():
        quota.write_text("-1")
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            (top / "cgroup.procs").write_text(pid)
    for _ in range(200):
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"{folder} is left")


@contextmanager
def child(code: str, *groups: Path, cpu: int = -1) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process in these cgroups, on one CPU if told so."""
    enter = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in groups)
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n" if cpu >= 0 else ""
    command = f'{enter}exec "$0" -c "$1"'
    process = subprocess.Popen(
        ["sh", "-c", command, sys.executable, f"{pin}import sys; print(flush=True)\n{code}"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def numbers(sample: Sample, part: str) -> dict[str, tuple[int, int]]:
    """Value and time by name, of subjects that hold this part."""
    return {r.metric.name: (r.value, r.t_ns) for r in sample.readings if part in r.subject}


def grown(first: Sample, last: Sample, part: str, name: str) -> int:
    return numbers(last, part)[name][0] - numbers(first, part)[name][0]


def span(first: Sample, last: Sample, part: str, name: str) -> int:
    return numbers(last, part)[name][1] - numbers(first, part)[name][1]


def own_cpu() -> int:
    return max(os.sched_getaffinity(0))


def test_throttling_is_charged_to_the_ancestor_that_has_the_quota() -> None:
    with group("cpu", "limited/inner") as inner:
        limited = inner.parent
        (limited / "cpu.cfs_period_us").write_text("100000")
        (limited / "cpu.cfs_quota_us").write_text("5000")
        poller, threads = CgroupPoller(), ThreadPoller()
        with child(BUSY, inner) as hog:
            time.sleep(0.3)
            first = poller.poll((hog.pid,), everything=True).sample
            ran = threads.poll((hog.pid,), everything=True).sample
            time.sleep(2.5)
            last = poller.poll((hog.pid,), everything=True).sample
            ran_later = threads.poll((hog.pid,), everything=True).sample
            (limited / "cpu.cfs_quota_us").write_text("-1")
        poller.close()
        threads.close()

    above, own = f"limited-{os.getpid()}", f"/inner-{os.getpid()}"
    limits = {r.subject: r.value for r in last.readings if r.metric.name == "cpu.max.quota"}
    assert {value for subject, value in limits.items() if own in subject} == {NO_LIMIT}
    assert {v for s, v in limits.items() if above in s and own not in s} == {5_000_000}

    def more(name: str) -> int:
        values = [
            {r.subject: r.value for r in s.readings if r.metric.name == name}
            for s in (first, last)
        ]
        (subject,) = [s for s in values[0] if s.endswith(above)]
        return values[1][subject] - values[0][subject]

    periods, throttled = more("cpu.stat.nr_periods"), more("cpu.stat.nr_throttled")
    assert periods >= 10
    assert throttled >= 0.8 * periods
    wall_ns = span(first, last, above, "cpu.stat.throttled")
    used_ns = grown(ran, ran_later, f"tid:{hog.pid}", "thread.cpu")
    held_ns = more("cpu.stat.throttled")
    # It always wants to run: what it did not get, it was held or waited behind others.
    assert 0.02 < used_ns / wall_ns < 0.12
    assert 0.5 < held_ns / (wall_ns - used_ns) < 1.05
    assert grown(first, last, own, "cpu.stat.nr_throttled") == 0
    if "cpu.stat.local.throttled" in numbers(last, own):
        held_below_ns = grown(first, last, own, "cpu.stat.local.throttled")
        assert 0.9 < held_below_ns / held_ns < 1.1, "held by a quota that is not its own"
    # Being held is in the time it was ready and had no CPU.
    waited_ns = grown(ran, ran_later, f"tid:{hog.pid}", "thread.run_delay")
    assert 0.85 < (used_ns + waited_ns) / wall_ns < 1.15


def test_an_oom_kill_and_the_limit_that_was_met() -> None:
    with group("memory", "small/inner") as inner:
        small = inner.parent
        (small / "memory.limit_in_bytes").write_text(str(64 << 20))
        if psutil.swap_memory().total:
            # Only then: kernels that charge memory and swap together first may not count it.
            (small / "memory.memsw.limit_in_bytes").write_text(str(64 << 20))
        poller = CgroupPoller()
        with child(IDLE, inner) as keeper:
            first = poller.poll((keeper.pid,), everything=True).sample
            with child(EATER, inner) as eater:
                assert eater.wait(timeout=30) == -signal.SIGKILL
            changed = poller.poll((keeper.pid,)).sample
        poller.close()
    own, above = f"/inner-{os.getpid()}", f"/small-{os.getpid()}"
    before = {(r.metric.name, r.subject): r.value for r in first.readings}
    more = {
        (r.metric.name, r.subject): r.value - before[r.metric.name, r.subject]
        for r in changed.readings
    }
    counts = ("memory.failcnt", "memory.memsw.failcnt")
    failed = {s: n for (name, s), n in more.items() if name in counts}
    killed = {s: n for (name, s), n in more.items() if name == "memory.oom_control.oom_kill"}
    # The limit is the ancestor's, the victim was in the group below.
    assert [s for s in failed if s.endswith(above)]
    assert not [s for s in failed if s.endswith(own)]
    assert [n for s, n in killed.items() if s.endswith(own)] == [1]
    limits = {s: v for (name, s), v in before.items() if name == "memory.max" and above in s}
    assert sorted(limits.values()) == [NO_LIMIT, 64 << 20]


def test_a_move_is_noticed_between_the_rounds_it_happened_in() -> None:
    with group("cpu", "one") as one, group("cpu", "two") as two:
        poller = CgroupPoller()
        with child(IDLE, one) as process:
            first = poller.poll((process.pid,))
            assert poller.poll((process.pid,)).moves == ()
            before_ns = time.monotonic_ns()
            (two / "cgroup.procs").write_text(str(process.pid))
            after_ns = time.monotonic_ns()
            moved: CgroupRound = poller.poll((process.pid,))
        poller.close()
    (move,) = moved.moves
    assert "cpu" in move.controllers
    assert move.before.endswith(f"/{one.name}")
    assert move.after.endswith(f"/{two.name}")
    assert first.t_ns < move.since_ns < before_ns < after_ns < move.t_ns


def test_a_file_held_open_says_that_its_cgroup_is_gone() -> None:
    with group("cpu", "gone") as folder:
        opened = Folder.at(folder)
        file = KeptFile(opened, ("cpu.stat",), Descriptors())
        assert b"nr_throttled" in file.read()
        folder.rmdir()
        with pytest.raises(OSError, match=r".") as failed:
            file.read()
        assert reason_of(failed.value) == "the cgroup is gone"
        opened.close()
        folder.mkdir()


def test_pressure_grows_while_two_want_one_cpu() -> None:
    cpu = own_cpu()
    poller = psi.PsiPoller()
    with child(BUSY, cpu=cpu), child(BUSY, cpu=cpu):
        first = poller.poll(everything=True)
        time.sleep(1.5)
        last = poller.poll(everything=True)
    poller.close()
    name = "cpu.pressure.some.total"
    share = grown(first, last, "host", name) / span(first, last, "host", name)
    # The kernel takes the mean over CPUs: on the others there may be work and no want.
    assert 0.7 / (os.cpu_count() or 1) < share < 1.1


def test_pressure_is_that_of_the_cgroup_it_is_in() -> None:
    cpu = own_cpu()
    with group("", "pressed") as pressed, group("", "calm") as calm:
        poller = CgroupPoller()
        with (
            child(IDLE, calm) as idle,
            child(BUSY, pressed, cpu=cpu) as one,
            child(BUSY, pressed, cpu=cpu),
        ):
            pids = (idle.pid, one.pid)
            first = poller.poll(pids, everything=True).sample
            time.sleep(1.5)
            last = poller.poll(pids, everything=True).sample
        poller.close()
        name, wall = "cpu.pressure.some.total", span(first, last, pressed.name, "cpu.stat.usage")
        stood = grown(first, last, pressed.name, name)
        assert 0.7 < stood / wall < 1.1
        assert grown(first, last, calm.name, name) < 0.2 * stood
        assert 0.1 < grown(first, last, pressed.name, "cpu.stat.usage") / wall < 1.1


def test_a_cold_file_shows_as_waits_for_pages() -> None:
    pages = 8192
    with Path("/var/tmp", f"gpucorrelate-cold-{os.getpid()}").open("w+b") as file:
        Path(file.name).unlink()
        for _ in range(pages * mmap.PAGESIZE >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        reader = (
            f"import mmap, os, random, time\n"
            f"fd = os.open('{path}', os.O_RDONLY)\n"
            f"end = time.monotonic() + {CHILD_S}\n"
            f"while time.monotonic() < end:\n"
            f"    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            f"    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:\n"
            f"        m.madvise(mmap.MADV_RANDOM)\n"
            f"        for _ in range(1000): m[random.randrange({pages}) * mmap.PAGESIZE]\n"
        )
        threads, whole = ThreadPoller(), ProcessPoller()
        with child(reader) as process:
            first = threads.poll((process.pid,), everything=True).sample
            began = whole.poll((process.pid,), everything=True)
            looks: list[ThreadLook] = []
            end_ns = time.monotonic_ns() + 10 * S
            while time.monotonic_ns() < end_ns and sum(x.waits_for_page for x in looks) < 3:
                looks += threads.poll((process.pid,)).looks
                time.sleep(0.003)
            last = threads.poll((process.pid,), everything=True).sample
            ended = whole.poll((process.pid,), everything=True)
        threads.close()
        whole.close()
    waits = [look for look in looks if look.waits_for_page]
    assert len(waits) >= 3, {(look.state, look.wchan) for look in looks}
    assert {look.state for look in waits} == {"D"}
    faults = grown(first, last, "tid:", "thread.major_faults")
    assert faults > 10
    read = grown(began, ended, "pid:", "process.io.read_bytes")
    assert read >= 0.5 * faults * mmap.PAGESIZE


def test_run_delay_is_what_a_hog_on_the_same_cpu_takes() -> None:
    cpu = own_cpu()
    threads = ThreadPoller()
    with child(BUSY, cpu=cpu), child(BUSY, cpu=cpu) as victim:
        first = threads.poll((victim.pid,), everything=True).sample
        time.sleep(2)
        last = threads.poll((victim.pid,), everything=True).sample
    threads.close()
    part = f"tid:{victim.pid}"
    wall = span(first, last, part, "thread.cpu")
    ran = grown(first, last, part, "thread.cpu")
    waited = grown(first, last, part, "thread.run_delay")
    # Always ready: it ran or it waited, and half of the CPU at most was its own.
    assert 0.9 < (ran + waited) / wall < 1.1
    assert waited / wall > 0.35
    assert grown(first, last, part, "thread.involuntary_switches") > 10


def test_the_kernel_tells_of_a_stall_that_nobody_read() -> None:
    """No file is read while two hogs share a CPU; their cgroup alone stands still."""
    cpu, name = own_cpu(), "cpu pressure"
    with group("", "outer/pressed") as pressed, group("", "calm") as calm:
        triggers = PressureTriggers()
        with child(IDLE, calm) as idle, child(IDLE, pressed) as other:
            pids = (idle.pid, other.pid)
            assert not triggers.poll(pids).urgent
            subjects = {f"cgroup:/{pressed.parent.name}/{pressed.name}", f"cgroup:/{calm.name}"}
            lacking = {one.subject: one.reason for one in triggers.standing().missing}
            assert not lacking.keys() & subjects, lacking
            began_ns = time.monotonic_ns()
            with child(BUSY, pressed, cpu=cpu), child(BUSY, pressed, cpu=cpu):
                time.sleep(1.5)
            ended_ns = time.monotonic_ns()
            seen = _until(triggers, pids, pressed.name, lambda one: bool(one.after))
            assert seen.what == name
            assert seen.since_ns < ended_ns and began_ns < seen.t_ns
            over = _until(triggers, pids, pressed.name, lambda one: not one.after)
            assert (over.what, over.before) == (name, seen.after)
            assert over.since_ns >= seen.t_ns
        triggers.close()
        assert not triggers.standing().works


def _until(
    triggers: PressureTriggers, pids: tuple[int, ...], part: str, wanted: Callable[[Change], bool]
) -> Change:
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        found = triggers.poll(pids)
        assert not any("calm" in one.subject for one in found.changes)
        for one in found.changes:
            if part in one.subject and wanted(one):
                return one
        time.sleep(0.1)
    raise AssertionError(f"nothing was said of {part}")
