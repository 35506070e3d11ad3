# SPDX-License-Identifier: Apache-2.0
"""What must be restated of a stream so that a new segment can be read without the old ones.

Recordings go on in new files, and the oldest files are deleted. Facts that are stated once
and hold for long (who is who, thread roles, rowsets, capabilities) are therefore written
again at the head of every segment, outside the stream's sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING

from gpucorrelate.daemon.budget import text_bytes
from gpucorrelate.daemon.columns import column, frames_of_strings, frames_outside, rows_of
from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.host.reading import BLOCKED_IN
from gpucorrelate.probes.wire.frame import Batch, encode
from gpucorrelate.probes.wire.schema import BY_ID, BY_NAME, Kind, TaskEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpucorrelate.daemon.columns import Row

#: Kinds whose latest row for each key holds until it is replaced, and the key's columns.
_LASTING: dict[str, tuple[str, ...]] = {
    "meta": ("key",),
    "thread": ("tid",),
    "capability": ("source",),
    "metric": ("name",),
    "task": ("tid",),
    "stream": ("stream",),
    "change": ("subject", "what"),
    "clock_pair": ("clock",),
}
_SESSION = BY_NAME["session"]
#: Everything that the head of a segment may restate.
RESTATED = frozenset(BY_NAME[name].id for name in (*_LASTING, "session", "step_rows"))
_TASK = BY_NAME["task"]
_CHANGE = BY_NAME["change"]
_STEP_ROWS = BY_NAME["step_rows"]
#: Kinds that refer to a rowset: the reference keeps it alive.
_REFERRING = frozenset(
    BY_NAME[name].id for name in ("step_begin", "step_update", "worker_step", "outputs")
)

#: Rows kept of each kind: threads come and go by the thousand, facts do not.
_MAX_ROWS = {
    "task": 1 << 15,
    "thread": 1 << 14,
    "stream": 2048,
    "session": 4096,
    "change": 1 << 14,
}
_MAX_OTHER_ROWS = 1024
_MAX_ROWSETS = 256
_MAX_ROWSET_BYTES = 4 << 20
#: What a row and a part of a rowset cost beside their texts and columns, roughly: a part is a
#: frame of its own.
_ROW_BYTES = 32
_PART_BYTES = 512


class Recall:
    """The lasting facts of one stream, bounded.

    Args:
        stream: Stream number in the recording.
    """

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self._rows: dict[int, OrderedDict[object, Row]] = {}
        self._rowsets: OrderedDict[int, list[tuple[int, tuple[bytes, ...]]]] = OrderedDict()
        self._rowset_bytes = 0
        self.row_bytes = 0

    @property
    def size_bytes(self) -> int:
        """About what ``frames`` takes, the string table not included."""
        return self.row_bytes + self._rowset_bytes

    def take(self, batch: Batch, strings: Mapping[int, str]) -> None:
        """Learn from a batch; ``strings`` is the stream's table with the batch's own in it."""
        if batch.kind in _REFERRING:
            self._refer(batch)
        elif batch.kind == _STEP_ROWS.id:
            self._state_rowsets(batch)
        else:
            kind = BY_ID.get(batch.kind)
            if kind is not None and (kind.name in _LASTING or kind is _SESSION):
                self.remember(kind, rows_of(kind, batch, strings))

    def remember(self, kind: Kind, rows: Iterable[Row]) -> None:
        """Keep rows of a kind that lasts; others are passed over."""
        names = _LASTING.get(kind.name)
        if names is None and kind is not _SESSION:
            return
        kept = self._rows.setdefault(kind.id, OrderedDict())
        for row in rows:
            key = _key(kind, row) if names else row
            if _is_over(kind, row):
                self.row_bytes -= _row_size(kept.pop(key, None))
                continue
            self.row_bytes += _row_size(row) - _row_size(kept.get(key))
            kept[key] = row
            kept.move_to_end(key)
        limit = _MAX_ROWS.get(kind.name, _MAX_OTHER_ROWS)
        while len(kept) > limit:
            self.row_bytes -= _row_size(kept.popitem(last=False)[1])

    def forget_task(self, tid: int) -> None:
        """A thread that is gone need not be named again."""
        self.row_bytes -= _row_size(self._rows.get(_TASK.id, OrderedDict()).pop(tid, None))

    def latest_change(self, subject: str, what: str) -> Row | None:
        """The change that holds of a subject; ``None`` if none was told."""
        return self._rows.get(_CHANGE.id, OrderedDict()).get((subject, what))

    def forget_changes(self, subject: str) -> None:
        """What is gone need not be described again; its name may be another's soon."""
        kept = self._rows.get(_CHANGE.id, OrderedDict())
        for key in [key for key in kept if isinstance(key, tuple) and key[0] == subject]:
            self.row_bytes -= _row_size(kept.pop(key))

    def latest(self, kind: Kind) -> list[Row]:
        """The rows of a kind that hold."""
        return list(self._rows.get(kind.id, OrderedDict()).values())

    def frames(self, strings: Mapping[int, str]) -> Iterator[bytes]:
        """Frames that restate everything, with the stream's string table last but rowsets."""
        for kind_id, rows in self._rows.items():
            yield from frames_outside(BY_ID[kind_id], list(rows.values()), self.stream)
        yield from frames_of_strings(strings, self.stream)
        for parts in self._rowsets.values():
            for count, columns in parts:
                # Columns that an older agent does not know are left out, not empty.
                known = tuple(data for data in columns if data)
                yield encode(Batch(_STEP_ROWS.id, count, known, stream=self.stream))

    def _refer(self, batch: Batch) -> None:
        kind = BY_ID[batch.kind]
        used = column(kind, batch.columns, "rowset", batch.count)
        for rowset in np.unique(used).tolist():
            if rowset in self._rowsets:
                self._rowsets.move_to_end(rowset)

    def _state_rowsets(self, batch: Batch) -> None:
        if not batch.count:
            return
        numbers = column(_STEP_ROWS, batch.columns, "rowset", batch.count)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.count]
        for start, end in pairwise(cuts):
            part = tuple(
                data[start * each.size_bytes : end * each.size_bytes]
                for each, data in zip(_STEP_ROWS.columns, batch.columns, strict=True)
            )
            self._keep_rowset(int(numbers[start]), end - start, part)
        while self._rowsets and (
            len(self._rowsets) > _MAX_ROWSETS or self._rowset_bytes > _MAX_ROWSET_BYTES
        ):
            _, parts = self._rowsets.popitem(last=False)
            self._rowset_bytes -= _size(parts)

    def _keep_rowset(self, number: int, count: int, part: tuple[bytes, ...]) -> None:
        parts = self._rowsets.setdefault(number, [])
        # A rowset may be cut by a batch's end; rows from 0 on state it anew.
        at = _STEP_ROWS.index("row")
        if parts and int.from_bytes(part[at][:4], "little") == 0:
            self._rowset_bytes -= _size(parts)
            parts.clear()
        parts.append((count, part))
        self._rowsets.move_to_end(number)
        self._rowset_bytes += _size([(count, part)])


def _key(kind: Kind, row: Row) -> object:
    names = _LASTING[kind.name]
    if len(names) == 1:
        return row[kind.index(names[0])]
    return tuple(row[kind.index(name)] for name in names)


def _is_over(kind: Kind, row: Row) -> bool:
    """Whether a row says that what its key names is no more, or was so for a moment only."""
    if kind is _TASK:
        return bool(row[kind.index("event")] == TaskEvent.EXIT)
    if kind is _CHANGE:
        return not row[kind.index("after")] or row[kind.index("what")] == BLOCKED_IN
    return False


def _size(parts: list[tuple[int, tuple[bytes, ...]]]) -> int:
    return sum(_PART_BYTES + sum(map(len, columns)) for _, columns in parts)


def _row_size(row: Row | None) -> int:
    if row is None:
        return 0
    return _ROW_BYTES + sum(text_bytes(value) for value in row if isinstance(value, str))
