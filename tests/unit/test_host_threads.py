# SPDX-License-Identifier: Apache-2.0
"""Threads, processes and memory: files as kernels write them, trees, this very process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import process_metrics, processes, thread_metrics
from gpucorrelate.probes.host.kernel_text import NO_LIMIT, limit, number
from gpucorrelate.probes.host.reading import Metric
from gpucorrelate.probes.host.thread_group import ThreadLook
from gpucorrelate.probes.host.thread_roles import ThreadRoles, role_of
from gpucorrelate.probes.host.thread_text import (
    Schedstat,
    Switches,
    parse_schedstat,
    parse_switches,
    parse_task_stat,
    parse_wchan,
)
from gpucorrelate.probes.host.threads import ThreadPoller, ThreadRound
from gpucorrelate.probes.wire.roles import ROLE, GuessedRole, role_of_process
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.probes.host.reading import Change

#: Linux 6.18; 52 fields.
STAT = (
    "{tid} ({name}) {state} 1 7 7 0 -1 4194368 11 0 2 0 30 12 0 0 20 0 {threads} 0 5413652 3133440"
    " 383 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 {cpu} 0 {policy} 0 0 0 1 2 3 4 5 6 7 0\n"
)
#: Linux 6.18; since 2.6.23 the last two are there.
STATUS = (
    "Name:\tpython\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nCpus_allowed:\t3\n"
    "Cpus_allowed_list:\t{cpus}\nMems_allowed:\t1\nMems_allowed_list:\t0\n"
    "voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t4\n"
)
SMAPS_ROLLUP = (  # Linux 4.14 to 5.0: no parts of PSS yet
    "555da8cc4000-7fff9b8b4000 ---p 00000000 00:00 0                          [rollup]\n"
    "Rss:                1764 kB\nPss:                 231 kB\nShared_Clean:       1612 kB\n"
    "Swap:                  8 kB\nSwapPss:               4 kB\nLocked:                0 kB\n"
)
IO = (
    "rchar: 6976\nwchar: 1\nsyscr: 10\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 8192\n"
    "cancelled_write_bytes: 0\n"
)
MEMINFO = (
    "MemTotal:       24683656 kB\nMemFree:        15313664 kB\nMemAvailable:   23063648 kB\n"
    "Cached:          7583244 kB\nUnevictable:       18600 kB\nMlocked:           17592 kB\n"
    "HugePages_Total:       4\nDirectMap1G:    25165824 kB\n"
)


def put(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def thread(root: Path, tid: int, pid: int = 7, **changes: object) -> None:
    """Files of a thread, in the state of one that sleeps unless told otherwise."""
    known: dict[str, object] = {
        "name": "python", "state": "S", "threads": 1, "cpu": 3, "policy": 0, "cpus": "0-3",
        "voluntary": 9, "wchan": "futex_do_wait", "schedstat": "1000 200 5\n",
    } | changes  # fmt: skip
    files = {
        "stat": STAT.format(tid=tid, **known),
        "status": STATUS.format(**known),
        "wchan": str(known["wchan"]),
        "schedstat": str(known["schedstat"]),
    }
    put(root / str(pid) / "task" / str(tid), files)
    if tid == pid:
        put(root / str(pid), files)


def numbers(found: ThreadRound) -> dict[tuple[str, str], int]:
    keys = [(r.subject, r.metric.name) for r in found.sample.readings]
    assert len(keys) == len(set(keys)), "a number told twice"
    return dict(zip(keys, (r.value for r in found.sample.readings), strict=True))


# Texts.


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-7", -7), ("9223372036854775807", 2**63 - 1), ("9223372036854775808", None),
     ("", None), ("-", None), ("--1", None), ("1_0", None), (" 1", None), ("1.0", None),
     ("\u0661", None), ("\u00b2", None), ("9" * 5000, None)],
)  # fmt: skip
def test_numbers(text: str, value: int | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["max", "-1", "9223372036854771712", "18446744073709551615"])
def test_no_limit_is_told_in_many_ways(text: str) -> None:
    assert limit(text, 1000) == NO_LIMIT


@pytest.mark.parametrize(("text", "value"), [("20000", 20_000_000), ("0", 0), ("maximal", None)])
def test_limits(text: str, value: int | None) -> None:
    assert limit(text, 1000) == value


def test_schedstat() -> None:
    assert parse_schedstat("124565 3014831 2\n") == Schedstat(124565, 3014831, 2)
    for text in ("", "1 2\n", "1 2 3", "1 2 x\n", "1 2 3 4\n", "0 0 -\n"):
        assert parse_schedstat(text) is None


@pytest.mark.parametrize("name", ["python", "a b", ") S 1", "(", "", "ZMQbg/IO/0"])
def test_stat_of_a_thread(name: str) -> None:
    text = STAT.format(tid=9, name=name, state="D", threads=4, cpu=1, policy=1)
    stat = parse_task_stat(text)
    assert stat is not None
    assert (stat.name, stat.state, stat.cpu, stat.policy) == (name, "D", 1, "fifo")
    assert (stat.minor_faults, stat.major_faults, stat.ticks) == (11, 2, 42)
    assert (stat.threads, stat.start_ticks) == (4, 5413652)


def test_a_stat_that_is_cut_or_none() -> None:
    text = STAT.format(tid=9, name="x", state="S", threads=1, cpu=1, policy=0)
    for bad in ("", "x", text[:-1], text[:40] + "\n", text.replace(" S ", " 7 ")):
        assert parse_task_stat(bad) is None
    old = parse_task_stat(" ".join(text.split()[:22]) + "\n")
    assert old is not None
    assert (old.cpu, old.policy) == (-1, "")


def test_switches_and_affinity() -> None:
    assert parse_switches(STATUS.format(cpus="2", voluntary=5)) == Switches(5, 4, 2)
    assert parse_switches(STATUS.format(cpus="0-1", voluntary=5)) == Switches(5, 4, -1)
    assert parse_switches(STATUS.format(cpus="0,2", voluntary="x")) == Switches(-1, 4, -1)
    assert parse_switches("") == Switches()
    assert parse_switches("voluntary_ctxt_switches:\t55") == Switches(), "cut"


@pytest.mark.parametrize(
    ("text", "name"),
    [("0", ""), ("", ""), ("futex_do_wait", "futex_do_wait"), ("0xffffffff81", ""),
     ("poll_schedule_timeout.constprop.0", "poll_schedule_timeout.constprop.0"), ("a b", "")],
)  # fmt: skip
def test_wchan(text: str, name: str) -> None:
    assert parse_wchan(text) == name


@pytest.mark.parametrize(
    "name",
    ["folio_wait_bit_common", "folio_wait_bit", "__folio_lock_or_retry", "wait_on_page_bit",
     "wait_on_page_bit_common", "wait_on_page_bit_killable", "__lock_page_killable",
     "sleep_on_page", "folio_wait_bit_common.isra.0"],
)  # fmt: skip
def test_waits_for_pages_by_their_names_in_kernels_old_and_new(name: str) -> None:
    assert thread_metrics.is_page_wait(name)


@pytest.mark.parametrize(
    "name", ["futex_do_wait", "do_epoll_wait", "", "pipe_read", "rq_qos_wait"]
)
def test_other_waits_are_not_for_pages(name: str) -> None:
    assert not thread_metrics.is_page_wait(name)


@given(st.binary(max_size=300))
def test_no_bytes_make_a_parser_raise(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_schedstat(text)
    parse_task_stat(text)
    parse_switches(text)
    parse_wchan(text)
    for parse in (
        processes.parse_io, processes.parse_meminfo, processes.parse_smaps_rollup,
        processes.parse_process_stat,
    ):  # fmt: skip
        parse(text)


@given(st.integers(0, 300), st.binary(max_size=8))
def test_no_damage_to_a_real_file_makes_a_parser_raise(at: int, noise: bytes) -> None:
    mark = noise.decode("utf-8", "replace")
    stat = STAT.format(tid=9, name="x", state="S", threads=1, cpu=1, policy=0)
    for whole, parse in (
        (stat, parse_task_stat), (stat, processes.parse_process_stat),
        (STATUS.format(cpus="0", voluntary=1), parse_switches),
        (SMAPS_ROLLUP, processes.parse_smaps_rollup), (MEMINFO, processes.parse_meminfo),
    ):  # fmt: skip
        parse(whole[:at] + mark + whole[at + len(mark) :])
        parse(whole[:at])


def test_sizes_become_bytes_and_counts_stay() -> None:
    found = {v.metric.name: v.value for v in processes.parse_meminfo(MEMINFO).values}
    assert found["MemAvailable"] == 23063648 * 1024
    assert found["Mlocked"] == 17592 * 1024
    assert found["HugePages_Total"] == 4
    found = {v.metric.name: v.value for v in processes.parse_smaps_rollup(SMAPS_ROLLUP).values}
    assert found == {
        "process.rss": 1764 * 1024, "process.pss": 231 * 1024, "process.swap": 8192,
        "process.swap.pss": 4096, "process.locked": 0,
    }  # fmt: skip
    found = {v.metric.name: v.value for v in processes.parse_io(IO).values}
    assert found["process.io.read_bytes"] == 4096


@pytest.mark.parametrize("module", [thread_metrics, process_metrics])
def test_metrics_are_named_once_and_say_what_they_are(module: object) -> None:
    found = [m for m in vars(module).values() if isinstance(m, Metric)]
    for table in vars(module).values():
        found += table.values() if isinstance(table, dict) and "MemFree" in table else []
    assert len({m.name for m in found}) == len(found) >= 4
    assert all(m.meaning.endswith(".") for m in found)


# Roles.


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("VLLM::EngineCore_DP0", "core"), ("VLLM::EngineCor", "core"), ("EngineCore_0", "core"),
        ("VLLM::Worker_TP0", "worker"), ("VLLM::Worker", "worker"), ("VllmWorker-1", "worker"),
        ("VLLM::APIServer_0", "api"), ("/e/bin/python /e/bin/vllm serve m", "api"),
        ("python -m vllm.entrypoints.openai.api_server", "api"),
        ("VLLM::DPCoordin", "coordinator"), ("python", ""), ("kworker/0:1", ""), ("", ""),
        ("gunicorn: worker [app]", ""),
    ],
)  # fmt: skip
def test_roles_of_processes(name: str, role: str) -> None:
    assert role_of_process(name) == role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ZMQbg/IO/0", "core.zmq"), ("ZMQbg/Reaper", "core.zmq"),
        ("cuda-EvtHandlr", "core.cuda"), ("cuda00001400006", "core.cuda"),
        ("[NSys Comms]", "core.cupti"), ("CUPTI worker", "core.cupti"),
        ("gloo_tcp_loop", "core.gloo"), ("pt_gloo_runloop", "core.gloo"),
        ("pt_autograd_0", "core.autograd"), ("WorkerAsyncOutputCopy", "core.output"),
        ("EngineCoreOutputQueueThread", "core.output"), ("MPClientEngineMonitor", "core.monitor"),
        ("gpucorrelate", "core.agent"), ("iou-sqp-77", "core.io_uring"),
        ("python", ""), ("ThreadPoolExecutor-0_0", ""), ("cudagraph", ""), ("", ""),
    ],
)  # fmt: skip
def test_roles_of_threads(name: str, role: str) -> None:
    found = role_of(name, "core", leader_name="python")
    assert found == (GuessedRole(role, "name") if role else None)
    alone = role_of(name)
    assert (alone.role if alone else "") == role.removeprefix("core.")


def test_the_first_thread_runs_the_loop_of_its_process() -> None:
    assert role_of("vllm", "api", leader=True) == GuessedRole("api.main", "name")
    assert role_of("python", leader=True) is None, "of what process is not known"


def test_a_pool_is_told_by_a_cpu_of_its_own() -> None:
    """A thread inherits its maker's CPUs: the first thread's one is no sign of a pool."""

    def role(pinned: int) -> GuessedRole | None:
        return role_of("w", "worker", leader_name="w", pinned_cpu=pinned, leader_cpu=0)

    assert role(2) == GuessedRole("worker.openmp", "behaviour")
    assert role(0) is None
    assert role(-1) is None


@pytest.mark.parametrize("name", ["comp_0", "decomp-1", "COMP", "prompt"])
def test_names_that_only_contain_a_pools_are_not_its(name: str) -> None:
    assert role_of(name) is None


@pytest.mark.parametrize("name", ["pt_omp_1", "omp_worker", "OMP", "iomp-3", "torch-omp"])
def test_names_of_pools(name: str) -> None:
    assert role_of(name) == GuessedRole("openmp", "name")


@given(st.text())
def test_a_guess_is_read_back_and_nothing_else_is_one(text: str) -> None:
    found = GuessedRole.parse(text)
    assert found is None or found.text == text
    for guess in (GuessedRole("core.zmq", "name"), GuessedRole("openmp", "behaviour")):
        assert GuessedRole.parse(guess.text) == guess


def a_look(pid: int, tid: int, name: str, pinned: int = -1) -> ThreadLook:
    return ThreadLook(pid, tid, name, "S", "", 0, pinned, "other", 5)


def told(changes: tuple[Change, ...]) -> set[tuple[str, str, str, int]]:
    assert all(one.what == ROLE for one in changes)
    return {(one.subject, one.before, one.after, one.since_ns) for one in changes}


def test_roles_are_told_once_and_follow_names(tmp_path: Path) -> None:
    """A process has its name only once it has set its title; of threads nothing but changes."""
    roles = ThreadRoles(tmp_path)
    first = [a_look(7, 8, "ZMQbg/IO/0"), a_look(7, 7, "python"), a_look(7, 9, "python", 3)]
    assert told(roles.update(first, (7,), (), 0, 10)) == {
        ("tid:8", "", "zmq (guessed by its name)", 0),
        ("tid:9", "", "openmp (guessed by its behaviour)", 0),
    }
    assert roles.update(first, (7,), (), 10, 20) == ()
    titled = [a_look(7, 7, "VLLM::Worker")]
    assert told(roles.update(titled, (7,), (), 20, 30)) == {
        ("tid:7", "", "worker.main (guessed by its name)", 0),
        ("tid:8", "zmq (guessed by its name)", "worker.zmq (guessed by its name)", 20),
        # It has another name than the first thread now: nothing says that it is a pool's.
        ("tid:9", "openmp (guessed by its behaviour)", "", 20),
    }
    assert roles.of(7, 8) == GuessedRole("worker.zmq", "name")
    assert roles.of(7, 9) is roles.of(8, 8) is None
    assert roles.part(7) == "worker"


def test_roles_of_what_has_ended_are_taken_back(tmp_path: Path) -> None:
    roles = ThreadRoles(tmp_path)
    roles.update([a_look(7, 7, "VLLM::Worker"), a_look(7, 8, "ZMQbg")], (7,), (), 0, 10)
    assert told(roles.update((), (7,), (8, 99), 10, 20)) == {
        ("tid:8", "worker.zmq (guessed by its name)", "", 10)
    }
    assert told(roles.update((), (), (), 20, 30)) == {
        ("tid:7", "worker.main (guessed by its name)", "", 20)
    }
    assert roles.update((), (), (), 30, 40) == ()


def test_a_poller_tells_which_threads_ended(tmp_path: Path) -> None:
    thread(tmp_path, 7, threads=2)
    thread(tmp_path, 8, name="ZMQbg/IO/0")
    poller = ThreadPoller(tmp_path)
    assert poller.poll((7,)).gone == ()
    shutil.rmtree(tmp_path / "7/task/8")
    thread(tmp_path, 7, threads=1)
    assert poller.poll((7,)).gone == (8,)
    assert poller.poll((7,)).gone == ()


def test_own_native_threads_have_roles_by_name() -> None:
    """Real threads that set their kernel names as ZMQ's do."""
    inside, out = threading.Event(), threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("ZMQbg/IO/7")
        inside.set()
        out.wait(30)

    one = threading.Thread(target=run)
    one.start()
    poller, roles = ThreadPoller(), ThreadRoles()
    try:
        assert inside.wait(30)
        found = poller.poll((os.getpid(),))
        roles.update(found.looks, (os.getpid(),), found.gone, 0, found.t_ns)
        assert one.native_id is not None
        guess = roles.of(os.getpid(), one.native_id)
        assert guess == GuessedRole("zmq", "name")
    finally:
        out.set()
        one.join()
        poller.close()


