# SPDX-License-Identifier: Apache-2.0
"""NUMA: the nodes' numbers, what processes are bound to, and where their memory lies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpucorrelate.daemon.look import Found, all_of
from gpucorrelate.probes.host import numa, placement, procfs
from gpucorrelate.probes.host.devices import read_gpus
from gpucorrelate.probes.host.disagreement import disagreements, spread_of_cpus, spread_of_device
from gpucorrelate.probes.host.reading import Change, Missing, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpucorrelate.probes.host.disagreement import Disagreement, Side
    from gpucorrelate.probes.host.placement import Binding

_PLACED_NS = 30_000_000_000
_MOST_THREADS = 256
_PPM = 1_000_000
BOUND, APART = "allowed CPUs and nodes", "on different nodes"


class Nodes:
    """Looks at the machine's nodes and at a session's processes on them."""

    def __init__(self) -> None:
        self._bound: dict[int, Binding] = {}
        #: What was said of a process whose placement was read, and when that was.
        self._apart: dict[int, tuple[str, int]] = {}
        self._placed_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        """Numbers of all nodes; page tables only now and then, and where there are several."""
        topology = numa.read_topology()
        if isinstance(topology, Missing):
            return all_of(Sample((), (topology,)))
        found = numa.read_nodes(topology)
        changes = list(self._rebound(pids, now_ns))
        readings = list(found.readings)
        missing = list(found.missing)
        if len(topology.with_cpus) > 1 and now_ns >= self._placed_ns:
            self._placed_ns = now_ns + _PLACED_NS
            self._apart = {pid: said for pid, said in self._apart.items() if pid in set(pids)}
            for pid in pids:
                placed = self._place(topology, pid, now_ns)
                readings += placed.sample.readings
                missing += placed.sample.missing
                changes += placed.changes
        told = all_of(Sample(tuple(readings), tuple(missing)))
        return Found(told.sample, told.standing, tuple(changes), tuple(changes))

    def close(self) -> None:
        """Forget what was known."""
        self._bound, self._apart, self._placed_ns = {}, {}, 0

    def _rebound(self, pids: Collection[int], now_ns: int) -> Iterable[Change]:
        after = {}
        for pid in pids:
            affinity = placement.read_affinity(pid)
            if affinity is not None:
                after[pid] = placement.Binding(f"pid:{pid}", affinity, now_ns)
        before = self._bound
        for one in placement.rebindings(before.values(), after.values()):
            yield Change(
                one.after.t_ns, one.before.t_ns, one.after.subject, BOUND,
                _bound_to(one.before), _bound_to(one.after),
            )  # fmt: skip
        for pid in after.keys() - before.keys():
            yield Change(now_ns, 0, f"pid:{pid}", BOUND, "", _bound_to(after[pid]))
        self._bound = after

    def _place(self, topology: numa.Topology, pid: int, now_ns: int) -> Found:
        found = placement.read_placement(pid)
        if isinstance(found, Missing):
            return Found(Sample((), (found,)))
        cpus = [
            placement.read_last_cpu(pid, tid) for tid in procfs.thread_ids(pid)[:_MOST_THREADS]
        ]
        ran = spread_of_cpus(topology, [cpu for cpu in cpus if cpu is not None])
        memory = found.spread if found.complete else None
        apart = disagreements(topology, f"pid:{pid}", ran, memory, _near_gpus())
        said = "; ".join(_apart(one) for one in apart)
        before, since_ns = self._apart.get(pid, ("", 0))
        self._apart[pid] = said, now_ns
        changes: tuple[Change, ...] = ()
        if said != before:
            changes = (Change(now_ns, since_ns, f"pid:{pid}", APART, before, said),)
        return Found(Sample(placement.placement_readings(pid, found, now_ns)), changes=changes)


def _near_gpus() -> Iterable[placement.Spread | None]:
    with contextlib.suppress(OSError):
        for one in read_gpus():
            yield spread_of_device(f"pci:{one.address}", one.numa_node)


def _bound_to(one: Binding) -> str:
    return f"CPUs {ids(one.affinity.cpus)}, nodes {ids(one.affinity.nodes)}"


def ids(numbers: tuple[int, ...]) -> str:
    """``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def _apart(one: Disagreement) -> str:
    return f"{_side(one.one)}, {_side(one.other)}"


def _side(side: Side) -> str:
    where = " and ".join(
        f"{share * 100 // _PPM}% on node {node}" for node, share in side.shares if share
    )
    return f"{side.spread.what} {where}"
