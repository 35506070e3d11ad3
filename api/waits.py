# SPDX-License-Identifier: Apache-2.0
"""The table of waits: every time a traced thread was off a CPU, in what, and who ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.api.arrow import Chosen, Known, table_of
from gpucorrelate.api.schema import TABLES
from gpucorrelate.api.source import PART_ROWS
from gpucorrelate.correlator.causes import syscall_name, wait_name
from gpucorrelate.correlator.search import grouped
from gpucorrelate.correlator.states import CATEGORIES, WaitClass
from gpucorrelate.probes.wire.schema import WaitFlag, WaitKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gpucorrelate.api.arrow import ArrowTable, Values
    from gpucorrelate.correlator.capture import Table
    from gpucorrelate.correlator.causes import Describer
    from gpucorrelate.correlator.states import States

    I64 = NDArray[np.int64]

#: Wakes that hit a thread which had nothing to do with them.
_NO_THREAD = WaitFlag.WAKE_TIMER | WaitFlag.WAKE_IRQ | WaitFlag.WAKE_IDLE
_READY = (WaitKind.PREEMPTED, WaitKind.YIELD)
#: Waits whose first argument says in what: a futex, or a file descriptor.
_WITH_TARGET = (
    WaitKind.FUTEX, WaitKind.READ, WaitKind.WRITE, WaitKind.EPOLL, WaitKind.IO_URING,
    WaitKind.IOCTL,
)  # fmt: skip


def parts(states: States, describe: Describer) -> Iterator[ArrowTable]:
    """Rows of ``waits``, by thread and start, ``PART_ROWS`` at a time; at least one part."""
    count = len(states.waits.start_ns)
    for at in range(0, max(count, 1), PART_ROWS):
        yield _part(states, describe, np.arange(at, min(at + PART_ROWS, count)))


def _part(states: States, describe: Describer, rows: I64) -> ArrowTable:
    waits = states.waits
    table = waits.table.select(rows)
    start, end, wake = waits.start_ns[rows], waits.end_ns[rows], waits.wake_ns[rows]
    kind, flags = table["wait_kind"], table["flags"].astype(np.int64)
    ready = np.isin(kind, _READY) | (table["throttled_ns"] > 0)
    woken = np.clip(wake, start, end)
    seen = (wake > 0) & ~ready
    by = (table["waker_tid"] > 0) & (ready | (seen & ((flags & _NO_THREAD) == 0)))
    call, calls = grouped(table["waker_syscall"].astype(np.int64))
    columns: dict[str, Values | NDArray[np.generic]] = {
        "tid": table["tid"],
        "pid": table["tgid"],
        "actor": _people(describe, table["tid"], table["tgid"], np.ones(len(rows), bool)),
        "kind": _kinds(table, waits.cls[rows]),
        "target": Known(table["arg"], np.isin(kind, _WITH_TARGET)),
        "start_ns": start,
        "woken_ns": Known(woken, seen),
        "end_ns": end,
        "length_ns": end - start,
        "run_queue_ns": Known(end - woken, seen),
        "category": Chosen(waits.leaf[rows], [str(one) for one in CATEGORIES]),
        "by_actor": _people(describe, table["waker_tid"], table["waker_tgid"], by),
        "by_tid": Known(table["waker_tid"], by),
        "by_pid": Known(table["waker_tgid"], by & (table["waker_tgid"] > 0)),
        "by_call": Chosen(
            np.where(by & ~ready, call, len(calls)),
            [*(syscall_name(int(table["waker_syscall"][at])) or None for at in calls), None],
        ),
        "open": (flags & WaitFlag.OPEN) != 0,
    }
    return table_of(TABLES["waits"], columns)


def _people(
    describe: Describer,
    tid: NDArray[np.generic],
    tgid: NDArray[np.generic],
    known: NDArray[np.bool_],
) -> Chosen:
    """Labels of threads, traced or not; null where not known."""
    which, first = grouped(tid.astype(np.int64), tgid.astype(np.int64))
    labels: list[str | None] = []
    for at in first.tolist():
        actor = describe.stranger(int(tid[at]), int(tgid[at]))
        labels.append(actor.label if actor is not None else None)
    return Chosen(np.where(known, which, len(labels)), [*labels, None])


def _kinds(table: Table, cls: NDArray[np.uint8]) -> Chosen:
    """What each wait was in, without the numbers that differ from one to the next."""
    kind, op, call = (table[c].astype(np.int64) for c in ("wait_kind", "op", "syscall"))
    io = (kind == WaitKind.READ) | (kind == WaitKind.WRITE)
    throttled = (table["throttled_ns"] > 0).astype(np.int64)
    which, first = grouped(
        kind, np.where(io, op, 0), np.where(kind == WaitKind.OTHER, call, 0), throttled,
        (cls == WaitClass.GIL).astype(np.int64),
    )  # fmt: skip
    return Chosen(which, [_kind(table, at, int(cls[at])) for at in first.tolist()])


def _kind(table: Table, row: int, cls: int) -> str:
    if cls == WaitClass.GIL:
        return "interpreter lock"
    if table["throttled_ns"][row] > 0:
        return "throttled"
    return wait_name(table, row).partition(" 0x")[0].partition(" fd ")[0].strip()
