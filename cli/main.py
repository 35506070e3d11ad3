# SPDX-License-Identifier: Apache-2.0
"""The console script: runs a command and turns every error into a line and an exit code.

This is the only place that does so. It imports nothing but the standard library and the error
tree until a command is needed, so that a missing extra is one line and no traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from gpucorrelate.probes.wire.errors import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_NOT_PERMITTED,
    EXIT_OK,
    EXIT_USAGE,
    GpucorrelateError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# As a shell reports a program that a signal ended: 128 and the signal's number.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Messages quote what the user gave, however long it was.
_LONGEST_MESSAGE = 500

DEBUG_ENV = "GPUCORRELATE_DEBUG"
_EXTRA = frozenset({"click", "rich", "numpy", "psutil", "msgspec"})
_OS_ERRORS = {
    errno.ENOENT: EXIT_NOT_FOUND,
    errno.EACCES: EXIT_NOT_PERMITTED,
    errno.EPERM: EXIT_NOT_PERMITTED,
    errno.EISDIR: EXIT_USAGE,
    errno.ENOTDIR: EXIT_USAGE,
    errno.ENAMETOOLONG: EXIT_USAGE,
    errno.ELOOP: EXIT_USAGE,
}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        args: Arguments without the program's name; those of the process by default.
    """
    _stand_in()
    for stream in (sys.stdout, sys.stderr):
        # Ids come from clients: a letter the terminal cannot show must not end the report.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:] if args is None else list(args))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except OSError as exc:
        code = _say(f"standard output: {exc.strerror or exc}") if code == EXIT_OK else code
        _silence()
    if code == EXIT_BROKEN_PIPE:
        _silence()
    sys.exit(code)


def _stand_in() -> None:
    """Let output go nowhere where the caller closed standard output or error (``>&-``).

    Python has no stream then, and the next file that is opened would get its number.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _silence() -> None:
    """Python flushes standard output once more at exit and would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(args: list[str]) -> int:
    """Run a command; the exit code, with anything worth saying said on standard error."""
    try:
        from gpucorrelate.cli import app
    except ModuleNotFoundError as exc:
        return _not_installed(exc)
    try:
        return app.invoke(args)
    except ModuleNotFoundError as exc:  # commands import what they need when they run
        return _not_installed(exc)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except app.PipeClosedError:
        return EXIT_BROKEN_PIPE
    except GpucorrelateError as exc:
        return _say(exc.message, exc.hint, exc.exit_code)
    except OSError as exc:
        name = f"{exc.filename}: " if exc.filename is not None else ""
        code = _OS_ERRORS.get(exc.errno or 0, EXIT_FAILED)
        return _say(f"{name}{exc.strerror or exc}", "", code, exc)
    except MemoryError as exc:
        hint = "use a machine with more memory, or a recording of a shorter time"
        return _say("this needs more memory than there is", hint, EXIT_FAILED, exc)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the user gets a line and not a stack
        return _unexpected(exc)


def _say(message: str, hint: str = "", code: int = EXIT_FAILED, cause: object = None) -> int:
    """One line, and one more with what to do."""
    # Messages quote ids, paths and what the daemon said: one line each, whatever is in them.
    print(f"gpucorrelate: {_one_line(message)}", file=sys.stderr)
    if hint:
        print(f"  hint: {_one_line(hint)}", file=sys.stderr)
    if isinstance(cause, BaseException) and os.environ.get(DEBUG_ENV):
        traceback.print_exception(cause)
    return code or EXIT_OK


def _not_installed(exc: ModuleNotFoundError) -> int:
    name = (exc.name or "").partition(".")[0]
    if name not in _EXTRA:
        return _unexpected(exc)
    return _say(
        f"the command line needs {name}, which is not installed",
        "pip install 'gpucorrelate[cli]'",
    )


def _one_line(text: str) -> str:
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]}...{text[-half:]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _unexpected(exc: Exception) -> int:
    hint = (
        f"this is a bug; please report it with the output of the same command under {DEBUG_ENV}=1"
    )
    return _say(f"unexpected {type(exc).__name__}: {exc}", hint, EXIT_FAILED, exc)
