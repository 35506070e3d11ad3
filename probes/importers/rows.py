# SPDX-License-Identifier: Apache-2.0
"""What an importer collects: columns of integers per process, and what it could not read."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from gpucorrelate.probes.wire.schema import Column, Kind

#: ``gpu_stream`` and ``event`` where there is none.
NONE_U64 = (1 << 64) - 1
#: So much of a text is kept; a recording keeps less. Names of kernels have some thousand letters.
LONGEST_TEXT = 1 << 14
_RANGES = {
    "u8": (0, 0xFF),
    "u32": (0, 0xFFFFFFFF),
    "u64": (0, NONE_U64),
    "i64": (-(1 << 63), (1 << 63) - 1),
    "str": (0, 0xFFFFFFFF),
}
#: Places of unreadable things that are named one by one; the rest is only counted.
_NAMED = 3

#: Ranges that mark a step when the user names none; the first that matches anything counts.
STEP_PATTERNS = (r"^execute_", r"^ProfilerStep\b")


@dataclass
class Problems:
    """What could not be read, by kind, with the places of the first few of each."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, place: str = "", count: int = 1) -> None:
        """Count something that could not be read, and remember where the first few were."""
        self.counts[what] += count
        known = self.places.setdefault(what, [])
        if place and len(known) < _NAMED:
            known.append(place)

    def lines(self) -> list[tuple[str, int]]:
        """What, with its first places, and how often."""
        return [
            (f"{what} at {', '.join(self.places[what])}" if self.places[what] else what, count)
            for what, count in self.counts.items()
        ]


