# SPDX-License-Identifier: Apache-2.0
"""PyTorch profiler traces (Kineto's JSON, plain or gzip) as events.

Formats since 2021: capitalised categories and stream names then, lower case later; moments in
microseconds, whole or with decimals, since ``baseTimeNanoseconds`` where that is given. They
become integer nanoseconds by decimal arithmetic, never through a binary fraction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from gpucorrelate.probes.importers import events as kinds
from gpucorrelate.probes.importers.events import CALLS, OPS, RANGES, SYNCS, Event
from gpucorrelate.probes.importers.jsonfile import JsonElements
from gpucorrelate.probes.importers.rows import (
    LONGEST_TEXT,
    ImportedTrace,
    Problems,
    ProcessTrace,
    StepMatcher,
    StepRange,
)
from gpucorrelate.probes.importers.values import (
    UnreadableError,
    integer,
    low_bits,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from gpucorrelate.probes.importers.native import EventScanner

_BASE, _RANK, _GPU = "baseTimeNanoseconds", "distributedInfo", "deviceProperties"
_I64 = 1 << 63
#: So many events may lie decoded before they become rows.
_MOST_WAITING = 4096
#: What can be wrong with an event.
_UNREADABLE = (UnreadableError, OverflowError)
_T = TypeVar("_T")


def read_kineto(
    path: Path, matcher: StepMatcher, progress: Callable[[int], None] = lambda _: None
) -> ImportedTrace:
    """The trace of one process.

    Args:
        path: A ``.json`` or ``.json.gz`` file.
        matcher: Which annotations may be steps.
        progress: Called with the bytes of text read so far.

    Raises:
        TraceError: it is no JSON.
        OSError: it cannot be read.
    """
    problems = Problems()
    decoder = msgspec.json.Decoder(list[Event], float_hook=str.encode)
    wanted = (_BASE, _RANK, _GPU)
    scanner = kinds.scanner()
    elements = JsonElements(path, "traceEvents", wanted, decoder, problems, progress, scanner)
    reader = _Reader(matcher, problems, scanner)
    for places, found in elements:
        reader.take(places, found)
    reader.flush()
    rank = integer(_members(elements.values.get(_RANK)).get("rank"), -1)
    process = reader.process
    process.pid = reader.owner()
    process.rank = max(rank, 0) & 0xFFFF
    process.role = f"rank {rank}" if rank >= 0 else ""
    base_ns = integer(elements.values.get(_BASE), 0)
    if not 0 <= base_ns < _I64:
        problems.add(f"{_BASE} is out of range")
        base_ns = 0
    reader.settle(base_ns)
    return ImportedTrace(
        path.name, "kineto", [process], problems, _facts(elements.values.get(_GPU))
    )


def _facts(devices: object) -> dict[str, str]:
    """The first device's name."""
    for device in devices if isinstance(devices, list) else ():
        if "name" in _members(device):
            return {"gpu": words(device["name"])}
    return {}


