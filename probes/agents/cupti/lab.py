# SPDX-License-Identifier: Apache-2.0
"""Lab mode: NVIDIA's Python package ``cupti-python`` instead of the shim, where that does not fit.

Each record costs a Python object and some 0.3 to 0.5 us under the interpreter's lock, and while a
buffer is read, by whichever thread CUPTI completes it in, no Python of the program runs: 16 ms for
one of 8 MB. That distorts what is measured, so it is for hosts where nothing else works.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpucorrelate.probes.agents.buffers import Drops, Rows
from gpucorrelate.probes.agents.cupti.shim import (
    KINDS,
    Counts,
    Refused,
    ShimError,
    Window,
    mapped,
)
from gpucorrelate.probes.wire.schema import BY_NAME, ApiKind, CopyKind, GpuOpKind, SyncKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CAUTION = (
    "lab mode: each record runs Python code in the program, which takes some 0.4 us and stalls "
    "its threads for milliseconds at a time; do not trust what it says of the CPU"
)

#: Record kinds of cupti_activity.h.
_KERNELS, _COPY, _FILL, _GRAPH, _SYNC, _DRIVER, _RUNTIME = (10, 3), 1, 2, 51, 38, 4, 5
#: Callback domains of cupti_callbacks.h.
_DOMAINS = {_DRIVER: (1, ApiKind.DRIVER), _RUNTIME: (2, ApiKind.RUNTIME)}
_BUFFER_BYTES = 1 << 20
_PAIRS = 64
_ROWS = 1 << 17
_NONE_U32, _NONE_U64 = (1 << 32) - 1, (1 << 64) - 1
_THREAD_ID_SYSTEM = 1


class Cupti(Protocol):
    """What is used of the module ``cupti.cupti``."""

    activity_enable: Callable[[int], object]
    activity_disable: Callable[[int], object]
    activity_flush_all: Callable[[int], object]
    activity_register_callbacks: Callable[..., object]
    get_callback_name: Callable[[int, int], object]
    get_timestamp: Callable[[], int]
    set_thread_id_type: Callable[[int], object]
    subscribe: Callable[..., int]
    unsubscribe: Callable[[int], object]


class Lab:
    """Records in windows, as the shim does.

    Args:
        cupti: The module ``cupti.cupti``.
        version: CUPTI's version.
    """

    def __init__(self, cupti: Cupti, version: int) -> None:
        self._cupti = cupti
        self._version = version
        self._drops = Drops()
        self._rows = {name: Rows(BY_NAME[name], self._drops, _ROWS) for name in KINDS}
        self._names: dict[tuple[int, int], str] = {}
        self._devices: dict[int, int] = {}
        self._subscriber: int | None = None
        self._enabled: list[int] = []
        self._offset_ns = 0
        self._records = self._buffers = 0
        self._pid = os.getpid()

    @property
    def version(self) -> int:
        """CUPTI's version."""
        return self._version

    def rows(self, name: str) -> Rows:
        """Rows of a kind that wait."""
        return self._rows[name]

    def begin(self, what: Window) -> None:
        """Begin a window.

        Raises:
            ShimError: CUPTI is somebody else's, or refuses.
        """
        try:
            self._subscriber = self._cupti.subscribe(lambda *_: None, None)
        except Exception as error:  # noqa: BLE001 - the package's own kind, one for all refusals
            why = f"CUPTI is in use or does not work here: {error}"
            raise ShimError(Refused.BUSY, why) from None
        try:
            self._cupti.set_thread_id_type(_THREAD_ID_SYSTEM)
            self._cupti.activity_register_callbacks(self._wanted, self.completed)
            self._pair_clocks()
            for kind in _kinds(what):
                self._cupti.activity_enable(kind)
                self._enabled.append(kind)
        except Exception as error:  # noqa: BLE001
            self.end()
            raise ShimError(Refused.REFUSED, f"CUPTI refuses to record: {error}") from None

    def end(self) -> None:
        """End the window; what was under way is read."""
        for kind in self._enabled:
            with contextlib.suppress(Exception):
                self._cupti.activity_disable(kind)
        self._enabled.clear()
        self.flush(whole=True)
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            with contextlib.suppress(Exception):
                self._cupti.unsubscribe(subscriber)

    def flush(self, *, whole: bool) -> None:
        """Read what CUPTI has completed; ``whole``: also buffers that are not full."""
        with contextlib.suppress(Exception):
            self._pair_clocks()
            self._cupti.activity_flush_all(int(whole))

    def counts(self) -> Counts:
        """What was seen and lost so far."""
        waiting = tuple(len(self._rows[name]) for name in KINDS)
        return Counts(
            self._records, self._buffers, 0, 0, 0, self._drops.count, 0, 0, 0, 0, waiting, waiting
        )

    def close(self) -> bool:
        """End; what CUPTI still holds is its own."""
        self.end()
        return True

    # Called by CUPTI, in whichever thread it likes.

    def _wanted(self) -> tuple[int, int]:
        return _BUFFER_BYTES, 0

    def completed(self, activities: Iterable[Any]) -> None:
        """Rows of a buffer's records."""
        self._buffers += 1
        for record in activities:
            self._records += 1
            kind = int(record.kind)
            if kind in _KERNELS:
                self._kernel(record)
            elif kind in (_COPY, _FILL):
                self._copy(record, fill=kind == _FILL)
            elif kind == _GRAPH:
                self._graph(record)
            elif kind in _DOMAINS:
                self._call(record, kind)
            elif kind == _SYNC:
                self._synchronisation(record)

    def _when(self, stamp: int) -> int:
        return stamp + self._offset_ns if stamp else 0

    def _op(self, r: Any, op: GpuOpKind, name: str, node: int, size: int, copy: int) -> None:  # noqa: ANN401
        self._devices[r.context_id] = r.device_id
        self._rows["gpu_op"].put(
            (
                self._pid, r.device_id, r.context_id, r.stream_id, int(op), name,
                r.correlation_id, r.graph_id, node, self._when(r.start), self._when(r.end),
                size, copy,
            )
        )  # fmt: skip

    def _kernel(self, r: Any) -> None:  # noqa: ANN401
        self._op(r, GpuOpKind.KERNEL, r.name or "?", r.graph_node_id, 0, 0)

    def _graph(self, r: Any) -> None:  # noqa: ANN401
        self._op(r, GpuOpKind.KERNEL, "CUDA graph", 0, 0, 0)

    def _copy(self, r: Any, *, fill: bool) -> None:  # noqa: ANN401
        if fill:
            self._op(r, GpuOpKind.MEMSET, "Memset", r.graph_node_id, r.bytes, 0)
            return
        known = r.copy_kind if r.copy_kind in set(CopyKind) else CopyKind.UNKNOWN
        name = f"Memcpy {CopyKind(known).name}"
        self._op(r, GpuOpKind.MEMCPY, name, r.graph_node_id, r.bytes, int(known))

    def _call(self, r: Any, kind: int) -> None:  # noqa: ANN401
        domain, api = _DOMAINS[kind]
        row = (self._pid, r.thread_id, self._name(domain, r.cbid), int(api), r.correlation_id)
        self._rows["cuda_api"].put((*row, self._when(r.start), self._when(r.end)))

    def _name(self, domain: int, callback: int) -> str:
        found = self._names.get((domain, callback))
        if found is None:
            try:
                found = str(self._cupti.get_callback_name(domain, callback))
            except Exception:  # noqa: BLE001 - a call newer than the package
                found = f"call {callback}"
            # Names end in the version of the function's arguments: cudaLaunchKernel_v7000.
            self._names[domain, callback] = found = found.partition("_v")[0] or found
        return found

    def _synchronisation(self, r: Any) -> None:  # noqa: ANN401
        kind = r.type if r.type in set(SyncKind) else 0
        self._rows["gpu_sync"].put(
            (
                self._pid, self._devices.get(r.context_id, 0), r.context_id, int(kind),
                _wide(r.stream_id), _wide(r.cuda_event_id), r.correlation_id,
                self._when(r.start), self._when(r.end), 0, _NONE_U64,
            )
        )  # fmt: skip

    def _pair_clocks(self) -> None:
        """A burst of readings; the narrowest pair gives the offset, all go on record."""
        best = None
        for _ in range(_PAIRS):
            before = time.monotonic_ns()
            other = self._cupti.get_timestamp()
            after = time.monotonic_ns()
            middle = before + (after - before) // 2
            self._rows["clock_pair"].put(_pair(middle, after - before, other))
            if best is None or after - before < best[0]:
                best = after - before, middle - other
        if best is not None:
            self._offset_ns = best[1]


