# SPDX-License-Identifier: Apache-2.0
"""One tracing session: its processes, its streams, its recording."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpucorrelate.daemon.counting import Counts
from gpucorrelate.daemon.moments import latest_ns, written_ns
from gpucorrelate.daemon.notes import Notes
from gpucorrelate.daemon.processes import Processes
from gpucorrelate.daemon.recording import scan_segment
from gpucorrelate.daemon.saved import (
    ATTACHED,
    DETACHED,
    SavedSession,
    load,
    mark_ended,
    save_text,
    text_of,
)
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.daemon.shedding import Shedder
from gpucorrelate.daemon.store import SegmentStore
from gpucorrelate.daemon.streamset import StreamSet
from gpucorrelate.daemon.values import ProcessInfo, Progress, SessionInfo
from gpucorrelate.daemon.writer import WRITER
from gpucorrelate.probes.wire.errors import StoreError
from gpucorrelate.probes.wire.frame import Batch
from gpucorrelate.probes.wire.schema import (
    BY_NAME,
    CapabilityState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import Tally
    from gpucorrelate.daemon.store import StoreLoss
    from gpucorrelate.daemon.streams import AgentStream
    from gpucorrelate.probes.wire.schema import Kind

log = logging.getLogger(__name__)

_SAVE_EVERY_NS = 500_000_000
#: Processes whose threads are looked at in one turn: few, so that no turn takes long.
_LOOKS_PER_TURN = 4
_SETTLE_AGAIN_NS = 250_000_000
#: A write that is under way for so long is told.
_SLOW_NS = 1_000_000_000
_TASK = BY_NAME["task"]
#: A turn of the loop writes once, but memory is bounded within it as well.
_MAX_PENDING_BYTES = 16 << 20


class Session:
    """A running session.

    Args:
        directory: Where its recording is.
        config: The daemon's settings.
        tally: Where things are counted.
        saved: What identifies it, and what an earlier run of the daemon left.
    """

    def __init__(
        self, directory: Path, config: DaemonConfig, tally: Tally, saved: SavedSession
    ) -> None:
        self.id = saved.session
        self.uid = saved.uid
        self.directory = directory
        self.root_pid = saved.root_pid
        self.state = ATTACHED
        self.counts = Counts()
        self.counts.restore(saved.counts)
        self.streams = StreamSet()
        self.agents: set[int] = set()
        self.started_ns = saved.started_ns
        self.until_ns = saved.until_ns
        self.gpu = saved.gpu
        self._config = config
        self._tally = tally
        self._saved = saved
        self._dirty = True
        self._failed_to_save = False
        self._saved_ns = 0
        self._last_words = b""
        self._at_head = self.streams.saved(), self.counts.save()
        self._settle_ns = 0
        self.settled = False
        self._store = SegmentStore(
            directory, config.segment_bytes, self._head, tally, saved.segments
        )
        self._shedder = Shedder()
        self.notes = Notes(
            self.id, self.streams.own, self._store.append, saved.lost, self._shedder
        )
        self.processes = Processes(self.notes, config.limits)

    # Beginning and end.

    def begin(self) -> None:
        """Begin the recording of a new session.

        Raises:
            StoreError: it cannot be written.
        """
        self._store.begin()
        self.notes.describe(self._saved.boot_id, self.started_ns)
        self._store.flush()
        self._store.demand()
        self.save()

    def discard(self) -> None:
        """Delete a session that could not begin."""
        self._store.close()
        WRITER.start(partial(shutil.rmtree, self.directory, ignore_errors=True))

    def read_back(self) -> int:
        """Take up what an earlier run of the daemon wrote: numbers, strings, facts.

        Returns:
            When it was last written, CLOCK_MONOTONIC; 0 if it never was.

        Raises:
            OSError: the recording cannot be read.
        """
        self.streams.restore(self._saved.streams)
        last_ns = known_ns = 0
        fd = self._store.directory_fd
        for at, segment in enumerate(self._store.segments):
            if segment.number < self._saved.scan_from:
                continue
            rows = 0

            def take(batch: Batch) -> None:
                nonlocal rows, known_ns
                known_ns = max(known_ns, latest_ns(batch))
                rows += batch.count if batch.seq else 0
                self.streams.take_back(batch)
                if batch.seq:
                    self.counts.recount(batch)

            written = os.stat(segment.name, dir_fd=fd)  # before mending it changes that
            cut = scan_segment(fd, segment.name, take)
            last_ns = written_ns(self._saved, written.st_mtime_ns, max(known_ns, segment.last_ns))
            size = written.st_size - cut
            self._store.segments[at] = replace(
                segment, size_bytes=size, rows=rows, last_ns=last_ns
            )
            if cut:
                self.notes.loss("store.cut", "bytes behind the last whole frame", cut, last_ns)
        self.streams.settle(last_ns)
        self.counts.resync()
        # With no room the session goes on all the same, and counts what it loses.
        with contextlib.suppress(StoreError):
            self._store.begin()
        self.save()
        self.notes.describe(self._saved.boot_id, time.monotonic_ns())
        return last_ns

    def close(self, reason: str, *, resumable: bool = False) -> SavedSession:
        """Write the last row and close the recording; returns what is left on disk.

        Without room for that, the session is not ``settled``, and ``settle`` tries again.

        Args:
            reason: Why it ends.
            resumable: It is to be taken up when the daemon starts again.
        """
        for target in self.processes.targets.values():
            self.processes.release(target)
        self._store.flush()
        self._count_store_losses(self._store.losses(last=True))
        now = time.monotonic_ns()
        # A write that failed may have had losses in it, and no head may follow to say so.
        stated = b"".join(self.streams.own.stated_losses())
        self._last_words = stated + self.notes.last_words(self._saved.root_pid, reason, now)
        if not resumable:
            self.state = DETACHED
            self._saved = replace(self._saved, ended_unix_s=time.time(), reason=reason)
        self._dirty = True
        return self.settle(now)

    def settle(self, now_ns: int) -> SavedSession:
        """Write the end of a closed session unless that is done; returns what is on disk."""
        if self.settled or now_ns < self._settle_ns:
            return self._saved
        self._settle_ns = now_ns + _SETTLE_AGAIN_NS
        self._store.flush()
        if self._store.busy():
            return self._saved
        if more := self._store.losses(last=True):  # of what a slow disk had still to write
            self._count_store_losses(more)
            self._last_words += b"".join(self.streams.own.stated_losses(self.notes.unwritten()))
        if self._last_words and self._store.write_last(self._last_words):
            self._last_words, self._dirty = b"", True
        if self._store.busy():
            return self._saved
        if self._dirty or self._last_words:
            self.save()
        if self._store.busy():
            return self._saved
        if self._failed_to_save and self.state == DETACHED:
            try:
                mark_ended(self._store.directory_fd)
            except OSError as exc:
                log.warning("session %s: its end cannot be written: %s", self.id, exc)
        elif not self._last_words:
            self.abandon()
        return self._saved

    @property
    def writing(self) -> bool:
        """Whether the disk has still to answer."""
        return self._store.busy()

    def abandon(self) -> None:
        """Close the files of a closed session, whether its end is written or not."""
        self.settled = True
        self._store.close()

    def tail(self) -> bytes:
        """What is known but could not be written: for readers of the recording as it is."""
        if self._last_words:
            return self._last_words
        rows = self.notes.unwritten()
        for loss in self._store.unwritten():
            what = f"rows ({loss.reason})"
            rows.append((loss.t_ns, loss.since_ns, "store.disk", what, loss.rows))
        return b"".join(self.streams.own.stated_losses(rows))

    # What is recorded.

    def take_agent(self, stream: AgentStream, batch: Batch, frame: bytes, now_ns: int) -> None:
        """Record an agent's batch."""
        taken = stream.take(batch, frame, now_ns)
        if taken.repeated:
            self._tally.count_ingest(repeated=1)
            return
        if taken.missing:
            self._tally.count_ingest(missing=taken.missing)
            what = f"batches of {stream.label}"
            self.notes.loss("ingest.stream", what, taken.missing, taken.since_ns, now_ns)
            self.counts.resync()
        if taken.dropped:
            self._tally.count_ingest(agent_dropped=taken.dropped)
            what = f"rows of {stream.label}"
            self.notes.loss("agent.queue", what, taken.dropped, taken.since_ns, now_ns)
            self.counts.resync()
        if taken.batch is not None:
            self.counts.take(taken.batch, now_ns)
            self._store.append(*self._shedder.of_agent(taken.batch, taken.frame, now_ns))
            if self._store.pending_bytes > _MAX_PENDING_BYTES:
                self.flush()

    def take_kernel(self, kind: Kind, count: int, columns: Sequence[bytes], now_ns: int) -> None:
        """Record rows of the kernel probes; their strings were given to ``kernel_strings``."""
        self.counts.take_kernel(kind.id, count, now_ns)
        if kind is _TASK:
            batch = Batch(kind.id, count, tuple(columns))
            self.streams.kernel.recall.take(batch, self.streams.kernel_strings.living)
        kept, columns = self._shedder.sift(kind, count, columns, now_ns)
        for frame, rows in self.streams.kernel.columns(kind, kept, columns) if kept else ():
            self._store.append(frame, rows)

    # Processes.

    def gone(self, pid: int, now_ns: int, why: str = "ended") -> None:
        """A process has ended, or is none of the session's any more."""
        if not self.processes.alive(pid):
            return
        self.agents.discard(pid)
        left = [
            step
            for stream in self.streams.agents.values()
            if stream.pid == pid
            for step in self.counts.take_steps_of(stream.number)
        ]
        self.processes.gone(pid, left, now_ns, why)

    def stream_of(
        self, pid: int, ticks: int, agent_ns: int, producer: str, role: str
    ) -> AgentStream | None:
        """The stream of an agent, new if need be; None when there are too many."""
        stream = self.streams.find(pid, ticks, agent_ns)
        if stream is not None:
            if role and role != stream.role:
                stream.role = role
                self.notes.agent(stream)
                self._dirty = True
            return stream
        stream = self.streams.add(pid, ticks, agent_ns, producer, role)
        if stream is not None:
            self.notes.agent(stream)
            self._dirty = True
            self.save()
        return stream

    def append_frames(self, frames: Iterable[bytes]) -> None:
        """Record frames that stand outside any order."""
        for frame in frames:
            self._store.append(frame, 0)

    # The turn of the loop.

    def look(self, now_ns: int) -> None:
        """Look at the threads of some of its processes, if any are due."""
        for _ in range(_LOOKS_PER_TURN):
            self.processes.look(now_ns)

    def tick(self, now_ns: int) -> None:
        """Write losses, flush."""
        self._check_silence(now_ns)
        self.notes.clock(now_ns)
        self._shed()
        self._write_losses()
        began = self._store.flush()
        self._shedder.look(now_ns, self._store.directory_fd, self._store.took_ns())
        self._count_store_losses(self._store.losses())
        changed = self._dirty or self.processes.changed
        if began or (changed and now_ns - self._saved_ns > _SAVE_EVERY_NS):
            self.save()

    def flush(self) -> None:
        """Write everything that was taken."""
        self._write_losses()
        if self._store.flush():
            self.save()

    def trim(self, max_bytes: int, before_ns: int, max_segments: int) -> None:
        """Delete the oldest segments beyond the limits, and record that at once."""
        store = self._store
        known = len(store.segments)
        while len(store.segments) > 1 and (
            store.size_bytes > max_bytes
            or len(store.segments) > max_segments
            or 0 < store.segments[0].last_ns < before_ns
        ):
            segment = store.delete_oldest()
            if segment is None:
                break
            what = "rows in segments deleted to keep the limits"
            since_ns, t_ns = self.started_ns, segment.last_ns
            self.notes.loss("store.retention", what, segment.rows, since_ns, t_ns)
            self._dirty = True
        if len(store.segments) < known:
            self.flush()

    @property
    def segment_count(self) -> int:
        """Files of the recording."""
        return len(self._store.segments)

    @property
    def segment_number(self) -> int:
        """Number of the file that is written to; 0 before the first."""
        return self._store.segments[-1].number if self._store.segments else 0

    @property
    def segment_ends(self) -> bool:
        """Whether the file that is written to is full with what waits to be written."""
        return self._store.ends

    @property
    def size_bytes(self) -> int:
        """Size of the recording."""
        return self._store.size_bytes

    @property
    def failing(self) -> str:
        """Why the recording cannot be written; empty while it can."""
        return self._store.failing

    def open_segments(self) -> list[tuple[int, int]]:
        """Descriptors and whole sizes of the recording's files.

        Raises:
            StoreError: they cannot be opened.
        """
        return self._store.open_segments()

    # What is told.

    def info(self) -> SessionInfo:
        """The session as callers see it."""
        roles = {stream.pid: stream.role for stream in self.streams.agents.values()}
        return SessionInfo(
            session=self.id,
            state=self.state,
            uid=self.uid,
            root_pid=self._saved.root_pid,
            command=self._saved.command,
            started_unix_s=self._saved.started_unix_s,
            ended_unix_s=self._saved.ended_unix_s,
            reason=self._saved.reason,
            processes=tuple(
                ProcessInfo(
                    t.pid, t.comm, roles.get(t.pid, ""), t.pid in self.agents, t.alive, t.command
                )
                for t in self.processes.targets.values()
            ),
            segments=len(self._store.segments),
            size_bytes=self.size_bytes,
            lost=self.lost,
        )

    def progress(self) -> Progress:
        """Live numbers."""
        counts = self.counts
        return Progress(
            session=self.id,
            state=self.state,
            t_ns=time.monotonic_ns(),
            requests_received=counts.requests_received,
            requests_finished=counts.requests_finished,
            steps=counts.steps,
            steps_in_flight=counts.steps_in_flight,
            tokens=counts.tokens,
            waits=counts.waits,
            rows=counts.rows,
            lost=self.lost,
            processes=len(self.processes.living()),
            agents=len(self.agents),
            threads=self.processes.threads(),
            size_bytes=self.size_bytes,
            warnings=self.warnings(),
        )

    @property
    def lost(self) -> int:
        """Events known to be lost."""
        return self.notes.lost + sum(loss.rows for loss in self._store.unwritten())

    def warnings(self) -> tuple[str, ...]:
        """What is wrong now."""
        found = [self.processes.warning] if self.processes.warning else []
        if self.failing:
            found.append(f"recording cannot be written: {self.failing}")
        if self._store.waits_ns > _SLOW_NS:
            waits_s = self._store.waits_ns / 1e9
            found.append(f"the disk is slow: a write has been under way for {waits_s:.0f} s")
        if self._shedder.text:
            found.append(self._shedder.text)
        return (*found, *self.notes.complaints())

    def save(self) -> None:
        """Have the session's file written; a failure is logged and tried again."""
        self._saved_ns = time.monotonic_ns()
        if self._store.busy():
            self._dirty = True
            return
        text = text_of(self._snapshot())
        self._dirty = self.processes.changed = False
        self._store.beside(partial(save_text, text), self._was_saved)

    def _was_saved(self, error: OSError | None) -> None:
        if error is not None and not self._failed_to_save:
            log.warning("session %s: cannot save its state: %s", self.id, error)
        self._failed_to_save = error is not None
        self._dirty = self._dirty or self._failed_to_save

    # Inside.

    def _head(self) -> list[bytes]:
        """The beginning of a segment; what is known then is kept for the session's file."""
        frames = list(self.streams.head())
        self._at_head = self.streams.saved(), self.counts.save()
        return frames

    def _snapshot(self) -> SavedSession:
        """The session's file: as of the head of the segment being written."""
        segments = tuple(self._store.segments)
        saved = self._saved
        last = segments[-1].number if segments else 1
        if last != saved.scan_from:
            streams, counts = self._at_head
            saved = replace(saved, streams=streams, counts=counts, scan_from=last)
            saved = replace(saved, streams=self.streams.saved_with_new(streams))
        else:
            saved = replace(saved, streams=self.streams.saved_with_new(saved.streams))
        self._saved = replace(
            saved,
            state=DETACHED if self.state == DETACHED else ATTACHED,
            segments=segments,
            lost=self.lost,
            targets=self.processes.saved(),
        )
        return self._saved

    def _check_silence(self, now_ns: int) -> None:
        source = "vllm.steps"
        if self.counts.silent(now_ns):
            self.notes.capability(
                source,
                CapabilityState.DEGRADED,
                "step stream silent: requests are in flight and the engine works, but no step "
                "is reported; the agent's hooks do not fit this engine",
            )
        elif self.notes.knows(source):
            self.notes.capability(source, CapabilityState.ON, "")

    def _shed(self) -> None:
        """Record what was thrown away for want of room, and what is thrown away now."""
        for shed in self._shedder.take():
            self._tally.count_store(shed_rows=shed.count)
            self.notes.loss("daemon.shed", shed.what, shed.count, shed.since_ns)
        text, source = self._shedder.text, "recording"
        if text or self.notes.knows(source):
            state = CapabilityState.DEGRADED if text else CapabilityState.ON
            self.notes.capability_state(source, state, text)

    def _count_store_losses(self, losses: Iterable[StoreLoss]) -> None:
        for loss in losses:
            what = f"rows ({loss.reason})"
            self.notes.loss("store.disk", what, loss.rows, loss.since_ns, loss.t_ns)

    def _write_losses(self) -> None:
        # While nothing can be written, losses of other hops are kept, not lost as well.
        if self._store.writable:
            self.notes.write_losses()


def load_session(directory: Path) -> SavedSession:
    """The session's file in a directory.

    Raises:
        StoreError: it is not there or cannot be understood.
    """
    fd = open_directory(directory)
    try:
        return load(fd)
    finally:
        os.close(fd)
