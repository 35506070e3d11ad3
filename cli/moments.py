# SPDX-License-Identifier: Apache-2.0
"""Moments and lengths as users write them."""

from __future__ import annotations

import re
from decimal import Decimal

from gpucorrelate.probes.wire.errors import UsageError

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
# What fits the 64 bits in which recordings keep their moments.
_LAST_NS = (1 << 63) - 1
_LONGEST_S = 366 * 86_400
_LENGTH = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|ms|s|m|h)", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)
_NANOSECONDS = re.compile(r"\d{1,19}", re.ASCII)


def length_ns(text: str) -> int | None:
    """Nanoseconds of ``30s``, ``1.5m``, ``250ms``; ``None`` when it is not written so."""
    found = _LENGTH.fullmatch(text.strip())
    return int(Decimal(found[1]) * _UNITS_NS[found[2]]) if found else None


def moment_ns(text: str, end_ns: int) -> int:
    """A moment on CLOCK_MONOTONIC.

    Args:
        text: A length before the end (``5m``), seconds (``1234.567``) or nanoseconds.
        end_ns: The end that lengths count back from.

    Raises:
        UsageError: it is written in none of these ways.
    """
    ago, written = length_ns(text), text.strip()
    if ago is not None:
        return max(end_ns - ago, -_LAST_NS)
    if _SECONDS.fullmatch(written):
        return min(int(Decimal(written) * _UNITS_NS["s"]), _LAST_NS)
    if _NANOSECONDS.fullmatch(written):
        return min(int(written), _LAST_NS)
    raise UsageError(
        f"{text!r} is no time",
        hint="30s, 5m or 2h before the end, 1234.567 seconds, or nanoseconds without a point",
    )


def duration_s(text: str) -> float:
    """Seconds of ``30s``, ``5m`` or a plain number of seconds.

    Raises:
        UsageError: it is no length, not above zero, or more than a year.
    """
    found = length_ns(text if text.strip().endswith(("s", "m", "h")) else f"{text.strip()}s")
    if not found:
        raise UsageError(f"{text!r} is no duration", hint="write 30s, 5m or 1h")
    if found > _LONGEST_S * _UNITS_NS["s"]:
        raise UsageError(f"{text!r} is more than a year", hint="without it: until Ctrl-C")
    return found / 1e9