def _pair(t_ns: int, width_ns: int, other: int) -> tuple[int | str, ...]:
    values: dict[str, int | str] = {
        "t_ns": t_ns, "width_ns": width_ns, "other": other, "clock": "cupti",
    }  # fmt: skip
    return tuple(values[column.name] for column in BY_NAME["clock_pair"].columns)


def _wide(value: int) -> int:
    return _NONE_U64 if value == _NONE_U32 else value


def _kinds(what: Window) -> list[int]:
    found = [_KERNELS[0], _COPY, _FILL]
    if what & Window.GRAPHS and not what & Window.NODES:
        found.append(_GRAPH)
    if what & Window.SYNCS:
        found.append(_SYNC)
    if what & Window.CALLS:
        found += [_RUNTIME, _DRIVER]
    return found


def make_lab() -> Lab:
    """Lab mode on the package that is installed beside the engine.

    Raises:
        ShimError: it is not there, or its library does not tell its version.
    """
    try:
        from cupti import cupti
    except ImportError as error:
        raise ShimError(
            Refused.NO_LIBRARY, f"lab mode needs cupti-python beside the engine: {error}"
        ) from None
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        path = mapped(maps)
    if path is None:
        raise ShimError(Refused.NO_LIBRARY, "cupti-python has not loaded its library")
    version = ctypes.c_uint32()
    if ctypes.CDLL(path).cuptiGetVersion(ctypes.byref(version)):
        raise ShimError(Refused.REFUSED, "CUPTI does not tell its version")
    return Lab(cupti, version.value)
