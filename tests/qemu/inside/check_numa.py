# SPDX-License-Identifier: Apache-2.0
"""Two nodes and a process whose memory is on the far one, as the readers and the daemon tell."""

from __future__ import annotations

from gpucorrelate.probes.host import numa, placement, procfs
from gpucorrelate.probes.host.devices import read_gpus
from gpucorrelate.probes.host.disagreement import disagreements, spread_of_cpus, spread_of_device
from gpucorrelate.probes.host.numa import Topology
from gpucorrelate.probes.host.placement import Affinity, Placement
from tests.qemu.inside.kit import GREEDY, MIB, child, daemons, keep, wait_for

PLACED_MIB = 96
#: On CPU 0, which is node 0's, with most of its memory on node 1 (mbind, mode 2: only there).
FAR = f"""
import ctypes, mmap, os, time
os.sched_setaffinity(0, {{0}})
memory = mmap.mmap(-1, {PLACED_MIB} << 20)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
nodes = ctypes.c_ulong(2)
assert libc.syscall(237, ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), 2,
                    ctypes.byref(nodes), 64, 0) == 0, ctypes.get_errno()
for at in range(0, len(memory), mmap.PAGESIZE):
    memory[at] = 1
print('placed', flush=True)
while True:
    time.sleep(0.05)
"""


def topology() -> Topology:
    found = numa.read_topology()
    assert isinstance(found, Topology), found
    return found


def test_the_nodes_and_what_is_between_them() -> None:
    found = topology()
    assert [(node.number, node.cpus) for node in found.nodes] == [(0, (0,)), (1, (1,))]
    assert [found.distance(0, 0), found.distance(0, 1), found.distance(1, 0)] == [10, 21, 21]
    for node in found.nodes:
        assert node.memory_bytes is not None
        assert 600 * MIB < node.memory_bytes < 768 * MIB
    sample = numa.read_nodes(found)
    assert not sample.missing


def test_a_gpu_on_the_far_node() -> None:
    (gpu,) = read_gpus()
    assert (gpu.numa_node, gpu.local_cpus) == (1, (1,))
    keep("gpu", gpu.address)


def test_memory_on_the_far_node_is_found_and_told() -> None:
    nodes = topology()
    before = {(r.subject, r.metric.name): r.value for r in numa.read_nodes(nodes).readings}
    with child(FAR) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"placed\n"
        after = {(r.subject, r.metric.name): r.value for r in numa.read_nodes(nodes).readings}
        placed = placement.read_placement(process.pid)
        bound = placement.read_affinity(process.pid)
        cpus = [placement.read_last_cpu(process.pid, t) for t in procfs.thread_ids(process.pid)]
    assert isinstance(placed, Placement)
    assert bound == Affinity((0,), (0, 1))
    assert cpus == [0]
    on = dict(placed.spread.amounts)
    assert PLACED_MIB * MIB <= on[1] < (PLACED_MIB + 32) * MIB
    # Put there for a thread that ran elsewhere.
    more = after["node:1", "numa.other"] - before["node:1", "numa.other"]
    assert more >= PLACED_MIB * MIB // 4096
    (gpu,) = read_gpus()
    found = disagreements(
        nodes,
        f"pid:{process.pid}",
        spread_of_cpus(nodes, [cpu for cpu in cpus if cpu is not None]),
        placed.spread,
        [spread_of_device(f"pci:{gpu.address}", gpu.numa_node)],
    )
    pairs = {(one.one.spread.what, one.other.spread.what): one for one in found}
    assert set(pairs) == {("cpu", "memory"), ("cpu", f"pci:{gpu.address}")}
    apart = pairs["cpu", "memory"]
    assert apart.distance == 21
    assert apart.remote_ppm == on[1] * 1_000_000 // sum(on.values())
    assert pairs["cpu", f"pci:{gpu.address}"].remote_ppm == 1_000_000


def test_the_daemon_records_it() -> None:
    from gpucorrelate.correlator.capture import Capture

    with daemons() as yard:
        with child(FAR) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"placed\n"
            daemon = yard.daemon(poll_ms=200, **GREEDY).start()
            session = daemon.client.attach(process.pid).session.session

            def told() -> dict[str, str]:
                found = Capture.from_batches(daemon.client.open_session(session))
                rows = found.table("change")
                return {
                    found.strings[what]: found.strings[after]
                    for subject, what, after in zip(
                        *(rows[name].tolist() for name in ("subject", "what", "after")),
                        strict=True,
                    )
                    if found.strings[subject] == f"pid:{process.pid}"
                }

            wait_for(lambda: "on different nodes" in told(), "it tells that memory is far")
            changes = told()
        assert changes["allowed CPUs and nodes"] == "CPUs 0, nodes 0-1"
        said = changes["on different nodes"]
        assert "memory" in said and "on node 1" in said
        (gpu,) = read_gpus()
        assert f"pci:{gpu.address} 100% on node 1" in said
