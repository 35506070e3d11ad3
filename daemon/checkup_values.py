# SPDX-License-Identifier: Apache-2.0
"""How one thing stands that ``check`` looks at."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CheckState(enum.StrEnum):
    """How something stands."""

    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What: ``kernel.btf``, ``ebpf.sched``, ``engine.agent``, ``gpu``...
        state: How it stands.
        found: What was found.
        lost: What cannot be observed; empty when nothing is lost.
        mend: What to do; empty when nothing helps or nothing needs to be done.
        needed: Whether the main job (waits with their wakers) is impossible without it.
    """

    name: str
    state: CheckState
    found: str
    lost: str = ""
    mend: str = ""
    needed: bool = False


def ok(name: str, found: str) -> Check:
    """All is well with it."""
    return Check(name, CheckState.OK, found)
