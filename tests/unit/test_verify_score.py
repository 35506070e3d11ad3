# SPDX-License-Identifier: Apache-2.0
"""Hand-made truths and answers: right answers score, wrong ones must not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpucorrelate.correlator.report.values import Actor, Category, Cause, PhaseName, Segment
from gpucorrelate.verify import score
from gpucorrelate.verify.document import document
from gpucorrelate.verify.run import Report, Result
from gpucorrelate.verify.truth import Accounts, Injection, Operation, Played, read_log

MS = 1_000_000
SELF, HOLDER, STRANGER = 10, 20, 30
#: An operation of 10 ms, of which somebody else held a lock for 6.
OP = Operation(0, control=False, tid=SELF, start_ns=0, end_ns=10 * MS)
HELD = Injection(0, 2 * MS, 8 * MS, frozenset({Category.SLEEP}), frozenset({HOLDER}))


def actor(tid: int) -> Actor:
    return Actor(tid, 1, "", f"t{tid}", "p")


def segment(
    start_ms: float,
    end_ms: float,
    category: Category,
    tid: int = SELF,
    by: int = 0,
    verb: str = "woken by",
    detail: str = "",
) -> Segment:
    cause = Cause(verb, actor(by) if by else None, detail) if by or verb != "woken by" else None
    start, end = round(start_ms * MS), round(end_ms * MS)
    return Segment(start, end, category, actor(tid), PhaseName.UNKNOWN, cause=cause)


def judged(*segments: Segment, injection: Injection = HELD, op: Operation = OP) -> score.Score:
    return score.of(Played("made", (op,), (injection,), (segments,)))


OWN = segment(0, 2, Category.CPU), segment(8, 10, Category.CPU)


def test_the_right_answer_scores_full() -> None:
    found = judged(OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    assert (found.category_share, found.culprit_share, found.unknown_share) == (1, 1, 0)
    assert found.injected_ns == 6 * MS
    assert found.errors_ns == (0, 0)
    assert found.spill_ns == 0
    assert found.confusion == (("sleep", Category.SLEEP, 6 * MS),)


def test_a_culprit_may_be_named_by_the_cause() -> None:
    found = judged(OWN[0], segment(2, 8, Category.SLEEP, SELF, by=HOLDER), OWN[1])
    assert (found.category_share, found.culprit_share) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "category", "culprit", "unknown"),
    [
        (segment(2, 8, Category.CPU, SELF), 0, 0, 0),
        (segment(2, 8, Category.SLEEP, STRANGER), 1, 0, 0),
        (segment(2, 8, Category.SLEEP, SELF), 1, 0, 0),
        (segment(2, 8, Category.CPU, HOLDER), 0, 1, 0),
        (segment(2, 8, Category.UNEXPLAINED, SELF), 0, 0, 1),
        # The right name on something unknown is no answer.
        (segment(2, 8, Category.UNEXPLAINED, HOLDER), 0, 0, 1),
        (segment(2, 8, Category.UNOBSERVED, HOLDER), 0, 0, 1),
    ],
)
def test_wrong_answers_score_nothing(
    answer: Segment, category: float, culprit: float, unknown: float
) -> None:
    found = judged(OWN[0], answer, OWN[1])
    shares = (found.category_share, found.culprit_share, found.unknown_share)
    assert shares == (category, culprit, unknown)
    if not (category and culprit):
        assert not found.attributable
        assert found.errors_ns == (6 * MS, 6 * MS)


def test_nothing_said_of_an_injection_scores_nothing() -> None:
    found = judged(*OWN)
    assert (found.category_share, found.culprit_share) == (0, 0)
    assert found.errors_ns == (6 * MS, 6 * MS)


def test_blaming_the_culprit_for_everything_shows() -> None:
    """An answer that is right where it matters by being the same everywhere."""
    found = judged(segment(0, 10, Category.SLEEP, HOLDER))
    assert found.category_share == 1
    assert found.spill_share == 1
    assert found.errors_ns == (2 * MS, 2 * MS)
    assert not score.total([found]).within_targets


def test_parts_of_one_answer_do_not_hide_how_far_it_reaches() -> None:
    parts = [segment(k, k + 1, Category.SLEEP, HOLDER) for k in range(9)]
    assert judged(*parts, segment(9, 10, Category.CPU)).errors_ns == (1 * MS, 2 * MS)


def test_an_injection_that_follows_another_of_the_same_does_not_spoil_its_boundary() -> None:
    loads = Injection(
        0, 2 * MS, 5 * MS, frozenset({Category.CPU, Category.PAGE_FAULT}), frozenset({HOLDER})
    )
    runs = Injection(0, 5 * MS, 8 * MS, frozenset({Category.CPU}), frozenset({HOLDER}))
    answer = (OWN[0], segment(2, 8.5, Category.CPU, HOLDER), segment(8.5, 10, Category.CPU))
    found = score.of(Played("made", (OP,), (loads, runs), (answer,)))
    assert found.errors_ns == (0, 0, MS // 2, MS // 2)
    apart = replace(runs, categories=frozenset({Category.SLEEP}))
    found = score.of(Played("made", (OP,), (loads, apart), (answer,)))
    assert found.errors_ns == (0, 3 * MS, 3 * MS, 7 * MS // 2)


def test_half_an_answer_is_half_right() -> None:
    found = judged(
        OWN[0],
        segment(2, 5, Category.SLEEP, HOLDER),
        segment(5, 8, Category.UNEXPLAINED, HOLDER),
        OWN[1],
    )
    assert (found.category_share, found.unknown_share) == (0.5, 0.5)
    assert found.errors_ns == (0, 3 * MS)
    assert not found.attributable


def test_only_what_the_kernels_accounts_confirm_is_set_aside() -> None:
    segments = (
        OWN[0],
        segment(2, 4, Category.RUN_QUEUE, HOLDER),
        segment(4, 8, Category.SLEEP, HOLDER),
        OWN[1],
    )
    strict = judged(*segments)
    assert strict.category_share == pytest.approx(4 / 6)
    assert strict.errors_ns == (0, 2 * MS)
    confirmed = judged(*segments, injection=replace(HELD, queued_ns=5 * MS))
    assert confirmed.category_share == 1
    assert confirmed.injected_ns == 4 * MS
    assert confirmed.errors_ns == (0, 0)
    half = judged(*segments, injection=replace(HELD, queued_ns=1 * MS))
    assert half.injected_ns == 5 * MS
    assert half.category_share == pytest.approx(4 / 5)
    # An account of queueing is no licence for anything but queueing.
    wrong = judged(OWN[0], segment(2, 8, Category.CPU), OWN[1],
                   injection=replace(HELD, queued_ns=6 * MS))  # fmt: skip
    assert wrong.injected_ns == 6 * MS
    assert wrong.category_share == 0


def test_own_running_is_set_aside_for_the_own_thread_alone() -> None:
    disk = Injection(0, 2 * MS, 8 * MS, frozenset({Category.DISK}), kind="disk", cpu_ns=1 * MS)
    right = judged(
        segment(0, 3, Category.CPU), segment(3, 8, Category.DISK), OWN[1], injection=disk
    )
    assert (right.injected_ns, right.category_share) == (5 * MS, 1)
    other = judged(
        OWN[0], segment(2, 3, Category.CPU, STRANGER), segment(3, 8, Category.DISK), OWN[1],
        injection=disk,
    )  # fmt: skip
    assert other.injected_ns == 6 * MS


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("timer", segment(2, 8, Category.SLEEP, verb="timer"), segment(2, 8, Category.SLEEP)),
        ("disk", segment(2, 8, Category.DISK), segment(2, 8, Category.IRQ)),
        ("network", segment(2, 8, Category.NETWORK), segment(2, 8, Category.EXTERNAL)),
        ("cgroup", segment(2, 8, Category.THROTTLED), segment(2, 8, Category.PREEMPTED)),
        (
            "file 8:1 inode 7",
            segment(2, 8, Category.PAGE_FAULT, verb="major fault", detail="8:1 inode 7"),
            segment(2, 8, Category.PAGE_FAULT, verb="major fault", detail="8:1 inode 8"),
        ),
        (
            "memory",
            segment(2, 8, Category.PAGE_FAULT, verb="9 minor faults", detail="anonymous memory"),
            segment(2, 8, Category.CPU),
        ),
        (
            "nobody",
            segment(2, 8, Category.UNEXPLAINED, verb="yielding in a loop"),
            segment(2, 8, Category.UNEXPLAINED, by=STRANGER),
        ),
        ("no such kind", segment(2, 8, Category.CPU), segment(2, 8, Category.SLEEP)),
    ],
)
def test_kinds_of_culprits(kind: str, right: Segment, wrong: Segment) -> None:
    injection = Injection(0, 2 * MS, 8 * MS, frozenset({right.category}), kind=kind)
    assert score.blames(right, injection) == (kind != "no such kind")
    assert not score.blames(wrong, injection)


def test_where_nobody_can_know_unknown_is_right_and_a_guess_wrong() -> None:
    spin = Injection(0, 2 * MS, 8 * MS, frozenset({Category.UNEXPLAINED}), kind="nobody")
    honest = judged(
        OWN[0], segment(2, 8, Category.UNEXPLAINED, verb="yielding in a loop"), OWN[1],
        injection=spin,
    )  # fmt: skip
    assert (honest.category_share, honest.culprit_share, honest.unknown_share) == (1, 1, 0)
    guess = judged(OWN[0], segment(2, 8, Category.CPU), OWN[1], injection=spin)
    assert (guess.category_share, guess.culprit_share) == (0, 0)


CONTROL = Operation(1, True, SELF, 20 * MS, 30 * MS, Accounts(8 * MS, 1 * MS, 0))


def false(*segments: Segment, control: Operation = CONTROL, known: tuple = ()) -> int:
    right = (OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    return score.of(Played("made", (OP, control), (HELD, *known), (right, segments))).false_ns


@pytest.mark.parametrize(
    ("answer", "expected_ms"),
    [
        ([segment(20, 30, Category.CPU)], 0),
        # The kernel says that it was off the CPU for 2 ms, 1 of it in line for one.
        ([segment(20, 22, Category.EXTERNAL), segment(22, 30, Category.CPU)], 1),
        ([segment(20, 22, Category.PREEMPTED), segment(22, 30, Category.CPU)], 0),
        ([segment(20, 25, Category.PREEMPTED), segment(25, 30, Category.CPU)], 3),
        ([segment(20, 30, Category.CPU, STRANGER)], 9),
        # Who is at fault elsewhere did nothing here.
        ([segment(20, 21, Category.SLEEP, HOLDER), segment(21, 30, Category.CPU)], 1),
        ([segment(20, 21, Category.PREEMPTED, by=HOLDER), segment(21, 30, Category.CPU)], 1),
        ([segment(20, 24, Category.PAGE_FAULT), segment(24, 30, Category.CPU)], 4),
        ([segment(20, 21, Category.THROTTLED), segment(21, 30, Category.CPU)], 1),
        # To know nothing is not false.
        ([segment(20, 30, Category.UNEXPLAINED)], 0),
    ],
)
def test_what_is_false_in_a_control(answer: list[Segment], expected_ms: int) -> None:
    assert false(*answer) == expected_ms * MS


def limited(*segments: Segment, counted_ms: int, queued_ms: int = 5) -> score.Score:
    accounts = Accounts(5 * MS, queued_ms * MS, 0, throttled_ns=counted_ms * MS)
    control = replace(CONTROL, accounts=accounts)
    right = (OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    return score.of(Played("made", (OP, control), (HELD,), (right, segments)))


def test_a_quota_of_the_hosts_own_is_no_error_and_is_told() -> None:
    """It is true that a control was throttled, for as long as the cgroup's own counter says."""
    answer = (segment(20, 24, Category.THROTTLED), segment(24, 30, Category.CPU))
    for counted_ms, false_ms, limited_ms in ((9, 0, 4), (4, 0, 4), (3, 1, 3), (0, 4, 0)):
        found = limited(*answer, counted_ms=counted_ms)
        assert (found.false_ns, found.limited_ns) == (false_ms * MS, limited_ms * MS)
    assert score.total([found, limited(*answer, counted_ms=9)]).limited_ns == 4 * MS


