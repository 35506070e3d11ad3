# SPDX-License-Identifier: Apache-2.0
"""Threads' states as slices: on a CPU, waiting in something, ready and without a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.causes import syscall_name, wait_name
from gpucorrelate.correlator.report.perfetto.scene import mapped, together
from gpucorrelate.correlator.report.perfetto.writer import Flows, Slices
from gpucorrelate.correlator.search import grouped
from gpucorrelate.correlator.states import CATEGORIES, WaitClass
from gpucorrelate.probes.wire.schema import WaitFlag, WaitKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Table
    from gpucorrelate.correlator.gaps import Windows
    from gpucorrelate.correlator.report.perfetto.scene import Scene
    from gpucorrelate.correlator.states import States, Waits

    I64 = NDArray[np.int64]
    Mask = NDArray[np.bool_]

WAIT, READY, RUNNING, UNSEEN, WAKE = "wait", "ready", "running", "not observed", "wake"
TRACK = "state"

_NO_THREAD = WaitFlag.WAKE_TIMER | WaitFlag.WAKE_IRQ | WaitFlag.WAKE_IDLE
_NOTES = (
    (WaitFlag.OPEN, "still waiting when it was reported"),
    (WaitFlag.START_UNKNOWN, "began before tracing did"),
)
_READY_KINDS = (WaitKind.PREEMPTED, WaitKind.YIELD)


@dataclass(frozen=True)
class _Stretches:
    """Intervals of threads, by index; ``row`` is the wait before each, -1 none."""

    thread: I64
    start_ns: I64
    end_ns: I64
    row: I64

    def select(self, at: NDArray[np.generic]) -> _Stretches:
        return _Stretches(self.thread[at], self.start_ns[at], self.end_ns[at], self.row[at])


def draw(scene: Scene) -> None:
    """Draws the states of all threads, and an arrow from every waker to whom it woke."""
    states = scene.run.states
    waits = states.waits
    thread = np.repeat(np.arange(len(states.threads.tid)), np.diff(waits.off))
    rows = np.flatnonzero(scene.window.holds(waits.start_ns, waits.end_ns))
    running, unseen = _running(states, thread)
    running, unseen = (
        part.select(scene.window.holds(part.start_ns, part.end_ns)) for part in (running, unseen)
    )
    ready = _ready_from(waits)[rows]
    has_ready = ready < waits.end_ns[rows]
    woken = _wakes(scene, waits, rows)
    first = scene.writer.flows(int(woken.sum()))
    flow = np.zeros(len(waits.start_ns) + 1, np.int64)
    flow[rows[woken]] = first + np.arange(int(woken.sum()))
    _draw_wakes(scene, rows[woken], flow)
    parts = [
        _waits(scene, rows, ready),
        _ready(scene, rows[has_ready], ready[has_ready], flow),
        _ran(scene, running, np.where(_has(rows[has_ready], len(flow)), 0, flow)),
        _plain(scene, unseen, UNSEEN),
    ]
    whose = np.concatenate([thread[rows], thread[rows[has_ready]], running.thread, unseen.thread])
    used, group = np.unique(whose, return_inverse=True)
    tracks = [_track(scene, int(one)) for one in used.tolist()]
    spares = [(TRACK, scene_thread(scene, int(one))) for one in used.tolist()]
    scene.writer.each_slices(group, tracks, together(parts), spares, nested=False)


def _has(rows: I64, count: int) -> Mask:
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask


def scene_thread(scene: Scene, thread: int) -> int:
    """The track of a thread by its index."""
    threads = scene.run.states.threads
    return scene.thread(int(threads.tid[thread]), int(threads.tgid[thread]))


def _track(scene: Scene, thread: int) -> int:
    return scene.below(scene_thread(scene, thread), TRACK)


def _ready_from(waits: Waits) -> I64:
    """Since when each wait's thread could have run; the wait's end where that is not known.

    A thread that was preempted could all along: its wait says so by its name.
    """
    known = (waits.wake_ns > 0) & (waits.cls != WaitClass.PREEMPTED)
    ready = np.clip(waits.wake_ns, waits.start_ns, waits.end_ns)
    return np.where(known, ready, waits.end_ns)


def _running(states: States, thread: I64) -> tuple[_Stretches, _Stretches]:
    """Between its waits a traced thread ran, unless records were lost then."""
    threads, waits = states.threads, states.waits
    count = np.diff(waits.off)
    last_row = np.zeros(len(thread), bool)
    last_row[waits.off[1:][count > 0] - 1] = True
    following = np.append(waits.start_ns[1:], 0)
    until = np.where(last_row, threads.last_ns[thread], following)
    everyone = np.arange(len(threads.tid))
    first_wait = np.append(waits.start_ns, 0)[np.minimum(waits.off[:-1], len(waits.start_ns))]
    born_until = np.where(count > 0, first_wait, threads.last_ns)
    every = _Stretches(
        np.concatenate([everyone, thread]),
        np.concatenate([threads.first_ns, waits.end_ns]),
        np.concatenate([born_until, until]),
        np.concatenate([np.full(len(everyone), -1), np.arange(len(thread))]),
    )
    every = every.select((every.end_ns > every.start_ns) & threads.traced[every.thread])
    return _split(every, states.lost, np.searchsorted(states.processes, threads.tgid))


def _split(one: _Stretches, lost: Windows, process: I64) -> tuple[_Stretches, _Stretches]:
    """What lies outside windows of loss of each one's process, and what lies within."""
    if not len(lost.start_ns):
        return one, one.select(np.zeros(0, np.int64))
    outside: list[_Stretches] = []
    inside: list[_Stretches] = []
    for p in np.unique(process[one.thread]).tolist():
        own = one.select(process[one.thread] == p)
        low, high = int(lost.off[p]), int(lost.off[p + 1])
        begin, finish = lost.start_ns[low:high], lost.end_ns[low:high]
        first = np.searchsorted(finish, own.start_ns, side="right")
        many = np.maximum(np.searchsorted(begin, own.end_ns) - first, 0)
        at = np.repeat(np.arange(len(many)), many)
        k = np.arange(len(at)) - np.repeat(np.cumsum(many) - many, many) + first[at]
        inside.append(_cut(own, at, begin[k], finish[k]))
        # Before each window, and behind the last.
        edge = np.arange(len(many))
        starts = np.concatenate([own.start_ns, finish[k]])
        whose = np.concatenate([edge, at])
        order = np.lexsort((starts, whose))
        starts, whose = starts[order], whose[order]
        ends = np.concatenate([begin[k], own.end_ns])
        ends = ends[np.lexsort((ends, np.concatenate([at, edge])))]
        outside.append(_cut(own, whose, starts, ends))
    return _all(outside), _all(inside)


