# SPDX-License-Identifier: Apache-2.0
"""Importing files ten times larger than the memory there is, and how much that is."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.cli.memory import bounded, free_bytes
from gpucorrelate.probes.wire.errors import OutOfMemoryError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
#: What the process gets beyond what an import of next to nothing takes.
ALLOWED_BYTES = 24 * MIB
RUN = """
import sys
from gpucorrelate.cli import main
code = main.run(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
sys.exit(code)
"""
HOST = '{"ph":"X","cat":"cpu_op","name":"aten::linear","pid":9,"tid":9,"ts":1,"dur":2,"args":{"External id":%d,"Input Dims":[[4096,4096],[4096]],"Input type":["float","float"],"Sequence number":7}}'  # noqa: E501
KERNEL = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d.5,"dur":4.25,"args":{"device":0,"stream":7,"correlation":%d}}'  # noqa: E501
CALL = '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":%d.2,"dur":2,"args":{"correlation":%d}}'  # noqa: E501
OPS = "globalPid INT, deviceId INT, contextId INT, streamId INT, correlationId INT, start INT, end INT, demangledName INT"  # noqa: E501


def work(i: int) -> str:
    return f"{CALL % (10 * i + 1, i + 1)},{KERNEL % (10 * i + 4, i + 1)}"


def kineto(path: Path, many: list[str], size_bytes: int) -> Path:
    """A trace of one launch, and of the same events again and again."""
    block = ",".join(many)
    with path.open("w") as out:
        out.write(f'{{"traceEvents":[{work(1)}')
        for _ in range(size_bytes // len(block)):
            out.write(f",{block}")
        out.write("]}")
    return path


def nsys(path: Path, table: str, columns: str, values: str, rows: int) -> Path:
    """An export with a kernel, and a table of the same row again and again."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({OPS})")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 0, 1, 7, 1, 5, 9, 1)")
        database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        database.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows}) "
            f"INSERT INTO {table} SELECT {values} FROM n"
        )
    return path


def run(*args: object, data_bytes: int = -1) -> tuple[int, str, str]:
    """An import in a process that may have so many bytes of data."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))

    done = subprocess.run(
        [sys.executable, "-c", RUN, "import", *map(str, args)],
        capture_output=True, text=True, timeout=300, check=False, preexec_fn=limit,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def least(small: Path) -> int:
    """What an import of next to nothing takes, of the kind of a file."""
    code, out, err = run(small, "-o", small.with_suffix(".gpcf"))
    assert code == 0, err
    return int(out) * 1024


def refused(path: Path, data_bytes: int) -> None:
    """One line and a hint, the exit code, and nothing left behind."""
    before = set(path.parent.iterdir())
    code, _, err = run(path, "-o", path.parent / "run.gpcf", data_bytes=data_bytes)
    assert code == 1, err
    first, hint = err.splitlines()
    assert first.startswith(f"gpucorrelate: {path.name}: does not fit into memory, of which ")
    assert hint.startswith("  hint: GPU records and API calls are held")
    assert set(path.parent.iterdir()) == before


def test_of_other_events_next_to_nothing_is_held(tmp_path: Path) -> None:
    allowed = least(kineto(tmp_path / "small.json", [work(2)], 1)) + ALLOWED_BYTES
    path = kineto(tmp_path / "t.json", [HOST % i for i in range(2_000)], 10 * ALLOWED_BYTES)
    code, _, err = run(path, "-o", tmp_path / "run.gpcf", data_bytes=allowed)
    assert code == 0, err
    assert err.startswith("gpucorrelate: 1 GPU record of ")


def test_records_that_do_not_fit_are_refused_in_a_line(tmp_path: Path) -> None:
    allowed = least(kineto(tmp_path / "small.json", [work(2)], 1)) + ALLOWED_BYTES
    path = kineto(tmp_path / "t.json", [work(i) for i in range(2_000)], 10 * ALLOWED_BYTES)
    refused(path, allowed)


def test_rows_of_an_export_that_are_not_kept_are_not_held(tmp_path: Path) -> None:
    columns = "globalTid INT, start INT, end INT, text TEXT"
    values = "1, i, i + 1, printf('layer %200d', i)"
    small = nsys(tmp_path / "small.sqlite", "NVTX_EVENTS", columns, values, 1)
    path = nsys(tmp_path / "t.sqlite", "NVTX_EVENTS", columns, values, 200_000)
    allowed = least(small) + path.stat().st_size // 10
    code, _, err = run(path, "-o", tmp_path / "run.gpcf", data_bytes=allowed)
    assert code == 0, err
    assert err.startswith("gpucorrelate: 1 GPU record of ")


def test_rows_of_an_export_that_do_not_fit_are_refused_in_a_line(tmp_path: Path) -> None:
    table, values = "CUPTI_ACTIVITY_KIND_KERNEL", "1, 0, 1, 7, i, 10 * i, 10 * i + 5, 1"
    small = nsys(tmp_path / "small.sqlite", table, OPS, values, 1)
    path = nsys(tmp_path / "t.sqlite", table, OPS, values, 300_000)
    refused(path, least(small) + 4 * MIB)


def test_a_limit_holds_within_and_is_given_back() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(OutOfMemoryError, match="x: does not fit"), bounded("x", "less"):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != before[0]
        bytearray(1 << 46)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def machine(root: Path, groups: str = "0::/a/b\n", **files: str) -> int | None:
    """What is free on a machine with 1,000 KiB of memory and 100 of swap."""
    made = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1000 kB\nSwapFree: 100 kB\n",
            "proc/self/cgroup": groups, **files}  # fmt: skip
    for name, text in made.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return free_bytes(root)


def test_without_groups_the_machines_memory_and_swap_are_free(tmp_path: Path) -> None:
    assert machine(tmp_path) == 1100 * 1024
    assert free_bytes(tmp_path / "none") is None


@pytest.mark.parametrize("top", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
@pytest.mark.parametrize("group", ["a/b", "a"])
def test_the_smallest_group_around_a_process_counts(tmp_path: Path, top: str, group: str) -> None:
    files = {
        f"{top}/a/b/memory.max": "max\n",
        f"{top}/{group}/memory.max": "500000\n",
        f"{top}/{group}/memory.current": "300000\n",
        f"{top}/{group}/memory.stat": "anon 5\ninactive_file 70000\nactive_file 20000\n",
        f"{top}/{group}/memory.swap.max": "4096\n",
        f"{top}/{group}/memory.swap.current": "96\n",
    }
    assert machine(tmp_path, **files) == 500_000 - 300_000 + 90_000 + 4_000


def test_groups_of_the_first_version_count(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    files = {
        f"{top}/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
        f"{top}/memory.usage_in_bytes": "9\n",
        f"{top}/a/memory.limit_in_bytes": "400000\n",
        f"{top}/a/memory.usage_in_bytes": "300000\n",
        f"{top}/a/memory.stat": "cache 1\ntotal_cache 50000\n",
    }
    found = machine(tmp_path, "9:cpu:/x\n4:memory:/a/b\n0::/\n", **files)
    assert found == 400_000 - 300_000 + 50_000 + 100 * 1024


def test_in_a_container_the_groups_top_is_its_own(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "500000\n", "sys/fs/cgroup/memory.current": "700000\n"}
    assert machine(tmp_path, "0::/docker/not/here\n", **files) == 0
