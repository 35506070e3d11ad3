# SPDX-License-Identifier: Apache-2.0
"""Thread ids of containers as the host knows them.

The kernel probes see ids of the initial pid namespace; an agent inside a container knows its
threads by the ids of its own. The daemon records both (``NSpid`` of ``/proc/PID/status``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture, Table

_AGENT_TABLES = (
    "thread", "span", "queue_msg", "request", "step_begin", "step_end", "step_update",
    "worker_step", "outputs",
)  # fmt: skip


def to_host(capture: Capture) -> Capture:
    """The capture with every agent's thread ids replaced by the host's."""
    maps = _maps(capture)
    if not maps:
        return capture
    tables = {name: _translate(capture.table(name), maps) for name in _AGENT_TABLES}
    return replace(capture, _tables={**capture._tables, **tables})


def _maps(capture: Capture) -> dict[int, dict[int, int]]:
    """Stream -> thread id inside -> thread id on the host, where they differ."""
    task = capture.table("task")
    inside = (task["ns_tid"] != 0) & (task["ns_tid"] != task["tid"])
    by_process: dict[int, dict[int, int]] = defaultdict(dict)
    for tid, tgid, ns_tid in zip(
        *(task[c][inside].tolist() for c in ("tid", "tgid", "ns_tid")), strict=True
    ):
        by_process[tgid][ns_tid] = tid
    return {
        info.stream: by_process[info.tgid] for info in capture.streams if info.tgid in by_process
    }


def _translate(table: Table, maps: dict[int, dict[int, int]]) -> Table:
    tid = table["tid"].copy()
    for stream, mapping in maps.items():
        rows = np.flatnonzero(table["stream"] == stream)
        known, inverse = np.unique(tid[rows], return_inverse=True)
        host = np.array([mapping.get(int(t), int(t)) for t in known], tid.dtype)
        if len(rows):
            tid[rows] = host[inverse]
    return table.replace("tid", tid)