# Trees.


def test_a_sleeping_thread_is_read_once_and_a_running_one_each_time(tmp_path: Path) -> None:
    thread(tmp_path, 7, threads=2)
    thread(tmp_path, 8, name="ZMQbg/IO/0", wchan="folio_wait_bit_common", policy=5, cpus="2")
    poller = ThreadPoller(tmp_path, turns=1000)
    first = poller.poll((7,))
    assert first.sample.missing == ()
    assert numbers(first) == {
        (f"tid:{tid}", f"thread.{name}"): value
        for tid in (7, 8)
        for name, value in {
            "cpu": 1000, "run_delay": 200, "timeslices": 5, "voluntary_switches": 9,
            "involuntary_switches": 4, "minor_faults": 11, "major_faults": 2, "last_cpu": 3,
        }.items()
    }  # fmt: skip
    look = {look.tid: look for look in first.looks}[8]
    assert (look.pid, look.name, look.state, look.cpu) == (7, "ZMQbg/IO/0", "S", 3)
    assert (look.policy, look.pinned_cpu) == ("idle", 2)
    assert look.waits_for_page
    assert not {look.tid: look for look in first.looks}[7].waits_for_page
    poller.poll((7,))  # the turn of the second
    thread(tmp_path, 8, voluntary=10)
    assert poller.poll((7,)).looks == (), "it has not run: nothing can be new"
    thread(tmp_path, 8, voluntary=11, schedstat="1500 200 6\n")
    later = poller.poll((7,))
    assert numbers(later) == {
        ("tid:8", "thread.cpu"): 1500, ("tid:8", "thread.timeslices"): 6,
        ("tid:8", "thread.voluntary_switches"): 11,
    }  # fmt: skip
    assert first.t_ns < later.since_ns < later.t_ns <= later.looks[0].t_ns
    thread(tmp_path, 8, state="R", wchan="0", schedstat="1600 200 6\n")
    assert [look.state for _ in range(3) for look in poller.poll((7,)).looks] == ["R"] * 3
    assert len(numbers(poller.poll((7,), everything=True))) == 16
    poller.close()


