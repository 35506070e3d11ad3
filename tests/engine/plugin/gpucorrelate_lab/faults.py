# SPDX-License-Identifier: Apache-2.0
"""Faults with known times: who did what to the engine, and when, to the nanosecond.

A file ``DIR/flags/<kind>`` switches a fault on while it exists; the number in it, if any,
replaces the mean length of 20 ms. Lengths and moments are random. Each occurrence is one line of
JSON in ``DIR/truth-<pid>.jsonl``: ``kind``, ``pid``, ``tid``, ``start_ns`` and ``end_ns`` on
CLOCK_MONOTONIC; ``ready_ns``, how much of that time the thread ran, or was ready and had no CPU
(on a machine with fewer CPUs than busy threads that is never nothing); ``parts``, the stretches
in which it surely did what it was to do, as :mod:`gpucorrelate_lab.acts` says; ``detail``, what it
did that to.

``<place>.sleep``, ``<place>.burn``, ``<place>.storm``, ``<place>.cold``
    The thread that passes the place sleeps, computes, faults in new memory, faults in pages from
    disk.
``<place>.lock``
    A thread of its own, asleep, holds a lock that the thread has to take there. What that cost is
    a row of its own, ``<place>.lock-wait``.
``<process>.gil``
    A thread of the process computes without a pause, so that others wait for the interpreter.
``core.execute.raise``
    The executor's ``execute_model`` raises, once; the flag is taken away.

Places: ``api.tokenise`` (the thread that makes a prompt tokens), ``api.outputs`` (the event loop,
before it takes outputs in), ``core.schedule`` (the engine core's main thread before
``Scheduler.schedule``), ``core.outputs`` (the thread that sends outputs to the API server),
``worker.execute`` (the worker's main thread at the start of ``execute_model``). Processes:
``api``, ``core``, ``worker``.

Where ``DIR/flags/course`` existed when the engine started, what the engine itself did is written
to ``DIR/course-<pid>.jsonl``; see :mod:`gpucorrelate_lab.course`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate_lab import course
from gpucorrelate_lab.lab import lab
from gpucorrelate_lab.sites import Hog, Holder, Place

if TYPE_CHECKING:
    from collections.abc import Callable

_PROCESSES = {"api": ("api.outputs",), "core": ("core.schedule",), "worker": ("worker.execute",)}


@functools.cache
def _place(name: str, pid: int) -> Place:
    # By pid: after a fork the child has places, and locks, of its own.
    del pid
    return Place(name)


@functools.cache
def _start_threads(process: str, pid: int) -> None:
    """The threads that get in the way in a process; they start when it is known which it is."""
    Hog(process).start()
    for name in _PROCESSES[process]:
        Holder(_place(name, pid)).start()


def before(owner: type, name: str, act: Callable[[], None]) -> None:
    """Have a method of a class do something first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        act()
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def _passing(name: str, process: str = "") -> Callable[[], None]:
    def passed() -> None:
        pid = os.getpid()
        if process:
            _start_threads(process, pid)
        _place(name, pid).passed()

    return passed


def _raise_if_asked(scheduled: Any) -> None:
    """Raise once if asked, and note the requests that the step was to be for.

    Raises:
        RuntimeError: the flag was there; what is in it ends the message.
    """
    words = lab().take("core.execute.raise")
    if words is None:
        return
    now_ns = time.monotonic_ns()
    requests = " ".join(scheduled.num_scheduled_tokens)
    lab().note("core.execute.raise", (now_ns, now_ns, 0), detail=requests)
    raise RuntimeError(f"gpucorrelate-lab: execute_model raises, as asked{words}")


def _raising(owner: type, name: str) -> None:
    """Have a method of the executor raise first if that is asked for."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        _raise_if_asked(scheduled)
        return original(self, scheduled, *args, **kwargs)

    setattr(owner, name, method)


def install() -> None:
    """Patch the classes everywhere; in the API server start the hog's thread as well."""
    from vllm.renderers.base import BaseRenderer
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if (Path(os.environ["GPUCORRELATE_LAB_DIR"]) / "flags" / "course").exists():
        course.install()
    before(Scheduler, "schedule", _passing("core.schedule", "core"))
    _raising(MultiprocExecutor, "execute_model")
    before(GPUModelRunner, "execute_model", _passing("worker.execute", "worker"))
    before(OutputProcessor, "process_outputs", _passing("api.outputs"))
    before(BaseRenderer, "_tokenize_prompt", _passing("api.tokenise"))
    before(MsgpackEncoder, "encode_into", _passing("core.outputs"))
    if multiprocessing.parent_process() is None:
        _start_threads("api", os.getpid())
