# SPDX-License-Identifier: Apache-2.0
"""Requests and steps as slices: what they were, and below it their critical paths."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.native import trace
from gpucorrelate.correlator.report.paths import PHASES
from gpucorrelate.correlator.report.perfetto.scene import REQUESTS_RANK, together
from gpucorrelate.correlator.report.perfetto.writer import Slices
from gpucorrelate.correlator.search import nested_order
from gpucorrelate.correlator.steps import status_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.paths import Stretches
    from gpucorrelate.correlator.report.perfetto.scene import Scene
    from gpucorrelate.correlator.requests import Request

    I64 = NDArray[np.int64]

REQUEST, PHASE, PATH, TOKEN, STEP = "request", "phase", "critical path", "token", "step"
_REQUESTS, _STEPS = "requests", "steps"
#: Requests whose phases and paths are in memory at a time.
_BATCH = 256


def draw_requests(scene: Scene, chosen: Sequence[int] | None) -> None:
    """Draws requests, their phases, tokens, and the critical paths of those that are chosen.

    Args:
        scene: The recording.
        chosen: Their places in order of arrival; ``None``: all of them.
    """
    every = scene.run.requests_
    start, end = (np.array([getattr(r, n) for r in every], np.int64)
                  for n in ("arrival_ns", "end_ns"))  # fmt: skip
    shown = np.flatnonzero(scene.window.holds(start, end)).tolist()
    if not shown:
        return
    row = _rows(start[shown], end[shown])
    parent = scene.below(0, "requests, and who held them up", REQUESTS_RANK)
    tracks = [scene.writer.track(_REQUESTS, parent) for _ in range(int(row.max()) + 1)]
    spares = [(_REQUESTS, parent)] * len(tracks)
    places = dict(zip(shown, row.tolist(), strict=True))
    told = shown if chosen is None else [i for i in chosen if i in places]
    rest = sorted(set(shown) - set(told))
    empty = (rest[at : at + _BATCH] for at in range(0, len(rest), _BATCH))
    walked = (
        ([told[at] for at in some], path)
        for some, path in scene.paths.requests([every[i] for i in told])
    )
    for some, path in itertools.chain(walked, ((some, None) for some in empty)):
        where = np.array([places[i] for i in some], np.int64)
        requests = [every[i] for i in some]
        parts, groups = _requests(scene, requests, where)
        if path is not None:
            groups.append(where[path.owner])
            parts.append(path_slices(scene, path))
        scene.writer.each_slices(
            np.concatenate(groups), tracks, together(parts), spares, nested=True
        )
        _tokens(scene, [(tracks[k], r) for k, r in zip(where.tolist(), requests, strict=True)])


def _tokens(scene: Scene, some: Sequence[tuple[int, Request]]) -> None:
    """Marks where tokens of requests were written, or had been processed if that is not known."""
    writer = scene.writer
    rows = [
        (track, token.written_ns or token.processed_ns, k, token.step, token.made_ns)
        for track, request in some
        for k, token in enumerate(request.tokens)
    ]
    track, t, index, step, made = np.array(rows, np.int64).reshape(-1, 5).T
    args = (
        writer.number("token", index),
        writer.number("step", _numbers(scene, step)),
        writer.number("since it was made, ns", t - made),
    )
    name = np.full(len(rows), writer.names("token out"), np.int64)
    writer.moments(track, Slices(t, t, name, writer.categories(TOKEN), args))


def _rows(start: I64, end: I64) -> I64:
    """A row for each interval, none overlapping another in its row."""
    order = nested_order(np.zeros(len(start), np.int64), start, end)
    row = np.empty(len(start), np.int64)
    row[order], _ = trace.rows(
        np.zeros(len(start), np.int64), start[order], end[order], nested=False
    )
    return row


def _requests(scene: Scene, requests: list[Request], where: I64) -> tuple[list[Slices], list[I64]]:
    """Slices of requests and of their phases, each with its row."""
    writer = scene.writer

    def numbers(values: Iterator[int | None]) -> I64:
        return np.array([-1 if v is None else v for v in values], np.int64)

    def texts(values: Iterator[str]) -> I64:
        return np.array([writer.texts(v) if v else 0 for v in values], np.int64)

    whole = Slices(
        numbers(r.arrival_ns for r in requests),
        numbers(r.end_ns for r in requests),
        writer.names.all(r.external_id or "request" for r in requests),
        writer.categories(REQUEST),
        (
            writer.text("status", texts(r.status for r in requests)),
            writer.text("engine's id", texts(r.internal_id for r in requests)),
            writer.number("tokens in", numbers(r.tokens_in for r in requests)),
            writer.number("tokens out", numbers(r.tokens_out for r in requests)),
            writer.number("time to first token, ns", numbers(
                None if r.first_token_ns is None else r.first_token_ns - r.arrival_ns
                for r in requests
            )),
            writer.text("begins", texts(r.arrival_what for r in requests)),
            writer.text("ends", texts(r.end_what for r in requests)),
        ),
    )  # fmt: skip
    phases = [
        (place, cut.t_ns, end, PHASES.index(cut.phase), cut.step)
        for place, r in zip(where.tolist(), requests, strict=True)
        for cut, end in zip(r.cuts, [*(c.t_ns for c in r.cuts[1:]), r.end_ns], strict=True)
        if end > cut.t_ns
    ]
    place, start, end, phase, step = np.array(phases, np.int64).reshape(-1, 5).T
    known = [writer.names(str(one)) for one in PHASES]
    in_phases = Slices(
        start, end, np.array(known, np.int64)[phase], writer.categories(PHASE),
        (writer.number("step", _numbers(scene, step)),),
    )  # fmt: skip
    return [whole, in_phases], [where, place]


def _numbers(scene: Scene, step: I64) -> I64:
    """Steps' numbers by their indices; -1 for none."""
    number = scene.run.steps_.number
    return np.where(step >= 0, number[step], -1) if len(number) else np.full(len(step), -1)


