# SPDX-License-Identifier: Apache-2.0
"""How much of the GPU's work is to be recorded: what a user asks for and an agent does."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class GpuMode(str, enum.Enum):
    """How much is recorded of the GPU."""

    OFF = "off"
    WINDOW = "window"  # in windows; a launch of a graph is one record
    NODES = "nodes"  # in windows; each kernel of a graph is one
    ALWAYS = "always"  # without pause; a launch of a graph is one record
    LAB = "lab"  # in windows, by way of NVIDIA's Python package; slow


#: Least and most of each number of a plan.
BOUNDS: Mapping[str, tuple[int, int]] = {
    "window_ms": (100, 3_600_000),
    "every_ms": (100, 24 * 3_600_000),
    "steps": (0, 1_000_000),
    "budget_ppm": (0, 10_000_000),
}


@dataclass(frozen=True)
class GpuPlan:
    """What is asked for.

    Attributes:
        mode: How much.
        window_ms: Length of a window.
        every_ms: From the beginning of one to that of the next.
        steps: A window also ends after so many steps; 0: by time alone.
        budget_ppm: So much longer, in parts per million, may steps be in a window.
    """

    mode: GpuMode = GpuMode.WINDOW
    window_ms: int = 2_000
    every_ms: int = 30_000
    steps: int = 0
    budget_ppm: int = 50_000

    def check(self) -> None:
        """Hold the numbers against ``BOUNDS``.

        Raises:
            ValueError: one is out of bounds; the text says which and what is allowed.
        """
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} = {value}: must be a whole number, {least} to {most}")


#: Nothing is recorded.
NO_GPU = GpuPlan(GpuMode.OFF)


def to_wire(plan: GpuPlan) -> dict[str, str | int]:
    """The plan as it stands in a message."""
    return {
        "mode": plan.mode.value,
        **{name: getattr(plan, name) for name in BOUNDS},
    }


def from_wire(message: object) -> GpuPlan:
    """The plan in a message.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(message, dict):
        raise ValueError("a plan for the GPU is a map")  # noqa: TRY004 - one kind for the caller
    known = {field.name for field in fields(GpuPlan)}
    given = {name: value for name, value in message.items() if name in known}
    plan = GpuPlan(**{**given, "mode": GpuMode(given.get("mode", GpuMode.WINDOW.value))})
    plan.check()
    return plan
