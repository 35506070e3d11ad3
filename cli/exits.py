# SPDX-License-Identifier: Apache-2.0
"""Which exit codes a command has, and what they mean of it: for its page and its man page.

What every command has is in ``COMMON``; a command's own come from ``OF``. The codes are those of
``probes.wire.errors`` and of ``cli.main``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucorrelate.cli.main import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from gpucorrelate.probes.wire.errors import (
    EXIT_BAD_DATA,
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    EXIT_NO_DAEMON,
    EXIT_NOT_FOUND,
    EXIT_NOT_PERMITTED,
    EXIT_OK,
    EXIT_UNSUPPORTED,
    EXIT_USAGE,
)


@dataclass(frozen=True)
class Exit:
    """A code and when a command ends with it."""

    code: int
    when: str


COMMON = (
    Exit(EXIT_OK, "done"),
    Exit(EXIT_FAILED, "failed: output cannot be written, memory does not suffice, or a bug"),
    Exit(EXIT_USAGE, "the command line makes no sense"),
    Exit(EXIT_INTERRUPTED, "interrupted (Ctrl-C)"),
    Exit(EXIT_BROKEN_PIPE, "whoever read the output went away"),
)

_NO_DAEMON = Exit(EXIT_NO_DAEMON, "no daemon answers on the control socket")
_NOT_YOURS = Exit(EXIT_NOT_PERMITTED, "the socket, or the process, is somebody else's")
_NO_RECORDING = Exit(EXIT_BAD_DATA, "FILE is no recording, or no longer one")
_LOST = Exit(EXIT_INCOMPLETE, "with --strict: the recording lost something or does not match")
_STOPPED = Exit(EXIT_OK, "done; Ctrl-C is how it is ended")


def _not_found(what: str) -> Exit:
    return Exit(EXIT_NOT_FOUND, what)


#: What a command has besides ``COMMON``, or in place of a code there.
OF: dict[str, tuple[Exit, ...]] = {
    "check": (
        Exit(EXIT_OK, "waits with their wakers can be observed here"),
        Exit(EXIT_UNSUPPORTED, "they cannot; the text says why and how to mend it"),
    ),
    "verify": (
        Exit(EXIT_OK, "every cause that was tried can be attributed here"),
        Exit(EXIT_UNSUPPORTED, "the kernel probes cannot run here, or it was not root"),
        Exit(EXIT_INCOMPLETE, "a cause cannot be attributed here"),
    ),
    "save": (
        Exit(EXIT_USAGE, "the command line makes no sense, or DIR holds something else"),
        _not_found("no such file or session"),
        _NOT_YOURS, _NO_DAEMON, _NO_RECORDING,
    ),
    "sql": (
        Exit(EXIT_USAGE, "the command line makes no sense, or QUERY is none that can be answered"),
        _not_found("no such file or session"),
        _NOT_YOURS,
        _NO_DAEMON,
        Exit(EXIT_BAD_DATA, "FILE is no recording, or a file of results or --with is damaged"),
    ),
    "export": (
        Exit(EXIT_FAILED, "the endpoint did not take everything; what arrived stays"),
        _not_found("no such file or session, or no request fits"),
        _NOT_YOURS,
        _NO_DAEMON,
        _NO_RECORDING,
    ),
    "daemon": (
        Exit(EXIT_OK, "stopped in good order"),
        Exit(EXIT_USAGE, "settings or options make no sense"),
        _not_found("the file given with --config is not there"),
        Exit(EXIT_NOT_PERMITTED, "not root, or a settings file that others can change"),
        Exit(EXIT_NO_DAEMON, "another daemon uses the same folders, or a socket cannot be made"),
        Exit(EXIT_UNSUPPORTED, "no kernel probes, with --require-ebpf"),
    ),
    "attach": (
        _STOPPED,
        _not_found("no such process, or no request was seen"),
        _NOT_YOURS,
        _NO_DAEMON,
        Exit(EXIT_UNSUPPORTED, "that process cannot be traced, such as a kernel thread"),
    ),
    "detach": (_not_found("no such session, or the process is in none"), _NOT_YOURS, _NO_DAEMON),
    "status": (_NOT_YOURS, _NO_DAEMON),
    "top": (
        _STOPPED,
        _not_found("no such process, file or session, or the daemon has no session"),
        _NOT_YOURS,
        _NO_DAEMON,
        Exit(EXIT_UNSUPPORTED, "that process cannot be traced, such as a kernel thread"),
        _NO_RECORDING,
    ),
    "watch": (
        _STOPPED,
        _not_found("no such process"),
        Exit(EXIT_NOT_PERMITTED, "the process is somebody else's"),
        Exit(EXIT_UNSUPPORTED, "it is a kernel thread"),
    ),
    "requests": (
        _not_found("no request fits, or there is no such file or session"),
        _NOT_YOURS, _NO_DAEMON, _NO_RECORDING, _LOST,
    ),
    "steps": (
        _not_found("no step fits, or there is no such file or session"),
        _NOT_YOURS, _NO_DAEMON, _NO_RECORDING, _LOST,
    ),
    "report": (
        _not_found("nothing to report: no such request, step, file or session"),
        _NOT_YOURS, _NO_DAEMON, _NO_RECORDING, _LOST,
    ),
    "tables": (
        _not_found("nothing for a table that was named, or no such file or session"),
        _NOT_YOURS, _NO_DAEMON, _NO_RECORDING,
    ),
    "compare": (_not_found("one of the files is not there, or holds nothing"), _NO_RECORDING),
    "record": (
        _STOPPED,
        _not_found("no such process or session"),
        _NOT_YOURS,
        _NO_DAEMON,
        Exit(EXIT_UNSUPPORTED, "that process cannot be traced, such as a kernel thread"),
    ),
    "import": (
        _not_found("no FILE holds device activity; no RUN is written"),
        Exit(EXIT_BAD_DATA, "a FILE cannot be read; the others are in RUN all the same"),
    ),
}  # fmt: skip


def of(command: str) -> tuple[Exit, ...]:
    """All exit codes of a command, in order."""
    own = OF.get(command, ())
    found = {one.code: one for one in (*COMMON, *own)}
    if _STOPPED in own:
        del found[EXIT_INTERRUPTED]
    return tuple(found[code] for code in sorted(found))
