# SPDX-License-Identifier: Apache-2.0
"""Append-only recordings in segments: what was written once stays, whatever fails later.

A write that fails (disk full, quota) is cut back to the last whole frame; what could not be
written is counted, and recording goes on in a new segment as soon as there is room. One that
takes long is left to a thread (``writer``); what comes meanwhile is kept, as far as there is
memory for it, and written together. Segments are flushed to the page cache at every turn of the
loop, so they survive the daemon's death; they are not forced to disk, so a power failure may
take the last seconds.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpucorrelate.daemon.segment_files import (
    SUFFIX,
    Wrote,
    close_all,
    new_segment,
    open_directory,
    open_regular,
    segment_numbers,
    tried,
    write_frames,
)
from gpucorrelate.daemon.writer import WRITER, Job
from gpucorrelate.probes.wire.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpucorrelate.daemon.health import Tally

R = TypeVar("R")

_RETRY_NS = 250_000_000
#: A write under way is told of again so often.
_TELL_NS = 1_000_000_000
#: How long a session's beginning waits for the disk.
_BEGIN_S = 1.0
_SLOW = "the disk is too slow"


@dataclass(frozen=True)
class Segment:
    """One file of a recording.

    Attributes:
        number: Its place, from 1.
        size_bytes: Its size.
        rows: Rows in it, without those that its head restates.
        first_ns: When it was begun, CLOCK_MONOTONIC.
        last_ns: When it was last written.
    """

    number: int
    size_bytes: int = 0
    rows: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def name(self) -> str:
        """Its file name."""
        return f"{self.number:06d}{SUFFIX}"


@dataclass(frozen=True)
class StoreLoss:
    """Rows that could not be written between two moments, and why."""

    reason: str
    frames: int
    rows: int
    since_ns: int
    t_ns: int


def _nothing() -> None:
    """What follows no job."""


class SegmentStore:
    """The segments of one session.

    Args:
        directory: The session's directory; made if it is not there.
        segment_bytes: Size at which a new segment is begun, head included.
        head: Gives the frames with which every segment begins.
        tally: Where bytes and losses are counted.
        segments: Segments that are already there, as the session remembers them.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        head: Callable[[], Iterable[bytes]],
        tally: Tally,
        segments: Iterable[Segment] = (),
    ) -> None:
        self.directory = directory
        self.directory_fd = open_directory(directory, create=True)
        self.failing = ""
        self.pending_bytes = 0
        self._head = head
        self._segment_bytes = segment_bytes
        self._tally = tally
        self._fd = self._reserve = -1
        self._body_bytes = 0
        self._room_bytes = segment_bytes
        self._retry_ns = 0
        self._pending: list[bytes] = []
        self._pending_rows: list[int] = []
        #: What the writer does for this store, and what is to follow when it has: one at a time.
        self._job: Job[Any] | None = None
        self._follow: Callable[[], None] = _nothing
        self._held = self._beginning = self._hole = False
        self._slow_ns = self._tell_ns = 0
        self._last_written = False
        self._lost_frames = self._lost_rows = self._lost_since_ns = 0
        self._losses: list[StoreLoss] = []
        known = {segment.number: segment for segment in segments}
        self.segments: list[Segment] = []
        for number in segment_numbers(self.directory_fd):
            size = os.stat(Segment(number).name, dir_fd=self.directory_fd).st_size
            self.segments.append(replace(known.get(number, Segment(number)), size_bytes=size))
        self._next = max((s.number for s in self.segments), default=0) + 1

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def writable(self) -> bool:
        """Whether the last write worked."""
        return not self.failing

    @property
    def ends(self) -> bool:
        """Whether the next flush ends the segment."""
        return self._body_bytes + self.pending_bytes >= self._room_bytes

    def append(self, frame: bytes, rows: int) -> None:
        """Take a frame to be written with the next flush."""
        self._pending.append(frame)
        self._pending_rows.append(rows)
        self.pending_bytes += len(frame)

    def begin(self) -> None:
        """Begin the first segment, or a new one after a restart.

        Raises:
            StoreError: it cannot be written.
        """
        if not self._begin(time.monotonic_ns()) and not self._answers(_BEGIN_S):
            raise StoreError(
                f"cannot write to {self.directory}: the disk has not answered for {_BEGIN_S:g} s",
                hint="see what else writes there, or give another --state-dir",
            )
        self.demand()

    def demand(self) -> None:
        """Make sure that writing works.

        Raises:
            StoreError: the last write failed.
        """
        if self.failing:
            raise StoreError(
                f"cannot write to {self.directory}: {self.failing}",
                hint="make room, or delete old recordings",
            )

    def flush(self) -> bool:
        """Write what was appended; never raises, what fails is counted.

        It waits a moment for the disk, no longer: what is not written by then is being written, or
        will be with a later flush.

        Returns:
            Whether a new segment was begun.
        """
        now = time.monotonic_ns()
        known = self._next
        if not self._answers():
            self._keep(now)
            return self._next != known
        if self.failing and now >= self._retry_ns:
            self._begin(now)
        if self.failing and self._job is None:
            self._lose(now)
        elif self._pending and self._job is None:
            self._write_pending(now)
        # The head states what is known now, so nothing may be waiting when it is written.
        if self.writable and self._job is None and self._body_bytes >= self._room_bytes:
            self._begin(now)
        return self._next != known

    def busy(self) -> bool:
        """Whether the disk does not answer, so that nothing more can be asked of it."""
        return not self._answers()

    def took_ns(self) -> int:
        """How long the slowest write since the last call took; once a second one under way too."""
        told, self._slow_ns = self._slow_ns, 0
        if self._job is not None and self._job.took_ns >= self._tell_ns:
            told = max(told, self._job.took_ns)
            self._tell_ns = self._job.took_ns + _TELL_NS
        return told

    @property
    def waits_ns(self) -> int:
        """How long a write is under way already; 0: none is."""
        return self._job.took_ns if self._job is not None else 0

    def beside(self, work: Callable[[int], None], then: Callable[[OSError | None], None]) -> None:
        """Have something done to files beside the segments; not while the disk does not answer.

        Args:
            work: Takes the directory's descriptor.
            then: Called when that is done, now or later, with what it raised.
        """

        def follow(failed: list[OSError]) -> None:
            then(failed[0] if failed else None)

        self._do(partial(tried, partial(work, self.directory_fd)), follow)

    def losses(self, *, last: bool = False) -> list[StoreLoss]:
        """What was lost since the last call.

        Args:
            last: Nothing more will be written; otherwise losses wait until writing works again.
        """
        if self.failing and not last:
            return []
        if self.failing:
            self._close_loss(time.monotonic_ns())
        losses, self._losses = self._losses, []
        return losses

    def unwritten(self) -> list[StoreLoss]:
        """What ``losses`` has not told yet."""
        found = list(self._losses)
        if self._lost_frames:
            found.append(self._loss(time.monotonic_ns()))
        return found

    def write_last(self, data: bytes) -> bool:
        """Write a recording's last frames, into the room kept for them if need be.

        They go behind what was last written, even if nothing more could be written since.

        Returns:
            Whether it worked; if not, it may be tried again.
        """
        now = time.monotonic_ns()
        if not self._answers():
            return False
        if self._last_written:
            return True
        if self.failing:
            self._give_up_reserve()
        if self._fd < 0 and not self._begin(now):
            return False

        def then(wrote: Wrote) -> None:
            if wrote.error is None:
                self._wrote(1, len(data), 1, now)
                self.failing, self._last_written = "", True
            else:
                self._fail(wrote.error.strerror or str(wrote.error), now)

        size = self.segments[-1].size_bytes
        if not self._do(partial(write_frames, self._fd, [data], size), then):
            return False
        if not self.failing:
            return True
        # Once more, with the reserve given up.
        return self._reserve >= 0 and self.write_last(data)

    def delete_oldest(self) -> Segment | None:
        """Delete the oldest segment that is not being written; None if there is none."""
        if len(self.segments) < 2 or not self._answers():
            return None
        segment = self.segments[0]
        failed: list[OSError] = []
        delete = partial(os.unlink, segment.name, dir_fd=self.directory_fd)
        # What takes long is found deleted when it is tried again.
        if not self._do(partial(tried, delete), failed.extend):
            return None
        if failed and not isinstance(failed[0], FileNotFoundError):
            return None
        del self.segments[0]
        self._tally.count_store(deleted_segments=1)
        return segment

    def open_segments(self) -> list[tuple[int, int]]:
        """Read-only descriptors of all segments, with the bytes that are whole in each."""
        opened: list[tuple[int, int]] = []
        try:
            for segment in self.segments:
                fd = open_regular(self.directory_fd, segment.name)
                opened.append((fd, segment.size_bytes))
        except OSError as exc:
            for fd, _ in opened:
                os.close(fd)
            raise StoreError(f"cannot read {self.directory}: {exc.strerror}") from exc
        return opened

    def close(self) -> None:
        """Flush and close; what a disk that does not answer still holds is closed behind that."""
        if self.directory_fd < 0:
            return
        self.flush()
        WRITER.hold(id(self), 0)
        fds = [fd for fd in (self._reserve, self._fd, self.directory_fd) if fd >= 0]
        self._reserve = self._fd = self.directory_fd = -1
        if self._job is None:
            close_all(fds)
        else:
            WRITER.start(partial(close_all, fds))

    # The disk.

    def _do(self, work: Callable[[], R], then: Callable[[R], None] | None = None) -> bool:
        """Have the writer do something, and follow it up; whether both are done."""

        def follow(job: Job[R]) -> None:
            if then is not None:
                then(job.result())

        job = WRITER.start(work)
        self._job, self._follow = job, partial(follow, job)
        self._tell_ns = 0
        return self._answers()

    def _answers(self, timeout_s: float = 0.0) -> bool:
        """Whether the disk has done all that it was asked, or does within so long."""
        job = self._job
        if job is None:
            return True
        if not job.wait(timeout_s):
            return False
        self._job = None
        self._slow_ns = max(self._slow_ns, job.took_ns)
        if self._held:
            self._held = False
            WRITER.hold(id(self), 0)
        self._follow()
        return True

    def _keep(self, now: int) -> None:
        """Keep what waits for a disk that does not answer, unless all that does is too much."""
        self._held = True
        room = WRITER.hold(id(self), self.pending_bytes)
        # What comes behind the head of a segment that is being begun belongs into it.
        if room and (self._beginning or not self.failing):
            return
        if not self.failing:
            self._fail(_SLOW, now)
        self._lose(now)
        WRITER.hold(id(self), 0)

    def _begin(self, now: int) -> bool:
        """Begin a segment; whether that is done."""
        segment = Segment(self._next, first_ns=now, last_ns=now)
        data = b"".join(self._head())
        self._hole, self._beginning = False, True

        def then(made: tuple[int, int] | OSError) -> None:
            self._beginning = False
            if isinstance(made, OSError):
                self._fail(made.strerror or str(made), now)
                return
            close_all(fd for fd in (self._fd,) if fd >= 0)
            self._fd, reserve = made
            self._reserve = max(self._reserve, reserve)
            self._next += 1
            self._body_bytes = 0
            # A head of whatever size leaves some room, or every write would begin a new segment.
            self._room_bytes = max(self._segment_bytes - len(data), self._segment_bytes // 4)
            self.segments.append(replace(segment, size_bytes=len(data)))
            # What was lost since the head was made may have been what others refer to.
            if not self._hole:
                self._recover(now)

        make = partial(new_segment, self.directory_fd, segment.name, data)
        return self._do(partial(make, reserve=self._reserve < 0), then) and not self.failing

    def _give_up_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _write_pending(self, now: int) -> None:
        frames, rows = self._pending, self._pending_rows
        self._pending, self._pending_rows, self.pending_bytes = [], [], 0

        def then(wrote: Wrote) -> None:
            self._wrote(wrote.frames, wrote.size_bytes, sum(rows[: wrote.frames]), now)
            if wrote.error is not None:
                self._fail(wrote.error.strerror or str(wrote.error), now)
                self._lost(len(frames) - wrote.frames, sum(rows[wrote.frames :]), now)
                # What came meanwhile refers to what is lost.
                self._lose(now)

        size = self.segments[-1].size_bytes
        self._do(partial(write_frames, self._fd, frames, size), then)

    def _wrote(self, frames: int, size: int, rows: int, now: int) -> None:
        last = self.segments[-1]
        self.segments[-1] = replace(
            last, size_bytes=last.size_bytes + size, rows=last.rows + rows, last_ns=now
        )
        self._body_bytes += size
        self._tally.count_store(frames=frames, written_bytes=size)

    def _fail(self, reason: str, now: int) -> None:
        self.failing = reason
        self._retry_ns = now + _RETRY_NS
        self._lost_since_ns = self._lost_since_ns or now

    def _lose(self, now: int) -> None:
        frames, rows = len(self._pending), sum(self._pending_rows)
        self._forget_pending()
        self._lost(frames, rows, now)

    def _lost(self, frames: int, rows: int, now: int) -> None:
        if frames:
            self._hole = True
            self._lost_since_ns = self._lost_since_ns or now
            self._lost_frames += frames
            self._lost_rows += rows
            self._tally.count_store(lost_frames=frames, lost_rows=rows)

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_rows.clear()
        self.pending_bytes = 0

    def _recover(self, now: int) -> None:
        self._close_loss(now)
        self.failing = ""

    def _loss(self, now: int) -> StoreLoss:
        frames, rows = self._lost_frames, self._lost_rows
        return StoreLoss(self.failing, frames, rows, self._lost_since_ns, now)

    def _close_loss(self, now: int) -> None:
        if self._lost_frames:
            self._losses.append(self._loss(now))
        self._lost_frames = self._lost_rows = self._lost_since_ns = 0
