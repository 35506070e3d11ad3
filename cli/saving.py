# SPDX-License-Identifier: Apache-2.0
"""Writing a session's recording to a file of the user's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.daemon.client import Client


def check_output(path: Path, *, force: bool) -> None:
    """Refuses, before anything is recorded, a place that could not be written in the end.

    Raises:
        UsageError: it is a folder, has no folder to be in, or exists.
        StoreError: it may not be written.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder", hint="name a file in it")
    if path.exists() and not force:
        raise UsageError(f"{path}: exists", hint="name another file, or give --force")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    if not os.access(folder, os.W_OK):
        raise StoreError(f"{folder}: may not be written")


def save_session(client: Client, session: str, path: Path) -> int:
    """Copies a session's recording; the file appears under its name when it is complete.

    Returns:
        Its size in bytes.

    Raises:
        StoreError: it cannot be written; the session is still with the daemon.
        DaemonError: the daemon cannot be asked.
    """
    name = ""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.", dir=path.absolute().parent)
        with open(fd, "wb") as out:  # noqa: PTH123 - a descriptor
            size = client.copy_session(session, out)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(fd, 0o666 & ~mask)
        os.replace(name, path)  # noqa: PTH105
    except OSError as exc:
        raise StoreError(
            f"{path}: {exc.strerror or exc}",
            hint=f"nothing is lost: gpucorrelate record -o ELSEWHERE --session {session}",
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
    return size
