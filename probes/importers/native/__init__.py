# SPDX-License-Identifier: Apache-2.0
"""Events of a trace in JSON straight into rows, in C, called through ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

LIBRARY = Path(__file__).with_name("_events.so")

#: Layout of a row as the C code writes it; ``name`` is a number in the texts beside it.
RECORD = np.dtype(
    [
        ("place", "i8"), ("start_ns", "i8"), ("end_ns", "i8"),
        ("stream", "u8"), ("correlation", "u8"),
        ("graph", "u8"), ("node", "u8"), ("bytes", "u8"),
        ("event", "u8"), ("recorded_by", "u8"), ("recorded_stream", "u8"),
        ("pid", "u4"), ("tid", "u4"), ("device", "u4"), ("context", "u4"), ("name", "u4"),
        ("kind", "u1"), ("pad", "u1", 3),
    ]
)  # fmt: skip
#: Layout of an element that is left: its place in the list, and its text's ends.
_ODD = np.dtype([("place", "i8"), ("begin", "i8"), ("end", "i8")])
_TABLES = 4
_MOST_RECORDS = 1 << 12
_MOST_ODD = 1 << 10
#: With more texts than that, or longer ones, numbering begins again.
_MANY_NAMES = 1 << 14
_MANY_NAME_BYTES = 4 << 20
_LONGEST_WORD = 29


class _Word(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_uint8 * _LONGEST_WORD),
        ("size", ctypes.c_uint8),
        ("table", ctypes.c_uint8),
        ("kind", ctypes.c_uint8),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("end", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("odd", ctypes.c_int64),
        ("starved", ctypes.c_int64),
        ("records", ctypes.c_int64 * _TABLES),
    )


@dataclass(frozen=True)
class Word:
    """A word, in lower case, that is known in any capitals.

    Attributes:
        text: At most 29 letters of ASCII.
        table: For a category, the table of its rows.
        kind: What it stands for there.
    """

    text: str
    table: int
    kind: int


@dataclass(frozen=True)
class Passed:
    """Elements that were passed.

    Attributes:
        end: Where the last one ends.
        count: How many.
        odd: Those that became no rows but may be of use: place in the list, first byte, end.
        starved: Whether it was too little text for one more.
    """

    end: int
    count: int
    odd: list[tuple[int, int, int]]
    starved: bool


@cache
def library() -> ctypes.CDLL | None:
    """The compiled part; ``None`` where it is not there, or was built from other sources."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    sizes = (ctypes.c_int64 * 4)()
    found.gpucorrelate_events_sizes(sizes)
    ours = [RECORD.itemsize, _ODD.itemsize, ctypes.sizeof(_Word), ctypes.sizeof(_Result)]
    if list(sizes) != ours:
        return None
    found.gpucorrelate_events_new.restype = ctypes.c_void_p
    found.gpucorrelate_events_new.argtypes = [
        ctypes.POINTER(_Word), ctypes.c_int32, ctypes.POINTER(_Word), ctypes.c_int32,
    ]  # fmt: skip
    found.gpucorrelate_events_free.restype = None
    found.gpucorrelate_events_free.argtypes = [ctypes.c_void_p]
    found.gpucorrelate_events_forget.restype = None
    found.gpucorrelate_events_forget.argtypes = [ctypes.c_void_p]
    found.gpucorrelate_events_names.restype = ctypes.c_uint32
    found.gpucorrelate_events_names.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.POINTER(ctypes.c_uint32)),
    ]
    found.gpucorrelate_events_scan.restype = None
    found.gpucorrelate_events_scan.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Result),
    ]  # fmt: skip
    return found


class EventScanner:
    """Turns plain events into rows, and says where the others are.

    Args:
        categories: Which events become rows.
        syncs: Words for kinds of synchronisations; others are of kind 0.

    Raises:
        MemoryError: there is none for it.
        OSError: the compiled part is not there; ``event_scanner`` tells without an error.
    """

    def __init__(self, categories: Iterable[Word], syncs: Iterable[Word]) -> None:
        found = library()
        if found is None:
            raise OSError(f"{LIBRARY} does not load")
        self._library = found
        self._records = np.empty((_TABLES, _MOST_RECORDS), RECORD)
        self._tables = (ctypes.c_void_p * _TABLES)(*(rows.ctypes.data for rows in self._records))
        self._odd = np.empty(_MOST_ODD, _ODD)
        self._names: list[str] = []
        self._result = _Result()
        known, kinds = _words(categories), _words(syncs)
        self._handle: int | None = found.gpucorrelate_events_new(
            known, len(known), kinds, len(kinds)
        )
        if not self._handle:
            raise MemoryError("no room to read events in")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.gpucorrelate_events_free(self._handle)
            self._handle = None

    @property
    def full(self) -> bool:
        """Whether the rows should be taken now."""
        return bool(max(self._result.records) > _MOST_RECORDS // 2)

    def scan(self, text: bytes, at: int, number: int) -> Passed:
        """Pass elements of a list, as many as there are whole ones, up to one that is no JSON.

        Args:
            text: Valid UTF-8.
            at: Where an element begins in it.
            number: That element's place in the list.
        """
        if not 0 <= at <= len(text):
            raise ValueError("not in the text")
        result = self._result
        self._library.gpucorrelate_events_scan(
            self._handle, text, at, len(text), number,
            self._tables, _MOST_RECORDS, self._odd.ctypes.data, _MOST_ODD, result,
        )  # fmt: skip
        odd = self._odd[: result.odd].tolist() if result.odd else []
        return Passed(result.end, result.elements, odd, bool(result.starved))

    def take(self) -> tuple[list[NDArray[np.void]], Sequence[str]]:
        """By table, the rows since the last call; and the texts that names are numbers of.

        The rows are there until the next scan.
        """
        counts = self._result.records
        rows = [own[:count] for own, count in zip(self._records, counts, strict=True)]
        self._result.records = type(counts)()
        names = self._names
        text, ends = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_uint32)()
        count = self._library.gpucorrelate_events_names(
            self._handle, ctypes.byref(text), ctypes.byref(ends)
        )
        begin = ends[len(names) - 1] if names else 0
        for end in ends[len(names) : count]:
            names.append(ctypes.string_at((text.value or 0) + begin, end - begin).decode())
            begin = end
        if count > _MANY_NAMES or begin > _MANY_NAME_BYTES:
            self._library.gpucorrelate_events_forget(self._handle)
            self._names = []
        return rows, names


def event_scanner(categories: Iterable[Word], syncs: Iterable[Word]) -> EventScanner | None:
    """One, where the compiled part is there."""
    return EventScanner(categories, syncs) if library() is not None else None


def _words(words: Iterable[Word]) -> ctypes.Array[_Word]:
    listed = list(words)
    array = (_Word * len(listed))()
    for there, word in zip(array, listed, strict=True):
        text = word.text.encode("ascii")
        there.text[: len(text)] = text
        there.size, there.table, there.kind = len(text), word.table, word.kind
    return array
