# SPDX-License-Identifier: Apache-2.0
"""The kernel's own watch on pressure: it says when tasks stood still too much within a window.

Totals tell exactly how long tasks stood still, but only as often as they are read. A trigger
(Linux kernel, Documentation/accounting/psi.rst) is watched by the kernel all the time, so that a
stall between two reads is noticed, and whoever reads can do so more often for a while.

With CAP_SYS_RESOURCE windows of 0.5 s are watched, ten times in each, by a thread that the kernel
starts for it. Without, windows must be a multiple of 2 s and are looked at as the averages are,
every 2 s, at no cost; that came with Linux 6.4, and with updates of some before it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.cgroup_group import subject_of
from gpucorrelate.probes.host.cgroup_paths import chain, parse_mountinfo, parse_proc_cgroup
from gpucorrelate.probes.host.reading import Change, Missing, Round, Standing
from gpucorrelate.probes.host.source import Folder, reason_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpucorrelate.probes.host.cgroup_paths import Mount

_MS = 1_000_000
_S = 1000 * _MS
#: Shares of a window, in percent, from which the kernel speaks: somebody always wants a CPU.
LEAST_PERCENT = {"cpu": 20, "memory": 5, "io": 5}
#: The shortest window there is; and the shortest without CAP_SYS_RESOURCE.
_SHORT_US, _LONG_US = 500_000, 2_000_000
#: Looks at a window by the kernel's thread; without the privilege it is one in ``_LONG_US``.
_LOOKS = 10
#: Nothing was said for so many windows: it is over. The kernel speaks once a window at most.
_QUIET_WINDOWS = 2
#: Cgroups that are watched; and how often it is looked which those are.
_MOST_CGROUPS, _AGAIN_NS = 16, 2 * _S
#: Mounts of cgroups hardly ever change, and reading them costs more than all else here.
_MOUNTED_NS = 30 * _S
_MOUNTINFO_BYTES = 1 << 20
_HOST = "host"
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OLD = (
    "not permitted: needs the right to write to the file and, before Linux 6.4, CAP_SYS_RESOURCE"
)


def what_of(resource: str) -> str:
    """Name of the state that a trigger on a resource tells, as changes have it."""
    return f"{resource} pressure"


@dataclass
class _Trigger:
    """One armed trigger: it lives as long as its descriptor."""

    fd: int
    subject: str
    resource: str
    window_us: int
    armed_ns: int
    fired_ns: int = 0  # 0: nothing stands still, as far as is known

    @property
    def window_ns(self) -> int:
        return self.window_us * 1000

    @property
    def late_ns(self) -> int:
        """How long before the kernel speaks the window may have ended of which it does."""
        return self.window_ns if self.window_us >= _LONG_US else self.window_ns // _LOOKS

    @property
    def text(self) -> str:
        least_ms = self.window_us * LEAST_PERCENT[self.resource] // 100_000
        window_s = self.window_us / 1_000_000
        return f"{least_ms} ms and more of {window_s:g} s"


class PressureTriggers:
    """Triggers on the machine's pressure and on that of cgroups (v2) of processes and all above.

    What fires becomes a change of ``RESOURCE pressure``; it is taken back when nothing fired for
    two windows. ``urgent`` of a round: something stands still that did not before.

    Args:
        root: Root of the file system.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._poll = select.poll()
        self._triggers: dict[int, _Trigger] = {}
        self._watched: dict[str, tuple[str, ...]] = {}
        self._missing: dict[str, tuple[Missing, ...]] = {}
        self._beyond: tuple[Missing, ...] = ()
        self._pids: frozenset[int] = frozenset()
        self._mounts: tuple[Mount, ...] = ()
        self._looked_ns = self._again_ns = self._mounted_ns = 0

    def poll(self, pids: Collection[int]) -> Round:
        """What fired since the last round, or did not for long enough; never waits."""
        now_ns = time.monotonic_ns()
        changes: list[Change] = []
        if now_ns >= self._again_ns or self._pids != frozenset(pids):
            self._pids, self._again_ns = frozenset(pids), now_ns + _AGAIN_NS
            if now_ns >= self._mounted_ns:
                self._mounts = parse_mountinfo(self._read(self._own_pid(), "mountinfo"))
                self._mounted_ns = now_ns + _MOUNTED_NS
            changes += self._follow(now_ns)
        began = self._fired(now_ns)
        over = [one for one in self._triggers.values() if _done(one, now_ns)]
        changes += [*began, *(self._over(one, now_ns) for one in over)]
        self._looked_ns = now_ns
        return Round(changes=tuple(changes), urgent=bool(began))

    def standing(self) -> Standing:
        """What is watched, and what cannot be."""
        missing = [one for found in self._missing.values() for one in found]
        return Standing(bool(self._triggers), (*missing, *self._beyond))

    def close(self) -> None:
        """Disarm all of them."""
        for subject in list(self._watched):
            self._leave(subject)
        self._pids = frozenset()
        self._looked_ns = self._again_ns = self._mounted_ns = 0

    def _fired(self, now_ns: int) -> list[Change]:
        found = []
        for fd, events in self._poll.poll(0) if self._triggers else ():
            one = self._triggers[fd]
            if events & (select.POLLERR | select.POLLNVAL):
                # The cgroup has been removed.
                self._poll.unregister(fd)
                continue
            if not one.fired_ns:
                seen_ns = max(one.armed_ns, (self._looked_ns or now_ns) - one.late_ns)
                since_ns = max(one.armed_ns, seen_ns - one.window_ns)
                what = what_of(one.resource)
                found.append(Change(now_ns, since_ns, one.subject, what, "", one.text))
            one.fired_ns = now_ns
        return found

    def _over(self, one: _Trigger, now_ns: int) -> Change:
        since_ns, one.fired_ns = one.fired_ns, 0
        return Change(now_ns, since_ns, one.subject, what_of(one.resource), one.text, "")

    def _follow(self, now_ns: int) -> list[Change]:
        """Watch what the processes are in now, and nothing else."""
        wanted: dict[str, tuple[str, ...]] = {_HOST: ("proc", "pressure")}
        wanted |= self._cgroups()
        names = list(wanted)[: 1 + _MOST_CGROUPS]
        more = len(wanted) - len(names)
        reason = (
            f"{more} more than the {_MOST_CGROUPS} whose pressure the kernel is asked to watch"
        )
        self._beyond = (Missing("triggers of cgroups", _HOST, reason),) if more else ()
        self._missing = {name: self._missing[name] for name in names if name in self._missing}
        changes = []
        for subject in self._watched.keys() - set(names):
            changes += [self._over(one, now_ns) for one in self._of(subject) if one.fired_ns]
            self._leave(subject)
        for subject in names:
            if subject not in self._watched:
                self._arm(subject, wanted[subject], now_ns)
        return changes

    def _of(self, subject: str) -> list[_Trigger]:
        return [one for one in self._triggers.values() if one.subject == subject]

    def _leave(self, subject: str) -> None:
        for one in self._of(subject):
            with contextlib.suppress(KeyError):
                self._poll.unregister(one.fd)
            os.close(one.fd)
            del self._triggers[one.fd]
        self._watched.pop(subject, None)
        self._missing.pop(subject, None)

    def _cgroups(self) -> dict[str, tuple[str, ...]]:
        """Directories of the cgroups of v2 that the processes are in, and of those above."""
        found: dict[str, tuple[str, ...]] = {}
        for pid in sorted(self._pids):
            for membership in parse_proc_cgroup(self._read(str(pid), "cgroup")):
                if membership.version == 2:
                    places = chain(membership, self._mounts)
                    found |= {subject_of(one.path): one.directory for one in places}
        return {name: where for name, where in found.items() if self._is_no_root(where)}

    def _own_pid(self) -> str:
        # As this file system has it, which may be another pid namespace's; "self" is a link.
        try:
            return str((self._root / "proc/self").readlink())
        except OSError:
            return ""

    def _is_no_root(self, where: tuple[str, ...]) -> bool:
        # The root's pressure is the machine's. In a cgroup namespace "/" is some cgroup.
        return self._root.joinpath(*where, "cgroup.type").exists()

    def _read(self, pid: str, name: str) -> str:
        try:
            folder = Folder.at(self._root, ("proc", pid))
        except OSError:
            return ""
        try:
            return folder.read(name, _MOUNTINFO_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return ""
        finally:
            folder.close()

    def _arm(self, subject: str, where: tuple[str, ...], now_ns: int) -> None:
        missing: list[Missing] = []
        try:
            folder = Folder.at(self._root, where)
        except OSError as error:
            self._missing[subject] = (Missing("triggers", subject, reason_of(error)),)
            # Not taken for watched: it may be there the next time.
            return
        try:
            for resource in LEAST_PERCENT:
                name = resource if subject == _HOST else f"{resource}.pressure"
                armed = arm(folder, name, resource)
                if isinstance(armed, str):
                    missing.append(Missing(f"trigger on {resource}", subject, armed))
                    continue
                fd, window_us = armed
                self._triggers[fd] = _Trigger(fd, subject, resource, window_us, now_ns)
                self._poll.register(fd, select.POLLPRI)
        finally:
            folder.close()
        self._watched[subject] = where
        self._missing[subject] = tuple(missing or _coarse(self._of(subject)))


def _coarse(triggers: Iterable[_Trigger]) -> Iterator[Missing]:
    if any(one.window_us >= _LONG_US for one in triggers if one.subject == _HOST):
        reason = "stalls are told of up to 2 s late: shorter windows need CAP_SYS_RESOURCE"
        yield Missing("short trigger windows", _HOST, reason)


def _done(one: _Trigger, now_ns: int) -> bool:
    quiet_ns = _QUIET_WINDOWS * one.window_ns + one.late_ns
    return 0 < one.fired_ns < now_ns - quiet_ns


def arm(folder: Folder, name: str, resource: str) -> tuple[int, int] | str:
    """Have the kernel watch a pressure file.

    Args:
        folder: Where it is.
        name: Its name.
        resource: One of ``LEAST_PERCENT``.

    Returns:
        The descriptor, on which POLLPRI says that the trigger fired, and the window in
        microseconds; or why it cannot be done.
    """
    try:
        fd = os.open(name, _WRITE, dir_fd=folder.fd)
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES)
        return _OLD if refused else reason_of(error)
    try:
        for window_us in (_SHORT_US, _LONG_US):
            least_us = window_us * LEAST_PERCENT[resource] // 100
            if not _is_kernels(fd):
                break
            try:
                os.write(fd, f"some {least_us} {window_us}\0".encode("ascii"))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return _close(fd, reason_of(error))
            else:
                return fd, window_us
    except BaseException:
        os.close(fd)
        raise
    return _close(fd, "the kernel takes no window of it")


def _close(fd: int, reason: str) -> str:
    os.close(fd)
    return reason


def _is_kernels(fd: int) -> bool:
    """Whether it is a file of the kernel's, which has no blocks: others are not written to."""
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_size == 0 and found.st_blocks == 0