class Rows:
    """Rows of one kind as columns; texts are kept once.

    Memory is that of the columns, each as wide as the schema says.
    """

    def __init__(self, kind_name: str, texts: dict[str, int]) -> None:
        self.kind: Kind = BY_NAME[kind_name]
        self.texts = texts
        self._columns = [array(c.code) for c in self.kind.columns]
        # What was added since: an array that grows by little often is copied as often.
        self._parts: list[list[NDArray[Any]]] = []

    @property
    def columns(self) -> list[array[int]]:
        """The values, in the schema's order of columns; of a text, its number in ``texts``."""
        parts, self._parts = self._parts, []
        for at, values_of in enumerate(self._columns if parts else ()):
            values_of.frombytes(b"".join([part[at].data for part in parts]))
        return self._columns

    def column(self, name: str) -> NDArray[Any]:
        """The values of one column; no row can be added while they are in use."""
        return np.asarray(self.columns[self.kind.index(name)])

    def __len__(self) -> int:
        return len(self._columns[0]) + sum(len(part[0]) for part in self._parts)

    def add(self, values: Sequence[int | str]) -> None:
        """Add a row, in the order of the schema's columns.

        Raises:
            OverflowError: a value that no such column can hold; nothing was added.
            TypeError: a value that is no integer, or no text, where there should be one.
        """
        numbers: list[int] = []
        for column, value in zip(self.kind.columns, values, strict=True):
            if column.ctype == "str":
                if not isinstance(value, str):
                    raise TypeError(f"{column.name} is no text")
                numbers.append(self.number(value))
                continue
            least, most = _RANGES[column.ctype]
            if not isinstance(value, int):
                raise TypeError(f"{column.name} is no integer")
            if not least <= value <= most:
                raise OverflowError(f"{column.name} is out of range")
            numbers.append(value)
        for values_of, number in zip(self.columns, numbers, strict=True):
            values_of.append(number)

    def packed(self, columns: Sequence[list[Any]]) -> list[array[int]]:
        """Columns in the schema's order as ``extend`` takes them; in one of texts all are texts.

        Raises:
            OverflowError: a value that no such column can hold.
            TypeError: a value that is no integer where there should be one.
        """
        pairs = zip(self.kind.columns, columns, strict=True)
        return [self._part(column, values) for column, values in pairs]

    def extend(self, columns: Sequence[ArrayLike]) -> None:
        """Add rows, column by column, of values that the columns can hold."""
        pairs = zip(self.kind.columns, columns, strict=True)
        self._parts.append([np.ascontiguousarray(values, column.code) for column, values in pairs])

    def replace(self, name: str, values: NDArray[Any]) -> None:
        """Have other values in a column of integers, which can hold them."""
        at = self.kind.index(name)
        code = self.kind.columns[at].code
        self.columns[at] = array(code, values.astype(code).tobytes())

    def number(self, text: str) -> int:
        """A text's number."""
        return self.texts.setdefault(text[:LONGEST_TEXT], len(self.texts))

    def _ids(self, texts: Sequence[str]) -> list[int]:
        known = map(self.texts.get, texts)
        return [
            self.number(text) if number is None else number
            for text, number in zip(texts, known, strict=True)
        ]

    def _part(self, column: Column, values: Sequence[Any]) -> array[int]:
        if column.ctype == "str":
            values = self._ids(values)
        try:
            return array(column.code, values)
        except TypeError:
            raise TypeError(f"{column.name} is no integer") from None
        except OverflowError:
            raise OverflowError(f"{column.name} is out of range") from None

    def times(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The columns of starts and ends; no row can be added while they are in use."""
        return self.column("start_ns"), self.column("end_ns")


@dataclass(frozen=True)
class StepRange:
    """A named range that marks a step on a thread."""

    name: str
    tid: int
    start_ns: int
    end_ns: int


class ProcessTrace:
    """Everything of one process.

    Attributes:
        pid: Process id as the trace has it; 0 is unknown.
        role: Words for it: ``rank 3``.
        rank: Its rank, for the workers' steps.
        ranges: Named ranges that may be steps.
    """

    def __init__(self, pid: int, role: str = "", rank: int = 0) -> None:
        self.pid = pid
        self.role = role
        self.rank = rank
        self.texts: dict[str, int] = {"": 0}
        self.api = Rows("cuda_api", self.texts)
        self.ops = Rows("gpu_op", self.texts)
        self.syncs = Rows("gpu_sync", self.texts)
        self.ranges: list[StepRange] = []


@dataclass
class ImportedTrace:
    """What one file held.

    Attributes:
        source: The file's name.
        tool: Whose format it is.
        processes: One or more.
        problems: What could not be read.
        facts: More about it, for the recording's ``meta``.
    """

    source: str
    tool: str
    processes: list[ProcessTrace]
    problems: Problems
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def gpu_records(self) -> int:
        """Kernels, copies and fills in it."""
        return sum(len(process.ops) for process in self.processes)


class StepMatcher:
    """Which named ranges are kept because they may be steps.

    Args:
        pattern: A regular expression that the user gave; empty for the usual names.
    """

    def __init__(self, pattern: str = "") -> None:
        self.patterns = [re.compile(p) for p in ((pattern,) if pattern else STEP_PATTERNS)]

    def may_be(self, name: str) -> bool:
        """Whether a range of that name may be a step."""
        return any(pattern.search(name) for pattern in self.patterns)

    def steps(self, ranges: Sequence[StepRange]) -> list[StepRange]:
        """The steps among a process's ranges, in order of time.

        The first pattern that matches any decides. Of ranges of one thread that lie within
        each other the outermost is the step.
        """
        for pattern in self.patterns:
            found = [r for r in ranges if pattern.search(r.name)]
            if found:
                return _outermost(found)
        return []


def _outermost(ranges: Sequence[StepRange]) -> list[StepRange]:
    until: dict[int, int] = {}
    kept = []
    for one in sorted(ranges, key=lambda r: (r.start_ns, -r.end_ns)):
        if one.start_ns >= until.get(one.tid, one.start_ns):
            until[one.tid] = one.end_ns
            kept.append(one)
    return kept


_NUMBER = re.compile(r"#(\d{1,15})$")


def numbered(steps: Sequence[StepRange]) -> list[tuple[int, StepRange]]:
    """Steps with their numbers: those in their names, or 1, 2, 3 where not all have their own."""
    found = [_NUMBER.search(step.name) for step in steps]
    numbers = [int(match[1]) for match in found if match]
    if len(set(numbers)) != len(steps) or 0 in numbers:
        numbers = list(range(1, len(steps) + 1))
    return list(zip(numbers, steps, strict=True))
