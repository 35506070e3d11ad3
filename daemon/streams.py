# SPDX-License-Identifier: Apache-2.0
"""The streams of a recording: agents', the kernel probes' and the daemon's own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.daemon.budget import text_bytes
from gpucorrelate.daemon.columns import frames_of_strings, frames_outside, rows_of
from gpucorrelate.daemon.losses import LOSS, LossSums
from gpucorrelate.daemon.recall import Recall
from gpucorrelate.probes.wire.frame import (
    Batch,
    StreamReader,
    StreamWriter,
    StringTable,
    columns_of,
    encode,
    readdress,
)
from gpucorrelate.probes.wire.schema import BY_NAME, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpucorrelate.daemon.columns import Row

DAEMON_STREAM = 1
KERNEL_STREAM = 2
FIRST_AGENT_STREAM = 3
#: What a string costs beside its text, in the head of a segment and, partly, in memory.
_ENTRY_BYTES = 32

#: What only the daemon and its kernel probes say; from an agent it would be a forgery.
_NOT_FROM_AGENTS = frozenset(
    BY_NAME[name].id
    for name in (
        "stream",
        "session",
        "task",
        "wait",
        "wait_sum",
        "fault",
        "counter",
        "metric",
        "change",
    )
)


class LivingTable(StringTable):
    """A string table that remembers what it has stated."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, str] = {}

    def take_fresh(self) -> tuple[tuple[int, str], ...]:
        """The strings stated since the last call."""
        fresh = super().take_fresh()
        self.living.update(fresh)
        return fresh


class RelayedTable(StringTable):
    """A string table filled by somebody else: it states what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, str] = {}
        self._given: list[tuple[int, str]] = []

    def give(self, pairs: Sequence[tuple[int, str]]) -> None:
        """Take over strings with the ids they have."""
        self._given += pairs
        self.living.update(pairs)

    def take_fresh(self) -> tuple[tuple[int, str], ...]:
        """The strings given since the last call."""
        fresh, self._given = tuple(self._given), []
        return fresh


class OwnStream:
    """A stream that the daemon writes: number 1 for itself, 2 for the kernel probes."""

    def __init__(self, number: int, table: LivingTable | RelayedTable) -> None:
        self.number = number
        self.table = table
        self.recall = Recall(number)
        self.losses = LossSums()
        self._back: dict[int, str] = {}  # strings as read back from an earlier run
        self._writer = StreamWriter(number)
        self._writer.strings = table

    @property
    def last_seq(self) -> int:
        """Number of the last batch."""
        return self._writer.seq

    def continue_from(self, seq: int) -> None:
        """Go on behind what an earlier run of the daemon wrote."""
        self._writer.seq = seq

    def take_back(self, batch: Batch) -> None:
        """Learn from a batch that an earlier run of the daemon wrote."""
        self._writer.seq = max(self._writer.seq, batch.seq)
        self._back.update(batch.strings)
        self.recall.take(batch, self._back)
        if batch.kind == LOSS.id:
            rows = rows_of(LOSS, batch, self._back)
            (self.losses.add if batch.seq else self.losses.replace)(rows)

    def rows(self, kind: Kind, rows: Sequence[Row]) -> Iterator[tuple[bytes, int]]:
        """Frames for rows of Python values, each with its row count."""
        self.recall.remember(kind, rows)
        if kind is LOSS:
            self.losses.add(rows)
        columns = columns_of(kind, rows, self.table)
        return self.columns(kind, len(rows), columns)

    def columns(
        self, kind: Kind, count: int, columns: Sequence[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Frames for columns, each with its row count."""
        frames = list(self._writer.frames(kind, count, columns))
        share, rest = divmod(count, len(frames))
        for at, frame in enumerate(frames):
            yield frame, share + (rest if at == 0 else 0)

    def head(self) -> Iterator[bytes]:
        """What a new segment must restate."""
        yield from self.stated_losses()
        yield from self.recall.frames(self.table.living)  # strings after all that has its own

    def stated_losses(self, more: Sequence[Row] = ()) -> Iterator[bytes]:
        """The sums of what was lost, ``more`` included, for a reader of what there is."""
        return frames_outside(LOSS, self.losses.with_more(more), self.number)


