# SPDX-License-Identifier: Apache-2.0
"""The GPU agent of one process: finds CUPTI, opens and shuts windows, tells what it did.

Everything here runs in the process's sender, except ``make_way``: the thread of a program that is
about to begin profiling itself waits there until the window is shut.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpucorrelate.probes.agents.buffers import Rows
from gpucorrelate.probes.agents.cupti import lab, versions
from gpucorrelate.probes.agents.cupti.shim import (
    KINDS,
    Counts,
    Refused,
    Settings,
    Shim,
    ShimError,
    Window,
    driver_mapped,
    mapped,
)
from gpucorrelate.probes.agents.cupti.windows import Action, Windows
from gpucorrelate.probes.wire.gpu import NO_GPU, GpuMode, GpuPlan
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpucorrelate.probes.agents.buffers import Buffer, Drops, Row
    from gpucorrelate.probes.agents.transport import Source
    from gpucorrelate.probes.wire.frame import StringTable
    from gpucorrelate.probes.wire.schema import Kind

#: The part of the agent, as in ``capability`` rows.
PART = "cupti"

#: A process without CUDA is looked at again this often: engines load it late.
_LOOK_NS = 5_000_000_000
_STEP_PHASE, _STEP_START = map(BY_NAME["worker_step"].index, ("phase", "start_ns"))
#: A program that begins to profile itself waits this long for our window's end.
_WAY_S = 5.0

_WHAT = {
    GpuMode.WINDOW: Window.GRAPHS | Window.SYNCS | Window.CALLS,
    GpuMode.NODES: Window.NODES | Window.SYNCS | Window.CALLS,
    GpuMode.ALWAYS: Window.GRAPHS | Window.SYNCS | Window.CALLS,
    GpuMode.LAB: Window.GRAPHS | Window.SYNCS | Window.CALLS,
}


class Tracer(Protocol):
    """What records: the shim, or NVIDIA's Python package in lab mode."""

    @property
    def version(self) -> int:
        """CUPTI's version."""

    def begin(self, what: Window) -> None:
        """Begin a window.

        Raises:
            ShimError: it cannot.
        """

    def end(self) -> None:
        """End it, and bring what was under way."""

    def flush(self, *, whole: bool) -> None:
        """Bring what is complete."""

    def counts(self) -> Counts:
        """What was seen and lost so far."""

    def rows(self, name: str) -> Source:
        """Rows of a kind that wait."""

    def close(self) -> bool:
        """Let go of everything; False: not yet possible."""


@dataclass(frozen=True)
class Found:
    """What a process has of CUDA.

    Attributes:
        driver: Whether its driver is in it: without one nothing may be asked of CUPTI.
        cupti: Path of CUPTI as it is mapped; None: it is not.
    """

    driver: bool
    cupti: str | None


def look() -> Found:
    """At this process; its maps are long and are read only when the driver is in it."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return Found(driver=False, cupti=None)
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        lines = list(maps)
    return Found(driver_mapped(lines), mapped(lines))


def make_tracer(found: Found, mode: GpuMode) -> Tracer:
    """What records by the CUPTI that is there.

    Raises:
        ShimError: it does not serve this CUPTI.
        OSError: the shim is not built.
    """
    if mode is GpuMode.LAB:
        return lab.make_lab()
    shim = Shim()
    if found.cupti is None:
        raise ShimError(Refused.NO_LIBRARY, "CUPTI is not in this process")
    shim.open(found.cupti, Settings())
    try:
        shim.check_layout(found.cupti)
    except ShimError:
        shim.close()
        raise
    return shim


class WaitingRows:
    """Rows of one kind that wait in the tracer, whichever it is; a source of the transport."""

    def __init__(self, name: str) -> None:
        self.kind: Kind = BY_NAME[name]
        self._name = name
        self._rows: Source | None = None

    def follow(self, tracer: Tracer | None) -> None:
        """Take rows from this tracer from now on."""
        self._rows = tracer.rows(self._name) if tracer is not None else None

    def __len__(self) -> int:
        """Rows that wait."""
        return len(self._rows) if self._rows is not None else 0

    def take(self) -> list[Any]:
        """Remove and return what is there."""
        return self._rows.take() if self._rows is not None else []

    def columns(self, rows: list[Any], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of what ``take`` returned."""
        return self._rows.columns(rows, strings) if self._rows is not None else (0, ())


