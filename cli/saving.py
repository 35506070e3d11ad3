# SPDX-License-Identifier: Apache-2.0
"""Writing a session's recording to a file of the user's."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, BinaryIO, Protocol

from gpucorrelate.cli.output import check_place, destination, unfinished
from gpucorrelate.probes.wire.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_output(path: Path, *, force: bool) -> None:
    """Refuses, before anything is recorded, a place that could not be written in the end.

    Raises:
        UsageError: it exists, is no file, has no folder to be in, or cannot have that name.
        StoreError: it may not be written.
    """
    check_place(path)
    if _is_special(path):
        raise UsageError(f"{path}: is no file but a device, pipe or socket", hint="name a file")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: exists", hint="name another file, or give --force")


def _is_special(path: Path) -> bool:
    """Whether there is something that a file must not take the place of."""
    return path.exists() and not path.is_file()


class Copies(Protocol):
    """What can copy a session's recording: the daemon's client."""

    def copy_session(self, session: str, out: BinaryIO, /) -> int:
        """Write the recording; returns its size in bytes."""


def save_session(client: Copies, session: str, path: Path) -> int:
    """Copies a session's recording to a file, as ``whole_recording`` does.

    Returns:
        Its size in bytes.

    Raises:
        StoreError: it cannot be written; the session is still with the daemon.
        DaemonError: the daemon cannot be asked.
    """
    hint = f"nothing is lost: gpucorrelate record -o ELSEWHERE --session {session}"
    with whole_recording(path, hint) as out:
        return client.copy_session(session, out)


@contextlib.contextmanager
def whole_recording(path: Path, hint: str = "") -> Iterator[BinaryIO]:
    """A recording's file, which appears under its name when it is complete, or not at all.

    Where the name is a link, what it points to is replaced.

    Raises:
        StoreError: it cannot be written.
    """
    name = ""
    try:
        target = destination(path)
        fd, name = unfinished(target)
        with open(fd, "wb") as out:  # noqa: PTH123 - a descriptor
            yield out
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(fd, 0o666 & ~mask)
        if _is_special(target):  # it was none when the recording began
            raise StoreError(f"{path}: is no file any more", hint=hint)
        os.replace(name, target)  # noqa: PTH105
    except OSError as exc:
        raise StoreError(f"{path}: {exc.strerror or exc}", hint=hint) from exc
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
