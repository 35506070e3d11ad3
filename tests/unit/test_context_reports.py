# SPDX-License-Identifier: Apache-2.0
"""What reports say of the host: who matters, quotas, NUMA, GPUs, and the whole recording."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.correlator.context import HostContext, OnPath
from gpucorrelate.correlator.report import json as json_reports
from gpucorrelate.correlator.report import text, text_context
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.page import Page, TextOptions
from gpucorrelate.probes.wire.frame import StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, Nature, WaitKind
from tests.unit.synth import CORE, MS, Recording
from tests.unit.test_requests import recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.context_values import Context

THROTTLED, PRESSURE = "cpu.stat.throttled", "cpu.pressure.some.total"
DELAY, FAULTS, KILLS = "thread.run_delay", "process.major_faults", "memory.events.oom_kill"
TOTALS = (THROTTLED, PRESSURE, DELAY)
GPU = "gpu:GPU-0a1b2c3d-1111-2222-3333-444455556666"
#: A process that no request's path leads through.
STRANGER = 999


class Host(Recording):
    """A recording with numbers of the host; times in milliseconds."""

    def metric(self, name: str, unit: str = "ns", nature: Nature = Nature.TOTAL) -> None:
        self.add("metric", 1, name=name, unit=unit, nature=nature, meaning=f"what {name} is")

    def read(self, t: int, since: int, metric: str, subject: str, value: int) -> None:
        self.add("counter", 1, t_ns=t * MS, since_ns=since * MS, metric=metric, subject=subject,
                 value=value)  # fmt: skip

    def grew(self, metric: str, subject: str, by: int) -> None:
        """It grew by so much between 400 and 500."""
        self.read(300, 100, metric, subject, 1)
        self.read(500, 400, metric, subject, 1 + by)

    def change(self, t: int, since: int, subject: str, what: str, *of: str) -> None:
        before, after = of if len(of) > 1 else ("", *of)
        self.add("change", 1, t_ns=t * MS, since_ns=since * MS, subject=subject, what=what,
                 before=before, after=after)  # fmt: skip

    def stalled(self, throttled_ms: int = 0) -> Host:
        """An engine core's step from 390 to 510, of which it was out of quota for so long."""
        self.process(4, CORE, "core")
        self.wait(CORE, 1, 2)
        if throttled_ms:
            self.wait(CORE, 400 * MS, (400 + throttled_ms) * MS, kind=WaitKind.PREEMPTED,
                      throttled_ns=throttled_ms * MS)  # fmt: skip
        self.add("step_begin", 4, step=1, tid=CORE, sched_start_ns=390 * MS,
                 sched_end_ns=391 * MS, start_ns=391 * MS)  # fmt: skip
        self.add("step_update", 4, step=1, tid=CORE, start_ns=509 * MS, end_ns=510 * MS)
        return self


@pytest.fixture
def host() -> Host:
    made = Host()
    for name in TOTALS:
        made.metric(name)
    for name in (FAULTS, KILLS):
        made.metric(name, "count")
    return made


def step_text(made: Host, **options: Any) -> str:
    out = io.StringIO()
    text.render_step(Run.of(made.capture(1000 * MS)).step(1), out, TextOptions(**options))
    return " ".join(out.getvalue().split())


def said(found: Context, top: int = 9) -> str:
    out = io.StringIO()
    text_context.context(Page(out, TextOptions(width=1000, top=top)), found)
    return out.getvalue()


def of(made: Host, path: OnPath | None = None, window: tuple[int, int] = (390, 510)) -> Context:
    found = HostContext(made.capture(1000 * MS)).of(window[0] * MS, window[1] * MS, path)
    assert found is not None
    return found


# Who matters.


def test_only_who_was_on_the_path_is_named_and_json_has_all(host: Host) -> None:
    for tid in (CORE, CORE + 1, STRANGER):
        host.grew(DELAY, f"tid:{tid}", 60 * MS)
        host.grew(FAULTS, f"pid:{tid}", 3)
    host.stalled()
    found = step_text(host)
    assert f"ready without a CPU (shown from 10% on): EngineCore/{CORE} 54.5% of 110 ms" in found
    assert f"faults that waited for a disk: EngineCore/{CORE} 3 in 110 ms" in found
    assert str(STRANGER) not in found
    assert str(CORE + 1) not in found
    document = json_reports.step_to_dict(Run.of(host.capture(None)).step(1))
    rows = {one["subject"]: one for one in document["context"]["numbers"]}
    assert len(document["context"]["numbers"]) == 6
    assert [rows[f"tid:{tid}"]["concerns"] for tid in (CORE, STRANGER)] == [True, False]
    assert rows[f"tid:{CORE}"]["who"] == f"EngineCore/{CORE}"
    assert rows[f"tid:{STRANGER}"]["note"] == "ready without a CPU"


