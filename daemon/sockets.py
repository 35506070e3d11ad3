# SPDX-License-Identifier: Apache-2.0
"""Unix sockets: making them safely, and what the kernel says about who is at the other end."""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import select
import socket
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.daemon import descriptors
from gpucorrelate.probes.wire.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpucorrelate.daemon.loop import Loop

#: ``SO_PEERPIDFD`` of asm-generic/socket.h (since Linux 6.5); Python has no name for it yet.
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("iII")
_BACKLOG = 128
_ACCEPTS_PER_TURN = 16

log = logging.getLogger(__name__)


@dataclass
class Peer:
    """Who the kernel says is at the other end.

    Attributes:
        pid: Process that connected, in this process's pid namespace; 0: not visible here.
        uid: Its effective user id when it connected.
        gid: Its effective group id.
        pidfd: Descriptor of exactly that process; -1 where the kernel gives none.
    """

    pid: int
    uid: int
    gid: int
    pidfd: int = -1

    def still_there(self) -> bool:
        """Whether the process that connected still runs; True where that cannot be told."""
        if self.pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the descriptor."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def peer_of(sock: socket.socket, *, pidfd: bool = True) -> Peer:
    """The peer of a connected socket.

    Raises:
        OSError: the kernel does not say.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    peer = Peer(pid, uid, gid)
    if pidfd:
        with contextlib.suppress(OSError):
            peer.pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return peer


def vanished(socks: Iterable[socket.socket]) -> set[socket.socket]:
    """Those at whose other end nobody is left; what they sent need not be read to know."""
    by_fd = {sock.fileno(): sock for sock in socks}
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, 0)
    return {by_fd[fd] for fd, _ in poll.poll(0)} if by_fd else set()


def listen(path: Path, *, mode: int, group: str = "") -> socket.socket:
    """A listening socket with these permissions; a stale socket of that name is replaced.

    Args:
        path: Its path.
        mode: Its permission bits.
        group: Its group, if the system has one of that name.

    Raises:
        DaemonError: something else is there, somebody answers, or it cannot be made.
    """
    try:
        _clear(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # The socket file gets its permissions before anybody can connect: listen comes last.
        old = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(old)
        if group:
            with contextlib.suppress(KeyError, PermissionError):
                os.chown(path, -1, grp.getgrnam(group).gr_gid)
        path.chmod(mode)
        sock.listen(_BACKLOG)
        sock.settimeout(0)
    except OSError as exc:
        raise DaemonError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
    return sock


class Listener:
    """A listening socket that rests when the process has no descriptor left for a caller.

    A connection that cannot be accepted stays ready, and waiting for it would be a busy loop.

    Args:
        sock: The listening socket.
        loop: The event loop.
        take: Called with every new connection; owns it from then on.
    """

    def __init__(
        self, sock: socket.socket, loop: Loop, take: Callable[[socket.socket], None]
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._take = take
        self._resting = False
        loop.add(sock, self._accept)

    def tick(self) -> None:
        """A new turn: try again."""
        if self._resting:
            self._resting = False
            self._loop.add(self._sock, self._accept)

    def close(self) -> None:
        """Listen no more."""
        if not self._resting:
            self._loop.remove(self._sock)
        self._sock.close()

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as exc:
                log.warning("cannot accept a connection: %s", exc)
                self._resting = True
                self._loop.remove(self._sock)
                return
            if descriptors.scarce(sock.fileno()):
                log.warning("turned a connection away: too many open files")
                sock.close()
                continue
            sock.settimeout(0)
            self._take(sock)


def _clear(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise DaemonError(f"cannot listen on {path}: it exists and is no socket")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise DaemonError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
    else:
        raise DaemonError(f"a daemon already answers on {path}", hint="stop it first, or use it")
    finally:
        probe.close()
