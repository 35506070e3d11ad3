# SPDX-License-Identifier: Apache-2.0
"""What a session leaves on disk beside its recording, so that it can be taken up again."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpucorrelate.daemon.segment_files import read_file, replace_file
from gpucorrelate.daemon.store import Segment  # noqa: TC001 - read at run time by from_map
from gpucorrelate.daemon.values import ValueFormatError, from_map, to_map
from gpucorrelate.probes.wire.errors import StoreError
from gpucorrelate.probes.wire.gpu import GpuPlan

FILE = "session.json"
#: Name of the file of a session whose end could not be written into it: to rename takes no room.
ENDED_FILE = "session.ended.json"

ATTACHED = "attached"
CLOSING = "closing"
DETACHED = "detached"

_IDS, _NUMBERS = 1 << 32, 1 << 63


@dataclass(frozen=True)
class SavedTarget:
    """A process of the session; ``ticks`` is its start in clock ticks since boot."""

    pid: int
    ticks: int
    comm: str = ""
    command: str = ""
    alive: bool = True


@dataclass(frozen=True)
class SavedStream:
    """A producer's stream: its number, who it is, and how far it had come.

    ``last_seq`` and ``drops`` are those at the start of the segment ``scan_from``.
    """

    number: int
    pid: int
    ticks: int
    agent_ns: int = 0
    producer: str = ""
    role: str = ""
    last_seq: int = 0
    drops: int = 0


@dataclass(frozen=True)
class SavedSession:
    """A session.

    Attributes:
        session: Session id.
        state: ``attached`` or ``detached``.
        uid: User it belongs to.
        boot_id: Boot of the machine it was made in.
        root_pid: Topmost process.
        command: Its command line.
        started_ns: When it was attached, CLOCK_MONOTONIC.
        started_unix_s: The same on the wall clock.
        until_ns: When it is to end, CLOCK_MONOTONIC; 0: when somebody says so.
        ended_unix_s: When it ended.
        reason: Why it ended.
        targets: Its processes.
        streams: Its producers.
        segments: Its files.
        scan_from: First segment not yet accounted for in ``streams`` and ``counts``.
        counts: Running totals at the start of that segment.
        lost: Events known to be lost.
        gpu: What is recorded of the GPU.
    """

    session: str
    state: str = ATTACHED
    uid: int = 0
    boot_id: str = ""
    root_pid: int = 0
    command: str = ""
    started_ns: int = 0
    started_unix_s: float = 0.0
    until_ns: int = 0
    ended_unix_s: float | None = None
    reason: str = ""
    targets: tuple[SavedTarget, ...] = ()
    streams: tuple[SavedStream, ...] = ()
    segments: tuple[Segment, ...] = field(default=())
    scan_from: int = 1
    counts: tuple[int, ...] = ()
    lost: int = 0
    gpu: GpuPlan = field(default_factory=GpuPlan)


def save(directory_fd: int, saved: SavedSession) -> None:
    """Replace the session's file.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    save_text(text_of(saved), directory_fd)


def text_of(saved: SavedSession) -> bytes:
    """What the session's file holds."""
    return json.dumps(to_map(saved), indent=1).encode()


def save_text(text: bytes, directory_fd: int) -> None:
    """``save`` of what ``text_of`` gave."""
    replace_file(directory_fd, FILE, text)
    with suppress(OSError):
        os.unlink(ENDED_FILE, dir_fd=directory_fd)


def mark_ended(directory_fd: int) -> None:
    """Have the session's file, which says that it runs, never be taken for one that does.

    Raises:
        OSError: it cannot be renamed.
    """
    with suppress(FileNotFoundError):
        os.rename(FILE, ENDED_FILE, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


def load(directory_fd: int) -> SavedSession:
    """Read the session's file.

    Raises:
        StoreError: it is not there or not what it should be.
    """
    try:
        try:
            return _checked(from_map(SavedSession, json.loads(read_file(directory_fd, FILE))))
        except FileNotFoundError:
            text = read_file(directory_fd, ENDED_FILE)
        found = _checked(from_map(SavedSession, json.loads(text)))
        reason = found.reason or "detached; how it ended could not be written"
        return replace(found, state=DETACHED, reason=reason)
    except (OSError, ValueError, RecursionError, ValueFormatError) as exc:
        raise StoreError(f"session file: {exc}") from exc


def _checked(saved: SavedSession) -> SavedSession:
    """The same, if a recording can hold its numbers; one that was damaged may have any.

    Raises:
        ValueError: one of them is none that this daemon ever wrote.
    """
    ids = [saved.uid, saved.root_pid, *(target.pid for target in saved.targets)]
    ids += [number for each in saved.streams for number in (each.number, each.pid)]
    numbers = [saved.started_ns, saved.until_ns, saved.scan_from, saved.lost, *saved.counts]
    numbers += [target.ticks for target in saved.targets]
    numbers += [n for each in saved.streams for n in (each.ticks, each.last_seq, each.drops)]
    for each in saved.segments:
        numbers += [each.number, each.size_bytes, each.rows, each.first_ns, each.last_ns]
    if not all(0 <= number < _IDS for number in ids):
        raise ValueError("a process or stream number is out of range")
    if not all(0 <= number < _NUMBERS for number in numbers):
        raise ValueError("a number is out of range")
    saved.gpu.check()
    if not all(map(math.isfinite, (saved.started_unix_s, saved.ended_unix_s or 0.0))):
        raise ValueError("a time is not finite")
    return saved
