# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to an engine, and who may look at them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import (
    NoSuchProcessError,
    NotAnEngineError,
    NotPermittedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucorrelate.probes.host.procfs import Process

_MAX_DEPTH = 64


def looks_like_engine(process: Process) -> bool:
    """Whether name or command line are those of a vLLM process.

    The engine's processes name themselves ``VLLM::...``; its server is started as ``vllm``
    or as ``python -m vllm...``. A shell or test runner that merely has the word in its
    command line is none.
    """
    if process.stat.comm.startswith("VLLM::"):
        return True
    argv = process.argv
    if not argv:
        return False
    if argv[0].startswith("VLLM::") or _base(argv[0]) == "vllm":
        return True
    if not _base(argv[0]).startswith("python"):
        return False
    for at, part in enumerate(argv[1:6], 1):
        if part == "-m" and at + 1 < len(argv):
            return argv[at + 1].split(".")[0] == "vllm"
        if not part.startswith("-"):
            return _base(part) == "vllm"
    return False


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def target(pid: int, uid: int) -> Process:
    """The process, if the caller may trace it.

    Args:
        pid: Process id, or the id of one of its threads.
        uid: The caller; 0 may trace everything.

    Raises:
        NoSuchProcessError: gone, never was, or dead and not yet reaped.
        NotAnEngineError: a kernel thread.
        UsageError: the daemon itself.
        NotPermittedError: another user's.
    """
    status = procfs.read_status(pid) if pid > 0 else None
    process = procfs.read_process(status.tgid or pid) if status else None
    if process is None:
        raise NoSuchProcessError(
            f"no process {pid}", hint="ps -C vllm,VLLM::EngineCore shows running engines"
        )
    if process.stat.kernel_thread:
        raise NotAnEngineError(f"process {pid} ({process.stat.comm}) is a kernel thread")
    if not process.stat.alive:
        raise NoSuchProcessError(f"process {pid} ({process.stat.comm}) has exited")
    if process.pid == os.getpid():
        raise UsageError(f"process {pid} is the gpucorrelate daemon itself")
    if uid != 0 and not process.owned_by(uid):
        raise NotPermittedError(
            f"process {pid} ({process.stat.comm}) belongs to another user",
            hint="only root may trace other users' processes",
        )
    return process


def topmost(process: Process, uid: int, has_agent: Callable[[int], bool]) -> Process:
    """The highest ancestor up to which every process is part of the engine.

    Args:
        process: Where to begin; part of the engine by the caller's word.
        uid: The caller; the way up ends at a process that it may not trace.
        has_agent: Whether an agent in that process is connected.
    """
    top = process
    for _ in range(_MAX_DEPTH):
        parent = procfs.read_process(top.stat.ppid) if top.stat.ppid > 1 else None
        if parent is None or parent.pid == os.getpid() or not parent.stat.alive:
            return top
        if uid != 0 and not parent.owned_by(uid):
            return top
        if not has_agent(parent.pid) and not looks_like_engine(parent):
            return top
        top = parent
    return top


def with_descendants(root: Process, uid: int) -> Iterator[Process]:
    """The process and everything below it that the caller may trace, parents first.

    The daemon's own branch is left out.
    """
    children: dict[int, list[int]] = {}
    for pid, ppid in procfs.parents().items():
        children.setdefault(ppid, []).append(pid)
    yield root
    waiting = list(children.get(root.pid, ()))
    while waiting:
        pid = waiting.pop(0)
        if pid == os.getpid():
            continue
        process = procfs.read_process(pid)
        if process is None or not process.stat.alive:
            continue
        waiting += children.get(pid, ())
        if uid == 0 or process.owned_by(uid):
            yield process


def ancestors(pid: int) -> Iterator[int]:
    """Parents of a process, nearest first."""
    for _ in range(_MAX_DEPTH):
        stat = procfs.read_stat(pid)
        if stat is None or stat.ppid <= 1:
            return
        pid = stat.ppid
        yield pid
