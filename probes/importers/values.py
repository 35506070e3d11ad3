# SPDX-License-Identifier: Apache-2.0
"""Numbers as JSON's decoder gives them: integers, or of any other the text of the file."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

_EXPONENT = re.compile(rb"[eE]")
_I64 = 1 << 63
_U32 = 0xFFFFFFFF
#: Stands for any integer that no column holds.
_TOO_LARGE = 1 << 64


class UnreadableError(ValueError):
    """An event without something it must have."""


def words(value: object) -> str:
    """A name, whatever it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bytes):
        return value.decode()
    return "?" if isinstance(value, dict | list) else str(value)


def low_bits(values: list[Any]) -> list[int]:
    """Process or thread ids; 0 for what is none."""
    found = integers(values, 0, least=-_I64)
    return [value & _U32 if value < _TOO_LARGE else 0 for value in found]


def integers(values: list[Any], default: int, *, least: int = 0) -> list[int]:
    """``integer`` of each; quick where all are integers or missing."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return [default] * len(values)
    if kinds == {int, type(None)}:
        values = [default if value is None else value for value in values]
        kinds = {int}
    if kinds == {int} and min(values) >= least:
        return values
    return [integer(value, default, least=least) for value in values]


def integer(value: object, default: int, *, least: int = -_I64) -> int:
    """An integer however it was written (``7``, ``"7"``, ``"0x7"``, ``"stream 7"``, 7.0)."""
    if isinstance(value, str):
        digits = value.rsplit(" ", 1)[-1]
        try:
            value = int(digits, 0)
        except ValueError:
            return default
    elif isinstance(value, bytes):
        try:
            number = Decimal(value.decode())
        except InvalidOperation:
            return default
        value = int(number) if number.adjusted() < 20 else _TOO_LARGE * (1 if number > 0 else -1)
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return value if value >= least else default


def all_ns(values: list[Any], name: str) -> list[int]:
    """``to_ns`` of each; quick where all have no decimals, or three, as Kineto writes them."""
    kinds = set(map(type, values))
    if kinds == {int}:
        limit = _I64 // 1000
        if -limit < min(values) and max(values) < limit:
            return [value * 1000 for value in values]
    elif kinds == {bytes} and max(map(len, values)) < 20:
        text = b" ".join(values)
        if {value[-4:-3] for value in values} == {b"."} and not _EXPONENT.search(text):
            return list(map(int, text.replace(b".", b"").split()))
    return [to_ns(value, name) for value in values]


def _rounded_ns(text: bytes | str, name: str) -> int:
    if isinstance(text, bytes):
        whole, _, decimals = text.partition(b".")
        if len(decimals) <= 3 and decimals.isdigit() and len(whole) < 20:
            return int(whole + decimals.ljust(3, b"0"))
    try:
        value = Decimal(text.decode() if isinstance(text, bytes) else text)
    except InvalidOperation:
        wrong = "out of range" if isinstance(text, bytes) else "no number"
        raise UnreadableError(f"{name} is {wrong}") from None
    if not value.is_finite() or value.adjusted() > 18:
        raise UnreadableError(f"{name} is out of range")
    return int((value * 1000).to_integral_value())


def to_ns(value: object, name: str) -> int:
    """Microseconds as JSON gives them, in integer nanoseconds; halves go to the even one.

    Args:
        value: An integer, a number's text, or a string with a number in it.
        name: What it is, for the message.

    Raises:
        ValueError: it is no number, or too large for one.
    """
    if isinstance(value, bytes | str):
        return _in_range(_rounded_ns(value, name), name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnreadableError(f"{name} is missing" if value is None else f"{name} is no number")
    return _in_range(value * 1000, name)


def _in_range(number: int, name: str) -> int:
    if abs(number) >= _I64:
        raise UnreadableError(f"{name} is out of range")
    return number
