# SPDX-License-Identifier: Apache-2.0
"""How a file of a cgroup is described."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.kernel_text import Key, parse_flat, parse_limit, parse_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpucorrelate.probes.host.kernel_text import Parsed
    from gpucorrelate.probes.host.reading import Metric


@dataclass(frozen=True)
class CgroupFile:
    """A file that cgroups have.

    Attributes:
        controller: Whose file it is; empty for those that each cgroup v2 has.
        names: Its name, or several of which the first that exists is read.
        parse: Its parser; raises for nothing it might hold.
        optional: Kernels, schedulers or machines without swap do without: nothing is missed.
    """

    controller: str
    names: tuple[str, ...]
    parse: Callable[[str], Parsed]
    optional: bool = False


def one(
    controller: str, names: str, metric: Metric, scale: int = 1, *, optional: bool = False
) -> CgroupFile:
    """A file of one number; ``names`` are parted by blanks, ``scale`` leads to the metric."""
    parse = partial(parse_one, key=Key(metric, scale))
    return CgroupFile(controller, tuple(names.split()), parse, optional)


def bound(
    controller: str, name: str, metric: Metric, scale: int = 1, *, optional: bool = False
) -> CgroupFile:
    """A file of one limit."""
    return CgroupFile(controller, (name,), partial(parse_limit, key=Key(metric, scale)), optional)


def flat(
    controller: str, name: str, keys: Mapping[str, Key], *, optional: bool = False
) -> CgroupFile:
    """A file of names and numbers."""
    return CgroupFile(controller, (name,), partial(parse_flat, keys=keys), optional)
