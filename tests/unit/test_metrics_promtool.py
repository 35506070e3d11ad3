# SPDX-License-Identifier: Apache-2.0
"""Prometheus's own checker has nothing to say against what the daemon serves."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon_kit import wait_for
from tests.unit.test_daemon_metrics import get, port, served

if TYPE_CHECKING:
    from tests.unit.daemon_kit import Yard

__all__ = ["port"]

_TOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(_TOOL is None, reason="promtool is not installed (prometheus)")


def check(text: str) -> tuple[int, str]:
    """The checker's exit code and what it said; its lint is among it."""
    assert _TOOL is not None
    done = subprocess.run(
        [_TOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_checker_finds_what_is_wrong() -> None:
    """Or its silence would prove nothing."""
    assert check("# TYPE a counter\na 1\n")[0] != 0
    assert check("a{b=} 1\n")[0] != 0


def test_an_idle_daemons_numbers_pass(yard: Yard, port: int) -> None:
    served(yard, port)
    assert check(get(port)[1]) == (0, "")


def test_a_recording_daemons_numbers_pass(yard: Yard, port: int) -> None:
    daemon = served(yard, port)
    peer = yard.peer(daemon)
    peer.join()
    daemon.client.attach(peer.pid)
    wait_for(lambda: daemon.client.status().ingest.started, "its agent is told")
    assert check(get(port)[1]) == (0, "")
