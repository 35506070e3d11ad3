# SPDX-License-Identifier: Apache-2.0
"""The daemon stopped, killed, starved of memory, replaced by another version: all is told.

Every row that the engine made is in the recording or counted as lost, and by whom.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import DaemonUnreachableError
from gpucorrelate.probes.wire.schema import SessionEvent
from tests.system.faults_kit import Engine, Group, all_told, needs_root, numbers
from tests.unit.daemon_kit import Yard, recorded_at, wait_for
from tests.unit.test_ingest_peers import resident_kib

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.daemon_kit import DaemonProcess


@pytest.mark.parametrize("stopped_s", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_rows_that_a_stopped_daemon_did_not_take_are_counted_by_the_agent(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine], stopped_s: int
) -> None:
    daemon = yard.daemon().start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    engine.put(1000)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    told = engine.put(100_000)
    while time.monotonic() - begun < stopped_s:
        told = engine.put(5000)
        time.sleep(0.1)
    daemon.process.send_signal(signal.SIGCONT)
    assert told["dropped"] > 0, "more than its buffers hold"
    found = all_told(daemon, session, engine)
    engine.put(10)
    found = all_told(daemon, session, engine)
    assert numbers(found)[-1] == engine.put()["put"] - 1, "it goes on"
    status = daemon.client.status()
    assert status.pauses
    assert status.ingest.agent_dropped == found.lost("agent.queue")


@needs_root
def test_killed_for_memory_it_takes_the_session_up_again(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """By the kernel, in a group with a limit; strangers made it grow."""
    daemon = yard.daemon(limits={"idle_bytes": 1 << 30, "idle_string_bytes": 1 << 30}).start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    engine.put(5000)
    all_told(daemon, session, engine)
    with Group("memory") as group:
        assert daemon.process is not None
        group.take(daemon.process.pid)
        group.write("memory.limit_in_bytes", 8 << 20)  # what it has already is not counted here
        stranger = yard.peer(daemon)
        with suppress(ValueError, BrokenPipeError):
            stranger.do("connect", daemon.ingest)
            stranger.do("strings", 40_000, 1000)
        assert daemon.process.wait(20) == -signal.SIGKILL, "it had no chance to say goodbye"
        events = (group.path / "memory.oom_control").read_text().split()
        assert int(events[events.index("oom_kill") + 1]) > 0
    daemon.client.close()
    stranger.kill()
    told = engine.put(5000)
    daemon.start()
    wait_for(lambda: engine.put()["connected"], "the agent comes back")
    engine.put(100)
    told = engine.settle()
    wait_for(
        lambda: numbers(daemon.recorded(session))[-1:] == [told["put"] - 1], "what it kept comes"
    )
    found = daemon.recorded(session)
    kept = numbers(found)
    assert kept[:5000] == list(range(5000)), "what was recorded stays"
    assert kept == sorted(set(kept))
    assert found.lost("daemon.down") == 1
    assert found.missing == found.lost("ingest.stream")
    if not found.missing:
        assert len(kept) + told["dropped"] == told["put"], "nothing was under way"
    assert not found.damage
    assert resident_kib(daemon)


def test_a_daemon_of_another_version_goes_on_with_what_an_older_one_began(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """Killed for an upgrade. The older one knew fewer facts and columns; the session's file says
    less than this version writes, and something that it no longer does.
    """
    daemon = yard.daemon().start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    engine.put(300)
    all_told(daemon, session, engine)
    daemon.kill()
    file = daemon.session_dir(session) / "session.json"
    saved = json.loads(file.read_text())
    keep = ("session", "state", "uid", "boot_id", "root_pid", "started_ns", "targets", "streams")
    older = {key: saved[key] for key in keep} | {"dropped_by_a_later_version": [1, {"a": None}]}
    for stream in older["streams"]:
        stream.pop("drops")
    for target in older["targets"]:
        target.pop("command")
    file.write_text(json.dumps(older))
    daemon.start()
    wait_for(lambda: engine.put()["connected"], "the agent comes back")
    engine.put(200)
    found = all_told(daemon, session, engine)
    assert numbers(found) == list(range(500))
    events = found.values("session", "event")
    assert events.count(SessionEvent.ATTACHED) == events.count(SessionEvent.RESUMED) == 1
    assert daemon.client.detach(session).state == "detached"
    assert json.loads(file.read_text())["reason"] == "detached"


def test_a_newer_daemons_session_is_not_lost_on_this_one(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """As after going back to an older version."""
    daemon = yard.daemon().start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    engine.put(100)
    all_told(daemon, session, engine)
    daemon.kill()
    file = daemon.session_dir(session) / "session.json"
    newer = json.loads(file.read_text())
    newer["counts"] += [1, 2, 3]
    newer["what_is_new"] = "x"
    newer["targets"][0]["cgroup"] = "/a"
    file.write_text(json.dumps(newer))
    daemon.start()
    wait_for(lambda: engine.put()["connected"], "the agent comes back")
    engine.put(100)
    assert numbers(all_told(daemon, session, engine)) == list(range(200))


def test_a_session_of_another_boot_ends_there(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    """Its clock began anew: nothing is recorded across, and no process is the same."""
    daemon = yard.daemon().start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    engine.put(100)
    all_told(daemon, session, engine)
    daemon.kill()
    file = daemon.session_dir(session) / "session.json"
    saved = json.loads(file.read_text())
    assert saved["boot_id"] == procfs.boot_id()
    saved["boot_id"] = "00000000-0000-0000-0000-000000000000"
    file.write_text(json.dumps(saved))
    daemon.start()
    (info,) = daemon.client.sessions()
    assert (info.session, info.state) == (session, "detached")
    assert "started again" in info.reason
    wait_for(lambda: engine.put()["connected"], "the agent comes back")
    engine.put(50)
    time.sleep(0.1)
    found = recorded_at(daemon.session_dir(session))
    assert numbers(found) == list(range(100)), "nothing is added"
    assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    assert daemon.client.attach(engine.pid).session.session != session


def test_sockets_that_were_removed_are_made_again(
    yard: Yard, engine_of: Callable[[DaemonProcess], Engine]
) -> None:
    daemon = yard.daemon().start()
    engine = engine_of(daemon)
    session = engine.attach(daemon)
    sockets = [daemon.folder / "r" / name for name in ("ingest.sock", "control.sock")]
    modes = [path.stat().st_mode for path in sockets]
    for path in sockets:
        path.unlink()
    engine.put(100)
    wait_for(lambda: all(path.exists() for path in sockets), "they are there again")
    assert [path.stat().st_mode for path in sockets] == modes
    other = yard.peer(daemon)
    other.join()
    daemon.client.close()
    assert daemon.client.attach(other.pid).session.state == "attached"
    assert numbers(all_told(daemon, session, engine)) == list(range(100))


def test_what_took_a_sockets_place_is_left_alone(yard: Yard) -> None:
    daemon = yard.daemon().start()
    place = daemon.folder / "r" / "control.sock"
    place.unlink()
    place.write_text("mine")
    time.sleep(1.5)
    assert place.read_text() == "mine"
    daemon.client.close()
    with pytest.raises(DaemonUnreachableError):
        daemon.client.status()
    place.unlink()
    wait_for(place.exists, "it is made again")
    assert daemon.client.status().pid


@needs_root
def test_a_pid_that_is_used_again_is_somebody_elses(yard: Yard) -> None:
    """While the daemon does not look: it is stopped, the process ends, another has its number."""
    daemon = yard.daemon().start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    pid = peer.pid
    peer.kill()
    other = _with_pid(pid)
    try:
        daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: daemon.client.progress(session).state == "detached", "the end is seen")
        found = daemon.recorded(session)
        assert found.values("session", "event").count(SessionEvent.PROCESS_ADDED) == 1
        gone = [row for row in found.rows("session") if row[1] == SessionEvent.PROCESS_GONE]
        assert [row[2] for row in gone] == [pid]
        assert daemon.client.attach(pid).session.session != session
    finally:
        other.kill()
        other.wait()


def _with_pid(pid: int) -> subprocess.Popen[bytes]:
    """A process with that number, which nobody has."""
    last = "/proc/sys/kernel/ns_last_pid"
    for _ in range(200):
        try:
            with open(last, "w") as file:  # noqa: PTH123 - written in one go
                file.write(str(pid - 1))
        except OSError as exc:
            pytest.skip(f"a process id cannot be chosen here: {exc}")
        made = subprocess.Popen(["/bin/sleep", "60"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    pytest.skip("others start processes too fast for one to get a number that was chosen")
