# SPDX-License-Identifier: Apache-2.0
"""Processes that are surely gone when they are told to stop."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Return once the condition holds.

    Raises:
        TimeoutError: it does not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.05)


def _die_with_parent() -> None:
    # A test run that is killed must not leave servers behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def members(session: int) -> list[int]:
    """The live processes of a session, its leader included."""
    found = []
    for process in psutil.process_iter():
        try:
            same = os.getsid(process.pid) == session
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.Error):
            continue
        if same and alive:
            found.append(process.pid)
    return found


class ManagedProcess:
    """A command in a session of its own, its output in a log file.

    Everything the command starts stays in its session, so :meth:`stop` finds it all.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.command = tuple(command)
        self.log_path = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Process id of the command, which leads its session."""
        return self._popen.pid

    def running(self) -> bool:
        """Whether the command has not ended."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while it runs."""
        return self._popen.poll()

    def log_tail(self, lines: int = 30) -> str:
        """The end of its output."""
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        return self._popen.wait(timeout_s)

    def stop(self, *, grace_s: float = 20.0) -> int:
        """End it and everything it started; returns its exit code.

        SIGTERM first, SIGKILL for the whole session after ``grace_s``.

        Raises:
            TimeoutError: something in the session survived SIGKILL for 10 s.
        """
        if self.running():
            # A stopped process would not see SIGTERM.
            self._popen.send_signal(signal.SIGCONT)
            self._popen.terminate()
            try:
                self._popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        code = self._popen.wait(10)
        deadline = time.monotonic() + 10
        while left := members(self.pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.command[0]}: {left} survived SIGKILL")
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        return code
