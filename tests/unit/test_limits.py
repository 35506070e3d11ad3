# SPDX-License-Identifier: Apache-2.0
"""Each limit of the daemon is hit: what is beyond it is turned away, counted, and harms nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.archive import Archive
from gpucorrelate.daemon.config import DaemonConfig, Limits
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.notes import Notes
from gpucorrelate.daemon.saved import DETACHED, SavedSession
from gpucorrelate.daemon.streams import DAEMON_STREAM, LivingTable, OwnStream
from gpucorrelate.daemon.threads import ThreadNames
from gpucorrelate.probes.wire.errors import ControlError
from tests.unit.daemon_kit import ROOT, Yard, wait_for
from tests.unit.test_control_socket import raw
from tests.unit.test_ingest_peers import hung_up, works

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon_kit import DaemonProcess, PeerProcess

NOBODY = 65_534


def attached(yard: Yard, daemon: DaemonProcess) -> tuple[PeerProcess, str]:
    """An engine that is recorded, and its session."""
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    return peer, session


# Agents.


def tell(daemon: DaemonProcess, peer: PeerProcess) -> dict[str, str]:
    """What a process that connects is told; nothing when it is hung up on."""
    peer.do("connect", daemon.ingest)
    told: dict[str, str] = peer.do("hear")
    return told


def test_agents_beyond_the_limit_are_turned_away_and_counted(yard: Yard) -> None:
    daemon = yard.daemon(limits={"clients": 3}).start()
    engine = attached(yard, daemon)
    peers = [yard.peer(daemon) for _ in range(4)]
    told = [tell(daemon, peer) for peer in peers]
    assert told.count({"op": "stop"}) == 2, "two found room beside the engine"
    assert told.count({}) == 2, "the others were hung up on"
    status = daemon.client.status().ingest
    assert (status.clients, status.refused) == (3, 2)
    works(daemon, engine, 1)
    peers[told.index({"op": "stop"})].kill()
    wait_for(lambda: daemon.client.status().ingest.clients == 2, "one is gone")
    assert tell(daemon, peers[told.index({})]) == {"op": "stop"}, "and there is room for another"


_MANY = """
import os, socket, sys, time
path, count, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
for _ in range(count):
    if os.fork() == 0:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        os.write(1, b"in\\n" if sock.recv(64) else b"out\\n")
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: no other user can be played")
def test_a_user_cannot_take_all_places_for_agents(yard: Yard) -> None:
    daemon = yard.daemon(limits={"clients": 16, "clients_per_uid": 5}).start()
    engine = attached(yard, daemon)
    with subprocess.Popen(
        [sys.executable, "-c", _MANY, daemon.ingest, "12", str(NOBODY)],
        cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as crowd:  # fmt: skip
        assert crowd.stdout is not None
        assert crowd.stdin is not None
        told = [crowd.stdout.readline() for _ in range(12)]
        assert (told.count(b"in\n"), told.count(b"out\n")) == (5, 7)
        assert daemon.client.status().ingest.refused == 7
        works(daemon, engine, 1)
        assert yard.peer(daemon).join() == {"op": "stop"}, "another user finds room"
        crowd.stdin.close()


# Sessions.


def test_sessions_beyond_the_limit_are_refused_in_one_line(yard: Yard) -> None:
    daemon = yard.daemon(limits={"sessions": 2}).start()
    targets = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(3)]
    try:
        first, _ = (daemon.client.attach(one.pid) for one in targets[:2])
        with pytest.raises(ControlError, match="there are 2 sessions already, 2 of them yours"):
            daemon.client.attach(targets[2].pid)
        assert len(daemon.client.sessions()) == 2, "nothing is left of it"
        daemon.client.detach(first.session.session)
        assert daemon.client.attach(targets[2].pid).session.state == "attached"
    finally:
        for one in targets:
            one.kill()
            one.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: no other user can be played")
