# SPDX-License-Identifier: Apache-2.0
"""Named phases of work on threads: the hooks' own, and those that other rows imply."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.buffers import (
    DEFAULT_LIMIT,
    Buffer,
    Drops,
    FlatRows,
    Texts,
)
from gpucorrelate.probes.wire.frame import packed
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from gpucorrelate.probes.wire.frame import StringTable


class SpanRows(FlatRows):
    """Rows of kind ``span``: the hooks' own, and those that other kinds' rows imply.

    A step's update, for one, is a span with the very times of its ``step_update`` row. Its
    columns are that kind's columns, taken over as they are when they are sent: no hook spends
    time on them.
    """

    def __init__(self, drops: Drops, texts: Texts, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(BY_NAME["span"], drops, texts, limit)
        self._implied: list[tuple[int, tuple[bytes, ...]]] = []

    def inherit(self, source: Buffer[Any], name: str, start: str, *, step: str = "step") -> None:
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
            names = packed("I", (strings.id(name),) * count)
            steps = bytes(8 * count) if at is None else columns[at]
            self._imply(count, (columns[tid], names, columns[begin], columns[begin + 1], steps))

        source.heir = take_over

    def inherit_phases(self, source: Buffer[Any], names: dict[int, str]) -> None:
        """Like ``inherit`` for ``worker_step``, whose phase says what the span is called."""
        index = source.kind.index
        tid, begin, at, phase = index("tid"), index("start_ns"), index("step"), index("phase")

        def take_over(count: int, columns: tuple[bytes, ...], strings: StringTable) -> None:
            ids = {value: strings.id(name) for value, name in names.items()}
            named = packed("I", [ids.get(value, 0) for value in columns[phase]])
            found = (columns[tid], named, columns[begin], columns[begin + 1], columns[at])
            self._imply(count, found)

        source.heir = take_over

    def _imply(self, count: int, columns: tuple[bytes, ...]) -> None:
        if b"\0" * 8 in columns[2]:
            # A start of 0 says that it was not seen; such rows imply nothing.
            count, columns = _without_unseen(count, columns)
        self._implied.append((count, columns))

    def columns(self, rows: bytes, strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
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
