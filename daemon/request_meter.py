# SPDX-License-Identifier: Apache-2.0
"""Keeps the process that explains requests for the metrics, and takes what it counts.

A thread reads it, so nothing of the daemon waits for it. A process that ends, says nothing for
long or says what cannot be is replaced, each time after a longer pause; its counts begin at 0
then, which Prometheus knows how to read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpucorrelate.daemon.ready import readable
from gpucorrelate.daemon.request_sums import RequestSums
from gpucorrelate.daemon.values import ValueFormatError, from_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

#: Longest line: some twenty histograms for each model, with an exemplar in each bucket.
_MOST_LINE_BYTES = 4 << 20
#: A process that has said nothing for so long is replaced.
_SILENT_S = 60.0
_PAUSES_S = (2.0, 10.0, 60.0, 300.0)
#: One that has lived so long has earned a short pause again.
_GOOD_S = 600.0
_GRACE_S = 3.0


def command(control: Path) -> tuple[str, ...]:
    """What is started."""
    # -P: no code from where the daemon happens to stand.
    return (sys.executable, "-P", "-m", "gpucorrelate.daemon.request_follow", str(control))


class RequestMeter:
    """Sums of requests, from a process of its own.

    Args:
        started: The command that is run.

    Attributes:
        latest: What it said last; None until it said anything, and after it ended.
        starts: How often it was started.
    """

    def __init__(self, started: Sequence[str]) -> None:
        self.latest: RequestSums | None = None
        self.starts = 0
        self._command = tuple(started)
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End the process and the thread."""
        self._asked.set()
        os.write(self._stop_write, b"x")
        self._thread.join(2 * _GRACE_S)
        if not self._thread.is_alive():
            os.close(self._stop_read)
            os.close(self._stop_write)

    # In the thread.

    def _run(self) -> None:
        ended = 0
        while not self._asked.is_set():
            begun = time.monotonic()
            try:
                why = self._one()
            except OSError as exc:
                why = f"cannot be started: {exc.strerror or exc}"
            self.latest = None
            if self._asked.is_set():
                return
            ended = 0 if time.monotonic() - begun > _GOOD_S else ended
            pause_s = _PAUSES_S[min(ended, len(_PAUSES_S) - 1)]
            ended += 1
            log.warning("requests for the metrics: %s; started again in %g s", why, pause_s)
            readable([self._stop_read], pause_s)

    def _one(self) -> str:
        """Start it and take what it says; returns why it is over."""
        self.starts += 1
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            why = self._take(child)
        finally:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            code = _end(child)
        return f"the process ended, code {code}" if why == "" else why

    def _take(self, child: subprocess.Popen[bytes]) -> str:
        for line in self._lines(child):
            if isinstance(line, str):
                return line
            try:
                found = from_map(RequestSums, json.loads(line))
            except (ValueError, ValueFormatError, RecursionError):
                return "what the process said cannot be read"
            if not found.is_valid:
                return "what the process said is out of bounds"
            self.latest = found
        return ""

    def _lines(self, child: subprocess.Popen[bytes]) -> Iterator[bytes | str]:
        """Its lines; last a word on why there are no more, unless it ended."""
        if child.stdout is None:
            return
        fd, left = child.stdout.fileno(), bytearray()
        while not self._asked.is_set():
            ready = readable([fd, self._stop_read], _SILENT_S)
            if not ready:
                yield f"the process said nothing for {_SILENT_S:g} s"
                return
            if self._stop_read in ready:
                return
            data = os.read(fd, 1 << 16)
            if not data:
                return
            left += data
            *lines, rest = left.split(b"\n")
            left = bytearray(rest)
            if len(left) > _MOST_LINE_BYTES:
                yield "the process said too much"
                return
            yield from map(bytes, lines)


def _end(child: subprocess.Popen[bytes]) -> int | None:
    """Its standard input is closed, at which it ends; if not it is killed."""
    try:
        return child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_GRACE_S)
    return None
