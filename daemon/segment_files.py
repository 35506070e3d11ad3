# SPDX-License-Identifier: Apache-2.0
"""Files of recordings: opened without following links or waiting, written whole or cut back."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SUFFIX = ".gpcf"
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750

_NAME = re.compile(r"([0-9]{6})\.gpcf")
# Whoever can write here could put a pipe in a file's place, and opening it would wait for ever.
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: Kept free for a session's last rows and its state, should the disk be full when it ends.
_RESERVE_BYTES = 64 << 10


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
        write_whole(fd, data)
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


@dataclass(frozen=True)
class Wrote:
    """What came of a write: bytes of whole frames, how many frames, and what ended it early."""

    size_bytes: int
    frames: int
    error: OSError | None = None


def write_frames(fd: int, frames: list[bytes], start: int) -> Wrote:
    """Append frames to a file of so many bytes; one that is not whole is cut off again."""
    data = b"".join(frames)
    done, error = write_all(fd, data)
    if error is None:
        return Wrote(len(data), len(frames))
    whole = count = 0
    for frame in frames:
        if whole + len(frame) > done:
            break
        whole += len(frame)
        count += 1
    with contextlib.suppress(OSError):
        os.ftruncate(fd, start + whole)
    return Wrote(whole, count, error)


def new_segment(
    directory_fd: int, name: str, data: bytes, *, reserve: bool
) -> tuple[int, int] | OSError:
    """Descriptors of a new file with this content and of the room kept, -1 for none.

    Or why it cannot be written: then it is not there.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _OPEN
    fd = -1
    try:
        fd = os.open(name, flags, FILE_MODE, dir_fd=directory_fd)
        write_whole(fd, data)
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory_fd)
        return exc
    return fd, keep_room(directory_fd) if reserve else -1


def keep_room(directory_fd: int) -> int:
    """Room in a file without a name, which is gone with the process that holds it."""
    fd = -1
    try:
        fd = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
        os.posix_fallocate(fd, 0, _RESERVE_BYTES)
    except OSError:
        # No such files here, or no room: the end is then written when there is room again.
        close_all(fd for fd in (fd,) if fd >= 0)
        return -1
    return fd


def tried(work: Callable[[], None]) -> list[OSError]:
    """What some work raised, if it did."""
    try:
        work()
    except OSError as exc:
        return [exc]
    return []


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def write_whole(fd: int, data: bytes) -> None:
    """Write all of it.

    Raises:
        OSError: not all of it could be written.
    """
    _, error = write_all(fd, data)
    if error is not None:
        raise error


def write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
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
