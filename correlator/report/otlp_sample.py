# SPDX-License-Identifier: Apache-2.0
"""Which requests are exported, and how many each of them stands for.

Some are always kept: those whose caller records the trace, that failed, that took long or are
among the slowest. Of the others a share is kept, chosen by the trace id alone, so that every
export chooses the same.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.otlp_ids import RANDOM_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANDOM = (1 << RANDOM_BITS) - 1
_HEX_DIGITS = RANDOM_BITS // 4
#: Requests that "the slowest" is measured against while a session goes on.
WINDOW = 1000


class Reason(enum.StrEnum):
    """Why a request is exported."""

    ALL = "all"  # nothing is left out
    PARENT = "parent"  # its caller records the trace
    FAILED = "failed"
    THRESHOLD = "threshold"  # it took longer than was asked for
    SLOWEST = "slowest"
    RATIO = "ratio"  # it was drawn, for others too


@dataclass(frozen=True)
class Rule:
    """What to keep.

    Attributes:
        ratio: Share of the requests for which no other rule speaks, 0 to 1.
        slowest: Share of the requests that are always kept, the slowest; 0 to 1.
        over_ns: Requests that took longer are always kept; ``None``: no such limit.
        join: Requests whose caller records the trace are always kept.
    """

    ratio: float = 1.0
    slowest: float = 0.0
    over_ns: int | None = None
    join: bool = True

    @property
    def threshold(self) -> int:
        """Least random value that is kept, as OpenTelemetry's consistent sampling has it."""
        return round((1 - self.ratio) * (1 << RANDOM_BITS))

    @property
    def tracestate(self) -> str:
        """The threshold as ``tracestate`` tells it; empty where nothing is kept by it."""
        if self.threshold > _RANDOM:
            return ""
        return f"th:{f'{self.threshold:0{_HEX_DIGITS}x}'.rstrip('0') or '0'}"


@dataclass(frozen=True)
class Kept:
    """A request that is exported.

    Attributes:
        reason: Why.
        weight: How many requests it stands for, itself included: weights of all that were
            exported sum to about the number that there were.
    """

    reason: Reason
    weight: float


@dataclass(frozen=True)
class Candidate:
    """What the choice goes by."""

    trace_id: int  # the request's own, never the caller's
    wall_ns: int
    failed: bool
    parent_sampled: bool


class Sampler:
    """Chooses, and counts what it leaves out.

    Args:
        rule: What to keep.
        walls_ns: How long all requests took, where that is known before; else "the slowest" is
            measured against the last ``WINDOW`` requests.
    """

    def __init__(self, rule: Rule, walls_ns: Iterable[int] | None = None) -> None:
        self._rule = rule
        self._sorted = sorted(walls_ns or ())
        self._recent: deque[int] | None = None if walls_ns is not None else deque()
        self.kept = 0
        self.left_out = 0

    def choose(self, one: Candidate) -> Kept | None:
        """Whether a request is kept, and why; each is to be asked for once."""
        self._note(one.wall_ns)
        found = self._choose(one)
        if found is None:
            self.left_out += 1
        else:
            self.kept += 1
        return found

    def _choose(self, one: Candidate) -> Kept | None:
        rule = self._rule
        if rule.ratio >= 1:
            return Kept(Reason.ALL, 1.0)
        for reason, holds in (
            (Reason.PARENT, rule.join and one.parent_sampled),
            (Reason.FAILED, one.failed),
            (Reason.THRESHOLD, rule.over_ns is not None and one.wall_ns > rule.over_ns),
            (Reason.SLOWEST, self._is_slow(one.wall_ns)),
        ):
            if holds:
                return Kept(reason, 1.0)
        if one.trace_id & _RANDOM >= rule.threshold and rule.ratio > 0:
            return Kept(Reason.RATIO, 1 / rule.ratio)
        return None

    def _is_slow(self, wall_ns: int) -> bool:
        count = math.ceil(self._rule.slowest * len(self._sorted))
        return count > 0 and wall_ns >= self._sorted[-count]

    def _note(self, wall_ns: int) -> None:
        if self._recent is None:
            return
        self._recent.append(wall_ns)
        bisect.insort(self._sorted, wall_ns)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._recent.popleft())]
