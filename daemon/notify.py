# SPDX-License-Identifier: Apache-2.0
"""Telling systemd how the daemon is, by the protocol of ``sd_notify(3)``."""

from __future__ import annotations

import os
import socket
import time

_STATUS_NS = 1_000_000_000


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
        self._status = ""
        self._status_ns = 0

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._status = status
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """The settings are read anew; ``ready`` says when that is done."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon goes down in good order."""
        self._send("STOPPING=1\nSTATUS=closing recordings")

    def wants_status(self) -> bool:
        """Whether it is time to say again how the daemon is."""
        return bool(self._address) and time.monotonic_ns() >= self._status_ns

    def status(self, status: str) -> None:
        """How the daemon is, in a line of ``systemctl status``; sent when it is news."""
        self._status_ns = time.monotonic_ns() + _STATUS_NS
        if status != self._status:
            self._status = status
            self._send(f"STATUS={_line(status)}")

    def alive(self) -> None:
        """Called at the end of every turn; feeds the watchdog when it is time.

        Only a turn that has drained the kernel's rings, read the sockets and handed over what is
        to be written comes here: whichever of these hangs, the feed ends. A disk that hangs does
        not end it: a daemon that is started again could write no more than this one.
        """
        if not self._every_ns:
            return
        now = time.monotonic_ns()
        if now >= self._next_ns and self._send("WATCHDOG=1"):
            self._next_ns = now + self._every_ns

    def _send(self, text: str) -> bool:
        """Whether there is nobody to tell, or the message was taken."""
        if not self._address:
            return True
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # A manager that does not read must not hold up the daemon.
            sock.settimeout(0)
            try:
                sock.sendto(text.encode(), address)
            except OSError:
                # Nobody there to tell: the daemon serves all the same.
                return False
        return True


def _line(text: str) -> str:
    return " ".join(text.split())


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
