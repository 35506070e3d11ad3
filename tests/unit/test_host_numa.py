# SPDX-License-Identifier: Apache-2.0
"""NUMA from a machine of two nodes (booted in QEMU, saved as it was), and from this machine."""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import numa, placement
from gpucorrelate.probes.host.disagreement import (
    PPM,
    disagreements,
    shares,
    spread_of_cpus,
    spread_of_device,
)
from gpucorrelate.probes.host.numa import Node, Topology
from gpucorrelate.probes.host.placement import Affinity, Binding, Kind, Part, Placement, Spread
from gpucorrelate.probes.host.reading import Missing
from gpucorrelate.probes.wire.schema import Nature

#: Written by scripts/capture_two_nodes.py. What the process there did is in
#: tests/system/placed.c: on CPU 0, with most of its memory on node 1.
TWO = Path(__file__).parent / "data" / "two_nodes"
PID = int(next((TWO / "proc").iterdir()).name)
MIB = 1 << 20
FAR_GPU = "0000:81:00.0"
NEAR_GPU = "0000:01:00.0"


@pytest.fixture
def two() -> Topology:
    found = numa.read_topology(TWO / "sys")
    assert isinstance(found, Topology)
    return found


def test_two_nodes_and_what_is_between_them(two: Topology) -> None:
    assert [(node.number, node.cpus) for node in two.nodes] == [(0, (0,)), (1, (1,))]
    assert [two.distance(0, 0), two.distance(0, 1), two.distance(1, 0)] == [10, 21, 21]
    assert [two.node_of(cpu) for cpu in (0, 1, 2)] == [0, 1, None]
    for node in two.nodes:
        assert node.memory_bytes is not None
        assert 200 * MIB < node.memory_bytes < 256 * MIB


def test_every_node_counts_its_pages_and_memory(two: Topology) -> None:
    sample = numa.read_nodes(two, TWO / "sys")
    assert not sample.missing
    by_key = {(reading.subject, reading.metric.name): reading for reading in sample.readings}
    hits = by_key["node:1", "numa.hit"]
    placed = by_key["node:1", "numa.local"].value + by_key["node:1", "numa.other"].value
    assert hits.value == placed > 0
    # placed.c ran on node 0 and put 12 MiB here: 2,048 small pages, beside what booting did.
    assert by_key["node:1", "numa.other"].value >= 8 * MIB // 4096
    assert hits.metric.nature is Nature.TOTAL
    assert "not accesses" in hits.metric.meaning
    free = by_key["node:0", "numa.memory.free"]
    assert 0 < free.value < by_key["node:0", "numa.memory.total"].value
    assert free.metric.nature is Nature.LEVEL


def test_memory_is_summed_by_node_and_kind() -> None:
    found = placement.read_placement(PID, TWO / "proc")
    assert isinstance(found, Placement)
    sums = {(part.node, part.kind): part.size_bytes for part in found.parts}
    assert sums[1, Kind.HUGE] == 4 * MIB
    # The program's own data is beside it.
    assert 8 * MIB <= sums[1, Kind.ANON] < 8.1 * MIB
    assert 2 * MIB <= sums[0, Kind.ANON] < 2.1 * MIB
    assert sums[0, Kind.FILE] >= MIB
    assert sums[0, Kind.HEAP] >= MIB // 16
    # Its stack lies where it was started.
    assert any(kind is Kind.STACK for _, kind in sums)
    assert found.complete
    assert not found.problems
    assert found.spread.total == sum(sums.values())
    readings = placement.placement_readings(PID, found, 7)
    assert {reading.subject for reading in readings} == {f"pid:{PID} node:0", f"pid:{PID} node:1"}
    assert sum(reading.value for reading in readings) == found.spread.total


def test_a_gpus_node_and_cpus(two: Topology) -> None:
    assert numa.read_device_node(FAR_GPU, TWO / "sys") == 1
    assert numa.read_device_cpus(FAR_GPU, TWO / "sys") == (1,)
    # The near one hangs off the host's own bridge, of which the firmware does not say.
    assert numa.read_device_node(NEAR_GPU, TWO / "sys") is None
    assert numa.read_device_cpus(NEAR_GPU, TWO / "sys") == (0, 1)
    assert numa.read_device_node("0000:ff:00.0", TWO / "sys") is None


