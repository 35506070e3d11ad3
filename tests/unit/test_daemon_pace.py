# SPDX-License-Identifier: Apache-2.0
"""How often the host is looked at: shares of a CPU, tries after faults, requests that are slow."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.daemon.counting import Counts
from gpucorrelate.daemon.inflight import Flights
from gpucorrelate.daemon.retry import Retry
from gpucorrelate.daemon.share import Demand, paces
from gpucorrelate.probes.wire.frame import Batch, StringTable, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor

MS = 1_000_000
S = 1000 * MS
KIND = BY_NAME["request"]


def ppm(demands: list[Demand], every_ns: list[int]) -> float:
    """What looks take of a CPU at a pace, in millionths."""
    return sum(one.cost_ns * 1e6 / every for one, every in zip(demands, every_ns, strict=True))


def test_what_is_cheap_has_what_it_wants_and_the_others_divide_the_rest() -> None:
    demands = [Demand(9 * MS, 100 * MS), Demand(100_000, 100 * MS), Demand(18 * MS, 100 * MS)]
    dear, cheap, dearer = paces(demands, 10_000)
    assert cheap == 100 * MS
    assert dear == 2 * S  # each of both 4500 of the 9000 ppm that are left
    assert dearer == 4 * S
    assert paces(demands, 1_000_000) == [100 * MS] * 3
    assert paces([], 10_000) == []


@given(
    st.lists(st.tuples(st.integers(0, 10 * S), st.integers(10 * MS, 60 * S)), max_size=12),
    st.integers(100, 1_000_000),
)
def test_all_looks_stay_within_their_share(pairs: list[tuple[int, int]], share_ppm: int) -> None:
    demands = [Demand(*pair) for pair in pairs]
    every_ns = paces(demands, share_ppm)
    assert all(one.every_ns <= every for one, every in zip(demands, every_ns, strict=True))
    # Each is rounded to a millionth, and never gets less than one.
    assert ppm(demands, every_ns) <= 1.01 * share_ppm + 2 * len(demands)


def test_what_fails_is_tried_again_more_and_more_seldom() -> None:
    assert not Retry().failing
    retry = Retry()
    waits = [retry.failed(0) for _ in range(8)]
    assert waits[0] > 0
    assert waits[1:4] == [2 * waits[0], 4 * waits[0], 8 * waits[0]]
    assert waits[-1] == waits[-2], "but not ever more seldom"
    assert retry.failing
    retry.worked()
    waited_ns = retry.failed(5) - 5
    assert waited_ns == waits[0]


class Agent:
    """Sends anchors."""

    def __init__(self, stream: int = 3) -> None:
        self.stream = stream
        self.strings = StringTable()

    def says(self, *anchors: tuple[str, int, Anchor, int]) -> Batch:
        """Requests by id, or by number of their HTTP exchange."""
        rows: list[tuple[Any, ...]] = [
            (request, http, int(anchor), t_ns, 1, 0, "") for request, http, anchor, t_ns in anchors
        ]
        columns = columns_of(KIND, rows, self.strings)
        return Batch(KIND.id, len(rows), columns, stream=self.stream)


def after(took_ns: int, count: int = 10) -> tuple[Flights, Agent]:
    """Requests that ended, one after the other."""
    flights, agent = Flights(), Agent()
    for at in range(count):
        start = at * S
        flights.take(agent.says((f"r{at}", 0, Anchor.ADMITTED, start)))
        flights.take(agent.says((f"r{at}", 0, Anchor.FINISHED, start + took_ns)))
    assert len(flights) == 0
    return flights, agent


def test_a_request_is_slow_that_takes_several_times_what_they_take() -> None:
    flights, agent = after(200 * MS)
    assert not flights.slow(1000 * S), "none is in flight"
    flights.take(agent.says(("new", 0, Anchor.ADMITTED, 1000 * S)))
    assert not flights.slow(1000 * S + 500 * MS)
    assert flights.slow(1000 * S + 700 * MS)
    flights.take(agent.says(("new", 0, Anchor.ABORTED, 1001 * S)))
    assert not flights.slow(1002 * S)


def test_how_long_requests_take_is_what_they_took_lately() -> None:
    flights, agent = after(100 * MS)
    assert flights.limit_ns == 300 * MS
    for at in range(64):
        flights.take(agent.says((f"s{at}", 0, Anchor.ADMITTED, 0)))
        flights.take(agent.says((f"s{at}", 0, Anchor.FINISHED, 5 * S)))
    assert flights.limit_ns == 15 * S
    assert after(1)[0].limit_ns == 100 * MS, "very short ones are not worth it"


def test_while_nobody_knows_how_long_they_take_some_seconds_are_slow() -> None:
    flights, agent = after(10 * MS, count=3)
    flights.take(agent.says(("new", 0, Anchor.ADMITTED, S)))
    assert not flights.slow(S + 1900 * MS)
    assert flights.slow(S + 2100 * MS)


def test_requests_are_told_apart_by_stream_and_by_exchange() -> None:
    flights, front, core = Flights(), Agent(3), Agent(4)
    flights.take(front.says(("", 7, Anchor.RECEIVED, S)))
    flights.take(core.says(("a", 0, Anchor.ADMITTED, S), ("b", 0, Anchor.ADMITTED, S)))
    assert len(flights) == 3
    flights.take(core.says(("a", 0, Anchor.FINISHED, 2 * S), ("a", 0, Anchor.KV_BLOCKS, 2 * S)))
    flights.take(front.says(("a", 7, Anchor.LAST_BYTE, 3 * S)))
    assert len(flights) == 1
    flights.forget_stream(4)
    assert len(flights) == 0


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    flights, agent = Flights(), Agent()
    for at in range(0, 10_000, 100):
        rows = [(f"r{n}", 0, Anchor.ADMITTED, S + n) for n in range(at, at + 100)]
        flights.take(agent.says(*rows))
    assert len(flights) == 8192
    assert flights.slow(100 * S)
    assert not flights.slow(5 * 3600 * S), "their ends were not seen"
    assert len(flights) == 0


def test_a_sessions_counts_know_its_requests_in_flight() -> None:
    counts, agent = Counts(), Agent()
    counts.take(agent.says(("a", 0, Anchor.ADMITTED, S)), S)
    assert counts.flights.slow(10 * S)
    counts.resync()
    assert not counts.flights.slow(10 * S)
    counts.take(agent.says(("b", 0, Anchor.ADMITTED, S)), S)
    counts.take_steps_of(3)
    assert not counts.flights.slow(10 * S)
