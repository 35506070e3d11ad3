# SPDX-License-Identifier: Apache-2.0
"""What peers that nobody asked for anything may keep in the daemon's memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.daemon.config import Limits

#: What an entry of a string table takes beside its text: the dictionary's slot, its key, the
#: text's own header. Measured with CPython 3.11; it need not be exact.
ENTRY_BYTES = 160
#: Beyond a budget a peer is read no further; what it has sent already may go this far.
_OVERDRAFT = 4


def text_bytes(text: str) -> int:
    """Bytes that a text takes at most, in memory and on disk."""
    return len(text) if text.isascii() else 4 * len(text)


class Budget:
    """Bytes kept for idle peers: of each, of each user, of all.

    Args:
        limits: How many there may be.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_uid: Counter[int] = Counter()
        self.total = 0

    def change(self, uid: int, more: int) -> None:
        """A user's peers keep so much more, or less."""
        self.total += more
        self._of_uid[uid] += more
        if self._of_uid[uid] <= 0:
            del self._of_uid[uid]

    def exhausted(self, uid: int, strings: int) -> bool:
        """Whether a peer that keeps so many bytes of strings should be read no further."""
        return self._excess(uid, strings) > 1

    def overdrawn(self, uid: int, strings: int) -> bool:
        """Whether it must go, because it sent far more at once than it is allowed."""
        return self._excess(uid, strings) > _OVERDRAFT

    def _excess(self, uid: int, strings: int) -> float:
        limits = self._limits
        shares = [strings / limits.idle_string_bytes, self.total / limits.idle_bytes]
        if uid != 0:
            shares.append(self._of_uid[uid] / limits.idle_bytes_per_uid)
        return max(shares)
