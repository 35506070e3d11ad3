# SPDX-License-Identifier: Apache-2.0
"""What a look that may block is, and what it brings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.probes.host.reading import Change, Sample, Standing

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class Found:
    """What a look brought.

    Attributes:
        sample: All numbers there are, changed or not.
        standing: How the source stands now.
        changes: What is no number and became another.
        present: What is no number, as it is: for whoever was told nothing yet.
        failing: Why it does not work although it should; empty where it does, or cannot.
        opened: It began anew: it cost what looks do not cost as a rule.
        rest_ns: There is nothing to look at before so long: no look need be made till then.
    """

    sample: Sample = field(default_factory=Sample)
    standing: Standing = field(default_factory=Standing)
    changes: tuple[Change, ...] = ()
    present: tuple[Change, ...] = ()
    failing: str = ""
    opened: bool = False
    rest_ns: int = 0


class Look(Protocol):
    """One kind of look; for one thread."""

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        """Look now. May block, and may raise whatever it likes."""

    def close(self) -> None:
        """Let go of everything; the next look begins anew."""


def all_of(sample: Sample) -> Found:
    """A look of which nothing but the numbers says how its source stands."""
    return Found(sample, Standing(bool(sample.readings) or not sample.missing, sample.missing))
