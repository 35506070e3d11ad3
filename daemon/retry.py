# SPDX-License-Identifier: Apache-2.0
"""When to try again what failed: soon at first, then more and more seldom."""

from __future__ import annotations

_S = 1_000_000_000
_FIRST_NS, _LONGEST_NS = 2 * _S, 60 * _S


class Retry:
    """Of one thing that may fail."""

    def __init__(self) -> None:
        self._wait_ns = 0

    @property
    def failing(self) -> bool:
        """Whether it failed the last time."""
        return self._wait_ns > 0

    def failed(self, now_ns: int) -> int:
        """It failed; when to try it again."""
        self._wait_ns = min(2 * self._wait_ns or _FIRST_NS, _LONGEST_NS)
        return now_ns + self._wait_ns

    def worked(self) -> None:
        """It did not fail, or there is reason to believe that it will not any more."""
        self._wait_ns = 0
