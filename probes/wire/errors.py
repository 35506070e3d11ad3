# SPDX-License-Identifier: Apache-2.0
"""Every error of the project, in one tree.

GpucorrelateError                 base; carries an exit code and a hint
+-- WireError                     bytes that are not what the schema says
|   +-- FrameError                framing: magic, length, checksum, msgpack
|   +-- BatchError                a batch that contradicts its schema
+-- ProbeError                    a probe that cannot start or broke
|   +-- KernelSupportError        this kernel or its settings refuse it
|   +-- SelfTestError             a probe that answers wrongly
+-- TargetError                   a process that cannot be traced
|   +-- NoSuchProcessError        gone, or never was
|   +-- NotPermittedError         not the caller's
|   +-- NotAnEngineError          no engine agent in it
+-- StoreError                    recordings: unreadable, truncated, disk full
|   +-- RecordingError            a file that is not (or no longer) a recording
+-- TraceError                    another tool's trace that cannot be read
+-- DaemonError                   the daemon: absent, unreachable, refusing
|   +-- DaemonUnreachableError    nothing listens on the control socket
|   +-- ControlError              the daemon answered with an error
+-- OutOfMemoryError              more than fits into the memory that is free
+-- NotFoundError                 no such request, step or session
+-- UsageError                    what the caller asked makes no sense

The command line turns each into one line on standard error and the exit code.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_NOT_PERMITTED = 4
EXIT_NO_DAEMON = 5
EXIT_UNSUPPORTED = 6
EXIT_BAD_DATA = 7
EXIT_INCOMPLETE = 8


class GpucorrelateError(Exception):
    """Something the user should read: what happened, to what, and what to do.

    Args:
        message: What happened and to what, in one line.
        hint: What to do about it, in one line; empty when nothing helps.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WireError(GpucorrelateError):
    """Bytes that are not what the schema says."""

    exit_code = EXIT_BAD_DATA


class FrameError(WireError):
    """A frame whose magic, length, checksum or msgpack is wrong."""


class BatchError(WireError):
    """A batch that contradicts its schema."""


class ProbeError(GpucorrelateError):
    """A probe that cannot start, or broke."""

    exit_code = EXIT_UNSUPPORTED


class KernelSupportError(ProbeError):
    """This kernel, or its settings, refuse the probe."""


class SelfTestError(ProbeError):
    """A probe that answers wrongly must not be trusted."""


class TargetError(GpucorrelateError):
    """A process that cannot be traced."""


class NoSuchProcessError(TargetError):
    """The process is gone, or never was."""

    exit_code = EXIT_NOT_FOUND


class NotPermittedError(TargetError):
    """The caller may not do this."""

    exit_code = EXIT_NOT_PERMITTED


class NotAnEngineError(TargetError):
    """The process has no engine agent in it."""

    exit_code = EXIT_UNSUPPORTED


class StoreError(GpucorrelateError):
    """Recordings that cannot be written or read."""


class RecordingError(StoreError):
    """A file that is not, or is no longer, a recording."""

    exit_code = EXIT_BAD_DATA


class TraceError(GpucorrelateError):
    """Another tool's trace that cannot be read."""

    exit_code = EXIT_BAD_DATA


class DaemonError(GpucorrelateError):
    """The daemon is absent, unreachable or refuses."""

    exit_code = EXIT_NO_DAEMON


class DaemonUnreachableError(DaemonError):
    """Nothing answers on the control socket."""


class ControlError(DaemonError):
    """The daemon answered with an error; carries the code it sent."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class OutOfMemoryError(GpucorrelateError):
    """What was asked needs more memory than there is."""


class NotFoundError(GpucorrelateError):
    """No such request, step or session."""

    exit_code = EXIT_NOT_FOUND


class UsageError(GpucorrelateError):
    """What the caller asked makes no sense."""

    exit_code = EXIT_USAGE
