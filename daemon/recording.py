# SPDX-License-Identifier: Apache-2.0
"""Reading recordings: as a stream of batches for reports, and to take one up again."""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gpucorrelate.daemon.losses import ToldLosses
from gpucorrelate.daemon.recall import RESTATED
from gpucorrelate.daemon.segment_files import SUFFIX, open_regular
from gpucorrelate.daemon.streams import DAEMON_STREAM
from gpucorrelate.probes.wire.errors import RecordingError
from gpucorrelate.probes.wire.frame import Batch, Damage, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = Batch | Damage

_CHUNK_BYTES = 1 << 20
#: A file without one valid frame in this many bytes is not a recording.
_PROBE_BYTES = 64 << 20


def read_part(source: BinaryIO, size_bytes: int | None = None) -> Iterator[Item]:
    """Batches in the first ``size_bytes`` of a file; all of it by default.

    What is cut off at the end is reported as damage.
    """
    decoder = Decoder()
    left = size_bytes
    while left is None or left > 0:
        chunk = source.read(_CHUNK_BYTES if left is None else min(_CHUNK_BYTES, left))
        if not chunk:
            break
        if left is not None:
            left -= len(chunk)
        for item in decoder.feed(chunk):
            yield item if isinstance(item, Damage) else item[0]
    for item in decoder.finish():
        yield item if isinstance(item, Damage) else item[0]


def joined(items: Iterable[Item]) -> Iterator[Item]:
    """One recording out of its segments' batches, one after another.

    What the head of a later segment restates of a stream is left out, unless something was
    damaged since the stream's facts were last stated; damage that lies together is one note.
    Of the losses that a head restates there is left what was not told before.
    """
    told = ToldLosses(DAEMON_STREAM)
    known: set[int] = set()
    doubted: set[int] = set()
    restated: set[int] = set()
    damage: Damage | None = None
    for item in items:
        if isinstance(item, Damage):
            doubted |= known
            size = item.size_bytes + (damage.size_bytes if damage else 0)
            damage = Damage(damage.reason if damage else item.reason, size)
            continue
        if damage is not None:
            yield damage
            damage = None
        item = told.take(item)
        stream = item.stream
        if item.seq:
            known.add(stream)
            if stream in restated:
                restated.discard(stream)
                doubted.discard(stream)
        elif item.kind in RESTATED and item.count and stream in known:
            if stream not in doubted:
                yield replace(item, count=0, columns=(b"",) * len(item.columns))
                continue
            restated.add(stream)
        yield item
    if damage is not None:
        yield damage


def open_recording(path: str | os.PathLike[str]) -> Iterator[Item]:
    """The batches of a recording: a file, or a session's directory of segments.

    A recording that is damaged or cut off is read as far as it goes, with ``Damage`` where
    bytes had to be skipped.

    Raises:
        RecordingError: it cannot be opened, is empty, or holds nothing that can be read.
    """
    place = Path(path)
    try:
        parts = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
        if not parts:
            raise RecordingError(f"{place}: no recording in this directory")
        if not any(part.stat().st_size for part in parts):
            raise RecordingError(f"{place}: the recording is empty")
    except OSError as exc:
        raise RecordingError(f"{place}: {exc.strerror or exc}") from exc
    return _readable(joined(_files(parts)), str(place))


def _files(parts: list[Path]) -> Iterator[Item]:
    for part in parts:
        try:
            with part.open("rb") as source:
                yield from read_part(source)
        except OSError as exc:
            raise RecordingError(f"{part}: {exc.strerror or exc}") from exc


def _readable(items: Iterator[Item], what: str) -> Iterator[Item]:
    first: list[Item] = []
    skipped = 0
    for item in items:
        first.append(item)
        if isinstance(item, Batch):
            return itertools.chain(first, items)
        skipped += item.size_bytes
        if skipped > _PROBE_BYTES:
            break
    raise RecordingError(
        f"{what}: not a gpucorrelate recording",
        hint="one is made by: gpucorrelate record -o FILE --pid PID; of a GPU profile by: "
        "gpucorrelate import PROFILE -o FILE",
    )


def scan_segment(directory_fd: int, name: str, take: Callable[[Batch], None]) -> int:
    """Read a segment to take it up again: pass each batch on, and mend its end.

    Bytes behind the last whole frame are what a killed writer left; they are moved to a file
    beside the segment (``NAME.cut``) and cut off, so that nothing before them is touched.

    Returns:
        Bytes cut off.

    Raises:
        OSError: the segment cannot be read or mended.
    """
    fd = open_regular(directory_fd, name, os.O_RDWR)
    with open(fd, "r+b") as file:  # noqa: PTH123 - a descriptor, not a path
        at = good = 0
        for item in _items(file):
            if isinstance(item, Damage):
                at += item.size_bytes
                continue
            batch, frame = item
            at += len(frame)
            good = at
            take(batch)
        end = os.fstat(fd).st_size
        if end > good:
            _set_aside(directory_fd, f"{name}.cut", file, good)
            os.ftruncate(fd, good)
        return end - good


def _items(file: BinaryIO) -> Iterator[tuple[Batch, bytes] | Damage]:
    decoder = Decoder()
    while chunk := file.read(_CHUNK_BYTES):
        yield from decoder.feed(chunk)
    yield from decoder.finish()


def _set_aside(directory_fd: int, name: str, file: BinaryIO, start: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file.seek(start)
    try:
        fd = open_regular(directory_fd, name, flags)
        with open(fd, "ab") as aside:  # noqa: PTH123 - a descriptor, not a path
            while chunk := file.read(_CHUNK_BYTES):
                aside.write(chunk)
    except OSError as exc:
        # No room for half a frame: it says nothing that could be read.
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
