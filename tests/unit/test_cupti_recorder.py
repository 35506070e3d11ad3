# SPDX-License-Identifier: Apache-2.0
"""The GPU agent as part of the agent: windows, what it says of itself, and what it makes way for.

The shim is a test build whose records are made by hand; the agent, its sender and the frames it
sends are the real ones.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.control import Start, Stop
from gpucorrelate.probes.agents.cupti import profilers
from gpucorrelate.probes.agents.cupti.recorder import PART, Found, look
from gpucorrelate.probes.agents.cupti.shim import Refused
from gpucorrelate.probes.agents.cupti.versions import caution, gate
from gpucorrelate.probes.agents.transport import Pace
from gpucorrelate.probes.wire.gpu import NO_GPU, GpuMode, GpuPlan
from gpucorrelate.probes.wire.schema import CapabilityState, WorkerPhase
from tests.unit.agent_peer import Listener, Peer, wait_until
from tests.unit.cupti_records import Buffer
from tests.unit.test_cupti_shim import SMALL, Fed, build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUICK = Pace(tick_s=0.005, connect_s=0.02, orphan_s=30)
SHORT = GpuPlan(GpuMode.WINDOW, window_ms=100, every_ms=250)
LONG = GpuPlan(GpuMode.WINDOW, window_ms=600_000, every_ms=600_000)
ON, DEGRADED, OFF = CapabilityState.ON, CapabilityState.DEGRADED, CapabilityState.OFF
HAS_GPU = Found(driver=True, cupti="/opt/libcupti.so.13")
VERSION = 130_500


class FedTracer(Fed):
    """A shim of a version that is fed by hand and may refuse."""

    told_version = VERSION

    @property
    def version(self) -> int:
        return self.told_version

    def refuse(self, code: int) -> None:
        self.library.gcu_test_refuse(code)


class Scene:
    """An agent, its daemon's end, and the shim that its recorder is given."""

    def __init__(self, library: Path, folder: Path, found: Found = HAS_GPU) -> None:
        self.listener = Listener(folder / "ingest.sock")
        self.shim = FedTracer(library)
        self.shim.open(None, SMALL)
        self.shim.refuse(0)
        self.agent = Agent("vllm", str(folder / "ingest.sock"), QUICK)
        self.found = found
        self.agent.gpu._find = lambda: self.found
        self.agent.gpu._make = lambda *_: cast("Any", self.shim)
        self.agent.transport.run()
        self.peer: Peer = self.listener.accept()

    def start(self, plan: GpuPlan) -> None:
        self.peer.tell(Start("s", plan))
        wait_until(lambda: self.agent.on)

    def rows(self, kind: str) -> list[tuple[Any, ...]]:
        return list(self.peer.rows.get(kind, ()))

    def states(self) -> list[tuple[CapabilityState, str]]:
        return [(CapabilityState(r[2]), r[3]) for r in self.rows("capability") if r[1] == PART]

    def until(self, done: Any) -> None:
        self.peer.read(done)

    def close(self) -> None:
        self.agent.transport.close()
        self.peer.close()
        self.listener.close()
        self.shim.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim") / "shim.so")


@pytest.fixture
def scene(library: Path, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(library, tmp_path)
    yield made
    made.close()


def covered(rows: list[tuple[Any, ...]]) -> dict[int, list[tuple[int, int]]]:
    """Window -> its stretches."""
    found: dict[int, list[tuple[int, int]]] = {}
    for window, start, end, _ in rows:
        found.setdefault(window, []).append((start, end))
    return found


def test_windows_are_stated_and_what_is_in_them_is_sent(scene: Scene) -> None:
    scene.start(SHORT)
    name = scene.shim.name(b"gemm")
    scene.until(lambda: scene.rows("gpu_window"))
    scene.shim.feed(Buffer(VERSION).kernel(name, 100, 200, correlation=11).data)
    scene.until(lambda: len(covered(scene.rows("gpu_window"))) >= 3)
    kernels = scene.rows("gpu_op")
    assert [(row[0], row[5], row[6], row[9], row[10]) for row in kernels] == [
        (os.getpid(), "gemm", 11, 100, 200)
    ]
    windows = covered(scene.rows("gpu_window"))
    assert list(windows) == list(range(1, len(windows) + 1))
    begins = [parts[0][0] for parts in windows.values()]
    for number, parts in windows.items():
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts)), "no hole"
        if number < len(windows):
            whole = parts[-1][1] - parts[0][0]
            assert whole >= SHORT.window_ms * 1_000_000
            following = windows[number + 1][0][0]
            assert following - parts[-1][1] > 0, "a pause"
    assert all(b - a >= SHORT.every_ms * 900_000 for a, b in itertools.pairwise(begins))
    assert scene.states() == [(ON, "the GPU is recorded in windows of 0.1 s, one every 0.25 s")]


