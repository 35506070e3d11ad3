# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes: which CPUs and how much memory they have, how far apart they are, what they count.

``parse_*`` functions are pure and never raise: what is no such text gives None. ``read_*``
functions take the root of a sys file system, so that they can be pointed at a saved tree.
Formats: Linux kernel, Documentation/ABI/stable/sysfs-devices-node and
Documentation/admin-guide/numastat.rst.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpucorrelate.probes.host.reading import Metric, Missing, Reading, Sample
from gpucorrelate.probes.wire.schema import Nature

SYS = Path("/sys")

#: More CPUs or nodes than any kernel is built for (NR_CPUS is 8192 at most); a list that names
#: a higher number is no list of them.
_MOST_IDS = 1 << 16
#: A file of sysfs is one page; meminfo of a node has 2 KiB.
_FILE_BYTES = 1 << 16
_NODES = "devices/system/node"
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_NODE_NAME = re.compile(r"node([0-9]{1,6})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_KIB = 1024

_ALLOCATIONS = (
    " Counts pages handed out by the allocator, not accesses: says where memory was put, not how "
    "often it was reached across nodes."
)


def _allocated(name: str, meaning: str) -> Metric:
    return Metric(f"numa.{name}", "count", Nature.TOTAL, meaning + _ALLOCATIONS)


def _held(name: str, meaning: str) -> Metric:
    return Metric(f"numa.memory.{name}", "bytes", Nature.LEVEL, meaning)


#: Lines of ``nodeN/numastat``.
ALLOCATIONS = {
    "numa_hit": _allocated("hit", "Pages that were wanted on this node and put there."),
    "numa_miss": _allocated(
        "miss", "Pages put on this node although wanted on another, which had none left."
    ),
    "numa_foreign": _allocated(
        "foreign", "Pages wanted on this node, which had none left, and put on another."
    ),
    "interleave_hit": _allocated("interleave", "Pages spread over nodes on purpose, put here."),
    "local_node": _allocated("local", "Pages put on this node for a thread that ran on it."),
    "other_node": _allocated("other", "Pages put on this node for a thread that ran elsewhere."),
}
#: Lines of ``nodeN/meminfo``.
MEMORY = {
    "MemTotal": _held("total", "Memory of this node that the kernel manages."),
    "MemFree": _held(
        "free",
        "Memory of this node that nothing uses. Low is normal, as files are cached in what is "
        "left; with the page cache it is what allocations can still get here.",
    ),
    "FilePages": _held("file", "Page cache on this node, shared memory included."),
    "AnonPages": _held("anon", "Memory of processes on this node that no file backs."),
}


@dataclass(frozen=True)
class Node:
    """A NUMA node.

    Attributes:
        number: As the kernel counts them; numbers may be left out.
        cpus: Its CPUs; none for memory alone (CXL, or a GPU's own on Grace machines).
        distances: To every node that is on line, as (node, distance): 10 is itself, 20 takes
            about twice as long, by the firmware's word.
        memory_bytes: Its memory; None if it does not say.
    """

    number: int
    cpus: tuple[int, ...]
    distances: tuple[tuple[int, int], ...] = ()
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Topology:
    """The nodes of a machine, by number."""

    nodes: tuple[Node, ...]

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {cpu: node.number for node in self.nodes for cpu in node.cpus}

    @cached_property
    def _distance(self) -> dict[tuple[int, int], int]:
        return {(node.number, to): far for node in self.nodes for to, far in node.distances}

    @cached_property
    def with_cpus(self) -> frozenset[int]:
        """Nodes that have CPUs."""
        return frozenset(node.number for node in self.nodes if node.cpus)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """All nodes."""
        return frozenset(node.number for node in self.nodes)

    def node_of(self, cpu: int) -> int | None:
        """Node of a CPU; None if no node has it."""
        return self._node_of.get(cpu)

    def distance(self, one: int, other: int) -> int | None:
        """How far a CPU of ``one`` has to memory of ``other``; None if nobody says."""
        return self._distance.get((one, other))


def parse_ids(text: str) -> tuple[int, ...] | None:
    """Numbers of a list such as ``0-3,8``; ``()`` for an empty one, None for no list."""
    text = text.strip()
    if not text:
        return ()
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= _MOST_IDS:
            return None
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def parse_distances(text: str, online: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """A ``distance`` file: one number for each node that is on line, in their order.

    None where there are more or fewer, as while a node comes or goes.
    """
    words = text.split()
    if len(words) != len(online) or not all(_NUMBER.fullmatch(word) for word in words):
        return None
    return tuple((node, int(word)) for node, word in zip(online, words, strict=True))


def parse_numastat(text: str) -> tuple[tuple[Metric, int], ...]:
    """A ``numastat`` file: pages by how they came to be on the node. Unknown lines are skipped."""
    found: list[tuple[Metric, int]] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        metric, word = ALLOCATIONS.get(name), rest.strip()
        if metric is not None and _NUMBER.fullmatch(word):
            found.append((metric, int(word)))
    return tuple(found)


def parse_node_meminfo(text: str) -> tuple[tuple[Metric, int], ...]:
    """A node's ``meminfo`` (``Node 0 MemFree: 12 kB``), in bytes. Unknown lines are skipped."""
    found: list[tuple[Metric, int]] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or words[0] != "Node" or words[4] != "kB":
            continue
        metric = MEMORY.get(words[2].removesuffix(":"))
        if metric is not None and _NUMBER.fullmatch(words[3]):
            found.append((metric, int(words[3]) * _KIB))
    return tuple(found)


def read_topology(root: Path = SYS) -> Topology | Missing:
    """The machine's nodes; a machine of one has one."""
    base = root / _NODES
    try:
        names = os.listdir(base)  # noqa: PTH208 - names only
    except OSError:
        return Missing("numa.nodes", "host", f"no {base}: this kernel is built without NUMA")
    matches = (_NODE_NAME.fullmatch(name) for name in names)
    numbers = tuple(sorted(int(match[1]) for match in matches if match is not None))
    if not numbers:
        return Missing("numa.nodes", "host", f"no node in {base}")
    online = parse_ids(read_text(base / "online") or "") or numbers
    nodes: list[Node] = []
    for number in numbers:
        folder = base / f"node{number}"
        cpus = parse_ids(read_text(folder / "cpulist") or "")
        if cpus is None:
            return Missing("numa.nodes", f"node:{number}", f"{folder / 'cpulist'} is no list")
        distances = parse_distances(read_text(folder / "distance") or "", online) or ()
        nodes.append(Node(number, cpus, distances, _memory(folder)))
    return Topology(tuple(nodes))


def _memory(folder: Path) -> int | None:
    for metric, value in parse_node_meminfo(read_text(folder / "meminfo") or ""):
        if metric is MEMORY["MemTotal"]:
            return value
    return None


def read_nodes(topology: Topology, root: Path = SYS) -> Sample:
    """What every node counts: pages by how they came there, memory held and free."""
    readings: list[Reading] = []
    missing: list[Missing] = []
    for node in topology.nodes:
        subject = f"node:{node.number}"
        folder = root / _NODES / f"node{node.number}"
        for name, parse in (("numastat", parse_numastat), ("meminfo", parse_node_meminfo)):
            t_ns = time.monotonic_ns()
            text = read_text(folder / name)
            values = parse(text) if text is not None else ()
            readings += [Reading(metric, subject, value, t_ns) for metric, value in values]
            if not values:
                why = "nothing in it is known" if text is not None else "cannot be read"
                missing.append(Missing(f"numa.{name}", subject, f"{folder / name}: {why}"))
    return Sample(tuple(readings), tuple(missing))


def parse_node(text: str) -> int | None:
    """A device's ``numa_node``; None for -1, which is how firmware does not say."""
    word = text.strip()
    if not _NUMBER.fullmatch(word) or int(word) >= _MOST_IDS:
        return None
    return int(word)


def read_device_node(address: str, root: Path = SYS) -> int | None:
    """Node of the PCI device at ``0000:01:00.0``; None where nobody says."""
    return parse_node(read_text(root / "bus/pci/devices" / address / "numa_node") or "")


def read_device_cpus(address: str, root: Path = SYS) -> tuple[int, ...]:
    """CPUs near the PCI device; all of the machine's where firmware does not say."""
    path = root / "bus/pci/devices" / address / "local_cpulist"
    return parse_ids(read_text(path) or "") or ()


def read_text(path: Path) -> str | None:
    """A small file's text, whatever bytes it holds; None when it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, and cheaper
            return (file.read(_FILE_BYTES) or b"").decode("utf-8", "replace")
    except OSError:
        return None
