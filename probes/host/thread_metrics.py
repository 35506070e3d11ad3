# SPDX-License-Identifier: Apache-2.0
"""Numbers of threads, and names of places in the kernel where they block."""

from __future__ import annotations

import re

from gpucorrelate.probes.host.reading import Metric
from gpucorrelate.probes.wire.schema import Nature

CPU = Metric(
    "thread.cpu",
    "ns",
    Nature.TOTAL,
    "CPU time of the thread. One that spins while it waits uses as much as one that works; a "
    "thread near all of its time is full even when the machine looks idle.",
)
RUN_DELAY = Metric(
    "thread.run_delay",
    "ns",
    Nature.TOTAL,
    "Time the thread was ready to run and had no CPU; being held by a cgroup's quota is in it. "
    "The kernel adds it when the wait ends, so one that still lasts is not in it.",
)
TIMESLICES = Metric(
    "thread.timeslices", "count", Nature.TOTAL, "Times the thread was given a CPU."
)
VOLUNTARY = Metric(
    "thread.voluntary_switches",
    "count",
    Nature.TOTAL,
    "Times the thread gave up its CPU because it had to wait for something.",
)
INVOLUNTARY = Metric(
    "thread.involuntary_switches",
    "count",
    Nature.TOTAL,
    "Times the thread's CPU was taken away though it wanted on; sched_yield counts here, too.",
)
MINOR_FAULTS = Metric(
    "thread.minor_faults",
    "count",
    Nature.TOTAL,
    "Page faults of the thread that needed no disk: new memory, or page cache.",
)
MAJOR_FAULTS = Metric(
    "thread.major_faults",
    "count",
    Nature.TOTAL,
    "Page faults of the thread that had to read from a disk.",
)
LAST_CPU = Metric("thread.last_cpu", "", Nature.LEVEL, "CPU the thread last ran on.")

#: In the order in which they are read.
THREAD = (
    CPU, RUN_DELAY, TIMESLICES, VOLUNTARY, INVOLUNTARY, MINOR_FAULTS, MAJOR_FAULTS, LAST_CPU,
)  # fmt: skip

#: Where a thread stands that waits for a page: ``folio_wait_bit_common`` since Linux 5.16, before
#: that ``wait_on_page_bit*`` and ``__lock_page*``, long before ``sleep_on_page*``. Compilers put
#: one into the other, so that each of the family may be shown.
_PAGE_WAIT = re.compile(
    r"(folio_wait_(bit|locked|writeback|stable)|__folio_lock|(__)?wait_on_page_|__lock_page"
    r"|sleep_on_(page|buffer)|filemap_update_page|folio_put_wait_locked|put_and_wait_on_page)"
)


def is_page_wait(wchan: str) -> bool:
    """Whether a thread blocked there waits until a page has been read, written or unlocked."""
    return _PAGE_WAIT.match(wchan) is not None
