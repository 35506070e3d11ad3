# SPDX-License-Identifier: Apache-2.0
"""What the tests of the service share: its commands, its state, processes to trace."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from tests.system.machine import Machine

UNIT = "gpucorrelate.service"
PROGRAM = "/usr/local/bin/gpucorrelate"
CONFIG = "/etc/gpucorrelate/config.toml"

# Shorter times, and as many restarts as there are tests.
DROP_IN = """
[Unit]
StartLimitBurst=1000
[Service]
WatchdogSec=5s
RestartSec=100ms
"""

WAITER = """
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

#: Two users, by sysusers.d(5).
STRANGER = 12345
USERS = f"u stranger {STRANGER}\nu other {STRANGER + 1}\n"


def command(machine: Machine, *arguments: str) -> str:
    """What the installed command line says to root."""
    return machine.run(PROGRAM, *arguments)


def as_user(machine: Machine, *words: str, member: bool = True, uid: int = STRANGER) -> str:
    """What a command says to another user, in the group or not; its exit code comes last."""
    who = ["setpriv", f"--reuid={uid}", f"--regid={uid}"]
    who += ["--groups=gpucorrelate"] if member else ["--clear-groups"]
    script = '"$@" 2>&1; echo $?'
    return machine.run(*who, "/bin/sh", "-c", script, "sh", *words)


def status(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(machine, "status", "--format", "json"))
    return found


def is_active(machine: Machine) -> bool:
    return machine.run("systemctl", "is-active", UNIT, check=False) == "active"


def show(machine: Machine, what: str, unit: str = UNIT) -> str:
    return machine.run("systemctl", "show", "-P", what, unit)


def main_pid(machine: Machine) -> str:
    return show(machine, "MainPID")


def started_again(machine: Machine, old: str) -> None:
    wait_for(lambda: main_pid(machine) not in (old, "0"), "it is started again")
    wait_for(lambda: is_active(machine), "it is ready")


def start_waiter(machine: Machine, unit: str = "waiter", uid: int = 0) -> str:
    """Start a process that waits a lot; its id."""
    who = [f"--uid={uid}", f"--gid={uid}"] if uid else []
    start = [
        "systemd-run",
        "--collect",
        *who,
        "--unit",
        unit,
        "/usr/bin/python3",
        "/opt/waiter.py",
    ]
    machine.run(*start)
    return show(machine, "MainPID", unit)


def attach(machine: Machine) -> str:
    """Attach to a process of the machine that waits a lot; the session's id."""
    pid = start_waiter(machine)
    assert is_active(machine), machine.log(UNIT)
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


def write(machine: Machine, path: str, text: str) -> None:
    machine.run("/bin/sh", "-c", 'printf "%s" "$1" > "$2"', "sh", text, path)
