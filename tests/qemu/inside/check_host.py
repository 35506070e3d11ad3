# SPDX-License-Identifier: Apache-2.0
"""The machine's pressure, threads that wait for pages, and run-queue delay on this kernel."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import psi
from gpucorrelate.probes.host.psi_triggers import PressureTriggers
from gpucorrelate.probes.host.reading import Standing
from gpucorrelate.probes.host.threads import ThreadPoller
from tests.qemu.inside.kit import (
    BUSY,
    CHILD_S,
    MIB,
    cgroups,
    child,
    cold_file,
    grown,
    keep,
    values,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gpucorrelate.probes.host.thread_group import ThreadLook

S = 1_000_000_000
PINNED = f"import os; os.sched_setaffinity(0, {{0}})\n{BUSY}"


def test_pressure_grows_while_two_want_one_cpu() -> None:
    poller = psi.PsiPoller()
    with child(PINNED), child(PINNED):
        first = values(poller.poll(everything=True))
        began_ns = time.monotonic_ns()
        time.sleep(5)
        last = values(poller.poll(everything=True))
        wall_ns = time.monotonic_ns() - began_ns
    poller.close()
    # The kernel takes the mean over CPUs: on the other there may be work and no want.
    assert 0.2 < grown(first, last, "cpu.pressure.some.total", "host") / wall_ns < 1.2
    keep("pressure", sorted({name for name, _ in last}))


def test_the_kernel_tells_of_a_stall_within_half_a_second() -> None:
    triggers = PressureTriggers()
    assert not triggers.poll(()).urgent
    assert triggers.standing() == Standing()
    began_ns = time.monotonic_ns()
    with child(PINNED), child(PINNED):
        time.sleep(3)
    seen = [one for one in triggers.poll(()).changes if one.what == "cpu pressure"]
    assert [(one.subject, one.after) for one in seen] == [("host", "100 ms and more of 0.5 s")]
    assert seen[0].t_ns > began_ns
    over: list[str] = []
    while not over and time.monotonic_ns() < began_ns + CHILD_S * S:
        time.sleep(0.5)
        over = [c.before for c in triggers.poll(()).changes if c.what == "cpu pressure"]
    assert over == [seen[0].after]
    triggers.close()


def _as_nobody(told: Connection) -> None:
    os.setuid(65534)
    triggers = PressureTriggers()
    triggers.poll(())
    told.send([triggers.standing().works, [one.what for one in triggers.standing().missing]])


def test_without_the_privilege_windows_are_long() -> None:
    here, there = multiprocessing.Pipe()
    one = multiprocessing.get_context("fork").Process(target=_as_nobody, args=(there,))
    one.start()
    assert here.poll(60)
    works, missing = here.recv()
    one.join()
    # Debian's 6.1 has it from a later kernel, as these have it themselves.
    assert (works, missing) == (True, ["short trigger windows"])


def test_run_delay_is_what_a_thread_was_not_given() -> None:
    threads = ThreadPoller()
    with child(PINNED) as one, child(PINNED):
        time.sleep(1)
        first = threads.poll((one.pid,), everything=True).sample
        time.sleep(5)
        last = threads.poll((one.pid,), everything=True).sample
    threads.close()
    times = [
        next(r.t_ns for r in sample.readings if r.metric.name == "thread.run_delay")
        for sample in (first, last)
    ]
    tid = f"tid:{one.pid}"
    used_ns = grown(values(first), values(last), "thread.cpu", tid)
    delay_ns = grown(values(first), values(last), "thread.run_delay", tid)
    wall_ns = times[1] - times[0]
    assert 0.2 < delay_ns / wall_ns < 0.8
    assert 0.8 < (used_ns + delay_ns) / wall_ns < 1.2


def test_a_cold_file_shows_as_waits_for_pages_with_the_kernels_word_for_it() -> None:
    path = cold_file(64)
    code = (
        f"import mmap, os, random, time\nfd = os.open('{path}', os.O_RDONLY)\n"
        f"end = time.monotonic() + {CHILD_S}\n"
        "while time.monotonic() < end:\n"
        "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:\n"
        "        m.madvise(mmap.MADV_RANDOM)\n"
        f"        for _ in range(500): m[random.randrange({64 * MIB // mmap.PAGESIZE}) * 4096]\n"
    )
    looks: list[ThreadLook] = []
    with cgroups("outer") as (outer,), child(code, outer) as process:
        # Slow enough that a look finds it waiting.
        device = path.stat().st_dev
        (outer / "io.max").write_text(f"{device >> 8 & 0xFFF}:{device & 0xFF} riops=50")
        threads = ThreadPoller()
        first = values(threads.poll((process.pid,), everything=True).sample)
        end_ns = time.monotonic_ns() + 60 * S
        while time.monotonic_ns() < end_ns and len(looks) < 3:
            looks += [x for x in threads.poll((process.pid,)).looks if x.waits_for_page]
            time.sleep(0.01)
        last = values(threads.poll((process.pid,), everything=True).sample)
        threads.close()
        (outer / "io.max").write_text(f"{device >> 8 & 0xFFF}:{device & 0xFF} riops=max")
    path.unlink()
    keep("wchan", sorted({look.wchan for look in looks}))
    assert len(looks) >= 3
    assert grown(first, last, "thread.major_faults", f"tid:{process.pid}") > 0