def test_names_given_by_others_are_noticed_in_time(tmp_path: Path) -> None:
    thread(tmp_path, 7)
    poller = ThreadPoller(tmp_path, turns=5)
    poller.poll((7,))
    thread(tmp_path, 7, name="renamed")
    looks = [look.name for _ in range(5) for look in poller.poll((7,)).looks]
    assert looks == ["renamed"]
    poller.close()


def test_threads_come_and_go(tmp_path: Path) -> None:
    thread(tmp_path, 7, threads=1)
    poller = ThreadPoller(tmp_path, max_files=0)
    poller.poll((7,))
    thread(tmp_path, 7, threads=2)
    thread(tmp_path, 8)
    assert [look.tid for look in poller.poll((7,)).looks if look.tid == 8] == [8]
    # One goes and another comes: the count stays.
    shutil.rmtree(tmp_path / "7/task/8")
    thread(tmp_path, 9)
    assert [look.tid for look in poller.poll((7,)).looks if look.tid == 9] == [9]
    poller.close()


def test_a_file_that_vanishes_mid_way_is_no_error(tmp_path: Path) -> None:
    thread(tmp_path, 7, threads=2)
    thread(tmp_path, 8)
    (tmp_path / "7/task/8/status").unlink()
    poller = ThreadPoller(tmp_path, max_files=0)
    assert [look.tid for look in poller.poll((7,)).looks] == [7]
    thread(tmp_path, 8)
    assert [look.tid for look in poller.poll((7,)).looks] == [8]
    shutil.rmtree(tmp_path / "7")
    found = poller.poll((7,))
    assert [(m.subject, m.reason) for m in found.sample.missing] == [("pid:7", "no such file")]
    assert poller.poll((7,)).sample.missing == ()
    poller.close()


