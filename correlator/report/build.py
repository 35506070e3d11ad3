# SPDX-License-Identifier: Apache-2.0
"""A capture, correlated: the one place from which every report value comes."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import ledger as ledgers
from gpucorrelate.correlator import namespaces
from gpucorrelate.correlator import requests as requests_
from gpucorrelate.correlator import states as states_
from gpucorrelate.correlator import steps as steps_
from gpucorrelate.correlator.causes import Describer
from gpucorrelate.correlator.context import OnPath
from gpucorrelate.correlator.report import run_host, verdict
from gpucorrelate.correlator.report.device_build import DeviceRun
from gpucorrelate.correlator.report.names import match_ids, named
from gpucorrelate.correlator.report.values import (
    Category,
    Ledger,
    Phase,
    PhaseName,
    RequestReport,
    RequestRow,
    RunSummary,
    Segment,
    StepReport,
    StepRow,
    TokenCheck,
    TokenLeg,
    Wait,
)
from gpucorrelate.correlator.states import CATEGORIES
from gpucorrelate.correlator.walk import LegSpec, Paths, Walker
from gpucorrelate.probes.wire.errors import NotFoundError, RecordingError, UsageError
from gpucorrelate.probes.wire.schema import Anchor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.requests import Cut, Leg, Request
    from gpucorrelate.correlator.states import States
    from gpucorrelate.correlator.steps import Steps

_BATCH = 256
#: Rows of requests that are walked at once: of a page-faulting engine, 20,000 a request.
_ROWS_BATCH = 64
# Processes that are named where a text means none.
_CANDIDATES = 8


class Run:
    """A correlated recording. Reports are built when asked for, from shared columns."""

    def __init__(self, capture: Capture) -> None:
        _one_session(capture)
        capture = namespaces.to_host(capture)
        self.capture = capture
        self.states: States = states_.build(capture)
        self._sets = steps_.rowsets(capture)
        self.steps_: Steps = steps_.build(capture, self._sets)
        self.requests_: tuple[Request, ...] = requests_.build(capture, self.steps_, self._sets)
        self._walker = Walker(self.states)
        self._describe = Describer(self.states, self.steps_)
        self._host = self._describe.host

    @classmethod
    def of(cls, capture: Capture) -> Run:
        """Correlate a capture.

        Raises:
            RecordingError: it holds more than one session.
        """
        return cls(capture)

    @cached_property
    def ledger(self) -> Ledger:
        """What everything here rests on."""
        return ledgers.of_run(self.capture, self.states, self.steps_, self.requests_)

    @cached_property
    def devices(self) -> DeviceRun:
        """The recording seen from its devices."""
        return DeviceRun(self.states, self._walker, self._describe, self.ledger)

    @property
    def is_profile(self) -> bool:
        """Whether it is a profile: devices and calls, no engine that says what its steps are."""
        work = len(self.capture.table("gpu_op")) or len(self.capture.table("cuda_api"))
        return bool(work) and not len(self.steps_) and not self.requests_

    @property
    def describe(self) -> Describer:
        """Words for rows of the walk."""
        return self._describe

    # -- lists

    def requests(
        self, *, since_ns: int | None = None, until_ns: int | None = None, wanted: str = ""
    ) -> tuple[RequestRow, ...]:
        """One row per request that overlaps the time window, in order of arrival.

        Args:
            since_ns: The window's beginning; None: the recording's.
            until_ns: Its end; None: the recording's.
            wanted: Only those that this means by any of their ids; ``names.match_ids`` says how.
        """
        chosen = [
            at
            for at, r in enumerate(self.requests_)
            if (since_ns is None or r.end_ns >= since_ns)
            and (until_ns is None or r.arrival_ns <= until_ns)
        ]
        if wanted:
            ids = self.ids()
            chosen = [chosen[at] for at in match_ids(wanted, [ids[one] for one in chosen])]
        return tuple(
            RequestRow(
                r.external_id,
                r.arrival_ns,
                r.end_ns - r.arrival_ns,
                None if r.first_token_ns is None else r.first_token_ns - r.arrival_ns,
                r.tokens_in,
                r.tokens_out,
                r.status,
                _phase_sums(r),
                r.internal_id,
                _aliases(r),
            )
            for r in (self.requests_[at] for at in chosen)
        )

    def steps(
        self, *, since_ns: int | None = None, until_ns: int | None = None
    ) -> tuple[StepRow, ...]:
        """One row per step that ended and overlaps the time window, in order."""
        s = self.steps_
        chosen = [
            i
            for i in range(len(s))
            if s.end_ns(i)
            and (since_ns is None or s.end_ns(i) >= since_ns)
            and (until_ns is None or s.sched_ns[i] <= until_ns)
        ]
        longest = self._longest([self._step_leg(i) for i in chosen])
        return tuple(
            StepRow(
                int(s.number[i]),
                int(s.sched_ns[i]),
                s.end_ns(i) - int(s.sched_ns[i]),
                s.kind(i),
                int(s.rows[i]),
                int(s.tokens[i]),
                _known(int(s.prefill_tokens[i])),
                int(s.waiting[i]),
                steps_.status_name(int(s.status[i])),
                s.worker_ns(i),
                words,
            )
            for i, words in zip(chosen, longest, strict=True)
        )

    # -- single reports

    def ids(self) -> tuple[tuple[str, ...], ...]:
        """All ids that each request is found by."""
        return tuple(r.ids for r in self.requests_)

    def find(self, wanted: str) -> Request:
        """The request that a text means, by any of its ids; ``names.match_ids`` says how.

        Raises:
            NotFoundError: none has it.
            UsageError: several do.
        """
        near = match_ids(wanted, self.ids())
        if not near:
            raise NotFoundError(
                f"no request {wanted!r} among the {len(self.requests_)} recorded",
                hint="list them: gpucorrelate requests",
            )
        if len(near) > 1:
            some = named([self.requests_[at].external_id for at in near])
            raise UsageError(
                f"{len(near)} requests fit {wanted!r}: {some}",
                hint="give more of the id; `gpucorrelate requests --id` lists all that fit",
            )
        return self.requests_[near[0]]

    def request(self, request_id: str) -> RequestReport:
        """The report of one request. Raises as ``find`` does."""
        return next(self._reports([self.find(request_id)]))

    def all_requests(self) -> Iterator[RequestReport]:
        """Reports of all requests, in order of arrival."""
        return self.some_requests(self.requests_)

    def some_requests(self, requests: Sequence[Request]) -> Iterator[RequestReport]:
        """Reports of some of ``requests_``, in the order given."""
        for at in range(0, len(requests), _BATCH):
            yield from self._reports(requests[at : at + _BATCH])

    def rows_of(self, requests: Sequence[Request]) -> Iterator[tuple[Request, NDArray[np.void]]]:
        """Rows of the walk of some of ``requests_``, without words: ``native.SEGMENT``.

        They tile each request's time, oldest first; ``phase`` is the place of its cut.
        """
        for at in range(0, len(requests), _ROWS_BATCH):
            some = requests[at : at + _ROWS_BATCH]
            specs = [
                self._spec(leg, tuple(cut.t_ns for cut in r.cuts)) for r in some for leg in r.legs
            ]
            paths = self._walker.walk(specs)
            leg = 0
            for r in some:
                yield r, paths.segments[paths.first[leg] : paths.first[leg + len(r.legs)]]
                leg += len(r.legs)

    def slowest(self, count: int) -> Iterator[RequestReport]:
        """Reports of the slowest finished requests, slowest first."""
        done = [r for r in self.requests_ if r.complete]
        done.sort(key=lambda r: r.arrival_ns - r.end_ns)
        yield from self._reports(done[:count])

    def find_step(self, number: int, process: str = "") -> int:
        """The index of a step.

        Args:
            number: Its number.
            process: Whose: an engine core's label (``EngineCore/4711``), its name or number.

        Raises:
            NotFoundError: there is no such process, or it has no such step that ended.
            UsageError: several have one.
        """
        s = self.steps_
        labels = {int(tid): self._core(int(tid)) for tid in np.unique(s.tid)}
        cores = {tid: label for tid, label in labels.items() if _is_named(label, process)}
        if process and not cores:
            known = ", ".join(sorted(set(labels.values()))[:_CANDIDATES]) or "none"
            raise NotFoundError(f"no process {process!r} has steps (there are: {known})")
        found = np.flatnonzero((s.number == number) & np.isin(s.tid, list(cores)))
        if not len(found) or not s.end_ns(int(found[0])):
            what = "never ended" if len(found) else "was not recorded"
            span = f"{int(s.number.min())} to {int(s.number.max())}" if len(s) else "none"
            raise NotFoundError(
                f"step {number} {what} (recorded: {span})", hint="list them: gpucorrelate steps"
            )
        if len(found) > 1:
            several = named([labels[int(s.tid[i])] for i in found.tolist()])
            raise UsageError(
                f"{len(found)} engine cores have a step {number}: {several}",
                hint="say which: --process NAME",
            )
        return int(found[0])

    def step(self, number: int, process: str = "") -> StepReport:
        """The report of one step. Arguments and errors are those of ``find_step``."""
        s = self.steps_
        i = self.find_step(number, process)
        cuts = (requests_.Cut(int(s.sched_ns[i]), _step_phase(s.kind(i)), "schedule", i),)
        paths = self._walker.walk([self._step_leg(i)])
        segments = self._describe.segments(paths.leg(0), cuts)
        waits = self._describe.waits(paths.leg_hops(0), segments, cuts)
        rows = self._sets.request[s.row_index[s.row_owner == i]]
        return StepReport(
            number,
            int(s.sched_ns[i]),
            s.end_ns(i),
            steps_.status_name(int(s.status[i])),
            s.kind(i),
            int(s.rows[i]),
            int(s.tokens[i]),
            _known(int(s.prefill_tokens[i])),
            int(s.waiting[i]),
            tuple(self.capture.strings[r] for r in rows.tolist()),
            tuple(segments),
            tuple(waits),
            s.worker_ns(i),
            self.ledger,
            self._host.of(int(s.sched_ns[i]), s.end_ns(i), OnPath.of(segments)),
            tuple(self._client_id(self.capture.strings[r]) for r in rows.tolist()),
            self.capture.strings[int(s.error[i])] if s.error[i] else "",
        )

    def summary(self) -> RunSummary:
        """The whole recording in a few numbers."""
        phases: Counter[PhaseName] = Counter()
        categories: Counter[Category] = Counter()
        actors: Counter[str] = Counter()
        held: Counter[int] = Counter()
        for at in range(0, len(self.requests_), _BATCH):
            chunk = self.requests_[at : at + _BATCH]
            for request in chunk:
                phases.update(dict(_phase_sums(request)))
            segments = self._walker.walk(
                [self._spec(leg, ()) for r in chunk for leg in r.legs]
            ).segments
            _add(categories, held, segments)
        for thread, length_ns in held.items():
            actors[self._describe.actor(thread).label] += length_ns
        ttft = [r.first_token_ns - r.arrival_ns for r in self.requests_ if r.first_token_ns]
        itl = [gap for r in self.requests_ for gap in token_gaps(r)]
        return RunSummary(
            self.states.start_ns,
            self.states.end_ns,
            len(self.requests_),
            len(self.steps_),
            sum(r.tokens_out or 0 for r in self.requests_),
            tuple(sorted(ttft)),
            tuple(sorted(itl)),
            tuple((p, phases[p]) for p in PhaseName if phases[p]),
            tuple((c, categories[c]) for c in Category if categories[c]),
            tuple(actors.most_common()),
            tuple({fact.key: fact.value for fact in self.capture.facts()}.items()),
            self.ledger,
            run_host.of(self._host, self.states, self.steps_, self._on_paths(held)),
        )

    # -- parts

    def label_of_thread(self, thread: int) -> str:
        """The label that reports give a thread, by its index."""
        return self._describe.actor(thread).label

    def _core(self, tid: int) -> str:
        """An engine core's label, by the thread that does its steps."""
        actor = self._describe.actor(self.states.threads.one(tid))
        return f"{actor.process or 'pid'}/{actor.pid}"

    @cached_property
    def _client_ids(self) -> dict[str, str]:
        return {r.internal_id: r.external_id for r in self.requests_ if r.internal_id}

    def _client_id(self, internal: str) -> tuple[str, str]:
        """The id that other reports show of a request, and the engine's own."""
        return self._client_ids.get(internal, internal), internal

    def _on_paths(self, held: Counter[int]) -> OnPath | None:
        """Whoever held the paths of all requests together; ``None`` where there are none.

        Args:
            held: Time on them by thread.
        """
        if not held:
            return None
        actors = {self._describe.actor(thread): length for thread, length in held.items()}
        return OnPath.holding({(a.tid, a.pid): length for a, length in actors.items()})

    def _spec(self, leg: Leg, cuts: tuple[int, ...]) -> LegSpec:
        thread = self.states.threads.one(leg.tid)
        return LegSpec(thread, leg.start_ns, leg.end_ns, cuts, held_back=leg.held_back)

    def _step_leg(self, i: int) -> LegSpec:
        s = self.steps_
        thread = self.states.threads.one(int(s.tid[i]))
        return LegSpec(thread, int(s.sched_ns[i]), s.end_ns(i), (int(s.sched_ns[i]),))

    def _longest(self, legs: list[LegSpec]) -> list[str]:
        paths = self._walker.walk(legs)
        out = []
        for k in range(len(legs)):
            sums: Counter[tuple[int, int]] = Counter()
            for row in paths.leg(k)[["start", "end", "category", "actor"]].tolist():
                sums[row[2], row[3]] += row[1] - row[0]
            if not sums:
                out.append("")
                continue
            (category, thread), _ = sums.most_common(1)[0]
            out.append(f"{CATEGORIES[category]} {self._describe.actor(thread).label}")
        return out

    def _reports(self, requests: Sequence[Request]) -> Iterator[RequestReport]:
        """Reports of several requests; their legs are walked in one call."""
        specs: list[LegSpec] = []
        for r in requests:
            cuts = tuple(cut.t_ns for cut in r.cuts)
            specs += [self._spec(leg, cuts) for leg in (*r.legs, *r.ttft_legs)]
            tid = self.states.threads.one(r.legs[-1].tid)
            specs += [
                LegSpec(tid, t.made_ns, t.written_ns or t.processed_ns, cuts) for t in r.tokens
            ]
        paths = self._walker.walk(specs)
        at = 0
        for r in requests:
            yield self._report(r, paths, at)
            at += len(r.legs) + len(r.ttft_legs) + len(r.tokens)

    def _report(self, r: Request, paths: Paths, at: int) -> RequestReport:
        segments, waits = self._path(r.cuts, paths, at, len(r.legs))
        at += len(r.legs)
        ttft, _ = self._path(r.cuts, paths, at, len(r.ttft_legs))
        at += len(r.ttft_legs)
        tokens = tuple(
            self._token(n, token, paths.leg(at + n), r.cuts) for n, token in enumerate(r.tokens)
        )
        waits.sort(key=lambda w: w.start_ns - w.end_ns)
        steps = tuple(int(self.steps_.number[i]) for i in r.steps)
        doubts = ledgers.doubts(self.capture, self.states, self.steps_, r)
        return RequestReport(
            request_id=r.external_id,
            internal_id=r.internal_id,
            arrival_ns=r.arrival_ns,
            end_ns=r.end_ns,
            status=r.status,
            tokens_in=r.tokens_in,
            tokens_out=r.tokens_out,
            cached_tokens=cached_tokens(r),
            preemptions=sum(1 for a, _ in r.marks if a is Anchor.PREEMPTED),
            first_token_ns=r.first_token_ns,
            phases=self._phases(r),
            segments=tuple(segments),
            ttft_segments=tuple(ttft),
            waits=tuple(waits),
            tokens=tokens,
            checks=tuple(
                TokenCheck(place.name.lower(), count, digest)
                for place, count, digest, _ in r.checks
            ),
            boundaries=(f"arrival = {r.arrival_what}", f"end = {r.end_what}"),
            ledger=self.ledger,
            steps=steps,
            http=r.http,
            verdict=verdict.of(segments, waits, doubts, so_far=not r.complete),
            aliases=_aliases(r),
            context=self._host.of(r.arrival_ns, r.end_ns, OnPath.of(segments)),
            path=r.path,
            http_status=r.http_status,
            trace=r.trace,
        )

    def _path(
        self, cuts: Sequence[Cut], paths: Paths, at: int, count: int
    ) -> tuple[list[Segment], list[Wait]]:
        segments: list[Segment] = []
        waits: list[Wait] = []
        for k in range(at, at + count):
            hops = paths.leg_hops(k)
            part = self._describe.segments(paths.leg(k), cuts)
            waits += self._describe.waits(hops, part, cuts)
            segments += part
        return segments, waits

    def _phases(self, r: Request) -> tuple[Phase, ...]:
        tokens = dict(zip(r.steps, r.step_tokens, strict=True))
        last = (r.end_ns, r.end_what.partition(":")[0])
        ends = [*((c.t_ns, c.anchor) for c in r.cuts[1:]), last]
        return tuple(
            Phase(
                cut.phase,
                cut.t_ns,
                end,
                cut.anchor,
                anchor,
                int(self.steps_.number[cut.step]) if cut.step >= 0 else None,
                tokens.get(cut.step) if cut.phase is not PhaseName.BETWEEN else None,
            )
            for cut, (end, anchor) in zip(r.cuts, ends, strict=True)
            if end > cut.t_ns
        )

    def _token(
        self,
        n: int,
        token: requests_.Token,
        rows: NDArray[np.void],
        cuts: Sequence[Cut],
    ) -> TokenLeg:
        sums: Counter[Category] = Counter()
        length = rows["end"] - rows["start"]
        for category, ns in zip(rows["category"].tolist(), length.tolist(), strict=True):
            sums[CATEGORIES[category]] += ns
        worst = None
        if len(rows):
            k = int(length.argmax())
            worst = self._describe.segments(rows[k : k + 1], cuts)[0]
        return TokenLeg(
            n,
            int(self.steps_.number[token.step]) if token.step >= 0 else None,
            token.made_ns,
            token.processed_ns,
            token.written_ns or None,
            tuple(sums.most_common()),
            worst,
        )


