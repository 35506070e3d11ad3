# SPDX-License-Identifier: Apache-2.0
"""Where the kernel's count of throttled time is found, in cgroups of every make."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucorrelate.verify.scenarios.quota import Throttling, throttled_ns

V1_MOUNTS = (
    "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 30 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1_STAT = "nr_periods 9\nnr_throttled 5\nthrottled_time {}\n"
V2_STAT = "usage_usec 5\nnr_periods 9\nnr_throttled 5\nthrottled_usec {}\nnr_bursts 0\n"


def host(root: Path, cgroup: str, mounts: str, files: dict[str, str]) -> Path:
    """A file system as the kernel shows it to a process."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def total(root: Path) -> int:
    found = Throttling(root)
    try:
        return found.total_ns()
    finally:
        found.close()


def test_v1_adds_up_its_own_cgroup_and_those_above(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/jobs/a/cpu.stat": V1_STAT.format(30),
        "cpu,cpuacct/jobs/cpu.stat": V1_STAT.format(4),
        "cpu,cpuacct/cpu.stat": V1_STAT.format(0),
        "cpu,cpuacct/jobs/b/cpu.stat": V1_STAT.format(1_000),
    }
    lines = "4:memory:/jobs/c\n2:cpu,cpuacct:/jobs/a\n"
    assert total(host(tmp_path, lines, V1_MOUNTS.format(top="/"), files)) == 34


def test_what_the_cgroup_itself_counts_of_all_quotas_comes_first(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/jobs/cpu.stat": V1_STAT.format(30),
        "cpu,cpuacct/jobs/cpu.stat.local": "throttled_time 50\n",
        "cpu,cpuacct/cpu.stat": V1_STAT.format(30),
    }
    lines = "2:cpu,cpuacct:/jobs\n"
    assert total(host(tmp_path, lines, V1_MOUNTS.format(top="/"), files)) == 50


def test_a_container_sees_its_cgroup_as_the_top(tmp_path: Path) -> None:
    """Of v1 it is mounted alone, under the host's path; of v2 a namespace hides what is above."""
    v1 = host(
        tmp_path / "v1",
        "2:cpu,cpuacct:/docker/0a\n",
        V1_MOUNTS.format(top="/docker/0a"),
        {"cpu,cpuacct/cpu.stat": V1_STAT.format(7)},
    )
    assert total(v1) == 7
    v2 = host(tmp_path / "v2", "0::/\n", V2_MOUNT, {"cpu.stat": V2_STAT.format(7)})
    assert total(v2) == 7_000


def test_v2_counts_in_microseconds(tmp_path: Path) -> None:
    files = {"a/cpu.stat": V2_STAT.format(2), "a/b/cpu.stat": V2_STAT.format(3)}
    assert total(host(tmp_path, "0::/a/b\n", V2_MOUNT, files)) == 5_000


@pytest.mark.parametrize(
    "files",
    [{}, {"cpu.stat": "usage_usec 5\n"}, {"cpu.stat": "throttled_usec x\n"}, {"cpu.stat": ""}],
)
def test_a_host_without_quotas_counts_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    assert total(host(tmp_path, "0::/\n", V2_MOUNT, files)) == 0


def test_a_host_that_shows_no_cgroups_counts_nothing(tmp_path: Path) -> None:
    assert total(tmp_path) == 0


def test_it_is_read_anew_each_time_and_leaves_no_files_open(tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    root = host(tmp_path, "0::/\n", V2_MOUNT, {"cpu.stat": V2_STAT.format(7)})
    found = Throttling(root)
    assert found.total_ns() == 7_000
    (root / "sys/fs/cgroup/cpu.stat").write_text(V2_STAT.format(9))
    assert found.total_ns() == 9_000
    found.close()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_numbers_of_a_stat() -> None:
    assert throttled_ns(b"nr_periods 1\nthrottled_time 12\n") == 12
    assert throttled_ns(b"throttled_usec 12\n") == 12_000
    assert throttled_ns(b"throttled_usec -12\n") is None
    assert throttled_ns(b"throttled_usec") is None
    assert throttled_ns(b"") is None
