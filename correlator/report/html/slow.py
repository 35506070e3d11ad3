# SPDX-License-Identifier: Apache-2.0
"""What the slow steps of a recording have in common that the others have not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.html.pack import Json
    from gpucorrelate.correlator.report.values import StepRow

#: Steps from this percentile on are the slow ones; fewer than so many steps have none.
_PERCENT, _LEAST_STEPS = 95, 20
_ROWS = 5


@dataclass(frozen=True)
class Trait:
    """Something that a step can be or have, and how often it is so."""

    what: str
    slow: int  # of the slow steps so many
    others: int  # of the others so many


@dataclass(frozen=True)
class SlowSteps:
    """Slow steps beside the others.

    Attributes:
        least_ns: The shortest of the slow ones.
        slow: How many are slow.
        others: How many are not.
        median_ns: Of the others' lengths.
        traits: What is more frequent among the slow ones, the largest difference first.
        means: What, its mean among the slow ones and among the others.
    """

    least_ns: int
    slow: int
    others: int
    median_ns: int
    traits: tuple[Trait, ...]
    means: tuple[tuple[str, float, float], ...]

    @property
    def text(self) -> str:
        """The most telling trait in a sentence."""
        lead = (
            f"{units.plural(self.slow, 'step')} took {units.duration(self.least_ns)} or longer "
            f"(p{_PERCENT}); the others' median is {units.duration(self.median_ns)}"
        )
        if not self.traits:
            return f"{lead}. Nothing that is known of steps is more frequent among the slow ones."
        one = self.traits[0]
        return (
            f"{lead}. Most telling: {one.what}, {units.share(one.slow, self.slow)} of the slow "
            f"ones, {units.share(one.others, self.others)} of the others."
        )

    def to_dict(self) -> Json:
        """As plain values."""
        return {
            "text": self.text,
            "least_ns": self.least_ns,
            "slow": self.slow,
            "others": self.others,
            "median_ns": self.median_ns,
            "traits": [[one.what, one.slow, one.others] for one in self.traits],
            "means": [[what, round(slow, 2), round(rest, 2)] for what, slow, rest in self.means],
        }


def of(rows: Sequence[StepRow]) -> SlowSteps | None:
    """The slow ones of steps that ended; ``None`` where there are too few to tell."""
    if len(rows) < _LEAST_STEPS:
        return None
    walls = sorted(row.wall_ns for row in rows)
    least = units.quantile(walls, _PERCENT) or 0
    slow = [row for row in rows if row.wall_ns >= least]
    rest = [row for row in rows if row.wall_ns < least]
    if not rest:
        return None
    few, many = _counted(slow), _counted(rest)
    traits = [Trait(what, count, many[what]) for what, count in few.items()]
    more = [
        one for one in traits if one.slow * len(rest) > one.others * len(slow) and one.slow > 1
    ]
    more.sort(key=lambda one: one.others * len(slow) - one.slow * len(rest))
    return SlowSteps(
        least, len(slow), len(rest), units.quantile(sorted(row.wall_ns for row in rest), 50) or 0,
        tuple(more[:_ROWS]),
        tuple(
            (what, _mean([row[k] for row in map(_numbers, slow)]),
             _mean([row[k] for row in map(_numbers, rest)]))
            for k, what in enumerate(("rows", "tokens", "prefill tokens", "requests waiting"))
        ),
    )  # fmt: skip


def _numbers(row: StepRow) -> tuple[int, int, int, int]:
    return row.rows, row.tokens, row.prefill_tokens or 0, row.waiting


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _counted(rows: Sequence[StepRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[f"kind {row.kind}"] += 1
        if row.longest:
            found[f"longest stretch {row.longest}"] += 1
        if row.prefill_tokens:
            found["with prefill tokens"] += 1
        if row.waiting:
            found["requests waiting in the queue"] += 1
    return found
