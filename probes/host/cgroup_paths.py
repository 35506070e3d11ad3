# SPDX-License-Identifier: Apache-2.0
"""Which cgroups a process is in, and where their files are: v2, v1, both at once.

``/proc/PID/cgroup`` says the path in each hierarchy, ``mountinfo`` where a hierarchy can be
seen. Both are told from the reader's cgroup namespace: in it the namespace's root is ``/``,
and what lies outside starts with ``/..`` (cgroup_namespaces(7)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A cgroup removed while something dead still is in it.
_DELETED = " (deleted)"
_OCTAL = re.compile(r"\\([0-7]{3})")
#: Options of a mount that name no controller.
_PLAIN_OPTIONS = frozenset({"rw", "ro"})
#: Controllers of v1 that hold numbers told here.
V1_CONTROLLERS = frozenset({"cpu", "cpuacct", "memory", "blkio"})


@dataclass(frozen=True)
class Membership:
    """A process's place in one hierarchy.

    Attributes:
        controllers: Controllers of a v1 hierarchy; none for v2.
        path: Path in the hierarchy, as seen from the reader's cgroup namespace.
        deleted: The cgroup has been removed.
    """

    controllers: tuple[str, ...]
    path: str
    deleted: bool = False

    @property
    def version(self) -> int:
        """1 or 2."""
        return 1 if self.controllers else 2


@dataclass(frozen=True)
class Mount:
    """Where a hierarchy, or a part of it, can be seen.

    Attributes:
        point: Directory it is mounted at.
        top: Path in the hierarchy of what is mounted there.
        version: 1 or 2.
        options: Options of the hierarchy; for v1 its controllers are among them.
    """

    point: str
    top: str
    version: int
    options: frozenset[str]

    def shows(self, membership: Membership) -> bool:
        """Whether it is the hierarchy of this membership."""
        return self.version == membership.version and self.options.issuperset(
            membership.controllers
        )


@dataclass(frozen=True)
class Place:
    """A cgroup, and where its files are.

    Attributes:
        version: 1 or 2.
        controllers: Controllers of a v1 hierarchy; none for v2.
        path: Path in the hierarchy, as seen from the reader's cgroup namespace.
        directory: Names of the directories that lead to its files.
    """

    version: int
    controllers: tuple[str, ...]
    path: str
    directory: tuple[str, ...]


def parse_proc_cgroup(text: str) -> tuple[Membership, ...]:
    """Memberships of a ``/proc/PID/cgroup``; lines that are none, or cut, are left out."""
    found: list[Membership] = []
    for row in text.split("\n")[:-1]:
        hierarchy, _, rest = row.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/") or not hierarchy.isdecimal() or "\0" in row:
            continue
        if (hierarchy == "0") != (controllers == ""):
            continue
        deleted = path.endswith(_DELETED)
        names = tuple(name for name in controllers.split(",") if name)
        found.append(Membership(names, path.removesuffix(_DELETED) or "/", deleted))
    return tuple(found)


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Mounts of cgroups in a ``mountinfo``, those above others last; other lines are left out."""
    found: list[Mount] = []
    for row in text.split("\n")[:-1]:
        front, _, back = row.partition(" - ")
        kind, *rest = back.split(" ")
        fields = front.split(" ")
        if kind not in ("cgroup", "cgroup2") or len(fields) < 6 or len(rest) < 2 or "\0" in row:
            continue
        options = frozenset(rest[-1].split(",")) - _PLAIN_OPTIONS
        version = 2 if kind == "cgroup2" else 1
        found.append(Mount(_unescape(fields[4]), _unescape(fields[3]), version, options))
    return tuple(found)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name and name != ".")


def below(top: str, path: str) -> tuple[str, ...] | None:
    """Names that lead from ``top`` to ``path``; None where it does not lie below.

    ``/../x`` lies below ``/..``, but nothing tells whether ``/`` does: its own name in there is
    not known.
    """
    above, names = _names(top), _names(path)
    if names[: len(above)] != above:
        return None
    rest = names[len(above) :]
    return None if ".." in rest else rest


def chain(membership: Membership, mounts: tuple[Mount, ...]) -> tuple[Place, ...]:
    """The cgroup and every one above it that can be seen, its own first; none if none can.

    Of several mounts of the hierarchy that which shows most of it is taken, and of equal ones
    the last: it may cover the others.
    """
    best: tuple[Place, ...] = ()
    for mount in mounts:
        names = below(mount.top, membership.path) if mount.shows(membership) else None
        if names is None or len(names) + 1 < len(best):
            continue
        best = tuple(
            Place(
                membership.version,
                membership.controllers,
                "/" + "/".join((*_names(mount.top), *names[:depth])),
                (*_names(mount.point), *names[:depth]),
            )
            for depth in range(len(names), -1, -1)
        )
    return best