class Recorder:
    """The GPU agent.

    Args:
        capability: Where to say how it stands.
        drops: The process's count of rows that were lost.
        find: Looks at the process.
        make: Makes what records.
    """

    def __init__(
        self,
        capability: Buffer[list[Row]],
        drops: Drops,
        find: Callable[[], Found] = look,
        make: Callable[[Found, GpuMode], Tracer] = make_tracer,
    ) -> None:
        self._capability = capability
        self._drops = drops
        self._find, self._make = find, make
        self._waiting = tuple(WaitingRows(name) for name in KINDS)
        self._slices = Rows(BY_NAME["gpu_window"], drops)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tracer: Tracer | None = None
        self._windows = Windows(NO_GPU)
        self._told: tuple[CapabilityState, str] | None = None
        self._looked_ns = self._slice_ns = 0
        self._number = 0
        self._lost = 0
        self._step_ns = 0
        self._profiling = 0
        self._shut = threading.Event()
        self._shut.set()
        self._lock = threading.Lock()

    @property
    def sources(self) -> Iterable[WaitingRows | Rows]:
        """What the transport sends, in this order."""
        return (*self._waiting, self._slices)

    def reborn(self) -> None:
        """In a forked child: what was open is the parent's."""
        for rows in self._waiting:
            rows.follow(None)
        self._slices.take()
        self._begin_anew()

    # Called by the sender.

    def started(self, plan: GpuPlan) -> None:
        """Events are wanted, and so much of the GPU."""
        if plan != self._windows.plan or self._windows.stopped:
            self._end_window(time.monotonic_ns())
            self._windows = Windows(plan)
        self._told = None
        self._looked_ns = 0
        if self._tracer is not None and _of_lab(self._tracer) is not (plan.mode is GpuMode.LAB):
            self._let_go()

    def stopped(self) -> None:
        """None are wanted any more."""
        self._end_window(time.monotonic_ns())
        self._windows = Windows(NO_GPU)

    def tick(self) -> None:
        """Do what is due; in every turn of the sender before rows are collected."""
        windows, now = self._windows, time.monotonic_ns()
        if windows.plan.mode is GpuMode.OFF:
            return
        if self._profiling and windows.began_ns:
            self._end_window(now)
            return
        if self._tracer is None and not self._open(now):
            return
        action = windows.due(now)
        if action is Action.BEGIN and not self._profiling:
            self._begin_window(now)
        elif action is Action.END:
            self._end_window(now)
        elif windows.began_ns:
            self._keep_on(now)

    def steps(self, columns: tuple[bytes, ...]) -> None:
        """Calls of the model runner, as columns of ``worker_step``, in their order.

        What is compared is the time from the begin of one step to that of the next: the calls
        themselves return long before the GPU is done.
        """
        if self._tracer is None:
            return
        starts = array("q", columns[_STEP_START])
        for phase, start_ns in zip(columns[_STEP_PHASE], starts, strict=True):
            if phase != WorkerPhase.EXECUTE:
                continue
            if 0 < self._step_ns < start_ns:
                self._windows.step(self._step_ns, start_ns)
            self._step_ns = start_ns

    # Called by whoever profiles this program.

    def make_way(self) -> None:
        """Another profiler begins: waits until our window is shut, and keeps others away."""
        with self._lock:
            self._profiling += 1
        self._shut.wait(_WAY_S)

    def way_is_free(self) -> None:
        """It has ended."""
        with self._lock:
            self._profiling = max(0, self._profiling - 1)

    # Windows.

    def _open(self, now: int) -> bool:
        if self._looked_ns and now - self._looked_ns < _LOOK_NS:
            return False
        self._looked_ns = now
        found = self._find()
        if not found.driver:
            return False  # a process without a GPU has nothing to tell
        if found.cupti is None and self._windows.plan.mode is not GpuMode.LAB:
            self._tell(
                CapabilityState.OFF,
                "no CUPTI in this process: PyTorch for CUDA brings it; nothing of the GPU is seen",
            )
            return False
        try:
            tracer = self._make(found, self._windows.plan.mode)
        except (ShimError, OSError) as error:
            self._tell(CapabilityState.OFF, f"{error}; nothing of the GPU is seen")
            self._windows.stop(str(error))
            return False
        self._tracer, self._lost = tracer, 0
        for rows in self._waiting:
            rows.follow(tracer)
        return True

    def _let_go(self) -> None:
        """Close what records, unless CUPTI still holds a buffer of it: then it stays."""
        if self._tracer is not None and self._tracer.close():
            self._tracer = None
            for rows in self._waiting:
                rows.follow(None)

    def _begin_window(self, now: int) -> None:
        tracer, windows = self._tracer, self._windows
        if tracer is None:
            return
        why = versions.gate(tracer.version, windows.plan.mode, self._number)
        if why:
            windows.stop(why)
            self._tell(CapabilityState.OFF, why)
            return
        with self._lock:
            if self._profiling:
                return
            self._shut.clear()
        try:
            tracer.begin(_WHAT[windows.plan.mode])
        except ShimError as error:
            self._shut.set()
            windows.refused(now)
            self._tell(CapabilityState.DEGRADED, f"no window now: {error}; it is tried again")
            return
        self._number += 1
        self._slice_ns = time.monotonic_ns()
        windows.began(self._slice_ns)
        caution = versions.caution(tracer.version)
        if windows.plan.mode is GpuMode.LAB:
            caution = "; ".join(filter(None, (lab.CAUTION, caution)))
        state = CapabilityState.DEGRADED if caution else CapabilityState.ON
        self._tell(state, "; ".join(filter(None, (_described(windows.plan), caution))))

    def _keep_on(self, now: int) -> None:
        if self._tracer is not None:
            self._tracer.flush(whole=False)
            self._slice(now)
            self._count_lost()

    def _end_window(self, now: int) -> None:
        tracer, windows = self._tracer, self._windows
        if tracer is None or not windows.began_ns:
            return
        # What is launched from here on may be missing.
        self._slice(now)
        tracer.end()
        windows.ended()
        self._shut.set()
        self._count_lost()
        if windows.stopped:
            self._tell(CapabilityState.OFF, windows.stopped)

    def _slice(self, now: int) -> None:
        """State that the GPU was recorded since the last such row."""
        if now > self._slice_ns:
            what = int(_WHAT[self._windows.plan.mode])
            self._slices.put((self._number, self._slice_ns, now, what))
            self._slice_ns = now

    def _count_lost(self) -> None:
        if self._tracer is None:
            return
        counts = self._tracer.counts()
        lost = counts.lost_rows + counts.cupti_dropped
        if lost > self._lost:
            self._drops.add(lost - self._lost)
            self._lost = lost

    def _tell(self, state: CapabilityState, reason: str) -> None:
        if self._told != (state, reason):
            self._told = (state, reason)
            self._capability.put((time.monotonic_ns(), PART, int(state), reason))


def _of_lab(tracer: Tracer) -> bool:
    return isinstance(tracer, lab.Lab)


def _described(plan: GpuPlan) -> str:
    if plan.mode is GpuMode.ALWAYS:
        return "the GPU is recorded without pause"
    length = f"{plan.window_ms / 1000:g} s"
    if plan.steps:
        length += f" or {plan.steps} steps"
    return f"the GPU is recorded in windows of {length}, one every {plan.every_ms / 1000:g} s"
