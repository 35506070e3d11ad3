# SPDX-License-Identifier: Apache-2.0
"""A probe that answers wrongly must not be trusted: it first observes a wait we make."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.ebpf import syscall_numbers
from gpucorrelate.probes.ebpf.values import LONGEST_MIN_WAIT_NS
from gpucorrelate.probes.wire.errors import NoSuchProcessError, SelfTestError
from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import BY_NAME, FdKind, WaitKind

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.tracer import Tracer
    from gpucorrelate.probes.ebpf.values import Rows

#: On a very busy machine the reader may not get to wait in time: try again.
_TRIES = 5
#: So much longer than the shortest wait that is told of, and not summed, is the one made.
_LONGER_NS = 5_000_000
_LOOK_S = 0.0005
_READ_WITHIN_S = 0.5
_NR_READ = syscall_numbers.own("read")
#: A program must see at least this part of the wait as it looks from outside.
_SEEN_PART = 0.5


@dataclass(frozen=True)
class _Made:
    """The wait that was made: who waited when and how long at least, and who ended it."""

    tid: int
    waker_tid: int
    before_ns: int
    after_ns: int
    length_ns: int


def _until_reading(tid: int) -> None:
    """Wait until a thread of ours is in its read: the wait is then as long as we make it."""
    end = time.monotonic() + _READ_WITHIN_S
    while time.monotonic() < end:
        try:
            # Number and arguments of the syscall a thread sleeps in.
            text = Path(f"/proc/self/task/{tid}/syscall").read_text(encoding="ascii")
        except OSError:
            return  # no procfs of our own namespace: what follows takes longer than a read does
        if text.startswith(f"{_NR_READ} "):
            return
        time.sleep(_LOOK_S)


def _make_wait(length_ns: int) -> _Made:
    """Read from an empty pipe until, so much later, a second thread writes to it."""
    reader, writer = os.pipe()
    waker: list[int] = []
    tid = threading.get_native_id()

    def wake() -> None:
        waker.append(threading.get_native_id())
        _until_reading(tid)
        time.sleep(length_ns / 1e9)
        os.write(writer, b"x")

    thread = threading.Thread(target=wake, name="gpucorrelate-selftest")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    thread.start()
    os.read(reader, 1)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    thread.join()
    os.close(reader)
    os.close(writer)
    return _Made(tid, waker[0], before, after, length_ns)


def _column(rows: Rows, name: str) -> list[int]:
    kind = BY_NAME[rows.kind.name]
    index = kind.index(name)
    values = np.frombuffer(rows.columns[index], f"<{kind.columns[index].code}")
    return [int(value) for value in values]


def _initial_ids(found: list[Rows], tgids: frozenset[int]) -> dict[int, int]:
    """Thread ids of our own namespace to those of the initial one, from the announcements."""
    ids: dict[int, int] = {}
    for rows in found:
        if rows.kind.name == "task":
            columns = [_column(rows, name) for name in ("tgid", "ns_tid", "tid")]
            ids.update((ns, tid) for tgid, ns, tid in zip(*columns, strict=True) if tgid in tgids)
    return ids


def _problem(made: _Made, found: list[Rows], tgids: frozenset[int]) -> str:
    """What is wrong with what was seen; empty when it is what was made."""
    ids = _initial_ids(found, tgids)
    tid, waker = ids.get(made.tid), ids.get(made.waker_tid)
    if tid is None or waker is None:
        return "threads were not announced"
    names = ("tid", "start_ns", "end_ns", "wait_kind", "op", "waker_tid")
    waits = [
        row
        for rows in found
        if rows.kind.name == "wait"
        for row in zip(*(_column(rows, name) for name in names), strict=True)
    ]
    for row_tid, start, end, kind, op, row_waker in waits:
        if row_tid != tid or kind != WaitKind.READ or op != FdKind.PIPE:
            continue
        if start < made.before_ns or end > made.after_ns:
            return "the clock is not CLOCK_MONOTONIC"
        if end - start < _SEEN_PART * made.length_ns:
            made_ms = made.length_ns / 1e6
            return f"the wait is {(end - start) / 1e6:.3f} ms long, made were {made_ms} ms"
        if row_waker != waker:
            return f"woken by thread {row_waker}, really by {waker}"
        return ""
    return f"the wait was not among {len(waits)} seen"


def run(tracer: Tracer, min_wait_ns: int = 0) -> None:
    """Make a wait in this process and check that the tracer tells tid, length and waker rightly.

    Args:
        tracer: Programs that run.
        min_wait_ns: They sum shorter waits and do not tell of each, so the wait is longer.

    Raises:
        SelfTestError: it does not, or does not see the wait.
    """
    pid = os.getpid()
    strings = StringTable()
    problem = ""
    length_ns = _LONGER_NS + min(min_wait_ns, LONGEST_MIN_WAIT_NS)
    for _ in range(_TRIES):
        try:
            tracer.add_target(pid)
        except NoSuchProcessError:
            problem = "this process is not among the tasks that they see"
            continue
        ours = tracer.targets()
        try:
            made = _make_wait(length_ns)
        finally:
            tracer.remove_target(pid)
        problem = _problem(made, tracer.drain(strings), ours)
        if not problem:
            tracer.new_targets()
            return
    raise SelfTestError(
        f"the kernel probes' self-test failed: {problem}",
        hint="nothing they say can be trusted here; report the kernel release",
    )
