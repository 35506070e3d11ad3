# SPDX-License-Identifier: Apache-2.0
"""What a session records of its host: quotas, moves between cgroups, ends of processes."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.daemon.client import open_recording
from gpucorrelate.probes.wire.schema import CapabilityState
from tests.kernel.test_host_real import BUSY, IDLE, child, group, own_cpu
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.daemon.values import SourceInfo

S = 1_000_000_000
_QUOTA = "cpu.cfs_quota_us"


def texts(capture: Capture, table: str, *columns: str) -> list[tuple[str, ...]]:
    found = ([capture.strings[i] for i in capture.table(table)[c].tolist()] for c in columns)
    return list(zip(*found, strict=True))


def throttled(capture: Capture, folder: Path) -> list[tuple[int, int, int]]:
    """Readings of the time that a cgroup stood still for want of quota: since, when, how long."""
    rows = capture.table("counter")
    return [
        (since_ns, t_ns, value)
        for (metric, subject), since_ns, t_ns, value in zip(
            texts(capture, "counter", "metric", "subject"),
            *(rows[name].tolist() for name in ("since_ns", "t_ns", "value")),
            strict=True,
        )
        if metric == "cpu.stat.throttled" and subject.endswith(f"/{folder.name}")
    ]


def test_a_quota_and_a_move_are_in_every_file_of_a_recording(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=50, segment_bytes=60_000, session_max_bytes=1 << 24).start()
    with group("cpu", "here") as here, group("cpu", "there") as there, child(BUSY, here) as busy:
        session = daemon.client.attach(busy.pid).session.session
        folder = daemon.session_dir(session)

        def read(place: Path | None = None) -> Capture:
            return Capture.from_batches(open_recording(place or folder))

        (here / _QUOTA).write_text("20000")
        wait_for(lambda: len({v for *_, v in throttled(read(), here)}) > 3, "it is throttled")
        (here / _QUOTA).write_text("-1")
        (there / "cgroup.procs").write_text(str(busy.pid))

        def moves(place: Path | None = None) -> list[tuple[str, ...]]:
            found = texts(read(place), "change", "subject", "what", "before", "after")
            return [
                (before, after)
                for subject, what, before, after in found
                if subject == f"pid:{busy.pid}"
                and what.startswith("cgroup of ")
                and "cpu" in what.removeprefix("cgroup of ").split(",")
            ]

        wait_for(lambda: len(moves()) == 2, "the move is noticed")
        begun = len(list(folder.glob("*.gpcf")))
        wait_for(lambda: len(list(folder.glob("*.gpcf"))) > begun + 1, "it goes on in new files")
        (_, first), (before, after) = moves()
        assert before == first
        assert (first.rpartition("/")[2], after.rpartition("/")[2]) == (here.name, there.name)
        last = sorted(folder.glob("*.gpcf"))[-2]
        assert moves(last) == [(before, after)], "a file alone says where it is"
    readings = throttled(read(), here)
    assert readings[0][0] == 0
    assert all(since_ns < t_ns for since_ns, t_ns, _ in readings)
    for (_, earlier, _), (since_ns, _, _) in itertools.pairwise(readings):
        assert since_ns >= earlier, "what changed, changed after it was last read"


def test_processes_that_end_are_nothing_that_is_missing(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20).start()
    spawner = (
        "import os, subprocess, sys, time\n"
        "print(flush=True)\n"
        "for _ in range(30):\n"
        "    subprocess.run([sys.executable, '-c', 'import time; time.sleep(0.05)'])\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", spawner], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            parent.stdout.readline()
            session = daemon.client.attach(parent.pid).session.session
            parent.stdout.readline()
            time.sleep(0.5)
            found = Capture.from_batches(daemon.client.open_session(session))
        finally:
            parent.kill()
    states = found.table("capability")["state"].tolist()
    told = dict(
        zip((name for (name,) in texts(found, "capability", "source")), states, strict=True)
    )
    assert {told[f"host.{name}"] for name in ("threads", "cgroups", "processes")} == {
        CapabilityState.ON
    }
    of_processes = [
        name
        for name, state in told.items()
        if "/" in name and state != CapabilityState.ON and ("PID" in name or "thread" in name)
    ]
    assert of_processes == []


def test_a_stall_of_a_cgroup_is_on_record_with_its_time_and_quickens_all(yard: Yard) -> None:
    """Far shorter than the time between two looks."""
    daemon = yard.daemon(poll_ms=4000).start()
    with group("", "above/pressed") as pressed, child(IDLE, pressed) as idle:
        session = daemon.client.attach(idle.pid).session.session

        def source() -> SourceInfo | None:
            found = daemon.client.status().sources
            return next((one for one in found if one.source == "triggers"), None)

        wait_for(lambda: (one := source()) is not None and one.state == "on", "it is watched")
        assert not any(f"/{pressed.name}" in text for text in source().missing)  # type: ignore[union-attr]
        began_ns, cpu = time.monotonic_ns(), own_cpu()
        with child(BUSY, pressed, cpu=cpu), child(BUSY, pressed, cpu=cpu):
            time.sleep(1.5)
        ended_ns = time.monotonic_ns()

        def stalls() -> list[tuple[int, int, str]]:
            found = Capture.from_batches(daemon.client.open_session(session))
            rows = found.table("change")
            names = texts(found, "change", "subject", "what", "before", "after")
            times = zip(rows["since_ns"].tolist(), rows["t_ns"].tolist(), strict=True)
            return [
                (since_ns, t_ns, subject)
                for (subject, what, before, after), (since_ns, t_ns) in zip(
                    names, times, strict=True
                )
                if what == "cpu pressure" and not before and after and subject != "host"
            ]

        wait_for(lambda: len(stalls()) >= 2, "it is recorded, of the cgroup and the one above")
        told = stalls()
        assert {subject for *_, subject in told} == {
            f"cgroup:/{pressed.parent.name}", f"cgroup:/{pressed.parent.name}/{pressed.name}"
        }  # fmt: skip
        assert all(since_ns < ended_ns and began_ns < t_ns for since_ns, t_ns, _ in told)
        pace = {one.source: one.every_ms for one in daemon.client.status().sources}
        assert daemon.client.status().polling.hurried == 1
        assert pace["memory"] == 1000, "four times as often"
        wait_for(lambda: daemon.client.status().polling.hurried == 0, "for a while")