def test_nothing_is_done_and_said_where_it_is_not_asked_for(scene: Scene) -> None:
    scene.agent.gpu._find = lambda: pytest.fail("it looked")
    scene.start(NO_GPU)
    scene.peer.read_for(0.2)
    assert scene.states() == []
    assert scene.rows("gpu_window") == []


def test_a_process_without_a_gpu_says_nothing(scene: Scene) -> None:
    scene.found = Found(driver=False, cupti=None)
    scene.start(SHORT)
    scene.peer.read_for(0.2)
    assert scene.states() == []
    assert not look().driver, "none is in this one"


def test_a_gpu_without_cupti_is_told(scene: Scene) -> None:
    scene.found = Found(driver=True, cupti=None)
    scene.start(SHORT)
    scene.until(scene.states)
    ((state, why),) = scene.states()
    assert state is OFF
    assert why.startswith("no CUPTI in this process")


def test_somebody_elses_profiler_is_told_and_the_window_tried_again(scene: Scene) -> None:
    scene.shim.refuse(Refused.BUSY)
    scene.start(SHORT)
    scene.until(scene.states)
    ((state, why),) = scene.states()
    assert state is DEGRADED
    assert why.startswith("no window now: ")
    assert scene.rows("gpu_window") == []
    scene.shim.refuse(0)
    scene.until(lambda: scene.rows("gpu_window"))
    assert scene.states()[-1][0] is ON


def test_a_profile_of_the_programs_own_shuts_the_window_first(scene: Scene) -> None:
    """``torch.autograd.profiler`` as it is built, a class with the two methods."""
    seen: list[bool] = []
    gpu = scene.agent.gpu

    class profile:
        def _prepare_trace(self) -> None:
            seen.append(gpu._windows.began_ns > 0)

        def __exit__(self, *_: object) -> None:
            seen.append(gpu._windows.began_ns > 0)

    module = type("module", (), {"profile": profile})
    profilers.install(gpu, module)  # type: ignore[arg-type]
    profilers.install(gpu, module)  # type: ignore[arg-type]
    scene.start(GpuPlan(GpuMode.WINDOW, window_ms=600_000, every_ms=100))
    scene.until(lambda: scene.rows("gpu_window"))
    made = profile()
    thread = threading.Thread(target=made._prepare_trace)
    thread.start()
    thread.join(10)
    assert seen == [False], "the window was shut before the profile began"
    scene.peer.read_for(0.3)
    windows = len(covered(scene.rows("gpu_window")))
    scene.peer.read_for(0.3)
    assert len(covered(scene.rows("gpu_window"))) == windows, "and stays shut"
    made.__exit__()
    scene.until(lambda: len(covered(scene.rows("gpu_window"))) > windows)


def test_stop_ends_the_window_and_start_begins_anew(scene: Scene) -> None:
    scene.start(LONG)
    scene.until(lambda: scene.rows("gpu_window"))
    scene.peer.tell(Stop())
    wait_until(lambda: not scene.agent.on)
    assert scene.agent.gpu._windows.began_ns == 0
    scene.peer.read_for(0.05)
    count = len(scene.rows("gpu_window"))
    scene.peer.read_for(0.1)
    assert len(scene.rows("gpu_window")) == count
    scene.start(LONG)
    scene.until(lambda: 2 in covered(scene.rows("gpu_window")))


