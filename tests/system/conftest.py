# SPDX-License-Identifier: Apache-2.0
"""One machine for all tests of the service, with what ``make install`` puts on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.faults_kit import Engine
from tests.system.machine import Machine, why_not
from tests.system.service_kit import DROP_IN, UNIT, USERS, WAITER, is_active
from tests.unit.daemon_kit import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.daemon_kit import DaemonProcess


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def engine_of() -> Iterator[Callable[[DaemonProcess], Engine]]:
    made: list[Engine] = []

    def make(daemon: DaemonProcess) -> Engine:
        made.append(Engine(daemon))
        return made[-1]

    yield make
    for engine in made:
        engine.kill()


@pytest.fixture(scope="session")
def installed() -> Iterator[Path]:
    """A folder with what ``make install`` makes for another machine."""
    if reason := why_not():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="gpci"))
    folder.chmod(0o755)
    make("install", f"DESTDIR={folder}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def machine(installed: Path) -> Iterator[Machine]:
    files = {
        f"/etc/systemd/system/{UNIT}.d/test.conf": DROP_IN,
        "/opt/waiter.py": WAITER,
        "/etc/sysusers.d/test.conf": USERS,
    }
    with Machine(files, installed) as made:
        made.run("systemd-sysusers")
        made.run("systemd-tmpfiles", "--create", "gpucorrelate.conf")
        yield made


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    machine.run("systemctl", "reset-failed", check=False)
    started = machine.run("systemctl", "start", UNIT, check=False)
    assert is_active(machine), started + machine.log(UNIT)
    yield machine
    machine.run("systemctl", "stop", UNIT, "waiter", "theirs", check=False)
    machine.run("systemctl", "reset-failed", check=False)