def path_slices(scene: Scene, path: Stretches) -> Slices:
    """A path's stretches: category and actor by name, the cause as a detail."""
    writer = scene.writer
    names, actors, spans, causes = (np.zeros(len(path.said), np.int64) for _ in range(4))
    for k, said in enumerate(path.said):
        who = said.actor.shown
        names[k] = writer.names(
            f"{said.category}: {said.actor.label}{said.span and ' ' + said.span}"
        )
        actors[k] = writer.texts(who)
        spans[k] = writer.texts(said.span) if said.span else 0
        causes[k] = writer.texts(said.cause.text) if said.cause is not None else 0
    which = path.which
    return Slices(
        path.start_ns,
        path.end_ns,
        names[which],
        writer.categories(PATH),
        (
            writer.text("held by", actors[which]),
            writer.text("span", spans[which]),
            writer.text("cause", causes[which]),
            writer.number("step", path.step),
            writer.number("slack, ns", path.slack_ns),
        ),
    )


def draw_steps(scene: Scene) -> None:
    """Draws an engine's steps, which may overlap, and their critical paths."""
    s = scene.run.steps_
    end = np.array([s.end_ns(i) for i in range(len(s))], np.int64)
    open_ = end == 0
    end = np.where(open_, max(scene.run.states.end_ns, int(s.sched_ns.max(initial=0))), end)
    shown = np.flatnonzero(scene.window.holds(s.sched_ns, end))
    for tid in np.unique(s.tid[shown]).tolist():
        own = shown[s.tid[shown] == tid]
        at = scene.run.states.threads.one(tid)
        pid = int(scene.run.states.threads.tgid[at]) if at >= 0 else 0
        parent = scene.process(pid)
        row = _rows(s.sched_ns[own], end[own])
        tracks = [scene.writer.track(_STEPS, parent, -2) for _ in range(int(row.max()) + 1)]
        spares = [(_STEPS, parent)] * len(tracks)
        for some, path in scene.paths.steps(own.tolist()):
            place = np.array(some, np.int64)
            parts = [_steps(scene, own[place], end[own[place]], open_[own[place]])]
            parts.append(path_slices(scene, path))
            groups = np.concatenate([row[place], row[place][path.owner]])
            scene.writer.each_slices(groups, tracks, together(parts), spares, nested=True)
        _step_counters(scene, parent, own)


def _steps(scene: Scene, own: I64, end: I64, open_: NDArray[np.bool_]) -> Slices:
    s, writer = scene.run.steps_, scene.writer
    names = [f"{s.kind(i)} step {int(s.number[i])}" for i in own.tolist()]
    status = [
        "in flight" if unended else status_name(int(s.status[i]))
        for i, unended in zip(own.tolist(), open_.tolist(), strict=True)
    ]
    worker = [s.worker_ns(i) for i in own.tolist()]
    return Slices(
        s.sched_ns[own],
        end,
        writer.names.all(names),
        writer.categories(STEP),
        (
            writer.number("step", s.number[own]),
            writer.text("status", writer.texts.all(status)),
            writer.number("rows", s.rows[own]),
            writer.number("tokens", s.tokens[own]),
            writer.number("prompt tokens", s.prefill_tokens[own]),
            writer.number("requests waiting", s.waiting[own]),
            writer.number(
                "workers busy, ns", np.array([-1 if w is None else w for w in worker], np.int64)
            ),
        ),
    )


def _step_counters(scene: Scene, parent: int, own: I64) -> None:
    s = scene.run.steps_
    for name, values in (
        ("requests in the step", s.rows),
        ("requests waiting", s.waiting),
        ("tokens in the step", s.tokens),
    ):
        scene.writer.readings(name, parent, "", s.begin_ns[own], values[own])


def draw_profile_steps(scene: Scene, chosen: Sequence[int] | None) -> None:
    """Draws a profile's steps, and the critical paths of those that are chosen or of all."""
    steps, writer = scene.run.states.device_steps, scene.writer
    told = set(range(len(steps.number)) if chosen is None else chosen)
    shown = np.flatnonzero(scene.window.holds(steps.start_ns, steps.end_ns)).tolist()
    shown = sorted({*shown, *(chosen or ())})
    for process in np.unique(steps.process[shown]).tolist():
        own = [i for i in shown if steps.process[i] == process]
        start, end, paths = steps.start_ns[own], steps.end_ns[own].copy(), []
        for k, i in enumerate(own):
            if i in told:
                _, path = next(scene.paths.profile([i]))
                paths.append((k, path))
                # A step's work on the device outlives its calls.
                start[k] = min(start[k], int(path.start_ns.min(initial=start[k])))
                end[k] = max(end[k], int(path.end_ns.max(initial=0)))
        row = _rows(start, end)
        parent = scene.device_process(process)
        tracks = [writer.track(_STEPS, parent, -2) for _ in range(int(row.max()) + 1)]
        names = [scene.run.capture.strings[int(steps.name[i])] or "step" for i in own]
        numbers = steps.number[own].astype(np.int64)
        whole = Slices(
            start, end, writer.names.all(names), writer.categories(STEP),
            (writer.number("step", numbers),),
        )  # fmt: skip
        parts = [whole, *(path_slices(scene, path) for _, path in paths)]
        groups = [row, *(np.full(len(path), row[k]) for k, path in paths)]
        spares = [(_STEPS, parent)] * len(tracks)
        writer.each_slices(np.concatenate(groups), tracks, together(parts), spares, nested=True)
