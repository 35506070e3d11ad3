# SPDX-License-Identifier: Apache-2.0
"""The daemon on this kernel: waits and numbers of a process held by its parent cgroup's quota."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.context import HostContext
from gpucorrelate.probes.wire.schema import WaitKind
from tests.qemu.inside.kit import BUSY, GREEDY, cgroups, child, daemons, keep, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import Yard

_MS = 1_000_000


@pytest.fixture
def yard() -> Iterator[Yard]:
    with daemons() as made:
        yield made


def _record(yard: Yard) -> tuple[Capture, int]:
    daemon = yard.daemon(ebpf=True, require_ebpf=True, tick_ms=20, poll_ms=100, **GREEDY).start()
    status = daemon.client.status()
    keep("daemon", {one.source: [str(one.state), one.reason] for one in status.capabilities})
    with cgroups("outer", "inner") as (outer, inner), child(BUSY, inner) as hog:
        (outer / "cpu.max").write_text("20000 100000")
        session = daemon.client.attach(hog.pid).session.session
        begun = time.monotonic_ns()

        def throttled() -> bool:
            found = Capture.from_batches(daemon.client.open_session(session))
            return int((found.table("wait")["throttled_ns"] > 0).sum()) >= 10

        wait_for(throttled, "its quota is used up ten times", limit_s=300)
        wait_for(lambda: time.monotonic_ns() - begun > 5_000 * _MS, "some rounds of polling")
        daemon.client.detach(session)
        (outer / "cpu.max").write_text("max")
        found = Capture.from_batches(daemon.client.open_session(session))
    return found, hog.pid


def test_time_without_quota_names_the_cgroup_whose_quota_it_was(yard: Yard) -> None:
    found, pid = _record(yard)
    waits = found.table("wait")
    held = [
        (start, end, throttled)
        for tgid, kind, start, end, throttled in zip(
            *(waits[name].tolist() for name in
              ("tgid", "wait_kind", "start_ns", "end_ns", "throttled_ns")),
            strict=True,
        )
        if tgid == pid and kind == WaitKind.PREEMPTED and throttled
    ]  # fmt: skip
    assert len(held) >= 10
    host = HostContext(found)
    named = [host.throttled_by(pid, start, end) for start, end, _ in held]
    # The kernel's count is polled: a stretch at either end may lie outside of all readings.
    assert set(named) <= {"/outer", ""}
    assert named.count("/outer") >= 0.7 * len(named)

    counters = found.table("counter")
    told: dict[tuple[str, str], list[int]] = {}
    for metric, subject, value in zip(
        *(counters[name].tolist() for name in ("metric", "subject", "value")), strict=True
    ):
        told.setdefault((found.strings[metric], found.strings[subject]), []).append(value)
    grown = {
        subject: max(values) - min(values)
        for (metric, subject), values in told.items()
        if metric == "cpu.stat.nr_throttled"
    }
    assert grown["cgroup:/outer"] >= 10
    assert grown["cgroup:/outer/inner"] == 0
    assert {"cgroup:/outer", "cgroup:/outer/inner"} <= {
        subject for (metric, subject) in told if metric == "cpu.max.quota"
    }
    # What the tracer saw of it is what the kernel counted, over about the same time.
    kernel_ns = max(told["cpu.stat.throttled", "cgroup:/outer"]) - min(
        told["cpu.stat.throttled", "cgroup:/outer"]
    )
    assert 0.5 < sum(throttled for *_, throttled in held) / kernel_ns < 1.5
