# SPDX-License-Identifier: Apache-2.0
"""Bounded row buffers between the hooks and the sender.

A hook appends a tuple and goes on: no lock, no wake-up, no clock. The sender takes what is
there at its own pace. What does not fit is refused and counted.
"""

from __future__ import annotations

import sys
import threading
from array import array
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.frame import columns_of
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.probes.wire.frame import StringTable
    from gpucorrelate.probes.wire.schema import Kind

Row = tuple["int | str | None", ...]

#: Rows a kind may hold before new ones are refused. At 50 streams the busiest kind makes some
#: thousands of rows a second, so this is seconds of a daemon that does not read.
DEFAULT_LIMIT = 16_384
#: Rows of rowsets are small but many: a changing batch of 256 requests states 256 a step.
ROWSET_LIMIT = 65_536


class Drops:
    """Count of refused rows over all buffers of a process.

    Incremented under a lock, because two threads may overflow at once and a count that loses
    counts would be a loss that is not told. It is only taken when something is dropped.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Begin anew, in a forked child."""
        self.count = 0
        self._lock = threading.Lock()

    def add(self, rows: int) -> None:
        """Count rows that were refused."""
        with self._lock:
            self.count += rows


class Rows:
    """Rows of one kind that wait to be sent.

    Attributes:
        pending: The rows, oldest first. Hooks may append to it directly after comparing its
            length with ``limit``; list operations are atomic in CPython.
    """

    def __init__(self, kind: Kind, drops: Drops, limit: int = DEFAULT_LIMIT) -> None:
        self.kind = kind
        self.limit = limit
        self.pending: list[Row] = []
        self._drops = drops

    def put(self, row: Row) -> bool:
        """Keep a row; False when it was refused (and counted)."""
        pending = self.pending
        if len(pending) < self.limit:
            pending.append(row)
            return True
        self._drops.add(1)
        return False

    def take(self) -> list[Row]:
        """The rows so far, leaving the buffer empty; rows appended meanwhile stay."""
        pending = self.pending
        count = len(pending)
        if not count:
            return []
        rows = pending[:count]
        del pending[:count]
        return rows

    def columns(self, rows: Sequence[Row], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns; rows with a value that does not fit are dropped, counted."""
        try:
            return len(rows), columns_of(self.kind, rows, strings)
        except (OverflowError, TypeError, ValueError):
            good = [row for row in rows if self._fits(row, strings)]
            self._drops.add(len(rows) - len(good))
            if not good:
                return 0, (b"",) * len(self.kind.columns)
            return len(good), columns_of(self.kind, good, strings)

    def _fits(self, row: Row, strings: StringTable) -> bool:
        try:
            columns_of(self.kind, (row,), strings)
        except (OverflowError, TypeError, ValueError):
            return False
        return True


#: One statement of a rowset: its number and, per column of ``step_rows`` after ``row``, one
#: sequence of values. Columns, not rows: a statement is made by the engine's busiest thread.
Statement = tuple[
    int,
    "Sequence[str]",
    "Sequence[int]",
    "Sequence[int]",
    "Sequence[int]",
    "Sequence[int]",
    "Sequence[int]",
]


class RowsetRows:
    """Statements of rowsets that wait to be sent."""

    def __init__(self, drops: Drops, limit: int = ROWSET_LIMIT) -> None:
        self.kind = BY_NAME["step_rows"]
        self.limit = limit
        self.pending: list[Statement] = []
        self._drops = drops
        self._held = 0

    def put(self, statement: Statement) -> bool:
        """Keep a statement; False when it was refused (its rows are counted as dropped)."""
        rows = len(statement[1])
        if self._held + rows > self.limit:
            self._drops.add(rows)
            return False
        self._held += rows
        self.pending.append(statement)
        return True

    def take(self) -> list[Statement]:
        """The statements so far, leaving the buffer empty."""
        pending = self.pending
        count = len(pending)
        if not count:
            return []
        taken = pending[:count]
        del pending[:count]
        self._held = sum(len(item[1]) for item in pending)
        return taken

    def columns(
        self, statements: Sequence[Statement], strings: StringTable
    ) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of the statements; bad ones are dropped and counted."""
        good: list[tuple[bytes, ...]] = []
        count = 0
        for statement in statements:
            try:
                good.append(_statement_columns(statement, strings))
                count += len(statement[1])
            except (OverflowError, TypeError, ValueError):
                self._drops.add(len(statement[1]))
        if not good:
            return 0, (b"",) * len(self.kind.columns)
        return count, tuple(b"".join(parts) for parts in zip(*good, strict=True))


def _packed(code: str, values: Sequence[int] | range) -> bytes:
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _statement_columns(statement: Statement, strings: StringTable) -> tuple[bytes, ...]:
    number, ids, scheduled, computed, prompt, preemptions, must_sample = statement
    count = len(ids)
    numbers = (scheduled, computed, prompt, preemptions, must_sample)
    if any(len(values) != count for values in numbers):
        raise ValueError("columns of a rowset differ in length")
    return (
        _packed("I", (number,) * count),
        _packed("I", range(count)),
        _packed("I", list(map(strings.id, ids))),
        _packed("I", scheduled),
        _packed("I", computed),
        _packed("I", prompt),
        _packed("I", preemptions),
        _packed("B", must_sample),
    )
