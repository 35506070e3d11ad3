# SPDX-License-Identifier: Apache-2.0
"""What is known to be wrong with versions of CUPTI, from NVIDIA's release notes.

Versions are those of ``cuptiGetVersion``: 130101 is that of CUDA 13.1 update 1.
"""

from __future__ import annotations

from gpucorrelate.probes.wire.gpu import GpuMode

#: The update that mends what can hang a program when recording ends.
_FIRST_13, _HANG_UNTIL = 130_000, 130_001
#: Before this one a graph's launch has wrong correlation ids in every session but the first.
_GRAPH_IDS_FROM = 130_101
#: Before this one recording takes ever more CPU time the longer it lasts.
_GROWTH_UNTIL = 130_401


def caution(version: int) -> str:
    """What a user should know of a version that is used nevertheless; empty: nothing."""
    if version < _GRAPH_IDS_FROM:
        return (
            f"one window only: CUPTI {version} gives launches of graphs wrong ids in every later "
            "one, that of CUDA 13.1 update 1 does not"
        )
    return ""


def gate(version: int, mode: GpuMode, windows: int) -> str:
    """Why there may be no further window; empty: there may.

    Args:
        version: CUPTI's.
        mode: What is to be recorded.
        windows: How many this process has had.
    """
    if _FIRST_13 <= version < _HANG_UNTIL:
        return (
            f"CUPTI {version} can hang the program when recording ends; that of CUDA 13.0 "
            "update 1 does not"
        )
    if windows and version < _GRAPH_IDS_FROM:
        return caution(version)
    if mode is GpuMode.ALWAYS and version < _GROWTH_UNTIL:
        return (
            f"not without pause: with CUPTI {version} that takes ever more CPU time, with that of "
            "CUDA 13.4 update 1 it does not; use windows"
        )
    return ""
