# SPDX-License-Identifier: Apache-2.0
"""What a session's recording says of each source of the host, kept to what is so.

A source is on, or degraded (it should work and fails), or off (nothing of it can be read here);
single things that it lacks are said under names of their own, ``host.SOURCE/WHAT``, once they were
missing twice, and taken back when they are there again. That a process ends is no lack.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.schema import CapabilityState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.daemon.notes import Notes
    from gpucorrelate.probes.host.reading import Missing, Standing

log = logging.getLogger(__name__)

#: How names of these sources begin in capabilities.
SOURCE = "host"
#: Single things that a session's recording names as missing, at one time and in all.
_MOST_MISSING, _MOST_NAMES = 64, 512
#: Reasons that are told of a source that is off: that of the best way, and of the second.
_MOST_REASONS = 2


@dataclass(frozen=True)
class Said:
    """How a source stands, and why not better."""

    state: CapabilityState
    reason: str = ""


ON = Said(CapabilityState.ON)


class Standings:
    """Of one session.

    Args:
        session: Its id, for the log.
        notes: Where it is recorded.
    """

    def __init__(self, session: str, notes: Notes) -> None:
        self._session = session
        self._notes = notes
        self._names: set[str] = set()
        self._sources: dict[str, Said] = {}
        #: By name of the single thing: whose and why.
        self._items: dict[str, str] = {}
        #: What was missing the last time and was not said: whose and why, by source.
        self._doubted: dict[str, set[str]] = {}
        for name, (state, reason) in notes.stated(f"{SOURCE}.").items():
            # An earlier run of the daemon said so: it is taken back if it is so no more.
            if "/" in name and state is not CapabilityState.ON:
                self._items[name] = reason
                self._names.add(name)

    def of(self, source: str) -> Said | None:
        """What was last said of a source."""
        return self._sources.get(source)

    def lacks(self, source: str) -> tuple[str, ...]:
        """Single things that a source lacks now, with whose and why."""
        head = f"{SOURCE}.{source}/"
        return tuple(
            f"{name.removeprefix(head)}: {why}"
            for name, why in self._items.items()
            if name.startswith(head)
        )

    def say(self, source: str, said: Said, fault: Exception | None = None) -> None:
        """How a source stands; recorded and logged when that is news.

        Args:
            source: Its name.
            said: How it stands.
            fault: What it failed with.
        """
        before = self._sources.get(source)
        if before == said:
            return
        self._sources[source] = said
        name = f"{SOURCE}.{source}"
        self._notes.capability(name, said.state, said.reason)
        if before is not None and before.state == said.state:
            return
        if said.state is CapabilityState.DEGRADED:
            log.warning("%s of session %s: %s", name, self._session, said.reason, exc_info=fault)
        elif before is not None:
            word = "works again" if said.state is CapabilityState.ON else said.reason
            log.info("%s of session %s: %s", name, self._session, word)

    def doubts(self, source: str) -> bool:
        """Whether something was missing that will be said if it still is when asked again."""
        return bool(self._doubted.get(source))

    def judge(self, source: str, standing: Standing) -> None:
        """Take what a poller says of itself."""
        missing = [one for one in standing.missing if not _has_ended(one.subject)]
        if standing.works or not missing:
            self.say(source, ON)
            self._lacking(source, missing)
        else:
            reasons = sorted(dict.fromkeys(map(_whose, missing)))[:_MOST_REASONS]
            self.say(source, Said(CapabilityState.OFF, "; ".join(reasons)))

    def _lacking(self, source: str, missing: Iterable[Missing]) -> None:
        found: dict[str, set[str]] = {}
        for one in missing:
            found.setdefault(f"{SOURCE}.{source}/{one.what}", set()).add(_whose(one))
        head = f"{SOURCE}.{source}/"
        for name in [name for name in self._items if name.startswith(head)]:
            if name not in found:
                del self._items[name]
                self._notes.capability(name, CapabilityState.ON, "")
        before, doubted = self._doubted.get(source, set()), set()
        for name, reasons in sorted(found.items()):
            # While what was said still holds of somebody it is not said anew of another.
            if self._items.get(name) in reasons:
                continue
            # What ends while it is read seems to lack everything, once.
            sure = {reason for reason in reasons if f"{name} {reason}" in before}
            if not sure:
                doubted |= {f"{name} {reason}" for reason in reasons}
            elif self._has_room(name):
                self._items[name] = min(sure)
                self._notes.capability(name, CapabilityState.OFF, self._items[name])
        self._doubted[source] = doubted

    def _has_room(self, name: str) -> bool:
        if name not in self._items and len(self._items) >= _MOST_MISSING:
            return False
        if name not in self._names and len(self._names) >= _MOST_NAMES:
            return False
        self._names.add(name)
        return True


def _whose(one: Missing) -> str:
    return f"{one.subject}: {one.reason}"


def _has_ended(subject: str) -> bool:
    """Whether it was a process that has ended."""
    kind, _, rest = subject.partition(":")
    if kind != "pid":
        return False
    pid = rest.partition(" ")[0]
    if not pid.isdecimal():
        return False
    stat = procfs.read_stat(int(pid))
    return stat is None or not stat.alive