def test_cgroups_of_the_path_and_those_above_matter_and_others_do_not(host: Host) -> None:
    host.change(100, 0, "pid:7", "cgroup of cpu", "/a/b")
    host.change(100, 0, "pid:8", "cgroup of cpu", "/z")
    for path in ("/a", "/a/b", "/z"):
        host.grew(KILLS, f"cgroup:{path}", 1)
    found = of(host, OnPath(frozenset({7}), frozenset({7})))
    assert {one.subject for one in found.numbers if one.concerns} == {"cgroup:/a", "cgroup:/a/b"}


def test_a_thread_with_next_to_nothing_of_the_path_does_not_matter() -> None:
    path = OnPath.holding({(1, 1): 995, (2, 1): 5})
    assert path.tids == {1}
    assert path.pids == {1}


@pytest.mark.parametrize(
    ("subject", "concerned"),
    [("host", True), ("node:0", True), (GPU, True), (f"{GPU} pid:7", True),
     (f"{GPU} pid:8", False), ("engine:vllm/0", True), ("tid:x", False), ("pid:", False)],
)  # fmt: skip
def test_what_is_of_the_whole_host_matters(subject: str, *, concerned: bool) -> None:
    assert OnPath(frozenset({7}), frozenset({7})).concerns(subject, ()) == concerned


# How it is said.


def test_as_much_is_shown_as_top_says(host: Host) -> None:
    host.grew(PRESSURE, "host", 50 * MS)
    for tid in range(1, 6):
        host.grew(DELAY, f"tid:{tid}", (20 + tid) * MS)
        host.grew(FAULTS, f"pid:{tid}", 1)
    found = of(host)
    assert "2 more kinds (--top)" in said(found, top=1)
    assert "4 more" in said(found, top=1)
    assert "more" not in said(found, top=5)
    # The longest wait first.
    three = said(found, top=3)
    assert three.index("tid:5") < three.index("tid:4") < three.index("tid:3")
    assert "tid:2" not in three


def test_a_kill_is_told_of_even_if_it_may_have_been_at_another_time(host: Host) -> None:
    host.read(300, 100, KILLS, "cgroup:/a", 0)
    host.read(900, 301, KILLS, "cgroup:/a", 1)
    found = of(host, window=(400, 410))
    assert "killed for want of memory: cgroup:/a 1 in 599 ms around it" in said(found)
    host.read(300, 100, PRESSURE, "host", 0)
    host.read(900, 301, PRESSURE, "host", 500 * MS)
    assert "tasks wanted" not in said(of(host, window=(400, 410)))