def test_windows_end_for_good_when_steps_get_longer_in_them(scene: Scene) -> None:
    plan = GpuPlan(GpuMode.WINDOW, window_ms=150, every_ms=300, budget_ppm=50_000)
    put, gpu = scene.agent.rows("worker_step").put, scene.agent.gpu
    scene.start(plan)
    stop, end = threading.Event(), time.monotonic() + 60

    def loop() -> None:
        number, at = 0, time.monotonic_ns()
        while not stop.wait(0.001) and time.monotonic() < end:
            # Steps follow the clock, and take twice as long while a window is on.
            while at < time.monotonic_ns():
                number += 1
                length = 1_000_000 if gpu._windows.began_ns else 500_000
                put((number, 1, 0, int(WorkerPhase.EXECUTE), at, at + 1000, 0))
                put((number, 1, 0, int(WorkerPhase.SAMPLE), at + 1000, at + 2000, 0))
                at += length

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        scene.until(lambda: any(state is OFF for state, _ in scene.states()))
    finally:
        stop.set()
        thread.join()
    state, why = scene.states()[-1]
    assert state is OFF
    assert "longer while the GPU was recorded, more than the 5.0% allowed" in why
    scene.peer.read_for(0.1)
    windows = len(covered(scene.rows("gpu_window")))
    scene.peer.read_for(0.6)
    assert len(covered(scene.rows("gpu_window"))) == windows


def test_what_the_shim_could_not_keep_is_counted_by_the_agent(scene: Scene) -> None:
    scene.start(LONG)
    name = scene.shim.name(b"k")
    scene.until(lambda: scene.rows("gpu_window"))
    # Room for 16 chunks of 2,048 rows; the sender takes some meanwhile.
    many = Buffer(VERSION)
    for at in range(200):
        many.kernel(name, at, at + 1)
    fed = 0
    while not scene.agent.drops.count and fed < 2_000_000:
        for _ in range(200):
            scene.shim.feed(many.data)
            fed += 200
        scene.peer.read_for(0.001)
    counts = scene.shim.counts()
    assert counts.lost_rows > 0
    wait_until(lambda: scene.agent.drops.count == scene.shim.counts().lost_rows)
    want = fed - scene.shim.counts().lost_rows
    scene.until(lambda: len(scene.rows("gpu_op")) == want)


@pytest.mark.parametrize(
    ("version", "mode", "windows", "allowed"),
    [
        (28, GpuMode.WINDOW, 0, True),
        (28, GpuMode.WINDOW, 1, False),
        (130_000, GpuMode.WINDOW, 0, False),
        (130_001, GpuMode.NODES, 1, False),
        (130_101, GpuMode.NODES, 7, True),
        (130_301, GpuMode.ALWAYS, 0, False),
        (130_500, GpuMode.ALWAYS, 0, True),
    ],
)
def test_versions_with_known_faults_are_gated(
    version: int, mode: GpuMode, windows: int, allowed: bool
) -> None:
    assert (gate(version, mode, windows) == "") is allowed
    assert bool(caution(version)) is (version < 130_101)


def test_a_version_with_a_fault_has_one_window_and_says_why(scene: Scene) -> None:
    scene.shim.told_version = 28
    scene.start(SHORT)
    scene.until(lambda: any(state is OFF for state, _ in scene.states()))
    assert [state for state, _ in scene.states()] == [DEGRADED, OFF]
    assert list(covered(scene.rows("gpu_window"))) == [1]


def test_after_a_fork_the_child_leaves_the_parents_window_alone(scene: Scene) -> None:
    scene.start(LONG)
    scene.until(lambda: scene.rows("gpu_window"))
    pid = os.fork()
    if pid == 0:
        scene.agent.reborn()
        gpu = scene.agent.gpu
        right = gpu._tracer is None and not gpu._windows.began_ns and not gpu._slices.take()
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    count = len(scene.rows("gpu_window"))
    scene.until(lambda: len(scene.rows("gpu_window")) > count)
