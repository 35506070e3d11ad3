# SPDX-License-Identifier: Apache-2.0
"""What the daemon and the host say of themselves, as text."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from gpucorrelate.cli.follow import LiveLine
from gpucorrelate.cli.view_check import render_check
from gpucorrelate.cli.view_status import render_status
from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.daemon.checkup import CheckReport
from gpucorrelate.daemon.checkup_values import Check, CheckState
from gpucorrelate.daemon.effort import Effort, PartEffort
from gpucorrelate.daemon.health import (
    IngestCounters,
    KernelCounters,
    PollingCounters,
    StoreCounters,
)
from gpucorrelate.daemon.overhead import Fill, HopLoss, Overhead, ProgramCost
from gpucorrelate.daemon.values import (
    CapabilityInfo,
    DaemonStatus,
    ProcessInfo,
    Progress,
    SessionInfo,
    SourceInfo,
)
from tests.golden.compare import same_as_golden

CHECKS = CheckReport(
    "0.1.0",
    "6.1.0-32-amd64 x86_64",
    (
        Check("kernel.btf", CheckState.OK, "/sys/kernel/btf/vmlinux"),
        Check("ebpf.sched", CheckState.OK, "sees waits, wakers and run-queue delay", needed=True),
        Check(
            "group", CheckState.DEGRADED, "no group gpucorrelate", "only root may use the daemon",
            "sudo groupadd --system gpucorrelate",
        ),
        Check("gpu", CheckState.MISSING, "no NVIDIA driver", "GPU kernels and copies"),
    ),
)  # fmt: skip

STATUS = DaemonStatus(
    version="0.1.0",
    pid=812,
    uptime_s=3 * 86_400 + 7 * 3_600,
    state_dir="/var/lib/gpucorrelate",
    capabilities=(
        CapabilityInfo("ebpf.sched", "on"),
        CapabilityInfo("ebpf.faults", "degraded", "no perf events: CAP_PERFMON was refused"),
    ),
    privileges="uid 0, CAP_BPF, CAP_PERFMON",
    kernel=KernelCounters("on", "", "libbpf", 4, 12_345_678, 17),
    ingest=IngestCounters(clients=3, started=3, frames=9_000, rows=123_456, agent_dropped=5),
    store=StoreCounters(stored_bytes=12_345_678, segments=2, frames=9_100, failing="disk full"),
    sessions=(
        SessionInfo(
            "20260101T120000-4700", "detached", 0, 4700, "vllm serve some/model", 1000.0, 1065.0,
            "detached", (ProcessInfo(4700), ProcessInfo(4711, alive=False)), 2, 12_345_678, 22,
        ),
    ),
    warnings=("step stream silent for 5 s",),
    effort=Effort(
        cpu_ns=6_000_000_000, wall_ns=1_000_000_000_000, turns=400_000,
        parts=(PartEffort("drain", 4_500_000_000), PartEffort("poll", 1_500_000_000)),
    ),
    overhead=Overhead(
        rss_bytes=96 << 20, peak_rss_bytes=104 << 20, memory_limit_bytes=512 << 20, threads=7,
        descriptors=61, descriptors_most=65_536, bpf_programs=31, bpf_maps=14, bpf_bytes=30 << 20,
        measured=True,
        programs=(ProgramCost("switch", 250_000_000, 1_000_000, 3), ProgramCost("waking", 9, 1)),
    ),
    hops=(HopLoss("agent", 5), HopLoss("ingest", 0)),
    limits=(Fill("sessions", 60, 64), Fill("memory", 96 << 20, 512 << 20, "bytes")),
)  # fmt: skip


def rendered(render, value, width=80):
    out = io.StringIO()
    render(value, out, TextOptions(width=width))
    assert all(line.isprintable() for line in out.getvalue().splitlines())
    return out.getvalue()


def test_check_and_status_look_as_they_did():
    same_as_golden("check-80.txt", rendered(render_check, CHECKS))
    same_as_golden("status-80.txt", rendered(render_status, STATUS))


def test_check_says_when_the_main_job_is_impossible():
    broken = Check("kernel.btf", CheckState.MISSING, "not there", "waits", needed=True)
    shown = rendered(render_check, replace(CHECKS, checks=(broken,)))
    assert "requests cannot be explained here: kernel.btf missing" in shown
    fine = rendered(render_check, replace(CHECKS, checks=CHECKS.checks[:2]))
    assert "requests can be explained here; nothing is missing" in fine


def test_status_tells_of_pauses_only_where_there_were_some():
    assert "pauses" not in rendered(render_status, STATUS)
    paused = replace(STATUS, pauses=3, longest_pause="2.10 s: 0.01 s running, the rest blocked")
    shown = " ".join(rendered(render_status, paused).split())
    assert "half a second 3 times; longest: 2.10 s: 0.01 s running, the rest blocked" in shown


def test_status_tells_how_sources_stand_and_what_polling_costs():
    assert "polling" not in rendered(render_status, STATUS), "an older daemon does not say"
    session = STATUS.sessions[0].session
    sources = (
        SourceInfo(session, "threads", "on", "", 50, 30),
        SourceInfo(session, "cgroups", "on", "", 200, 1500,
                   tuple(f"{n}: cgroup:/a: no" for n in range(5))),
        SourceInfo(session, "gpu", "off", "host: no driver", 200),
        SourceInfo(session, "engine", "off", "switched off: --no-engine-metrics", 0),
        SourceInfo("another", "numa", "degraded", "\x1b[2J", 2000, 100),
    )  # fmt: skip
    polling = PollingCounters(200, 10_000, 2_100, 900, 1234, 5, 6, 1)
    told = replace(STATUS, sources=sources, polling=polling)
    shown = rendered(render_status, told)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "threads on every 50.0 ms, 30 ms ago" in lines
    assert "cgroups on every 200 ms, 1.5 s ago" in lines
    assert [line for line in lines if "cgroup:/a" in line] == [
        f"lacks {n}: cgroup:/a: no" for n in range(3)
    ]
    assert "and 2 more" in lines
    assert "gpu off every 200 ms, not yet host: no driver" in lines
    assert "engine off never switched off: --no-engine-metrics" in lines
    assert "numa" not in shown, "of no session that is shown"
    words = " ".join(lines)
    assert "0.30% of a CPU, 1.00% allowed, 0.21% in the loop, 0.09% in its thread" in words
    assert "more often in 1 session: a request is slow" in words
    off = rendered(render_status, replace(STATUS, polling=PollingCounters(limit_ppm=10_000)))
    assert "off: --poll-ms 0" in off


def test_status_tells_what_was_left_out_and_who_was_turned_away():
    store = replace(STATUS.store, shed_rows=1234)
    told = replace(STATUS, store=store, callers_refused=3, callers_cut_off=4)
    shown = " ".join(rendered(render_status, told).split())
    assert "left out for want of room 1,234 rows" in shown
    assert "refused 3, cut off 4" in shown
    assert "left out" not in rendered(render_status, STATUS)


def test_status_is_harmless_and_whole_for_a_daemon_that_says_nothing():
    evil = "\x1b[2J\n"
    shown = rendered(render_status, DaemonStatus(evil, warnings=(evil,), privileges=evil))
    assert "\\x1b[2J" in shown
    assert "sessions  none: gpucorrelate attach --pid PID" in shown


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal, or as a file."""
    monkeypatch.setenv("COLUMNS", "140")

    def make(*, live: bool):
        out = io.StringIO()
        out.isatty = lambda: live  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stderr", out)
        return out

    return make


def test_the_live_line_shows_rates_losses_and_warnings(terminal):
    out = terminal(live=True)
    line = LiveLine()
    first = Progress(
        "s", t_ns=10**9, requests_received=5, requests_finished=2, tokens=100, waits=1000
    )
    line.show(first)
    line.show(
        replace(first, t_ns=3 * 10**9, tokens=300, waits=5000, lost=7, warnings=("odd\x1b",))
    )
    line.close()
    last = out.getvalue().split("\r")[-1]
    assert "requests 5 (3 running)" in last
    assert "tokens 300 (100/s)" in last
    assert "waits 5,000 (2,000/s)" in last
    assert "lost 7" in last
    assert "! odd\\x1b" in last
    assert out.getvalue().endswith("\n")
    assert re.sub(r"\r\x1b\[K", "", out.getvalue()).strip().isprintable()


def test_a_log_gets_a_line_now_and_then_and_no_escapes(terminal):
    out = terminal(live=False)
    line = LiveLine()
    for second in range(100):
        line.show(Progress("s", t_ns=second * 10**9))
    line.close()
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()
