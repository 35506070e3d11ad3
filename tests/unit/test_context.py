# SPDX-License-Identifier: Apache-2.0
"""The host in a window: what changed in it, and nothing that changed at another time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.context import HostContext
from gpucorrelate.correlator.report import text_context
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.page import Page, TextOptions
from gpucorrelate.probes.wire.schema import CapabilityState, Nature, WaitKind
from tests.unit.synth import CORE, MS, Recording

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.context_values import Context, ContextNumber

THROTTLED, PRESSURE, MEMORY = "cpu.stat.throttled", "cpu.pressure.some.total", "memory.current"


class Host(Recording):
    """A recording with the host's numbers."""

    def __init__(self) -> None:
        super().__init__()
        for name, nature in (
            (THROTTLED, Nature.TOTAL),
            (PRESSURE, Nature.TOTAL),
            (MEMORY, Nature.LEVEL),
        ):
            self.add("metric", 1, name=name, unit="ns", nature=nature, meaning=f"what {name} is")

    def read(self, t_ms: int, since_ms: int, metric: str, subject: str, value: int) -> None:
        self.add("counter", 1, t_ns=t_ms * MS, since_ns=since_ms * MS, metric=metric,
                 subject=subject, value=value)  # fmt: skip

    def of(self, start_ms: int, end_ms: int) -> Context:
        found = HostContext(self.capture(10_000 * MS)).of(start_ms * MS, end_ms * MS)
        assert found is not None
        return found

    def number(self, start_ms: int, end_ms: int, metric: str) -> ContextNumber | None:
        found = [one for one in self.of(start_ms, end_ms).numbers if one.metric == metric]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def host() -> Host:
    made = Host()
    made.read(100, 0, THROTTLED, "cgroup:/a", 7 * MS)
    made.read(500, 300, THROTTLED, "cgroup:/a", 57 * MS)
    made.read(900, 700, THROTTLED, "cgroup:/a", 77 * MS)
    return made


def test_without_numbers_there_is_no_context() -> None:
    assert HostContext(Recording().capture()).of(0, 10) is None


def test_what_a_total_grew_by_within_a_window(host: Host) -> None:
    one = host.number(200, 600, THROTTLED)
    assert one is not None
    assert (one.before, one.after) == (7 * MS, 57 * MS)
    # It grew after 300: nothing is said of the time before.
    assert (one.since_ns, one.until_ns) == (200 * MS, 500 * MS)
    assert (one.subject, one.unit, one.nature) == ("cgroup:/a", "ns", "total")
    assert one.meaning == f"what {THROTTLED} is"


def test_readings_around_a_window_say_for_how_long_they_speak(host: Host) -> None:
    one = host.number(400, 800, THROTTLED)
    assert one is not None
    assert (one.before, one.after) == (7 * MS, 77 * MS)
    assert (one.since_ns, one.until_ns) == (300 * MS, 900 * MS)


def test_where_nothing_changed_nothing_is_said(host: Host) -> None:
    assert host.number(510, 690, THROTTLED) is None
    assert host.number(910, 2000, THROTTLED) is None
    # Before the first reading nobody looked.
    assert host.number(10, 90, THROTTLED) is None


def test_a_lifetimes_total_is_never_a_windows(host: Host) -> None:
    one = host.number(50, 550, THROTTLED)
    assert one is not None
    assert (one.before, one.after, one.since_ns) == (7 * MS, 57 * MS, 100 * MS)


def test_what_matters_has_its_threshold_and_the_gravest_comes_first(host: Host) -> None:
    host.read(100, 0, PRESSURE, "host", 0)
    host.read(500, 300, PRESSURE, "host", 60 * MS)
    host.read(100, 0, MEMORY, "cgroup:/a", 1)
    host.read(500, 300, MEMORY, "cgroup:/a", 2)
    notes = {one.metric: (one.note, one.least_ppm) for one in host.of(200, 600).numbers}
    assert notes == {
        THROTTLED: ("out of CPU quota", 10_000),
        PRESSURE: ("tasks wanted a CPU", 100_000),
        MEMORY: ("", None),
    }
    page = io.StringIO()
    text_context.context(Page(page, TextOptions(width=200)), host.of(200, 600))
    quota, others = page.getvalue().splitlines()
    assert quota == (
        "CPU quota   cgroup /a: 0 of the path; the kernel counted 50.0 ms out of quota in 300 ms "
        "for all of it, CPUs summed"
    )
    assert others == "context     tasks wanted a CPU (shown from 10% on): host 20.0% of 300 ms"