def _cut(own: _Stretches, at: I64, start: I64, end: I64) -> _Stretches:
    start, end = np.maximum(start, own.start_ns[at]), np.minimum(end, own.end_ns[at])
    made = _Stretches(own.thread[at], start, end, own.row[at])
    return made.select(end > start)


def _all(parts: list[_Stretches]) -> _Stretches:
    names = ("thread", "start_ns", "end_ns", "row")
    empty = np.zeros(0, np.int64)
    return _Stretches(*(np.concatenate([empty, *(getattr(p, n) for p in parts)]) for n in names))


# -- wakes


def _wakes(scene: Scene, waits: Waits, rows: I64) -> Mask:
    """Which of the rows a thread on record ended, rather than an interrupt that hit it."""
    table = waits.table
    cls = waits.cls[rows]
    known = scene.run.states.threads.index(table["waker_tid"][rows]) >= 0
    by_thread = (cls == WaitClass.MESSAGE) | (cls == WaitClass.LOCK) | (cls == WaitClass.GIL)
    hit = (table["flags"][rows] & _NO_THREAD) != 0
    return np.asarray(known & by_thread & ~hit & (waits.wake_ns[rows] > 0), bool)


def _draw_wakes(scene: Scene, rows: I64, flow: I64) -> None:
    states, writer = scene.run.states, scene.writer
    table = states.waits.table
    waker = states.threads.index(table["waker_tid"][rows])
    used, which = np.unique(waker, return_inverse=True)
    tracks = np.array([_track(scene, int(one)) for one in used.tolist()], np.int64)[which]
    wake = states.waits.wake_ns[rows]
    name = np.full(len(rows), writer.names("wake"), np.int64)
    whom = scene.who(table["tid"][rows], table["tgid"][rows])
    args = (writer.text("wakes", whom), writer.text("in", _calls(scene, table, rows)))
    flows = Flows(flow[rows], np.ones(len(rows), np.int64))
    writer.moments(tracks, Slices(wake, wake, name, writer.categories(WAKE), args, flows))


# -- slices