def test_a_kernel_that_does_not_count_is_named(tmp_path: Path) -> None:
    thread(tmp_path, 7, schedstat="0 0 0\n")
    found = ThreadPoller(tmp_path).poll((7,))
    assert [m.what for m in found.sample.missing] == ["thread.run_delay"]
    n = numbers(found)
    assert n["tid:7", "thread.cpu"] == 42 * 10**9 // os.sysconf("SC_CLK_TCK")
    assert ("tid:7", "thread.run_delay") not in n, "unknown is not zero"


def test_a_kernel_that_tells_no_places_is_named(tmp_path: Path) -> None:
    thread(tmp_path, 7, wchan="0")
    poller = ThreadPoller(tmp_path)
    assert [m.what for m in poller.poll((7,)).sample.missing] == ["wchan"]
    assert poller.poll((7,)).sample.missing == ()
    poller.close()


def test_threads_beyond_the_most_are_counted(tmp_path: Path) -> None:
    for tid in range(7, 12):
        thread(tmp_path, tid, threads=5)
    found = ThreadPoller(tmp_path, max_threads=2).poll((7,))
    assert [look.tid for look in found.looks] == [7, 8]
    assert [m.reason for m in found.sample.missing] == ["3 more than the 2 that are read"]


@given(st.binary(max_size=80))
def test_no_bytes_in_proc_make_it_raise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    root = tmp_path_factory.mktemp("proc")
    thread(root, 7)
    for name in ("stat", "status", "wchan", "schedstat"):
        (root / "7/task/7" / name).write_bytes(data)
    for name in ("stat", "io", "smaps_rollup"):
        (root / "7" / name).write_bytes(data)
    ThreadPoller(root).poll((7,))
    processes.ProcessPoller(root).poll((7,))


