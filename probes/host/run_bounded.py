# SPDX-License-Identifier: Apache-2.0
"""Another program's output, bounded in time and size, whatever the program does."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK_BYTES = 64 * 1024
_KEPT_ERRORS_BYTES = 4096
#: How long a killed program may take to be gone. One that hangs inside a driver cannot be
#: killed; it is left to itself then.
_GRACE_S = 1.0


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        code: Exit code; negative for a signal, None if it could not be started or ended.
        output: Standard output, as far as it was read.
        errors: The beginning of standard error.
        problem: What went wrong beyond its exit code: ``took longer than 10 s``.
    """

    code: int | None
    output: str = ""
    errors: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well and all of its output is here."""
        return self.code == 0 and not self.problem


def run_bounded(command: Sequence[str], *, timeout_s: float, limit_bytes: int) -> Finished:
    """Run a program in the C locale, without input; it and its children do not outlive this.

    Args:
        command: Program and arguments; no shell.
        timeout_s: When it is killed.
        limit_bytes: Most of its output; it is killed when it writes more.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Finished(None, problem=f"cannot be started: {error.strerror}")
    streams = _Streams(child, limit_bytes)
    problem = streams.read_until(time.monotonic() + timeout_s)
    if problem == _TOO_LONG:
        problem = f"took longer than {timeout_s:g} s"
    code = _end(child, kill=bool(problem))
    if code is None:
        problem = problem or "cannot be ended"
    return Finished(code, streams.output, streams.errors, problem)


_TOO_LONG = "too long"


class _Streams:
    """Both outputs of a child, read as they come."""

    def __init__(self, child: subprocess.Popen[bytes], limit_bytes: int) -> None:
        self._child = child
        self._limit = limit_bytes
        self._output = bytearray()
        self._errors = bytearray()

    @property
    def output(self) -> str:
        return self._output.decode("utf-8", "replace")

    @property
    def errors(self) -> str:
        return self._errors.decode("utf-8", "replace")

    def read_until(self, deadline_s: float) -> str:
        """Read to the end of both; what went wrong, if anything did."""
        out, err = self._child.stdout, self._child.stderr
        assert out is not None
        assert err is not None
        with selectors.DefaultSelector() as selector, out, err:
            for stream in (out, err):
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return _TOO_LONG
                for key, _ in selector.select(left_s):
                    if not self._take(key.fileobj is out, key.fd):
                        selector.unregister(key.fileobj)
                if len(self._output) > self._limit:
                    del self._output[self._limit :]
                    return f"wrote more than {self._limit} bytes"
        return self._await(deadline_s)

    def _take(self, is_output: bool, fd: int) -> bool:  # noqa: FBT001 - which of the two
        data = os.read(fd, _CHUNK_BYTES)
        if is_output:
            self._output += data
        else:
            self._errors += data[: _KEPT_ERRORS_BYTES - len(self._errors)]
        return bool(data)

    def _await(self, deadline_s: float) -> str:
        try:
            self._child.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return _TOO_LONG
        return ""


def _end(child: subprocess.Popen[bytes], *, kill: bool) -> int | None:
    if kill:
        # Its whole session: what it started holds the pipes as well.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    try:
        return child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        return None
