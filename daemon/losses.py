# SPDX-License-Identifier: Apache-2.0
"""Sums of what was lost: losses outlive the segments and the writes that told of them.

A segment that told of a loss may be deleted or damaged, and the write that was to tell of it may
have failed. So the head of every segment states again, outside the stream's sequence, how much
was lost until then by hop and kind; whoever reads takes of that only what no row has told yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.probes.wire.frame import Batch, StringTable, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.daemon.columns import Row

LOSS = BY_NAME["loss"]
#: Kinds told apart while a session records, for months perhaps; beyond, those of a hop are one.
_MOST_KINDS = 1024
OTHERS = "others, after too many different ones"
#: Of what peers say that they lost the sum must still fit a column.
_MOST_EVENTS = 1 << 63


class LossSums:
    """Lost events by hop and kind, each with the time that they span; bounded."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Row] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows of the kind ``loss``."""
        for t_ns, since_ns, hop, what, count in rows:
            key = (hop, what)
            if key not in self._sums and len(self._sums) >= _MOST_KINDS:
                key = (hop, OTHERS)
            known = self._sums.get(key, (t_ns, since_ns, *key, 0))
            total = min(known[4] + count, _MOST_EVENTS)
            self._sums[key] = (max(known[0], t_ns), min(known[1], since_ns), *key, total)

    def replace(self, rows: Iterable[Row]) -> None:
        """Take over sums as they were stated."""
        self._sums.update(((row[2], row[3]), row) for row in rows)

    def rows(self) -> list[Row]:
        """The sums, as rows of the kind ``loss``."""
        return list(self._sums.values())

    def with_more(self, rows: Iterable[Row]) -> list[Row]:
        """What ``rows`` will be when these are counted."""
        sums = LossSums()
        sums.replace(self.rows())
        sums.add(rows)
        return sums.rows()

    def beyond(self, rows: Iterable[Row]) -> list[Row]:
        """What stated sums hold beyond these; afterwards it is counted."""
        stated = list(rows)
        counts = [self._sums.get((row[2], row[3]), (*row[:4], 0))[4] for row in stated]
        self.replace(stated)
        return [
            (*row[:4], row[4] - known)
            for row, known in zip(stated, counts, strict=True)
            if row[4] > known
        ]


class ToldLosses:
    """What the batches of a recording told of losses so far; for its reader.

    Args:
        stream: Number of the stream that tells of them.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._sums = LossSums()
        self._strings: dict[int, str] = {}

    def take(self, batch: Batch) -> Batch:
        """The batch as a reader should get it: stated sums become what is news of them."""
        if batch.stream != self._stream:
            return batch
        self._strings.update(batch.strings)
        if batch.kind != LOSS.id or not batch.count:
            return batch
        rows = rows_of(LOSS, batch, self._strings)
        if batch.seq:
            self._sums.add(rows)
            return batch
        news = self._sums.beyond(rows)
        table = StringTable()
        columns = columns_of(LOSS, news, table) if news else (b"",) * len(LOSS.columns)
        strings = table.take_fresh()
        return Batch(LOSS.id, len(news), columns, strings=strings, stream=batch.stream)
