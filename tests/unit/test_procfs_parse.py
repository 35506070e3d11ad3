# SPDX-License-Identifier: Apache-2.0
"""Processes and threads read from procfs: odd names, saved trees, this very process."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.host import procfs
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from pathlib import Path

STAT = (
    "{pid} ({comm}) {state} {ppid} 100 100 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 7 0 {start} 1 2 3 4\n"
)


def stat_text(pid: int = 42, comm: str = "x", state: str = "S", ppid: int = 1, flags: int = 0,
              start: int = 1000) -> str:  # fmt: skip
    return STAT.format(pid=pid, comm=comm, state=state, ppid=ppid, flags=flags, start=start)


@pytest.mark.parametrize("comm", ["x", "a b", ") S 1", "(((", "VLLM::EngineCor", "é) (", ""])
def test_a_name_may_hold_anything(comm: str) -> None:
    stat = procfs.parse_stat(stat_text(comm=comm))
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (42, comm, "S", 1)
    assert (stat.threads, stat.start_ticks) == (7, 1000)


@pytest.mark.parametrize("text", ["", "garbage", "1 (x", "1 x) S", "1 (x) S 1"])
def test_what_is_no_stat_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a stat file"):
        procfs.parse_stat(text)


def test_states_and_flags() -> None:
    assert procfs.parse_stat(stat_text(state="R")).alive
    assert not procfs.parse_stat(stat_text(state="Z")).alive
    assert not procfs.parse_stat(stat_text(state="X")).alive
    assert procfs.parse_stat(stat_text(flags=0x0020_8040)).kernel_thread
    assert not procfs.parse_stat(stat_text(flags=0x0040_0000)).kernel_thread


def test_a_status_file_tells_ids_in_every_namespace() -> None:
    text = (
        "Name:\tpython\nTgid:\t7\nUid:\t1\t2\t3\t4\nNStgid:\t7\t1\nNSpid:\t9\t3\n"
        "CapEff:\t0000008000000004\n"
    )
    status = procfs.parse_status(text)
    assert status.uids == (1, 2, 3, 4)
    assert status.ns_pids == (9, 3)
    assert status.ns_tgids == (7, 1)
    assert status.cap_effective == 1 << 39 | 4
    assert procfs.parse_status("").ns_pids == ()


def test_a_name_cannot_look_like_another_line_of_a_status_file() -> None:
    """The kernel escapes line feeds in it, but not what else Python takes for a line's end."""
    for end in "\x0b\x0c\x1c\x1d\x1e\x85\u2028":
        name = f"a{end}CapEff:\tzz"
        status = procfs.parse_status(f"Name:\t{name}\nTgid:\t7\n")
        assert status.name == name
        assert (status.tgid, status.cap_effective) == (7, 0)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("vllm", "serve", "model"), "vllm serve model"),
        (("vllm", "--api-key", "abc", "x"), "vllm --api-key *** x"),
        (("vllm", "--api-key=abc", "x"), "vllm --api-key=*** x"),
        (("vllm", "--hf-token", "t"), "vllm --hf-token ***"),
        (("x", "--password=1"), "x --password=***"),
        (("x", "a\nb\tc"), "x a b c"),
        ((), ""),
    ],
)
def test_command_lines_are_shown_without_secrets(argv: tuple[str, ...], text: str) -> None:
    assert procfs.command_line(argv) == text


def test_long_command_lines_are_cut() -> None:
    assert len(procfs.command_line(("x" * 1000,), 50)) == 50


def test_arguments_are_cut_at_zero_bytes() -> None:
    assert procfs.parse_argv(b"a\0b c\0\0") == ("a", "b c")
    assert procfs.parse_argv(b"") == ()
    assert procfs.parse_argv(b"\xff\0") == ("�",)


def test_a_saved_tree_is_read_like_the_real_one(tmp_path: Path) -> None:
    for pid, ppid in ((10, 1), (11, 10), (12, 11)):
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (tmp_path / str(pid) / "stat").write_text(stat_text(pid, "p", "S", ppid))
        (tmp_path / str(pid) / "status").write_text("Name:\tp\nUid:\t5 5 5 5\n")
        (tmp_path / str(pid) / "cmdline").write_bytes(b"p\0-x\0")
        (task / "children").write_text(f"{pid + 1} " if pid < 12 else "")
        (task / "comm").write_text("name\n")
    (tmp_path / "self").mkdir()
    process = procfs.read_process(11, tmp_path)
    assert process is not None
    assert process.identity == (11, 1000)
    assert process.argv == ("p", "-x")
    assert process.owned_by(5)
    assert not process.owned_by(0)
    assert procfs.parents(tmp_path) == {10: 1, 11: 10, 12: 11}
    assert procfs.child_ids(10, tmp_path) == (11,)
    assert procfs.thread_ids(10, tmp_path) == (10,)
    assert procfs.read_comm(10, 10, tmp_path) == "name"
    assert procfs.read_process(13, tmp_path) is None
    assert procfs.thread_ids(13, tmp_path) == ()


def test_this_process_and_its_threads() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        me = procfs.read_process(os.getpid())
        assert me is not None
        assert me.owned_by(os.getuid())
        assert thread.native_id in procfs.thread_ids(os.getpid())
        status = procfs.read_status(os.getpid(), thread.native_id)
        assert status is not None
        assert status.tgid == os.getpid()
        assert status.ns_pids[0] == thread.native_id
    finally:
        go.set()
        thread.join()


def test_a_start_is_on_the_monotonic_clock() -> None:
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    before = time.monotonic_ns()
    child = subprocess.Popen(["/bin/sleep", "60"])
    after = time.monotonic_ns()
    try:
        stat = procfs.read_stat(child.pid)
        assert stat is not None
        start = procfs.start_ns(stat.start_ticks)
        assert before - 2 * tick_ns <= start <= after + 2 * tick_ns
        assert child.pid in procfs.child_ids(os.getpid()) or not procfs.has_child_files()
    finally:
        child.kill()
        wait_for(lambda: not getattr(procfs.read_stat(child.pid), "alive", True), "it is dead")
        child.wait()
    assert procfs.read_stat(child.pid) is None
