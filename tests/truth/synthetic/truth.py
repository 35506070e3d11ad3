# SPDX-License-Identifier: Apache-2.0
"""The critical path by what the simulator knows, backward from an end.

At every moment one actor holds the path. Where a thread ran, that is it. Where it blocked, the
path goes to the source of the piece, which the simulator linked when it ended the wait. Of the
rules by which reports are read, three are conventions, and are applied here as they are stated:
a wait for a lock is explained by whoever had it, back to when the waiter blocked, and then the
path is the waiter's again; an idle wait (a timer, the network, another process) that began before
somebody blocked explains no more than that wait; and what happened between two joined moments of a
request is explained from the later moment's thread on. Nothing here looks at records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import Category
from tests.truth.synthetic.device import Op
from tests.truth.synthetic.machine import Did, Piece, Stranger, Thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.truth.synthetic.engine import Engine
    from tests.truth.synthetic.workload import Asked

Who = Thread | Stranger | None


@dataclass(frozen=True)
class Stretch:
    """A stretch of the path.

    Attributes:
        start: Start.
        end: End.
        category: What the holder did, or what held it up.
        actor: Who held the path.
        culprits: Whose doing it was: any of these; empty for nobody.
        span: The actor's named phase, or the operation's name.
        step: The step of an operation; 0 of none.
        untold: Whether it is part of a wait that ended without anybody ending it.
    """

    start: int
    end: int
    category: Category
    actor: Thread | Op
    culprits: tuple[Who, ...] = ()
    span: str = ""
    step: int = 0
    untold: bool = False


@dataclass
class Hop:
    """A wait through which the path went: the part of it that lies on the path.

    Attributes:
        start: Where the path left the wait: it began then, or the path went elsewhere.
        end: Where the path entered it.
        waiter: Who waited.
        source: Who ended the wait.
        since: When the wait began, or the path's start.
        lock: Whether it was for a lock.
        last: For a wait for the interpreter lock, who let go of it in the end.
        untold: Whether nobody did who could be recorded.
    """

    start: int
    end: int
    waiter: Thread
    source: Thread | Op
    since: int
    lock: bool
    last: Thread | None = None
    untold: bool = False


@dataclass
class _Waiter:
    """Somebody whom the path left: when it blocked, and what for."""

    since: int
    thread: Thread
    did: Did
    hop: Hop
    untold: bool = False


class Truth:
    """Explains stretches of time."""

    def __init__(self) -> None:
        self._ends: dict[Thread, list[int]] = {}

    def path(self, thread: Thread, start: int, end: int) -> Path:
        """The path in ``(start, end]``, ending on a thread."""
        return Path(self, thread, start, end)

    def piece(self, thread: Thread, moment: int) -> Piece | None:
        """What a thread did just before a moment."""
        ends = self._ends.get(thread)
        if ends is None or len(ends) != len(thread.pieces):
            ends = self._ends[thread] = [piece.end for piece in thread.pieces]
        at = bisect_left(ends, moment)
        if at == len(ends):
            return None
        piece = thread.pieces[at]
        assert piece.start < moment
        return piece

    def request(self, asked: Asked, engine: Engine) -> list[Path]:
        """A request's path, leg by leg between its joined moments, oldest first."""
        made = asked.made[-1]
        return [
            self.path(engine.loop, asked.received, asked.sent),
            self.path(engine.main, asked.sent, asked.admitted),
            self.path(engine.main, asked.admitted, asked.first_scheduled),
            self.path(engine.main, asked.first_scheduled, made),
            self.path(engine.loop, made, asked.last_byte),
        ]

    def first_token(self, asked: Asked, engine: Engine) -> list[Path]:
        """The path to a request's first token."""
        return [
            *self.request(asked, engine)[:3],
            self.path(engine.main, asked.first_scheduled, asked.made[0]),
            self.path(engine.loop, asked.made[0], asked.written[0]),
        ]


