# SPDX-License-Identifier: Apache-2.0
"""CPU quotas: one of a scenario's own, and the kernel's count of time that any of them took."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.cgroup_paths import chain, parse_mountinfo, parse_proc_cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

QUOTA_US, _PERIOD_US = 12_000, 60_000
_NAME = "gpucorrelate-verify-"
_LONGEST_STAT = 4096


class NotPossibleError(Exception):
    """This host cannot play the scenario; the text says why."""


class Throttling:
    """How long this process's cgroup was out of quota, its own or that of one above it.

    The kernel counts it, all CPUs together, so it bounds what any one thread was kept waiting.
    Since 6.6 a cgroup's ``cpu.stat.local`` counts what quotas above took from it as well, those
    that cannot be seen from here too. Where that is missing, what the ``cpu.stat`` of all that can
    be seen count is added up. A host without either has no quotas.

    Args:
        root: Root of the file system that all is read from.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files: list[int] = []
        for folders in _folders(root):
            own = _opened(folders[0] / "cpu.stat.local")
            if own:
                self._files += own
                continue
            for folder in folders:
                self._files += _opened(folder / "cpu.stat")

    def total_ns(self) -> int:
        """So far."""
        return sum(throttled_ns(os.pread(file, _LONGEST_STAT, 0)) or 0 for file in self._files)

    def close(self) -> None:
        """Read no more."""
        while self._files:
            os.close(self._files.pop())


def _folders(root: Path) -> Iterator[list[Path]]:
    """Of each hierarchy that may have quotas: this process's cgroup, then those above it."""
    try:
        memberships = parse_proc_cgroup(_text(root / "proc/self/cgroup"))
        mounts = parse_mountinfo(_text(root / "proc/self/mountinfo"))
    except OSError:
        return
    for membership in memberships:
        if membership.version == 2 or "cpu" in membership.controllers:
            places = chain(membership, mounts)
            if places:
                yield [root.joinpath(*place.directory) for place in places]


def _text(path: Path) -> str:
    return path.read_text("utf-8", "surrogateescape")


def _opened(path: Path) -> list[int]:
    """The file, where there is one that counts."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if throttled_ns(os.pread(file, _LONGEST_STAT, 0)) is not None:
            return [file]
        os.close(file)
    return []


def throttled_ns(stat: bytes) -> int | None:
    """Throttled time in a ``cpu.stat`` or ``cpu.stat.local``; None where it has none."""
    for line in stat.splitlines():
        name, _, value = line.partition(b" ")
        unit = {b"throttled_time": 1, b"throttled_usec": 1000}.get(name)
        if unit is not None and value.isdigit():
            return unit * int(value)
    return None


class Quota:
    """A cgroup of this process's own, whose CPU time can be limited.

    Args:
        name: Name of the cgroup.

    Raises:
        NotPossibleError: this host has none that can be.
    """

    def __init__(self, name: str) -> None:
        base = quota_folder()
        if base is None:
            raise NotPossibleError("no cgroup here has the cpu controller")
        self._v2 = (base / "cgroup.controllers").exists()
        self._home = base
        self.folder = base / name
        try:
            self.folder.mkdir()
            self.limit(on=False)
            (self.folder / "cgroup.procs").write_text(str(os.getpid()), "ascii")
        except BaseException as exc:
            self.remove()
            if isinstance(exc, OSError):
                raise NotPossibleError(f"{self.folder}: {exc.strerror}") from exc
            raise

    def limit(self, *, on: bool) -> None:
        """Switch the limit on or off."""
        if self._v2:
            text = f"{QUOTA_US if on else 'max'} {_PERIOD_US}"
            (self.folder / "cpu.max").write_text(text, "ascii")
            return
        (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US), "ascii")
        (self.folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US if on else -1), "ascii")

    def throttled_ns(self) -> int:
        """How long it was throttled, all CPUs together, by the kernel's count."""
        return throttled_ns((self.folder / "cpu.stat").read_bytes()) or 0

    def remove(self) -> None:
        """Lift the limit, go back, and leave nothing."""
        with contextlib.suppress(OSError):
            self.limit(on=False)
            (self._home / "cgroup.procs").write_text(str(os.getpid()), "ascii")
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def remove_left_behind() -> None:
    """Remove the cgroups of scenarios that were killed before they could do so themselves."""
    base = quota_folder()
    if base is None:
        return
    for folder in base.glob(f"{_NAME}*"):
        # One that has just been made is empty too: its maker is about to enter it.
        if not _lives(folder.name.removeprefix(_NAME)):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _lives(pid: str) -> bool:
    try:
        stat = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return not stat.rpartition(")")[2].startswith(" Z")


def quota_folder() -> Path | None:
    """Where a cgroup with a CPU quota can be made; None where it cannot."""
    root = Path("/sys/fs/cgroup")
    for base in (root, root / "cpu", root / "cpu,cpuacct"):
        if (base / "cpu.cfs_quota_us").exists() or (base / "cpu.stat").exists():
            v2 = base / "cgroup.subtree_control"
            if not v2.exists() or "cpu" in v2.read_text("ascii").split():
                return base
    return None


@contextlib.contextmanager
def own_quota() -> Iterator[Quota]:
    """A cgroup for this process, for a while.

    Raises:
        NotPossibleError: this host has none.
    """
    quota = Quota(f"{_NAME}{os.getpid()}")
    try:
        yield quota
    finally:
        quota.remove()
