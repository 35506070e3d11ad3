# SPDX-License-Identifier: Apache-2.0
"""Which importer reads a file: told by its first bytes, never by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpucorrelate.probes.importers.rows import ImportedTrace, StepMatcher


def read_trace(
    path: Path, matcher: StepMatcher, progress: Callable[[int], None] = lambda _: None
) -> ImportedTrace:
    """The trace in a file of any kind that is known.

    Raises:
        TraceError: it is of no such kind, or cannot be read.
        OSError: the file cannot be opened.
    """
    from gpucorrelate.probes.importers.jsonfile import first_byte
    from gpucorrelate.probes.importers.kineto import read_kineto
    from gpucorrelate.probes.importers.nsys import SQLITE_MAGIC, read_nsys

    with path.open("rb") as file:
        head = file.read(len(SQLITE_MAGIC))
    if head == SQLITE_MAGIC:
        return read_nsys(path, matcher, progress)
    if first_byte(path) in (b"{", b"["):
        return read_kineto(path, matcher, progress)
    raise TraceError(
        f"{path}: neither a Kineto trace (JSON) nor an Nsight Systems export (SQLite)",
        hint="an .nsys-rep becomes one by: nsys export -t sqlite FILE.nsys-rep",
    )
