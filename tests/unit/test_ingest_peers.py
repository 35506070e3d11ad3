# SPDX-License-Identifier: Apache-2.0
"""The agents' socket against peers that are slow, wrong, hostile or gone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.ingest import Ingest
from gpucorrelate.daemon.loop import Loop
from gpucorrelate.probes.wire.frame import MAGIC, Batch, encode
from gpucorrelate.probes.wire.schema import BY_NAME
from tests.unit.daemon_kit import ROOT, Yard, start_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.probes.host.procfs import Process
    from tests.unit.daemon_kit import DaemonProcess, PeerProcess


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with Yard() as made:
        yield made


@pytest.fixture(scope="module")
def daemon(yard: Yard) -> DaemonProcess:
    limits = {"damaged": 8, "string_bytes": 1 << 20, "clients": 64}
    return yard.daemon(limits=limits).start()


@pytest.fixture
def engine(yard: Yard, daemon: DaemonProcess) -> Iterator[tuple[PeerProcess, str]]:
    """An attached process with an agent, and its session."""
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    assert peer.do("hear") == start_of(session)
    yield peer, session
    peer.kill()
    wait_for(lambda: daemon.client.progress(session).state == "detached", "the session ends")


def stranger(daemon: DaemonProcess) -> socket.socket:
    """A connection of this process, which is in no session."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(daemon.ingest)
    return sock


def hung_up(sock: socket.socket) -> bool:
    """Whether the daemon closed the connection, whatever it said before."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return True


def works(daemon: DaemonProcess, engine: tuple[PeerProcess, str], first: int) -> None:
    """The engine's steps still arrive."""
    peer, session = engine
    before = daemon.client.progress(session).steps
    peer.do("steps", first, 5)
    wait_for(lambda: daemon.client.progress(session).steps == before + 5, "steps arrive")


