# SPDX-License-Identifier: Apache-2.0
"""Cgroups: files as kernels write them, hierarchies of every kind, trees that change."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import cgroup_metrics, cgroup_v1, cgroup_v2
from gpucorrelate.probes.host.cgroup import CgroupMove, CgroupPoller, CgroupRound
from gpucorrelate.probes.host.cgroup_paths import (
    Membership,
    Mount,
    below,
    chain,
    parse_mountinfo,
    parse_proc_cgroup,
)
from gpucorrelate.probes.host.kernel_text import NO_LIMIT, Parsed
from gpucorrelate.probes.host.reading import Metric

if TYPE_CHECKING:
    from pathlib import Path


def read_cgroups(pid: int, root: Path) -> CgroupRound:
    """All numbers of the process's cgroups and those above, once."""
    poller = CgroupPoller(root)
    try:
        return poller.poll((pid,))
    finally:
        poller.close()


CPU_STAT_V2 = (  # Linux 6.12; before 5.14 without the bursts
    "usage_usec 1000\nuser_usec 700\nsystem_usec 300\nnice_usec 0\ncore_sched.force_idle_usec 0\n"
    "nr_periods 50\nnr_throttled 20\nthrottled_usec 1500\nnr_bursts 0\nburst_usec 0\n"
)
MEMORY_STAT_V2 = (
    "anon 4096\nfile 8192\nkernel 100\nshmem 0\nfile_dirty 4096\nfile_writeback 0\n"
    "unevictable 0\nslab 50\nworkingset_refault_anon 1\nworkingset_refault_file 7\n"
    "pgscan_direct 9\npgsteal_direct 8\npgfault 1000\npgmajfault 3\nthp_fault_alloc 0\n"
)
MEMORY_EVENTS = "low 0\nhigh 5\nmax 6\noom 2\noom_kill 1\noom_group_kill 0\n"
IO_STAT = (
    "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"
    "7:0 \n8:0 rbytes=1 wbytes=0 rios=1 wios=0 dbytes=0 dios=0 cost.usage=4\n"
)
PRESSURE = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
)
V2_FILES = {
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "cgroup.type": "domain\n",
    "cpu.stat": CPU_STAT_V2,
    "cpu.max": "20000 100000\n",
    "cpu.weight": "100\n",
    "memory.current": "12288\n",
    "memory.max": "max\n",
    "memory.high": "1048576\n",
    "memory.low": "0\n",
    "memory.min": "0\n",
    "memory.events": MEMORY_EVENTS,
    "memory.events.local": MEMORY_EVENTS.replace("max 6", "max 0"),
    "memory.stat": MEMORY_STAT_V2,
    "io.stat": IO_STAT,
    "cpu.pressure": PRESSURE,
    "memory.pressure": PRESSURE,
    "io.pressure": PRESSURE,
}
ROOT_V2_FILES = {
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "cpu.stat": "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\n",
    "memory.stat": MEMORY_STAT_V2,
    "io.stat": IO_STAT,
    "cpu.pressure": PRESSURE,
}
CPU_STAT_V1 = "nr_periods 50\nnr_throttled 20\nthrottled_time 1500000\n"  # Linux 3.2 to 5.13
MEMORY_STAT_V1 = (
    "cache 1\nrss 2\npgmajfault 3\nhierarchical_memory_limit 9223372036854771712\n"
    "total_cache 4096\ntotal_rss 8192\ntotal_dirty 0\ntotal_pgfault 10\ntotal_pgmajfault 3\n"
    "total_unevictable 0\n"
)
V1_CPU_FILES = {
    "cpu.cfs_quota_us": "-1\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.shares": "1024\n",
    "cpu.stat": CPU_STAT_V1,
    "cpuacct.usage": "123456789\n",
}
V1_MEMORY_FILES = {
    "memory.usage_in_bytes": "4096\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.failcnt": "7\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n",
    "memory.stat": MEMORY_STAT_V1,
}

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "40 30 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
)
V1_LINES = "9:name=systemd:/x\n4:memory:/jobs/a\n2:cpu,cpuacct:/jobs\n"


