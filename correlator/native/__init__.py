# SPDX-License-Identifier: Apache-2.0
"""The correlator's inner loops, in C, called through ctypes on numpy columns."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    Any = NDArray[np.generic]

LIBRARY = Path(__file__).with_name("_walk.so")

#: Layout of a segment as the C core writes it.
SEGMENT = np.dtype(
    [
        ("start", "<i8"), ("end", "<i8"), ("evidence", "<i8"), ("span", "<i8"), ("slack", "<i8"),
        ("held_by", "<i8"),
        ("actor", "<i4"), ("related", "<i4"), ("held", "<i4"), ("leg", "<i4"), ("phase", "<i4"),
        ("category", "u1"), ("evidence_kind", "u1"), ("inferred", "u1"), ("pad", "u1"),
    ]
)  # fmt: skip

#: Layout of a hop: the path left a waiting thread for the one it waited for.
HOP = np.dtype(
    [
        ("start", "<i8"), ("end", "<i8"), ("evidence", "<i8"),
        ("from", "<i4"), ("to", "<i4"), ("leg", "<i4"),
        ("evidence_kind", "u1"), ("mode", "u1"), ("pad", "u1", 2),
    ]
)  # fmt: skip

_POINTERS = (
    "w_off", "w_start", "w_end", "w_wake", "w_peer", "w_class", "w_leaf",
    "q_off", "q_start", "q_ready", "q_sent", "q_peer",
    "s_off", "s_start", "s_end",
    "f_off", "f_start", "f_end",
    "t_first", "t_last", "t_proc", "p_off", "p_threads",
    "l_off", "l_start", "l_end",
    "t_host", "y_off", "y_start", "y_end", "y_op",
    "g_off", "g_start", "g_end", "g_pred", "g_land", "g_margin", "g_actor", "g_to", "g_gap",
    "t_from",
)  # fmt: skip


class _Model(ctypes.Structure):
    _fields_ = (
        ("n_threads", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class _Out(ctypes.Structure):
    _fields_ = (
        ("segs", ctypes.c_void_p),
        ("hops", ctypes.c_void_p),
        ("n_segs", ctypes.c_int64),
        ("cap_segs", ctypes.c_int64),
        ("n_hops", ctypes.c_int64),
        ("cap_hops", ctypes.c_int64),
        ("failed", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Columns:
    """The walk's input, one contiguous array per column; see walk.c for each one's meaning."""

    w_off: I64
    w_start: I64
    w_end: I64
    w_wake: I64
    w_peer: I32
    w_class: NDArray[np.uint8]
    w_leaf: NDArray[np.uint8]
    q_off: I64
    q_start: I64
    q_ready: I64
    q_sent: I64
    q_peer: I32
    s_off: I64
    s_start: I64
    s_end: I64
    f_off: I64
    f_start: I64
    f_end: I64
    t_first: I64
    t_last: I64
    t_proc: I32
    p_off: I64
    p_threads: I32
    l_off: I64
    l_start: I64
    l_end: I64
    t_host: NDArray[np.uint8]
    y_off: I64
    y_start: I64
    y_end: I64
    y_op: I64
    g_off: I64
    g_start: I64
    g_end: I64
    g_pred: I64
    g_land: I64
    g_margin: I64
    g_actor: I32
    g_to: I32
    g_gap: NDArray[np.uint8]
    t_from: I32


@cache
def library() -> ctypes.CDLL:
    """The C core. Raises ``GpucorrelateError`` where it cannot be loaded."""
    try:
        core = ctypes.CDLL(str(LIBRARY))
    except OSError as exc:
        raise GpucorrelateError(
            f"the correlator's native core does not load: {exc}",
            hint="build it: make native, or reinstall gpucorrelate with a C compiler present",
        ) from exc
    core.gpucorrelate_walk.restype = ctypes.c_int
    core.gpucorrelate_walk.argtypes = [
        ctypes.POINTER(_Model), ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.POINTER(_Out),
    ]  # fmt: skip
    core.gpucorrelate_walk_free.restype = None
    core.gpucorrelate_walk_free.argtypes = [ctypes.POINTER(_Out)]
    core.gpucorrelate_flatten.restype = None
    core.gpucorrelate_flatten.argtypes = [ctypes.c_int64, *([ctypes.c_void_p] * 7)]
    core.gpucorrelate_match.restype = None
    core.gpucorrelate_match.argtypes = [ctypes.c_void_p] * 4
    core.gpucorrelate_latest.restype = None
    core.gpucorrelate_latest.argtypes = [
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
        *([ctypes.c_void_p] * 3),
    ]  # fmt: skip
    return core


def flatten(off: I64, start: I64, end: I64) -> tuple[I64, I64, I64, I64]:
    """Nested intervals of threads as non-overlapping pieces, the innermost winning.

    Args:
        off: First interval of each thread; one entry more than threads.
        start: Starts, ascending within a thread; of equal ones the longer interval first.
        end: Ends.

    Returns:
        First piece of each thread, with one entry more than threads; start, end and the row of
        the interval that each piece belongs to.
    """
    out = np.empty((3, 2 * len(start) + 1), np.int64)
    bounds = np.empty(len(off), np.int64)
    off, start, end = (np.ascontiguousarray(a, np.int64) for a in (off, start, end))
    library().gpucorrelate_flatten(
        len(off) - 1, off.ctypes.data, start.ctypes.data, end.ctypes.data, bounds.ctypes.data,
        *(row.ctypes.data for row in out),
    )  # fmt: skip
    k = int(bounds[-1])
    # Room that is not used was never touched: it takes no memory.
    return bounds, out[0, :k], out[1, :k], out[2, :k]


class NativeWalk:
    """The backward walk over one set of columns; keeps them alive while C points at them."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        model = _Model(n_threads=len(columns.t_first))
        for name in _POINTERS:
            array = getattr(columns, name)
            if not array.flags.c_contiguous:
                raise ValueError(f"column {name} is not contiguous")
            setattr(model, name, array.ctypes.data)
        self._model = model

    def run(
        self, actor: I32, op: I64, end: I64, stop: I64, cut_off: I64, cuts: I64
    ) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Walk legs backward.

        Args:
            actor: Where each leg ends: the index of a thread, or of a stream behind all threads.
            op: Where that is a stream, the operation; -1 for the last that began before the end.
            end: End of each leg, ns.
            stop: Start of each leg, ns.
            cut_off: Start of each leg's phase cuts in ``cuts``; one entry more than legs.
            cuts: Phase cuts, ascending within a leg.

        Returns:
            Segments (newest first within a leg, legs in order) and hops.

        Raises:
            MemoryError: the output did not fit into memory.
        """
        out = _Out()
        core = library()
        actor = np.ascontiguousarray(actor, np.int32)
        arrays = [np.ascontiguousarray(a, np.int64) for a in (op, end, stop, cut_off, cuts)]
        status = core.gpucorrelate_walk(
            ctypes.byref(self._model), len(actor), actor.ctypes.data,
            *(a.ctypes.data for a in arrays), ctypes.byref(out),
        )  # fmt: skip
        try:
            if status:
                raise MemoryError("the walk's output does not fit into memory")
            return _copy(out.segs, out.n_segs, SEGMENT), _copy(out.hops, out.n_hops, HOP)
        finally:
            core.gpucorrelate_walk_free(ctypes.byref(out))


def _copy(address: int | None, count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    if not address or not count:
        return np.zeros(0, dtype)
    raw = ctypes.string_at(address, count * dtype.itemsize)
    return np.frombuffer(raw, dtype)
