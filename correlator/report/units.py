# SPDX-License-Identifier: Apache-2.0
"""Lengths, shares and counts as people read them; pure functions to strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = "?"

# Smallest length that is shown in the unit, its name, and its length in nanoseconds.
_UNITS = (
    (1_000_000_000, "s", 1_000_000_000),
    (1_000_000, "ms", 1_000_000),
    (1_000, "us", 1_000),
    (0, "ns", 1),
)


def apportion(values: Sequence[int], units: int) -> list[int]:
    """Whole units that are proportional to ``values`` and sum to ``units`` exactly.

    The largest-remainder method (Hamilton's): every value gets its floor, the units left over
    go to the largest remainders, the first of equals first.

    Args:
        values: Non-negative integers.
        units: What the answer must sum to; with no value above zero every share is 0.
    """
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    floors = [value * units // total for value in values]
    left = units - sum(floors)
    order = sorted(range(len(values)), key=lambda i: -(values[i] * units % total))
    for i in order[:left]:
        floors[i] += 1
    return floors


def shares(values: Sequence[int]) -> list[str]:
    """Each value as per cent of their sum, one decimal; what is shown adds to 100.0%.

    A value that is too small for the decimal, and not zero, reads ``<0.1%``.
    """
    return [
        "<0.1%" if value and not tenths else f"{tenths // 10}.{tenths % 10}%"
        for value, tenths in zip(values, apportion(values, 1000), strict=True)
    ]


def share(part: int, whole: int) -> str:
    """``part`` as per cent of ``whole``; a part too small to show reads ``<0.1%``."""
    if whole <= 0:
        return UNKNOWN
    if 0 < part * 2000 < whole:
        return "<0.1%"
    return f"{100 * part / whole:.1f}%"


@dataclass(frozen=True)
class Scale:
    """One unit for a whole block, so that its numbers can be compared by eye.

    Attributes:
        unit: ``ns``, ``us``, ``ms`` or ``s``.
        unit_ns: Nanoseconds in one unit.
        decimals: Digits behind the point.
    """

    unit: str
    unit_ns: int
    decimals: int

    @classmethod
    def of(cls, length_ns: int, digits: int = 4) -> Scale:
        """The scale in which ``length_ns`` shows about ``digits`` significant digits."""
        size = abs(length_ns)
        unit, unit_ns = next((name, ns) for least, name, ns in _UNITS if size >= least)
        whole = len(str(size // unit_ns))
        finest = len(str(unit_ns)) - 1
        scale = cls(unit, unit_ns, min(max(digits - whole, 0), finest))
        # 999.96 us in four digits would read 1000.0 us: the next unit says it better.
        if unit_ns < 1_000_000_000 and scale._ticks(size) >= 1000 * scale._per_unit:
            return cls.of(unit_ns * 1000, digits)
        return scale

    @property
    def _per_unit(self) -> int:
        return int(10**self.decimals)

    def _ticks(self, length_ns: int) -> int:
        """Length in the smallest amount shown, halves rounded up."""
        per_unit = self._per_unit
        return (2 * length_ns * per_unit + self.unit_ns) // (2 * self.unit_ns)

    def _show(self, ticks: int) -> str:
        whole, rest = divmod(abs(ticks), self._per_unit)
        sign = "-" if ticks < 0 else ""
        if not self.decimals:
            return f"{sign}{whole}"
        return f"{sign}{whole}.{rest:0{self.decimals}}"

    def number(self, length_ns: int) -> str:
        """The number alone, without its unit."""
        return self._show(self._ticks(length_ns))

    def numbers(self, lengths_ns: Sequence[int]) -> list[str]:
        """Numbers that add up, as shown, to the sum of the lengths as shown.

        A length too small for the scale, and not zero, shows as less than its last digit.
        """
        parts = apportion(lengths_ns, self._ticks(sum(lengths_ns)))
        return [
            self._show(ticks) if ticks or not length_ns else f"<{self._show(1)}"
            for ticks, length_ns in zip(parts, lengths_ns, strict=True)
        ]

    def text(self, length_ns: int) -> str:
        """Number and unit."""
        return f"{self.number(length_ns)} {self.unit}"


def duration(length_ns: int | None, digits: int = 3) -> str:
    """A length with the unit that suits it, ``?`` when it is unknown.

    Args:
        length_ns: Nanoseconds.
        digits: About how many significant digits to show.
    """
    if length_ns is None:
        return UNKNOWN
    if length_ns == 0:
        return "0"
    return Scale.of(length_ns, digits).text(length_ns)


def count(value: int | None) -> str:
    """An integer with thousands separators, ``?`` when it is unknown."""
    return UNKNOWN if value is None else f"{value:,}"


def plural(value: int, one: str, many: str = "") -> str:
    """``1 request``, ``2 requests``; ``many`` defaults to ``one`` with an s."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def instant(t_ns: int) -> str:
    """A moment as seconds of CLOCK_MONOTONIC, as the kernel's and bpftrace's logs print it."""
    seconds, rest = divmod(t_ns, 1_000_000_000)
    return f"{seconds}.{rest // 1000:06}"


def quantile(ordered: Sequence[int], percent: int) -> int | None:
    """The nearest-rank quantile of an ascending sequence; ``None`` of an empty one."""
    if not ordered:
        return None
    rank = -(-percent * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]


def total(pairs: Iterable[tuple[object, int]]) -> int:
    """Sum of the second halves."""
    return sum(value for _, value in pairs)


_SIZES = ("kB", "MB", "GB", "TB")


def size(size_bytes: int) -> str:
    """A size in decimal units with about three digits: ``512 bytes``, ``3.21 kB``, ``71.2 GB``."""
    if abs(size_bytes) < 1000:
        return plural(size_bytes, "byte")
    value = float(size_bytes)
    for unit in _SIZES:
        value /= 1000
        shown = (
            f"{value:.2f}"
            if abs(value) < 9.995
            else f"{value:.1f}"
            if abs(value) < 99.95
            else (f"{value:.0f}")
        )
        if abs(float(shown)) < 1000 or unit == _SIZES[-1]:
            break
    return f"{shown} {unit}"
