# SPDX-License-Identifier: Apache-2.0
"""What the host did during a whole recording: its context, and its memory by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.context_roles import by_role
from gpucorrelate.correlator.report.context_values import HostReport, KillPhase, MemoryPeak

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gpucorrelate.correlator.context import HostContext, OnPath
    from gpucorrelate.correlator.report.context_values import Context
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.steps import Steps

    I64 = NDArray[np.int64]

#: Memory that is read often enough to be told by phase.
_MEMORY = ("gpu.memory.used", "gpu.process.memory", "memory.current")
_KILLS = ("memory.events.oom_kill", "memory.oom_control.oom_kill")
BETWEEN = "between"
#: An engine has a few steps in flight at once, one for each stage of its pipeline.
_MOST_IN_FLIGHT = 64
_UNSEEN = (
    "host memory bandwidth: no counter of it is read, so code that was slow for want of it is "
    "`cpu`; cache misses alone would prove nothing",
)
_UNSEEN_OF_GPUS = (
    "GPU memory by use (weights, KV cache, activations, workspace, graphs): no source in the "
    "worker tells of it, only what processes hold is known",
)


def of(host: HostContext, states: States, steps: Steps, path: OnPath | None) -> HostReport | None:
    """The host during a recording; ``None`` where it was not read.

    Args:
        host: Its numbers.
        states: The recording's bounds.
        steps: The engine's steps, which are its phases.
        path: Who matters; without it everybody does.
    """
    context = host.of(states.start_ns, states.end_ns, path)
    if context is None:
        return None
    phases = _Phases(steps)
    gpus = any(one.subject.startswith("gpu:") for one in context.levels)
    return HostReport(
        context,
        tuple(_peaks(host, phases, path)),
        tuple(_kills(context, phases)),
        (*_UNSEEN, *(_UNSEEN_OF_GPUS if gpus else ())),
        by_role(states.capture, context.numbers),
    )


class _Phases:
    """Which kind of step the engine was in at a moment."""

    def __init__(self, steps: Steps) -> None:
        ended = np.array([steps.end_ns(i) for i in range(len(steps))], np.int64)
        order = np.argsort(steps.sched_ns, kind="stable")
        order = order[ended[order] > 0]
        self._start, self._end = steps.sched_ns[order], ended[order]
        self._reach = np.maximum.accumulate(self._end) if len(order) else self._end
        self._kinds = [steps.kind(i) for i in order.tolist()]

    def at(self, t_ns: int) -> str:
        """The kind of the step that began last of those in progress; else between steps."""
        last = int(np.searchsorted(self._start, t_ns, side="right")) - 1
        for at in range(last, max(-1, last - _MOST_IN_FLIGHT), -1):
            if self._end[at] > t_ns:
                return self._kinds[at]
            if self._reach[at] <= t_ns:
                break
        return BETWEEN

    def within(self, start_ns: int, end_ns: int) -> tuple[str, ...]:
        """Kinds of all steps that overlap a time, in the order of their first."""
        high = int(np.searchsorted(self._start, end_ns))
        low = int(np.searchsorted(self._reach[:high], start_ns, side="right"))
        some = (i for i in range(low, high) if self._end[i] > start_ns)
        return tuple(dict.fromkeys(self._kinds[i] for i in some))


def _peaks(host: HostContext, phases: _Phases, path: OnPath | None) -> Iterator[MemoryPeak]:
    cgroups = host.cgroups_of(path)
    for metric in _MEMORY:
        for subject, t, value in sorted(host.readings(metric), key=_by_subject):
            if path is not None and not path.concerns(subject, cgroups):
                continue
            found: dict[str, tuple[int, int]] = {}
            for t_ns, size in zip(t.tolist(), value.tolist(), strict=True):
                phase = phases.at(t_ns)
                most, count = found.get(phase, (0, 0))
                found[phase] = (max(most, size), count + 1)
            for phase, (most, count) in found.items():
                yield MemoryPeak(metric, subject, host.label(subject), phase, most, count)


def _by_subject(one: tuple[str, I64, I64]) -> str:
    return one[0]


def _kills(context: Context, phases: _Phases) -> Iterable[KillPhase]:
    for one in context.numbers:
        if one.metric in _KILLS and one.grown > 0 and one.concerns:
            inside = phases.within(one.since_ns, one.until_ns)
            yield KillPhase(one.subject, one.who, one.grown, one.since_ns, one.until_ns, inside)
