# SPDX-License-Identifier: Apache-2.0
"""What a thread of an engine is there for, by the names it and its process have.

The engine's own agent says more, and says it surely; this is for processes that have none.
What cannot be told from the name, or from a CPU of its own, is not told: the kernel's name of
most threads is their process's.
"""

from __future__ import annotations

import re

#: Names that libraries give to their threads, of which the kernel keeps 15 bytes, and names
#: that Python has for the engine's (the kernel has them from Python 3.14 on).
_THREADS = (
    (re.compile(r"gpucorrelate"), "agent"),
    (re.compile(r"^ZMQbg"), "zmq"),
    (re.compile(r"^cuda-EvtHandlr|^cuda\d{4,}$"), "cuda"),
    (re.compile(r"(?i)cupti|^\[?nsys"), "cupti"),
    (re.compile(r"(?i)nccl"), "nccl"),
    (re.compile(r"(?i)gloo|pt_gloo"), "gloo"),
    (re.compile(r"(?i)omp[_ -]|iomp|OMP$|pt_omp"), "openmp"),
    (re.compile(r"pt_autograd"), "autograd"),
    (re.compile(r"(?i)tokenizer|detokeni|renderer|chat-template"), "tokenizer"),
    (
        re.compile(r"(?i)process_output|outputqueue|asyncoutput|outputcopy|output_handler"),
        "output",
    ),
    (re.compile(r"(?i)process_input"), "input"),
    (re.compile(r"(?i)monitor"), "monitor"),
    (re.compile(r"iou-(wrk|sqp)-"), "io_uring"),
    (re.compile(r"jemalloc_bg"), "allocator"),
)


def role_of(
    name: str,
    process: str = "",
    *,
    leader: bool = False,
    leader_name: str = "",
    pinned_cpu: int = -1,
    leader_cpu: int = -1,
) -> str:
    """Role of a thread: ``core.main``, ``worker.cuda``, ``api.zmq``...; empty if unknown.

    Args:
        name: The thread's name, the kernel's or Python's.
        process: Part its process plays; see ``wire.roles``.
        leader: It is the process's first thread: it runs the API server's loop, the engine
            core's, the worker's.
        leader_name: Name of that first thread.
        pinned_cpu: The one CPU the thread may run on; -1 for several.
        leader_cpu: The same of the first thread.

    Returns:
        The process's part and the thread's, joined by a dot; the thread's alone where the
        process's is not known.
    """
    part = "main" if leader else _part(name)
    if not part and name == leader_name and pinned_cpu >= 0 and pinned_cpu != leader_cpu:
        # Threads have their affinity from their maker; one that has another CPU for itself
        # was given it, as pools of OpenMP do with each of theirs.
        part = "openmp"
    if not part or (leader and not process):
        return ""
    return f"{process}.{part}" if process else part


def _part(name: str) -> str:
    for pattern, role in _THREADS:
        if pattern.search(name):
            return role
    return ""