def process(root: Path) -> None:
    thread(root, 7)
    put(root / "7", {"io": IO, "smaps_rollup": SMAPS_ROLLUP})


def test_pages_are_walked_seldom_and_the_rest_each_time(tmp_path: Path) -> None:
    process(tmp_path)
    poller = processes.ProcessPoller(tmp_path, walk_every_ns=10**15)
    first = poller.poll((7,))
    assert first.missing == ()
    assert {r.metric.name for r in first.readings} >= {"process.pss", "process.io.rchar"}
    put(tmp_path / "7", {"io": IO.replace("6976", "6977"), "smaps_rollup": "Pss: 1 kB\n"})
    assert [r.metric.name for r in poller.poll((7,)).readings] == ["process.io.rchar"]
    later = {r.metric.name: r.value for r in poller.poll((7,), everything=True).readings}
    assert later["process.pss"] == 1024
    poller.close()
    never = processes.ProcessPoller(tmp_path, walk_every_ns=0)
    assert not any("pss" in r.metric.name for r in never.poll((7,)).readings)
    never.close()


def test_a_process_that_goes_is_missing(tmp_path: Path) -> None:
    process(tmp_path)
    poller = processes.ProcessPoller(tmp_path, max_files=0)
    (tmp_path / "7/io").unlink()
    assert [(m.what, m.reason) for m in poller.poll((7,)).missing] == [
        ("/proc/PID/io", "no such file")
    ]
    shutil.rmtree(tmp_path / "7")
    told = [m for _ in range(4) for m in poller.poll((7,)).missing]
    assert {m.subject for m in told} == {"pid:7"}
    assert len(told) <= 2
    poller.close()


