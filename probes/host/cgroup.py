# SPDX-License-Identifier: Apache-2.0
"""Limits and use of the cgroups that processes are in, and of every cgroup above them.

A limit is often not the process's own: a quota or a memory limit further up holds it just the
same. So each hierarchy a process is in is read from its cgroup to the top of what can be seen
here, v1 as well as v2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.cgroup_group import OpenCgroup, subject_of
from gpucorrelate.probes.host.cgroup_paths import (
    V1_CONTROLLERS,
    Membership,
    Mount,
    Place,
    chain,
    parse_mountinfo,
    parse_proc_cgroup,
)
from gpucorrelate.probes.host.reading import Missing, Sample, Standing
from gpucorrelate.probes.host.source import (
    Collected,
    Descriptors,
    Folder,
    KeptFile,
    reason_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


ROOT = Path("/")
#: Machines full of containers have thousands of mounts.
_MOUNTINFO_BYTES = 4 * 1024 * 1024
#: Inode of the initial cgroup namespace (PROC_CGROUP_INIT_INO of include/linux/proc_ns.h).
_INITIAL_NAMESPACE = "cgroup:[4026531835]"


@dataclass(frozen=True)
class CgroupMove:
    """A process that came to be in another cgroup, or is looked at for the first time.

    Attributes:
        pid: The process.
        controllers: Controllers of the v1 hierarchy it moved in; none for v2.
        before: Path it had in the hierarchy; empty the first time.
        after: Path it has; empty when it is in the hierarchy no more.
        since_ns: It happened after this moment, CLOCK_MONOTONIC; 0 the first time.
        t_ns: It was noticed then.
    """

    pid: int
    controllers: tuple[str, ...]
    before: str
    after: str
    since_ns: int
    t_ns: int


@dataclass(frozen=True)
class CgroupRound:
    """What a round brought.

    Attributes:
        since_ns: When the round before began; 0 if there was none. What changed, changed after
            that and before the reading's own time.
        t_ns: When this one began.
        sample: Numbers that changed, and what became missing.
        moves: Processes that moved.
    """

    since_ns: int
    t_ns: int
    sample: Sample
    moves: tuple[CgroupMove, ...]


_Key = tuple[int, tuple[str, ...], str]


class _Member:
    # A process and where it is.
    def __init__(self, pid: int, folder: Folder, held: Descriptors) -> None:
        self.pid = pid
        self.subject = f"pid:{pid}"
        self.file = KeptFile(folder, ("cgroup",), held)
        self.folder = folder
        self.data: bytes | None = None
        self.memberships: tuple[Membership, ...] = ()
        self.chains: tuple[tuple[Place, ...], ...] = ()
        self.base = ROOT
        self.complaints: tuple[Missing, ...] = ()

    def close(self) -> None:
        self.file.close()
        self.folder.close()


class CgroupPoller:
    """Follows the cgroups of processes.

    Threads may be given as processes are, where they are in cgroups of their own.

    Args:
        root: Root of the file system that all is read from.
        max_groups: Most cgroups that are read; how many are left out is told.
        max_files: Most files held open between rounds; the others cost an opening each.
        again_after: Rounds after which files that were not there are looked for again.
    """

    def __init__(
        self,
        root: Path = ROOT,
        *,
        max_groups: int = 64,
        max_files: int = 1024,
        again_after: int = 25,
    ) -> None:
        self._root = root
        self._max_groups = max_groups
        self._again_after = again_after
        self._held = Descriptors(max_files)
        self._mounts: tuple[Mount, ...] | None = None
        self._members: dict[int, _Member] = {}
        self._groups: dict[_Key, OpenCgroup] = {}
        self._complaints: frozenset[Missing] = frozenset()
        self._unopened: list[Missing] = []
        self._elsewhere: frozenset[str] = frozenset()
        self._changed = True
        self._rounds = 0
        self._since_ns = 0

    def poll(self, pids: Collection[int], *, everything: bool = False) -> CgroupRound:
        """Look at the cgroups of these processes and all above; processes not given are dropped.

        Args:
            pids: The processes.
            everything: Tell also what has not changed since the last round.
        """
        out = Collected(everything=everything)
        began_ns = out.t_ns
        again = self._rounds % self._again_after == 0
        if again:
            self._mounts, self._changed = None, True
        wrong: list[Missing] = []
        moves = self._follow(pids, wrong, again=again)
        if self._changed:
            self._open_groups()
        self._changed = False
        wrong += self._unopened
        for key, group in list(self._groups.items()):
            if not group.poll(out, self._elsewhere, again=again):
                # Its directory is gone; should there be another of its name, it is opened anew.
                group.close()
                del self._groups[key]
                self._changed = True
        out.missing += wrong if everything else [m for m in wrong if m not in self._complaints]
        self._complaints = frozenset(wrong)
        self._rounds += 1
        since_ns, self._since_ns = self._since_ns, began_ns
        return CgroupRound(since_ns, began_ns, out.sample(), tuple(moves))

    def standing(self) -> Standing:
        """How it stands as of the last round."""
        missing = set(self._complaints).union(*(one.missing for one in self._groups.values()))
        return Standing(bool(self._groups) or not self._complaints, tuple(missing))

    def places(self, pid: int) -> tuple[tuple[Place, ...], ...]:
        """For each hierarchy, the process's cgroup and those above it as of the last round."""
        member = self._members.get(pid)
        return member.chains if member is not None else ()

    def close(self) -> None:
        """Let go of all files; the next round begins anew."""
        for pid in list(self._members):
            self._drop(pid)
        for group in self._groups.values():
            group.close()
        self._groups = {}
        self._mounts, self._complaints = None, frozenset()
        self._rounds = self._since_ns = 0

    def _follow(
        self, pids: Collection[int], wrong: list[Missing], *, again: bool
    ) -> list[CgroupMove]:
        wanted = set(pids)
        for pid in self._members.keys() - wanted:
            self._drop(pid)
        moves: list[CgroupMove] = []
        for pid in sorted(wanted):
            try:
                moves += self._look(pid, again=again)
            except OSError as error:
                wrong.append(Missing("/proc/PID/cgroup", f"pid:{pid}", reason_of(error)))
                self._drop(pid)
        for member in self._members.values():
            wrong += member.complaints
        return moves

    def _drop(self, pid: int) -> None:
        member = self._members.pop(pid, None)
        if member is not None:
            member.close()
            self._changed = True

    def _look(self, pid: int, *, again: bool) -> list[CgroupMove]:
        member = self._members.get(pid)
        if member is None:
            folder = Folder.at(self._root, ("proc", str(pid)))
            member = self._members[pid] = _Member(pid, folder, self._held)
        data = member.file.read()
        if data == member.data:
            if again and member.complaints:
                self._resolve(member)
            return []
        first = member.data is None
        old = {m.controllers: m.path for m in member.memberships}
        member.data = data
        member.memberships = tuple(
            m for m in parse_proc_cgroup(data.decode("utf-8", "surrogateescape")) if _matters(m)
        )
        self._resolve(member)
        new = {m.controllers: m.path for m in member.memberships}
        now_ns = time.monotonic_ns()
        return [
            CgroupMove(
                pid, key, _text(old.get(key, "")), _text(new.get(key, "")),
                0 if first else self._since_ns, now_ns,
            )
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]  # fmt: skip

    def _resolve(self, member: _Member) -> None:
        member.base = self._root
        found = [chain(m, self._own_mounts()) for m in member.memberships]
        if not any(found) and self._root == ROOT:
            # Nothing is mounted here, as in some sandboxes; perhaps the process itself sees it.
            found = [chain(m, self._mounts_of(member.pid)) for m in member.memberships]
            member.base = ROOT / "proc" / str(member.pid) / "root"
        member.chains = tuple(found)
        member.complaints = tuple(_complaints(member))
        self._changed = True

    def _own_mounts(self) -> tuple[Mount, ...]:
        if self._mounts is None:
            try:
                name = str((self._root / "proc/self").readlink())
            except OSError:
                name = "self"
            self._mounts = self._mounts_of(name if name.isdecimal() else "self")
        return self._mounts

    def _mounts_of(self, pid: int | str) -> tuple[Mount, ...]:
        try:
            folder = Folder.at(self._root, ("proc", str(pid)))
        except OSError:
            return ()
        try:
            data = folder.read("mountinfo", _MOUNTINFO_BYTES)
        except OSError:
            return ()
        finally:
            folder.close()
        return parse_mountinfo(data.decode("utf-8", "surrogateescape"))

    def _in_namespace(self) -> bool:
        try:
            name = str((self._root / "proc/self/ns/cgroup").readlink())
        except OSError:
            return False
        return name != _INITIAL_NAMESPACE

    def _open_groups(self) -> None:
        wanted: dict[_Key, tuple[Place, Path]] = {}
        for member in self._members.values():
            for places in member.chains:
                for place in places:
                    key = place.version, place.controllers, place.path
                    wanted.setdefault(key, (place, member.base))
        for key in self._groups.keys() - wanted.keys():
            self._groups.pop(key).close()
        new = [key for key in wanted if key not in self._groups]
        room = self._max_groups - len(self._groups)
        wrong: list[Missing] = []
        for key in new[:room]:
            place, base = wanted[key]
            try:
                folder = Folder.at(base, place.directory)
            except OSError as error:
                wrong.append(Missing("cgroup", subject_of(place.path), reason_of(error)))
            else:
                self._groups[key] = OpenCgroup(place, folder, self._held)
        if new[room:]:
            reason = f"{len(new[room:])} more than the {self._max_groups} that are read"
            wrong.append(Missing("cgroups", "host", reason))
        if self._in_namespace():
            reason = "this process is in a cgroup namespace: limits above its root are not seen"
            wrong.append(Missing("cgroups above", "host", reason))
        self._elsewhere = frozenset(key for _, keys, _ in wanted for key in keys)
        self._unopened = wrong


def _complaints(member: _Member) -> Iterator[Missing]:
    if not member.memberships:
        reason = "/proc/PID/cgroup holds no line of a hierarchy with limits"
        yield Missing("cgroups", member.subject, reason)
    for membership, places in zip(member.memberships, member.chains, strict=True):
        # Paths are in the reasons: what is missing has one of a few names.
        what = f"cgroup of {','.join(membership.controllers) or 'v2'}"
        path = _text(membership.path)
        if membership.deleted:
            yield Missing(what, member.subject, f"{path} has been removed")
        elif not places:
            reason = f"{path} is not below any mount of its hierarchy that can be seen here"
            yield Missing(what, member.subject, reason)
        elif places[-1].path != "/":
            reason = f"only the hierarchy from {_text(places[-1].path)} on is mounted here"
            yield Missing("cgroups above", member.subject, reason)


def _matters(membership: Membership) -> bool:
    return membership.version == 2 or not V1_CONTROLLERS.isdisjoint(membership.controllers)


def _text(path: str) -> str:
    return subject_of(path).removeprefix("cgroup:")
