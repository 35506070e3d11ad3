# SPDX-License-Identifier: Apache-2.0
"""Where requests pass from thread to thread: whose turn a span was, and what follows of it."""

from __future__ import annotations

import itertools

from gpucorrelate.correlator import handovers, steps
from gpucorrelate.correlator.handovers import Handover, Turn
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category, PhaseName, RequestReport
from gpucorrelate.probes.wire.schema import Anchor, WaitFlag, WaitKind
from tests.unit.synth import API, CORE, Recording
from tests.unit.test_requests import US, anchor, recording, report

POOL, SENDER = API + 5, CORE + 5


def spans(r: Recording, by: int, tid: int, name: str, *times: tuple[int, int]) -> Recording:
    for start, end in times:
        r.add("span", by, tid=tid, name=name, start_ns=start, end_ns=end)
    return r


def tokenised(r: Recording, **turns: Turn) -> dict[str, Handover]:
    keys = {(3, n): name for n, name in enumerate(turns)}
    found = handovers.tokenised(r.capture(), {key: turns[name] for key, name in keys.items()})
    return {keys[key]: one for key, one in found.items()}


def test_prompts_are_made_tokens_in_the_order_in_which_they_were_given() -> None:
    r = spans(Recording(), 3, POOL, "tokenise", (20, 40), (40, 70))
    assert tokenised(r, second=Turn(15, 80), first=Turn(10, 60)) == {
        "first": Handover(40, POOL),
        "second": Handover(70, POOL),
    }


def test_several_prompts_of_one_call_are_tokens_when_the_last_is() -> None:
    r = spans(Recording(), 3, POOL, "tokenise", (20, 40), (40, 70), (70, 75))
    assert tokenised(r, two=Turn(10, 90, 2), one=Turn(12, 95)) == {
        "two": Handover(70, POOL),
        "one": Handover(75, POOL),
    }


def test_a_prompt_whose_span_is_missing_does_not_take_anothers() -> None:
    r = spans(Recording(), 3, POOL, "tokenise", (50, 70))
    assert tokenised(r, lost=Turn(10, 45), found=Turn(48, 80)) == {"found": Handover(70, POOL)}
    assert tokenised(spans(Recording(), 3, POOL, "other", (50, 70)), lost=Turn(10, 80)) == {}


def sent(r: Recording) -> dict[int, Handover]:
    capture = r.capture()
    return handovers.sent(capture, steps.build(capture, steps.rowsets(capture)))


def engine(*taken: int) -> Recording:
    """Steps of 1,000 whose outputs the frontend took in at the moments given."""
    r = Recording().process(3, API, "api").process(4, CORE, "core")
    r.add("thread", 4, tid=SENDER, name="out", role="core.output")
    for n, t in enumerate(taken, 1):
        start = 1_000 * n
        r.add("step_begin", 4, step=n, tid=CORE, sched_start_ns=start, start_ns=start)
        r.add("step_update", 4, step=n, tid=CORE, start_ns=start + 800, end_ns=start + 900,
              stamp_ns=start)  # fmt: skip
        r.add("outputs", 3, tid=API, start_ns=t, end_ns=t + 10, stamp_ns=start)
    return r


def test_outputs_are_sent_in_the_order_in_which_they_were_made() -> None:
    # The second lies with the sender while it is stalled with the first.
    r = spans(engine(3_500, 3_550, 4_100), 4, SENDER, "serialise",
              (1_950, 3_400), (3_400, 3_450), (3_950, 4_000))  # fmt: skip
    spans(r, 4, CORE, "serialise", (1_910, 1_920))
    assert sent(r) == {
        0: Handover(3_400, SENDER),
        1: Handover(3_450, SENDER),
        2: Handover(4_000, SENDER),
    }


def test_outputs_whose_sending_is_missing_leave_the_next_ones_alone() -> None:
    r = spans(engine(2_500, 3_100, 4_100), 4, SENDER, "serialise", (1_950, 2_000), (3_950, 4_000))
    assert sent(r) == {0: Handover(2_000, SENDER), 2: Handover(4_000, SENDER)}


def unread(r: Recording, start: int, end: int) -> list[Turn]:
    return handovers.unread(r.capture(), {(3, 1): [(start, end, API)]}).get((3, 1), [])


def test_a_chunk_during_which_the_loop_waited_for_events_waited_for_its_client() -> None:
    r = Recording().process(3, API, "api")
    r.wait(API, 150, 300).wait(API, 320, 800).wait(API, 950, 1_200)
    assert unread(r, 100, 1_000) == [Turn(100, 800)]


def test_a_chunk_during_which_the_loop_only_had_no_cpu_did_not() -> None:
    r = Recording().process(3, API, "api")
    r.wait(API, 20, 90).wait(API, 150, 800, kind=WaitKind.PREEMPTED)
    assert unread(r, 100, 1_000) == []
    # Waiting since before it began is no waiting of the chunk's.
    assert unread(Recording().wait(API, 50, 300), 100, 1_000) == []


def path(got: RequestReport, phase: PhaseName) -> list[tuple[int, int, Category, int]]:
    rows = [
        (s.start_ns // US, s.end_ns // US, s.category, s.actor.tid)
        for s in got.segments
        if s.phase is phase
    ]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(rows))
    return rows


def test_while_its_prompt_lies_with_the_pool_what_the_loop_does_is_for_others() -> None:
    r = recording()
    anchor(r, Anchor.TOKENISE_START, 1_100 * US, http=1)
    anchor(r, Anchor.TOKENISED, 1_200 * US, http=1)
    r.add("thread", 3, tid=POOL, name="pool", role="api.pool")
    spans(r, 3, POOL, "tokenise", (1_110 * US, 1_180 * US))
    r.wait(POOL, 1_120 * US, 1_170 * US, kind=WaitKind.SLEEP, flags=WaitFlag.WAKE_TIMER, waker=1,
           tgid=API)  # fmt: skip
    assert path(report(r), PhaseName.TOKENISE) == [
        (1_100, 1_110, Category.CPU, POOL),
        (1_110, 1_120, Category.CPU, POOL),
        (1_120, 1_170, Category.SLEEP, POOL),
        (1_170, 1_180, Category.CPU, POOL),
        (1_180, 1_200, Category.CPU, API),
    ]


def test_while_its_client_does_not_read_what_the_loop_does_is_for_others() -> None:
    r = recording()
    # The last chunk, by the recording, was out at 5,050; this one is out at 5,190.
    anchor(r, Anchor.CHUNK_START, 5_060 * US, http=1, value=64)
    anchor(r, Anchor.CHUNK_END, 6_190 * US, http=1, value=64)
    r.wait(API, 5_100 * US, 5_900 * US, waker=CORE, waker_syscall=1)
    r.wait(API, 5_910 * US, 6_150 * US, waker=CORE, waker_syscall=1)
    run = Run.of(r.capture())
    request = run.find("x-1-0")
    assert [(leg.start_ns // US, leg.end_ns // US) for leg in request.legs if leg.held_back] == [
        (5_060, 5_200)
    ]
    got = run.request("x-1-0")
    last = got.segments[-1]
    assert (last.start_ns // US, last.end_ns // US) == (5_060, 5_200)
    assert last.category is Category.NETWORK
    assert last.cause is not None
    assert "did not read" in last.cause.text
