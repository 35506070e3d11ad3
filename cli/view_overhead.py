# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself costs and how full its limits are, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.page import BAD, Page

if TYPE_CHECKING:
    from gpucorrelate.daemon.effort import Effort
    from gpucorrelate.daemon.overhead import Fill, Overhead, ProgramCost
    from gpucorrelate.daemon.values import DaemonStatus

#: A limit that is so full is told, and in colour.
_FULL = 0.8
#: Parts of the work and kernel programs that are named, the dearest first.
_NAMED = 5
_MIB = 1 << 20


def render_overhead(page: Page, status: DaemonStatus) -> None:
    """Writes CPU, memory, kernel programs, what was lost where, and limits near their end."""
    page.heading("overhead", "of the daemon itself")
    page.labelled("cpu", _cpu(status.effort))
    page.labelled("memory", _memory(status.overhead))
    page.labelled("kernel", _kernel(status.overhead))
    page.labelled("programs", _programs(status.overhead))
    lost = [f"{one.hop} {one.lost:,} {one.unit}" for one in status.hops if one.lost]
    page.labelled("lost", lost or ["nothing"], style=BAD if lost else "")
    full = [one for one in status.limits if one.most and one.used >= _FULL * one.most]
    page.labelled("limits", [_fill(one) for one in full] or [_fullest(status.limits)],
                  style=BAD if full else "")  # fmt: skip


def _cpu(effort: Effort) -> list[str]:
    parts = sorted(effort.parts, key=lambda one: -one.cpu_ns)
    named = [
        f"{one.name} {one.cpu_ns / effort.cpu_ns:.0%}"
        for one in parts[:_NAMED]
        if effort.cpu_ns and one.cpu_ns * 100 >= effort.cpu_ns
    ]
    return [f"{effort.cpus:.2%} of one CPU since it started", *named]


def _memory(overhead: Overhead) -> list[str]:
    found = []
    if overhead.rss_bytes is not None:
        peak = overhead.peak_rss_bytes or overhead.rss_bytes
        found.append(f"{overhead.rss_bytes / _MIB:.0f} MiB, at most {peak / _MIB:.0f} MiB")
    if overhead.memory_limit_bytes:
        found.append(f"allowed {overhead.memory_limit_bytes / _MIB:.0f} MiB")
    if overhead.threads is not None:
        found.append(f"threads {overhead.threads}")
    if overhead.descriptors is not None:
        found.append(f"open files {overhead.descriptors:,}")
    return found or ["unknown"]


def _kernel(overhead: Overhead) -> list[str]:
    if overhead.bpf_programs is None:
        return ["unknown"]
    return [
        f"programs {overhead.bpf_programs}",
        f"maps {overhead.bpf_maps or 0}",
        f"{(overhead.bpf_bytes or 0) / _MIB:.1f} MiB of the kernel's memory",
    ]


def _programs(overhead: Overhead) -> list[str]:
    ran = [one for one in overhead.programs if one.runs]
    if not ran:
        return [
            "not measured yet"
            if overhead.measured
            else "not measured: sysctl kernel.bpf_stats_enabled=1 has the kernel do that"
        ]
    return [_program(one) for one in ran[:_NAMED]]


def _program(one: ProgramCost) -> str:
    missed = f", missed {one.missed:,}" if one.missed else ""
    return f"{one.name} {one.run_ns / one.runs:,.0f} ns x {one.runs:,}{missed}"


def _fill(one: Fill) -> str:
    if one.unit == "bytes":
        return f"{one.name} {one.used / _MIB:,.0f} of {one.most / _MIB:,.0f} MiB"
    return f"{one.name} {one.used:,} of {one.most:,}"


def _fullest(limits: tuple[Fill, ...]) -> str:
    known = [one for one in limits if one.most]
    if not known:
        return "unknown"
    return f"fullest: {_fill(max(known, key=lambda one: one.used / one.most))}"
