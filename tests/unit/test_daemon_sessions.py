# SPDX-License-Identifier: Apache-2.0
"""Sessions of a real daemon: attach, record, follow, detach, go down, come back."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.wire.errors import ControlError, DaemonUnreachableError
from gpucorrelate.probes.wire.gpu import GpuMode, GpuPlan
from gpucorrelate.probes.wire.schema import SessionEvent
from tests.unit.daemon_kit import Recorded, Yard, recorded_at, start_of, wait_for

if TYPE_CHECKING:
    from tests.unit.daemon_kit import DaemonProcess, PeerProcess


def attached(yard: Yard, daemon: DaemonProcess, role: str = "core") -> tuple[PeerProcess, str]:
    peer = yard.peer(daemon)
    assert peer.join(role) == {"op": "stop"}
    session = daemon.client.attach(peer.pid).session.session
    assert peer.do("hear") == start_of(session)
    return peer, session


def test_a_recording_holds_what_the_agent_sent_and_who_sent_it(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("request", "request-1", ["ADMITTED"])
    peer.do("steps", 1, 20)
    peer.do("request", "request-1", ["FINISHED"])
    wait_for(lambda: daemon.client.progress().requests_finished, "the request is through")
    live = daemon.client.progress(session)
    assert (live.requests_received, live.steps, live.tokens) == (1, 20, 20)
    assert live.steps_in_flight == 0

    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == list(range(1, 21))
    assert set(found.values("request", "request")) == {"request-1"}
    assert found.values("step_rows", "request") == ["request-1"]
    rows = {row[0]: row for row in found.rows("stream")}
    assert rows[3][1] == peer.pid, "the kernel's process id, not the one in the payload"
    assert rows[3][3:] == ("vllm", "core")
    assert set(found.streams("step_begin")) == {3}
    facts = dict(zip(found.values("meta", "key"), found.values("meta", "value"), strict=True))
    assert facts["session"] == session
    assert facts["boot_id"]
    assert not found.damage
    assert found.missing == 0


def test_a_detached_session_can_still_be_read_and_its_agent_is_told(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 5)
    info = daemon.client.detach(session)
    assert peer.do("hear") == {"op": "stop"}
    assert info.state == "detached"
    assert info.reason == "detached"
    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == [1, 2, 3, 4, 5]
    assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    # What it sends now is for nobody.
    peer.do("steps", 6, 1)
    wait_for(lambda: daemon.client.status().ingest.unasked, "it is counted as unasked")
    assert daemon.recorded(session).values("step_begin", "step") == [1, 2, 3, 4, 5]
    with pytest.raises(ControlError, match="ended already"):
        daemon.client.detach(session)


def test_files_are_not_for_everybody(yard: Yard) -> None:
    daemon = yard.daemon().start()
    _, session = attached(yard, daemon)
    place = daemon.session_dir(session)
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    modes = {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes == {0o640}
    assert stat.S_IMODE((daemon.folder / "r" / "control.sock").stat().st_mode) == 0o660


def test_attaching_twice_is_one_session(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    again = daemon.client.attach(peer.pid)
    assert again.already
    assert again.session.session == session
    assert len(daemon.client.sessions()) == 1


def test_a_process_without_an_agent_is_recorded_and_the_answer_says_what_is_lost(
    yard: Yard,
) -> None:
    daemon = yard.daemon().start()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        answer = daemon.client.attach(child.pid)
        assert not answer.already
        assert any("no engine agent" in text for text in answer.warnings)
        assert any(
            "kernel" in text or "ebpf" in text or "waits" in text for text in answer.warnings
        )
        found = daemon.recorded()
        assert child.pid in found.values("task", "tid")
        assert "sleep" in found.values("task", "comm")
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("pid", "code", "text"),
    [
        (4_000_000, 3, "no process"),
        (0, 2, "not a process id"),
        (-1, 2, "not a process id"),
        (1 << 40, 2, "not a process id"),
    ],
)
def test_attaching_to_nothing_says_so(yard: Yard, pid: int, code: int, text: str) -> None:
    daemon = yard.daemon().start()
    with pytest.raises(ControlError, match=text) as caught:
        daemon.client.attach(pid)
    assert caught.value.exit_code == code
    assert daemon.client.sessions() == ()


def test_the_daemon_a_kernel_thread_and_the_dead_cannot_be_attached(yard: Yard) -> None:
    daemon = yard.daemon().start()
    assert daemon.process is not None
    with pytest.raises(ControlError, match="daemon itself") as caught:
        daemon.client.attach(daemon.process.pid)
    assert caught.value.exit_code == 2
    second = Path("/proc/2/stat")
    if second.exists() and "(kthreadd)" in second.read_text():
        with pytest.raises(ControlError, match="kernel thread") as caught:
            daemon.client.attach(2)
        assert caught.value.exit_code == 6
    dead = subprocess.Popen(["/bin/true"])
    wait_for(lambda: Path(f"/proc/{dead.pid}/stat").read_text().split()[2] == "Z", "it is dead")
    with pytest.raises(ControlError, match="has exited") as caught:
        daemon.client.attach(dead.pid)
    assert caught.value.exit_code == 3
    dead.wait()


def test_children_are_followed_and_their_agents_started(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon, "api")
    child = peer.do("spawn")
    wait_for(
        lambda: child in [p.pid for p in daemon.client.sessions()[0].processes],
        "the child is found",
    )
    peer.do("end")
    wait_for(
        lambda: not {p.pid: p.alive for p in daemon.client.sessions()[0].processes}[child],
        "its end is seen",
    )
    found = daemon.recorded(session)
    events = list(
        zip(found.values("session", "event"), found.values("session", "tgid"), strict=True)
    )
    assert (SessionEvent.PROCESS_ADDED, child) in events
    assert (SessionEvent.PROCESS_GONE, child) in events
    assert events.index((SessionEvent.PROCESS_ADDED, child)) < events.index(
        (SessionEvent.PROCESS_GONE, child)
    )


def test_the_whole_tree_is_found_from_any_of_its_processes(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer = yard.peer(daemon)
    peer.join("api")
    child = peer.do("spawn")
    answer = daemon.client.attach(child)
    assert answer.session.root_pid == peer.pid, "an ancestor with an agent belongs to the engine"
    assert {p.pid for p in answer.session.processes} == {peer.pid, child}
    assert os.getpid() not in {p.pid for p in answer.session.processes}


def test_an_engine_that_dies_with_steps_in_flight_leaves_a_note(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 3)
    peer.do("steps", 4, 2, False)
    peer.process.send_signal(signal.SIGKILL)
    peer.process.wait()
    wait_for(lambda: daemon.client.progress(session).state == "detached", "the session ends")
    found = daemon.recorded(session)
    rows = found.rows("session")
    gone = [row for row in rows if row[1] == SessionEvent.PROCESS_GONE]
    assert [row[2] for row in gone] == [peer.pid]
    assert "2 steps in flight: 4, 5" in gone[0][4]
    assert found.values("step_begin", "step") == [1, 2, 3, 4, 5], "nothing it had sent is lost"
    assert rows[-1][1] == SessionEvent.DETACHED


def test_sigterm_closes_the_recording_and_a_restart_takes_it_up(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 5)
    assert daemon.end(signal.SIGTERM) == 0
    found = recorded_at(daemon.session_dir(session))
    assert found.values("step_begin", "step") == [1, 2, 3, 4, 5]
    assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    assert not (daemon.folder / "r" / "control.sock").exists()
    assert peer.do("hear") == {"op": "stop"}
    assert peer.do("hear") == {}

    daemon.start()
    assert peer.join() == start_of(session)
    peer.do("steps", 6, 5)
    wait_for(lambda: daemon.client.progress(session).steps == 10, "its steps count on")
    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == list(range(1, 11))
    assert SessionEvent.RESUMED in found.values("session", "event")
    assert found.missing == 0
    assert found.lost("daemon.down") == 1
    assert set(found.streams("step_begin")) == {3}, "the agent keeps its stream"
    assert set(found.values("request", "request") + found.values("step_rows", "request")) == {
        "request-1"
    }


def test_what_is_recorded_of_the_gpu_is_the_sessions_own_and_outlives_a_restart(
    yard: Yard,
) -> None:
    daemon = yard.daemon().start()
    peer, plan = yard.peer(daemon), GpuPlan(GpuMode.NODES, 500, 5_000, 7, 20_000)
    assert peer.join("worker") == {"op": "stop"}
    session = daemon.client.attach(peer.pid, gpu=plan).session.session
    assert peer.do("hear") == start_of(session, plan)
    assert daemon.client.attach(peer.pid, gpu=GpuPlan(GpuMode.OFF)).already, "nothing is changed"
    assert daemon.end(signal.SIGTERM) == 0
    daemon.start()
    assert peer.do("hear") == {"op": "stop"}
    assert peer.do("hear") == {}
    assert peer.join("worker") == start_of(session, plan)
    with pytest.raises(ControlError, match="budget_ppm = -1: must be a whole number"):
        daemon.client.attach(peer.pid, gpu=dataclasses.replace(plan, budget_ppm=-1))


def test_a_killed_daemon_comes_back_to_what_it_had_written(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    for first in range(1, 101, 10):
        peer.do("steps", first, 10)
    wait_for(lambda: daemon.client.progress(session).steps == 100, "all is taken")
    daemon.recorded(session)  # it is written then
    daemon.kill()
    killed = time.monotonic_ns()
    # The write that was under way: half a frame at the end of the last segment.
    last = sorted(daemon.session_dir(session).glob("*.gpcf"))[-1]
    whole = last.read_bytes()
    cut = bytes.fromhex(peer.do("keep", "step_end", [[999, 1, 1, 0, ""]]))[:-5]
    written = last.stat()
    last.write_bytes(whole + cut)
    os.utime(last, ns=(written.st_atime_ns, written.st_mtime_ns))
    missed = [[step, 1, step, step, step, 1, 0, 1, 1, 0] for step in range(101, 104)]
    peer.do("keep", "step_begin", missed)  # sent to nobody

    daemon.start()
    assert last.read_bytes() == whole, "what was whole is untouched"
    assert last.with_name(last.name + ".cut").read_bytes() == cut, "the rest is kept aside"
    assert peer.join() == start_of(session)
    peer.do("steps", 104, 10)
    wait_for(lambda: daemon.client.progress(session).steps == 110, "it goes on")
    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == [*range(1, 101), *range(104, 114)]
    assert found.lost("ingest.stream") == 2, "the kept frames were used up and never came"
    assert found.lost("store.cut") == len(cut)
    (gap,) = [row for row in found.rows("loss") if row[2] == "ingest.stream"]
    assert gap[1] <= killed < gap[0], "it lies around the time when the daemon was down"
    assert found.missing == 2
    assert not found.damage
    events = found.values("session", "event")
    assert events.count(SessionEvent.ATTACHED) == 1
    assert events.count(SessionEvent.RESUMED) == 1
    assert set(found.values("step_rows", "request")) == {"request-1"}


def test_a_batch_sent_again_after_a_restart_is_taken_once(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    frame = peer.do("keep", "step_end", [[1, 1, 1, 0, ""]])
    peer.do("raw", frame)
    wait_for(lambda: daemon.client.progress(session).rows, "it is taken")
    daemon.recorded(session)
    daemon.kill()
    daemon.start()
    peer.join()
    peer.do("raw", frame)
    wait_for(lambda: daemon.client.status().ingest.repeated, "it is known")
    assert daemon.recorded(session).values("step_end", "step") == [1]


def test_what_died_while_the_daemon_was_down_is_noted(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 2, False)
    wait_for(lambda: daemon.client.progress(session).steps == 2, "they are taken")
    daemon.recorded(session)
    daemon.kill()
    peer.kill()
    daemon.start()
    info = daemon.client.sessions()[0]
    assert (info.session, info.state) == (session, "detached")
    assert "while the daemon was down" in info.reason
    found = daemon.recorded(session)
    gone = [row for row in found.rows("session") if row[1] == SessionEvent.PROCESS_GONE]
    assert "2 steps in flight" in gone[0][4]


def test_another_process_with_the_same_number_is_not_the_same(yard: Yard) -> None:
    """A session file that names a process by another start: the pid was used again."""
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    daemon.kill()
    file = daemon.session_dir(session) / "session.json"
    saved = json.loads(file.read_text())
    for target in saved["targets"]:
        target["ticks"] -= 1
    file.write_text(json.dumps(saved))
    daemon.start()
    assert daemon.client.progress(session).state == "detached"
    assert peer.join() == {"op": "stop"}


def test_a_session_file_that_cannot_be_read_keeps_its_recording(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 3)
    wait_for(lambda: daemon.client.progress(session).steps == 3, "they are taken")
    daemon.recorded(session)
    daemon.kill()
    (daemon.session_dir(session) / "session.json").write_text("{")
    daemon.start()
    info = daemon.client.sessions()[0]
    assert info.state == "detached"
    assert daemon.recorded(session).values("step_begin", "step") == [1, 2, 3]


def test_two_daemons_do_not_share_directories(yard: Yard) -> None:
    first = yard.daemon().start()
    second = yard.daemon()
    second.launch()
    assert second.process is not None
    assert second.process.wait(20) == 5
    assert f"another daemon (process {first.client.status().pid})" in second.log.read_text()
    assert first.client.status().pid, "the first goes on"


def test_a_stale_socket_is_replaced_and_a_file_is_not(yard: Yard) -> None:
    daemon = yard.daemon().start()
    daemon.kill()
    assert (daemon.folder / "r" / "control.sock").exists()
    with pytest.raises(DaemonUnreachableError, match="no daemon answers"):
        daemon.client.status()
    daemon.start()
    daemon.end()
    (daemon.folder / "r" / "control.sock").write_text("mine")
    assert daemon.launch().wait(20) == 5
    assert "is no socket" in daemon.log.read_text()
    assert (daemon.folder / "r" / "control.sock").read_text() == "mine"


def test_a_busy_recording_goes_on_in_new_segments_that_can_be_read_alone(yard: Yard) -> None:
    daemon = yard.daemon(segment_bytes=8192).start()
    peer, session = attached(yard, daemon)
    peer.do("rows", "thread", [[peer.pid, "MainThread", "core.main"]])
    peer.do("rows", "meta", [[1, "model", "tiny"]])
    for first in range(1, 1001, 100):
        peer.do("steps", first, 100)
        wait_for(lambda: daemon.client.progress(session).steps == first + 99, "they are taken")  # noqa: B023
        daemon.recorded(session)  # so that they are written, and not together with the next
    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == list(range(1, 1001))
    assert len(found.rows("thread")) == 1, "what later segments restate is not told twice"
    assert len(found.rows("step_rows")) == 1
    segments = sorted(daemon.session_dir(session).glob("*.gpcf"))
    assert len(segments) > 3
    alone = recorded_at(segments[-1])
    assert alone.values("thread", "role") == ["core.main"]
    assert alone.values("step_rows", "request") == ["request-1"]
    assert {row[0] for row in alone.rows("stream")} == {1, 2, 3}
    assert "model" in alone.values("meta", "key")
    assert SessionEvent.ATTACHED in alone.values("session", "event")


def _taken(daemon: DaemonProcess, session: str, steps: int) -> bool:
    return daemon.client.progress(session).steps == steps


def test_the_oldest_segments_go_first_and_the_recording_says_so(yard: Yard) -> None:
    daemon = yard.daemon(
        segment_bytes=8192, session_max_bytes=40_000, total_max_bytes=400_000
    ).start()
    begun_ns = time.monotonic_ns()
    peer, session = attached(yard, daemon)
    for taken in range(100, 3001, 100):
        # What is written at once is in one segment: all of it would be too much to keep.
        peer.do("steps", taken - 99, 100)
        wait_for(functools.partial(_taken, daemon, session, taken), "it is taken")
        daemon.recorded(session)  # which has it written
    wait_for(lambda: daemon.client.status().store.deleted_segments, "segments are deleted")
    wait_for(lambda: daemon.recorded(session).lost("store.retention"), "the loss is recorded")
    found = daemon.recorded(session)
    ended_ns = time.monotonic_ns()
    steps = found.values("step_begin", "step")
    assert steps[-1] == 3000
    assert steps == list(range(steps[0], 3001)), "only the oldest are gone"
    assert steps[0] > 1
    assert set(found.values("step_rows", "request")) == {"request-1"}
    losses = [row for row in found.rows("loss") if row[2] == "store.retention"]
    # Each step began and ended in a row of its own.
    assert sum(count for *_, count in losses) >= 2 * (steps[0] - 1)
    for t_ns, since_ns, *_ in losses:
        assert begun_ns <= since_ns < t_ns <= ended_ns


def test_a_copy_of_a_session_is_a_recording(yard: Yard) -> None:
    daemon = yard.daemon(segment_bytes=8192).start()
    peer, session = attached(yard, daemon)
    for first in range(1, 501, 100):
        peer.do("steps", first, 100)
    wait_for(lambda: daemon.client.progress(session).steps == 500, "all is taken")
    copy = yard.folder / "copy.gpcf"
    with copy.open("wb") as out:
        size = daemon.client.copy_session(session, out)
    assert copy.stat().st_size == size
    assert recorded_at(copy).values("step_begin", "step") == list(range(1, 501))


def test_idle_daemon_reads_nothing_twice(yard: Yard) -> None:
    daemon = yard.daemon().start()
    peer, session = attached(yard, daemon)
    peer.do("steps", 1, 5)
    wait_for(lambda: daemon.client.progress(session).steps == 5, "they are taken")
    first = Recorded(daemon.client.open_session(session))
    second = Recorded(daemon.client.open_session(session))
    assert first.rows("step_begin") == second.rows("step_begin")