@dataclass(frozen=True)
class Taken:
    """What became of an agent's batch.

    Attributes:
        frame: What goes into the recording; empty when nothing does.
        batch: The batch under its stream's number; None when it was refused.
        repeated: It had been taken before.
        missing: Batches that should have come before it.
        dropped: Rows that the agent dropped since its last batch.
        since_ns: When the stream's last batch came.
    """

    frame: bytes = b""
    batch: Batch | None = None
    repeated: bool = False
    missing: int = 0
    dropped: int = 0
    since_ns: int = 0


@dataclass
class AgentStream:
    """The stream of one agent: what it said so far, over all its connections.

    Attributes:
        number: Its number in the recording.
        pid: Its process, as the kernel says.
        ticks: Start of that process, in clock ticks since boot.
        agent_ns: Start of the agent, as it says: two agents can live in one process, one
            after the other, when it executes another program.
        producer: What it calls itself.
        role: Its part in the engine.
        string_bytes: Size of its string table.
        checked_bytes: Its size when it was last held against the limits.
        refused: It was beyond them; nothing of it is kept any more.
    """

    number: int
    pid: int
    ticks: int
    agent_ns: int = 0
    producer: str = ""
    role: str = ""
    string_bytes: int = 0
    checked_bytes: int = 0
    refused: bool = False
    last_ns: int = field(default_factory=time.monotonic_ns)
    reader: StreamReader = field(default_factory=StreamReader)

    def __post_init__(self) -> None:
        """Begin with nothing to restate."""
        self.recall = Recall(self.number)

    @property
    def label(self) -> str:
        """``core/4711``."""
        return f"{self.role or self.producer or 'agent'}/{self.pid}"

    def begin(self, strings: dict[int, str], last_seq: int, drops: int) -> Iterator[bytes]:
        """Go on from where the agent is; yields what the recording must know for it."""
        self.reader.strings.update(strings)
        self.measure()
        self.reader.last_seq = max(self.reader.last_seq, last_seq)
        self.reader.drops = max(self.reader.drops, drops)
        return frames_of_strings(strings, self.number)

    def measure(self) -> None:
        """Take the size of the string table anew."""
        strings = self.reader.strings
        self.string_bytes = sum(map(text_bytes, strings.values())) + _ENTRY_BYTES * len(strings)

    @property
    def own_bytes(self) -> int:
        """What the head of a segment must restate of it, but for its sets of rows."""
        return self.string_bytes + self.recall.row_bytes

    @property
    def head_bytes(self) -> int:
        """What the head of a segment must restate of it."""
        return self.string_bytes + self.recall.size_bytes

    def refuse(self) -> None:
        """Take nothing more, and have nothing of it restated."""
        self.refused = True
        self.reader.strings.clear()
        self.recall = Recall(self.number)
        self.string_bytes = self.checked_bytes = 0

    def take(self, batch: Batch, frame: bytes, now_ns: int) -> Taken:
        """Take a batch that came on the socket with its frame."""
        strings = self.reader.strings
        more = 0
        for index, text in dict(batch.strings).items():
            known = strings.get(index)
            more += text_bytes(text)
            more += _ENTRY_BYTES if known is None else -text_bytes(known)
        since = self.last_ns
        used, missing, dropped = self.reader.accept(batch)
        if not used:
            return Taken(repeated=True)
        self.string_bytes += more
        if batch.seq:
            self.last_ns = now_ns
        if batch.kind in _NOT_FROM_AGENTS or batch.seq == 0:
            # Its number and strings stay, so that the recording has no gap.
            batch = Batch(
                batch.kind,
                0,
                (b"",) * len(batch.columns),
                batch.seq,
                batch.drops,
                batch.strings,
                self.number,
            )
            frame = encode(batch)
        else:
            self.recall.take(batch, strings)
            frame = readdress(frame, self.number)
            batch = Batch(
                batch.kind,
                batch.count,
                batch.columns,
                batch.seq,
                batch.drops,
                batch.strings,
                self.number,
            )
        return Taken(frame, batch, missing=missing, dropped=dropped, since_ns=since)

    def head(self) -> Iterator[bytes]:
        """What a new segment must restate."""
        return self.recall.frames(self.reader.strings)
