# SPDX-License-Identifier: Apache-2.0
"""What the soak judges by: growth is found, noise is none, an account that is wrong is told."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.daemon.overhead import ProgramCost
from gpucorrelate.daemon.values import Progress, SessionInfo
from gpucorrelate.probes.wire.frame import Decoder
from tests.engine.client import Request, Result
from tests.soak import accounts, samples
from tests.soak.cost import Cost
from tests.unit.synth import CORE, MS, Recording

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LEVEL = samples.Sample(90 * MIB, 80, 2, 21, 13, 17 * MIB, 20 * MIB, 3000 * MIB, 180, 76)
BY_FIELD = {rule.field: rule for rule in samples.RULES}


def series(field: str, values: list[int]) -> list[samples.Sample]:
    return [replace(LEVEL, **{field: value}) for value in values]


def test_noise_is_not_growth_and_growth_under_noise_is() -> None:
    noise = random.Random(1)
    rule = BY_FIELD["rss_bytes"]
    flat = [90 * MIB + noise.randrange(3 * MIB) for _ in range(40)]
    assert samples.trend(rule, series("rss_bytes", flat)).flat
    leaking = [value + at * MIB // 2 for at, value in enumerate(flat)]
    assert not samples.trend(rule, series("rss_bytes", leaking)).flat


def test_what_grew_before_and_then_stayed_is_flat() -> None:
    values = [90 * MIB + min(at, 15) * MIB for at in range(40)]
    assert samples.trend(BY_FIELD["rss_bytes"], series("rss_bytes", values)).flat


@pytest.mark.parametrize("field", ["descriptors", "threads", "programs", "maps"])
def test_of_what_can_be_counted_one_more_is_growth(field: str) -> None:
    assert samples.trend(BY_FIELD[field], series(field, [80] * 40)).flat
    leaking = samples.trend(BY_FIELD[field], series(field, [80 + at // 10 for at in range(40)]))
    assert leaking.growth > leaking.allowed


def test_recordings_may_come_and_go_below_their_limit() -> None:
    rule = BY_FIELD["disk_bytes"]
    saw = [(16 + 4 * (at % 5)) * MIB for at in range(40)]
    assert samples.trend(rule, series("disk_bytes", saw)).flat
    assert not samples.trend(rule, series("disk_bytes", [*saw, 64 * MIB])).flat


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few"):
        samples.trend(BY_FIELD["threads"], [LEVEL] * 7)


def test_every_number_that_is_taken_is_judged_and_this_process_has_some(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 1000)
    taken = samples.take(os.getpid(), tmp_path, [os.getpid(), 1 << 30])
    assert set(BY_FIELD) == set(vars(taken))
    assert taken.disk_bytes == 1000
    assert taken.rss_bytes == pytest.approx(taken.engine_rss_bytes, rel=0.2)
    assert taken.descriptors > 0
    assert taken.threads > 0


def capture(*steps: int, lost: int = 0) -> Capture:
    made = Recording().process(3, CORE, "core")
    for step in steps:
        begun = step * MS
        made.add("step_begin", 3, step=step, tid=CORE, start_ns=begun, rowset=0, rows=0, tokens=0)
        made.add("step_end", 3, step=step, tid=CORE, end_ns=begun + MS // 2)
    if lost:
        made.add("loss", 1, t_ns=MS, since_ns=0, hop="agent.queue", what="rows", count=lost)
    items = Decoder().feed(b"".join(made.frames))
    return Capture.from_batches(one[0] if isinstance(one, tuple) else one for one in items)


def account(one: Capture, *whole: Result, lost: int = 0, passed: int = 0) -> accounts.Account:
    info = SessionInfo("s", lost=lost)
    return accounts.of_session(one, whole, info, Progress("s", steps=passed))


def test_an_exact_account_has_nothing_to_say() -> None:
    found = account(capture(1, 2, 3), passed=3)
    assert (found.steps, found.missing_steps, found.wrong) == (3, 0, ())


def test_a_step_that_is_missing_must_be_told_as_lost() -> None:
    assert account(capture(1, 2, 5)).missing_steps == 2
    assert "2 steps are missing, 0 events are told as lost" in account(capture(1, 2, 5)).wrong
    assert account(capture(1, 2, 5, lost=4), lost=4).wrong == ()


def test_the_daemons_own_sum_of_losses_must_be_the_recordings() -> None:
    assert account(capture(1, lost=4), lost=5).wrong == (
        "the daemon counts 5 lost, its recording tells of 4",
    )


def test_a_request_without_a_record_is_missing() -> None:
    sent = Result(Request("soak-1", "text", 3), 200, MS, 2 * MS, (), 1, 3)
    found = account(capture(1), sent)
    assert (found.requests, found.missing_requests) == (1, 1)
    assert "no record of request soak-1" in found.wrong


def test_what_programs_ran_is_added_up_and_told_dearest_first() -> None:
    cost = Cost(attached_s=2.0, attached_cpu_s=0.1, idle_s=1.0, engine_cpu_s=2.0)
    before = (ProgramCost("a", 100, 10), ProgramCost("b", 0, 0))
    after = (ProgramCost("a", 1_100, 20), ProgramCost("b", 20_000_000, 100, 3))
    cost.add_programs(before, after)
    cost.add_programs(before, after)
    lines = cost.lines([LEVEL], [("rings", 0.5)])
    assert "5.00% of one CPU" in lines[0]
    assert lines[-2].split() == ["b", "200", "200,000", "2.000%", "6"]
    assert lines[-1].split() == ["a", "20", "100", "0.000%", "0"]
