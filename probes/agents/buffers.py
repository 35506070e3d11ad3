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
    from collections.abc import Callable, Sequence

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

    Attributes:
        count: Rows refused so far.
        version: Changes whenever something stated earlier may not have arrived: after every
            loss, and at every start.
    """

    __slots__ = ("_lock", "count", "version")

    def __init__(self) -> None:
        self.count = 0
        self.version = 0
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Begin anew, in a forked child."""
        self._lock = threading.Lock()
        self.count = 0
        self.renew()

    def add(self, rows: int) -> None:
        """Count rows that were refused."""
        with self._lock:
            self.count += rows
            self.version += 1

    def renew(self) -> None:
        """Make everything stated so far void."""
        with self._lock:
            self.version += 1


class Rows:
    """Rows of one kind that wait to be sent.

    Attributes:
        kind: Their kind.
        put: Keeps a row; False when it was refused (and counted).
        heir: Told about each batch's columns before it is sent.
    """

    def __init__(self, kind: Kind, drops: Drops, limit: int = DEFAULT_LIMIT) -> None:
        self.kind = kind
        self.heir: Callable[[int, tuple[bytes, ...], StringTable], None] | None = None
        self._pending: list[Row] = []
        self._drops = drops
        self.put = _putter(self._pending, drops, limit)

    def __len__(self) -> int:
        return len(self._pending)

    def take(self) -> list[Row]:
        """The rows so far, leaving the buffer empty; rows appended meanwhile stay."""
        pending = self._pending
        count = len(pending)
        rows = pending[:count]
        del pending[:count]
        return rows

    def columns(self, rows: Sequence[Row], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns; rows with a value that does not fit are dropped, counted."""
        if not rows:
            return 0, ()
        try:
            count, columns = len(rows), columns_of(self.kind, rows, strings)
        except (OverflowError, TypeError, ValueError):
            good = [row for row in rows if self._fits(row, strings)]
            self._drops.add(len(rows) - len(good))
            if not good:
                return 0, ()
            count, columns = len(good), columns_of(self.kind, good, strings)
        if self.heir is not None:
            self.heir(count, columns, strings)
        return count, columns

    def _fits(self, row: Row, strings: StringTable) -> bool:
        try:
            columns_of(self.kind, (row,), strings)
        except (OverflowError, TypeError, ValueError):
            return False
        return True


def _putter(pending: list[Row], drops: Drops, limit: int) -> Callable[[Row], bool]:
    # A closure, because this is what every hook pays for every row: two names looked up in
    # cells instead of attributes. Length and append are atomic in CPython; that several threads
    # may each pass the check before one appends makes the limit soft by their number.
    append = pending.append

    def put(row: Row) -> bool:
        if len(pending) < limit:
            append(row)
            return True
        drops.add(1)
        return False

    return put


class SpanRows(Rows):
    """Rows of kind ``span``: the hooks' own, and those that other kinds' rows imply.

    A step's update, for one, is a span with the very times of its ``step_update`` row. Its
    columns are that kind's columns, taken over as they are when they are sent: no hook spends
    time on them.
    """

    def __init__(self, drops: Drops, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(BY_NAME["span"], drops, limit)
        self._implied: list[tuple[int, tuple[bytes, ...]]] = []

    def inherit(self, source: Rows, name: str, start: str, *, step: str = "step") -> None:
        """Have each row of a kind imply a span.

        Args:
            source: The kind's rows.
            name: Name of the span.
            start: Column of its start; the column after it is its end.
            step: Column of its step; empty: it belongs to none.
        """
        index = source.kind.index
        tid, begin = index("tid"), index(start)
        at = index(step) if step else None

        def take_over(count: int, columns: tuple[bytes, ...], strings: StringTable) -> None:
            names = _packed("I", (strings.id(name),) * count)
            steps = bytes(8 * count) if at is None else columns[at]
            self._imply(count, (columns[tid], names, columns[begin], columns[begin + 1], steps))

        source.heir = take_over

    def inherit_phases(self, source: Rows, names: dict[int, str]) -> None:
        """Like ``inherit`` for ``worker_step``, whose phase says what the span is called."""
        index = source.kind.index
        tid, begin, at, phase = index("tid"), index("start_ns"), index("step"), index("phase")

        def take_over(count: int, columns: tuple[bytes, ...], strings: StringTable) -> None:
            ids = {value: strings.id(name) for value, name in names.items()}
            named = _packed("I", [ids.get(value, 0) for value in columns[phase]])
            found = (columns[tid], named, columns[begin], columns[begin + 1], columns[at])
            self._imply(count, found)

        source.heir = take_over

    def _imply(self, count: int, columns: tuple[bytes, ...]) -> None:
        if b"\0" * 8 in columns[2]:
            # A start of 0 says that it was not seen; such rows imply nothing.
            count, columns = _without_unseen(count, columns)
        self._implied.append((count, columns))

    def columns(self, rows: Sequence[Row], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of the hooks' own rows and of the implied ones."""
        own = super().columns(rows, strings)
        parts = [part for part in (own, *self._implied) if part[0]]
        self._implied.clear()
        if not parts:
            return 0, ()
        joined = zip(*(columns for _, columns in parts), strict=True)
        return sum(count for count, _ in parts), tuple(b"".join(column) for column in joined)


def _without_unseen(count: int, columns: tuple[bytes, ...]) -> tuple[int, tuple[bytes, ...]]:
    starts = array("q", columns[2])
    keep = [row for row in range(count) if starts[row]]
    widths = [len(column) // count for column in columns]
    return len(keep), tuple(
        b"".join(column[row * width : (row + 1) * width] for row in keep)
        for column, width in zip(columns, widths, strict=True)
    )


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
            return 0, ()
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