def test_where_a_thread_was_seen_to_stand_is_said_by_what_it_means(host: Host) -> None:
    host.read(100, 0, PRESSURE, "host", 0)
    where = "folio_wait_bit_common"
    for t in (380, 400, 420, 600):
        host.change(t, t - 20, "tid:7", "blocked in", where)
    host.change(430, 410, "tid:8", "blocked in", where)
    found = of(host, OnPath(frozenset({7}), frozenset({7})))
    assert f"seen blocked in page I/O ({where}): tid:7 at 2 looks" in said(found)
    assert "tid:8" not in said(found)
    assert [one.t_ns // MS for one in found.changes] == [400, 420, 430]


def test_a_move_in_several_hierarchies_is_one(host: Host) -> None:
    host.read(100, 0, PRESSURE, "host", 0)
    for controller in ("cpu", "memory", "blkio"):
        host.change(450, 400, "pid:7", f"cgroup of {controller}", "/a", "/b")
    assert said(of(host)).count("cgroup /a became /b: pid:7") == 1
    assert len(of(host).changes) == 3


# NUMA and bindings hold until they change.


def test_what_lies_on_different_nodes_is_said_as_long_as_it_holds(host: Host) -> None:
    host.read(50, 0, PRESSURE, "host", 0)
    apart = "cpu 100% on node 0, memory 80% on node 1"
    host.change(100, 80, "pid:7", "on different nodes", apart)
    host.change(600, 580, "pid:7", "on different nodes", apart, "")
    path = OnPath(frozenset({7}), frozenset({7}))
    assert f"on different NUMA nodes: pid:7 ({apart})" in said(of(host, path))
    assert "NUMA" not in said(of(host, path, window=(10, 90)))
    assert "on different NUMA" not in said(of(host, path, window=(700, 800)))
    assert "NUMA" not in said(of(host, OnPath(frozenset({8}), frozenset({8}))))


def test_who_may_not_use_all_cpus_is_said(host: Host) -> None:
    host.read(50, 0, PRESSURE, "host", 0)
    for pid, cpus in ((7, "0-1,3"), (8, "0-3"), (9, "2")):
        host.change(100, 0, f"pid:{pid}", "allowed CPUs and nodes", f"CPUs {cpus}, nodes 0")
    found = said(of(host))
    bound = "bound to some of the CPUs: pid:7 (CPUs 0-1,3, nodes 0), pid:9 (CPUs 2, nodes 0)"
    assert bound in found
    assert "pid:8" not in found
    states = {one.subject: one.note for one in of(host).states}
    assert states["pid:8"] == ""


def test_bindings_alike_are_not_worth_a_word_unless_somebody_ran_elsewhere(host: Host) -> None:
    host.read(50, 0, PRESSURE, "host", 0)
    host.change(100, 0, "pid:7", "allowed CPUs and nodes", "CPUs 0-1, nodes 0")
    assert said(of(host)) == ""
    host.read(60, 0, "thread.last_cpu", "tid:5", 2)
    assert "bound to some of the CPUs: pid:7" in said(of(host))


# Quotas.


def quota(host: Host, counted_ms: int, period_ms: int = 20) -> None:
    host.change(100, 0, f"pid:{CORE}", "cgroup of cpu", "/q")
    host.grew(THROTTLED, "cgroup:/q", counted_ms * MS)
    for metric, value in (("cpu.max.quota", 10 * MS), ("cpu.max.period", period_ms * MS)):
        host.read(100, 0, metric, "cgroup:/q", value)
    host.grew("cpu.stat.nr_periods", "cgroup:/q", 5)
    host.grew("cpu.stat.nr_throttled", "cgroup:/q", 4)


def test_time_out_of_quota_stands_beside_what_the_kernel_counted(host: Host) -> None:
    quota(host, 70)
    host.stalled(throttled_ms=50)
    found = step_text(host)
    assert (
        "CPU quota cgroup /q (has 10.0 ms of CPU time in each 20.0 ms): 50.0 ms of the path; the "
        "kernel counted 70.0 ms out of quota in 110 ms for all of it, CPUs summed, in 4 of 5 "
        "periods"
    ) in found
    assert "THE PATH SHOWS MORE" not in found
    # It is not said twice.
    assert "out of CPU quota (shown" not in found
    (one,) = json_reports.step_to_dict(Run.of(host.capture(None)).step(1))["context"]["quotas"]
    assert (one["path_ns"], one["counted_ns"], one["contradicts"]) == (50 * MS, 70 * MS, False)


@pytest.mark.parametrize(("counted_ms", "wrong"), [(30, False), (29, True)])
def test_a_path_that_shows_more_than_the_kernel_counted_is_doubted(
    host: Host, counted_ms: int, *, wrong: bool
) -> None:
    # What a period holds may not have been counted yet.
    quota(host, counted_ms)
    host.stalled(throttled_ms=50)
    assert (
        "THE PATH SHOWS MORE than that, so one of the two is wrong" in step_text(host)
    ) == wrong


def test_a_quota_that_nobody_counted_is_said_to_be_so(host: Host) -> None:
    host.read(100, 0, PRESSURE, "host", 0)
    host.stalled(throttled_ms=50)
    assert (
        "CPU quota a cgroup that is not known: 50.0 ms of the path; what the kernel counted was "
        "not read"
    ) in step_text(host)


# GPUs.


def gpu(made: Host) -> Host:
    for name, unit, nature, first, then in (
        ("gpu.utilization.gpu", "percent", Nature.AVERAGE, 100, 50),
        ("gpu.utilization.memory", "percent", Nature.AVERAGE, 40, 40),
        ("gpu.memory.used", "bytes", Nature.LEVEL, 70_000_000_000, 71_200_000_000),
        ("gpu.memory.total", "bytes", Nature.LEVEL, 80_000_000_000, 80_000_000_000),
    ):
        made.metric(name, unit, nature)
        made.read(100, 0, name, GPU, first)
        if then != first:
            made.read(450, 400, name, GPU, then)
    return made


def test_gpu_counters_are_said_with_what_they_mean(host: Host) -> None:
    found = of(gpu(host))
    level = next(one for one in found.levels if one.metric == "gpu.utilization.gpu")
    assert (level.least, level.mean, level.most, level.readings) == (50, 75, 100, 1)
    assert said(found) == (
        "GPU         1 GPU: a kernel ran 75% of the time, which is not how much of a GPU was used "
        "(the driver averages over up to 1 s); its memory was accessed 40% of the time, however "
        "fast; 71.2 GB of 80.0 GB allocated at most, KV cache free or not\n"
    )


def test_of_several_gpus_the_range_is_said(host: Host) -> None:
    gpu(host)
    host.read(100, 0, "gpu.utilization.gpu", "gpu:GPU-ffffffff", 10)
    assert "2 GPUs: a kernel ran 10 to 75% of the time" in said(of(host))


def test_a_machine_without_gpus_has_no_such_line(host: Host) -> None:
    host.grew(PRESSURE, "host", 50 * MS)
    assert "GPU" not in said(of(host))


# A whole recording.


def summary_text(made: Recording) -> tuple[str, dict[str, Any]]:
    run = Run.of(made.capture(1000 * MS))
    out = io.StringIO()
    text.render_summary(run.summary(), out)
    document = json.loads(json.dumps(json_reports.summary_to_dict(run.summary())))
    return " ".join(out.getvalue().split()), document


def test_a_whole_recording_tells_of_the_host(host: Host) -> None:
    quota(gpu(host), 70)
    host.grew(PRESSURE, "host", 44 * MS)
    host.grew(FAULTS, f"pid:{CORE}", 3)
    host.change(100, 80, f"pid:{CORE}", "on different nodes", "cpu on node 0, memory on node 1")
    found, document = summary_text(host.stalled())
    for part in (
        "the host meanwhile",
        "cgroup /q (has 10.0 ms of CPU time in each 20.0 ms): the kernel counted 70.0 ms",
        "want of a CPU 22.0%, memory 0, a disk 0",
        f"faults 3 waited for a disk (EngineCore/{CORE} 3); 0 needed none",
        f"NUMA EngineCore/{CORE} on different nodes: cpu on node 0, memory on node 1",
        "GPU 1 GPU: a kernel ran",
        "host memory bandwidth: no counter of it is read",
        "GPU memory by use (weights, KV cache, activations, workspace, graphs): no source",
    ):
        assert part in found
    assert document["host"]["context"]["quotas"][0]["counted_ns"] == 70 * MS


def test_memory_is_told_by_what_the_engine_did_and_a_kill_too(host: Host) -> None:
    gpu(host).grew(KILLS, "cgroup:/q", 1)
    host.change(100, 0, f"pid:{CORE}", "cgroup of memory", "/q")
    found, document = summary_text(host.stalled())
    peaks = {one["phase"]: one["most_bytes"] for one in document["host"]["memory"]}
    assert peaks == {"between": 70_000_000_000, "empty": 71_200_000_000}
    assert "most seen by phase: GPU-0a1b2c3d between 70.0 GB, empty 71.2 GB" in found
    (kill,) = document["host"]["kills"]
    assert (kill["subject"], kill["count"], kill["phases"]) == ("cgroup:/q", 1, ["empty"])
    assert "OUT OF MEM cgroup /q: 1 process killed between" in found


def test_a_recording_without_the_host_has_no_such_part() -> None:
    found, document = summary_text(recording(4))
    assert "the host meanwhile" not in found
    assert document["host"] is None


def test_every_key_of_the_host_is_documented(host: Host) -> None:
    page = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
    gpu(host).grew(KILLS, "cgroup:/q", 1)
    host.grew(DELAY, f"tid:{CORE}", 1)
    quota(host, 70)
    host.change(450, 400, f"pid:{CORE}", "cgroup of memory", "/a", "/q")
    _, document = summary_text(host.stalled())
    found = document["host"]
    lists = [
        found["context"][key] for key in found["context"] if key not in ("start_ns", "end_ns")
    ]
    rows = [one[0] for one in (*lists, found["memory"], found["kills"], found["roles"]) if one]
    assert len(rows) == 8
    for document in (found, found["context"], *rows):
        for key in document:
            assert f"`{key}`" in page or f"`{key}[]`" in page, key


# Many counters.


def crowded(rounds: int) -> HostContext:
    """Readings of 100 threads, so many times 100 of them, a round each millisecond."""
    made = Host()
    made.metric(DELAY)
    kind = BY_NAME["counter"]
    writer = made.writers.setdefault(1, StreamWriter(1))
    for at in range(1, rounds + 1):
        rows: Sequence[tuple[int | str | None, ...]] = [
            (at * MS, (at - 1) * MS, DELAY, f"tid:{tid}", at * 1000) for tid in range(1, 101)
        ]
        made.frames += writer.frames(kind, 100, columns_of(kind, list(rows), writer.strings))
    return HostContext(made.capture(rounds * MS))


def cost_ns(host: HostContext, windows: int) -> int:
    began = time.thread_time_ns()
    for at in range(1, windows + 1):
        assert host.of(at * MS, (at + 1) * MS) is not None
    return time.thread_time_ns() - began


def test_a_window_costs_no_more_in_a_recording_of_many_counters() -> None:
    few, many = crowded(100), crowded(1000)  # 10,000 and 100,000 counters
    cost_ns(few, 1)
    cost_ns(many, 1)
    ratio = min(cost_ns(many, 50) / cost_ns(few, 50) for _ in range(3))
    # Ten times the counters; a search of all of them would cost ten times as much.
    assert ratio < 3