def test_a_quota_excuses_nothing_but_itself() -> None:
    """Not more than the thread was off its CPU; not another category; not who is to blame."""
    longer = (segment(20, 29, Category.THROTTLED), segment(29, 30, Category.CPU))
    assert limited(*longer, counted_ms=10).false_ns == 4 * MS
    other = (segment(20, 24, Category.EXTERNAL), segment(24, 30, Category.CPU))
    assert limited(*other, counted_ms=10).false_ns == 4 * MS
    holder = (segment(20, 24, Category.THROTTLED, HOLDER), segment(24, 30, Category.CPU))
    assert limited(*holder, counted_ms=10).false_ns == 4 * MS
    fault = (segment(20, 24, Category.PAGE_FAULT), segment(24, 30, Category.CPU))
    assert limited(*fault, counted_ms=10).false_ns == 4 * MS


def test_a_control_without_accounts_is_judged_by_who_is_blamed() -> None:
    control = replace(CONTROL, accounts=None)
    assert false(segment(20, 30, Category.SLEEP, STRANGER), control=control) == 0
    assert false(segment(20, 30, Category.SLEEP, HOLDER), control=control) == 10 * MS


def test_a_controls_own_wait_is_not_judged() -> None:
    known = Injection(1, 21 * MS, 24 * MS, frozenset({Category.SLEEP}), frozenset({HOLDER}))
    answer = (
        segment(20, 21, Category.CPU),
        segment(21, 25, Category.SLEEP, HOLDER),
        segment(25, 30, Category.CPU),
    )
    assert false(*answer) == 4 * MS
    assert false(*answer, known=(known,)) == 1 * MS


