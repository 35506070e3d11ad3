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
import time
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
#: How often a socket's name is looked for, and how often if what took its place stays.
_LOOK_S, _LOOK_AGAIN_S = 0.5, 5.0

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

    Its folder is made where it alone is missing, for everybody to pass through.

    Args:
        path: Its path.
        mode: Its permission bits.
        group: Its group, if the system has one of that name.

    Raises:
        DaemonError: something else is there, somebody answers, or it cannot be made.
    """
    try:
        _make_folder(path.parent)
        _clear(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # The socket file gets its permissions before anybody can connect: listen comes last.
        old = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(old)
        if group:
            _give_to(group, path)
        path.chmod(mode)
        sock.listen(_BACKLOG)
        sock.settimeout(0)
    except FileNotFoundError as exc:
        raise DaemonError(
            f"cannot listen on {path}: there is no {path.parent.parent}",
            hint=f"make the folder: sudo mkdir -p {path.parent}",
        ) from exc
    except OSError as exc:
        raise DaemonError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
    return sock


def _make_folder(folder: Path) -> None:
    """Make one folder, whatever the umask; none of its parents, which others have an eye on."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(0o755)


class Listener:
    """A listening socket with a name.

    It rests when the process has no descriptor left for a caller: a connection that cannot be
    accepted stays ready, and waiting for it would be a busy loop. When its name was removed,
    as cleaners of temporary files do, nobody finds it any more, so it is made again.

    Args:
        path: Its name.
        make: Makes the listening socket there, see ``listen``.
        loop: The event loop.
        take: Called with every new connection; owns it from then on.

    Attributes:
        turned_away: Connections closed at once for want of descriptors.

    Raises:
        DaemonError: it cannot be made.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Path], socket.socket],
        loop: Loop,
        take: Callable[[socket.socket], None],
    ) -> None:
        self._path = path
        self._make = make
        self._loop = loop
        self._take = take
        self.turned_away = 0
        self._resting = False
        self._look_s = 0.0
        self._failed = ""
        self._begin(make(path))

    def tick(self) -> None:
        """A new turn: try again."""
        if self._resting:
            self._resting = False
            self._loop.add(self._sock, self._accept)
        now = time.monotonic()
        if now >= self._look_s:
            self._look_s = now + _LOOK_S
            self._look(now)

    def close(self) -> None:
        """Listen no more, and remove the name."""
        self._end()
        if _identity(self._path) == self._identity:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _begin(self, sock: socket.socket) -> None:
        self._sock = sock
        self._identity = _identity(self._path)
        self._loop.add(sock, self._accept)

    def _end(self) -> None:
        if not self._resting:
            self._loop.remove(self._sock)
        self._resting = False
        self._sock.close()

    def _look(self, now: float) -> None:
        if _identity(self._path) == self._identity:
            return
        try:
            sock = self._make(self._path)
        except DaemonError as exc:
            self._look_s = now + _LOOK_AGAIN_S
            if str(exc) != self._failed:
                log.warning("%s was removed and cannot be made again: %s", self._path, exc)
            self._failed = str(exc)
            return
        log.warning("%s was removed; it is there again", self._path)
        self._failed = ""
        self._end()
        self._begin(sock)

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
                self.turned_away += 1
                sock.close()
                continue
            sock.settimeout(0)
            self._take(sock)


def _identity(path: Path) -> tuple[int, int]:
    """What is at a path now; zeros: nothing."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _give_to(group: str, path: Path) -> None:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except KeyError:
        return
    except PermissionError:
        log.warning("%s cannot be given to group %s: it is for root alone", path, group)


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
