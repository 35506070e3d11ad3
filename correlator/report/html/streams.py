# SPDX-License-Identifier: Apache-2.0
"""How busy each stream of a GPU was while something ran, whoever launched its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.device_words import stream_actor
from gpucorrelate.correlator.search import union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.device import Device
    from gpucorrelate.correlator.report.html.pack import Columns, Json, Lexicon

    I64 = NDArray[np.int64]

#: So many stretches of a page's width, and streams, those that were busy longest.
_BINS, _STREAMS = 480, 6


def of(device: Device, lexicon: Lexicon, window: tuple[int, int]) -> tuple[list[Json], Columns]:
    """Busy time of streams in stretches of equal length, overlap counted once.

    Args:
        device: What devices did.
        lexicon: Words of the page.
        window: First and last moment.

    Returns:
        For each stream its name and its busy time, the busiest first; and columns ``stream0`` and
        so on with the nanoseconds of each stretch, besides ``stream_edge``, the stretches' bounds
        counted from the window's start. Nothing without work of a device.
    """
    if not device:
        return [], {}
    start, end = window
    bins = max(1, min(_BINS, end - start))
    edges = np.linspace(start, end, bins + 1).round().astype(np.int64)
    found: list[tuple[int, str, I64]] = []
    for stream in range(len(device.streams)):
        rows = slice(int(device.ops.off[stream]), int(device.ops.off[stream + 1]))
        busy = _busy_ns(device.ops.start_ns[rows], device.ops.end_ns[rows], edges)
        if busy.any():
            found.append((int(busy.sum()), stream_actor(device, stream).shown, busy))
    found.sort(key=lambda one: -one[0])
    names: list[Json] = [
        {"name": lexicon.word(name), "busy_ns": busy_ns} for busy_ns, name, _ in found[:_STREAMS]
    ]
    if not names:
        return [], {}
    columns: Columns = {f"stream{at}": busy for at, (_, _, busy) in enumerate(found[:_STREAMS])}
    columns["stream_edge"] = edges - start
    return names, columns


def _busy_ns(start_ns: I64, end_ns: I64, edges_ns: I64) -> I64:
    """Time between each two edges in which something ran."""
    seen = (end_ns > edges_ns[0]) & (start_ns < edges_ns[-1])
    start, end = union(start_ns[seen], end_ns[seen])
    if not len(start):
        return np.zeros(len(edges_ns) - 1, np.int64)
    before = np.concatenate(([0], np.cumsum(end - start)))
    at = np.searchsorted(start, edges_ns, side="right")
    # Of the stretch that an edge lies in only what is before the edge counts.
    over = np.where(at > 0, np.maximum(end[at - 1] - edges_ns, 0), 0)
    return np.diff(before[at] - over)
