# SPDX-License-Identifier: Apache-2.0
"""Small text files of the kernel: numbers with their names, and what in them is no number.

Parsers built on this never raise for what a file holds. A kernel may write keys that nobody
here knows (skipped) or leave out others (no value: unknown is not zero); a text that stops in
the middle of a line was cut, and half a number is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.probes.host.reading import Metric

#: A limit that is none: ``max`` in a file of cgroup v2, -1 or all of the address space in v1.
NO_LIMIT = -1

#: What a column of 64 bits holds.
_MOST = 2**63 - 1
#: Limits of cgroup v1 are pages counted in a signed long (PAGE_COUNTER_MAX): the most is just
#: below 2**63, by a page of any size. Older kernels wrote 2**63 - 1 or 2**64 - 1.
_V1_NO_LIMIT = 2**63 - 2**20
#: Of 2**64, which some files hold for no limit.
_DIGITS = 20
_SHOWN_CHARS = 40
_FEW = 3


@dataclass(frozen=True)
class Value:
    """A number that a file holds.

    Attributes:
        metric: What it is.
        value: The number, in the metric's unit.
        device: ``major:minor`` of the block device it is about; empty for none.
    """

    metric: Metric
    value: int
    device: str = ""


@dataclass(frozen=True)
class Parsed:
    """What a file holds, and what in it could not be understood."""

    values: tuple[Value, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """A name in a file, and how its number becomes a metric's.

    Attributes:
        metric: What it is.
        scale: Factor from the file's unit to the metric's.
    """

    metric: Metric
    scale: int = 1


def number(text: str, scale: int = 1) -> int | None:
    """The number, times ``scale``; None for what is none or does not fit into 64 bits."""
    if not _is_number(text):
        return None
    value = int(text) * scale
    return value if -_MOST <= value <= _MOST else None


def _is_number(text: str) -> bool:
    # int() would take "1_0" and digits of any script. Twice as fast as a regular expression.
    digits = text[1:] if text.startswith("-") else text
    return len(digits) <= _DIGITS and digits.isascii() and digits.isdigit()


def limit(text: str, scale: int = 1) -> int | None:
    """A limit, times ``scale``; ``NO_LIMIT`` where there is none, None for what is no limit."""
    if text == "max" or (text.startswith("-") and number(text) is not None):
        return NO_LIMIT
    if not _is_number(text):
        return None
    return NO_LIMIT if int(text) >= _V1_NO_LIMIT else number(text, scale)


def whole_lines(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Lines that are complete, and the problem if the last one is not."""
    found = text.split("\n")
    last = found.pop()
    return found, (f"cut off in {shown(last)}",) if last else ()


def shown(text: str) -> str:
    """A piece of a file, fit for a message."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


def few(problems: list[str]) -> tuple[str, ...]:
    """The first of many problems: a file of garbage is one thing that is wrong, not thousands."""
    return tuple(problems[:_FEW])


def parse_flat(text: str, keys: Mapping[str, Key]) -> Parsed:
    """A file of lines ``name number``; names not among ``keys`` are skipped."""
    return _named(text, " ", keys)


def parse_sizes(text: str, keys: Mapping[str, Key]) -> Parsed:
    """A file of lines ``name: number`` or ``name: number kB``, of which kB becomes bytes."""
    return _named(text, ":", keys)


def _named(text: str, mark: str, keys: Mapping[str, Key]) -> Parsed:
    rows, problems = whole_lines(text)
    wrong = list(problems)
    found: dict[str, Value] = {}
    for row in rows:
        name, _, rest = row.partition(mark)
        key = keys.get(name)
        if key is None:
            continue
        digits = rest.strip()
        scale = key.scale
        if mark == ":" and digits.endswith(" kB"):
            digits, scale = digits[:-3].rstrip(), scale * 1024
        value = number(digits, scale)
        if value is None:
            wrong.append(f"{name} is no number: {shown(rest)}")
        else:
            found[name] = Value(key.metric, value)
    if not found and not wrong:
        wrong.append(f"nothing in it is known: {shown(text)}" if text else "it is empty")
    return Parsed(tuple(found.values()), few(wrong))


def parse_one(text: str, key: Key) -> Parsed:
    """A file of one number."""
    return _single(text, key, number)


def parse_limit(text: str, key: Key) -> Parsed:
    """A file of one limit."""
    return _single(text, key, limit)


def _single(text: str, key: Key, read: _Read) -> Parsed:
    rows, problems = whole_lines(text)
    if problems or len(rows) != 1:
        return Parsed(problems=problems or (f"not one line: {shown(text)}",))
    value = read(rows[0].strip(), key.scale)
    if value is None:
        return Parsed(problems=(f"no number: {shown(rows[0])}",))
    return Parsed((Value(key.metric, value),))


if TYPE_CHECKING:
    from collections.abc import Callable

    _Read = Callable[[str, int], int | None]