def _waits(scene: Scene, rows: I64, ready: I64) -> Slices:
    waits, writer = scene.run.states.waits, scene.writer
    table = waits.table.select(rows)
    idle = np.isin(table["wait_kind"], _READY_KINDS) | (table["throttled_ns"] > 0)
    who = scene.who(table["waker_tid"], table["waker_tgid"])
    futex = table["wait_kind"] == WaitKind.FUTEX
    arg = table["arg"].astype(np.int64)
    with_fd = np.isin(
        table["wait_kind"],
        (WaitKind.READ, WaitKind.WRITE, WaitKind.EPOLL, WaitKind.IO_URING, WaitKind.IOCTL),
    )
    flags = table["flags"]
    return Slices(
        waits.start_ns[rows],
        ready,
        _names(scene, table, waits.cls[rows]),
        writer.categories(WAIT),
        (
            writer.text("woken by", np.where(idle, 0, who)),
            writer.text("ran instead", np.where(idle, who, 0)),
            writer.text("in", np.where(idle, 0, _calls(scene, table, np.arange(len(rows))))),
            writer.text("ended by", _ended_by(scene, waits, rows)),
            writer.text("note", _flag_notes(scene, flags)),
            writer.pointer("futex", np.where(futex, arg, 0)),
            writer.number("fd", np.where(with_fd, arg, -1)),
        ),
    )


def _names(scene: Scene, table: Table, cls: NDArray[np.uint8]) -> I64:
    """A name for each wait, without what differs from one to the next."""
    kind, op, call = (table[c].astype(np.int64) for c in ("wait_kind", "op", "syscall"))
    io = (kind == WaitKind.READ) | (kind == WaitKind.WRITE)
    throttled = (table["throttled_ns"] > 0).astype(np.int64)
    number, first = grouped(
        kind, np.where(io, op, 0), np.where(kind == WaitKind.OTHER, call, 0), throttled,
        (cls == WaitClass.GIL).astype(np.int64),
    )  # fmt: skip
    found = [scene.writer.names(_name(table, at, int(cls[at]))) for at in first.tolist()]
    return np.array(found, np.int64)[number]


def _name(table: Table, row: int, cls: int) -> str:
    if cls == WaitClass.GIL:
        return "interpreter lock"
    if table["throttled_ns"][row] > 0:
        return "throttled"
    if table["wait_kind"][row] == WaitKind.YIELD:
        return "preempted in sched_yield"
    return wait_name(table, row).partition(" 0x")[0].partition(" fd ")[0].strip()


def _calls(scene: Scene, table: Table, rows: I64) -> I64:
    """The waker's system call as a detail."""

    def named(number: int) -> int:
        name = syscall_name(number)
        return scene.writer.texts(name) if name else 0

    return mapped(table["waker_syscall"][rows], named)


def _ended_by(scene: Scene, waits: Waits, rows: I64) -> I64:
    return mapped(waits.leaf[rows], lambda one: scene.writer.texts(str(CATEGORIES[one])))


def _flag_notes(scene: Scene, flags: NDArray[np.generic]) -> I64:
    def told(value: int) -> int:
        words = "; ".join(words for flag, words in _NOTES if value & flag)
        return scene.writer.texts(words) if words else 0

    return mapped(flags, told)


def _ready(scene: Scene, rows: I64, since: I64, flow: I64) -> Slices:
    waits, writer = scene.run.states.waits, scene.writer
    table = waits.table.select(rows)
    return Slices(
        since,
        waits.end_ns[rows],
        np.full(len(rows), writer.names("ready, no CPU"), np.int64),
        writer.categories(READY),
        (writer.text("ran instead", scene.who(table["ran_tid"], table["ran_tgid"])),),
        Flows(into=flow[rows]),
    )


def _ran(scene: Scene, running: _Stretches, flow: I64) -> Slices:
    waits, writer = scene.run.states.waits, scene.writer
    cpu = np.append(waits.table["cpu"].astype(np.int64), -1)[running.row]
    # The arrow goes to the moment right behind the wait, not to a later part of the stretch.
    behind = running.start_ns == np.append(waits.end_ns, -1)[running.row]
    return Slices(
        running.start_ns,
        running.end_ns,
        np.full(len(cpu), writer.names("running"), np.int64),
        writer.categories(RUNNING),
        (writer.number("cpu", cpu),),
        Flows(into=np.where(behind, flow[running.row], 0)),
    )


def _plain(scene: Scene, stretches: _Stretches, name: str) -> Slices:
    writer = scene.writer
    number = np.full(len(stretches.thread), writer.names(name), np.int64)
    return Slices(stretches.start_ns, stretches.end_ns, number, writer.categories(name))
