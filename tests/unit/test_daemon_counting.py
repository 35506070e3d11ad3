# SPDX-License-Identifier: Apache-2.0
"""Running numbers of a session, and when the step stream is called silent."""

from __future__ import annotations

from gpucorrelate.daemon.counting import Counts
from gpucorrelate.probes.wire.frame import Batch, StringTable, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor

S = 1_000_000_000


def batch(name: str, rows: list[tuple], stream: int = 3) -> Batch:
    kind = BY_NAME[name]
    return Batch(kind.id, len(rows), columns_of(kind, rows, StringTable()), 1, stream=stream)


def anchor(*anchors: Anchor) -> Batch:
    return batch("request", [("r", 0, int(a), 1, 1, 0, "") for a in anchors])


def begin(*steps: int) -> Batch:
    return batch("step_begin", [(step, 1, 1, 1, 1, 1, 0, 1, 1, 0) for step in steps])


def end(*steps: int) -> Batch:
    return batch("step_end", [(step, 1, 1, 0, "") for step in steps])


def work() -> Batch:
    return batch("worker_step", [(0, 1, 0, 1, 1, 1, 0)])


def test_a_request_counts_once_whoever_saw_it() -> None:
    counts = Counts()
    counts.take(anchor(Anchor.RECEIVED, Anchor.RECEIVED, Anchor.ADMITTED), 1)
    assert counts.requests_received == 2
    counts.take(anchor(Anchor.FINISHED, Anchor.LAST_BYTE), 1)
    assert counts.requests_finished == 1
    assert counts.requests_in_flight == 1


def test_steps_are_in_flight_from_begin_to_end_in_each_core() -> None:
    counts = Counts()
    counts.take(begin(1, 2), 1)
    counts.take(batch("step_begin", [(1, 1, 1, 1, 1, 1, 0, 1, 1, 0)], stream=4), 1)
    counts.take(end(1), 1)
    assert counts.steps == 3
    assert counts.steps_in_flight == 2
    assert counts.take_steps_of(3) == (2,)
    assert counts.take_steps_of(3) == ()
    assert counts.steps_in_flight == 1


def test_totals_survive_a_restart() -> None:
    counts = Counts()
    counts.take(begin(1, 2), 1)
    counts.take_kernel(BY_NAME["wait"].id, 7, 1)
    later = Counts()
    later.restore(counts.save())
    assert (later.steps, later.waits, later.rows) == (2, 7, 9)


def test_requests_and_work_without_steps_are_silent_after_five_seconds() -> None:
    counts = Counts()
    assert not counts.silent(100 * S)
    counts.take(anchor(Anchor.ADMITTED), 100 * S)
    for second in range(101, 105):
        counts.take(work(), second * S)
        assert not counts.silent(second * S)
    counts.take(work(), 106 * S)
    assert counts.silent(106 * S)
    counts.take(begin(1), 107 * S)
    counts.take(end(1), 107 * S)
    assert not counts.silent(107 * S)


def test_a_request_whose_end_was_lost_is_not_in_flight_for_ever() -> None:
    counts = Counts()
    counts.take(anchor(Anchor.ADMITTED, Anchor.ADMITTED), S)
    counts.take(begin(1), S)
    counts.resync()
    for second in range(1, 60):
        counts.take(work(), second * S)
        assert not counts.silent(second * S)
    assert counts.requests_in_flight == counts.steps_in_flight == 0
    counts.take(anchor(Anchor.ADMITTED), 60 * S)
    assert counts.requests_in_flight == 1


def test_a_long_step_is_not_silence() -> None:
    counts = Counts()
    counts.take(anchor(Anchor.ADMITTED), S)
    counts.take(begin(1), S)
    for second in range(1, 60):
        counts.take(work(), second * S)
        assert not counts.silent(second * S)


def test_a_still_engine_is_not_silence() -> None:
    """Nothing at all comes: that is for others to explain, the hooks are not at fault."""
    counts = Counts()
    counts.silent(S)
    counts.take(anchor(Anchor.ADMITTED), S)
    assert not counts.silent(60 * S)


def test_an_engine_without_requests_is_not_silent() -> None:
    counts = Counts()
    for second in range(1, 60):
        counts.take(work(), second * S)
        assert not counts.silent(second * S)
