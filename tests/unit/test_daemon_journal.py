# SPDX-License-Identifier: Apache-2.0
"""The daemon's log: one line per event, levels that the journal knows, and never a flood."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon import journal
from gpucorrelate.daemon.notify import Notifier
from tests.unit.daemon_kit import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_LOGS = """
import logging
from gpucorrelate.daemon.journal import Journal
log = logging.getLogger("gpucorrelate.test")
made = Journal({level!r})
log.debug("a detail")
log.info("two\\nlines and \\x1b[1m")
log.warning("a warning of %d", 5)
try:
    {{}}["x"]
except KeyError:
    log.exception("agent of process 5")
log.critical("the end")
for _ in range(1000):
    log.error("flood")
made.tick(last=True)
"""


def logged(level: str, path: Path, *, is_journal: bool) -> list[str]:
    with path.open("wb") as out:
        stat = os.fstat(out.fileno())
        stream = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"} if is_journal else {}
        env = {**os.environ, "PYTHONPATH": str(ROOT), **stream}
        code = _LOGS.format(level=level)
        subprocess.run([sys.executable, "-c", code], stderr=out, check=True, env=env)
    return path.read_text().splitlines()


def test_lines_for_the_journal_begin_with_a_priority(tmp_path: Path) -> None:
    lines = logged("debug", tmp_path / "log", is_journal=True)
    assert lines[:3] == ["<7>a detail", "<6>two\\nlines and \\x1b[1m", "<4>a warning of 5"]
    assert lines[3].startswith("<3>agent of process 5: KeyError: 'x' [<module> <string>:")
    assert lines[4] == "<2>the end"


def test_elsewhere_they_begin_with_the_levels_name(tmp_path: Path) -> None:
    lines = logged("info", tmp_path / "log", is_journal=False)
    assert lines[:2] == ["INFO two\\nlines and \\x1b[1m", "WARNING a warning of 5"]


def test_what_is_below_the_level_is_not_said(tmp_path: Path) -> None:
    lines = logged("error", tmp_path / "log", is_journal=True)
    assert {line[:3] for line in lines} == {"<3>", "<2>"}


def test_a_flood_is_cut_and_counted(tmp_path: Path) -> None:
    lines = logged("info", tmp_path / "log", is_journal=True)
    floods = lines.count("<3>flood")
    assert floods == journal.BURST
    assert lines[-1] == f"<3>{1000 - floods} more messages like the ones before"


def test_a_window_that_is_over_begins_anew() -> None:
    now = 1000.0
    quiet = journal.Quiet(lambda: now)
    record = logging.LogRecord("a", logging.INFO, "file.py", 7, "text", None, None)
    passed = [quiet.filter(record) for _ in range(journal.BURST + 5)]
    assert passed.count(True) == journal.BURST
    assert quiet.overdue() == []
    now += journal.WINDOW_S + 1
    assert quiet.overdue() == [("a", logging.INFO, 5)]
    assert quiet.filter(record)


class Manager:
    """What systemd does with a service's messages."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(folder / "n"))
        self.sock.settimeout(0)
        for name, value in {"NOTIFY_SOCKET": str(folder / "n"), **env}.items():
            monkeypatch.setenv(name, value)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("n")


def test_the_manager_is_told_news_and_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(folder, monkeypatch)
    notifier = Notifier()
    notifier.ready("0 sessions")
    notifier.status("0 sessions")
    assert manager.heard() == ["READY=1\nSTATUS=0 sessions"]
    assert not notifier.wants_status(), "not at every turn"
    notifier.status("1 session,\nnothing lost")
    assert manager.heard() == ["STATUS=1 session, nothing lost"]
    notifier.alive()
    assert manager.heard() == [], "no watchdog was asked for"
    notifier.reloading()
    (told,) = manager.heard()
    assert told.startswith("RELOADING=1\nMONOTONIC_USEC=")
    manager.sock.close()


def test_the_watchdog_is_fed_for_this_process_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(folder, monkeypatch, WATCHDOG_USEC="1", WATCHDOG_PID=str(os.getpid()))
    notifier = Notifier()
    notifier.alive()
    assert manager.heard() == ["WATCHDOG=1"]
    monkeypatch.setenv("WATCHDOG_PID", "1")
    Notifier().alive()
    assert manager.heard() == []
    manager.sock.close()


def test_a_manager_that_does_not_read_holds_nothing_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(folder, monkeypatch, WATCHDOG_USEC="1", WATCHDOG_PID=str(os.getpid()))
    notifier = Notifier()
    for _ in range(2000):  # far more than a socket's queue holds
        notifier.alive()
    assert manager.heard()
    manager.sock.close()
    notifier.alive()