def _members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Reader:
    """Sorts events into rows, in the order of the file.

    Args:
        matcher: Which named ranges are kept.
        problems: Told which events could not be read.
        scanner: Has rows of further events.
    """

    def __init__(
        self, matcher: StepMatcher, problems: Problems, scanner: EventScanner | None
    ) -> None:
        self.process = ProcessTrace(0)
        self._matcher = matcher
        self._problems = problems
        self._scanner = scanner
        self._callers: Counter[int] = Counter()
        self._annotators: Counter[int] = Counter()
        process = self.process
        self._rows = {OPS: process.ops, CALLS: process.api, SYNCS: process.syncs}
        self._parts: dict[int, list[_Part]] = {table: [] for table in (*self._rows, RANGES)}
        self._ranges: list[tuple[int, StepRange]] = []
        self._waiting = 0

    def take(self, places: Sequence[int], events: Sequence[Any]) -> None:
        """Keep the events that are of a kind that is kept, and what the scanner has."""
        if events:
            self._take(places, events)
        if self._scanner is None or self._scanner.full or self._waiting > _MOST_WAITING:
            self.flush()

    def _take(self, places: Sequence[int], events: Sequence[Any]) -> None:
        unread: list[tuple[int, str]] = []
        if set(map(type, events)) != {Event}:
            events = [
                one if type(one) is Event else _loose(one, place, unread)
                for place, one in zip(places, events, strict=True)
            ]
        chosen: list[list[tuple[int, Event]]] = [[] for _ in self._parts]
        known = kinds.KNOWN
        for place, event in zip(places, events, strict=True):
            table, _ = known[event.cat]
            if table >= 0 and event.ph == "X":
                chosen[table].append((place, event))
        for table, found in enumerate(chosen):
            if found:
                self._waiting += len(found)
                self._decode(table, found, unread)
        for place, what in sorted(unread):
            self._problems.add(what, f"traceEvents[{place}]")

    def _decode(
        self, table: int, found: list[tuple[int, Event]], unread: list[tuple[int, str]]
    ) -> None:
        """Keep the columns of a table's events until they become rows."""
        if table != RANGES:
            rows, columns_of = self._rows[table], kinds.COLUMNS[table]
            found, columns = _readable(found, lambda es: rows.packed(columns_of(es)), unread)
            self._parts[table].append(_Part.of(found, columns))
            return
        pids = np.array(low_bits([event.pid for _, event in found]), np.uint32)
        self._parts[table].append(_Part.of(found, [pids]))
        found = [
            (at, event) for at, event in found if self._matcher.may_be(event.name[:LONGEST_TEXT])
        ]
        found, (tids, starts, ends) = _readable(found, kinds.ranges, unread)
        self._ranges += [
            (place, StepRange(event.name[:LONGEST_TEXT], tid, start_ns, end_ns))
            for (place, event), tid, start_ns, end_ns in zip(
                found, tids, starts, ends, strict=True
            )
        ]

    def flush(self) -> None:
        """Make rows of all that was taken."""
        if self._scanner is not None:
            tables, names = self._scanner.take()
            for table, rows in self._rows.items():
                columns = kinds.of_rows(table, tables[table], names, rows.number)
                self._parts[table].append(_Part(tables[table]["place"], columns))
            self._plain_ranges(tables[RANGES], names)
        for table, rows in self._rows.items():
            merged = _Part.in_order(self._parts[table])
            if merged:
                rows.extend(merged)
                if table == CALLS:
                    _count(self._callers, merged[0])
        for pids in _Part.in_order(self._parts[RANGES]):
            _count(self._annotators, pids)
        self._ranges.sort(key=lambda one: one[0])
        self.process.ranges += [one for _, one in self._ranges]
        self._ranges.clear()
        for parts in self._parts.values():
            parts.clear()
        self._waiting = 0

    def _plain_ranges(self, rows: NDArray[np.void], names: Sequence[str]) -> None:
        self._parts[RANGES].append(_Part(rows["place"], [rows["pid"]]))
        used = np.unique(rows["name"]).tolist()
        texts = {number: names[number] for number in used if self._matcher.may_be(names[number])}
        own = rows[np.isin(rows["name"], list(texts))]
        columns = (own[field].tolist() for field in ("place", "name", "tid", "start_ns", "end_ns"))
        self._ranges += [
            (place, StepRange(texts[name], tid, start_ns, end_ns))
            for place, name, tid, start_ns, end_ns in zip(*columns, strict=True)
        ]

    def owner(self) -> int:
        """The process whose trace it is: the one that calls the API, else that of the ranges."""
        callers = self._callers or self._annotators
        return callers.most_common(1)[0][0] if callers else 0

    def settle(self, base_ns: int) -> None:
        """Give device records their process, and all moments their origin.

        A start of 0 stays 0: it says that the moment was not recorded.
        """
        process = self.process
        for rows in (process.ops, process.syncs):
            rows.replace("pid", self._owners(rows.column("correlation")))
        if not base_ns:
            return
        last = _I64 - 1
        for rows in (process.api, process.ops, process.syncs):
            for name, times in zip(("start_ns", "end_ns"), rows.times(), strict=True):
                moved = np.where(times > last - base_ns, last, times + base_ns)
                rows.replace(name, np.where(times == 0, 0, moved))
        process.ranges = [
            StepRange(
                r.name, r.tid, min(r.start_ns + base_ns, last), min(r.end_ns + base_ns, last)
            )
            for r in process.ranges
        ]

    def _owners(self, correlations: NDArray[Any]) -> NDArray[Any]:
        """Processes by the ids of their calls.

        In a trace of several, an id that only one of them used is that one's, and of an id that
        more used it is not known whose it is.
        """
        owners = np.full(len(correlations), self.process.pid, np.uint32)
        api = self.process.api
        if len(self._callers) < 2 or not len(correlations):
            return owners
        ids, pids = api.column("correlation"), api.column("pid")
        order = np.argsort(ids, kind="stable")
        ids, pids = ids[order], pids[order]
        first = np.concatenate(([0], np.flatnonzero(ids[1:] != ids[:-1]) + 1))
        least, most = (of.reduceat(pids, first) for of in (np.minimum, np.maximum))
        known = ids[first]
        at = np.searchsorted(known, correlations).clip(max=len(known) - 1)
        one = np.where(least == most, least, 0)[at]
        return np.where(known[at] == correlations, one, owners)


@dataclass(frozen=True)
class _Part:
    """Columns of events, and the events' places in the list."""

    places: NDArray[np.int64]
    columns: Sequence[NDArray[Any]]

    @classmethod
    def of(cls, events: list[tuple[int, Event]], columns: Sequence[ArrayLike]) -> _Part:
        """Of decoded events."""
        places = np.array([place for place, _ in events], np.int64)
        return cls(places, [np.asarray(values) for values in columns])

    @staticmethod
    def in_order(parts: list[_Part]) -> Sequence[NDArray[Any]]:
        """All in one, by place; nothing where there is no event."""
        parts = [part for part in parts if len(part.places)]
        if len(parts) < 2:
            return parts[0].columns if parts else ()
        order = np.argsort(np.concatenate([part.places for part in parts]), kind="stable")
        columns = zip(*(part.columns for part in parts), strict=True)
        return [np.concatenate(values)[order] for values in columns]


def _loose(element: object, place: int, unread: list[tuple[int, str]]) -> Event:
    """An event that the decoder refused; an empty one if it is of no use."""
    found = kinds.loose(element)
    if isinstance(found, Event):
        return found
    unread.append((place, found))
    return kinds.NO_EVENT


def _readable(
    found: list[tuple[int, Event]],
    columns_of: Callable[[list[Event]], Sequence[_T]],
    unread: list[tuple[int, str]],
) -> tuple[list[tuple[int, Event]], Sequence[_T]]:
    """Those events, with their places, that can be read, and their columns."""
    try:
        return found, columns_of([event for _, event in found])
    except _UNREADABLE:
        kept = []
        for place, event in found:
            try:
                columns_of([event])
                kept.append((place, event))
            except _UNREADABLE as exc:
                unread.append((place, f"{event.cat.lower()} events unread: {exc}"))
        return kept, columns_of([event for _, event in kept])


def _count(counter: Counter[int], values: NDArray[Any]) -> None:
    """Count values; those that are new to it in the order in which they come."""
    found, first, counts = np.unique(values, return_index=True, return_counts=True)
    for at in np.argsort(first).tolist():
        counter[int(found[at])] += int(counts[at])
