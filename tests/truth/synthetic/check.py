# SPDX-License-Identifier: Apache-2.0
"""The product's report of a simulated capture beside the truth, nanosecond by nanosecond."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.frame import read_frames
from tests.truth.synthetic.device import Op
from tests.truth.synthetic.engine import Engine
from tests.truth.synthetic.records import Recorder
from tests.truth.synthetic.truth import Path, Truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.correlator.report.values import Actor, RequestReport, Segment
    from tests.truth.synthetic.loss import Sieve
    from tests.truth.synthetic.options import Options
    from tests.truth.synthetic.truth import Stretch, Who
    from tests.truth.synthetic.workload import Asked

#: Categories whose stretches carry a named phase that is compared.
_NAMED = (Category.CPU, Category.GIL, Category.PAGE_FAULT, Category.GPU)


def simulate(options: Options, sieve: Sieve | None = None) -> tuple[Engine, bytes]:
    """Play an engine; returns it with what was recorded."""
    out = io.BytesIO()
    engine = Engine(options, Recorder(out, sieve))
    engine.play()
    return engine, out.getvalue()


def correlate(recording: bytes) -> Run:
    """What the product makes of a recording."""
    return Run.of(Capture.from_batches(read_frames(io.BytesIO(recording))))


@dataclass(frozen=True)
class Mismatch:
    """A stretch that the product explains otherwise."""

    start: int
    end: int
    truth: str
    product: str


@dataclass
class Score:
    """How much was compared, and what differed."""

    compared_ns: int = 0
    unknown_ns: int = 0
    stretches: int = 0
    hops: int = 0
    by_category: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)
    within_ns: int = 0  # boundaries may be off by so much

    @property
    def wrong_ns(self) -> int:
        """Time that is explained wrongly, not counting what is said to be unknown."""
        return sum(m.end - m.start for m in self.mismatches)


def who(actor: Who | Op) -> str:
    """A name for an actor of the simulation, as ``said`` gives one of the product's."""
    if actor is None:
        return ""
    return f"gpu {actor.pid} {actor.stream}" if isinstance(actor, Op) else f"thread {actor.tid}"


def said(actor: Actor | None) -> str:
    """The same for an actor of a report."""
    if actor is None or not actor.pid:
        return ""
    if actor.role == "gpu.stream":
        return f"gpu {actor.pid} {actor.name.removeprefix('stream ')}"
    return f"thread {actor.tid}"


def in_truth(stretch: Stretch) -> tuple[str, ...]:
    """What is compared of a stretch: category, actor, phase, step."""
    named = stretch.category in _NAMED
    gpu = stretch.category is Category.GPU
    return (
        str(stretch.category), who(stretch.actor), stretch.span if named else "",
        str(stretch.step) if gpu else "",
    )  # fmt: skip


def in_report(segment: Segment) -> tuple[str, ...]:
    """The same of a segment."""
    named = segment.category in _NAMED
    gpu = segment.category is Category.GPU
    return (
        str(segment.category), said(segment.actor), segment.span if named else "",
        str(segment.step) if gpu else "",
    )  # fmt: skip


def compare(
    score: Score, truth: Sequence[Stretch], report: Sequence[Segment], *, lossy: bool = False
) -> None:
    """Compare two accounts of the same time, which both tile it."""
    at = 0
    for segment in report:
        while at < len(truth) and truth[at].end <= segment.start_ns:
            at += 1
        k = at
        while k < len(truth) and truth[k].start < segment.end_ns:
            _one(score, truth[k], segment, lossy=lossy)
            k += 1


_UNKNOWN = (Category.UNOBSERVED, Category.UNEXPLAINED)


def _one(score: Score, stretch: Stretch, segment: Segment, *, lossy: bool) -> None:
    start, end = max(stretch.start, segment.start_ns), min(stretch.end, segment.end_ns)
    score.compared_ns += end - start
    score.stretches += 1
    score.by_category[stretch.category] += end - start
    if (lossy or stretch.untold) and segment.category in _UNKNOWN:
        score.unknown_ns += end - start
        return
    mine, theirs = in_truth(stretch), in_report(segment)
    culprits = [who(one) for one in stretch.culprits] or [""]
    culprit = said(segment.cause.actor) if segment.cause is not None else ""
    if lossy:
        # What is not said is not wrong.
        culprits.append("")
        theirs = tuple(
            one if said_ in ("None", "") else said_
            for one, said_ in zip(mine, theirs, strict=True)
        )
    guessed = segment.cause is not None and "probably" in segment.cause.verb
    if stretch.untold and guessed:
        score.unknown_ns += end - start
        return
    if (mine != theirs or culprit not in culprits) and end - start > score.within_ns:
        text = segment.cause.text if segment.cause is not None else ""
        score.mismatches.append(
            Mismatch(start, end, f"{mine} by {culprits}", f"{theirs} by {culprit}: {text}")
        )


def stretches(paths: Iterable[Path]) -> list[Stretch]:
    """Stretches of several paths, one after the other."""
    return [one for path in paths for one in path.stretches]


