# SPDX-License-Identifier: Apache-2.0
"""Bounded row buffers between the hooks and the sender.

A hook appends a tuple and goes on: no lock, no wake-up, no clock. The sender takes what is
there at its own pace. What does not fit is refused and counted.
"""

from __future__ import annotations

import abc
import sys
import threading
from array import array
from typing import TYPE_CHECKING, Generic, TypeVar

from gpucorrelate.probes.agents.hot import Counter, Store, transposed
from gpucorrelate.probes.wire.frame import columns_of, packed
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.probes.wire.frame import StringTable
    from gpucorrelate.probes.wire.schema import Kind

Row = tuple["int | str | None", ...]

#: Rows a kind may hold before new ones are refused. At 50 streams the busiest kind makes about
#: ten thousand rows a second, so this is seconds of a daemon that does not read.
DEFAULT_LIMIT = 32_768
#: Rows of rowsets are small but many: a changing batch of 256 requests states 256 a step.
ROWSET_LIMIT = 65_536


Taken = TypeVar("Taken")


class Drops(Counter):
    """Count of refused rows over all buffers of a process.

    Incremented under a lock, because two threads may overflow at once and a count that loses
    counts would be a loss that is not told. It is only taken when something is dropped.

    Attributes:
        count: Rows refused so far.
        version: Changes whenever something stated earlier may not have arrived: after every
            loss, and at every start.
    """

    __slots__ = ("_lock",)

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


class Buffer(abc.ABC, Generic[Taken]):
    """Rows of one kind that wait to be sent.

    Attributes:
        kind: Their kind.
        put: Keeps a row; False when it was refused (and counted).
        heir: Told about each batch's columns before it is sent.
    """

    put: Callable[[Row], bool]

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.heir: Callable[[int, tuple[bytes, ...], StringTable], None] | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Rows that wait."""

    @abc.abstractmethod
    def take(self) -> Taken:
        """The rows so far, leaving the buffer empty; rows put meanwhile stay."""

    @abc.abstractmethod
    def columns(self, rows: Taken, strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of what ``take`` returned."""


class Rows(Buffer["list[Row]"]):
    """Rows as tuples, for kinds that are rare or full of texts."""

    def __init__(self, kind: Kind, drops: Drops, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(kind)
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

    def columns(self, rows: list[Row], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
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


class Texts:
    """A small table of texts that flat rows refer to by number: names, never contents.

    Bounded and never emptied: what does not fit becomes ``OTHER``. Not the wire's table, whose
    numbers the sender alone may give out.
    """

    OTHER = "(other)"

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._texts: list[str] = ["", self.OTHER]
        self._numbers: dict[str, int] = {"": 0, self.OTHER: 1}

    def renew_lock(self) -> None:
        """In a forked child: the parent's other threads may have held the lock, and are gone."""
        self._lock = threading.Lock()

    def number(self, text: str) -> int:
        """The number of a text, in this process."""
        found = self._numbers.get(text)
        if found is not None:
            return found
        with self._lock:
            found = self._numbers.get(text)
            if found is None:
                if len(self._texts) >= self._limit:
                    return 1
                found = len(self._texts)
                self._texts.append(text)
                self._numbers[text] = found
        return found

    def on_wire(self, column: bytes, strings: StringTable) -> bytes:
        """A column of numbers of this table as one of the stream's string ids."""
        numbers = array("I", column)
        if sys.byteorder == "big":
            numbers.byteswap()
        texts = self._texts
        ids = {
            number: strings.id(texts[number] if number < len(texts) else self.OTHER)
            for number in set(numbers)
        }
        return packed("I", list(map(ids.__getitem__, numbers)))


class FlatRows(Buffer[bytes]):
    """Rows of a kind whose values are all integers, or numbers of ``Texts`` in ``str`` columns.

    They are kept packed, 8 bytes a value. A row costs its hook one call and no object that
    outlives it, and costs the sender next to nothing: a column is every n-th value, which a
    strided copy takes out, without a Python object per value. Values must fit their columns;
    only their low bytes travel.

    Attributes:
        store: The rows.
    """

    def __init__(self, kind: Kind, drops: Drops, texts: Texts, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(kind)
        self._texts = texts
        self._sizes = bytes(column.size_bytes for column in kind.columns)
        self._text_columns = [at for at, c in enumerate(kind.columns) if c.ctype == "str"]
        self.store = Store(len(self._sizes), limit, drops)
        self.put = self.store.put

    def __len__(self) -> int:
        return len(self.store)

    def take(self) -> bytes:
        """The rows so far, packed, leaving the buffer empty."""
        return self.store.take()

    def columns(self, rows: bytes, strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns."""
        count = len(rows) // (8 * len(self._sizes))
        if not count:
            return 0, ()
        columns = transposed(rows, self._sizes)
        for at in self._text_columns:
            columns[at] = self._texts.on_wire(columns[at], strings)
        found = tuple(columns)
        if self.heir is not None:
            self.heir(count, found, strings)
        return count, found


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

    def __len__(self) -> int:
        """Rows of the statements that wait."""
        return self._held

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


def _statement_columns(statement: Statement, strings: StringTable) -> tuple[bytes, ...]:
    number, ids, scheduled, computed, prompt, preemptions, must_sample = statement
    count = len(ids)
    numbers = (scheduled, computed, prompt, preemptions, must_sample)
    if any(len(values) != count for values in numbers):
        raise ValueError("columns of a rowset differ in length")
    return (
        packed("I", (number,) * count),
        packed("I", range(count)),
        packed("I", list(map(strings.id, ids))),
        packed("I", scheduled),
        packed("I", computed),
        packed("I", prompt),
        packed("I", preemptions),
        packed("B", must_sample),
    )
