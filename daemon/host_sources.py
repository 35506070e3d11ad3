# SPDX-License-Identifier: Apache-2.0
"""The sources of the host that are cheap and never block: files of proc, sys and cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpucorrelate.probes.host.cgroup import CgroupPoller
from gpucorrelate.probes.host.processes import MemoryPoller, ProcessPoller
from gpucorrelate.probes.host.psi import PsiPoller
from gpucorrelate.probes.host.psi_triggers import PressureTriggers
from gpucorrelate.probes.host.reading import BLOCKED_IN, Change, Round
from gpucorrelate.probes.host.thread_roles import ThreadRoles
from gpucorrelate.probes.host.threads import ThreadPoller

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpucorrelate.probes.host.cgroup import CgroupMove
    from gpucorrelate.probes.host.reading import Standing


class Poller(Protocol):
    """One source of numbers."""

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        """Look; ``everything`` also tells what has not changed."""

    def standing(self) -> Standing:
        """How the source stands as of the last look."""

    def close(self) -> None:
        """Let go of all files; the next look begins anew."""


class _Threads:
    def __init__(self) -> None:
        self._poller = ThreadPoller()
        self._roles = ThreadRoles()
        self.standing = self._poller.standing

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        found = self._poller.poll(pids, everything=everything)
        roles = self._roles.update(found.looks, pids, found.gone, found.since_ns, found.t_ns)
        blocked = tuple(
            Change(look.t_ns, found.since_ns, f"tid:{look.tid}", BLOCKED_IN, "", look.wchan)
            for look in found.looks
            if look.waits_for_page
        )
        return Round(found.sample, blocked + roles)

    def close(self) -> None:
        self._poller.close()
        self._roles.close()


class _Cgroups:
    def __init__(self) -> None:
        self._poller = CgroupPoller()
        self.standing, self.close = self._poller.standing, self._poller.close

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        found = self._poller.poll(pids, everything=everything)
        return Round(found.sample, tuple(map(_move, found.moves)))


def _move(move: CgroupMove) -> Change:
    what = f"cgroup of {','.join(move.controllers)}" if move.controllers else "cgroup"
    return Change(move.t_ns, move.since_ns, f"pid:{move.pid}", what, move.before, move.after)


class _Processes:
    def __init__(self) -> None:
        self._poller = ProcessPoller()
        self.standing, self.close = self._poller.standing, self._poller.close

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        return Round(self._poller.poll(pids, everything=everything))


class _Triggers:
    def __init__(self) -> None:
        self._triggers = PressureTriggers()
        self.standing, self.close = self._triggers.standing, self._triggers.close

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        # What has not changed is no news here: recordings restate what holds.
        del everything
        return self._triggers.poll(pids)


class _Machine:
    # The same for all sessions and processes.
    def __init__(self, poller: PsiPoller | MemoryPoller) -> None:
        self._poller = poller
        self.standing, self.close = poller.standing, poller.close

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        del pids
        return Round(self._poller.poll(everything=everything))


#: What only asks whether something happened, at every turn: the others are looked at more often
#: when it did.
WATCHING = "triggers"
#: By the name that capabilities give them. Each session has its own: what did not change since a
#: session was told is not the same for all. The one that hurries the others comes first.
SOURCES: dict[str, Callable[[], Poller]] = {
    WATCHING: _Triggers,
    "cgroups": _Cgroups,
    "memory": lambda: _Machine(MemoryPoller()),
    "pressure": lambda: _Machine(PsiPoller()),
    "processes": _Processes,
    "threads": _Threads,
}
