# SPDX-License-Identifier: Apache-2.0
"""The installed service's settings file, its reload, and its log in a real journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.system.service_kit import (
    CONFIG,
    PROGRAM,
    UNIT,
    attach,
    command,
    is_active,
    main_pid,
    show,
    status,
    waits,
    write,
)
from tests.unit.daemon_kit import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

_DEFAULT = (ROOT / "systemd" / "config.toml").read_text()

pytestmark = [pytest.mark.system, pytest.mark.kernel]


@pytest.fixture
def config(machine: Machine) -> Iterator[Machine]:
    """The machine, whose settings file is put back afterwards."""
    yield machine
    machine.run("systemctl", "stop", UNIT, check=False)
    write(machine, CONFIG, _DEFAULT)
    machine.run("chmod", "644", CONFIG)
    machine.run("systemctl", "reset-failed", check=False)


def start(machine: Machine) -> None:
    machine.run("systemctl", "start", UNIT)
    assert is_active(machine)


def entries(machine: Machine, since: str) -> list[tuple[int, str]]:
    """Priority and text of what the service's own process has logged since a cursor."""
    fields = [
        "journalctl",
        "-b",
        "--no-pager",
        "-o",
        "json",
        "-u",
        UNIT,
        f"--after-cursor={since}",
    ]
    found = [json.loads(line) for line in machine.run(*fields).splitlines()]
    return [
        (int(one["PRIORITY"]), str(one["MESSAGE"]))
        for one in found
        if one.get("_TRANSPORT") == "stdout"
    ]


def cursor(machine: Machine) -> str:
    machine.run("journalctl", "--sync")
    shown = machine.run("journalctl", "-b", "--no-pager", "-n", "0", "--show-cursor")
    return shown.partition("cursor: ")[2].strip()


def warnings(machine: Machine) -> str:
    return "\n".join(status(machine)["warnings"])


def reload(machine: Machine) -> None:
    machine.run("systemctl", "reload", UNIT)
    wait_for(lambda: show(machine, "ActiveState") == "active", "it is ready again")


def test_the_default_file_is_installed_and_taken(config: Machine) -> None:
    assert config.run("cat", CONFIG) == _DEFAULT.strip()
    assert command(config, "daemon", "--check-config") == f"{CONFIG}: settings are right"
    start(config)


def test_wrong_settings_are_one_line_and_no_restarts(config: Machine) -> None:
    write(config, CONFIG, "tick_ms = 20\nring_bytes = false\n")
    told = config.run("sh", "-c", f"{PROGRAM} daemon --check-config 2>&1; echo $?")
    line = f"{CONFIG}:2: ring_bytes = false: must be a whole number"
    assert line in told
    assert told.endswith("\n2")
    since = cursor(config)
    config.run("systemctl", "start", UNIT, check=False)
    wait_for(lambda: show(config, "ActiveState") == "failed", "it gives up")
    assert show(config, "ExecMainStatus") == "2"
    assert show(config, "NRestarts") == "0"
    texts = [text for _, text in entries(config, since)]
    assert sum(line in text for text in texts) == 1
    assert "Traceback" not in "\n".join(texts)


def test_a_file_that_others_can_change_is_refused(config: Machine) -> None:
    config.run("chmod", "666", CONFIG)
    told = config.run("sh", "-c", f"{PROGRAM} daemon --check-config 2>&1; echo $?")
    assert "others than root can change it" in told
    assert told.endswith("\n4")


def test_a_reload_takes_what_it_can_and_names_the_rest(config: Machine) -> None:
    start(config)
    pid = main_pid(config)
    since = cursor(config)
    write(config, CONFIG, 'tick_ms = 10\nring_bytes = "4 MiB"\n[limits]\nsessions = 3\n')
    reload(config)
    wait_for(lambda: "need a restart: ring_bytes" in warnings(config), "the status says it")
    assert main_pid(config) == pid
    said = [(p, t) for p, t in entries(config, since) if "settings" in t]
    assert said == [
        (4, "settings reloaded; changed: tick_ms, limits.sessions; needs a restart: ring_bytes")
    ]
    assert "need a restart: ring_bytes" in show(config, "StatusText")
    config.run("systemctl", "restart", UNIT)
    assert warnings(config) == ""


def test_a_bad_reload_keeps_the_old_settings_and_says_so(config: Machine) -> None:
    start(config)
    pid = main_pid(config)
    since = cursor(config)
    write(config, CONFIG, "tick_ms = 10\n\ntik_ms = 10\n")
    reload(config)
    wait_for(lambda: "not reloaded, the old ones stay" in warnings(config), "the status says it")
    assert f"{CONFIG}:3: unknown setting 'tik_ms'; did you mean 'tick_ms'?" in warnings(config)
    assert main_pid(config) == pid
    said = [(p, t) for p, t in entries(config, since) if "settings" in t]
    assert len(said) == 1
    assert said[0][0] == 3, "an error"
    write(config, CONFIG, "tick_ms = 10\n")
    reload(config)
    wait_for(lambda: warnings(config) == "", "mended, nothing is left to say")


def test_the_journal_has_a_priority_for_every_line(config: Machine) -> None:
    since = cursor(config)
    write(config, CONFIG, "ebpf = false\n")
    start(config)
    found = entries(config, since)
    by_text = {text.split(":")[0]: priority for priority, text in found}
    assert by_text["kernel probes are off"] == 4
    (served,) = [priority for priority, text in found if text.startswith("serving on ")]
    assert served == 6
    assert not [text for _, text in found if text.startswith(("<", "INFO", "WARNING"))]
    config.run("systemctl", "stop", UNIT)
    since = cursor(config)
    write(config, CONFIG, 'ebpf = false\nlog_level = "error"\n')
    start(config)
    assert entries(config, since) == []


@pytest.mark.bcc
def test_the_other_backend_works_in_the_sandbox_too(config: Machine) -> None:
    """Its compiler runs within the sandbox as well."""
    write(config, CONFIG, 'backend = "bcc"\nrequire_ebpf = true\n')
    started = config.run("systemctl", "start", UNIT, check=False)
    assert is_active(config), started + config.log(UNIT)
    told = status(config)["kernel"]
    assert told["backend"] == "bcc"
    assert told["state"] in ("on", "degraded"), config.log(UNIT)
    session = attach(config)
    wait_for(lambda: waits(config, session) > 50, "waits are recorded")
    config.run("systemctl", "stop", "waiter")


def test_what_strangers_cause_does_not_fill_the_journal(config: Machine) -> None:
    """A connection that is turned away is a line; a thousand of them are not a thousand."""
    write(config, CONFIG, 'log_level = "debug"\n')
    start(config)
    since = cursor(config)
    # Each reload is an event; a hundred of the same kind come from one place in the code.
    write(config, CONFIG, "nonsense\n")
    for _ in range(60):
        config.run("kill", "-HUP", main_pid(config))
        wait_for(lambda: show(config, "ActiveState") == "active", "it is ready again")
    wait_for(lambda: "not reloaded" in warnings(config), "the last is seen")
    said = [text for _, text in entries(config, since) if "not reloaded" in text]
    assert 1 <= len(said) <= 20
    config.run("systemctl", "stop", UNIT)
    assert "more messages like the ones before" in config.log(UNIT)