def test_below_the_threshold_it_is_a_number_like_others(host: Host) -> None:
    host.read(4000, 3800, THROTTLED, "cgroup:/a", 78 * MS)
    one = host.number(3000, 5000, THROTTLED)
    assert one is not None
    assert one.note == ""


@pytest.mark.parametrize(
    ("around_ms", "noted"), [(0, True), (50, True), (51, False), (900, False)]
)
def test_what_speaks_for_more_than_one_and_a_half_windows_is_not_worth_a_word(
    around_ms: int, *, noted: bool
) -> None:
    made = Host()
    made.read(100, 0, THROTTLED, "cgroup:/a", 0)
    made.read(2100 + around_ms, 2000, THROTTLED, "cgroup:/a", 4000 * MS)
    one = made.number(2000, 2100, THROTTLED)
    assert one is not None
    assert one.length_ns == (100 + around_ms) * MS
    assert bool(one.note) == noted


def test_changes_and_missing_sources(host: Host) -> None:
    change = {"subject": "pid:7", "what": "cgroup"}
    host.add("change", 1, t_ns=100 * MS, since_ns=0, after="/a", **change)
    host.add("change", 1, t_ns=700 * MS, since_ns=500 * MS, before="/a", after="/b", **change)
    for source, state in (("host.threads", CapabilityState.ON), ("host.psi", CapabilityState.OFF)):
        host.add("capability", 1, t_ns=1, source=source, state=state, reason="no PSI")
    found = host.of(400, 600)
    assert [(one.before, one.after) for one in found.changes] == [("/a", "/b")]
    assert host.of(0, 400).changes == ()
    assert found.missing == ("psi: no PSI",)


def throttled(host: Host) -> str:
    """What a report says of a thread that a quota kept from running, from 400 to 450 ms."""
    host.process(4, CORE, "core")
    host.wait(CORE, 1, 2)
    host.wait(CORE, 400 * MS, 450 * MS, kind=WaitKind.PREEMPTED, throttled_ns=50 * MS)
    host.add("step_begin", 4, step=1, tid=CORE, sched_start_ns=390 * MS,
             sched_end_ns=391 * MS, start_ns=391 * MS)  # fmt: skip
    host.add("step_update", 4, step=1, tid=CORE, start_ns=459 * MS, end_ns=460 * MS)
    report = Run.of(host.capture(1000 * MS)).step(1)
    (cause,) = {s.cause.text for s in report.segments if s.cause and s.category == "throttled"}
    return cause


def test_a_quota_is_that_of_the_cgroup_that_stood_still(host: Host) -> None:
    host.read(100, 0, THROTTLED, "cgroup:/a/b", 0)
    host.add("change", 1, t_ns=100 * MS, subject=f"pid:{CORE}", what="cgroup of cpu,cpuacct",
             after="/a/b")  # fmt: skip
    host.add(
        "change", 1, t_ns=100 * MS, subject=f"pid:{CORE}", what="cgroup of memory", after="/m"
    )
    # Its own has a quota as well, but the one above ran out.
    assert throttled(host) == "out of CPU quota of cgroup /a"


def test_a_quota_of_nobody_knows_which_cgroup_is_said_without(host: Host) -> None:
    assert throttled(host) == "out of CPU quota"


def test_a_process_that_was_moved_meanwhile_may_have_been_in_either(host: Host) -> None:
    moved = {"subject": f"pid:{CORE}", "what": "cgroup"}
    host.add("change", 1, t_ns=100 * MS, after="/x", **moved)
    host.add("change", 1, t_ns=600 * MS, since_ns=300 * MS, before="/x", after="/a", **moved)
    assert throttled(host) == "out of CPU quota of cgroup /a"
