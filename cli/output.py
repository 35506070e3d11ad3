# SPDX-License-Identifier: Apache-2.0
"""Where output goes: the terminal with its width and colours, or files written as a whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

from gpucorrelate.probes.wire.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.cli.options import Look
    from gpucorrelate.correlator.report.page import TextOptions

_WIDTH = 100
_WIDEST = 140
_NAME_LENGTH = 120
# Of files that are being written; short, for a name has 255 bytes in all.
_UNFINISHED = ".gpucorrelate."


def text_options(look: Look, out: IO[str]) -> TextOptions:
    """What fits the place the text goes to."""
    from gpucorrelate.correlator.report.page import TextOptions

    terminal = out.isatty()
    width = look.width
    if width is None:
        columns = shutil.get_terminal_size((_WIDTH, 24)).columns
        width = min(columns, _WIDEST) if terminal else _WIDTH
    dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    color = look.color == "always" or (look.color == "auto" and terminal and not dumb)
    return TextOptions(width=width, color=color, unicode=_has_blocks(out), top=look.top)


def _has_blocks(out: IO[str]) -> bool:
    """Whether the encoding has the block characters that bars are drawn with."""
    try:
        "█▏…".encode(getattr(out, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def note(message: str) -> None:
    """Something the user should know, apart from the output proper."""
    print(f"gpucorrelate: {message}", file=sys.stderr)


def check_place(path: Path) -> None:
    """Finds out, before anything long is begun, whether a file could be written in the end.

    Raises:
        UsageError: it is a folder, has no folder to be in, or no file can have that name.
        StoreError: it may not be written.
    """
    try:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            mode = 0
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a folder", hint="name a file in it")
        if mode and not stat.S_ISREG(mode):  # whether it takes anything is found out by writing
            return
        target = destination(path)
        if not target.parent.is_dir():
            raise UsageError(f"{path.absolute().parent}: no such folder")
        # Root may write everywhere, as far as modes say; some file systems see it differently.
        fd, name = unfinished(target)
        os.close(fd)
        os.unlink(name)  # noqa: PTH108
    except OSError as exc:
        wrong = exc.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
        kind = UsageError if wrong else StoreError
        raise kind(f"{path}: {exc.strerror or exc}") from exc


def destination(path: Path) -> Path:
    """Where a file of that name really lies: a link stays, and what it points to is replaced."""
    return Path(os.path.realpath(path))


def unfinished(target: Path) -> tuple[int, str]:
    """A new file beside the target, to take its name when it is complete.

    Raises:
        OSError: it cannot be created.
    """
    with contextlib.suppress(FileNotFoundError):
        target.lstat()  # says so when the name is too long
    return tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file that appears under its name when it is complete, or not at all.

    What is no file, a device or a pipe, is written in place; of a link the target is replaced.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is written in place
            with path.open("w", encoding="utf-8") as out:
                yield out
            return
        target = destination(path)
        fd, name = unfinished(target)
        try:
            with open(fd, "w", encoding="utf-8", errors="backslashreplace") as out:  # noqa: PTH123
                yield out
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(fd, 0o666 & ~mask)
            os.replace(name, target)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108
            raise
    except OSError as exc:
        raise StoreError(f"{path}: {exc.strerror or exc}") from exc


def file_name(request_id: str) -> str:
    """A file name for a request, whatever letters its id holds; different for different ids."""
    name = quote(request_id, safe="-_.+=@,:", errors="surrogatepass").lstrip(".")
    if name and name == request_id and len(name) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[:_NAME_LENGTH]}-{digest}"