def check_request(
    score: Score, report: RequestReport, engine: Engine, truth: Truth, *, lossy: bool = False
) -> None:
    """Compare all that a request's report says with the truth."""
    asked = engine.by_id[report.request_id]
    paths = truth.request(asked, engine)
    whole = stretches(paths)
    assert (report.arrival_ns, report.end_ns) == (asked.received, asked.last_byte) or lossy
    assert sum(s.length_ns for s in report.segments) == report.wall_ns
    compare(score, whole, report.segments, lossy=lossy)
    compare(score, stretches(truth.first_token(asked, engine)), report.ttft_segments, lossy=lossy)
    if not lossy and not score.within_ns:
        _hops(score, paths, report)
        _tokens(score, report, engine, truth)
        phases = [(p.name.value, p.start_ns, p.end_ns, p.tokens) for p in report.phases]
        assert phases == phases_of(asked, engine)


def phases_of(asked: Asked, engine: Engine) -> list[tuple[str, int, int, int | None]]:
    """The phases of a request: name, start, end, and its tokens in steps."""
    moments = [
        ("receive", asked.received), ("tokenise", asked.tokenise_start),
        ("send", asked.tokenised), ("admit", asked.sent), ("queue", asked.admitted),
    ]  # fmt: skip
    ends = [at for _, at in moments[1:]] + [asked.first_scheduled]
    phases: list[tuple[str, int, int, int | None]] = [
        (name, start, end, None) for (name, start), end in zip(moments, ends, strict=True)
    ]
    at = asked.first_scheduled
    for number in asked.steps:
        step = engine.steps[number - 1]
        start, end = max(at, step.scheduled), step.updated
        if start > at:
            phases.append(("between", at, start, None))
        tokens = next(tokens for one, tokens, _ in step.rows if one is asked)
        phases.append((step.kind, start, end, tokens))
        at = end
    return [*phases, ("output", at, asked.last_byte, None)]


def _hops(score: Score, paths: Sequence[Path], report: RequestReport) -> None:
    """Compare the waits through which the path went."""
    leaves = {(s.start_ns, s.end_ns) for s in report.segments if s.category in _LEAVES}
    theirs: dict[tuple[int, str], list[tuple[str, int]]] = defaultdict(list)
    for wait in report.waits:
        if wait.cause.verb in _HOPS and (wait.start_ns, wait.end_ns) not in leaves:
            source = said(wait.cause.actor)
            theirs[wait.end_ns, said(wait.waiter)].append((source, wait.start_ns))
    for hop in (hop for path in paths for hop in path.hops if hop.end > hop.since):
        score.hops += 1
        here = theirs[hop.end, who(hop.waiter)]
        found = next((one for one in here if one == (who(hop.source), hop.start)), None)
        if hop.untold and here:
            found = here[0]
        if found is not None:
            here.remove(found)
        elif not hop.untold:
            name = f"wait of {who(hop.waiter)} for {who(hop.source)} from {hop.start}"
            score.mismatches.append(Mismatch(hop.start, hop.end, name, f"of {here}"))
    for (end, waiter), left in theirs.items():
        for source, start in left:
            name = f"wait of {waiter} for {source}"
            score.mismatches.append(Mismatch(start, end, "none", name))


_LEAVES = (Category.NETWORK, Category.EXTERNAL, Category.IRQ)
_HOPS = ("held by", "probably held by", "woken by", "message from", "waited for")


def _tokens(score: Score, report: RequestReport, engine: Engine, truth: Truth) -> None:
    asked = engine.by_id[report.request_id]
    assert [t.made_ns for t in report.tokens] == asked.made
    assert [t.written_ns for t in report.tokens] == asked.written
    assert list(report.steps) == asked.steps
    for token in report.tokens:
        assert token.written_ns is not None
        path = truth.path(engine.loop, token.made_ns, token.written_ns)
        sums: Counter[Category] = Counter()
        for stretch in path.stretches:
            sums[stretch.category] += stretch.end - stretch.start
        if dict(token.by_category) != dict(sums):
            score.mismatches.append(
                Mismatch(token.made_ns, token.written_ns, f"token {sums}", f"{token.by_category}")
            )


def check(options: Options) -> Score:
    """Simulate, correlate, and compare every request and every step."""
    engine, recording = simulate(options)
    run = correlate(recording)
    assert run.ledger.clean, [line for line in run.ledger.lines if line.bad]
    score, truth = Score(), Truth()
    reports = list(run.all_requests())
    assert len(reports) == options.requests
    for report in reports:
        check_request(score, report, engine, truth)
    for step in engine.steps:
        told = run.step(step.number)
        assert (told.start_ns, told.end_ns) == (step.scheduled, step.updated)
        assert (told.kind, told.tokens) == (step.kind, step.tokens)
        path = truth.path(engine.main, step.scheduled, step.updated)
        compare(score, path.stretches, told.segments)
    return score
