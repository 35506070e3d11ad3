# SPDX-License-Identifier: Apache-2.0
"""Append-only recordings in segments: what was written once stays, whatever fails later.

A write that fails (disk full, quota) is cut back to the last whole frame; what could not be
written is counted, and recording goes on in a new segment as soon as there is room. Segments
are flushed to the page cache at every turn of the loop, so they survive the daemon's death;
they are not forced to disk, so a power failure may take the last seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpucorrelate.daemon.health import Tally

SUFFIX = ".gpcf"
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750

_NAME = re.compile(r"([0-9]{6})\.gpcf")
_RETRY_NS = 250_000_000
# Whoever can write here could put a pipe in a file's place, and opening it would wait for ever.
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Kept free for a session's last rows and its state, should the disk be full when it ends.
_RESERVE_BYTES = 64 << 10


@dataclass(frozen=True)
class Segment:
    """One file of a recording.

    Attributes:
        number: Its place, from 1.
        size_bytes: Its size.
        rows: Rows in it, without those that its head restates.
        first_ns: When it was begun, CLOCK_MONOTONIC.
        last_ns: When it was last written.
    """

    number: int
    size_bytes: int = 0
    rows: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def name(self) -> str:
        """Its file name."""
        return f"{self.number:06d}{SUFFIX}"


@dataclass(frozen=True)
class StoreLoss:
    """Rows that could not be written between two moments, and why."""

    reason: str
    frames: int
    rows: int
    since_ns: int
    t_ns: int


def open_directory(path: Path, *, create: bool = False) -> int:
    """A descriptor of the directory, which must not be a symbolic link.

    Raises:
        StoreError: it cannot be opened or made.
    """
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=DIRECTORY_MODE, parents=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    except OSError as exc:
        raise StoreError(f"cannot open {path}: {exc.strerror}") from exc


def open_regular(directory_fd: int, name: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; of anything else none, and without waiting for it.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    fd = os.open(name, flags | _OPEN, FILE_MODE, dir_fd=directory_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return fd


def segment_numbers(directory_fd: int) -> list[int]:
    """Numbers of the segments in a directory, in order."""
    found = (_NAME.fullmatch(name) for name in os.listdir(directory_fd))
    return sorted(int(match[1]) for match in found if match)


def replace_file(directory_fd: int, name: str, data: bytes) -> None:
    """Put ``data`` in place of a file, whole or not at all.

    Raises:
        OSError: it cannot be written; the old content is still there.
    """
    temporary = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory_fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
    fd = os.open(temporary, flags, FILE_MODE, dir_fd=directory_fd)
    try:
        _write_whole(fd, data)
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise
    finally:
        os.close(fd)


def read_file(directory_fd: int, name: str) -> bytes:
    """The file's content.

    Raises:
        OSError: it cannot be read.
    """
    fd = open_regular(directory_fd, name)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        return file.read()


def _write_whole(fd: int, data: bytes) -> None:
    _, error = _write_all(fd, data)
    if error is not None:
        raise error


def _write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
    """Bytes written, and why it ended before all were."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        try:
            wrote = os.write(fd, view[done:])
        except OSError as exc:
            return done, exc
        if wrote == 0:
            return done, OSError(errno.EIO, os.strerror(errno.EIO))
        done += wrote
    return done, None