def test_totals_weigh_by_time_and_pool_errors() -> None:
    good = judged(OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    bad = judged(*OWN)
    both = score.total([good, good, bad])
    assert both.injected_ns == 18 * MS
    assert both.category_share == pytest.approx(2 / 3)
    assert both.errors_ns == (0, 0, 0, 0, 6 * MS, 6 * MS)
    assert both.boundary_ns(0.5) == 0
    assert both.boundary_ns(0.95) == 6 * MS
    assert not both.shares_reached
    assert score.total([good]).within_targets
    assert score.total([]).category_share is None


def test_one_cause_that_is_missed_fails_the_run() -> None:
    good = judged(OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    results = [Result(f"s{k}", "a cause", good) for k in range(99)]
    assert Report(tuple(results), score.total([good] * 99)).passed
    bad = judged(*OWN)
    results.append(Result("bad", "another", bad))
    report = Report(tuple(results), score.total([*[good] * 99, bad]))
    assert report.total.shares_reached
    assert not report.passed
    assert not Report((Result("died", "a cause", failed="why"),), good).passed
    assert Report((Result("s", "a", good), Result("x", "b", impossible="why")), good).passed


def test_every_operation_needs_its_segments() -> None:
    with pytest.raises(ValueError, match="missing"):
        score.of(Played("made", (OP,), (HELD,), ()))


def test_the_document_has_what_is_promised_of_it() -> None:
    good = judged(OWN[0], segment(2, 8, Category.SLEEP, HOLDER), OWN[1])
    results = (Result("s", "a cause", good), Result("x", "b", impossible="no cgroup"))
    made = json.loads(json.dumps(document(Report(results, score.total([good])))))
    assert made["schema"] == "gpucorrelate.verify.v1"
    (scenario,) = made["scenarios"]
    for row in (scenario, made["total"]):
        assert row["injected_ns"] == 6 * MS
        assert (row["category_share"], row["culprit_share"]) == (1, 1)
        assert (row["unknown_share"], row["boundary_p95_ns"]) == (0, 0)
        assert row["false_share"] is None  # there was no control
        assert row["limited_ns"] == 0
    assert scenario["name"] == "s"
    assert made["not_played"] == [
        {"name": "x", "cause": "b", "failed": False, "reason": "no cgroup"}
    ]


def test_a_log_is_read_as_it_was_written() -> None:
    operation = {"number": 0, "control": False, "tid": SELF, "start_ns": 1, "end_ns": 9}
    operation |= {"cpu_ns": 5, "queued_ns": 1, "notice_ns": 0, "faults": 0, "throttled_ns": 2}
    injection = {"operation": 0, "start_ns": 2, "end_ns": 8, "categories": ["sleep"]}
    injection |= {"culprits": [HOLDER], "kind": "", "cpu_ns": 0, "queued_ns": 3}
    rows = [{"injection": injection}, {"operation": operation}, {"process": {"gil": "0x1:2"}}]
    log = read_log(map(json.dumps, rows))
    assert log.operations == (Operation(0, False, SELF, 1, 9, Accounts(5, 1, 0, throttled_ns=2)),)
    assert log.injections == (
        Injection(0, 2, 8, frozenset({Category.SLEEP}), frozenset({HOLDER}), queued_ns=3),
    )
    assert log.facts == (("gil", "0x1:2"),)
