# SPDX-License-Identifier: Apache-2.0
"""A host that lets down: disks that hang or refuse, a clock that is set, too many processes."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.wire.errors import ControlError
from gpucorrelate.probes.wire.schema import SessionEvent
from tests.system.faults_kit import Engine, all_told, disk, needs_root, numbers
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.daemon_kit import DaemonProcess

HERE = Path(__file__).parent
DAY_S = 86_400


# Disks. One that is full has its tests in tests/unit/test_store_segments.py.


@needs_root
def test_while_a_disk_hangs_agents_are_heard_and_nothing_is_lost_that_has_room(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """As one that is slow beyond measure: neither the engine waits for it nor the daemon."""
    state = yard.folder / "s"
    state.mkdir()
    with disk(state) as device:
        daemon = yard.daemon(segment_bytes=4 << 20, session_max_bytes=16 << 20).start()
        engine = engine_of(daemon)
        session = engine.attach(daemon)
        engine.put(2000)
        all_told(daemon, session, engine)
        device.freeze()
        rows = daemon.client.status().ingest.rows
        told = engine.put(20_000)
        wait_for(lambda: daemon.client.status().ingest.rows >= rows + 20_000, "they are taken")
        device.thaw()
        engine.settle()

        def kept() -> int:
            found = daemon.recorded(session)
            return len(numbers(found)) + found.lost("daemon.shed")

        # Where it hung for long, less was to be written for some seconds.
        wait_for(lambda: kept() >= told["put"], "all is recorded, or told as left out")
        found = daemon.recorded(session)
        assert kept() == told["put"]
        assert told["dropped"] == found.lost("agent.queue") == 0
        assert found.lost("store.disk") == 0, "what reached the daemon is written"
        assert daemon.end() == 0


@needs_root
def test_a_disk_that_turns_read_only_keeps_what_was_written_and_the_rest_is_told(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """As the kernel does with one that fails."""
    state = yard.folder / "s"
    state.mkdir()
    with disk(state, options="errors=remount-ro") as device:
        daemon = yard.daemon(segment_bytes=4 << 20, session_max_bytes=16 << 20).start()
        engine = engine_of(daemon)
        session = engine.attach(daemon)
        engine.put(1000)
        all_told(daemon, session, engine)
        # Segments are not forced to disk: what the kernel has not written by itself is its own.
        subprocess.run(["sync", "-f", state], check=True)
        device.break_it()
        engine.put(1000)
        engine.settle()
        wait_for(lambda: daemon.client.status().store.lost_rows >= 1000, "they are lost")
        assert "Read-only" in daemon.client.status().store.failing
        found = daemon.recorded(session)
        assert numbers(found) == list(range(1000))
        assert found.lost("store.disk") == daemon.client.status().store.lost_rows
        assert found.lost("agent.queue") == 0
        with pytest.raises(ControlError, match=r"Read-only"):
            daemon.client.attach(yard.peer(daemon).pid)
        assert daemon.end() == 0
        assert daemon.launch().wait(20) != 0, "nor does one start on it"
        assert "Read-only file system" in daemon.log.read_text().splitlines()[-1]
        device.mend()
        daemon.start()
        (info,) = daemon.client.sessions()
        assert info.session == session
        wait_for(lambda: numbers(daemon.recorded(session)) == list(range(1000)), "it is all there")


# The clock.


@pytest.fixture
def clock(tmp_path: Path, yard: Yard) -> Path:
    """Seconds that the daemon's wall clock is ahead; the daemon must be given ``stepped``."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "clock_step.so"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, HERE / "clock_step.c", "-ldl"], check=True)
    file = tmp_path / "step"
    file.write_bytes(bytes(8))
    return file


def set_clock(file: Path, ahead_s: int) -> None:
    """Set the daemon's wall clock, at once."""
    with file.open("r+b") as shared:
        shared.write(struct.pack("<q", ahead_s))


def stepped(daemon: DaemonProcess, file: Path) -> DaemonProcess:
    """The daemon, with a wall clock that can be set."""
    library = file.with_name("clock_step.so")
    daemon.prefix = ("env", f"LD_PRELOAD={library}", f"CLOCK_STEP={file}")
    return daemon.start()


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_is_set_deletes_nothing_and_ends_nothing(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine], clock: Path, days: int
) -> None:
    daemon = stepped(yard.daemon(), clock)
    engine = engine_of(daemon)
    first = engine.attach(daemon)
    engine.put(100)
    all_told(daemon, first, engine)
    daemon.client.detach(first)
    second = engine.attach(daemon)
    wall = daemon.client.sessions()[0].started_unix_s
    set_clock(clock, days * DAY_S)
    time.sleep(2.5)  # limits are kept every two seconds
    assert {s.session for s in daemon.client.sessions()} == {first, second}
    assert daemon.client.progress(second).state == "attached"
    engine.put(100)
    engine.settle()
    wait_for(lambda: len(numbers(daemon.recorded(second))) == 100, "it goes on")
    assert numbers(daemon.recorded(first)) == list(range(100))
    assert daemon.recorded(second).rows("loss") == []
    daemon.client.detach(second)
    third = engine.attach(daemon)
    info = next(s for s in daemon.client.sessions() if s.session == third)
    assert abs(info.started_unix_s - wall) > 300 * DAY_S, "the clock was set indeed"
    time.sleep(2.5)
    assert {s.session for s in daemon.client.sessions()} == {first, second, third}


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_is_set_while_the_daemon_is_down_hides_no_hole(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine], clock: Path, days: int
) -> None:
    daemon = stepped(yard.daemon(), clock)
    engine = engine_of(daemon)
    old = engine.attach(daemon)
    daemon.client.detach(old)
    session = engine.attach(daemon)
    engine.put(100)
    all_told(daemon, session, engine)
    daemon.kill()
    down = time.monotonic_ns()
    set_clock(clock, days * DAY_S)
    time.sleep(0.3)
    up = time.monotonic_ns()
    daemon.start()
    wait_for(lambda: engine.put()["connected"], "the agent comes back")
    engine.put(100)
    found = all_told(daemon, session, engine)
    (hole,) = [row for row in found.rows("loss") if row[2] == "daemon.down"]
    begun = min(row[0] for row in found.rows("session") if row[1] == SessionEvent.ATTACHED)
    assert begun <= hole[1] <= down < up <= hole[0], "it covers the time, and is in the session"
    time.sleep(2.5)
    assert {s.session for s in daemon.client.sessions()} == {old, session}


# Many.


def test_a_thousand_processes_are_followed(yard: Yard) -> None:
    daemon = yard.daemon(tick_ms=20).start()
    script = "for i in $(seq 1000); do sleep 300 & done; echo there; wait"
    tree = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert tree.stdout is not None
        assert tree.stdout.readline() == b"there\n"
        session = daemon.client.attach(tree.pid).session.session
        wait_for(lambda: daemon.client.progress(session).processes == 1001, "all are there")
        assert not [w for w in daemon.client.progress(session).warnings if "process" in w]
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()
        assert tree.stdout is not None
        tree.stdout.close()
    wait_for(lambda: daemon.client.progress(session).state == "detached", "all are gone")
    found = daemon.recorded(session)
    events = found.values("session", "event")
    assert events.count(SessionEvent.PROCESS_ADDED) == 1001
    assert events.count(SessionEvent.PROCESS_GONE) == 1001
    assert found.rows("loss") == []
