# SPDX-License-Identifier: Apache-2.0
"""What the installed service may do, what others may do with it, and what nobody may.

``SECURITY.md`` names these tests beside what it promises.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.service_kit import (
    PROGRAM,
    STRANGER,
    UNIT,
    as_user,
    attach,
    command,
    main_pid,
    show,
    start_waiter,
    status,
    waits,
    write,
)
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from tests.system.machine import Machine

pytestmark = [pytest.mark.system, pytest.mark.kernel]

CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF = 2, 19, 38, 39
_FOUR = sum(1 << bit for bit in (CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF))
_MOST_EXPOSURE = 3.0

# A process that becomes root's when it is told to.
_RISES = """
import os, time
while not os.path.exists("/run/rise"):
    time.sleep(0.01)
os.execv("/opt/risen", ["risen", "60"])
"""


def process_status(machine: Machine, path: str) -> dict[str, str]:
    text = machine.run("cat", f"/proc/{path}/status")
    return {
        name: value.strip() for name, _, value in (s.partition(":") for s in text.splitlines())
    }


def sessions_of(machine: Machine, uid: int) -> list[dict[str, Any]]:
    """The sessions that a member of the group is told of."""
    text, _, code = as_user(machine, PROGRAM, "status", "--format", "json", uid=uid).rpartition(
        "\n"
    )
    assert code == "0", text
    found: list[dict[str, Any]] = json.loads(text)["sessions"]
    return found


def test_systemd_analyze_finds_little_exposure(
    service: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    text = service.run("systemd-analyze", "security", "--no-pager", UNIT)
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert match is not None, text
    left = [line[:58].rstrip() for line in text.splitlines() if line.startswith("✗")]
    with capsys.disabled():
        sys.stdout.write(f"\nexposure {match[1]} (at most {_MOST_EXPOSURE}); it rests on\n")
        sys.stdout.write("\n".join(left) + "\n")
    assert float(match[1]) <= _MOST_EXPOSURE


def test_every_thread_has_four_capabilities_and_no_way_to_more(service: Machine) -> None:
    attach(service)  # the thread for slow looks starts with the first session
    pid = main_pid(service)
    threads = service.run("ls", f"/proc/{pid}/task").split()
    wait_for(lambda: len(service.run("ls", f"/proc/{pid}/task").split()) > 1, "more threads")
    for tid in threads:
        found = process_status(service, f"{pid}/task/{tid}")
        for name in ("CapEff", "CapPrm", "CapBnd"):
            assert int(found[name], 16) == _FOUR, (tid, name)
        for name in ("CapInh", "CapAmb"):
            assert int(found[name], 16) == 0, (tid, name)
        assert found["NoNewPrivs"] == "1"
        assert found["Seccomp"] == "2", "a filter"


def test_the_kernel_probes_loaded_in_the_sandbox_see_waits(service: Machine) -> None:
    told = status(service)
    assert told["kernel"]["backend"] == "libbpf"
    # The machine has process ids of its own; nothing else may be missing.
    missing = [one for one in told["capabilities"] if one["state"] == "degraded"]
    assert {one["source"] for one in missing} <= {"ebpf.pidns"}, missing
    seen = {one["source"] for one in told["capabilities"] if one["state"] == "on"}
    assert {"ebpf.sched", "ebpf.faults"} <= seen
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")


def test_its_files_are_read_only_but_for_its_own(service: Machine) -> None:
    inside = ["nsenter", "-t", main_pid(service), "-m"]
    for path in (
        "/usr/x",
        "/etc/x",
        "/etc/gpucorrelate/x",
        "/opt/x",
        "/sys/kernel/x",
        "/var/lib/x",
        "/var/log/x",
    ):
        told = service.run(*inside, "sh", "-c", f"touch {path} 2>&1", check=False)
        assert "Read-only file system" in told or "Permission denied" in told, (path, told)
    assert service.run(*inside, "sh", "-c", "ls -A /home /root 2>/dev/null") in (
        "",
        "/home:\n\n/root:",
    )
    for path in ("/var/lib/gpucorrelate/x", "/run/gpucorrelate/x"):
        service.run(*inside, "sh", "-c", f"touch {path} && rm {path}")


def test_sockets_and_recordings_have_their_owners(service: Machine) -> None:
    attach(service)
    listing = service.run("stat", "-c", "%a %U %G %n", "/run/gpucorrelate/control.sock",
                          "/run/gpucorrelate/ingest.sock", "/var/lib/gpucorrelate",
                          "/var/lib/gpucorrelate/sessions")  # fmt: skip
    assert listing.splitlines() == [
        "660 root gpucorrelate /run/gpucorrelate/control.sock",
        "666 root gpucorrelate /run/gpucorrelate/ingest.sock",
        "750 root gpucorrelate /var/lib/gpucorrelate",
        "700 root gpucorrelate /var/lib/gpucorrelate/sessions",
    ]
    found = service.run("find", "/var/lib/gpucorrelate/sessions", "-mindepth", "1",
                        "-printf", "%y %m %u %g\n")  # fmt: skip
    assert set(found.splitlines()) == {"d 750 root gpucorrelate", "f 640 root gpucorrelate"}
    # Membership is for the socket: it does not open the recordings of all.
    assert as_user(service, "ls", "/var/lib/gpucorrelate/sessions").endswith("\n2")


def test_a_user_outside_the_group_is_refused(service: Machine) -> None:
    told = as_user(service, PROGRAM, "status", member=False)
    assert "not permitted to use /run/gpucorrelate/control.sock" in told
    assert "usermod -aG gpucorrelate" in told
    assert told.endswith("\n4")


def test_a_member_traces_its_own_processes_and_sees_only_those(service: Machine) -> None:
    roots = attach(service)
    pid = start_waiter(service, "theirs", STRANGER)
    assert as_user(service, PROGRAM, "attach", "--pid", pid, "--detach").endswith("\n0")
    (mine,) = sessions_of(service, STRANGER)
    assert mine["uid"] == STRANGER
    assert {s["session"] for s in status(service)["sessions"] if s["state"] == "attached"} == {
        roots,
        mine["session"],
    }
    # Another member of the group sees neither.
    assert sessions_of(service, STRANGER + 1) == []
    for uid, session in ((STRANGER, roots), (STRANGER + 1, mine["session"])):
        for words in (["detach", "--session", session], ["report", "--session", session]):
            told = as_user(service, PROGRAM, *words, uid=uid)
            assert told.endswith("\n4"), told
            assert "belongs to another user" in told
    root_pid = show(service, "MainPID", "waiter")
    told = as_user(service, PROGRAM, "attach", "--pid", root_pid, "--detach")
    assert told.endswith("\n4"), told
    told = as_user(service, PROGRAM, "attach", "--pid", pid, "--detach", uid=STRANGER + 1)
    assert told.endswith("\n4"), told
    # Here the kernel's process ids are not the machine's, so that of two sessions neither gets
    # its waits: the tests of the daemon without one do that.
    command(service, "detach", "--session", roots)
    wait_for(lambda: waits(service, mine["session"]) > 50, "its waits are recorded")
    service.run("systemctl", "stop", "theirs")


def test_a_process_that_becomes_another_users_is_let_go(service: Machine) -> None:
    service.run("install", "-m", "4755", "/usr/bin/sleep", "/opt/risen")
    service.run("rm", "-f", "/run/rise")
    write(service, "/opt/waiter.py.rises", _RISES)
    who = [f"--uid={STRANGER}", f"--gid={STRANGER}", "--unit", "theirs"]
    service.run("systemd-run", "--collect", *who, "/usr/bin/python3", "/opt/waiter.py.rises")
    pid = show(service, "MainPID", "theirs")
    assert as_user(service, PROGRAM, "attach", "--pid", pid, "--detach").endswith("\n0")
    assert process_status(service, pid)["Uid"].split() == [str(STRANGER)] * 4
    service.run("touch", "/run/rise")

    def ended() -> list[dict[str, Any]]:
        found = sessions_of(service, STRANGER)
        return [s for s in found if s["root_pid"] == int(pid) and s["state"] == "detached"]

    (session,) = wait_for(ended, "the session of what is root's now ends")
    assert process_status(service, pid)["Uid"].split()[1] == "0", "it runs on, as root"
    assert not session["processes"][0]["alive"]
    assert status(service)["kernel"]["targets"] == 0
    service.run("systemctl", "stop", "theirs")


def test_what_a_client_gets_are_open_files_and_never_a_place(service: Machine) -> None:
    """A member reads its recording though no path to it is open to that user."""
    pid = start_waiter(service, "theirs", STRANGER)
    told = as_user(service, PROGRAM, "attach", "--pid", pid, "--detach")
    assert told.endswith("\n0"), told
    (session,) = [s["session"] for s in sessions_of(service, STRANGER) if s["state"] == "attached"]
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")
    place = f"/var/lib/gpucorrelate/sessions/{session}"
    assert as_user(service, "ls", place).endswith("\n2")
    told = as_user(service, PROGRAM, "tables", "osrt_sum", "--session", session)
    assert told.endswith("\n0"), told
    assert "futex" in told
    # Names are looked up among the sessions, never on the disk.
    for name in (place, f"../sessions/{session}", "..", "/etc/passwd"):
        told = as_user(service, PROGRAM, "report", "--session", name)
        assert told.endswith("\n3"), told
    service.run("systemctl", "stop", "theirs")


def test_it_cannot_take_the_machine_from_the_engines(service: Machine) -> None:
    assert show(service, "MemoryMax") == str(1 << 30)
    assert show(service, "TasksMax") == "64"
    assert show(service, "CPUQuotaPerSecUSec") == "1s"
    assert int(service.run("cat", f"/proc/{main_pid(service)}/oom_score_adj")) > 0
    assert "settings are right" in command(service, "daemon", "--check-config")
