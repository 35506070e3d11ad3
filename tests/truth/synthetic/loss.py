# SPDX-License-Identifier: Apache-2.0
"""Losing chosen events, and stating it as the hop that loses them does.

The kernel's rings drop records and count them by kind, with the moment of the first; agents drop
rows of any kind and count them in the header of each batch, of which the daemon makes a loss since
the stream's last batch; batches that never came leave a gap in the stream's numbers. Losses that
nobody states can be made too: a probe that is broken, a recording that is cut off.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

_KERNEL = 2
#: Where a row says when it was made; of other kinds its batch's time counts.
_MADE = {"wait": 4, "fault": 3, "span": 3, "queue_msg": 7, "gpu_op": 10, "cuda_api": 6,
         "gpu_sync": 8, "request": 3, "step_begin": 4, "step_end": 2, "step_update": 3,
         "worker_step": 5, "outputs": 2}  # fmt: skip

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Lose:
    """What is lost.

    Attributes:
        kind: Kind of event; ``*`` every one of the stream.
        share: Chance of each.
        since_ns: Only of what was made from then on.
        until_ns: Only of what was made before.
        stated: Whether the hop says so.
        batches: Whether it is whole batches that never come.
        stream: Only of this stream; 0 of all.
    """

    kind: str
    share: float = 1.0
    since_ns: int = 0
    until_ns: int = 1 << 62
    stated: bool = True
    batches: bool = False
    stream: int = 0

    def hits(self, stream: int, kind: str, made: int) -> bool:
        """Whether a row may be lost."""
        return (
            self.kind in (kind, "*")
            and self.stream in (0, stream)
            and self.since_ns <= made < self.until_ns
        )


class Sieve:
    """Takes rows and batches out of a recording while it is written.

    Attributes:
        dropped: Rows that each agent says it has dropped so far.
        lost: What was lost and stated, by hop and what the hop calls it.
        silent: Rows that were lost and not stated.
    """

    def __init__(self, *losses: Lose, seed: int = 0) -> None:
        self.losses, self.random = losses, random.Random(seed)
        self.dropped: Counter[int] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.silent = 0
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}  # count, since when
        self._flushed = 0

    def through(self, stream: int, kind: str, rows: list[Row]) -> list[Row]:
        """The rows that are not lost."""
        wanted = [one for one in self.losses if not one.batches and one.kind in (kind, "*")]
        if not wanted or stream < _KERNEL:
            return rows
        kept, at = [], _MADE.get(kind)
        for row in rows:
            made = row[at] if at is not None else self._flushed
            lose = next((one for one in wanted if one.hits(stream, kind, made)), None)
            if lose is None or self.random.random() >= lose.share:
                kept.append(row)
            else:
                self._lose(lose, stream, kind, made)
        return kept

    def swallows(self, stream: int, kind: str, now: int) -> bool:
        """Whether a batch never comes."""
        for lose in self.losses:
            if not lose.batches or stream < _KERNEL or not lose.hits(stream, kind, now):
                continue
            if self.random.random() < lose.share:
                if lose.stated:
                    self._count("ingest.stream", f"batches of {stream}", self._flushed)
                return True
        return False

    def _lose(self, lose: Lose, stream: int, kind: str, made: int) -> None:
        if not lose.stated:
            self.silent += 1
        elif stream == _KERNEL:
            self._count("bpf.ring", kind, made)
        else:
            self.dropped[stream] += 1
            self._count("agent.queue", f"rows of {stream}", self._flushed)

    def _count(self, hop: str, what: str, since: int) -> None:
        count, first = self._rows.get((hop, what), (0, since))
        self._rows[hop, what] = (count + 1, min(first, since))
        self.lost[hop, what] += 1

    def stated(self, now: int) -> list[Row]:
        """Rows that say what was lost since the last time."""
        rows = [(now, since, hop, what, n) for (hop, what), (n, since) in self._rows.items()]
        self._rows = {}
        self._flushed = now
        return rows
