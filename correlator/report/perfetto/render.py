# SPDX-License-Identifier: Apache-2.0
"""A recording, or the time around some of its requests or steps, as a Perfetto trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report.perfetto import device, engine, host, states, threads
from gpucorrelate.correlator.report.perfetto.scene import Scene, Window
from gpucorrelate.correlator.report.perfetto.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.correlator.report.build import Run

#: Around a request or step as much as this share of its length is drawn, and at least so much.
_MARGIN_PERCENT = 5
_MARGIN_NS = 1_000_000


@dataclass(frozen=True)
class Choice:
    """What of a recording to draw.

    Attributes:
        stretches: The time; all that overlaps it is drawn, whole. Empty: all of it.
        requests: Places of the requests whose critical paths are drawn; ``None`` all.
        profile_steps: The same of a profile's steps.
    """

    stretches: tuple[tuple[int, int], ...] = ()
    requests: tuple[int, ...] | None = None
    profile_steps: tuple[int, ...] | None = None


def around(stretches: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches of time with a margin around each."""
    margins = [max(_MARGIN_NS, (end - start) * _MARGIN_PERCENT // 100) for start, end in stretches]
    return tuple(
        (start - margin, end + margin)
        for (start, end), margin in zip(stretches, margins, strict=True)
    )


def write(
    run: Run, choice: Choice, out: IO[bytes], shown: Callable[[str], str] = str
) -> dict[str, int]:
    """Writes a trace to an open binary file, as it is made.

    Args:
        run: The recording.
        choice: What of it.
        out: Where to.
        shown: What is written in place of a text.

    Returns:
        How many slices and marks of each category are in it.

    Raises:
        GpucorrelateError: Perfetto's classes of messages are not installed.
    """
    writer = TraceWriter(out, run.states.start_ns, shown)
    scene = Scene(run, writer, Window(choice.stretches))
    launches, into, drawn, called = device.launches(scene)
    if run.is_profile:
        engine.draw_profile_steps(scene, choice.profile_steps)
    else:
        engine.draw_requests(scene, choice.requests)
        engine.draw_steps(scene)
    states.draw(scene)
    threads.draw(scene, launches, called)
    device.draw(scene, into, drawn)
    host.draw_counters(scene)
    host.draw_marks(scene)
    host.draw_about(scene)
    return dict(writer.counts)