def test_a_change_of_binding_keeps_both_sides() -> None:
    before = placement.read_affinity(PID, root=TWO / "proc")
    after = placement.read_affinity(PID, root=TWO / "moved" / "proc")
    assert before == Affinity((0,), (0, 1))
    assert after == Affinity((1,), (0, 1))
    first = Binding(f"pid:{PID}", before, 10, Placement((Part(1, Kind.ANON, 5),)))
    second = Binding(f"pid:{PID}", after, 20)
    unmoved = Binding("tid:1", before, 10)
    (found,) = placement.rebindings(
        [first, unmoved], [second, unmoved, Binding("tid:2", after, 20)]
    )
    assert (found.before, found.after) == (first, second)
    assert placement.read_last_cpu(PID, root=TWO / "proc") == 0


def test_the_process_disagrees_with_its_memory_and_its_gpu(two: Topology) -> None:
    cpu = placement.read_last_cpu(PID, root=TWO / "proc")
    assert cpu is not None
    memory = placement.read_placement(PID, TWO / "proc")
    assert isinstance(memory, Placement)
    gpu = spread_of_device(f"pci:{FAR_GPU}", numa.read_device_node(FAR_GPU, TWO / "sys"))
    cpus = spread_of_cpus(two, [cpu] * 5)
    found = disagreements(two, f"pid:{PID}", cpus, memory.spread, [gpu])
    pairs = {(each.one.spread.what, each.other.spread.what): each for each in found}
    away = pairs["cpu", "memory"]
    on_one = dict(memory.spread.amounts)[1]
    assert away.remote_ppm == on_one * PPM // memory.spread.total
    assert dict(away.other.shares)[1] == pytest.approx(away.remote_ppm, abs=1)
    assert away.one.shares == ((0, PPM),)
    assert away.distance == 21
    assert pairs["cpu", f"pci:{FAR_GPU}"].remote_ppm == PPM
    # Most of its memory is near the GPU; 2 MiB and its files are not, which is below a fifth.
    assert len(pairs) == 2
    *_, near = disagreements(
        two, f"pid:{PID}", cpus, memory.spread, [gpu], threshold_ppm=PPM // 10
    )
    assert (near.one.spread.what, near.other.spread.what) == ("memory", f"pci:{FAR_GPU}")
    assert near.remote_ppm == dict(memory.spread.amounts)[0] * PPM // memory.spread.total


def test_nothing_is_said_where_all_is_near_or_something_is_unknown(two: Topology) -> None:
    here, there = Spread("cpu", "ns", ((0, 5),)), Spread("memory", "bytes", ((1, 7),))
    gpu = spread_of_device("gpu:x", 1)
    assert len(disagreements(two, "p", here, there, [gpu])) == 2
    assert not disagreements(two, "p", here, Spread("memory", "bytes", ((0, 7),)))
    assert not disagreements(two, "p", None, there, [gpu])
    assert not disagreements(two, "p", here, None, [None])
    assert not disagreements(two, "p", here, Spread("memory", "bytes", ()))
    assert not disagreements(two, "p", here, Spread("memory", "bytes", ((1, 7), (9, 7))))
    assert not disagreements(two, "p", Spread("cpu", "ns", ((0, 0),)), there)
    assert spread_of_device("gpu:x", None) is None
    assert spread_of_cpus(two, []) is None
    assert spread_of_cpus(two, [0, 77]) is None


def test_one_node_disagrees_with_nobody() -> None:
    one = Topology((Node(0, (0, 1)), Node(1, ())))  # the second is a GPU's own memory
    cpus, memory = Spread("cpu", "ns", ((0, 1),)), Spread("memory", "bytes", ((0, 5), (1, 9)))
    assert not disagreements(one, "p", cpus, memory, threshold_ppm=0)


def test_memory_that_is_near_to_no_cpu_is_left_out() -> None:
    three = Topology((Node(0, (0,)), Node(1, (1,)), Node(2, ())))
    cpus = Spread("cpu", "ns", ((0, 1),))
    memory = Spread("memory", "bytes", ((0, 50), (1, 50), (2, 900)))
    (found,) = disagreements(three, "p", cpus, memory)
    assert found.remote_ppm == PPM // 2
    assert found.other.spread.amounts == ((0, 50), (1, 50))
    assert found.distance is None  # the topology says none


def test_of_several_distances_the_farthest_is_told() -> None:
    far = ((0, 10), (1, 12), (2, 32))
    three = Topology((Node(0, (0,), far), Node(1, (1,)), Node(2, (2,))))
    memory = Spread("memory", "bytes", ((0, 5), (1, 5), (2, 1)))
    (found,) = disagreements(three, "p", Spread("cpu", "ns", ((0, 1),)), memory)
    assert found.distance == 32


