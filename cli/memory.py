# SPDX-License-Identifier: Apache-2.0
"""Work that may need more memory than there is, and then fails with a line and not by a signal.

Linux promises memory that it does not have, and ends a process when it is used. Within
``bounded`` a process is refused what is not free when it begins, so that Python can say so.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
_KIB = 1024
#: So much of what is free is left to others, page tables and buffers of the kernel among them.
_LEFT = 16
#: A limit that is none, as version 1 of control groups writes it.
_NONE = 1 << 60


@contextlib.contextmanager
def bounded(what: str, hint: str) -> Iterator[None]:
    """Within it the process gets no more memory than is free now.

    Args:
        what: What is too large if that is not enough.
        hint: What to do then.

    Raises:
        OutOfMemoryError: it was not enough.
    """
    free = free_bytes()
    own = _pairs(Path("/proc/self/status"))
    data = own.get("VmData:", 0) * _KIB
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    if free is not None:
        size = own.get("VmSize:", 0) * _KIB
        unused = *_unused(resource.RLIMIT_DATA, data), *_unused(resource.RLIMIT_AS, size)
        free = min((free - free // _LEFT, *unused))
        resource.setrlimit(resource.RLIMIT_DATA, (data + free, limits[1]))
    try:
        yield
    except MemoryError as exc:
        said = "" if free is None else f", of which {free / 1e6:,.0f} MB were free"
        raise OutOfMemoryError(f"{what}: does not fit into memory{said}", hint=hint) from exc
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def free_bytes(root: Path = _ROOT) -> int | None:
    """What a process can still get before another has to give it back; None unknown.

    The machine's free memory and swap, or what is left to the process's control groups.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    facts = _pairs(root / "proc/meminfo")
    if "MemAvailable:" not in facts:
        return None
    swap = facts.get("SwapFree:", 0) * _KIB
    free = facts["MemAvailable:"] * _KIB + swap
    for group in _groups(root):
        left = _left(group, swap)
        free = free if left is None else min(free, left)
    return max(free, 0)


def _unused(limit: int, used_bytes: int) -> tuple[int, ...]:
    """What the process's own limit leaves it; nothing where there is none."""
    soft, _ = resource.getrlimit(limit)
    return () if soft == resource.RLIM_INFINITY else (max(soft - used_bytes, 0),)


def _groups(root: Path) -> Iterator[Path]:
    """The control groups that limit the process's memory, its own and those around it."""
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                tops = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            elif controllers == "memory":
                tops = ["sys/fs/cgroup/memory"]
            else:
                continue
            # In a container the path may be the host's, and the top be the process's own.
            inside = Path(path.strip("/"))
            for top in tops:
                yield from (root / top / one for one in (inside, *inside.parents))


def _left(group: Path, swap: int) -> int | None:
    """What a group has left, files that can be read again counted as free; None: no limit."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_cache",)),
    ):
        most, used = _number(group / limit), _number(group / usage)
        if most is None or used is None or most >= _NONE:
            continue
        stat = _pairs(group / "memory.stat")
        return most - used + sum(stat.get(name, 0) for name in cache) + _swap_left(group, swap)
    return None


def _swap_left(group: Path, swap: int) -> int:
    most, used = _number(group / "memory.swap.max"), _number(group / "memory.swap.current")
    return swap if most is None or used is None else max(min(swap, most - used), 0)


def _number(file: Path) -> int | None:
    """The number in a file; None where there is no file, or a word in it."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _pairs(file: Path) -> dict[str, int]:
    """Names and numbers, one of each a line."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
