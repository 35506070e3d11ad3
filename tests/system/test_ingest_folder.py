# SPDX-License-Identifier: Apache-2.0
"""The ingest socket in a folder of its own, as docs/quickstart-containers.md has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system.machine import Machine
from tests.system.service_kit import CONFIG, DROP_IN, UNIT, WAITER
from tests.unit.daemon_kit import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.kernel]

_SETTING = 'ingest_socket = "/run/gpucorrelate/ingest/ingest.sock"'


def test_engines_can_be_given_a_folder_without_the_control_socket(installed: Path) -> None:
    page = (ROOT / "docs/quickstart-containers.md").read_text("utf-8")
    assert f"\n{_SETTING}\n" in page
    files = {
        f"/etc/systemd/system/{UNIT}.d/test.conf": DROP_IN,
        "/opt/waiter.py": WAITER,
    }
    with Machine(files, installed) as machine:
        machine.run("systemd-sysusers")
        machine.run("sh", "-c", f"echo '{_SETTING}' >>{CONFIG}.new; cat {CONFIG} >>{CONFIG}.new")
        machine.run("mv", f"{CONFIG}.new", CONFIG)
        machine.run("systemctl", "start", UNIT)
        assert machine.run("ls", "/run/gpucorrelate/ingest").split() == ["ingest.sock"]
        folder = machine.run("stat", "-c", "%a %U", "/run/gpucorrelate/ingest").split()
        assert folder == ["755", "root"], "for every user's engine to pass through"
        assert "control.sock" in machine.run("ls", "/run/gpucorrelate").split()
        machine.run("systemctl", "restart", UNIT)
        assert machine.run("ls", "/run/gpucorrelate/ingest").split() == ["ingest.sock"]