def test_the_threshold_decides_and_is_told(two: Topology) -> None:
    cpus, memory = Spread("cpu", "ns", ((0, 1),)), Spread("memory", "bytes", ((0, 90), (1, 10)))
    assert not disagreements(two, "p", cpus, memory)
    (found,) = disagreements(two, "p", cpus, memory, threshold_ppm=100_000)
    assert (found.remote_ppm, found.threshold_ppm) == (100_000, 100_000)


AMOUNTS = st.lists(st.integers(0, 1 << 50), min_size=2, max_size=2).filter(any)


@given(AMOUNTS, AMOUNTS)
def test_remote_is_what_is_not_together(one: list[int], other: list[int]) -> None:
    two = Topology((Node(0, (0,)), Node(1, (1,))))
    cpus = Spread("cpu", "ns", tuple(enumerate(one)))
    memory = Spread("memory", "bytes", tuple(enumerate(other)))
    found = disagreements(two, "p", cpus, memory, threshold_ppm=0)
    (told,) = found
    together = one[0] * other[0] + one[1] * other[1]
    assert told.remote_ppm == PPM - -(-together * PPM // (sum(one) * sum(other)))
    assert sum(ppm for _, ppm in told.one.shares) == PPM


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=8))
def test_shares_sum_to_a_million(amounts: list[int]) -> None:
    parts = shares(Spread("memory", "bytes", tuple(enumerate(amounts))))
    assert sum(ppm for _, ppm in parts) == PPM
    for (_, ppm), amount in zip(parts, amounts, strict=True):
        assert abs(ppm - amount * PPM / sum(amounts)) <= 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)),
        ("3,1", (1, 3)),
        ("3-1", None),
        ("0-99999999", None),
        ("0-99999", None),
        ("a", None),
        ("0,", None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_lists_of_ids(text: str, found: tuple[int, ...] | None) -> None:
    assert numa.parse_ids(text) == found


def test_distances_of_another_number_of_nodes_are_none() -> None:
    assert numa.parse_distances("10 21\n", (0, 2)) == ((0, 10), (2, 21))
    assert numa.parse_distances("10 21\n", (0,)) is None
    assert numa.parse_distances("10 x\n", (0, 1)) is None


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("", None), ("x", None)])
def test_a_devices_node(text: str, node: int | None) -> None:
    assert numa.parse_node(text) == node


MAPS = b"""\
7f24c5400000 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 dirty=2 N1=2 \
kernelpagesize_kB=2048
5581aa000000 default heap anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f0000000000 prefer (many):0-1 anon=5 dirty=5 N1=5 kernelpagesize_kB=4
7f1000000000 interleave:0-3 file=/tmp/a\\040N7=9 mapped=4 mapmax=2 N3=4 kernelpagesize_kB=64
7f2000000000 default file=/usr/lib/x.so
7f3000000000 default stack:712 anon=1 N0=1
7ffc00000000 default stack anon=2 N0=2 kernelpagesize_kB=4
"""


def test_lines_of_every_kind_are_told_apart() -> None:
    found = placement.parse_numa_maps([MAPS])
    page = os.sysconf("SC_PAGESIZE")
    assert found.parts == (
        Part(0, Kind.HEAP, 4096),
        Part(0, Kind.STACK, 8192 + page),
        Part(1, Kind.HEAP, 8192),
        Part(1, Kind.ANON, 5 * 4096),
        Part(1, Kind.HUGE, 4 * MIB),
        Part(3, Kind.FILE, 4 * 65536),
    )
    assert found.mappings == 6
    assert found.complete


@given(st.integers(1, 40))
def test_where_the_text_is_cut_into_pieces_is_no_matter(size: int) -> None:
    pieces = [MAPS[at : at + size] for at in range(0, len(MAPS), size)]
    assert placement.parse_numa_maps(pieces) == placement.parse_numa_maps([MAPS])


def test_a_line_that_was_cut_is_not_counted_and_said() -> None:
    found = placement.parse_numa_maps([MAPS, b"7ffd00000000 default anon=200 N0=20"])
    assert found.parts == placement.parse_numa_maps([MAPS]).parts
    assert not found.complete


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes_are_no_crash_for_memory_maps(chunks: list[bytes]) -> None:
    found = placement.parse_numa_maps(chunks)
    assert all(part.size_bytes >= 0 for part in found.parts)


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda x: x.decode("latin1"))))
def test_any_text_is_no_crash(text: str) -> None:
    numa.parse_ids(text)
    numa.parse_node(text)
    numa.parse_distances(text, (0, 1))
    numa.parse_numastat(text)
    numa.parse_node_meminfo(text)
    placement.parse_affinity(text)
    placement.parse_last_cpu(text)


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00\xfe", b"0-", b"\n" * 500, b"9" * 70000])
def test_files_of_garbage_are_missing_and_no_crash(tmp_path: Path, garbage: bytes) -> None:
    shutil.copytree(TWO / "sys/devices/system/node", tmp_path / "devices/system/node")
    for path in (tmp_path / "devices/system/node").rglob("*"):
        if path.is_file():
            path.write_bytes(garbage)
    found = numa.read_topology(tmp_path)
    if isinstance(found, Topology):
        assert all(node.memory_bytes is None for node in found.nodes)
        assert len(numa.read_nodes(found, tmp_path).missing) == 4


