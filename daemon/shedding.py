# SPDX-License-Identifier: Apache-2.0
"""What is recorded no more when there is too little room: what reports can best do without.

Overload shows first where rows are written: the file system fills, or writing takes so long
that agents and the kernel's rings overrun meanwhile, which lose whatever comes next, steps and
requests too. So rows are thrown away here before, in an order: numbers of the host, then short
waits, then all evidence of waiting and of devices. Steps, requests and tokens, names and facts
are always written. Each row that is thrown away is counted, with the time it is from.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column, select
from gpucorrelate.probes.wire.frame import Batch, encode
from gpucorrelate.probes.wire.schema import BY_ID, BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.probes.wire.schema import Kind


class Level(enum.IntEnum):
    """How much is thrown away; each level includes those below it."""

    NOTHING = 0
    CONTEXT = 1  # numbers of the host
    SHORT_WAITS = 2  # waits shorter than ``SHORT_NS``
    WAITS = 3  # all waits, faults, spins, spans, messages, work of devices


#: Waits below 50 us together moved 0.03% of the time from one actor to another where they were
#: left out of a real engine's recording.
SHORT_NS = 50_000
#: Levels begin where less than so much of the file system is free, in bytes, and less than this
#: share of it: a small one is no reason, and little of a big one is much.
_FREE_BYTES = {Level.CONTEXT: 256 << 20, Level.SHORT_WAITS: 128 << 20, Level.WAITS: 64 << 20}
_FREE_SHARE = {Level.CONTEXT: 1 / 16, Level.SHORT_WAITS: 1 / 32, Level.WAITS: 1 / 64}
#: A write that takes longer stands in the way of the kernel's rings, which fill within seconds.
_SLOW_NS = 250_000_000
#: A level lasts at least so long, and each is left for the next lower one only.
_CALM_NS = 5_000_000_000
_LOOK_NS = 250_000_000

_WAIT = BY_NAME["wait"]
_SHED = {
    Level.CONTEXT: frozenset({BY_NAME["counter"].id}),
    Level.SHORT_WAITS: frozenset(),
    Level.WAITS: frozenset(
        BY_NAME[name].id
        for name in (
            "wait",
            "wait_sum",
            "fault",
            "spin",
            "queue_msg",
            "span",
            "cuda_api",
            "gpu_op",
            "gpu_sync",
        )
    ),
}
_WHAT = {
    Level.CONTEXT: "numbers of the host",
    Level.SHORT_WAITS: f"numbers of the host, waits below {SHORT_NS // 1000} us",
    Level.WAITS: "everything but steps, requests, tokens, names and facts",
}


@dataclass(frozen=True)
class Shed:
    """Rows of a kind that were thrown away, and since when."""

    what: str
    count: int
    since_ns: int


class Shedder:
    """Decides for one session what is recorded.

    Attributes:
        level: How much is thrown away now.
        reason: Why; empty while nothing is.
    """

    def __init__(self) -> None:
        self.level = Level.NOTHING
        self.reason = ""
        self._look_ns = 0
        self._until_ns = 0
        self._shed: dict[str, tuple[int, int]] = {}

    @property
    def text(self) -> str:
        """What is not recorded and why, for people; empty while everything is."""
        if self.level is Level.NOTHING:
            return ""
        return f"not recorded: {_WHAT[self.level]}: {self.reason}"

    def look(self, now_ns: int, directory_fd: int, wrote_ns: int) -> None:
        """See how much room there is.

        Args:
            now_ns: CLOCK_MONOTONIC.
            directory_fd: Where the recording is.
            wrote_ns: How long the last write took.
        """
        if wrote_ns > _SLOW_NS:
            worse = Level(min(self.level + 1, Level.WAITS))
            self._set(worse, f"a write took {wrote_ns / 1e9:.1f} s", now_ns)
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + _LOOK_NS
        try:
            found = os.fstatvfs(directory_fd)
        except OSError:
            return  # writing will say what is wrong
        free_bytes, size_bytes = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        wanted = level_for(free_bytes, size_bytes)
        if wanted >= max(self.level, Level.CONTEXT):
            self._set(wanted, f"{free_bytes >> 20} MiB are free", now_ns)
        elif self.level > Level.NOTHING and now_ns >= self._until_ns:
            self._set(Level(self.level - 1), self.reason, now_ns)

    def sift(
        self, kind: Kind, count: int, columns: Sequence[bytes], now_ns: int
    ) -> tuple[int, Sequence[bytes]]:
        """Of rows those that are recorded."""
        if self.level is Level.NOTHING or not count:
            return count, columns
        if self.drops(kind.id):
            self.count(kind.name, count, now_ns)
            return 0, ()
        if kind is _WAIT and self.level >= Level.SHORT_WAITS:
            begun = column(kind, columns, "start_ns", count)
            kept = column(kind, columns, "end_ns", count) - begun >= SHORT_NS
            left = int(kept.sum())
            self.count(f"{kind.name} below {SHORT_NS // 1000} us", count - left, now_ns)
            return left, select(kind, columns, kept)
        return count, columns

    def of_agent(self, batch: Batch, frame: bytes, now_ns: int) -> tuple[bytes, int]:
        """What is recorded of an agent's batch, its rows; its number and strings always are."""
        if self.level is Level.NOTHING or not batch.count or not self.drops(batch.kind):
            return frame, batch.count
        self.count(BY_ID[batch.kind].name, batch.count, now_ns)
        nothing = (b"",) * len(batch.columns)
        empty = Batch(batch.kind, 0, nothing, batch.seq, batch.drops, batch.strings, batch.stream)
        return encode(empty), 0

    def drops(self, kind_id: int) -> bool:
        """Whether no row of that kind is recorded now."""
        return any(kind_id in _SHED[level] for level in _SHED if level <= self.level)

    def count(self, what: str, rows: int, now_ns: int) -> None:
        """Rows were thrown away."""
        if rows:
            known, since_ns = self._shed.get(what, (0, now_ns))
            self._shed[what] = known + rows, since_ns

    def take(self) -> list[Shed]:
        """What was thrown away since the last call."""
        found, self._shed = self._shed, {}
        why = self.reason or "there was too little room"
        return [
            Shed(f"{what} rows not recorded: {why}", count, since_ns)
            for what, (count, since_ns) in found.items()
        ]

    def _set(self, level: Level, reason: str, now_ns: int) -> None:
        self.level = level
        self.reason = reason if level else ""
        self._until_ns = now_ns + _CALM_NS


def level_for(free_bytes: int, size_bytes: int) -> Level:
    """How much is to be thrown away on a file system of that size with so much free."""
    found = Level.NOTHING
    for level, least in _FREE_BYTES.items():
        if free_bytes < min(least, size_bytes * _FREE_SHARE[level]):
            found = level
    return found
