# SPDX-License-Identifier: Apache-2.0
"""The installed service by way of BCC: the compiler runs in the same sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system.service_kit import CONFIG, UNIT, attach, is_active, status, waits, write
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

pytestmark = [pytest.mark.system, pytest.mark.kernel, pytest.mark.bcc]


@pytest.fixture
def by_bcc(machine: Machine) -> Iterator[Machine]:
    default = machine.run("cat", CONFIG)
    write(machine, CONFIG, 'backend = "bcc"\nrequire_ebpf = true\n')
    machine.run("systemctl", "reset-failed", check=False)
    started = machine.run("systemctl", "start", UNIT, check=False)
    assert is_active(machine), started + machine.log(UNIT)
    yield machine
    machine.run("systemctl", "stop", UNIT, "waiter", check=False)
    write(machine, CONFIG, f"{default}\n")
    machine.run("chmod", "644", CONFIG)


def test_programs_are_compiled_and_loaded_within_the_sandbox(by_bcc: Machine) -> None:
    told = status(by_bcc)
    assert told["kernel"]["backend"] == "bcc"
    assert told["kernel"]["state"] in ("on", "degraded"), by_bcc.log(UNIT)
    session = attach(by_bcc)
    wait_for(lambda: waits(by_bcc, session) > 50, "waits are recorded")
