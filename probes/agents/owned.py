# SPDX-License-Identifier: Apache-2.0
"""Descriptors in somebody else's process: used and closed only while they are still ours.

A host program may close every descriptor it does not know (the daemonising idiom) and get the
same numbers for files of its own. What was opened here is told by its inode, which pipes and
sockets have one each of.
"""

from __future__ import annotations

import os

from gpucorrelate.probes.agents.hot import identity


class Owned:
    """A descriptor that was opened here."""

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = identity(fd)

    @property
    def ours(self) -> bool:
        """Whether the number still means what was opened here."""
        try:
            return identity(self.fd) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless it is somebody else's by now."""
        if self.ours:
            os.close(self.fd)


class Wake:
    """A pipe that ends a thread's sleep. Any thread may ring; one thread sleeps on it."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = self._open()

    @staticmethod
    def _open() -> tuple[Owned, Owned]:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return Owned(read), Owned(write)

    @property
    def fd(self) -> int:
        """The end to sleep on."""
        return self._ends[0].fd

    @property
    def ours(self) -> bool:
        """Whether both ends are still ours."""
        return self._ends[0].ours and self._ends[1].ours

    def renew(self) -> None:
        """Another pipe; of the old one only what is still ours is closed."""
        self.close()
        self._ends = self._open()

    def ring(self) -> None:
        """End the sleep, or the next one. Never blocks; a full pipe rings already."""
        if self._ends[1].ours:
            try:
                os.write(self._ends[1].fd, b"\0")
            except OSError:
                return

    def heard(self) -> None:
        """Forget the rings so far."""
        if self._ends[0].ours:
            try:
                os.read(self._ends[0].fd, 4096)
            except OSError:
                return

    def close(self) -> None:
        """Give both ends back."""
        for end in self._ends:
            end.close()
