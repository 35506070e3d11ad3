# SPDX-License-Identifier: Apache-2.0
"""Files that a poller reads again and again: held open, bounded, never through a link.

A file that reads the same as in the last round costs one system call and a comparison. That is
why pollers tell a number when it changed and not each time; ``Collected.everything`` makes
them tell all.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.reading import Missing, Reading, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpucorrelate.probes.host.kernel_text import Parsed

#: Most of a file that is read. The longest that matters, ``memory.stat``, has about 2 KiB.
LIMIT_BYTES = 64 * 1024

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without waiting, should somebody put a pipe where a file is expected.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENODEV: "the cgroup is gone",
    errno.ESRCH: "the process is gone",
    errno.EACCES: "not permitted",
    errno.EPERM: "not permitted",
    errno.ELOOP: "a link, which is not followed",
    errno.ENOTDIR: "a link or a file on the way, which is not followed",
    errno.EMFILE: "no file descriptor left",
    errno.ENFILE: "no file descriptor left on this machine",
    errno.EOPNOTSUPP: "pressure accounting is switched off",
}


def reason_of(error: OSError) -> str:
    """Why a file could not be read, for whoever misses it."""
    return _REASONS.get(error.errno or 0) or error.strerror or "cannot be read"


class Descriptors:
    """How many files a poller may hold open; the others are opened for each look.

    Args:
        most: The number.
    """

    def __init__(self, most: int = 1024) -> None:
        self._left = most

    def take(self) -> bool:
        """Whether one more may be held."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self) -> None:
        """One is closed."""
        self._left += 1


