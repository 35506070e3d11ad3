# SPDX-License-Identifier: Apache-2.0
"""A recording in memory: every kind of event as numpy columns, strings resolved.

Batches come in as they were written, from any number of streams; what was repeated is
dropped, what is missing is counted, and string ids of all streams become ids of one table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.wire.frame import Batch, Damage, StreamReader
from gpucorrelate.probes.wire.schema import BY_ID, KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Column = NDArray[np.int64]

_DTYPES = {
    "u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8",
    "i16": "<i2", "i64": "<i8", "str": "<u4",
}  # fmt: skip


class Table:
    """All rows of one kind, as columns; ``stream`` says which stream each row came from.

    Columns of ``str`` type hold ids of the capture's string table. Rows are in the order in
    which they were recorded.
    """

    def __init__(self, kind: Kind, columns: Mapping[str, NDArray[np.generic]]) -> None:
        self.kind = kind
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["stream"])

    def __getitem__(self, name: str) -> Column:
        """One column. Raises ``KeyError`` for a name the kind does not have."""
        return self._columns[name]  # type: ignore[return-value]

    def select(self, index: NDArray[np.generic]) -> Table:
        """The rows an index or mask picks, in its order."""
        return Table(self.kind, _Picked(self._columns, index))

    def extend(self, more: Mapping[str, Column]) -> Table:
        """These rows followed by others, which must give every column."""
        columns = {
            name: np.concatenate((column, np.asarray(more[name]).astype(column.dtype)))
            for name, column in self._columns.items()
        }
        return Table(self.kind, columns)

    def replace(self, name: str, values: Column) -> Table:
        """The same rows with one column exchanged."""
        return Table(self.kind, {**self._columns, name: values})


class _Picked(Mapping[str, "NDArray[np.generic]"]):
    """Rows of columns, each picked when it is first asked for: of most tables few ever are."""

    def __init__(
        self, columns: Mapping[str, NDArray[np.generic]], index: NDArray[np.generic]
    ) -> None:
        self._columns = columns
        self._index = index
        self._found: dict[str, NDArray[np.generic]] = {}

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._columns[name][self._index]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True)
class StreamInfo:
    """Who wrote a stream."""

    stream: int
    tgid: int
    producer: str
    role: str


@dataclass(frozen=True)
class Fact:
    """A fact that a stream stated, and who stated it."""

    stream: int
    key: str
    value: str


@dataclass(frozen=True)
class Intake:
    """What reading the recording itself lost or refused."""

    batches: int = 0
    repeated: int = 0
    missing: int = 0
    dropped: int = 0  # rows the producers say they dropped
    unknown_kinds: int = 0  # batches of kinds this version does not know
    damage: tuple[Damage, ...] = ()
    #: Stream, and from when to when missing batches may speak of; 0: from the beginning, and
    #: to the end.
    gaps: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Capture:
    """A recording in memory.

    Attributes:
        strings: The string table; index 0 is the empty string.
        streams: Who wrote what.
        intake: What reading it lost.
    """

    strings: tuple[str, ...]
    streams: tuple[StreamInfo, ...]
    intake: Intake
    _tables: dict[str, Table] = field(repr=False)

    def __getattr__(self, name: str) -> Table:
        tables = self.__dict__.get("_tables")
        if tables is not None and name in tables:
            return tables[name]  # type: ignore[no-any-return]
        raise AttributeError(name)

    def table(self, name: str) -> Table:
        """All rows of one kind, by its name in the schema. Raises ``KeyError``."""
        return self._tables[name]

    def facts(self, key: str = "") -> tuple[Fact, ...]:
        """Facts of a key in the order in which they were stated; without a key all."""
        rows, strings = self._tables["meta"], self.strings
        found = (
            Fact(stream, strings[at], strings[value])
            for stream, at, value in zip(
                *(rows[c].tolist() for c in ("stream", "key", "value")), strict=True
            )
        )
        return tuple(fact for fact in found if key in ("", fact.key))

    def fact(self, key: str) -> str:
        """What was stated last of a key; empty where nothing was."""
        return next((fact.value for fact in reversed(self.facts(key))), "")

    @classmethod
    def from_batches(cls, items: Iterable[Batch | Damage]) -> Capture:
        """Build a capture from batches in recorded order."""
        return _Builder().take(items).build()


#: Longer than the daemon leaves rows waiting between two drains: a dozen of its ticks.
_DRAIN_NS = 250_000_000

_NO_IDS = np.zeros(1, np.uint32)


@dataclass(frozen=True)
class _Part:
    """The rows of one batch."""

    stream: int
    count: int
    columns: tuple[NDArray[np.generic], ...]


class _Builder:
    """Collects batches per kind, then concatenates once."""

    def __init__(self) -> None:
        self.readers: dict[int, StreamReader] = defaultdict(StreamReader)
        self.parts: dict[int, list[_Part]] = defaultdict(list)
        self.global_ids: dict[str, int] = {"": 0}
        self.ids: dict[int, NDArray[np.uint32]] = {}
        self.damage: list[Damage] = []
        self.counts: Counter[str] = Counter()
        self.last: dict[int, dict[int, Batch]] = defaultdict(dict)
        self.gaps: list[tuple[int, int, int]] = []
        self.open_gaps: dict[int, int] = {}

    def take(self, items: Iterable[Batch | Damage]) -> _Builder:
        for item in items:
            if isinstance(item, Damage):
                self.damage.append(item)
            else:
                self._batch(item)
        return self

    def _batch(self, batch: Batch) -> None:
        self.counts["batches"] += 1
        fresh, missing, _ = self.readers[batch.stream].accept(batch)
        if not fresh:
            return
        self._mind_gaps(batch, missing)
        if batch.count:
            self.last[batch.stream][batch.kind] = batch
        if batch.strings:
            self._learn(batch)
        if not batch.known:
            self.counts["unknown"] += 1
        elif batch.count:
            self.parts[batch.kind].append(self._columns(batch))

    def _mind_gaps(self, batch: Batch, missing: int) -> None:
        """A gap opens where batches are missing, and closes at the next moment spoken of.

        Batches of one drain are in no order of time, hence the margin on both sides.
        """
        stream = batch.stream
        if missing:
            newest = max(map(_last_moment, self.last[stream].values()), default=0)
            self.open_gaps.setdefault(stream, max(0, newest - _DRAIN_NS))
        if stream in self.open_gaps and batch.count:
            until = _last_moment(batch)
            if until:
                self.gaps.append((stream, self.open_gaps.pop(stream), until + _DRAIN_NS))

    def _learn(self, batch: Batch) -> None:
        """The stream's string ids as ids of the one table, from this batch on."""
        ids = self.ids.get(batch.stream)
        top = max(index for index, _ in batch.strings)
        if ids is None or top >= len(ids):
            grown = np.zeros(2 * top + 64, np.uint32)
            if ids is not None:
                grown[: len(ids)] = ids
            ids = self.ids[batch.stream] = grown
        for index, text in batch.strings:
            ids[index] = self.global_ids.setdefault(text, len(self.global_ids))

    def _columns(self, batch: Batch) -> _Part:
        """A batch's columns, its strings resolved at once: an id may be reused by the next."""
        columns = []
        ids = self.ids.get(batch.stream, _NO_IDS)
        for column, data in zip(BY_ID[batch.kind].columns, batch.columns, strict=True):
            dtype = np.dtype(_DTYPES[column.ctype])
            values = np.frombuffer(data, dtype) if data else np.zeros(batch.count, dtype)
            if column.ctype == "str":
                values = ids[np.where(values < len(ids), values, 0)]
            columns.append(values)
        return _Part(batch.stream, batch.count, tuple(columns))

    def build(self) -> Capture:
        tables = {kind.name: self._table(kind) for kind in KINDS}
        strings = tuple(self.global_ids)
        stream = tables["stream"]
        infos = {
            int(number): StreamInfo(int(number), int(tgid), strings[producer], strings[role])
            for number, tgid, producer, role in zip(
                stream["stream_"], stream["tgid"], stream["producer"], stream["role"], strict=True
            )
        }
        intake = Intake(
            batches=self.counts["batches"],
            repeated=sum(reader.repeated for reader in self.readers.values()),
            missing=sum(reader.missing for reader in self.readers.values()),
            dropped=sum(reader.drops for reader in self.readers.values()),
            unknown_kinds=self.counts["unknown"],
            damage=tuple(self.damage),
            gaps=(*self.gaps, *((stream, since, 0) for stream, since in self.open_gaps.items())),
        )
        return Capture(strings, tuple(infos.values()), intake, tables)

    def _table(self, kind: Kind) -> Table:
        parts = self.parts.pop(kind.id, [])
        columns: dict[str, NDArray[np.generic]] = {
            "stream": np.repeat(
                np.array([part.stream for part in parts], "<u4"),
                np.array([part.count for part in parts], "<i8"),
            )
        }
        for at, column in enumerate(kind.columns):
            dtype = np.dtype(_DTYPES[column.ctype])
            arrays = [part.columns[at] for part in parts]
            name = column.name if column.name != "stream" else "stream_"
            columns[name] = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
        return Table(kind, columns)


def _last_moment(batch: Batch) -> int:
    """Last moment that a batch speaks of; 0 if it has no times."""
    if not batch.known:
        return 0
    return max(
        (
            int(np.frombuffer(data, "<i8").max())
            for column, data in zip(BY_ID[batch.kind].columns, batch.columns, strict=True)
            if column.ctype == "i64" and data
        ),
        default=0,
    )