def put(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def host(root: Path, mounts: str, **processes: str) -> Path:
    """A root with a proc: ``p7="0::/a"`` is the ``cgroup`` file of process 7."""
    put(root / "proc/self", {"mountinfo": mounts})
    for name, text in processes.items():
        put(root / "proc" / name.removeprefix("p"), {"cgroup": text})
    return root


def v2_host(root: Path, path: str = "/a/b") -> Path:
    base = root / "sys/fs/cgroup"
    put(base, ROOT_V2_FILES)
    put(base / "a", V2_FILES)
    put(base / "a/b", V2_FILES | {"cpu.max": "max 100000\n"})
    return host(root, V2_MOUNT, p7=f"0::{path}\n")


def numbers(found: CgroupRound) -> dict[tuple[str, str], int]:
    keys = [(r.subject, r.metric.name) for r in found.sample.readings]
    assert len(keys) == len(set(keys)), "a number told twice"
    return dict(zip(keys, (r.value for r in found.sample.readings), strict=True))


def open_files() -> int:
    return psutil.Process().num_fds()


def by_name(parsed: Parsed) -> dict[str, int]:
    assert parsed.problems == ()
    return {v.metric.name + ("@" + v.device if v.device else ""): v.value for v in parsed.values}


# Files.


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", NO_LIMIT), ("20000 100000\n", 20_000_000), ("-1 100000\n", NO_LIMIT)],
)
def test_cpu_max(text: str, quota: int) -> None:
    found = by_name(cgroup_v2.parse_cpu_max(text))
    assert found == {"cpu.max.quota": quota, "cpu.max.period": 100_000_000}


@pytest.mark.parametrize("text", ["", "max\n", "20000 100000", "x 100000\n", "1 max\n", "1 2 3\n"])
def test_what_is_no_cpu_max(text: str) -> None:
    parsed = cgroup_v2.parse_cpu_max(text)
    assert parsed.values == ()
    assert parsed.problems


def test_devices_of_io_stat() -> None:
    found = by_name(cgroup_v2.parse_io_stat(IO_STAT))
    assert found["io.stat.rbytes@254:0"] == 4096
    assert found["io.stat.wios@254:0"] == 2
    assert found["io.stat.rbytes@8:0"] == 1
    assert not any("7:0" in name or "cost" in name for name in found)
    assert cgroup_v2.parse_io_stat("") == Parsed()
    assert cgroup_v2.parse_io_stat("x rbytes=1\n").problems


def test_devices_of_blkio() -> None:
    text = "8:0 Read 4096\n8:0 Write 1\n8:0 Sync 5\n8:0 Total 9\nTotal 9\n"
    assert by_name(cgroup_v1.parse_service_bytes(text)) == {
        "io.stat.rbytes@8:0": 4096, "io.stat.wbytes@8:0": 1,
    }  # fmt: skip
    assert by_name(cgroup_v1.parse_serviced(text))["io.stat.rios@8:0"] == 4096
    assert by_name(cgroup_v1.parse_service_bytes("Total 0\n")) == {}
    assert cgroup_v1.parse_service_bytes("8:0 Read many\n").problems


def test_io_weight_has_a_default_and_exceptions() -> None:
    assert by_name(cgroup_v2.parse_io_weight("default 100\n8:0 50\n")) == {"io.weight": 100}
    assert cgroup_v2.parse_io_weight("8:0 50\n").problems


ALL_FILES = (*cgroup_v1.FILES, *cgroup_v2.FILES)