class Folder:
    """A directory held open; what lies below is reached by plain names and never by links.

    Args:
        fd: Descriptor of the directory; owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, root: Path, parts: Iterable[str] = ()) -> Folder:
        """The directory ``parts`` below ``root``; ``root`` itself may be a link.

        Raises:
            OSError: it is not there, or a link is on the way.
        """
        folder = cls(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY, dir_fd=folder.fd)
                folder.close()
                folder.fd = below
        except OSError:
            folder.close()
            raise
        return folder

    def open(self, name: str) -> int:
        """Open a plain file for reading.

        Raises:
            OSError: it cannot be opened, or is no plain file.
        """
        fd = os.open(name, _FILE, dir_fd=self.fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a plain file")
        return fd

    def read(self, name: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """The file's text, at most ``limit_bytes`` of it, in as many reads as it takes.

        Raises:
            OSError: it cannot be read.
        """
        fd = self.open(name)
        try:
            pieces: list[bytes] = []
            left = limit_bytes
            while left and (piece := os.read(fd, left)):
                pieces.append(piece)
                left -= len(piece)
        finally:
            os.close(fd)
        return b"".join(pieces)

    def close(self) -> None:
        """Let go; twice does no harm."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class KeptFile:
    """A file that is read from its start each time, and held open in between.

    A descriptor stands for the very cgroup or thread it was opened for: once that is gone,
    reading fails even if another has its name by then.

    Args:
        folder: Where it is.
        names: Its name, or several of which the first that exists is taken.
        held: Counts what is held open.
        most_bytes: Most that is read.
    """

    def __init__(
        self,
        folder: Folder,
        names: tuple[str, ...],
        held: Descriptors,
        most_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._folder = folder
        self._names = names
        self._held = held
        self._most = most_bytes
        self._fd = -1

    def read(self) -> bytes:
        """Up to one byte more than the most, so that a longer file shows.

        Raises:
            OSError: it cannot be read (any more); the next call tries to open it anew.
        """
        if self._fd >= 0:
            try:
                return os.pread(self._fd, self._most + 1, 0)
            except OSError:
                self.close()
                raise
        fd = self._open()
        try:
            data = os.pread(fd, self._most + 1, 0)
        except OSError:
            os.close(fd)
            raise
        if self._held.take():
            self._fd = fd
        else:
            os.close(fd)
        return data

    def _open(self) -> int:
        for name in self._names[:-1]:
            try:
                return self._folder.open(name)
            except FileNotFoundError:
                continue
        return self._folder.open(self._names[-1])

    def close(self) -> None:
        """Let go; twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._held.give()


class Collected:
    """What a round brings together.

    Args:
        everything: Tell also what has not changed since the last round.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        self.t_ns = time.monotonic_ns()
        self.readings: list[Reading] = []
        self.missing: list[Missing] = []

    def now(self) -> None:
        """What is read next is read now."""
        self.t_ns = time.monotonic_ns()

    def sample(self) -> Sample:
        """All of it."""
        return Sample(tuple(self.readings), tuple(self.missing))


class Source:
    """A file of numbers, told when they change.

    Args:
        file: The file.
        what: How it is called where it is missing.
        subject: Whose numbers they are.
        parse: Its parser.
        quiet: Say nothing when there is no such file: there never is one for this subject.
    """

    def __init__(
        self,
        file: KeptFile,
        what: str,
        subject: str,
        parse: Callable[[str], Parsed],
        *,
        quiet: bool = False,
    ) -> None:
        self._file = file
        self._what = what
        self._subject = subject
        self._parse = parse
        self._quiet = quiet
        self._data: bytes | None = None
        self._known: dict[tuple[str, str], Reading] = {}
        self._problems: tuple[str, ...] = ()
        self._read_ns = 0
        self.absent = False

    @property
    def readable(self) -> bool:
        """Whether it could be read the last time."""
        return self._data is not None

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What could not be read the last time."""
        return tuple(Missing(self._what, self._subject, text) for text in self._problems)

    def poll(self, out: Collected) -> bool:
        """Read it and tell what is new; whether it could be read."""
        try:
            data = self._file.read()
        except OSError as error:
            self._lost(out, error)
            return False
        self.absent = False
        if data != self._data:
            self._changed(out, data)
        elif out.everything:
            self._repeat(out)
        self._read_ns = out.t_ns
        return True

    def _changed(self, out: Collected, data: bytes) -> None:
        self._data = data
        text, cut = bounded(data)
        parsed = self._parse(text)
        known: dict[tuple[str, str], Reading] = {}
        for item in parsed.values:
            key = item.metric.name, item.device
            old = self._known.get(key)
            if old is not None and old.value == item.value and not out.everything:
                known[key] = old
                continue
            subject = f"{self._subject} dev:{item.device}" if item.device else self._subject
            known[key] = reading = Reading(
                item.metric, subject, item.value, out.t_ns, self._read_ns
            )
            out.readings.append(reading)
        self._known = known
        self._complain(out, (*cut, *parsed.problems))

    def _repeat(self, out: Collected) -> None:
        for old in self._known.values():
            out.readings.append(
                Reading(old.metric, old.subject, old.value, out.t_ns, self._read_ns)
            )
        self._complain(out, self._problems)

    def _lost(self, out: Collected, error: OSError) -> None:
        self._data, self._known = None, {}
        self.absent = error.errno == errno.ENOENT
        reasons = () if self.absent and self._quiet else (reason_of(error),)
        self._complain(out, reasons)

    def _complain(self, out: Collected, problems: tuple[str, ...]) -> None:
        if out.everything or problems != self._problems:
            out.missing += [Missing(self._what, self._subject, text) for text in problems]
        self._problems = problems

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def bounded(data: bytes, most_bytes: int = LIMIT_BYTES) -> tuple[str, tuple[str, ...]]:
    """Text of a file without what goes beyond the most, and the problem if anything does."""
    if len(data) <= most_bytes:
        return data.decode("utf-8", "replace"), ()
    whole = data[: data.rfind(b"\n", 0, most_bytes) + 1]
    problem = f"longer than {most_bytes // 1024} KiB: the rest is not read"
    return whole.decode("utf-8", "replace"), (problem,)
