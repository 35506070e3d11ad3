# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate top`` in a real terminal, beside a real daemon whose engine is played."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon_kit import wait_for
from tests.unit.terminal import GPUCORRELATE, Terminal, missing_tmux

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.daemon_kit import DaemonProcess, PeerProcess, Yard

pytest.importorskip("textual", reason="the extra 'top' is not installed")
pytestmark = pytest.mark.skipif(bool(missing_tmux()), reason=missing_tmux())


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as made:
        yield made


@pytest.fixture
def played(yard: Yard) -> tuple[DaemonProcess, PeerProcess, str]:
    """A daemon, an engine with a request in flight, and the session."""
    daemon = yard.daemon().start()
    peer = yard.peer(daemon)
    session = daemon.client.attach(peer.pid).session.session
    assert peer.join()["op"] == "start"
    peer.do("request", "first", ["ADMITTED"])
    return daemon, peer, session


def begun(terminal: Terminal, daemon: DaemonProcess, *more: str) -> None:
    terminal.run(f"{GPUCORRELATE} top --control {daemon.client.path} {' '.join(more)}")
    terminal.shows("ATTACHED")
    terminal.shows("IN FLIGHT 1 of 1")


def row(terminal: Terminal, words: str) -> Callable[[str], list[str]]:
    return lambda text: [line for line in text.splitlines() if words in line]


def test_keys_do_what_the_last_line_says(
    terminal: Terminal, played: tuple[DaemonProcess, PeerProcess, str], tmp_path: Path
) -> None:
    daemon, peer, session = played
    begun(terminal, daemon, "--folder", str(tmp_path))
    text = terminal.shows("first")
    assert session in text
    assert len(text.splitlines()) == 24
    assert text.splitlines()[-1].startswith("q quit  space pause  s sort")
    peer.do("request", "second", ["ADMITTED"])
    terminal.shows("IN FLIGHT 2 of 2")
    for order in ("phase", "tokens", "id", "age"):
        terminal.type("s")
        terminal.shows(f"by {order}")
    terminal.type("Down")
    terminal.until(row(terminal, "> second"), "the second is selected")
    # Paused it stands still, and nothing is missed.
    terminal.type("Space")
    terminal.shows("PAUSED")
    peer.do("request", "first", ["FINISHED"])
    wait_for(lambda: daemon.client.progress(session).requests_finished == 1, "it is recorded")
    assert "IN FLIGHT 2 of 2" in terminal.text
    terminal.type("Space")
    terminal.shows("IN FLIGHT 1 of 1")
    terminal.shows("1 ended")
    terminal.type("/")
    terminal.shows("only ids with this in them")
    terminal.type("nobody", "Enter")
    terminal.shows("IN FLIGHT 0 of 1")
    terminal.type("/")
    terminal.until(lambda text: text.splitlines()[-1].strip() == "nobody", "it can be changed")
    terminal.type("C-u", "Enter")
    terminal.shows("IN FLIGHT 1 of 1")
    terminal.type("?")
    terminal.shows("any key leaves this help")
    terminal.type("x")
    terminal.shows("IN FLIGHT")
    terminal.type("w")
    terminal.shows("written: ")
    (written,) = tmp_path.glob("*.txt")
    assert written.read_text().startswith("request second")


def test_what_it_leaves_behind_is_a_terminal_as_it_was(
    terminal: Terminal, played: tuple[DaemonProcess, PeerProcess, str]
) -> None:
    terminal.run("echo before $(stty -g | md5sum)")
    text = terminal.until(lambda text: "\nbefore " in text, "its settings")
    before = text.partition("\nbefore ")[2].split()[0]
    for end in ("q", "C-c"):
        begun(terminal, played[0])
        terminal.type(end)
        terminal.until(lambda text: "IN FLIGHT" not in text, "it is gone")
        terminal.run("echo code $? then $(stty -g | md5sum)")
        terminal.shows(f"code 0 then {before}")
        # The cursor is there, and keys are echoed.
        terminal.run("clear; echo wh''ole")
        terminal.until(lambda text: "whole" in text.splitlines(), "what is typed is run")
        terminal.run("clear")


def test_size_changes_are_followed(
    terminal: Terminal, played: tuple[DaemonProcess, PeerProcess, str]
) -> None:
    begun(terminal, played[0])
    terminal.resize(130, 45)
    terminal.until(
        lambda text: len(text.splitlines()) == 45 and "q quit" in text.splitlines()[-1],
        "it fills the larger one",
    )
    terminal.resize(50, 10)
    terminal.shows("this needs 60 columns and 16 lines")
    terminal.resize(80, 24)
    text = terminal.shows("IN FLIGHT 1 of 1")
    assert len(text.splitlines()) == 24


def test_no_color_is_obeyed(played: tuple[DaemonProcess, PeerProcess, str]) -> None:
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal(**env) as terminal:
            begun(terminal, played[0])
            terminal.until(lambda text: "unobserved 100" in text, "where the time went")
            colours = [code for code in _codes(terminal.codes) if code in _COLOURS]
            assert bool(colours) is coloured


#: Foregrounds and backgrounds, but for the terminal's own.
_COLOURS = {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}


def _codes(text: str) -> list[int]:
    found = []
    for part in text.split("\x1b[")[1:]:
        words, end, _ = part.partition("m")
        if end:
            found += [int(word) for word in words.split(";") if word.isdigit()]
    return found


def test_a_daemon_that_goes_and_a_session_that_ends_are_told(
    terminal: Terminal, played: tuple[DaemonProcess, PeerProcess, str], yard: Yard
) -> None:
    daemon, _, session = played
    begun(terminal, daemon)
    daemon.kill()
    terminal.shows("DAEMON AWAY")
    terminal.shows("note: the daemon does not answer")
    again = yard.daemon().start()
    terminal.shows("ATTACHED")
    again.client.detach(session)
    terminal.shows("ENDED")
    terminal.type("q")
    terminal.until(lambda text: "IN FLIGHT" not in text, "it is gone")


def test_an_engine_that_is_gone_is_told(
    terminal: Terminal, played: tuple[DaemonProcess, PeerProcess, str]
) -> None:
    daemon, peer, _ = played
    begun(terminal, daemon)
    os.kill(peer.pid, signal.SIGKILL)
    terminal.until(
        lambda text: "IN FLIGHT 0 of 0" in text and ("is gone" in text or "ENDED" in text),
        "it is told",
    )


def test_json_ends_when_whoever_reads_it_has_enough(
    played: tuple[DaemonProcess, PeerProcess, str],
) -> None:
    command = f"{GPUCORRELATE} top --json --interval 0.2 --control {played[0].client.path}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 2; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    first, second, code = done.stdout.splitlines()
    assert code == "141"
    assert done.stderr == ""
    assert json.loads(second)["in_flight"][0]["request_id"] == "first"
    assert json.loads(first)["t_ns"] < json.loads(second)["t_ns"]
