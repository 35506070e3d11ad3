# SPDX-License-Identifier: Apache-2.0
"""Telling systemd how the daemon is, by the protocol of ``sd_notify(3)``."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Speaks to the service manager if one listens; otherwise does nothing."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._next_ns = 0
        # systemd kills a service that is silent for the whole time; half is what it advises.
        self._every_ns = _number(os.environ.get("WATCHDOG_USEC")) * 1000 // 2
        owner = os.environ.get("WATCHDOG_PID")
        if owner is not None and _number(owner) != os.getpid():
            self._every_ns = 0

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """The daemon goes down in good order."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Called every turn of the loop; feeds the watchdog when it is time."""
        if not self._every_ns:
            return
        now = time.monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + self._every_ns
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            try:
                sock.sendto(text.encode(), address)
            except OSError:
                # Nobody there to tell: the daemon serves all the same.
                return


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