def test_a_frame_in_two_halves_is_one_frame(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    frame = peer.do("half", "step_end", [[1, 1, 1, 0, ""]])
    time.sleep(0.05)
    assert daemon.recorded(session).values("step_end", "step") == []
    peer.do("raw", frame[len(frame) // 4 * 2 :])
    wait_for(lambda: daemon.recorded(session).values("step_end", "step") == [1], "it is whole")


def test_a_frame_cut_off_by_a_lost_connection_comes_again_whole(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    peer.do("steps", 1, 2)
    frame = peer.do("half", "step_end", [[77, 1, 1, 0, "broken"]])
    peer.do("close")
    assert peer.join() == start_of(session)
    peer.do("raw", frame)
    peer.do("steps", 3, 2)
    wait_for(lambda: daemon.client.progress(session).steps == 4, "it goes on")
    found = daemon.recorded(session)
    assert found.values("step_end", "step") == [1, 2, 77, 3, 4]
    assert "broken" in found.values("step_end", "error")
    assert found.missing == 0
    assert found.rows("loss") == []


def test_repeats_are_dropped_and_gaps_are_losses(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    frame = peer.do("keep", "step_end", [[1, 1, 1, 0, ""]])
    before = daemon.client.status().ingest
    for _ in range(3):
        peer.do("raw", frame)
    peer.do("skip", 4)
    peer.do("dropped", 50)
    peer.do("steps", 2, 1)
    wait_for(lambda: daemon.client.progress(session).steps == 1, "it arrives")
    wait_for(lambda: daemon.recorded(session).rows("loss"), "losses are recorded")
    found = daemon.recorded(session)
    assert found.values("step_end", "step") == [1, 2]
    assert found.lost("ingest.stream") == 4
    assert found.lost("agent.queue") == 50
    assert found.missing == 4
    after = daemon.client.status().ingest
    assert after.repeated - before.repeated == 2
    assert after.missing - before.missing == 4
    assert after.agent_dropped - before.agent_dropped == 50
    t_ns, since_ns = found.rows("loss")[0][:2]
    assert 0 < since_ns <= t_ns, "the loss is placed in time"


def test_drops_from_before_the_session_are_not_its_own(yard: Yard, daemon: DaemonProcess) -> None:
    peer = yard.peer(daemon)
    peer.do("dropped", 1000)
    peer.join()
    peer.do("skip", 500)
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("steps", 1, 1)
    wait_for(lambda: daemon.client.progress(session).steps == 1, "it arrives")
    found = daemon.recorded(session)
    assert found.lost("agent.queue") == 0
    peer.kill()


def test_strings_from_before_the_session_still_resolve(yard: Yard, daemon: DaemonProcess) -> None:
    """An agent states a string once; it may have done so for a session that has ended."""
    peer = yard.peer(daemon)
    peer.join()
    first = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("request", "early-request", ["ADMITTED"])
    wait_for(lambda: daemon.client.progress(first).rows, "it arrives")
    daemon.client.detach(first)
    second = daemon.client.attach(peer.pid).session.session
    assert second != first
    peer.do("request", "early-request", ["FINISHED"])
    wait_for(lambda: daemon.client.progress(second).rows, "it arrives")
    found = daemon.recorded(second)
    assert found.values("request", "request") == ["early-request"]
    assert found.missing == 0
    peer.kill()


def test_an_unknown_kind_is_kept_and_counted(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    before = daemon.client.status().ingest.unknown
    peer.do("unknown", 9999)
    peer.do("steps", 1, 1)
    wait_for(lambda: daemon.client.progress(session).steps == 1, "what follows arrives")
    found = daemon.recorded(session)
    assert daemon.client.status().ingest.unknown == before + 1
    assert [batch.columns for batch in found.batches if batch.kind == 9999] == [(b"abcdef",)]
    assert found.missing == 0


@pytest.mark.parametrize("kind", ["session", "task", "wait", "fault"])
def test_an_agent_cannot_speak_for_the_kernel_or_the_daemon(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str], kind: str
) -> None:
    peer, session = engine
    row = ["" if column.ctype == "str" else 1 for column in BY_NAME[kind].columns]
    before = len([s for s in daemon.recorded(session).streams(kind) if s > 2])
    peer.do("rows", kind, [row])
    peer.do("steps", 1, 1)
    wait_for(lambda: daemon.client.progress(session).steps == 1, "what follows arrives")
    found = daemon.recorded(session)
    assert len([s for s in found.streams(kind) if s > 2]) == before == 0
    assert found.missing == 0, "its number is kept, so nothing seems lost"


def test_damage_is_counted_and_what_follows_is_read(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    peer.do("steps", 1, 1)
    frame = bytes.fromhex(peer.do("keep", "step_end", [[1, 1, 1, 0, ""]]))
    broken = frame[:-1] + bytes([frame[-1] ^ 1])
    peer.do("raw", broken.hex())
    peer.do("steps", 2, 3)
    wait_for(lambda: daemon.client.progress(session).steps == 4, "what follows arrives")
    wait_for(lambda: daemon.recorded(session).lost("ingest.damage"), "the damage is recorded")
    found = daemon.recorded(session)
    assert found.lost("ingest.damage") == len(broken)
    assert found.lost("ingest.stream") == 1
    assert not found.damage, "damage does not get into the recording"


def test_a_peer_that_only_damages_is_cut_off_and_nobody_else_suffers(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    sock = stranger(daemon)
    junk = (MAGIC + b"\xff" * 12) * 200
    try:
        sock.sendall(junk)
        assert hung_up(sock)
    except (BrokenPipeError, ConnectionResetError):
        pass
    sock.close()
    works(daemon, engine, 1)


def test_a_flood_is_read_slowly_and_others_are_served(
    yard: Yard, daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    """Valid frames without end from a process that nobody asked."""
    sock = stranger(daemon)
    kind = BY_NAME["meta"]
    frame = encode(Batch(kind.id, 0, (b"",) * len(kind.columns), seq=1))
    sock.setblocking(False)
    flood = frame * 2000
    sent = 0
    before = daemon.client.status().ingest.read_bytes
    started = time.monotonic()
    first = 1
    while time.monotonic() - started < 1.0:
        try:
            sent += sock.send(flood[sent % len(frame) :])
        except BlockingIOError:
            works(daemon, engine, first)
            first += 5
    assert first > 1, "the flood was slowed down, and steps arrived meanwhile"
    read = daemon.client.status().ingest.read_bytes - before
    ticks = (time.monotonic() - started) / 0.005
    assert read < (ticks + 2) * (64 << 10) + (4 << 20)
    sock.close()


def test_junk_from_an_attached_process_hurts_only_itself(
    yard: Yard, daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    bad = yard.peer(daemon)
    bad.join()
    session = daemon.client.attach(bad.pid).session.session
    bad.do("hear")
    assert bad.do("flood", 64) in ("taken", "BrokenPipeError", "ConnectionResetError")
    works(daemon, engine, 1)
    wait_for(lambda: daemon.recorded(session).lost("ingest.damage"), "it is recorded")
    bad.kill()


def test_strings_without_end_end_the_connection(
    yard: Yard, daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    bad = yard.peer(daemon)
    bad.join()
    session = daemon.client.attach(bad.pid).session.session
    bad.do("hear")
    before = daemon.client.status().ingest.cut_off
    for number in range(20):
        rows = [[f"{number}-{at}-" + "x" * 900, 0, 1, 1, 1, 0, ""] for at in range(100)]
        try:
            bad.do("rows", "request", rows)
        except (ValueError, BrokenPipeError):
            break
        if daemon.client.status().ingest.cut_off > before:
            break
    wait_for(lambda: daemon.client.status().ingest.cut_off > before, "it is cut off")
    works(daemon, engine, 1)
    wait_for(lambda: daemon.recorded(session).lost("ingest.limits"), "the recording says so")
    bad.kill()


def test_events_of_a_process_in_no_session_are_thrown_away(
    yard: Yard, daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    _, session = engine
    other = yard.peer(daemon)
    assert other.join("core") == {"op": "stop"}
    before = daemon.client.status().ingest.unasked
    other.do("steps", 1, 50)
    wait_for(lambda: daemon.client.status().ingest.unasked > before, "they are counted")
    assert daemon.recorded(session).values("step_begin", "step") == []
    other.kill()


def test_a_lie_about_the_process_changes_nothing(
    yard: Yard, daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    """The introduction's process id is the engine's; the kernel knows better."""
    peer, session = engine
    liar = stranger(daemon)
    kind = BY_NAME["stream"]
    columns = [b"\0\0\0\0", peer.pid.to_bytes(4, "little"), b"\0" * 8, b"\0" * 4, b"\0" * 4]
    liar.sendall(encode(Batch(kind.id, 1, tuple(columns))))
    kind = BY_NAME["step_end"]
    columns = [b"\7" + b"\0" * 7, b"\0" * 4, b"\0" * 8, b"\0", b"\0" * 4]
    liar.sendall(encode(Batch(kind.id, 1, tuple(columns), 1)))
    time.sleep(0.1)
    assert daemon.recorded(session).values("step_end", "step") == []
    pids = [row[1] for row in daemon.recorded(session).rows("stream") if row[0] > 2]
    assert os.getpid() not in pids
    liar.close()


def test_a_child_with_an_agent_is_taken_in_when_it_connects(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    peer, session = engine
    child = peer.do("spawn_agent", daemon.ingest)
    wait_for(lambda: daemon.recorded(session).rows("thread"), "the child's rows arrive")
    found = daemon.recorded(session)
    assert found.rows("thread") == [(child, "MainThread", "worker0.main")]
    rows = {row[1]: row for row in found.rows("stream")}
    assert rows[child][4] == "worker"
    assert found.streams("thread") == [rows[child][0]]
    processes = {p.pid: p for p in daemon.client.sessions()[0].processes}
    assert processes[child].agent
    assert processes[child].role == "worker"
    peer.do("end")


def test_another_program_in_the_same_process_is_another_stream(
    yard: Yard, daemon: DaemonProcess
) -> None:
    """After an exec the agent counts from one again; its batches are no repeats."""
    peer = yard.peer(daemon)
    peer.join("api")
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("steps", 1, 5)
    wait_for(lambda: daemon.client.progress(session).steps == 5, "they arrive")
    sock = stranger(daemon)  # keeps the daemon busy with somebody else meanwhile
    peer.do("close")
    peer.do("again")
    assert peer.join("core") == start_of(session)
    peer.do("steps", 1, 3)
    wait_for(lambda: daemon.client.progress(session).steps == 8, "the new ones arrive")
    found = daemon.recorded(session)
    assert sorted(set(found.streams("step_begin"))) == [3, 4]
    sock.close()
    peer.kill()


def test_more_clients_than_allowed_are_turned_away(
    daemon: DaemonProcess, engine: tuple[PeerProcess, str]
) -> None:
    """One connection for each process: a second one takes the first one's place."""
    first = stranger(daemon)
    assert first.recv(64)
    second = stranger(daemon)
    assert second.recv(64)
    assert hung_up(first)
    first.close()
    second.close()
    works(daemon, engine, 1)


def test_a_fault_met_as_a_process_is_taken_in_costs_that_process_alone(tmp_path: Path) -> None:
    """Whatever it is: the loop goes on, and nothing stays open."""
    faults = iter([True, False])

    def find(_: Process) -> None:
        if next(faults):
            raise RuntimeError("as a fault in this code would")

    loop, tally = Loop(), Tally()
    folder = Path(tempfile.mkdtemp(prefix="gpc"))
    ingest = Ingest(DaemonConfig(folder, tmp_path, ebpf=False), loop, tally, find)
    try:
        ingest.open()
        files = len(list(Path("/proc/self/fd").iterdir()))
        for left in (0, 1):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(folder / "ingest.sock"))
                loop.run_once(5)
                assert tally.ingest.clients == left
                sock.settimeout(5)
                assert bool(sock.recv(64)) == bool(left)
            if not left:
                assert len(list(Path("/proc/self/fd").iterdir())) == files
        assert tally.ingest.cut_off == 1
    finally:
        ingest.close()
        loop.close()
        folder.rmdir()


def test_strings_stated_anew_without_end_do_not_make_every_segment_bigger() -> None:
    """The table stays small, but every row that lasts keeps the text it was given."""
    yard = Yard()
    try:
        limits = {"string_bytes": 1 << 20}
        daemon = yard.daemon(segment_bytes=2 << 20, limits=limits).start()
        bad, good = yard.peer(daemon), yard.peer(daemon)
        session = ""
        for peer in (good, bad):
            peer.join()
            session = daemon.client.attach(peer.pid).session.session
            peer.do("hear")
        bad.do("redefine", 80)
        wait_for(lambda: daemon.client.status().ingest.cut_off, "it is cut off")
        wait_for(lambda: daemon.recorded(session).lost("ingest.limits") == 1, "it is recorded")
        sizes = [path.stat().st_size for path in daemon.session_dir(session).glob("*.gpcf")]
        assert max(sizes) < (4 << 20), sizes
        bad.do("connect", daemon.ingest)
        bad.do("greet", "core")
        wait_for(lambda: daemon.client.status().ingest.cut_off == 2, "nor does it come back")
        mine = next(s.session for s in daemon.client.sessions() if s.root_pid == good.pid)
        works(daemon, (good, mine), 1)
    finally:
        yard.clear()


def resident_kib(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    text = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


_FLOOD = """
import os, sys, time
from tests.unit.daemon_peer import Peer
path, count, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
children, parent = [], os.getpid()
for _ in range(count):
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(uid); os.setuid(uid)
        try:
            peer = Peer()
            peer.connect(path)
            peer.strings(20_000, 1000)
        finally:
            os.write(1, b"done\\n")
            while os.getppid() == parent:
                time.sleep(0.1)
            os._exit(0)
    children.append(child)
sys.stdin.read()
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


def test_processes_in_no_session_cannot_fill_the_memory() -> None:
    """A hundred and twenty of another user, with 20 MB of strings each."""
    if os.geteuid() != 0:
        pytest.skip("not root: no other user can be played")
    own = Yard()
    own.folder.chmod(0o755)
    daemon = own.daemon().start()
    before = resident_kib(daemon)
    flood = subprocess.Popen(
        [sys.executable, "-c", _FLOOD, daemon.ingest, "120", "65534"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert flood.stdout is not None
        assert flood.stdin is not None
        for _ in range(120):
            assert flood.stdout.readline() == b"done\n"
        assert daemon.client.status().ingest.clients > 0
        assert (resident_kib(daemon) - before) >> 10 < 100
        peer = own.peer(daemon)
        assert peer.join() == {"op": "stop"}
        session = daemon.client.attach(peer.pid).session.session
        assert peer.do("hear") == start_of(session)
        works(daemon, (peer, session), 1)
        flood.stdin.close()
        wait_for(lambda: daemon.client.status().ingest.clients == 1, "they are let go")
    finally:
        flood.kill()
        with flood:
            own.clear()


def test_a_process_with_many_strings_is_heard_once_it_is_in_a_session(
    yard: Yard, daemon: DaemonProcess
) -> None:
    """An agent that was attached before restates everything, asked or not."""
    peer = yard.peer(daemon)
    peer.join()
    assert peer.do("strings", 3000, 200) < 6, "beyond its share it is not read"
    session = daemon.client.attach(peer.pid).session.session
    assert peer.do("hear") == start_of(session)
    peer.kill()
    wait_for(lambda: daemon.client.progress(session).state == "detached", "it ends")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(junk=st.lists(st.one_of(st.binary(max_size=64), st.just(MAGIC)), max_size=12))
def test_whatever_a_stranger_sends_the_daemon_answers(
    daemon: DaemonProcess, junk: list[bytes]
) -> None:
    sock = stranger(daemon)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(b"".join(junk))
    sock.close()
    assert daemon.client.status().pid