def test_a_user_has_only_so_many_sessions(yard: Yard) -> None:
    daemon = yard.daemon(limits={"sessions": 8, "sessions_per_uid": 2}).start()
    daemon.client.path.chmod(0o666)
    targets = [subprocess.Popen(["/bin/sleep", "60"], user=NOBODY) for _ in range(4)]
    try:
        script = (
            "import sys; from gpucorrelate.daemon.client import Client, ControlError\n"
            "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for pid in sys.argv[2:]:\n"
            "    try: print(Client(sys.argv[1]).attach(int(pid)).session.state)\n"
            "    except ControlError as exc: print(exc.message)\n"
        )
        pids = [str(one.pid) for one in targets[:3]]
        done = subprocess.run(
            [sys.executable, "-c", script, str(daemon.client.path), *pids],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines == ["attached"] * 2 + ["there are 2 sessions already, 2 of them yours"]
        assert daemon.client.attach(targets[3].pid).session.state == "attached", "root has more"
    finally:
        for one in targets:
            one.kill()
            one.wait()


# Processes and threads.


def test_processes_beyond_the_limit_are_counted_each_once(yard: Yard) -> None:
    daemon = yard.daemon(limits={"processes": 4}).start()
    peer, session = attached(yard, daemon)
    for _ in range(8):
        peer.do("spawn")
    wait_for(lambda: daemon.recorded(session).lost("daemon.limits") >= 5, "they are told")
    time.sleep(1.2)  # it looks again every second
    found = daemon.recorded(session)
    assert found.lost("daemon.limits") == 5
    assert "processes beyond the limit of 4" in found.values("loss", "what")[-1]
    assert daemon.client.progress(session).processes == 4
    assert any("not all are traced" in text for text in daemon.client.progress(session).warnings)
    assert daemon.client.progress(session).lost == 5
    works(daemon, (peer, session), 1)


def test_threads_beyond_the_limit_are_counted_each_once() -> None:
    names = ThreadNames(os.getpid(), limit=3)
    stop = threading.Event()
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only
    threads = [threading.Thread(target=stop.wait) for _ in range(6)]
    try:
        for thread in threads:
            thread.start()
        beyond = before + 6 - 3
        assert names.look(1).more_beyond == beyond
        assert len(names) == 3
        assert names.look(2).more_beyond == 0
        threads.append(threading.Thread(target=stop.wait))
        threads[-1].start()
        assert names.look(3).more_beyond == 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert names.look(4).more_beyond == 0


def test_threads_that_are_not_named_are_told_in_the_recording(yard: Yard) -> None:
    daemon = yard.daemon(limits={"threads": 1}).start()
    script = "import threading, time\nfor _ in range(5):\n  threading.Thread(target=time.sleep, "
    script += "args=(60,), daemon=True).start()\nprint(1, flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        session = daemon.client.attach(process.pid).session.session
        wait_for(lambda: daemon.recorded(session).lost("daemon.limits") == 5, "they are told")
        assert "threads of process" in daemon.recorded(session).values("loss", "what")[-1]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_losses_of_more_kinds_than_anybody_can_read_are_summed() -> None:
    """What a loss is called may hold a number, of which there is no end."""
    written: list[bytes] = []
    stream = OwnStream(DAEMON_STREAM, LivingTable())
    notes = Notes("one", stream, lambda frame, _rows: written.append(frame), 0)
    for number in range(100_000):
        notes.loss("ingest.damage", f"damaged bytes of core/{number}", 2)
    rows = notes.unwritten()
    assert len(rows) <= 1100
    assert sum(row[4] for row in rows) == notes.lost == 200_000
    assert "others" in rows[-1][3]


# Callers.


def test_callers_turned_away_and_cut_off_are_counted(yard: Yard) -> None:
    limits = {"control_clients": 4, "control_idle_s": 0.4}
    daemon = yard.daemon(limits=limits).start()
    daemon.client.status()
    socks = [raw(daemon) for _ in range(6)]
    try:
        wait_for(lambda: daemon.client.status().callers_refused == 3, "three find no room")
        wait_for(lambda: daemon.client.status().callers_cut_off >= 3, "three say nothing")
        assert all(hung_up(sock) for sock in socks)
    finally:
        for sock in socks:
            sock.close()
    sock = raw(daemon)
    before = daemon.client.status().callers_cut_off
    sock.sendall(b"\xff\xff\xff\xff")
    wait_for(lambda: daemon.client.status().callers_cut_off == before + 1, "it broke the rules")
    sock.close()


# The disk.


def test_recordings_beyond_the_limit_go_the_longest_ended_first_and_are_counted(
    yard: Yard,
) -> None:
    daemon = yard.daemon(
        segment_bytes=16 << 10, session_max_bytes=64 << 10, total_max_bytes=160 << 10
    ).start()
    sessions = []
    for _ in range(6):
        peer, session = attached(yard, daemon)
        sessions.append(session)
        for first in range(1, 601, 100):
            peer.do("steps", first, 100)
        wait_for(lambda: daemon.client.progress(sessions[-1]).steps == 600, "they are taken")
        daemon.client.detach(session)
        peer.kill()
    wait_for(lambda: daemon.client.status().store.deleted_sessions, "the limit is kept")
    wait_for(lambda: daemon.client.status().store.stored_bytes <= 160 << 10, "and kept")
    left = {info.session for info in daemon.client.sessions()}
    gone = [session for session in sessions if session not in left]
    assert gone == sessions[: len(gone)], "the longest ended"
    assert daemon.client.status().store.deleted_sessions == len(gone)
    assert not [session for session in gone if daemon.session_dir(session).exists()]


def test_of_too_many_finished_sessions_the_longest_ended_of_who_has_most_go(
    tmp_path: Path,
) -> None:
    """So that nobody drives out the others by beginning sessions and ending them."""
    limits = Limits(finished_sessions=3)
    tally = Tally()
    archive = Archive(tmp_path, DaemonConfig(tmp_path, tmp_path, limits=limits), tally)
    now = time.time()
    for at, uid in enumerate((1, 2, 2, 2, 2)):
        (tmp_path / f"s{at}").mkdir()
        archive.add(SavedSession(f"s{at}", DETACHED, uid=uid, ended_unix_s=now - 1000 + at))
    archive.trim(0)
    assert archive.names() == ["s0", "s3", "s4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s0", "s3", "s4"]
    assert tally.store.deleted_sessions == 2


def test_a_daemon_keeps_only_so_many_finished_sessions(yard: Yard) -> None:
    daemon = yard.daemon(limits={"finished_sessions": 2}).start()
    made = []
    for _ in range(4):
        peer, session = attached(yard, daemon)
        made.append(session)
        daemon.client.detach(session)
        peer.kill()
    wait_for(lambda: daemon.client.status().store.deleted_sessions == 2, "the limit is kept")
    assert {info.session for info in daemon.client.sessions()} == {*made[2:]}


def test_every_limit_has_a_test_that_hits_it() -> None:
    """A new limit is to be named here, beside what hits it."""
    hit = {
        "clients": test_agents_beyond_the_limit_are_turned_away_and_counted,
        "clients_per_uid": test_a_user_cannot_take_all_places_for_agents,
        "sessions": test_sessions_beyond_the_limit_are_refused_in_one_line,
        "sessions_per_uid": test_a_user_has_only_so_many_sessions,
        "finished_sessions": (
            test_of_too_many_finished_sessions_the_longest_ended_of_who_has_most_go
        ),
        "processes": test_processes_beyond_the_limit_are_counted_each_once,
        "threads": test_threads_beyond_the_limit_are_counted_each_once,
        "control_clients": test_callers_turned_away_and_cut_off_are_counted,
        "control_idle_s": test_callers_turned_away_and_cut_off_are_counted,
    }
    elsewhere = {
        "control_clients_per_uid": "test_another_user_cannot_take_all_places",
        "read_bytes_per_tick": "test_junk_from_an_attached_process_hurts_only_itself",
        "idle_read_bytes_per_tick": "test_a_flood_is_read_slowly_and_others_are_served",
        "damaged": "test_a_peer_that_only_damages_is_cut_off_and_nobody_else_suffers",
        "string_bytes": "test_strings_without_end_end_the_connection",
        "idle_string_bytes": "test_a_process_with_many_strings_is_heard_once_it_is_in_a_session",
        "idle_bytes_per_uid": "test_processes_in_no_session_cannot_fill_the_memory",
        "idle_bytes": "test_processes_in_no_session_cannot_fill_the_memory",
    }
    assert set(hit) | set(elsewhere) == set(Limits.__dataclass_fields__)
    texts = "".join(path.read_text() for path in (ROOT / "tests" / "unit").glob("test_*.py"))
    assert not [name for name in elsewhere.values() if f"def {name}(" not in texts]
