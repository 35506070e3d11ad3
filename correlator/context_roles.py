# SPDX-License-Identifier: Apache-2.0
"""What threads took of the CPUs, by what they are there for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.guessed_roles import guessed_roles, stated_roles
from gpucorrelate.correlator.report.context_values import RoleShare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.context_values import ContextNumber

_CPU, _DELAY = "thread.cpu", "thread.run_delay"
_TID = "tid:"


def by_role(capture: Capture, numbers: Iterable[ContextNumber]) -> tuple[RoleShare, ...]:
    """CPU time by role, the most first; threads of no known role are one row.

    Args:
        capture: The recording.
        numbers: Numbers that changed within a window; threads that did not run are not among
            them, and not counted.
    """
    said, guessed = stated_roles(capture), guessed_roles(capture)
    sums: dict[tuple[str, str], tuple[set[int], int, int, int]] = {}
    for one in numbers:
        tid = one.subject.removeprefix(_TID)
        if one.metric not in (_CPU, _DELAY) or not tid.isdecimal():
            continue
        guess = guessed.get(int(tid))
        role = said.get(int(tid)) or (guess.role if guess is not None else "")
        key = role, guess.basis if guess is not None else ("process" if role else "")
        tids, cpu_ns, delay_ns, length_ns = sums.get(key, (set(), 0, 0, 0))
        of_cpu = one.metric == _CPU
        sums[key] = (
            tids | {int(tid)},
            cpu_ns + one.grown * of_cpu,
            delay_ns + one.grown * (not of_cpu),
            max(length_ns, one.length_ns),
        )
    found = [
        RoleShare(role, basis, len(tids), cpu_ns, delay_ns, length_ns)
        for (role, basis), (tids, cpu_ns, delay_ns, length_ns) in sums.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.cpu_ns, one.role)))
