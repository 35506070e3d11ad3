# SPDX-License-Identifier: Apache-2.0
"""Whether a process's CPUs, memory and GPU are on the same NUMA node: a pure judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.placement import Spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.probes.host.numa import Topology

PPM = 1_000_000
#: From here on it is told: a fifth, by choice and not by measurement. Some is always remote,
#: because libraries and page cache lie where they were first read.
THRESHOLD_PPM = 200_000


@dataclass(frozen=True)
class Side:
    """One of the two that disagree.

    Attributes:
        spread: What it is and how much of it is where, on nodes that have CPUs.
        shares: As (node, ppm), by node; they sum to a million.
    """

    spread: Spread
    shares: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Disagreement:
    """Two things of a process that lie on different nodes.

    Attributes:
        subject: Whose they are: ``pid:4711``.
        one: The first of them.
        other: The second.
        remote_ppm: Chance that a random bit of one and a random bit of the other are on
            different nodes. How often they meet is not known, so this is no share of time.
        threshold_ppm: From where on it is told.
        distance: Farthest of the pairs of nodes that meet so, by the firmware's table (10 is
            the same node); None if it does not say.
    """

    subject: str
    one: Side
    other: Side
    remote_ppm: int
    threshold_ppm: int
    distance: int | None


def spread_of_cpus(topology: Topology, cpus: Iterable[int]) -> Spread | None:
    """Threads seen on CPUs, by node; None if a node is unknown or nothing was seen."""
    counts: dict[int, int] = {}
    for cpu in cpus:
        node = topology.node_of(cpu)
        if node is None:
            return None
        counts[node] = counts.get(node, 0) + 1
    return Spread("cpu", "samples", tuple(sorted(counts.items()))) if counts else None


def spread_of_device(what: str, node: int | None) -> Spread | None:
    """A GPU or other device, wholly on its node; None if that is unknown."""
    return None if node is None else Spread(what, "count", ((node, 1),))


def disagreements(
    topology: Topology,
    subject: str,
    cpus: Spread | None,
    memory: Spread | None,
    devices: Iterable[Spread | None] = (),
    *,
    threshold_ppm: int = THRESHOLD_PPM,
) -> tuple[Disagreement, ...]:
    """What of a process lies on different nodes: CPU and memory, CPU and GPU, memory and GPU.

    Nothing on a machine with fewer than two nodes that have CPUs, and nothing of a side that is
    unknown (None, empty, or on a node that the topology does not have). Memory on nodes without
    CPUs (CXL, a GPU's own) is left out: it is near to no CPU.

    Args:
        topology: The machine's nodes.
        subject: Whose things they are.
        cpus: Where its threads ran.
        memory: Where its memory lies; None unless all of it is known.
        devices: Where its GPUs are; one each.
        threshold_ppm: From where on it is told.
    """
    if len(topology.with_cpus) < 2:
        return ()
    known_cpus, known_memory = _side(topology, cpus), _side(topology, memory)
    pairs = [(known_cpus, known_memory)]
    for device in devices:
        side = _side(topology, device)
        pairs += [(known_cpus, side), (known_memory, side)]
    found: list[Disagreement] = []
    for one, other in pairs:
        if one is None or other is None:
            continue
        remote = _remote_ppm(one, other)
        if remote >= threshold_ppm:
            far = _farthest(topology, one, other)
            found.append(Disagreement(subject, one, other, remote, threshold_ppm, far))
    return tuple(found)


def _side(topology: Topology, spread: Spread | None) -> Side | None:
    if spread is None or any(node not in topology.numbers for node, _ in spread.amounts):
        return None
    amounts = tuple(pair for pair in spread.amounts if pair[0] in topology.with_cpus and pair[1])
    near = Spread(spread.what, spread.unit, amounts)
    return Side(near, shares(near)) if near.total > 0 else None


def shares(spread: Spread) -> tuple[tuple[int, int], ...]:
    """Every node's share in ppm, by largest remainder, so that they sum to a million."""
    total = spread.total
    parts = [(node, *divmod(amount * PPM, total)) for node, amount in spread.amounts]
    left = PPM - sum(whole for _, whole, _ in parts)
    largest = sorted(parts, key=lambda part: (-part[2], part[0]))[:left]
    more = {node for node, _, _ in largest}
    return tuple((node, whole + (node in more)) for node, whole, _ in parts)


def _remote_ppm(one: Side, other: Side) -> int:
    there = dict(other.spread.amounts)
    same = sum(amount * there.get(node, 0) for node, amount in one.spread.amounts)
    everything = one.spread.total * other.spread.total
    return (everything - same) * PPM // everything


def _farthest(topology: Topology, one: Side, other: Side) -> int | None:
    known = [
        topology.distance(here, there)
        for here, _ in one.spread.amounts
        for there, _ in other.spread.amounts
        if here != there
    ]
    return max((far for far in known if far is not None), default=None)