def test_a_kernel_without_numa_is_named(tmp_path: Path) -> None:
    found = numa.read_topology(tmp_path)
    assert isinstance(found, Missing)
    assert "without NUMA" in found.reason
    (tmp_path / "devices/system/node").mkdir(parents=True)
    assert isinstance(numa.read_topology(tmp_path), Missing)


def test_a_node_that_goes_is_missing(tmp_path: Path, two: Topology) -> None:
    shutil.copytree(TWO / "sys/devices/system/node", tmp_path / "devices/system/node")
    shutil.rmtree(tmp_path / "devices/system/node/node1")
    sample = numa.read_nodes(two, tmp_path)
    assert {missing.subject for missing in sample.missing} == {"node:1"}
    assert {reading.subject for reading in sample.readings} == {"node:0"}


def test_a_process_that_is_gone_is_told_from_a_kernel_without_numa(tmp_path: Path) -> None:
    gone = placement.read_placement(1, tmp_path)
    assert isinstance(gone, Missing)
    assert "gone" in gone.reason
    (tmp_path / "1").mkdir()
    without = placement.read_placement(1, tmp_path)
    assert isinstance(without, Missing)
    assert "without NUMA" in without.reason
    assert placement.read_affinity(1, root=tmp_path) is None
    assert placement.read_last_cpu(1, 1, tmp_path) is None


def test_too_much_text_is_cut_and_said() -> None:
    whole = placement.read_placement(PID, TWO / "proc")
    cut = placement.read_placement(PID, TWO / "proc", limit_bytes=100)
    assert isinstance(whole, Placement)
    assert isinstance(cut, Placement)
    assert whole.complete
    assert not cut.complete
    assert not cut.parts


def test_this_machine_has_its_cpus_on_its_nodes() -> None:
    found = numa.read_topology()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    assert {found.node_of(cpu) for cpu in os.sched_getaffinity(0)} <= found.with_cpus
    for node in found.nodes:
        assert found.distance(node.number, node.number) == 10
    sample = numa.read_nodes(found)
    assert not sample.missing
    later = {
        (reading.subject, reading.metric): reading.value
        for reading in numa.read_nodes(found).readings
    }
    for reading in sample.readings:
        if reading.metric.nature is Nature.TOTAL:
            assert later[reading.subject, reading.metric] >= reading.value


def test_this_process_grows_by_what_it_touches() -> None:
    pid = os.getpid()
    before = placement.read_placement(pid)
    if isinstance(before, Missing):
        pytest.skip(before.reason)
    size = 32 * MIB
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for at in range(0, size, mmap.PAGESIZE):
            area[at] = 1
        after = placement.read_placement(pid)
    assert isinstance(after, Placement)
    anon = [
        sum(part.size_bytes for part in each.parts if part.kind is Kind.ANON)
        for each in (before, after)
    ]
    assert size * 0.9 <= anon[1] - anon[0] <= size * 1.5
    assert before.complete
    assert not before.problems


def test_this_threads_binding_is_seen_to_change() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be bound otherwise")
    seen: list[Affinity | None] = []
    last: list[int | None] = []

    def bind() -> None:
        pid, tid = os.getpid(), threading.get_native_id()
        seen.append(placement.read_affinity(pid, tid))
        os.sched_setaffinity(tid, {cpus[-1]})
        seen.append(placement.read_affinity(pid, tid))
        last.append(placement.read_last_cpu(pid, tid))

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    before, after = seen
    assert before is not None
    assert after is not None
    assert (before.cpus, after.cpus) == (tuple(cpus), (cpus[-1],))
    assert last == [cpus[-1]]
    bindings = [Binding("tid:1", each, t_ns) for t_ns, each in enumerate((before, after))]
    (found,) = placement.rebindings(bindings[:1], bindings[1:])
    assert (found.before.affinity, found.after.affinity) == (before, after)
