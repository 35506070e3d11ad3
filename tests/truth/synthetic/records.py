# SPDX-License-Identifier: Apache-2.0
"""What the probes would have written, in the wire's format.

Rows are kept by stream and kind and written out in batches, as agents and the daemon do, each
stream numbered by its own writer. What is to be lost is taken out here, by a ``Sieve``, and the
loss is stated as the hop that loses it would.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from gpucorrelate.probes.wire.frame import StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, ApiKind, SessionEvent

if TYPE_CHECKING:
    from gpucorrelate.probes.wire.schema import Kind
    from tests.truth.synthetic.loss import Sieve
    from tests.truth.synthetic.machine import Process, Stranger, Thread, WaitAs

#: Streams of the daemon and of the kernel's probes; agents follow.
DAEMON, KERNEL, FIRST_AGENT = 1, 2, 3
NONE = (1 << 64) - 1
_RUNTIME = int(ApiKind.RUNTIME)
_FULL = 4096
_ADDRESS = 0x7F20_0000_0000

Row = tuple[Any, ...]


class Recorder:
    """Rows in, frames out."""

    def __init__(self, out: BinaryIO, sieve: Sieve | None = None) -> None:
        self.out, self.sieve = out, sieve
        self.writers: dict[int, StreamWriter] = {}
        self.rows: dict[tuple[int, str], list[Row]] = defaultdict(list)
        self.waits = self.rows[KERNEL, "wait"]
        self.events = 0
        self.drops: dict[int, int] = defaultdict(int)
        self.lost_frames = 0

    # --- rows

    def put(self, stream: int, kind: str, *row: Any) -> None:
        """A row of any kind, its columns in the schema's order."""
        self.rows[stream, kind].append(row)

    def stream(self, stream: int, pid: int, producer: str, role: str) -> None:
        """A producer introduces itself."""
        self.put(DAEMON, "stream", stream, pid, 0, producer, role)

    def session(self, t: int, event: SessionEvent, pid: int = 0) -> None:
        """A turn in the session's life."""
        self.put(DAEMON, "session", t, int(event), pid, "synthetic", "")

    def process(self, process: Process, t: int) -> None:
        """A process is traced from now on."""
        self.stream(process.stream, process.pid, "vllm", process.role)
        self.session(t, SessionEvent.PROCESS_ADDED, process.pid)
        self.put(process.stream, "meta", t, "gil", "7f0000001000:4096")

    def thread(self, thread: Thread) -> None:
        """A thread as its process names it."""
        self.put(thread.process.stream, "thread", thread.tid, thread.name, thread.role)

    def wait(
        self,
        thread: Thread,
        start: int,
        wake: int,
        end: int,
        how: WaitAs,
        by: Thread | Stranger | None,
        ran: Thread | Stranger | None,
    ) -> None:
        """A wait that is over."""
        tid, pid = (by.tid, by.pid) if by is not None else (0, 0)
        ran_tid, ran_pid = (ran.tid, ran.pid) if ran is not None else (0, 0)
        self.waits.append(
            (thread.tid, thread.pid, start, wake, end, how.kind, how.flags, 0, how.syscall,
             how.waker_syscall, how.op, how.arg, tid, pid, ran_tid, ran_pid)
        )  # fmt: skip

    def fault(
        self, thread: Thread, start: int, end: int, *, wake=0, block=0, inode=0, flags=0
    ) -> None:
        """A page fault that is resolved."""
        self.put(KERNEL, "fault", thread.tid, thread.pid, start, end, wake, block, _ADDRESS, inode,
                 253 << 20 | 1, flags, 0, 0)  # fmt: skip

    def span(self, thread: Thread, name: str, start: int, end: int, step: int = 0) -> None:
        """A named phase of work."""
        self.rows[thread.process.stream, "span"].append((thread.tid, name, start, end, step))

    def call(self, thread: Thread, name: str, number: int, start: int, end: int) -> None:
        """A call of the CUDA API."""
        self.rows[thread.process.stream, "cuda_api"].append(
            (thread.pid, thread.tid, name, _RUNTIME, number, start, end)
        )

    # --- batches

    def flush(self, t: int) -> None:
        """Write out what there is, stream by stream."""
        sieve = self.sieve
        for (stream, kind), rows in self.rows.items():
            if rows:
                kept = rows if sieve is None else sieve.through(stream, kind, rows)
                if sieve is not None:
                    self.drops[stream] = sieve.dropped[stream]
                self._write(stream, BY_NAME[kind], kept, t)
                self.events += len(rows)
                rows.clear()
        if sieve is not None:
            for row in sieve.stated(t):
                self._write(DAEMON, BY_NAME["loss"], [row], t)

    def _write(self, stream: int, kind: Kind, rows: list[Row], t: int) -> None:
        writer = self.writers.get(stream)
        if writer is None:
            writer = self.writers[stream] = StreamWriter(stream)
        if rows and len(rows[0]) < len(kind.columns):
            # Columns are appended as probes learn more: these are written as by older ones.
            kind = replace(kind, columns=kind.columns[: len(rows[0])])
        for at in range(0, len(rows), _FULL):
            part = rows[at : at + _FULL]
            columns = columns_of(kind, part, writer.strings)
            frames = writer.frames(kind, len(part), columns, drops=self.drops[stream])
            if self.sieve is not None and self.sieve.swallows(stream, kind.name, t):
                self.lost_frames += len(list(frames))
                # Whoever sends on after a loss states its strings again.
                writer.strings.restate()
                continue
            for frame in frames:
                self.out.write(frame)
