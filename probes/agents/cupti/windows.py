# SPDX-License-Identifier: Apache-2.0
"""When the GPU agent records, and when it must not any more because that costs too much.

Recording every kernel all the time has cost others most of an engine's throughput. So it records
in windows, compares the steps inside them with those around them, and stops for good when the
steps inside are longer than the budget allows.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from gpucorrelate.probes.wire.gpu import GpuMode, GpuPlan

#: Steps compared on each side, and the fewest that say anything.
_STEPS = 256
_FEWEST = 30
#: Windows in a row that must cost too much: one may have met a burst of long prompts.
_STRIKES = 2
_MS = 1_000_000


class Action(enum.Enum):
    """What is to be done now."""

    NOTHING = 0
    BEGIN = 1
    END = 2


def _quartile(lengths: deque[int]) -> int:
    """The lower quartile: the decode steps, which are alike; prefills come and go."""
    return sorted(lengths)[len(lengths) // 4]


@dataclass
class Windows:
    """The windows of one process.

    Attributes:
        plan: What was asked for.
        began_ns: The window that is on began; 0: none is.
        stopped: Why there are no more; empty while there may be.
    """

    plan: GpuPlan
    began_ns: int = 0
    stopped: str = ""
    _last_ns: int = 0
    _steps: int = 0
    _inside: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))
    _outside: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))
    _strikes: int = 0

    def due(self, now_ns: int) -> Action:
        """What is to be done at this moment; see ``began`` and ``ended``."""
        plan = self.plan
        if self.began_ns:
            return Action.END if self._over(now_ns) else Action.NOTHING
        if self.stopped or plan.mode is GpuMode.OFF:
            return Action.NOTHING
        waited = not self._last_ns or now_ns - self._last_ns >= plan.every_ms * _MS
        return Action.BEGIN if waited else Action.NOTHING

    def _over(self, now_ns: int) -> bool:
        plan = self.plan
        if self.stopped:
            return True
        if plan.mode is GpuMode.ALWAYS:
            return False
        enough = bool(plan.steps) and self._steps >= plan.steps
        return enough or now_ns - self.began_ns >= plan.window_ms * _MS

    def began(self, now_ns: int) -> None:
        """The window is on."""
        self.began_ns = self._last_ns = now_ns
        self._steps = 0
        self._inside.clear()

    def refused(self, now_ns: int) -> None:
        """It could not begin: not before the next one's time."""
        self._last_ns = now_ns

    def ended(self) -> None:
        """The window is off. Its cost is judged, and may end all others."""
        self.began_ns = 0
        cost_ppm = self.cost_ppm()
        if cost_ppm is None:
            return
        self._strikes = self._strikes + 1 if cost_ppm > self.plan.budget_ppm else 0
        if self._strikes >= _STRIKES:
            self.stop(
                f"steps were {cost_ppm / 10_000:.1f}% longer while the GPU was recorded, more "
                f"than the {self.plan.budget_ppm / 10_000:.1f}% allowed"
            )

    def stop(self, why: str) -> None:
        """No more windows in this process; the one that is on is to be ended."""
        self.stopped = self.stopped or why

    def step(self, start_ns: int, end_ns: int) -> None:
        """A step of the engine's, in order of their ends.

        One that was under way when a window began or ended is in neither.
        """
        if self.began_ns and start_ns >= self.began_ns:
            self._inside.append(end_ns - start_ns)
            self._steps += 1
        elif not self.began_ns or end_ns <= self.began_ns:
            self._outside.append(end_ns - start_ns)

    def cost_ppm(self) -> int | None:
        """How much longer steps are inside, in parts per million; None: too few to say."""
        if min(len(self._inside), len(self._outside)) < _FEWEST:
            return None
        inside, outside = _quartile(self._inside), _quartile(self._outside)
        if outside <= 0:
            return None
        return max(0, (inside - outside) * 1_000_000 // outside)
