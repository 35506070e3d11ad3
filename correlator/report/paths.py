# SPDX-License-Identifier: Apache-2.0
"""The paths of many requests or steps as columns, for renderings that show them all at once.

Requests of one batch share most of their path, so a recording has many times more segments than
there are things to say of them: what is said (actor, category, span, cause) is made once, and rows
point to it. ``RequestReport`` has the same segments one by one, with their evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.causes import Describer
from gpucorrelate.correlator.report.values import Category, PhaseName
from gpucorrelate.correlator.search import grouped
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.values import Actor, Cause, Segment
    from gpucorrelate.correlator.requests import Request

    I64 = NDArray[np.int64]

PHASES = tuple(PhaseName)
_UNKNOWN = PHASES.index(PhaseName.UNKNOWN)
_NOT_SCHEDULED = [
    PHASES.index(phase) for phase in (PhaseName.ADMIT, PhaseName.QUEUE, PhaseName.BETWEEN)
]
_GPU = [CATEGORIES.index(one) for one in (Category.GPU, Category.GPU_EARLIER)]
_UNOBSERVED = CATEGORIES.index(Category.UNOBSERVED)
#: The walk's evidence that is an operation of a device (``causes``).
_OF_DEVICE = 4
#: About so many segments are in memory at a time, of one path at least.
_ROWS = 200_000
_FIRST, _MOST = 4, 256


@dataclass(frozen=True)
class Said:
    """What is said of a stretch, however often it occurs."""

    category: Category
    actor: Actor
    span: str
    cause: Cause | None


@dataclass(frozen=True)
class Stretches:
    """Segments of several paths, those of one path following each other.

    Attributes:
        owner: Whose path: a place among the requests or steps that were asked for.
        start_ns: Start.
        end_ns: End; the next one's start within a path.
        phase: Index into ``PHASES``.
        step: Number of the step it belongs to; -1 not known.
        slack_ns: Margin by which this predecessor was the last one; -1 nothing came close.
        which: Index into ``said``.
        said: What is said of them.
    """

    owner: I64
    start_ns: I64
    end_ns: I64
    phase: I64
    step: I64
    slack_ns: I64
    which: I64
    said: tuple[Said, ...]

    def __len__(self) -> int:
        return len(self.owner)


class PathFinder:
    """Walks paths of one recording."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._walker = Walker(run.states)
        self.describe = Describer(run.states, run.steps_)

    def requests(self, chosen: Sequence[Request]) -> Iterator[tuple[range, Stretches]]:
        """Paths of requests, some at a time: their places, and their stretches."""

        def walked(some: range) -> Stretches:
            own = [chosen[at] for at in some]
            legs = [self._legs(request) for request in own]
            owner = np.repeat(np.arange(len(own)), [len(part) for part in legs])
            phases = [[PHASES.index(cut.phase) for cut in request.cuts] for request in own]
            steps = [[cut.step for cut in request.cuts] for request in own]
            return self._walk([leg for part in legs for leg in part], owner, phases, steps)

        return _some_at_a_time(len(chosen), walked)

    def steps(self, chosen: Sequence[int]) -> Iterator[tuple[range, Stretches]]:
        """Paths of an engine's steps, by their index; those in flight have none."""
        s = self._run.steps_

        def walked(some: range) -> Stretches:
            ended = [(k, chosen[at]) for k, at in enumerate(some) if s.end_ns(chosen[at])]
            legs = []
            for _, i in ended:
                thread, start = self._run.states.threads.one(int(s.tid[i])), int(s.sched_ns[i])
                legs.append(LegSpec(thread, start, s.end_ns(i), (start,)))
            owner = np.array([k for k, _ in ended], np.int64)
            return self._walk(legs, owner, [[_UNKNOWN]] * len(some), [[chosen[at]] for at in some])

        return _some_at_a_time(len(chosen), walked)

    def profile(self, chosen: Sequence[int]) -> Iterator[tuple[range, Stretches]]:
        """Paths of a profile's steps, by their index."""
        for k, step in enumerate(chosen):
            outline, segments = self._run.devices.parts(step)
            yield range(k, k + 1), of_segments(segments, outline.step)

    def _legs(self, request: Request) -> list[LegSpec]:
        cuts = tuple(cut.t_ns for cut in request.cuts)
        return [
            LegSpec(
                self._run.states.threads.one(leg.tid),
                leg.start_ns,
                leg.end_ns,
                cuts,
                held_back=leg.held_back,
            )
            for leg in request.legs
        ]

    def _walk(
        self,
        legs: Sequence[LegSpec],
        owner: I64,
        phases: Sequence[Sequence[int]],
        steps: Sequence[Sequence[int]],
    ) -> Stretches:
        """Stretches of legs, each with its owner, whose cuts have these phases and steps."""
        rows = self._walker.walk(legs).segments
        own = owner[rows["leg"]] if len(rows) else np.zeros(0, np.int64)
        which, said = self._said(rows)
        place = rows["phase"].astype(np.int64)
        phase, cut_step = _by_cut(place, own, phases, steps)
        return _joined(
            Stretches(
                own, rows["start"].astype(np.int64), rows["end"].astype(np.int64), phase,
                self._step(rows, phase, cut_step), rows["slack"].astype(np.int64), which, said,
            ),
            place,
        )  # fmt: skip

    def _step(self, rows: NDArray[np.void], phase: I64, cut_step: I64) -> I64:
        """The step of each row: its operation's, its span's, or that of the phase; -1 none."""
        states, number = self._run.states, self._run.steps_.number
        spans, span = states.spans, rows["span"].astype(np.int64)
        of_span = np.append(spans.step, 0)[np.append(spans.row, len(spans.step))[span]]
        of_span = np.where(span >= 0, of_span, 0)
        scheduled = (cut_step >= 0) & ~np.isin(phase, _NOT_SCHEDULED)
        of_phase = np.where(scheduled, np.append(number, -1)[cut_step], -1)
        found = np.where(of_span > 0, of_span, of_phase)
        steps = states.device_steps
        op = np.where(np.isin(rows["category"], _GPU), rows["evidence"], -1).astype(np.int64)
        owner = np.append(steps.of, -1)[op]
        owner_number = np.append(steps.number.astype(np.int64), -1)[owner]
        return np.where(op >= 0, np.where(owner_number > 0, owner_number, -1), found)

    def _said(self, rows: NDArray[np.void]) -> tuple[I64, tuple[Said, ...]]:
        """What is said of rows: its number for each, and all of it."""
        if not len(rows):
            return np.zeros(0, np.int64), ()
        number, first = grouped(*self._keys(rows))
        seen: dict[Said, int] = {}
        of = []
        for at in first.tolist():
            (segment,) = self.describe.segments(rows[at : at + 1], ())
            of.append(seen.setdefault(_said_of(segment), len(seen)))
        return np.array(of, np.int64)[number], tuple(seen)

    def _keys(self, rows: NDArray[np.void]) -> tuple[I64, ...]:
        """Columns that agree in rows of which the same is said.

        Of what a row rests on only that counts which has words: spans by their names, operations
        of a device by their names and those of their launches. Making the words costs more than
        all the rest, and a profile has a thousand operations of a name.
        """
        spans = self._run.states.spans
        span = rows["span"].astype(np.int64)
        row = spans.row[span] if len(spans.row) else np.zeros(len(span), np.int64)
        name = np.where(span >= 0, spans.name[row] if len(spans.name) else 0, -1)
        # Why a thread was not observed depends on when; nothing else does.
        moment = np.where(rows["category"] == _UNOBSERVED, rows["start"], 0)
        evidence = rows["evidence"].astype(np.int64)
        alike = self._alike
        on_device = (rows["evidence_kind"] == _OF_DEVICE) & (evidence >= 0)
        if on_device.any():
            evidence = np.where(on_device, alike[np.where(on_device, evidence, 0)], evidence)
        plain = ("actor", "related", "held", "category", "evidence_kind", "inferred")
        return (
            *(rows[column].astype(np.int64) for column in plain),
            evidence, name.astype(np.int64), moment.astype(np.int64),
        )  # fmt: skip

    @cached_property
    def _alike(self) -> I64:
        """A number for each operation of a device, the same where the same is said of them."""
        states = self._run.states
        ops, calls = states.device.ops, states.device.calls
        name = ops.table["name"].astype(np.int64)
        pred, call = states.path.pred, ops.call
        called = np.append(calls.table["name"].astype(np.int64), -1)[call]
        thread = np.append(calls.thread.astype(np.int64), -1)[call]
        number, _ = grouped(
            name, ops.table["op"].astype(np.int64), np.append(name, -1)[pred],
            np.append(ops.table["op"].astype(np.int64), -1)[pred], called, thread,
        )  # fmt: skip
        return number