def _one_session(capture: Capture) -> None:
    """Refuse to blend recordings that were put into one file."""
    rows = capture.table("session")
    names = sorted({capture.strings[i] for i in rows["session"].tolist()} - {""})
    if len(names) > 1:
        raise RecordingError(
            f"{len(names)} sessions in one recording ({', '.join(names[:3])}): they share no time",
            hint="report the files one at a time",
        )


def _known(count: int) -> int | None:
    return count if count >= 0 else None


def _step_phase(kind: str) -> PhaseName:
    return {"prefill": PhaseName.PREFILL, "mixed": PhaseName.MIXED}.get(kind, PhaseName.DECODE)


def _phase_sums(r: Request) -> tuple[tuple[PhaseName, int], ...]:
    sums: Counter[PhaseName] = Counter()
    ends = [cut.t_ns for cut in r.cuts[1:]] + [r.end_ns]
    for cut, end in zip(r.cuts, ends, strict=True):
        sums[cut.phase] += end - cut.t_ns
    return tuple((phase, sums[phase]) for phase in PhaseName if sums[phase])


def _aliases(r: Request) -> tuple[str, ...]:
    return tuple(name for name in r.ids if name not in (r.external_id, r.internal_id))


def token_gaps(r: Request) -> Iterator[int]:
    """Gaps between the moments its tokens were written; ``RequestReport.itl_ns`` says which."""
    if r.first_token_ns is None:
        return
    times = [
        token.written_ns or token.processed_ns
        for token in r.tokens
        if token.written_ns or not r.http
    ]
    for a, b in itertools.pairwise(times):
        yield b - a


def cached_tokens(r: Request) -> int | None:
    """Prompt tokens found in the prefix cache; a hit is said, so silence of one seen is none."""
    mark = r.mark(Anchor.PREFIX_HIT)
    seen = r.steps and r.mark(Anchor.ADMITTED) is not None
    return mark.value if mark else 0 if seen else None


def _is_named(label: str, wanted: str) -> bool:
    """Whether a process is meant: by its label, or by its name or number alone."""
    name, _, pid = label.partition("/")
    return wanted in ("", label, name, pid)


def _add(categories: Counter[Category], held: Counter[int], segments: NDArray[np.void]) -> None:
    length = segments["end"] - segments["start"]
    for code in np.unique(segments["category"]):
        categories[CATEGORIES[code]] += int(length[segments["category"] == code].sum())
    for thread in np.unique(segments["actor"]).tolist():
        held[thread] += int(length[segments["actor"] == thread].sum())