@given(st.binary(max_size=200))
def test_no_bytes_make_a_parser_raise(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for file in ALL_FILES:
        for value in file.parse(text).values:
            assert -(2**63) < value.value < 2**63


@given(st.sampled_from(sorted(V2_FILES.items())), st.integers(0, 400), st.binary(max_size=6))
def test_no_damage_to_a_real_file_makes_a_parser_raise(
    file: tuple[str, str], at: int, noise: bytes
) -> None:
    text = file[1][:at] + noise.decode("utf-8", "replace") + file[1][at + len(noise) :]
    for known in ALL_FILES:
        if file[0] in known.names:
            known.parse(text)


def test_a_file_full_of_garbage_is_one_thing_that_is_wrong() -> None:
    for file in ALL_FILES:
        parsed = file.parse("?\n" * 30_000)
        assert parsed.values == ()
        assert 1 <= len(parsed.problems) <= 3
        assert sum(map(len, parsed.problems)) < 1000


def test_metrics_are_named_once_and_say_what_they_are() -> None:
    metrics = [m for m in vars(cgroup_metrics).values() if isinstance(m, Metric)]
    for table in (v for k, v in vars(cgroup_metrics).items() if k.isupper() and k[0] != "_"):
        metrics += table.values() if isinstance(table, dict) else []
    assert len({m.name for m in metrics}) == len(metrics) > 50
    assert all(m.meaning.endswith(".") and len(m.meaning) > 20 for m in metrics)


# Paths.


def test_lines_of_proc_cgroup() -> None:
    text = "3:cpu,cpuacct:/a:b c\n1:name=systemd:/\n0::/../x (deleted)\n"
    assert parse_proc_cgroup(text) == (
        Membership(("cpu", "cpuacct"), "/a:b c"),
        Membership(("name=systemd",), "/"),
        Membership((), "/../x", deleted=True),
    )
    assert parse_proc_cgroup("0::/a\n0::/b")[-1].path == "/a", "the second is cut"


@pytest.mark.parametrize(
    "text", ["", "x\n", "0:/a\n", "0::a\n", "a::/x\n", "0:cpu:/x\n", "1::/x\n", "0::/a\0b\n"]
)
def test_what_is_no_line_of_proc_cgroup(text: str) -> None:
    assert parse_proc_cgroup(text) == ()


def test_lines_of_mountinfo() -> None:
    text = (
        V1_MOUNTS
        + r"50 1 0:9 /a\040b /mnt\011x rw master:1 propagate_from:2 - cgroup2 none rw"
        + "\ncut 1 0:9 / /mnt"
    )
    found = parse_mountinfo(text)
    assert [m.version for m in found] == [1, 1, 1, 2]
    assert found[0].options == {"cpu", "cpuacct"}
    assert (found[3].top, found[3].point) == ("/a b", "/mnt\tx")


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parsers_of_paths_raise(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for membership in parse_proc_cgroup(text):
        chain(membership, parse_mountinfo(V2_MOUNT + V1_MOUNTS + text))


@pytest.mark.parametrize(
    ("top", "path", "names"),
    [
        ("/", "/", ()),
        ("/", "/a/b", ("a", "b")),
        ("/docker/1", "/docker/1/x", ("x",)),
        ("/docker/1", "/docker/12", None),
        ("/docker/1", "/docker", None),
        ("/", "/../x", None),
        ("/..", "/../x", ("x",)),
        ("/../..", "/../x", None),
        ("/..", "/", None),
    ],
)
def test_what_lies_below_a_mount(top: str, path: str, names: tuple[str, ...] | None) -> None:
    assert below(top, path) == names


def test_the_mount_that_shows_most_is_taken() -> None:
    mounts = tuple(
        Mount(point, top, 2, frozenset())
        for point, top in (("/part", "/a"), ("/old", "/"), ("/new", "/"), ("/deep", "/a/b"))
    )
    places = chain(Membership((), "/a/b"), mounts)
    assert [p.path for p in places] == ["/a/b", "/a", "/"]
    assert [p.directory for p in places] == [("new", "a", "b"), ("new", "a"), ("new",)]


# Trees.


def test_v2_and_every_ancestor(tmp_path: Path) -> None:
    found = read_cgroups(7, v2_host(tmp_path))
    assert found.sample.missing == ()
    n = numbers(found)
    # The process's own cgroup has no limit: the one above has.
    assert n["cgroup:/a/b", "cpu.max.quota"] == NO_LIMIT
    assert n["cgroup:/a", "cpu.max.quota"] == 20_000_000
    assert n["cgroup:/a", "cpu.stat.nr_throttled"] == 20
    assert n["cgroup:/a", "cpu.stat.throttled"] == 1_500_000
    assert n["cgroup:/a", "cpu.stat.usage"] == 1_000_000
    assert n["cgroup:/a", "memory.max"] == NO_LIMIT
    assert n["cgroup:/a", "memory.high"] == 1 << 20
    assert n["cgroup:/a", "memory.events.max"] == 6
    assert n["cgroup:/a", "memory.events.local.max"] == 0
    assert n["cgroup:/a", "memory.stat.pgmajfault"] == 3
    assert n["cgroup:/a", "memory.stat.workingset_refault_file"] == 7
    assert n["cgroup:/a dev:254:0", "io.stat.wbytes"] == 8192
    assert n["cgroup:/a", "cpu.pressure.full.total"] == 7000
    assert n["cgroup:/", "cpu.stat.usage"] == 5_000_000
    assert ("cgroup:/", "cpu.max.quota") not in n
    assert ("cgroup:/", "cpu.pressure.some.total") not in n, "that is the machine's"
    assert found.moves == (CgroupMove(7, (), "", "/a/b", 0, found.moves[0].t_ns),)


def test_v1_with_hierarchies_of_their_own(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    for name in (".", "jobs"):
        put(base / "cpu,cpuacct" / name, V1_CPU_FILES)
    put(base / "cpu,cpuacct/jobs", {"cpu.cfs_quota_us": "40000\n"})
    for name in (".", "jobs", "jobs/a"):
        put(base / "memory" / name, V1_MEMORY_FILES)
    put(base / "memory/jobs", {"memory.limit_in_bytes": "1048576\n"})
    found = read_cgroups(7, host(tmp_path, V1_MOUNTS, p7=V1_LINES + "0::/\n"))
    n = numbers(found)
    assert n["cgroup:/jobs", "cpu.max.quota"] == 40_000_000
    assert n["cgroup:/", "cpu.max.quota"] == NO_LIMIT
    assert n["cgroup:/jobs", "cpu.stat.throttled"] == 1_500_000
    assert n["cgroup:/jobs", "cpuacct.usage"] == 123456789
    assert n["cgroup:/jobs/a", "memory.max"] == NO_LIMIT
    assert n["cgroup:/jobs", "memory.max"] == 1 << 20
    assert n["cgroup:/jobs/a", "memory.failcnt"] == 7
    assert n["cgroup:/jobs/a", "memory.oom_control.under_oom"] == 1
    assert n["cgroup:/jobs/a", "memory.oom_control.oom_kill"] == 2
    assert n["cgroup:/jobs/a", "memory.stat.file"] == 4096
    # Every kernel has the line of v2; here nobody mounted it.
    (missing,) = found.sample.missing
    assert (missing.what, missing.reason[:2]) == ("cgroup of v2", "/ ")
    assert {m.controllers for m in found.moves} == {(), ("memory",), ("cpu", "cpuacct")}


def test_both_at_once(tmp_path: Path) -> None:
    """Systemd's hybrid: controllers in v1, v2 beside them with none."""
    base = tmp_path / "sys/fs/cgroup"
    put(base / "cpu,cpuacct/jobs", V1_CPU_FILES)
    put(base / "cpu,cpuacct", V1_CPU_FILES)
    put(base / "memory/jobs/a", V1_MEMORY_FILES)
    put(base / "memory/jobs", V1_MEMORY_FILES)
    put(base / "memory", V1_MEMORY_FILES)
    usage = {"cpu.stat": "usage_usec 9\nuser_usec 5\nsystem_usec 4\n", "cgroup.controllers": "\n"}
    pressures = {f"{name}.pressure": PRESSURE for name in ("cpu", "memory", "io")}
    put(base / "unified/jobs", usage | pressures | {"cgroup.type": "domain\n"})
    put(base / "unified", usage | pressures)
    mounts = V1_MOUNTS + "41 30 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    found = read_cgroups(7, host(tmp_path, mounts, p7=V1_LINES + "0::/jobs\n"))
    n = numbers(found)
    assert n["cgroup:/jobs", "cpu.stat.nr_throttled"] == 20
    assert n["cgroup:/jobs", "cpu.stat.usage"] == 9000
    assert n["cgroup:/jobs", "cpu.pressure.some.total"] == 11_000
    # CPU and memory have their controllers in v1; for disks nobody has one.
    assert [(m.what, m.subject) for m in found.sample.missing] == [
        ("cgroup controller io", "cgroup:/jobs")
    ]


def test_roots_limit_nothing_and_are_compared_with(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    put(base / "cpu,cpuacct", V1_CPU_FILES | {"release_agent": "\n"})
    put(base / "memory", V1_MEMORY_FILES | {"release_agent": "\n"})
    root = host(tmp_path, V1_MOUNTS, p7="4:memory:/\n2:cpu,cpuacct:/\n")
    found = read_cgroups(7, root)
    assert numbers(found) == {("cgroup:/", "cpuacct.usage"): 123456789}
    assert found.sample.missing == ()
    # In a cgroup namespace "/" is a cgroup as others: the file that only roots have is not there.
    (base / "memory/release_agent").unlink()
    assert numbers(read_cgroups(7, root))["cgroup:/", "memory.failcnt"] == 7


def test_a_controller_that_is_off_is_named_once_not_each_of_its_files(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    put(root / "sys/fs/cgroup/a/b", {"cgroup.controllers": "cpu pids\n"})
    poller = CgroupPoller(root, again_after=3)
    found = poller.poll((7,))
    assert {(m.what, m.subject) for m in found.sample.missing} == {
        ("cgroup controller memory", "cgroup:/a/b"), ("cgroup controller io", "cgroup:/a/b"),
    }  # fmt: skip
    assert ("cgroup:/a/b", "memory.current") not in numbers(found)
    # Switched on while running, it is found within a few rounds.
    put(root / "sys/fs/cgroup/a/b", {"cgroup.controllers": "cpu memory io\n"})
    later = [numbers(poller.poll((7,))) for _ in range(3)]
    assert sum(("cgroup:/a/b", "memory.current") in n for n in later) == 1
    poller.close()


def test_a_bind_mount_in_a_container_hides_what_is_above(tmp_path: Path) -> None:
    put(tmp_path / "sys/fs/cgroup/memory", V1_MEMORY_FILES)
    put(tmp_path / "sys/fs/cgroup/memory/sub", V1_MEMORY_FILES)
    mounts = "35 30 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    found = read_cgroups(7, host(tmp_path, mounts, p7="4:memory:/docker/1/sub\n"))
    subjects = {r.subject for r in found.sample.readings}
    assert subjects == {"cgroup:/docker/1/sub", "cgroup:/docker/1"}
    (missing,) = found.sample.missing
    assert missing.what == "cgroups above"
    assert "from /docker/1 on" in missing.reason


def test_a_process_outside_the_cgroup_namespace_is_missing(tmp_path: Path) -> None:
    root = v2_host(tmp_path, "/../other")
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/cgroup").symlink_to("cgroup:[4026532000]")
    found = read_cgroups(7, root)
    assert found.sample.readings == ()
    assert {m.what for m in found.sample.missing} == {
        "cgroup of v2", "cgroups above",
    }  # fmt: skip


def test_mounts_at_unusual_places(tmp_path: Path) -> None:
    put(tmp_path / "odd place/a", V2_FILES)
    mounts = r"31 23 0:28 / /odd\040place rw - cgroup2 none rw" + "\n"
    found = read_cgroups(7, host(tmp_path, mounts, p7="0::/a\n"))
    assert numbers(found)["cgroup:/a", "cpu.max.quota"] == 20_000_000


def test_what_is_mounted_later_is_found(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    put(root / "proc/self", {"mountinfo": ""})
    poller = CgroupPoller(root, again_after=1)
    assert [m.what for m in poller.poll((7,)).sample.missing] == ["cgroup of v2"]
    put(root / "proc/self", {"mountinfo": V2_MOUNT})
    assert numbers(poller.poll((7,)))["cgroup:/a", "cpu.max.quota"] == 20_000_000
    poller.close()


def test_moves_are_followed(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    put(root / "sys/fs/cgroup/c", V2_FILES)
    poller = CgroupPoller(root)
    first = poller.poll((7,))
    quiet = poller.poll((7,))
    assert quiet.moves == ()
    assert quiet.sample.readings == ()
    assert quiet.since_ns == first.t_ns
    put(root / "proc/7", {"cgroup": "0::/c\n"})
    moved = poller.poll((7,))
    (move,) = moved.moves
    assert (move.pid, move.before, move.after) == (7, "/a/b", "/c")
    assert move.since_ns == quiet.t_ns < moved.t_ns <= move.t_ns
    assert {r.subject for r in moved.sample.readings} >= {"cgroup:/c"}
    assert [p.path for p in poller.places(7)[0]] == ["/c", "/"]
    put(root / "proc/8", {"cgroup": "0::/c\n"})
    (born,) = poller.poll((7, 8)).moves
    assert (born.pid, born.before, born.since_ns) == (8, "", 0), "since when is not known"
    poller.close()


def test_only_what_changed_is_told_again(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    poller = CgroupPoller(root)
    everything = numbers(poller.poll((7,)))
    changed = CPU_STAT_V2.replace("nr_throttled 20", "nr_throttled 21")
    put(root / "sys/fs/cgroup/a", {"cpu.stat": changed})
    assert numbers(poller.poll((7,))) == {("cgroup:/a", "cpu.stat.nr_throttled"): 21}
    again = numbers(poller.poll((7,), everything=True))
    assert again.keys() == everything.keys()
    poller.close()


@pytest.mark.parametrize("files", [0, 1000])
def test_what_vanishes_is_told_and_what_comes_back_is_read(tmp_path: Path, files: int) -> None:
    root = v2_host(tmp_path)
    poller = CgroupPoller(root, max_files=files, again_after=1)
    poller.poll((7,))
    shutil.rmtree(root / "proc/7")
    gone = poller.poll((7,))
    if not files:
        # A process's file that is held open fails by itself, which a plain file does not.
        assert [(m.subject, m.reason) for m in gone.sample.missing] == [("pid:7", "no such file")]
        assert poller.poll((7,)).sample.missing == ()
        put(root / "proc/7", {"cgroup": "0::/a\n"})
        back = poller.poll((7,))
        assert [m.before for m in back.moves] == [""]
        assert numbers(back)["cgroup:/a", "cpu.max.quota"] == 20_000_000
    poller.close()


def test_a_cgroup_that_vanishes_mid_way_is_told(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    poller = CgroupPoller(root, max_files=0)
    poller.poll((7,))
    shutil.rmtree(root / "sys/fs/cgroup/a/b")
    reasons = {(m.subject, m.reason) for _ in range(2) for m in poller.poll((7,)).sample.missing}
    assert ("cgroup:/a/b", "no such file") in reasons
    assert {r.subject for r in poller.poll((7,), everything=True).sample.readings} >= {"cgroup:/a"}
    poller.close()


def test_nobody_leads_it_out_of_its_root(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    put(secret, V2_FILES)
    root = v2_host(tmp_path / "root")
    shutil.rmtree(root / "sys/fs/cgroup/a/b")
    (root / "sys/fs/cgroup/a/b").symlink_to(secret)
    (root / "sys/fs/cgroup/a/cpu.max").unlink()
    (root / "sys/fs/cgroup/a/cpu.max").symlink_to(secret / "cpu.max")
    put(root / "proc/8", {"cgroup": "0::/../../../secret\n"})
    found = read_cgroups(7, root)
    assert not any(r.subject == "cgroup:/a/b" for r in found.sample.readings)
    assert ("cgroup:/a", "cpu.max.quota") not in numbers(found)
    assert len(found.sample.missing) == 2
    assert read_cgroups(8, root).sample.readings == ()
    (root / "proc/9").symlink_to(root / "proc/7")
    assert read_cgroups(9, root).sample.readings == ()


def test_pipes_and_long_files_do_no_harm(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    (root / "sys/fs/cgroup/a/cpu.max").unlink()
    os.mkfifo(root / "sys/fs/cgroup/a/cpu.max")
    put(root / "sys/fs/cgroup/a", {"memory.stat": MEMORY_STAT_V2 + "x 1\n" * 30_000})
    found = read_cgroups(7, root)
    reasons = {m.what: m.reason for m in found.sample.missing}
    assert reasons["cpu.max"] == "not a plain file"
    assert "longer than 64 KiB" in reasons["memory.stat"]
    assert numbers(found)["cgroup:/a", "memory.stat.file"] == 8192


def test_their_number_is_bounded(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    found = CgroupPoller(root, max_groups=2).poll((7,))
    assert len({r.subject.split(" ")[0] for r in found.sample.readings}) == 2
    assert [m.reason for m in found.sample.missing] == ["1 more than the 2 that are read"]


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    before = open_files()
    poller = CgroupPoller(v2_host(tmp_path))
    poller.poll((7, 4242))
    assert open_files() > before
    poller.poll(())
    poller.close()
    assert open_files() == before


@given(lines=st.binary(max_size=60), mounts=st.binary(max_size=60))
def test_no_bytes_in_proc_make_it_raise(
    tmp_path_factory: pytest.TempPathFactory, lines: bytes, mounts: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    put(root / "proc/self", {})
    put(root / "proc/7", {})
    (root / "proc/self/mountinfo").write_bytes(V2_MOUNT.encode() + mounts)
    (root / "proc/7/cgroup").write_bytes(lines + b"\n0::/" + lines.replace(b"\n", b"") + b"\n")
    for item in read_cgroups(7, root).sample.missing:
        (item.what + item.subject + item.reason).encode()


def test_names_that_are_no_text_are_read_and_shown(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    odd = os.fsdecode(b"\xff\xfe")
    put(root / "sys/fs/cgroup" / odd, V2_FILES)
    (root / "proc/7/cgroup").write_bytes(b"0::/\xff\xfe\n")
    found = read_cgroups(7, root)
    assert numbers(found)["cgroup:/\ufffd\ufffd", "cpu.max.quota"] == 20_000_000