def test_memory_of_the_machine(tmp_path: Path) -> None:
    put(tmp_path, {"meminfo": MEMINFO})
    poller = processes.MemoryPoller(tmp_path)
    assert len(poller.poll().readings) == 7
    put(tmp_path, {"meminfo": MEMINFO.replace("17592", "17593")})
    assert [r.metric.name for r in poller.poll().readings] == ["Mlocked"]
    poller.close()
    (missing,) = processes.MemoryPoller(tmp_path / "none").poll().missing
    assert missing.what == "/proc/meminfo"


# This machine.


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Twenty threads that wait."""
    code = (
        "import threading as t; e = t.Event()\n"
        "for _ in range(19): t.Thread(target=e.wait, daemon=True).start()\n"
        "print(flush=True); e.wait(60)"
    )
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert made.stdout is not None
    made.stdout.readline()
    yield made
    made.kill()
    made.wait()
    made.stdout.close()


def test_a_real_process_agrees_with_psutil(child: subprocess.Popen[bytes]) -> None:
    poller = ThreadPoller()
    wait_for(
        lambda: all(look.wchan for look in poller.poll((child.pid,), everything=True).looks),
        "all threads to sleep",
    )
    found = poller.poll((child.pid,), everything=True)
    n = numbers(found)
    seen = psutil.Process(child.pid)
    assert {look.tid for look in found.looks} == {item.id for item in seen.threads()}
    assert len(found.looks) == 20
    switches = seen.num_ctx_switches()  # of the first thread
    assert n[f"tid:{child.pid}", "thread.voluntary_switches"] == switches.voluntary
    assert n[f"tid:{child.pid}", "thread.involuntary_switches"] == switches.involuntary
    cpu_s = sum(value for (_, name), value in n.items() if name == "thread.cpu") / 1e9
    used = seen.cpu_times()
    ticks = 2 / os.sysconf("SC_CLK_TCK")
    assert abs(cpu_s - used.user - used.system) <= ticks, "but for what psutil rounds"
    quiet = poller.poll((child.pid,))
    assert quiet.sample.readings == ()
    poller.close()

    whole = processes.ProcessPoller().poll((child.pid,))
    w = {r.metric.name: r.value for r in whole.readings}
    memory, io = seen.memory_full_info(), seen.io_counters()
    assert whole.missing == ()
    # Who else maps the same files changes all the time.
    assert 0.7 < w["process.pss"] / memory.pss < 1.4
    assert w["process.io.rchar"] == io.read_chars
    assert w["process.io.read_bytes"] == io.read_bytes
    assert w["process.threads"] == 20


def test_descriptors_are_given_back(child: subprocess.Popen[bytes]) -> None:
    before = psutil.Process().num_fds()
    poller, whole, memory = ThreadPoller(), processes.ProcessPoller(), processes.MemoryPoller()
    for _ in range(6):
        poller.poll((child.pid, 1 << 22), everything=True)
        whole.poll((child.pid, 1 << 22))
        memory.poll()
    assert psutil.Process().num_fds() > before + 20
    child.kill()
    child.wait()
    assert poller.poll((child.pid,)).sample.missing
    for each in (poller, whole, memory):
        each.close()
    assert psutil.Process().num_fds() == before


def test_this_process_too_may_be_looked_at() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    poller = ThreadPoller()
    looks = {look.tid: look for look in poller.poll((os.getpid(),)).looks}
    assert looks[threading.get_native_id()].state == "R"
    assert other.native_id in looks
    done.set()
    other.join()
    poller.close()
