# SPDX-License-Identifier: Apache-2.0
"""Where a process listens: its own TCP sockets, by the kernel's word and not by its arguments'."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.procfs import PROC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: TCP_LISTEN of include/net/tcp_states.h.
_LISTEN = "0A"
_LIMIT_BYTES = 4 << 20
_MOST_FILES = 1 << 16
_SOCKET = re.compile(r"socket:\[([0-9]{1,20})\]")
_ADDRESS = re.compile(r"([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4})")


@dataclass(frozen=True)
class Listener:
    """A socket that takes connections.

    Attributes:
        host: The IP address it is bound to; ``0.0.0.0`` and ``::`` are all of the machine.
        port: Its port.
        inode: The socket's number, as file descriptors name it.
    """

    host: str
    port: int
    inode: int

    @property
    def reached_by(self) -> str:
        """An address to reach it by from the same machine."""
        address = ipaddress.ip_address(self.host)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "::1"
        return self.host


def parse_tcp(text: str) -> tuple[Listener, ...]:
    """Listening sockets in a ``/proc/net/tcp`` or ``tcp6`` file; other lines are passed over."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN or not fields[9].isdecimal():
            continue
        match = _ADDRESS.fullmatch(fields[1])
        if match is not None and len(fields[9]) <= 20:
            found.append(Listener(_address(match[1]), int(match[2], 16), int(fields[9])))
    return tuple(found)


def _address(digits: str) -> str:
    """The kernel writes addresses as words of 32 bits in the machine's byte order."""
    data = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    return str(ipaddress.ip_address(data))


def read_listeners(pid: int, root: Path = PROC) -> tuple[Listener, ...]:
    """The process's own listening TCP sockets, as far as they can be reached from here.

    None for a process in another network namespace than the caller's.
    """
    base = root / str(pid)
    try:
        if (base / "ns/net").readlink() != (root / "self/ns/net").readlink():
            return ()
    except OSError:
        return ()
    own = frozenset(_sockets(base))
    return tuple(
        one for name in ("tcp", "tcp6") for one in _listening(base / "net" / name)
        if one.inode in own
    )  # fmt: skip


def _listening(path: Path) -> tuple[Listener, ...]:
    try:
        with path.open("rb") as file:
            return parse_tcp(file.read(_LIMIT_BYTES).decode("ascii", "replace"))
    except OSError:
        return ()


def _sockets(base: Path) -> Iterator[int]:
    """Numbers of the sockets that a process has open."""
    with contextlib.suppress(OSError), os.scandir(base / "fd") as files:
        for at, file in enumerate(files):
            if at >= _MOST_FILES:
                return
            with contextlib.suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(file.path))  # noqa: PTH115 - no such path
                if match is not None:
                    yield int(match[1])