class Path:
    """One path: stretches and the waits it went through, oldest first."""

    def __init__(self, truth: Truth, thread: Thread, start: int, end: int) -> None:
        self._truth, self.start, self.now = truth, start, end
        self.stretches: list[Stretch] = []
        self.hops: list[Hop] = []
        self._left: list[_Waiter] = []
        at: Thread | Op = thread
        while self.now > start:
            at = self._return(at)
            at = self._through_op(at) if isinstance(at, Op) else self._through(at)
        self._drop(0)
        self.stretches.reverse()
        self.hops.reverse()

    def _spend(
        self, since: int, category: Category, actor: Thread | Op, culprits: Sequence[Who] = (),
        span: str = "", step: int = 0,
    ) -> None:  # fmt: skip
        """Back to a moment, or to where somebody's wait for a lock has to be returned to."""
        since = max(since, self._floor())
        if since < self.now:
            untold = any(w.untold for w in self._left)
            self.stretches.append(
                Stretch(since, self.now, category, actor, tuple(culprits), span, step,
                        untold=untold)
            )  # fmt: skip
            self.now = since

    def _floor(self) -> int:
        since = [w.since for w in self._left if w.did is not Did.MESSAGE]
        return max([self.start, *since])

    def _return(self, at: Thread | Op) -> Thread | Op:
        """Back to whoever waited for a lock, at the moment it blocked."""
        while True:
            over = [w for w in self._left if w.did is not Did.MESSAGE and w.since >= self.now]
            if not over:
                break
            last = max(over, key=lambda w: w.since)
            self._drop(self._left.index(last))
            at = last.thread
        self._left = [w for w in self._left if w.since < self.now]
        return at

    def _drop(self, k: int) -> None:
        """The path is back at the waiter of number ``k``: it has left all waits from there on."""
        for waiter in self._left[k:]:
            waiter.hop.start = max(self.now, waiter.hop.since)
        del self._left[k:]

    def _leave(self, thread: Thread, piece: Piece, did: Did, to: Thread | Op) -> None:
        since = max(piece.start, self.start)
        hop = Hop(since, self.now, thread, to, since, did is not Did.MESSAGE)
        self.hops.append(hop)
        self._left.append(_Waiter(piece.start, thread, did, hop))

    def _through_op(self, op: Op) -> Thread | Op:
        by = (op.thread,)
        self._spend(op.start, Category.GPU, op, by, op.name, op.step)
        enabler = op.enabler
        if enabler is not None:
            self._spend(enabler.end, Category.QUEUE_GAP, op)
            return enabler if self.now <= enabler.end else op
        self._spend(op.call_end, Category.LAUNCH_GAP, op, by)
        return op.thread if self.now <= op.call_end else op

    def _through(self, thread: Thread) -> Thread | Op:
        piece = self._truth.piece(thread, self.now)
        if piece is None:
            self._spend(self.start, Category.UNOBSERVED, thread)
            return thread
        if piece.did is Did.RUN:
            self._ran(thread, piece)
            return thread
        if piece.did in (Did.NO_CPU, Did.HANDOFF, Did.WORK):
            self._spend(piece.start, piece.category, thread, (piece.source,), piece.span)
            return thread
        if piece.did is Did.LEAF:
            return self._idle(thread, piece)
        if piece.did is Did.GIL:
            return self._interpreter_lock(thread, piece)
        did = Did.LOCK if piece.did is Did.LOCK else Did.MESSAGE
        self._leave(thread, piece, did, piece.source)
        return piece.source  # type: ignore[no-any-return]

    def _ran(self, thread: Thread, piece: Piece) -> None:
        waiters = [w for w in self._left if w.did is not Did.MESSAGE and w.thread is not thread]
        gil = any(w.did is Did.GIL for w in self._left)
        category = piece.category
        if gil and category is Category.CPU:
            category = Category.GIL
        held = [w.thread for w in waiters] if category is not Category.PAGE_FAULT else []
        self._spend(piece.start, category, thread, held, piece.span)

    def _idle(self, thread: Thread, piece: Piece) -> Thread:
        """An idle wait: it explains the wait of whoever blocked last after it had begun."""
        within = [
            w for w in self._left if w.did is Did.MESSAGE and piece.start < w.since < self.now
        ]
        if not within:
            self._spend(piece.start, piece.category, thread, (piece.source,))
            return thread
        last = max(reversed(within), key=lambda w: w.since)
        self._spend(last.since, piece.category, thread, (piece.source,))
        if self.now > last.since:
            return thread
        self._drop(self._left.index(last))
        return last.thread

    def _interpreter_lock(self, thread: Thread, piece: Piece) -> Thread:
        """To whoever had the interpreter lock then; a holder waited for it before it had it."""
        held = piece.lock.held
        at = bisect_right(held, self.now - 1, key=lambda one: one[0]) - 1
        holder: Thread = held[at][1]
        assert holder is not thread
        if not any(w.did is Did.GIL for w in self._left):
            self._leave(thread, piece, Did.GIL, holder)
            self.hops[-1].last, self.hops[-1].untold = piece.source, piece.untold
            self._left[-1].untold = piece.untold
        return holder
