# SPDX-License-Identifier: Apache-2.0
"""The last of a recording in memory, from which a capture of any later part can be made.

Batches are held as they were written. What is dropped leaves behind what a segment's head would
restate (``Recall``) and the last of each of the host's numbers, so that what is left can be read
as a recording whose oldest segments were deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column, frames_outside, rows_of
from gpucorrelate.daemon.moments import latest_ns
from gpucorrelate.daemon.numeric import np
from gpucorrelate.daemon.recall import RESTATED, Recall
from gpucorrelate.probes.wire.frame import Batch, Damage, Decoder
from gpucorrelate.probes.wire.schema import BY_ID, BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpucorrelate.daemon.columns import Row

#: Rows that matter from a second before the first moment that is explained: what was going on
#: then is recorded when it ends, so only what it is joined to lies before.
_HEAVY = frozenset(
    BY_NAME[name].id
    for name in (
        "wait", "wait_sum", "fault", "spin", "queue_msg", "span", "cuda_api", "gpu_op", "gpu_sync",
    )
)  # fmt: skip
_HEAVY_NS = 1_000_000_000
#: Rows of which few are enough, and which are joined over longer times: steps, anchors, losses.
_LIGHT_NS = 6_000_000_000
#: Facts that hold until they are replaced, and numbers that hold until they change.
_LASTING = RESTATED | {BY_NAME["counter"].id, BY_NAME["clock_pair"].id}
_ROWS = BY_NAME["step_rows"]
_COUNTER = BY_NAME["counter"]
_LOSS = BY_NAME["loss"]
_REFERRING = frozenset(
    BY_NAME[name].id for name in ("step_begin", "step_update", "worker_step", "outputs")
)
_MOST_NUMBERS = 1 << 14
#: What a batch costs in memory beside its columns.
_BATCH_BYTES = 600
#: Stream of rows that this reader states itself; far above the numbers of producers.
_OWN_STREAM = 1_000_001


@dataclass(frozen=True)
class _Held:
    """A batch, when the recording had got so far, and what it refers to."""

    item: Batch | Damage
    stamp_ns: int
    size_bytes: int
    rowsets: frozenset[int] = frozenset()


class Window:
    """Batches of a recording in order, the oldest dropped.

    Attributes:
        now_ns: The last moment that the recording speaks of, as its own streams tell.
        begin_ns: Nothing from before it is held; 0: all of it is.
        held_bytes: About what is held in memory.
        held_rows: Rows held.
        dropped_rows: Rows dropped.
    """

    def __init__(self) -> None:
        self.now_ns = self.begin_ns = 0
        self.held_bytes = self.held_rows = self.dropped_rows = 0
        self._held: deque[_Held] = deque()
        self._known: set[int] = set()
        self._doubted: set[int] = set()
        self._recalls: dict[int, Recall] = {}
        self._strings: dict[int, dict[int, str]] = {}
        self._numbers: OrderedDict[tuple[int, str, str], Row] = OrderedDict()
        self._head: list[Batch] | None = None

    def take(self, item: Batch | Damage) -> Batch | None:
        """Hold what comes next; returns the batch as it counts, if it does.

        What the head of a later segment restates is left out, unless something was damaged since.
        """
        if isinstance(item, Damage):
            self._doubted |= self._known
            self._hold(item, _BATCH_BYTES)
            return None
        stream = item.stream
        if item.seq:
            self._known.add(stream)
            self._doubted.discard(stream)
        elif item.kind in RESTATED and stream in self._known and stream not in self._doubted:
            item = replace(item, count=0, columns=(b"",) * len(item.columns))
        self.now_ns = max(self.now_ns, latest_ns(item))
        self._hold(item, _BATCH_BYTES + sum(map(len, item.columns)))
        return item

    def advance(self, now_ns: int) -> None:
        """The recording is known to have got so far, whatever its rows say."""
        self.now_ns = max(self.now_ns, now_ns)

    def _hold(self, item: Batch | Damage, size_bytes: int) -> None:
        rowsets = _rowsets(item) if isinstance(item, Batch) else frozenset()
        self._held.append(_Held(item, self.now_ns, size_bytes, rowsets))
        self.held_bytes += size_bytes
        self.held_rows += item.count if isinstance(item, Batch) else 0

    def trim(self, before_ns: int, max_bytes: int) -> None:
        """Drop what was recorded before a moment, and more if it is too much."""
        held = self._held
        while held and (held[0].stamp_ns < before_ns or self.held_bytes > max_bytes):
            old = held.popleft()
            self._head = None
            self.begin_ns = max(self.begin_ns, old.stamp_ns)
            self.held_bytes -= old.size_bytes
            if isinstance(old.item, Batch):
                self.held_rows -= old.item.count
                self.dropped_rows += old.item.count
                self._remember(old.item)

    def items(self, low_ns: int, tail: Iterable[Batch] = ()) -> Iterator[Batch | Damage]:
        """A recording from which everything from a moment on can be explained.

        Args:
            low_ns: The moment.
            tail: Batches that go behind, outside any order.
        """
        held = list(self._held)
        stamps = [one.stamp_ns for one in held]
        heavy = bisect_left(stamps, low_ns - _HEAVY_NS)
        light = bisect_left(stamps, low_ns - _LIGHT_NS)
        wanted = frozenset().union(*(one.rowsets for one in held[light:] if _refers(one.item)))
        yield from self._stated()
        for at, one in enumerate(held):
            item = one.item
            if isinstance(item, Damage):
                if at >= light:
                    yield item
            elif at >= heavy:
                yield item
            elif at >= light and item.kind not in _HEAVY:
                # Some of its stream are left out: outside the order that is no gap.
                yield replace(item, seq=0)
            elif _lasts(item) and (item.kind != _ROWS.id or one.rowsets & wanted):
                yield replace(item, seq=0)
            elif item.strings:
                yield replace(item, seq=0, count=0, columns=(b"",) * len(item.columns))
        yield from tail

    def loss(self, until_ns: int) -> Batch:
        """A row that says that nothing before a moment is held."""
        row = (until_ns, 0, "daemon.live", "rows older than what is held", self.dropped_rows)
        return _decoded(frames_outside(_LOSS, [row], _OWN_STREAM))[0]

    def _stated(self) -> list[Batch]:
        if self._head is None:
            head: list[Batch] = []
            for stream, strings in self._strings.items():
                own = [row for (at, _, _), row in self._numbers.items() if at == stream]
                head += _decoded(frames_outside(_COUNTER, own, stream))
                # The stream's own string ids come after those of the rows above.
                head += _decoded(self._recalls[stream].frames(strings))
            self._head = head
        return self._head

    def _remember(self, batch: Batch) -> None:
        strings = self._strings.setdefault(batch.stream, {})
        strings.update(batch.strings)
        recall = self._recalls.get(batch.stream)
        if recall is None:
            recall = self._recalls[batch.stream] = Recall(batch.stream)
        if not batch.count:
            return
        recall.take(batch, strings)
        if batch.kind == _COUNTER.id:
            self._remember_numbers(batch, strings)

    def _remember_numbers(self, batch: Batch, strings: Mapping[int, str]) -> None:
        at = (_COUNTER.index("metric"), _COUNTER.index("subject"))
        for row in rows_of(_COUNTER, batch, strings):
            key = (batch.stream, row[at[0]], row[at[1]])
            self._numbers[key] = row
            self._numbers.move_to_end(key)
        while len(self._numbers) > _MOST_NUMBERS:
            self._numbers.popitem(last=False)


def _lasts(batch: Batch) -> bool:
    return batch.kind in _LASTING and bool(batch.count)


def _refers(item: Batch | Damage) -> bool:
    return isinstance(item, Batch) and item.kind in _REFERRING


def _rowsets(batch: Batch) -> frozenset[int]:
    """Rowsets that a batch states or refers to, with their stream."""
    kind = BY_ID.get(batch.kind)
    if kind is None or not batch.count or not (kind is _ROWS or batch.kind in _REFERRING):
        return frozenset()
    numbers = np.unique(column(kind, batch.columns, "rowset", batch.count)).tolist()
    return frozenset(batch.stream << 32 | number for number in numbers)


def _decoded(frames: Iterable[bytes]) -> list[Batch]:
    decoder = Decoder()
    found = (item for frame in frames for item in decoder.feed(frame))
    return [item[0] for item in found if not isinstance(item, Damage)]
