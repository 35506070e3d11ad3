# SPDX-License-Identifier: Apache-2.0
"""One cgroup whose files are read again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.host import cgroup_v1, cgroup_v2
from gpucorrelate.probes.host.reading import Missing
from gpucorrelate.probes.host.source import Collected, Descriptors, Folder, KeptFile, Source

if TYPE_CHECKING:
    from gpucorrelate.probes.host.cgroup_files import CgroupFile
    from gpucorrelate.probes.host.cgroup_paths import Place

#: Controllers of v2, and what they are called in v1.
_V2_CONTROLLERS = {"cpu": "cpu", "memory": "memory", "io": "blkio"}
#: Files worth reading of the root of a hierarchy.
_OF_ROOTS = {
    1: (
        "cpuacct.usage",
        "blkio.throttle.io_service_bytes_recursive",
        "blkio.throttle.io_serviced_recursive",
    ),
    2: ("cpu.stat", "io.stat"),
}


def subject_of(path: str) -> str:
    """Subject of a cgroup's readings; names that are no UTF-8 are shown as far as they are."""
    return "cgroup:" + path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class OpenCgroup:
    """A cgroup and its files, held open.

    Args:
        place: Where it is.
        folder: Its directory; owned from now on.
        held: Counts what is held open.
    """

    def __init__(self, place: Place, folder: Folder, held: Descriptors) -> None:
        self.place = place
        self.subject = subject_of(place.path)
        self._folder = folder
        self._root = self._is_root()
        self._enabled = self._controllers()
        files = cgroup_v2.FILES if place.version == 2 else cgroup_v1.FILES
        self._sources = [
            (file.controller, self._source(file, held)) for file in files if self._has_file(file)
        ]
        self._told: frozenset[str] | None = None
        self._read_once = False

    def _is_root(self) -> bool:
        # In a cgroup namespace "/" is some cgroup, with limits as others have.
        if self.place.path != "/":
            return False
        if self.place.version == 2:
            return not self._has("cgroup.type")
        return self._has("release_agent")

    def _has_file(self, file: CgroupFile) -> bool:
        if self.place.version == 1 and file.controller not in self.place.controllers:
            return False
        # Nothing limits the root, and what it counts is the machine's: enough to compare with.
        return not self._root or file.names[0] in _OF_ROOTS[self.place.version]

    def _has(self, name: str) -> bool:
        try:
            self._folder.read(name, 1)
        except OSError:
            return False
        return True

    def _controllers(self) -> frozenset[str]:
        if self.place.version == 1:
            return frozenset(self.place.controllers)
        try:
            text = self._folder.read("cgroup.controllers").decode("utf-8", "replace")
        except OSError:
            return frozenset()
        return frozenset(text.split())

    def _source(self, file: CgroupFile, held: Descriptors) -> Source:
        # The root of a hierarchy has few of the files: nothing limits it.
        return Source(
            KeptFile(self._folder, file.names, held), file.names[0], self.subject, file.parse,
            quiet=file.optional or self._root,
        )  # fmt: skip

    def poll(self, out: Collected, elsewhere: frozenset[str], *, again: bool) -> bool:
        """Tell what changed in its files; whether it is still there.

        Args:
            out: Takes what is told.
            elsewhere: Controllers that v1 hierarchies have.
            again: Look for files and controllers that were not there, too.
        """
        if again:
            self._enabled = self._controllers()
        if self.place.version == 2:
            self._complain(out, elsewhere)
        out.now()
        found = False
        for controller, source in self._sources:
            if controller and controller not in self._enabled:
                continue
            if source.absent and not again and not out.everything:
                continue
            found |= source.poll(out)
        gone = self._read_once and not found
        self._read_once |= found
        return not gone

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What could not be read the last time."""
        found = [missing for _, source in self._sources for missing in source.missing]
        return (*self._lacking(self._told or frozenset()), *found)

    def _lacking(self, names: frozenset[str]) -> tuple[Missing, ...]:
        if self._root:
            return ()
        reason = "not switched on for this cgroup (cgroup.subtree_control above it)"
        return tuple(
            Missing(f"cgroup controller {name}", self.subject, reason) for name in sorted(names)
        )

    def _complain(self, out: Collected, elsewhere: frozenset[str]) -> None:
        lacking = frozenset(
            name
            for name, old in _V2_CONTROLLERS.items()
            if name not in self._enabled and old not in elsewhere
        )
        if lacking != self._told or out.everything:
            out.missing += self._lacking(lacking)
        self._told = lacking

    def close(self) -> None:
        """Let go of all files."""
        for _, source in self._sources:
            source.close()
        self._folder.close()