class SegmentStore:
    """The segments of one session.

    Args:
        directory: The session's directory; made if it is not there.
        segment_bytes: Size at which a new segment is begun, head included.
        head: Gives the frames with which every segment begins.
        tally: Where bytes and losses are counted.
        segments: Segments that are already there, as the session remembers them.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        head: Callable[[], Iterable[bytes]],
        tally: Tally,
        segments: Iterable[Segment] = (),
    ) -> None:
        self.directory = directory
        self.directory_fd = open_directory(directory, create=True)
        self.failing = ""
        self.pending_bytes = 0
        self._head = head
        self._segment_bytes = segment_bytes
        self._tally = tally
        self._fd = self._reserve = -1
        self._body_bytes = 0
        self._room_bytes = segment_bytes
        self._retry_ns = 0
        self._pending: list[bytes] = []
        self._pending_rows: list[int] = []
        self._lost_frames = self._lost_rows = self._lost_since_ns = 0
        self._losses: list[StoreLoss] = []
        known = {segment.number: segment for segment in segments}
        self.segments: list[Segment] = []
        for number in segment_numbers(self.directory_fd):
            size = os.stat(Segment(number).name, dir_fd=self.directory_fd).st_size
            self.segments.append(replace(known.get(number, Segment(number)), size_bytes=size))
        self._next = max((s.number for s in self.segments), default=0) + 1

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def writable(self) -> bool:
        """Whether the last write worked."""
        return not self.failing

    @property
    def ends(self) -> bool:
        """Whether the next flush ends the segment."""
        return self._body_bytes + self.pending_bytes >= self._room_bytes

    def append(self, frame: bytes, rows: int) -> None:
        """Take a frame to be written with the next flush."""
        self._pending.append(frame)
        self._pending_rows.append(rows)
        self.pending_bytes += len(frame)

    def begin(self) -> None:
        """Begin the first segment, or a new one after a restart.

        Raises:
            StoreError: it cannot be written.
        """
        self._begin(time.monotonic_ns())
        self.demand()

    def demand(self) -> None:
        """Make sure that writing works.

        Raises:
            StoreError: the last write failed.
        """
        if self.failing:
            raise StoreError(
                f"cannot write to {self.directory}: {self.failing}",
                hint="make room, or delete old recordings",
            )

    def flush(self) -> bool:
        """Write what was appended; never raises, what fails is counted.

        Returns:
            Whether a new segment was begun.
        """
        now = time.monotonic_ns()
        began = False
        if self.failing and now >= self._retry_ns:
            began = self._begin(now)
        if self.failing:
            self._lose(0, now)
            return began
        if self._pending:
            self._write_pending(now)
        # The head states what is known now, so nothing may be waiting when it is written.
        if self.writable and self._body_bytes >= self._room_bytes:
            began = self._begin(now) or began
        return began

    def losses(self, *, last: bool = False) -> list[StoreLoss]:
        """What was lost since the last call.

        Args:
            last: Nothing more will be written; otherwise losses wait until writing works again.
        """
        if self.failing and not last:
            return []
        if self.failing:
            self._close_loss(time.monotonic_ns())
        losses, self._losses = self._losses, []
        return losses

    def unwritten(self) -> list[StoreLoss]:
        """What ``losses`` has not told yet."""
        found = list(self._losses)
        if self._lost_frames:
            found.append(self._loss(time.monotonic_ns()))
        return found

    def write_last(self, data: bytes) -> bool:
        """Write a recording's last frames, into the room kept for them if need be.

        They go behind what was last written, even if nothing more could be written since.

        Returns:
            Whether it worked; if not, it may be tried again.
        """
        now = time.monotonic_ns()
        if self.failing:
            self._give_up_reserve()
        if self._fd < 0 and not self._begin(now):
            return False
        done, error = _write_all(self._fd, data)
        if error is None:
            self._wrote(1, len(data), 1, now)
            self.failing = ""
            return True
        if done:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.segments[-1].size_bytes)
        self._fail(error.strerror or str(error), now)
        if self._reserve < 0:
            return False
        return self.write_last(data)  # once more, with the reserve given up

    def delete_oldest(self) -> Segment | None:
        """Delete the oldest segment that is not being written; None if there is none."""
        if len(self.segments) < 2:
            return None
        segment = self.segments[0]
        try:
            os.unlink(segment.name, dir_fd=self.directory_fd)
        except FileNotFoundError:
            pass
        except OSError:
            return None
        del self.segments[0]
        self._tally.count_store(deleted_segments=1)
        return segment

    def open_segments(self) -> list[tuple[int, int]]:
        """Read-only descriptors of all segments, with the bytes that are whole in each."""
        opened: list[tuple[int, int]] = []
        try:
            for segment in self.segments:
                fd = open_regular(self.directory_fd, segment.name)
                opened.append((fd, segment.size_bytes))
        except OSError as exc:
            for fd, _ in opened:
                os.close(fd)
            raise StoreError(f"cannot read {self.directory}: {exc.strerror}") from exc
        return opened

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._give_up_reserve()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.directory_fd >= 0:
            os.close(self.directory_fd)
            self.directory_fd = -1

    def _begin(self, now: int) -> bool:
        segment = Segment(self._next, first_ns=now, last_ns=now)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _OPEN
        data = b"".join(self._head())
        fd = -1
        try:
            fd = os.open(segment.name, flags, FILE_MODE, dir_fd=self.directory_fd)
            _write_whole(fd, data)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(segment.name, dir_fd=self.directory_fd)
            self._fail(exc.strerror or str(exc), now)
            return False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._next += 1
        self._body_bytes = 0
        # A head of whatever size leaves some room, or every write would begin a new segment.
        self._room_bytes = max(self._segment_bytes - len(data), self._segment_bytes // 4)
        self.segments.append(replace(segment, size_bytes=len(data)))
        self._recover(now)
        self._keep_reserve()
        return True

    def _keep_reserve(self) -> None:
        """Keep room in a file without a name, which is gone with the process that holds it."""
        if self._reserve >= 0:
            return
        try:
            flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
            self._reserve = os.open(".", flags, 0o600, dir_fd=self.directory_fd)
            os.posix_fallocate(self._reserve, 0, _RESERVE_BYTES)
        except OSError:
            # No such files here, or no room: the end is then written when there is room again.
            self._give_up_reserve()

    def _give_up_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _write_pending(self, now: int) -> None:
        data = b"".join(self._pending)
        done, error = _write_all(self._fd, data)
        if error is None:
            self._wrote(len(self._pending), len(data), sum(self._pending_rows), now)
            self._forget_pending()
            return
        whole = count = 0
        for frame in self._pending:
            if whole + len(frame) > done:
                break
            whole += len(frame)
            count += 1
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.segments[-1].size_bytes + whole)
        self._wrote(count, whole, sum(self._pending_rows[:count]), now)
        self._fail(error.strerror or str(error), now)
        self._lose(count, now)

    def _wrote(self, frames: int, size: int, rows: int, now: int) -> None:
        last = self.segments[-1]
        self.segments[-1] = replace(
            last, size_bytes=last.size_bytes + size, rows=last.rows + rows, last_ns=now
        )
        self._body_bytes += size
        self._tally.count_store(frames=frames, written_bytes=size)

    def _fail(self, reason: str, now: int) -> None:
        self.failing = reason
        self._retry_ns = now + _RETRY_NS
        self._lost_since_ns = self._lost_since_ns or now

    def _lose(self, start: int, now: int) -> None:
        frames, rows = len(self._pending) - start, sum(self._pending_rows[start:])
        self._forget_pending()
        if frames:
            self._lost_since_ns = self._lost_since_ns or now
            self._lost_frames += frames
            self._lost_rows += rows
            self._tally.count_store(lost_frames=frames, lost_rows=rows)

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_rows.clear()
        self.pending_bytes = 0

    def _recover(self, now: int) -> None:
        self._close_loss(now)
        self.failing = ""

    def _loss(self, now: int) -> StoreLoss:
        frames, rows = self._lost_frames, self._lost_rows
        return StoreLoss(self.failing, frames, rows, self._lost_since_ns, now)

    def _close_loss(self, now: int) -> None:
        if self._lost_frames:
            self._losses.append(self._loss(now))
        self._lost_frames = self._lost_rows = self._lost_since_ns = 0
