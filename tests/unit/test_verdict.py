# SPDX-License-Identifier: Apache-2.0
"""The verdict on a request: what it says, that its figures hold, and when there is none."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator import ledger
from gpucorrelate.correlator.report import digest, verdict
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.json import request_to_dict
from gpucorrelate.correlator.report.values import (
    Actor,
    Category,
    Cause,
    PhaseName,
    Segment,
    Share,
    Verdict,
    Wait,
)
from gpucorrelate.probes.wire.frame import Damage
from gpucorrelate.probes.wire.schema import Anchor
from tests.unit import report_samples as samples
from tests.unit.report_samples import API, CORE, HOG, MS, NOBODY, WORKER
from tests.unit.test_requests import US, anchor, recording

POOL = Actor(4719, 4711, "", "holder", "EngineCore")
DECODE = PhaseName.DECODE
RAN_HOG = Cause("ran instead:", HOG)


def path(*parts: tuple[int, Category, Actor, Cause | None]) -> list[Segment]:
    """Segments that follow each other, lengths in milliseconds; what runs executes."""
    made: list[Segment] = []
    at = samples.ARRIVAL
    for length, category, actor, cause in parts:
        span = "execute" if category is Category.CPU else ""
        made.append(Segment(at, at + length * MS, category, actor, DECODE, span=span, cause=cause))
        at += length * MS
    return made


def around(segment: Segment, waiter: Actor, kind: str, cause: Cause, more_ns: int = 100) -> Wait:
    """A wait on the path that lasted a little longer than a segment."""
    start, end = segment.start_ns - more_ns, segment.end_ns + more_ns
    return Wait(start, end, waiter, kind, cause, DECODE)


def test_work_and_the_longest_stall_are_said_with_their_figures() -> None:
    segments = path(
        (620, Category.CPU, WORKER, None),
        (12, Category.PREEMPTED, WORKER, RAN_HOG),
        (300, Category.CPU, CORE, None),
        (68, Category.PREEMPTED, CORE, RAN_HOG),
    )
    got = verdict.of(segments, ())
    assert got.text == (
        "62% of the wall time was execute in Worker_TP0/4720, 30% execute in EngineCore/4711; "
        "the longest stall, 68.0 ms, was EngineCore/4711 preempted while stress-ng-cpu/9123 "
        "(not traced) ran"
    )
    assert got.parts == (
        Share("execute in Worker_TP0/4720", 620 * MS),
        Share("execute in EngineCore/4711", 300 * MS),
    )
    assert got.stall is not None
    assert (got.stall.length_ns, got.stall.waiter, got.stall.cause) == (68 * MS, CORE, RAN_HOG)
    assert got.doubts == ()


def test_waits_for_a_cpu_are_one_part_with_who_had_it() -> None:
    segments = path(
        (200, Category.PREEMPTED, API, RAN_HOG),
        (300, Category.RUN_QUEUE, CORE, Cause("ran instead:", WORKER)),
        (150, Category.PREEMPTED, WORKER, RAN_HOG),
        (305, Category.CPU, WORKER, None),
        (45, Category.CPU, CORE, None),
    )
    got = verdict.of(segments, ())
    assert got.text.startswith(
        "65% of the wall time was waiting for a CPU (35% while stress-ng-cpu/9123 (not traced) "
        "ran), 31% execute in Worker_TP0/4720; the longest stall, 300 ms, was EngineCore/4711 "
        "waiting for a CPU while Worker_TP0/4720 ran"
    )
    assert got.parts[0] == Share("waiting for a CPU", 650 * MS, HOG, 350 * MS)


def test_a_lock_is_charged_to_its_holder_whatever_that_did() -> None:
    for_core = Cause("holds the lock for which waits", CORE)
    segments = path(
        (50, Category.CPU, CORE, None),
        (30, Category.CPU, POOL, for_core),
        (15, Category.PREEMPTED, POOL, RAN_HOG),
        (5, Category.CPU, POOL, for_core),
    )
    start, end = segments[1].start_ns, segments[3].end_ns
    wait = Wait(start, end, CORE, "futex", Cause("held by", POOL, "while schedule"), DECODE)
    got = verdict.of(segments, [wait])
    assert got.text == (
        "50% of the wall time was execute in EngineCore/4711, 35% waiting for a lock, held by "
        "EngineCore/4711 holder; the longest stall, 50.0 ms, was EngineCore/4711 in futex, held "
        "by EngineCore/4711 holder while schedule"
    )
    assert got.stall == wait


@pytest.mark.parametrize(("sure", "verb"), [("", "held by"), ("probably ", "probably held by")])
def test_the_interpreter_lock_is_charged_to_its_holder_as_surely_as_it_is_known(
    sure: str, verb: str
) -> None:
    says = "was on a CPU, so probably held" if sure else "holds"
    holds = Cause(f"{says} the interpreter lock for which waits", API)
    hog = replace(API, tid=4799, name="hog")
    segments = path((60, Category.GIL, hog, holds), (40, Category.CPU, API, None))
    wait = around(segments[0], API, "interpreter lock", Cause(verb, hog), 0)
    assert verdict.of(segments, [wait]).text == (
        f"60% of the wall time was waiting for the interpreter lock, {sure}held by "
        "APIServer/4700 hog, 40% execute in APIServer/4700; the longest stall, 60.0 ms, was "
        f"APIServer/4700 waiting for the interpreter lock, {verb} APIServer/4700 hog"
    )


def test_who_waited_for_a_sleeper_is_said_and_longer_waits_for_messages_are_no_stall() -> None:
    segments = path(
        (70, Category.CPU, WORKER, None),
        (20, Category.SLEEP, POOL, Cause("timer", None, "sleep")),
        (10, Category.CPU, CORE, None),
    )
    waits = [
        around(segments[1], WORKER, "queue read", Cause("message from", CORE), 9 * MS),
        around(segments[1], CORE, "futex", Cause("woken by", POOL)),
        around(segments[0], CORE, "queue read", Cause("message from", WORKER)),
    ]
    assert verdict.of(segments, waits).text.endswith(
        "the longest stall, 20.0 ms, was EngineCore/4711 holder asleep while EngineCore/4711 "
        "waited for it (futex)"
    )


@pytest.mark.parametrize(
    ("category", "cause", "says"),
    [
        (Category.SLEEP, Cause("timer", None, "timeout of epoll fd 5"),
         "asleep (timeout of epoll fd 5)"),
        (Category.PAGE_FAULT, Cause("major fault", None, "253:1 inode 7"),
         "in a page fault (major fault 253:1 inode 7)"),
        (Category.DISK, Cause("completed by", HOG, "read fd 3"),
         "waiting for the disk (completed by stress-ng-cpu/9123 (not traced) read fd 3)"),
        (Category.EXTERNAL, Cause("woken by", HOG, "in write"),
         "waiting for a process that is not traced (woken by stress-ng-cpu/9123 (not traced) "
         "in write)"),
        (Category.MESSAGE, None, "waiting for a message (cause unknown)"),
        (Category.THROTTLED, Cause("out of CPU quota", None, "of cgroup /a"),
         "out of CPU quota of cgroup /a"),
        (Category.PREEMPTED, None, "preempted"),
        (Category.RUN_QUEUE, Cause("runnable, no CPU yet"), "waiting for a CPU"),
    ],
)  # fmt: skip
def test_every_kind_of_stall_reads_as_a_sentence(
    category: Category, cause: Cause | None, says: str
) -> None:
    segments = path((90, Category.CPU, WORKER, None), (10, category, CORE, cause))
    end = f"; the longest stall, 10.0 ms, was EngineCore/4711 {says}"
    assert verdict.of(segments, ()).text.endswith(end)


def test_every_category_has_words() -> None:
    for category in Category:
        segments = path((90, category, CORE, None), (10, Category.CPU, WORKER, None))
        got = verdict.of(segments, ())
        known = category not in digest.UNKNOWN_CATEGORIES
        assert got.text.startswith("90% of the wall time was " if known else "no verdict: 90.0%")


def test_a_stall_that_a_phase_cuts_is_one_stall() -> None:
    segments = path(
        (40, Category.CPU, CORE, None),
        (6, Category.PREEMPTED, CORE, RAN_HOG),
        (6, Category.PREEMPTED, CORE, RAN_HOG),
        (8, Category.PREEMPTED, CORE, Cause("ran instead:", WORKER)),
    )
    segments[2] = replace(segments[2], phase=PhaseName.OUTPUT, step=3)
    got = verdict.of(segments, ()).stall
    assert got is not None
    assert (got.length_ns, got.phase, got.cause) == (12 * MS, DECODE, RAN_HOG)


def test_a_little_that_is_unknown_is_said() -> None:
    segments = path(
        (95, Category.CPU, WORKER, None),
        (5, Category.UNOBSERVED, CORE, Cause("records of waits were lost then")),
    )
    got = verdict.of(segments, ())
    assert got.text == (
        "95% of the wall time was execute in Worker_TP0/4720, 5% is unknown; nothing held it up"
    )
    assert got.unknown_ns == 5 * MS


@pytest.mark.parametrize("unknown", [Category.UNOBSERVED, Category.UNEXPLAINED])
def test_there_is_no_verdict_that_what_is_unknown_could_overturn(unknown: Category) -> None:
    def judged(first: int, second: int, unknown_ms: int) -> Verdict:
        segments = path(
            (first, Category.CPU, WORKER, None),
            (second, Category.CPU, CORE, None),
            (unknown_ms, unknown, NOBODY, None),
        )
        return verdict.of(segments, ())

    got = judged(50, 30, 20)
    assert got == Verdict(
        "no verdict: 20.0% of the wall time is unknown",
        unknown_ns=20 * MS,
        doubts=("20.0% of the wall time is unknown",),
    )
    assert not judged(51, 30, 19).doubts[1:]
    assert judged(52, 30, 18).text.startswith("52% of the wall time was execute in Worker_TP0")
    assert "18% is unknown" in judged(52, 30, 18).text
    # However little it is.
    assert judged(50, 49, 1).doubts
    assert not judged(51, 49, 0).doubts
    assert not judged(51, 48, 1).doubts


def test_there_is_no_verdict_on_a_damaged_recording_or_on_nothing() -> None:
    segments = path((95, Category.CPU, WORKER, None))
    got = verdict.of(segments, (), ("step numbers missing",))
    assert got.text == "no verdict, for what is missing could overturn it: step numbers missing"
    assert (got.parts, got.stall, got.doubts) == ((), None, ("step numbers missing",))
    assert verdict.of((), ()).text == "no verdict: nothing was recorded of it"


def test_a_request_in_flight_is_judged_so_far() -> None:
    segments = path((95, Category.CPU, WORKER, None))
    assert verdict.of(segments, (), so_far=True).text.startswith("100% of the time so far was ")


LENGTHS = st.lists(
    st.tuples(
        st.integers(1, 10**9), st.sampled_from(list(Category)), st.sampled_from([API, CORE, HOG])
    ),
    min_size=1,
    max_size=12,
)


@given(LENGTHS)
def test_shares_never_add_to_more_than_the_whole(parts) -> None:
    at = 0
    segments = []
    for length, category, actor in parts:
        segments.append(Segment(at, at + length, category, actor, DECODE, cause=RAN_HOG))
        at += length
    got = verdict.of(segments, ())
    named = sum(part.length_ns for part in got.parts)
    assert named + got.unknown_ns <= at
    if got.doubts:
        assert got.parts == ()
        return
    assert [part.length_ns for part in got.parts] == sorted(
        (part.length_ns for part in got.parts), reverse=True
    )
    plain = re.sub(r"\(\d+% while [^%]*ran\)", "", got.text.partition(";")[0])
    assert sum(map(int, re.findall(r"(\d+)%", plain))) <= 100


def test_json_holds_the_sentence_and_what_it_was_made_of() -> None:
    report = samples.request()
    told = json.loads(json.dumps(request_to_dict(report)))["verdict"]
    assert told["text"] == report.verdict.text
    assert told["doubts"] == []
    assert told["parts"][0] == {
        "what": "execute in Worker_TP0/4720",
        "length_ns": sum(
            s.length_ns for s in report.segments if s.actor == WORKER and s.span == "execute"
            and s.category is Category.CPU
        ),
        "ran": None,
        "ran_ns": None,
    }  # fmt: skip
    assert told["parts"][1]["ran"] == "stress-ng-cpu/9123"
    assert told["stall"]["waiter"] == "Worker_TP0/4720"
    assert told["stall"]["cause"]["traced"] is False
    none = replace(report, verdict=verdict.of((), ()))
    assert request_to_dict(none)["verdict"]["stall"] is None


def test_a_recording_of_a_known_request_gives_its_verdict() -> None:
    got = Run.of(recording(40).capture()).request("x-1").verdict
    assert got.doubts == ()
    assert got.parts[0] == Share("execute in Worker/300", 40 * 650 * US)
    assert got.text.startswith("63% of the wall time was execute in Worker/300")


def test_a_step_that_is_missing_keeps_from_a_verdict_only_where_it_was() -> None:
    r = recording()
    r.add("step_begin", 4, step=9, start_ns=9_000 * US, rowset=1, rows=1)
    run = Run.of(r.capture())
    assert not run.ledger.clean
    assert run.request("x-1").verdict.doubts == ()
    r = recording()
    capture = r.capture()
    rows = capture.table("step_begin")
    lost = rows.select(rows["step"] != 2)
    capture = replace(capture, _tables={**capture._tables, "step_begin": lost})
    doubts = Run.of(capture).request("x-1").verdict.doubts
    assert "step numbers missing" in doubts


def test_batches_that_are_missing_keep_from_a_verdict_about_where_they_were() -> None:
    capture = recording().capture()

    def doubts(*gaps: tuple[int, int, int], missing: int = 1) -> tuple[str, ...]:
        intake = replace(capture.intake, missing=missing, gaps=gaps)
        return Run.of(replace(capture, intake=intake)).request("x-1").verdict.doubts

    assert doubts(missing=0) == ()
    assert doubts((2, 2_000 * US, 2_500 * US)) == ()  # the path there is unobserved
    missing = ("batches missing from the recording",)
    assert doubts((4, 2_000 * US, 2_500 * US)) == missing
    assert doubts((4, 1_000_000 * US, 0)) == missing  # a second late, as batches may be
    assert doubts((4, 9_000_000 * US, 9_000_001 * US)) == ()
    assert doubts() == missing  # nobody knows where


def test_a_recording_that_breaks_off_says_nothing_of_its_last_moments() -> None:
    r = recording()
    anchor(r, Anchor.RECEIVED, 9_000_000 * US, http=9)
    anchor(r, Anchor.LAST_BYTE, 9_000_100 * US, http=9, value=200)
    capture = r.capture(end_ns=None)
    damaged = replace(capture, intake=replace(capture.intake, damage=(Damage("cut off", 7),)))
    run = Run.of(damaged)
    found = [ledger.doubts(damaged, run.states, run.steps_, one) for one in run.requests_]
    assert found == [(), ("the recording's end is unreadable",)]