def _some_at_a_time(
    count: int, walked: Callable[[range], Stretches]
) -> Iterator[tuple[range, Stretches]]:
    """Paths as many at a time as memory should hold, as far as the last ones tell."""
    at, many = 0, _FIRST
    while at < count:
        some = range(at, min(at + many, count))
        found = walked(some)
        yield some, found
        at = some.stop
        many = max(1, min(_MOST, _ROWS * len(some) // max(1, len(found))))


def _said_of(segment: Segment) -> Said:
    return Said(segment.category, segment.actor, segment.span, segment.cause)


def of_segments(segments: Iterable[Segment], step: int = -1) -> Stretches:
    """The path of one step of a profile."""
    seen: dict[Said, int] = {}
    rows = [
        (one.start_ns, one.end_ns, one.step or step,
         -1 if one.slack_ns is None else one.slack_ns,
         seen.setdefault(_said_of(one), len(seen)))
        for one in segments
    ]  # fmt: skip
    start, end, steps, slack, which = np.array(rows, np.int64).reshape(-1, 5).T
    same = np.zeros(len(rows), np.int64)
    return Stretches(same, start, end, same + _UNKNOWN, steps, slack, which, tuple(seen))


def _by_cut(
    place: I64, owner: I64, phases: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> tuple[I64, I64]:
    """Phase and step of the cut that each row is behind: place among those of its owner."""
    counts = np.array([len(own) for own in phases], np.int64)
    off = np.concatenate(([0], np.cumsum(counts)))
    flat = np.array([phase for own in phases for phase in own], np.int64)
    flat_steps = np.array([step for own in steps for step in own], np.int64)
    good = (place >= 0) & (place < counts[owner]) if len(owner) else place >= 0
    at = np.where(good, off[owner] + place, 0) if len(owner) else place
    return (
        np.where(good, flat[at], _UNKNOWN) if len(flat) else np.full(len(place), _UNKNOWN),
        np.where(good, flat_steps[at], -1) if len(flat) else np.full(len(place), -1),
    )


def _joined(one: Stretches, cut: I64) -> Stretches:
    """Stretches that follow each other and of which the same is said, as one.

    Args:
        one: The stretches.
        cut: The cut that each is behind: two phases may have one name.
    """
    if not len(one):
        return one
    keys = (one.owner, cut, one.step, one.which)
    new = np.ones(len(one), bool)
    new[1:] = one.start_ns[1:] != one.end_ns[:-1]
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:], [len(one)])) - 1
    return Stretches(
        one.owner[first], one.start_ns[first], one.end_ns[last], one.phase[first],
        one.step[first], one.slack_ns[last], one.which[first], one.said,
    )  # fmt: skip
