# SPDX-License-Identifier: Apache-2.0
"""What was recorded since the last look: of a session of the daemon, or of a file that grows."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.daemon.segment_files import SUFFIX
from gpucorrelate.probes.wire.errors import (
    EXIT_NOT_FOUND,
    EXIT_NOT_PERMITTED,
    ControlError,
    DaemonUnreachableError,
    NotFoundError,
    RecordingError,
)
from gpucorrelate.probes.wire.frame import Batch, Damage, Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpucorrelate.daemon.client import Client

Item = Batch | Damage

#: Of a session that has run for long its newest files are read, until they make this much.
_CATCH_UP_BYTES = 16 << 20
#: What one look reads at most of a file: the rest is read by the next ones.
_MOST_AT_ONCE = 64 << 20
_CHUNK_BYTES = 1 << 20
#: A tail is the open waits of a session's threads; more than that is none.
_MOST_TAIL_BYTES = 64 << 20

ATTACHED, DETACHED, AWAY, FILE = "attached", "detached", "daemon away", "file"


@dataclass
class Look:
    """What a look found.

    Attributes:
        items: What is new, in order.
        tail: What is so at the moment of the look, and in no file: waits that have not ended.
        now_ns: The moment of the look; 0: whatever the newest event says.
        state: ``attached``, ``detached``, ``daemon away``, ``file``.
        more: There is more than was read.
        notes: What happened, a line each.
    """

    items: list[Item] = field(default_factory=list)
    tail: list[Batch] = field(default_factory=list)
    now_ns: int = 0
    state: str = FILE
    more: bool = False
    notes: list[str] = field(default_factory=list)


class Feed(Protocol):
    """Where events come from."""

    @property
    def name(self) -> str:
        """The session's id, or the file's name."""

    def look(self) -> Look:
        """Read what is new."""

    def close(self) -> None:
        """Let go of files."""


class _Part:
    """A file of a recording, and how far it was read."""

    def __init__(self) -> None:
        self.at = 0
        self.behind = False
        self.decoder = Decoder()

    def read(self, fd: int, size_bytes: int, most: int) -> Iterator[Item]:
        """What is new up to a size; a frame that is not whole is left for later."""
        end = min(size_bytes, self.at + most)
        while self.at < end:
            data = os.pread(fd, min(_CHUNK_BYTES, end - self.at), self.at)
            if not data:
                return
            self.at += len(data)
            yield from _batches(self.decoder.feed(data))
        self.behind = self.at < size_bytes

    def rest(self) -> Iterator[Item]:
        """What is left when the file is known to be complete."""
        yield from _batches(self.decoder.finish())


def _batches(found: Iterator[tuple[Batch, bytes] | Damage]) -> Iterator[Item]:
    for item in found:
        yield item if isinstance(item, Damage) else item[0]


class FileFeed:
    """A recording: a file, or a session's folder of them. It may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, _Part] = {}
        self._read_any = False
        if not path.exists():
            raise NotFoundError(
                f"{path}: no such file",
                hint="a recording is made by: gpucorrelate record -o FILE --pid PID",
            )

    @property
    def name(self) -> str:
        """The file's name."""
        return self._path.name

    def look(self) -> Look:
        """Read what is new.

        Raises:
            RecordingError: it cannot be read, or holds nothing that can be.
        """
        found = Look()
        most = _MOST_AT_ONCE
        try:
            names = self._files()
            for at, path in enumerate(names):
                part = self._parts.setdefault(path.name, _Part())
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    size = os.fstat(fd).st_size
                    if size < part.at:
                        found.notes.append(
                            f"{path.name} became shorter: it is read from its start"
                        )
                        part = self._parts[path.name] = _Part()
                    before = part.at
                    found.items += part.read(fd, size, most)
                    most -= part.at - before
                    if part.at < size:
                        found.more = True
                        break
                finally:
                    os.close(fd)
                if at + 1 < len(names):
                    found.items += part.rest()
        except OSError as exc:
            raise RecordingError(f"{self._path}: {exc.strerror or exc}") from exc
        self._read_any |= any(isinstance(item, Batch) for item in found.items)
        if found.items and not self._read_any:
            raise RecordingError(
                f"{self._path}: not a gpucorrelate recording",
                hint="one is made by: gpucorrelate record -o FILE --pid PID",
            )
        return found

    def _files(self) -> list[Path]:
        if self._path.is_dir():
            return sorted(self._path.glob(f"*{SUFFIX}"))
        return [self._path]

    def close(self) -> None:
        """Nothing is held open between looks."""


class SessionFeed:
    """A session of the daemon."""

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = client.progress(session).session
        self._parts: dict[tuple[int, int], _Part] = {}
        self._state = ATTACHED
        self._begun = False

    @property
    def name(self) -> str:
        """The session's id."""
        return self._session

    def look(self) -> Look:
        """Ask the daemon for the recording's files and read what is new of them.

        Raises:
            NotPermittedError: the daemon refuses the caller.
        """
        found = Look(state=ATTACHED)
        try:
            found.now_ns = time.monotonic_ns()
            running = self._client.progress(self._session).state != DETACHED
            opened = list(self._client._open(self._session))
        except DaemonUnreachableError:
            return self._away(found)
        except ControlError as exc:
            if exc.exit_code == EXIT_NOT_PERMITTED:
                raise
            if self._state == DETACHED or exc.exit_code != EXIT_NOT_FOUND:
                return self._away(found)
            found.state = DETACHED
            found.notes.append("the session's recording was deleted by the daemon")
            return found
        if self._state == AWAY:
            found.notes.append("the daemon answers again")
        found.state = self._state = ATTACHED if running else DETACHED
        try:
            self._read(opened, found)
        finally:
            for fd, _ in opened:
                os.close(fd)
        return found

    def _away(self, found: Look) -> Look:
        if self._state != AWAY:
            found.notes.append("the daemon does not answer; it is asked again")
        found.state = self._state = AWAY
        return found

    def _read(self, opened: list[tuple[int, int]], found: Look) -> None:
        files = [(fd, size, os.fstat(fd)) for fd, size in opened]
        # Segments are named files; what is in none of them is in memory, without a name.
        parts = [(fd, size, (s.st_dev, s.st_ino)) for fd, size, s in files if s.st_nlink]
        tails = [(fd, size) for fd, size, s in files if not s.st_nlink]
        if not self._begun:
            self._begin(parts)
        known = {key for *_, key in parts}
        for key in [key for key in self._parts if key not in known]:
            old = self._parts.pop(key)
            found.items += old.rest()
            if old.behind:
                found.notes.append("files were deleted to keep the limits before they were read")
        most = _MOST_AT_ONCE
        for at, (fd, size, key) in enumerate(parts):
            part = self._parts.setdefault(key, _Part())
            before = part.at
            found.items += part.read(fd, size, most)
            most -= part.at - before
            if part.at < size:
                found.more = True
                return
            if at + 1 < len(parts):
                found.items += part.rest()
        for fd, size in tails:
            tail = _Part()
            found.tail += [
                item
                for item in tail.read(fd, min(size, _MOST_TAIL_BYTES), _MOST_TAIL_BYTES)
                if isinstance(item, Batch)
            ]

    def _begin(self, parts: list[tuple[int, int, tuple[int, int]]]) -> None:
        """Leave out the oldest files of a session that has run for long."""
        self._begun = True
        enough = 0
        for _, size, key in reversed(parts):
            if enough >= _CATCH_UP_BYTES:
                skipped = self._parts[key] = _Part()
                skipped.at = size
            enough += size

    def close(self) -> None:
        """Nothing is held open between looks."""
