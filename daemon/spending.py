# SPDX-License-Identifier: Apache-2.0
"""What polling takes of a CPU, and what of its share that leaves for looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PPM = 1_000_000
#: Reckonings over which costs are told: one a second, as a rule.
_TOLD = 10
_PAUSE_NS = 5_000_000_000
#: However much else takes, looks have this part of the share.
_LEAST_PART = 4


@dataclass(frozen=True)
class Spent:
    """CPU time up to a moment, in ns.

    Attributes:
        t_ns: The moment.
        loop_ns: Of the daemon's loop, for all that polling makes it do.
        thread_ns: Of the thread of looks that may block, and of the programs that it ran.
        beside_ns: Of both, for all but looks.
    """

    t_ns: int
    loop_ns: int = 0
    thread_ns: int = 0
    beside_ns: int = 0


class Spending:
    """Keeps what was spent over the last seconds.

    Args:
        share_ppm: Most that polling may take of one CPU, in millionths.
    """

    def __init__(self, share_ppm: int) -> None:
        self._share_ppm = share_ppm
        self._known: deque[Spent] = deque(maxlen=_TOLD + 1)

    def note(self, spent: Spent) -> None:
        """What it is by now."""
        if self._known and spent.t_ns - self._known[-1].t_ns > _PAUSE_NS:
            self._known.clear()  # nobody polled meanwhile
        self._known.append(spent)

    @property
    def loop_ppm(self) -> int:
        """Of the daemon's loop, in millionths of one CPU."""
        return self._ppm(lambda one: one.loop_ns)

    @property
    def thread_ppm(self) -> int:
        """Of the thread of looks that may block, likewise."""
        return self._ppm(lambda one: one.thread_ns)

    @property
    def for_looks_ppm(self) -> int:
        """What looks may take: the share without what waking up for them and planning them takes.

        What looks cost that begin anew, and tell everything, is no part of their pace: it comes
        once in a session and once in each of its files.
        """
        beside_ppm = self._ppm(lambda one: one.beside_ns)
        return max(self._share_ppm // _LEAST_PART, self._share_ppm - beside_ppm)

    def _ppm(self, of: Callable[[Spent], int]) -> int:
        if len(self._known) < 2:
            return 0
        first, last = self._known[0], self._known[-1]
        return (of(last) - of(first)) * _PPM // max(1, last.t_ns - first.t_ns)
