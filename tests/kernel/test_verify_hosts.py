# SPDX-License-Identifier: Apache-2.0
"""The product's own check of itself on hosts that are limited, odd, or short of something."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.verify.scenarios.quota import quota_folder
from tests.kernel.observe import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

GPUCORRELATE = (sys.executable, "-c", "from gpucorrelate.cli.main import main; main()")
_ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
#: Of CPU time, so much is allowed to a host that is limited.
_QUOTA_US, _PERIOD_US = 30_000, 100_000

#: Refuses perf_event_open with EPERM (x86-64), then runs a command.
_NO_PERF = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 298), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def verify(
    *scenarios: str, around: Sequence[str] = (), more: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    names = [word for name in scenarios for word in ("--scenario", name)]
    command = [*around, *GPUCORRELATE, "verify", "--quick", *names, *more]
    return subprocess.run(command, capture_output=True, text=True, env=_ENV, check=False)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in {0, 8}, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


JSON = ("--format", "json")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup that gets a part of one CPU."""
    base = quota_folder()
    if base is None:
        pytest.skip("no cgroup with a quota")
    folder = base / f"gpucorrelate-test-{os.getpid()}"
    folder.mkdir()
    try:
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{_QUOTA_US} {_PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        yield folder
    finally:
        folder.rmdir()


def test_a_quota_of_the_hosts_own_is_told_and_is_not_false(limited: Path) -> None:
    enter = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(limited))
    scenarios = ("python-lock", "minor-faults", "yield-spin", "cpu-hog")
    done = verify(*scenarios, around=enter, more=JSON)
    total = document(done)["total"]
    assert total["limited_ns"] > 0
    # Most of what the quota took of the controls would be more than that.
    assert total["false_share"] < 0.02, total
    assert total["category_share"] > 0.6, total
    text = verify(*scenarios, around=enter).stdout
    assert "the CPU quota of this process's own cgroup took" in text


def test_in_a_pid_namespace_threads_are_found_by_their_ids_outside() -> None:
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    found = document(verify("python-lock", "epoll", "untraced-peer", around=inside, more=JSON))
    assert {one["source"]: one["state"] for one in found["capabilities"]}["ebpf.pidns"] != "on"
    for row in found["scenarios"]:
        assert row["category_share"] > 0.6 and row["culprit_share"] > 0.6, row
        assert row["unknown_share"] < 0.2, row


def test_a_proc_of_another_pid_namespace_is_refused() -> None:
    done = verify("nanosleep", around=("unshare", "--pid", "--fork"))
    assert done.returncode == 6
    assert "/proc shows another pid namespace" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter knows one machine's calls")
def test_what_cannot_be_seen_is_said() -> None:
    done = verify("minor-faults", around=(sys.executable, "-c", _NO_PERF))
    assert done.returncode == 8
    assert re.search(r"^(not seen|lacking) +ebpf.faults: ", done.stdout, re.MULTILINE)
    assert "not here" in done.stdout


def test_without_the_capabilities_it_is_one_line_and_a_hint() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    for around in (
        ("setpriv", "--bounding-set", "-sys_admin,-bpf,-perfmon"),
        ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    ):
        done = verify("nanosleep", around=around)
        if done.returncode == 1 and "ermission denied" in done.stderr:
            continue  # nobody cannot even read this checkout
        assert done.returncode == 6, done.stderr
        assert done.stderr.startswith("gpucorrelate: ") and "hint: " in done.stderr
        assert len(done.stderr.splitlines()) == 2


def test_where_there_is_no_room_a_scenario_is_not_possible(tmp_path: Path) -> None:
    # The checkout may lie where the small file system is mounted: it is kept in its place.
    small = (
        'mount --bind "$0" "$1" && mount -t tmpfs -o size=2m none /var/tmp && mkdir -p "$0" && '
        'mount --bind "$1" "$0" && cd "$0" && shift && exec "$@"'
    )
    around = ("unshare", "--mount", "sh", "-c", small, str(ROOT), str(tmp_path))
    found = document(verify("major-faults", "file-read", "timerfd", around=around, more=JSON))
    assert [row["name"] for row in found["scenarios"]] == ["timerfd"]
    for row in found["not_played"]:
        assert not row["failed"]
        assert "No space left on device" in row["reason"]
    text = verify("major-faults", around=around)
    assert text.returncode == 8
    assert "nothing of this could be tried here" in text.stdout


def test_where_the_document_cannot_be_written_is_found_before(tmp_path: Path) -> None:
    for place, code in ((tmp_path, 2), (tmp_path / "none" / "x.json", 2)):
        done = verify("timerfd", more=("-o", str(place)))
        assert done.returncode == code
        assert done.stdout == ""


def test_what_was_found_is_shown_where_its_document_had_no_room() -> None:
    done = verify("timerfd", more=("-o", "/dev/full"))
    assert done.returncode == 1
    assert "a timer" in done.stdout
    assert "/dev/full: No space left on device" in done.stderr
