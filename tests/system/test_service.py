# SPDX-License-Identifier: Apache-2.0
"""The installed service under a real systemd: readiness, watchdog, restarts, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.wire.schema import SessionEvent
from tests.system.service_kit import (
    UNIT,
    attach,
    command,
    events,
    main_pid,
    show,
    started_again,
    status,
    waits,
    write,
)
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

pytestmark = [pytest.mark.system, pytest.mark.kernel]

_STUCK = "/run/stuck"
#: The installed program, with one part of it that hangs while a file is there.
_HANGS = f"""
import os, sys, time
sys.path.insert(0, "/usr/local/lib/gpucorrelate")
{{imports}}
real = {{what}}
def hangs(*arguments, **more):
    while os.path.exists("{_STUCK}"):
        time.sleep(0.02)
    return real(*arguments, **more)
{{what}} = hangs
from gpucorrelate.cli.main import main
main()
"""


@pytest.fixture
def hanging(machine: Machine) -> Iterator[Machine]:
    """Has the service run a program that hangs, once ``_STUCK`` is there."""
    place = f"/run/systemd/system/{UNIT}.d"
    machine.run("mkdir", "-p", place)
    text = "[Service]\nExecStart=\nExecStart=/usr/bin/python3 -I /opt/hangs.py daemon\n"
    write(machine, f"{place}/hangs.conf", text)
    machine.run("systemctl", "daemon-reload")
    yield machine
    machine.run("rm", "-rf", _STUCK, place, "/opt/hangs.py")
    machine.run("systemctl", "stop", UNIT, "waiter", check=False)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reset-failed", check=False)


def test_it_is_ready_when_it_says_so_and_sees_waits_from_within_its_sandbox(
    service: Machine,
) -> None:
    told = status(service)
    assert told["kernel"]["state"] in ("on", "degraded"), service.log(UNIT)
    assert told["state_dir"] == "/var/lib/gpucorrelate"
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")


def test_systemctl_status_says_how_it_is(service: Machine) -> None:
    assert "0 sessions" in show(service, "StatusText")
    attach(service)
    wait_for(lambda: "1 session, kernel probes " in show(service, "StatusText"), "it is news")
    assert "nothing lost" in show(service, "StatusText")


def test_killed_it_is_started_again_and_takes_the_session_up(service: Machine) -> None:
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")
    before = waits(service, session)
    old = main_pid(service)
    service.run("systemctl", "kill", "-s", "KILL", UNIT)
    started_again(service, old)
    wait_for(lambda: waits(service, session) > before, "it records on")
    assert SessionEvent.RESUMED in events(service, session)


def test_hung_it_is_ended_by_the_watchdog_and_started_again(service: Machine) -> None:
    session = attach(service)
    old = main_pid(service)
    service.run("systemctl", "kill", "-s", "STOP", UNIT)
    started_again(service, old)
    before = waits(service, session)
    wait_for(lambda: waits(service, session) > before, "it records on")
    assert "watchdog" in service.log(UNIT).lower()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("gpucorrelate.probes.ebpf.tracer", "Tracer.drain"),
        ("gpucorrelate.daemon.store", "SegmentStore.flush"),
        ("gpucorrelate.daemon.ingest", "Ingest.tick"),
        ("gpucorrelate.daemon.control", "Control.tick"),
    ],
)
def test_a_stage_that_hangs_ends_the_watchdogs_feed(
    hanging: Machine, module: str, name: str
) -> None:
    """Everything else goes on: the process runs, its sockets are open."""
    what = f"module.{name}"
    write(hanging, "/opt/hangs.py", _HANGS.format(imports=f"import {module} as module", what=what))
    hanging.run("systemctl", "start", UNIT)
    session = attach(hanging)
    old = main_pid(hanging)
    hanging.run("touch", _STUCK)
    wait_for(lambda: show(hanging, "NRestarts") != "0" or main_pid(hanging) != old, "it is ended")
    hanging.run("rm", _STUCK)
    started_again(hanging, old)
    log = hanging.log(UNIT)
    assert "Watchdog timeout" in log
    assert "in hangs" in log, "it says where it hung"
    before = waits(hanging, session)
    wait_for(lambda: waits(hanging, session) > before, "it records on")


def test_a_look_that_hangs_in_a_driver_does_not_end_the_feed(hanging: Machine) -> None:
    """Looks that may block have a thread of their own; what the daemon is for goes on."""
    imports = "import gpucorrelate.probes.host.numa as module"
    write(hanging, "/opt/hangs.py", _HANGS.format(imports=imports, what="module.read_topology"))
    hanging.run("systemctl", "start", UNIT)
    hanging.run("touch", _STUCK)
    session = attach(hanging)
    old = main_pid(hanging)
    period_s = float(show(hanging, "WatchdogUSec").removesuffix("s"))
    for _ in range(2):
        before = waits(hanging, session)
        hanging.run("sleep", str(period_s))
        assert waits(hanging, session) > before
    assert main_pid(hanging) == old


def test_restarted_and_stopped_it_ends_in_good_order(service: Machine) -> None:
    session = attach(service)
    wait_for(lambda: waits(service, session) > 50, "waits are recorded")
    service.run("systemctl", "restart", UNIT)
    assert SessionEvent.RESUMED in events(service, session)
    service.run("systemctl", "stop", UNIT)
    # Had systemd's patience ended first, the result were "timeout".
    assert show(service, "Result") == "success"
    assert service.run("systemctl", "is-active", "waiter") == "active", "the engine runs on"


def test_the_command_line_reaches_it_by_itself(service: Machine) -> None:
    assert "privileges" in command(service, "check")
    assert command(service, "--version").startswith("gpucorrelate")
