# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from gpucorrelate.probes.agents import process
from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.wire.roles import role_of_process


def test_gil_region_holds_the_runtime_and_is_mapped():
    region = process.gil_region()
    assert region is not None
    assert region.address == ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    assert region.size_bytes > 100
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= region.address < high:
            break
    else:
        pytest.fail("not mapped")
    assert str(region) == f"0x{region.address:x}:{region.size_bytes}"


def test_every_thread_has_its_native_id_and_name():
    hold, native = threading.Event(), []

    def work():
        native.append(threading.get_native_id())
        hold.wait()

    thread = threading.Thread(target=work, name="a worker")
    thread.start()
    while not native:
        pass
    found = process.threads()
    hold.set()
    thread.join()
    assert found[0] == (os.getpid(), "MainThread")
    assert (native[0], "a worker") in found
    assert (native[0], "a worker") not in process.threads()


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("EngineCore_DP0", "core"),
        ("VllmWorker-1", "worker"),
        ("ApiServer_2", "api"),
        ("MainProcess", ""),
        ("", ""),
    ],
)
def test_role_from_the_name_of_the_process(name, role):
    assert role_of_process(name) == role


@pytest.mark.parametrize(
    ("roles", "name"),
    [(["core"], "core"), (["api"], "api"), (["worker"], "worker"), (["api", "core"], "inproc")],
)
def test_role_from_what_was_seen(tmp_path, roles, name):
    agent = Agent("vllm", str(tmp_path / "nobody"))
    for role in roles:
        agent.role(role)
    assert agent.role_name() == name


def test_threads_are_stated_when_new_or_changed_only(tmp_path):
    agent = Agent("vllm", str(tmp_path / "nobody"))
    agent.role("worker")
    agent.rank(3)
    agent.refresh()
    first = agent.rows("thread").take()
    assert (os.getpid(), "MainThread", "worker3.main") in first
    agent.refresh()
    assert agent.rows("thread").take() == []
    hold = threading.Event()
    thread = threading.Thread(target=hold.wait, name="WorkerAsyncOutputCopy")
    thread.start()
    agent.refresh()
    hold.set()
    thread.join()
    assert agent.rows("thread").take() == [
        (thread.native_id, "WorkerAsyncOutputCopy", "worker3.output")
    ]
