# SPDX-License-Identifier: Apache-2.0
"""What the daemon does with its host: privileges it gives up, and the service manager."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpucorrelate.daemon import privileges
from gpucorrelate.daemon.notify import Notifier
from gpucorrelate.probes.host import procfs
from tests.unit.daemon_kit import ROOT, Yard, wait_for


def _kept() -> int:
    return sum(1 << bit for bit in privileges.KEPT.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: there is nothing to give up")
def test_a_root_daemon_keeps_four_capabilities_and_still_records(yard: Yard) -> None:
    daemon = yard.daemon().start()
    status = daemon.client.status()
    mine = procfs.read_status(os.getpid())
    assert mine is not None
    for tid in procfs.thread_ids(status.pid):
        told = procfs.read_status(status.pid, tid)
        assert told is not None
        assert told.cap_effective == mine.cap_effective & _kept()
    assert "CAP_BPF" in status.privileges
    assert "keep" not in status.privileges
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("steps", 1, 1)
    wait_for(lambda: daemon.client.progress(session).steps == 1, "it records")
    assert daemon.end() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: there is nothing to keep")
def test_privileges_can_be_kept(yard: Yard) -> None:
    daemon = yard.daemon(drop_privileges=False).start()
    mine, told = procfs.read_status(os.getpid()), procfs.read_status(daemon.client.status().pid)
    assert mine is not None
    assert told is not None
    assert told.cap_effective == mine.cap_effective


def test_dropping_without_any_is_harmless() -> None:
    """In a child, since there is no way back."""
    script = (
        "import os\n"
        "os.geteuid() == 0 and os.setuid(65534)\n"
        "from gpucorrelate.daemon import privileges\n"
        "print(privileges.drop().text)\n"
    )
    pid_free = {**os.environ, "PYTHONPATH": str(ROOT)}
    if os.geteuid() == 0:
        # The interpreter may be out of another user's reach: import first.
        script = "from gpucorrelate.daemon import privileges\n" + script
    done = subprocess.run(
        [sys.executable, "-c", script], env=pid_free, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no capabilities" in done.stdout


class Manager:
    """Listens as systemd would."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.settimeout(20)
        self.sock.bind(path)

    def hear(self) -> str:
        return self.sock.recv(4096).decode()


def test_the_service_manager_hears_ready_alive_and_stopping(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(yard.folder / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(yard.folder / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    daemon = yard.daemon().start()
    try:
        assert manager.hear().startswith("READY=1\n")
        fed = 0
        while fed < 2:
            heard = manager.hear()
            assert heard == "WATCHDOG=1" or heard.startswith("STATUS=")
            fed += heard == "WATCHDOG=1"
        assert daemon.end() == 0
        while heard == "WATCHDOG=1" or heard.startswith("STATUS="):
            heard = manager.hear()
        assert heard == "STOPPING=1\nSTATUS=closing recordings"
    finally:
        manager.sock.close()


def test_without_a_service_manager_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier()
    notifier.ready("x")
    notifier.alive()
    notifier.stopping()


def test_an_abstract_notify_socket_and_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = f"gpucorrelate-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    Notifier().ready("hello")
    assert manager.hear() == "READY=1\nSTATUS=hello"
    manager.sock.close()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    Notifier().ready("hello")


def test_a_watchdog_meant_for_another_process_is_not_fed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = Manager(str(tmp_path / "n"))
    manager.sock.settimeout(0.2)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    notifier = Notifier()
    time.sleep(0.01)
    notifier.alive()
    with pytest.raises(TimeoutError):
        manager.hear()
    manager.sock.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def leave_descriptors(pid: int, count: int) -> None:
    """Let a process have so many more descriptors, besides those it keeps for itself."""
    used = 1 + max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 32 + count, most))


def test_a_daemon_out_of_descriptors_turns_callers_away_and_serves_again(yard: Yard) -> None:
    daemon = yard.daemon().start()
    pid = daemon.client.status().pid
    leave_descriptors(pid, 3)
    callers = []
    for _ in range(8):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(daemon.client.path))
        callers.append(sock)
    wait_for(lambda: "too many open files" in daemon.log.read_text(), "they are turned away")
    before, started = _cpu_s(pid), time.monotonic()
    time.sleep(0.5)
    assert (_cpu_s(pid) - before) / (time.monotonic() - started) < 0.5, "it does not spin"
    assert daemon.client.status().pid, "who was there before is served"
    for sock in callers:
        sock.close()
    daemon.client.close()
    assert daemon.client.status().pid


def test_a_process_that_cannot_be_watched_by_descriptor_is_watched_in_procfs(yard: Yard) -> None:
    daemon = yard.daemon().start()
    parent = yard.peer(daemon)
    parent.join()
    session = daemon.client.attach(parent.pid).session.session
    leave_descriptors(daemon.client.status().pid, 0)
    child = parent.do("spawn")

    def alive() -> bool | None:
        return {p.pid: p.alive for p in daemon.client.sessions()[0].processes}.get(child)

    wait_for(lambda: alive() is True, "the child is found, without a descriptor for it")
    parent.do("end")
    wait_for(lambda: alive() is False, "its end is seen")
    assert daemon.client.progress(session).state == "attached"


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: priorities cannot be raised")
def test_the_daemon_runs_before_what_it_watches(yard: Yard) -> None:
    daemon = yard.daemon().start()
    pid = daemon.client.status().pid
    assert os.getpriority(os.PRIO_PROCESS, pid) == -10
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        assert group.read_text().endswith("nice -10\n"), "it leads a session of its own"
