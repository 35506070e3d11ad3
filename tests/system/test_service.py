# SPDX-License-Identifier: Apache-2.0
"""The service unit under a real systemd: readiness, sandbox, watchdog, restarts, stop."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.probes.wire.schema import SessionEvent
from tests.system.machine import Machine, why_not
from tests.unit.daemon_kit import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.kernel]

_COMMAND = "from gpucorrelate.cli.main import main; main()"

# Only what depends on where things are installed, and shorter times.
_DROP_IN = f"""
[Service]
ExecStart=
ExecStart={sys.executable} -c "{_COMMAND}" daemon
Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1
WatchdogSec=2s
RestartSec=100ms
"""

_WAITER = """
import threading, time
lock = threading.Lock()
def hold():
    while True:
        with lock:
            time.sleep(0.01)
        time.sleep(0.002)
threading.Thread(target=hold, daemon=True).start()
while True:
    with lock:
        pass
    time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    unit = "/etc/systemd/system/gpucorrelate.service"
    files = {
        unit: (ROOT / "systemd" / "gpucorrelate.service").read_text(),
        f"{unit}.d/test.conf": _DROP_IN,
        "/usr/lib/sysusers.d/gpucorrelate.conf": (
            ROOT / "systemd" / "gpucorrelate.sysusers"
        ).read_text(),
        "/opt/waiter.py": _WAITER,
    }
    with Machine(files) as made:
        yield made


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    started = machine.run("systemctl", "start", "gpucorrelate", check=False)
    assert machine.run("systemctl", "is-active", "gpucorrelate", check=False) == "active", (
        started + machine.log("gpucorrelate")
    )
    yield machine
    machine.run("systemctl", "stop", "gpucorrelate", "waiter", check=False)
    machine.run("systemctl", "reset-failed", check=False)


def command(machine: Machine, *arguments: str) -> str:
    return machine.run(sys.executable, "-c", _COMMAND, *arguments)


def status(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(machine, "status", "--format", "json"))
    return found


def main_pid(machine: Machine) -> str:
    return machine.run("systemctl", "show", "-P", "MainPID", "gpucorrelate")


def started_again(machine: Machine, old: str) -> None:
    wait_for(lambda: main_pid(machine) not in (old, "0"), "it is started again")
    wait_for(
        lambda: machine.run("systemctl", "is-active", "gpucorrelate", check=False) == "active",
        "it is ready",
    )


def attach(machine: Machine) -> str:
    """Attach to a process of the machine that waits a lot; the session's id."""
    start = ["systemd-run", "--collect", "--unit", "waiter", sys.executable, "/opt/waiter.py"]
    machine.run(*start)
    pid = machine.run("systemctl", "show", "-P", "MainPID", "waiter")
    command(machine, "attach", "--pid", pid, "--detach")
    (session,) = [s for s in status(machine)["sessions"] if s["state"] == "attached"]
    name: str = session["session"]
    return name


def waits(machine: Machine, session: str) -> int:
    """Waits in a session's recording up to now."""
    script = (
        "from gpucorrelate.daemon.client import Client\n"
        "from gpucorrelate.probes.wire.schema import BY_NAME\n"
        f"items = Client().open_session({session!r})\n"
        "kind = BY_NAME['wait'].id\n"
        "print(sum(i.count for i in items if getattr(i, 'kind', 0) == kind))\n"
    )
    return int(machine.run(sys.executable, "-c", script))


def events(machine: Machine, session: str) -> list[int]:
    script = (
        "from tests.unit.daemon_kit import Recorded\n"
        "from gpucorrelate.daemon.client import Client\n"
        f"print(Recorded(Client().open_session({session!r})).values('session', 'event'))\n"
    )
    found: list[int] = json.loads(machine.run(sys.executable, "-c", script))
    return found


def test_it_is_ready_when_it_says_so_and_sees_waits_from_within_its_sandbox(
    service: Machine,
) -> None:
    told = status(service)
    assert told["kernel"]["state"] in ("on", "degraded"), service.log("gpucorrelate")
    assert told["state_dir"] == "/var/lib/gpucorrelate"
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")


def test_sockets_and_recordings_have_their_owners(service: Machine) -> None:
    attach(service)
    listing = service.run("stat", "-c", "%a %U %G %n", "/run/gpucorrelate/control.sock",
                          "/run/gpucorrelate/ingest.sock")  # fmt: skip
    assert "660 root gpucorrelate /run/gpucorrelate/control.sock" in listing
    assert "666 root" in listing
    found = service.run("find", "/var/lib/gpucorrelate/sessions", "-printf", "%m %u %g %y\n")
    kinds = set(found.splitlines())
    assert {line.split()[0] for line in kinds} == {"700", "750", "640"}
    assert {line.split()[1] for line in kinds} == {"root"}
    assert service.run("stat", "-c", "%a", "/var/lib/gpucorrelate/sessions") == "700"
    # Membership is for the socket: it does not open the recordings of all.
    reader = ["setpriv", "--reuid=65534", "--regid=gpucorrelate", "--clear-groups"]
    listing = service.run(*reader, "ls", "/var/lib/gpucorrelate/sessions", check=False)
    assert listing == ""


def test_it_keeps_four_capabilities(service: Machine) -> None:
    text = service.run("grep", "CapEff", f"/proc/{main_pid(service)}/status")
    bits = int(text.split()[1], 16)
    assert bits.bit_count() <= 4
    assert bits >> 39 & 1, "CAP_BPF"


def test_killed_it_is_started_again_and_takes_the_session_up(service: Machine) -> None:
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")
    before = waits(service, session)
    old = main_pid(service)
    service.run("systemctl", "kill", "-s", "KILL", "gpucorrelate")
    started_again(service, old)
    wait_for(lambda: waits(service, session) > before, "it records on")
    assert SessionEvent.RESUMED in events(service, session)


def test_hung_it_is_ended_by_the_watchdog_and_started_again(service: Machine) -> None:
    session = attach(service)
    old = main_pid(service)
    service.run("systemctl", "kill", "-s", "STOP", "gpucorrelate")
    started_again(service, old)
    before = waits(service, session)
    wait_for(lambda: waits(service, session) > before, "it records on")
    assert "watchdog" in service.log("gpucorrelate").lower()


def test_restarted_and_stopped_it_ends_in_good_order(service: Machine) -> None:
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")
    service.run("systemctl", "restart", "gpucorrelate")
    assert SessionEvent.RESUMED in events(service, session)
    service.run("systemctl", "stop", "gpucorrelate")
    # Had systemd's patience ended first, the result were "timeout".
    assert service.run("systemctl", "show", "-P", "Result", "gpucorrelate") == "success"
    assert service.run("systemctl", "is-active", "waiter") == "active", "the engine runs on"
