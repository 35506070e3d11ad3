# SPDX-License-Identifier: Apache-2.0
"""A real daemon with real kernel probes: what lands in recordings, and in whose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.schema import SessionEvent, WaitFlag, WaitKind
from tests.kernel.observe import at_rest, switches
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import DaemonProcess

pytestmark = pytest.mark.kernel

MS = 1_000_000

_WAITER = """
import os, sys, threading, time
lock = threading.Lock()
def hold():
    while True:
        with lock:
            time.sleep(0.02)
        time.sleep(0.005)
holder = threading.Thread(target=hold, daemon=True)
holder.start()
print(threading.main_thread().native_id, holder.native_id, flush=True)
while True:
    with lock:
        pass
    time.sleep(0.001)
"""

_FORKER = """
import os, sys, time
print(os.getpid(), flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    for _ in range(200):
        time.sleep(0.005)
    os._exit(0)
print(pid, flush=True)
os.waitpid(pid, 0)
print("done", flush=True)
sys.stdin.readline()
"""


class Script:
    """A Python process that prints what a test must know."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    yard = Yard()
    yield yard.daemon(ebpf=True, require_ebpf=True, tick_ms=20).start()
    yard.clear()


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    made: list[Script] = []
    yield made
    for script in made:
        script.end()


def waiter(scripts: list[Script]) -> tuple[Script, int, int]:
    script = Script(_WAITER)
    scripts.append(script)
    main, holder = map(int, script.line().split())
    return script, main, holder


def test_waits_name_who_ended_them(daemon: DaemonProcess, scripts: list[Script]) -> None:
    assert daemon.client.status().kernel.backend == "libbpf"
    _waits_name_who_ended_them(daemon, scripts)


@pytest.mark.bcc
def test_they_do_by_way_of_bcc(scripts: list[Script]) -> None:
    yard = Yard()
    try:
        daemon = yard.daemon(ebpf=True, require_ebpf=True, backend="bcc").start()
        assert daemon.client.status().kernel.backend == "bcc"
        _waits_name_who_ended_them(daemon, scripts)
        assert daemon.end(signal.SIGTERM) == 0
    finally:
        yard.clear()


def _waits_name_who_ended_them(daemon: DaemonProcess, scripts: list[Script]) -> None:
    script, main, holder = waiter(scripts)
    session = daemon.client.attach(script.pid).session.session
    time.sleep(1)
    daemon.client.detach(session)
    found = daemon.recorded(session)
    waits = [
        dict(zip(("tid", "tgid", "start", "wake", "end", "kind"), row[:6], strict=True))
        | {"waker": row[12], "flags": row[6]}
        for row in found.rows("wait")
    ]
    assert {wait["tgid"] for wait in waits} == {script.pid}
    locks = [
        wait
        for wait in waits
        if wait["tid"] == main
        and wait["kind"] == WaitKind.FUTEX
        and not wait["flags"] & (WaitFlag.OPEN | WaitFlag.START_UNKNOWN)
        and wait["end"] - wait["start"] > 5 * MS
    ]
    assert len(locks) > 5
    by_holder = [wait for wait in locks if wait["waker"] == holder]
    assert len(by_holder) >= 0.9 * len(locks)
    assert all(wait["start"] < wait["wake"] <= wait["end"] for wait in by_holder)
    sleeps = [w for w in waits if w["tid"] == holder and w["kind"] == WaitKind.SLEEP]
    assert any(wait["flags"] & WaitFlag.WAKE_TIMER for wait in sleeps)
    assert set(found.streams("wait")) == {2}
    assert not found.damage
    assert found.readers[2].missing == 0


def test_waits_that_have_not_ended_are_shown_and_not_recorded_twice(
    daemon: DaemonProcess, scripts: list[Script]
) -> None:
    script = Script("import sys; print(1, flush=True); sys.stdin.readline(); print(2, flush=True);"
                    "sys.stdin.readline()")  # fmt: skip
    scripts.append(script)
    script.line()
    session = daemon.client.attach(script.pid).session.session
    time.sleep(0.2)

    def waits() -> list[tuple[int, int, int]]:
        found = daemon.recorded(session)
        rows = [row for row in found.rows("wait") if row[0] == script.pid]
        return [(row[2], row[4], row[6]) for row in rows]

    for _ in range(3):
        assert sum(1 for *_, flags in waits() if flags & WaitFlag.OPEN) == 1, "seen anew each time"
    script.go()
    script.line()
    time.sleep(0.1)
    ended = [w for w in waits() if w[2] & WaitFlag.START_UNKNOWN and not w[2] & WaitFlag.OPEN]
    assert len(ended) == 1, "begun before the session, and ended in it"
    daemon.client.detach(session)
    last = [w for w in waits() if w[2] & WaitFlag.OPEN]
    assert len(last) == 1, "the one that was open at the end is recorded with it"


def test_children_are_followed_by_the_kernel(daemon: DaemonProcess, scripts: list[Script]) -> None:
    script = Script(_FORKER)
    scripts.append(script)
    script.line()
    session = daemon.client.attach(script.pid).session.session
    script.go()
    child = int(script.line())
    assert script.line() == "done"
    wait_for(
        lambda: (
            (SessionEvent.PROCESS_GONE, child)
            in {(row[1], row[2]) for row in daemon.recorded(session).rows("session")}
        ),
        "its end is seen",
    )
    found = daemon.recorded(session)
    sleeps = [row for row in found.rows("wait") if row[1] == child and row[5] == WaitKind.SLEEP]
    assert len(sleeps) > 100, "its waits from the beginning"
    added = {row[2] for row in found.rows("session") if row[1] == SessionEvent.PROCESS_ADDED}
    assert child in added
    daemon.client.detach(session)


def test_each_session_gets_its_own_waits(daemon: DaemonProcess, scripts: list[Script]) -> None:
    first, *_ = waiter(scripts)
    second, *_ = waiter(scripts)
    one = daemon.client.attach(first.pid).session.session
    two = daemon.client.attach(second.pid).session.session
    time.sleep(0.5)
    for session, script in ((one, first), (two, second)):
        found = daemon.recorded(session)
        assert set(found.values("wait", "tgid")) == {script.pid}
        assert len(found.rows("wait")) > 20
        assert found.readers[2].missing == 0
    daemon.client.detach(one)
    before = len(daemon.recorded(two).rows("wait"))
    time.sleep(0.3)
    found = daemon.recorded(two)
    assert len(found.rows("wait")) > before, "the other goes on"
    assert set(found.values("wait", "tgid")) == {second.pid}
    daemon.client.detach(two)
    wait_for(lambda: daemon.client.status().kernel.targets == 0, "nothing is traced any more")


_BUSY = """
import threading, time
def nap():
    while True:
        time.sleep(1e-5)
for _ in range(3):
    threading.Thread(target=nap, daemon=True).start()
print("on", flush=True)
nap()
"""


def test_what_is_left_of_an_ended_session_is_not_the_others(
    daemon: DaemonProcess, scripts: list[Script]
) -> None:
    stays, *_ = waiter(scripts)
    session = daemon.client.attach(stays.pid).session.session
    busy = Script(_BUSY)
    scripts.append(busy)
    assert busy.line() == "on"
    for _ in range(6):
        other = daemon.client.attach(busy.pid).session.session
        time.sleep(0.1)
        assert len(daemon.recorded(other).rows("wait")) > 100
        daemon.client.detach(other)
        wait_for(lambda: daemon.client.status().kernel.targets == 1, "the other has ended")
    time.sleep(0.2)
    found = daemon.recorded(session)
    assert set(found.values("wait", "tgid")) == {stays.pid}
    daemon.client.detach(session)


def test_names_and_namespace_ids_of_all_threads_are_known(
    daemon: DaemonProcess, scripts: list[Script]
) -> None:
    script, main, holder = waiter(scripts)
    session = daemon.client.attach(script.pid).session.session
    found = daemon.recorded(session)
    seen = {row[0]: row for row in found.rows("task") if row[6]}
    assert {main, holder} <= set(seen)
    for tid in (main, holder):
        status = procfs.read_status(script.pid, tid)
        assert status is not None
        assert seen[tid][4] == status.name
        assert (seen[tid][6], seen[tid][7]) == (status.ns_pids[-1], status.ns_tgids[-1])
    daemon.client.detach(session)


def test_counters_agree_with_what_is_recorded(
    daemon: DaemonProcess, scripts: list[Script]
) -> None:
    script, *_ = waiter(scripts)
    session = daemon.client.attach(script.pid).session.session
    time.sleep(0.5)
    daemon.client.detach(session)
    live = daemon.client.progress(session)
    status = daemon.client.status()
    assert status.kernel.state in ("on", "degraded")
    assert status.kernel.lost == 0
    assert live.state == "detached"
    info = next(item for item in daemon.client.sessions() if item.session == session)
    assert info.size_bytes == sum(
        path.stat().st_size for path in daemon.session_dir(session).glob("*.gpcf")
    )
    assert info.lost == 0


_SLEEPER = """
import sys, time
print("ready", flush=True)
sys.stdin.readline()
for _ in range(4000):
    time.sleep(0.00005)
print("done", flush=True)
sys.stdin.readline()
"""


def test_what_full_rings_lose_is_told_to_the_last_event(scripts: list[Script]) -> None:
    """Counters of the kernel are read now and then, but before anything is called complete."""
    yard = Yard()
    try:
        settings = {"ring_bytes": 4096, "segment_bytes": 16384, "session_max_bytes": 1 << 22}
        daemon = yard.daemon(ebpf=True, require_ebpf=True, faults=False, tick_ms=20, **settings)
        daemon.start()
        script = Script(_SLEEPER)
        scripts.append(script)
        assert script.line() == "ready"
        wait_for(lambda: at_rest(script.pid), "it waits for its line")
        session = daemon.client.attach(script.pid).session.session
        before = switches(script.pid)
        script.go()
        assert script.line() == "done"
        wait_for(lambda: at_rest(script.pid), "it waits for its line again")
        switched = switches(script.pid) - before
        daemon.client.detach(session)
        found = daemon.recorded(session)
        ended = [row for row in found.rows("wait") if not row[6] & WaitFlag.OPEN]
        lost = [row for row in found.rows("loss") if row[2:4] == ("bpf.ring", "wait")]
        assert sum(row[4] for row in lost) > switched / 4, "the rings are far too small"
        assert len(ended) + sum(row[4] for row in lost) == switched
        assert all(0 < row[1] <= row[0] for row in lost)
        assert len(list(daemon.session_dir(session).glob("*.gpcf"))) > 1
    finally:
        yard.clear()


def test_a_killed_daemon_leaves_a_hole_that_it_names(scripts: list[Script]) -> None:
    yard = Yard()
    try:
        daemon = yard.daemon(ebpf=True, require_ebpf=True, tick_ms=20).start()
        script, *_ = waiter(scripts)
        session = daemon.client.attach(script.pid).session.session
        time.sleep(0.4)
        daemon.kill()
        down = time.monotonic_ns()
        time.sleep(0.3)
        up = time.monotonic_ns()
        daemon.start()
        time.sleep(0.4)
        assert daemon.client.progress(session).processes == 1
        daemon.client.detach(session)
        found = daemon.recorded(session)
        (loss,) = [row for row in found.rows("loss") if row[2] == "daemon.down"]
        assert loss[1] <= down < up <= loss[0]
        assert down - loss[1] < 1000 * MS, "it begins where the recording ended"
        ends = [row[4] for row in found.rows("wait") if not row[6] & WaitFlag.START_UNKNOWN]
        assert any(end < down for end in ends)
        assert any(end > up for end in ends)
        inside = [row for row in found.rows("wait") if loss[1] < row[2] and row[4] < up]
        assert not [row for row in inside if row[2] > down]
        assert found.readers[2].missing == 0
        assert not found.damage
    finally:
        yard.clear()


def test_sigterm_unloads_and_the_engine_runs_on(scripts: list[Script]) -> None:
    yard = Yard()
    try:
        daemon = yard.daemon(ebpf=True, require_ebpf=True).start()
        script, *_ = waiter(scripts)
        session = daemon.client.attach(script.pid).session.session
        time.sleep(0.3)
        assert daemon.end(signal.SIGTERM) == 0
        assert script.process.poll() is None
        from gpucorrelate.daemon.client import open_recording
        from tests.unit.daemon_kit import Recorded

        found = Recorded(open_recording(daemon.session_dir(session)))
        assert any(row[6] & WaitFlag.OPEN for row in found.rows("wait"))
        assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    finally:
        yard.clear()


def test_without_the_right_to_trace_the_daemon_runs_and_says_what_is_lost() -> None:
    yard = Yard()
    try:
        daemon = yard.daemon(ebpf=True)
        if os.geteuid() == 0:
            daemon.prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
        status = daemon.start().client.status()
        assert status.kernel.state == "off"
        (off,) = status.capabilities
        assert off.state == "off"
        assert "CAP_BPF" in off.reason
        assert "no OS waits" in off.reason
        assert daemon.end() == 0

        demanding = yard.daemon(ebpf=True, require_ebpf=True)
        demanding.prefix = daemon.prefix
        assert demanding.launch().wait(20) == 6
        assert "CAP_BPF" in demanding.log.read_text()
    finally:
        yard.clear()
