# SPDX-License-Identifier: Apache-2.0
"""A real daemon with sockets and recordings of its own."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpucorrelate.daemon.client import Client
from gpucorrelate.probes.wire.errors import GpucorrelateError
from tests.engine.processes import ManagedProcess, wait_until
from tests.engine.server import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpucorrelate.daemon.values import SessionInfo

#: The command, whether or not its script is on the path.
GPUCORRELATE = (sys.executable, "-c", "from gpucorrelate.cli.main import main; main()")

_START_TIMEOUT_S = 30.0
#: Dormant agents look for the daemon about once a second.
_AGENTS_TIMEOUT_S = 30.0


class DaemonProcess(ManagedProcess):
    """``gpucorrelate daemon`` as a child, its sockets in a folder.

    Starting another one with the same folder is a restart.
    """

    def __init__(self, folder: Path, *args: str) -> None:
        self.runtime_dir = folder / "run"
        self.state_dir = folder / "state"
        self.runtime_dir.mkdir(parents=True, exist_ok=True)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        super().__init__(
            [
                *GPUCORRELATE,
                "daemon",
                "--runtime-dir",
                str(self.runtime_dir),
                "--state-dir",
                str(self.state_dir),
                *args,
            ],
            log=folder / "daemon.log",
            env={"PYTHONPATH": str(ROOT)},
        )
        self.client = Client(self.runtime_dir / "control.sock")

    def stop(self, *, grace_s: float = 20.0) -> int:
        """End it; see ``ManagedProcess``."""
        self.client.close()
        return super().stop(grace_s=grace_s)

    def _answers(self) -> bool:
        if not self.running():
            raise RuntimeError(f"daemon ended, code {self.exit_code}:\n{self.log_tail()}")
        try:
            self.client.status()
        except GpucorrelateError:
            self.client.close()
            return False
        return True

    def wait_ready(self) -> None:
        """Return once it answers on its control socket.

        Raises:
            RuntimeError: it ended.
            TimeoutError: it does not answer.
        """
        wait_until(self._answers, timeout_s=_START_TIMEOUT_S, what="daemon answers")

    def attach(self, pid: int, *, agents: int) -> SessionInfo:
        """Attach to an engine and wait until so many of its agents are connected."""
        session = self.client.attach(pid).session
        self.wait_agents(session.session, agents)
        return session

    def wait_agents(self, session: str, agents: int) -> None:
        """Return once so many agents of a session are connected.

        Raises:
            TimeoutError: they are not.
        """
        wait_until(
            lambda: self.client.progress(session).agents >= agents,
            timeout_s=_AGENTS_TIMEOUT_S,
            what=f"{agents} agents connected",
        )


def ingest_env(folder: Path) -> dict[str, str]:
    """Environment of an engine whose agents look for the daemon of this folder."""
    return {"GPUCORRELATE_INGEST": str(folder / "run" / "ingest.sock")}


@contextmanager
def running_daemon(folder: Path, *args: str) -> Iterator[DaemonProcess]:
    """A daemon that answers, and is gone afterwards."""
    daemon = DaemonProcess(folder, *args)
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.stop()
