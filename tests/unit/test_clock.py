# SPDX-License-Identifier: Apache-2.0
"""Another clock's times on CLOCK_MONOTONIC: the truth is always within what is published."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.correlator.clock import (
    PAIRS,
    UNKNOWN_NS,
    Burst,
    ClockMap,
    Drift,
    Limits,
    Mapped,
    Pair,
    _times,
    from_capture,
    matters,
    order,
    read_pairs,
)
from gpucorrelate.probes.wire.errors import UsageError
from tests.unit.synth import Recording

MS = 1_000_000
SECOND = 1_000_000_000
#: Nanoseconds since 1970: what a profiler's clock shows.
EPOCH = 1_790_000_000 * SECOND
FIXED = Limits(max_drift_ppb=0, wander_ppb=0)


class Clock:
    """A clock of known error: both clocks run on, and are read as whole ticks.

    Args:
        start: CLOCK_MONOTONIC (whole) when the other clock shows ``foreign``.
        ppb: CLOCK_MONOTONIC gains this in a second of the other clock.
        tick: The other clock's resolution.
    """

    def __init__(self, start: int, foreign: int | Fraction, ppb: int, tick: int = 1) -> None:
        self.start, self.foreign, self.tick = start, foreign, tick
        self.rate = 1 + Fraction(ppb, SECOND)

    def monotonic(self, foreign: Fraction) -> Fraction:
        return self.start + (foreign - self.foreign) * self.rate

    def shown(self, monotonic: Fraction) -> Fraction:
        return self.foreign + (monotonic - self.start) / self.rate

    def read(self, monotonic: Fraction) -> int:
        return floor(self.shown(monotonic)) // self.tick * self.tick

    def pair(self, t: Fraction, first: Fraction, second: Fraction) -> Pair:
        """A pair begun at ``t`` whose readings are so far apart."""
        return Pair(floor(t), self.read(t + first), floor(t + first + second))

    def burst(
        self, t: int, rng: random.Random, n: int = PAIRS, longest: int = 400, pause: int = 50
    ) -> list[Pair]:
        pairs, at = [], Fraction(t) + Fraction(rng.randrange(1000), 1000)
        for _ in range(n):
            first, second = (Fraction(rng.randrange(longest * 100), 100) for _ in "ab")
            pairs.append(self.pair(at, first, second))
            at += first + second + rng.randrange(pause)
        return pairs


def single(value: Mapped) -> tuple[int, int, bool]:
    return int(value.ns), int(value.uncertainty_ns), bool(value.valid)


def holds(mapping: ClockMap, clock: Clock, moments: list[Fraction]) -> None:
    """Events at these moments, as both clocks would have stamped them."""
    stamps = [clock.read(moment) for moment in moments]
    mapped = mapping.to_monotonic(np.array(stamps, np.int64))
    assert mapped.valid.all()
    for moment, ns, unsure in zip(
        moments, mapped.ns.tolist(), mapped.uncertainty_ns.tolist(), strict=True
    ):
        assert abs(floor(moment) - ns) <= unsure


CLOCKS = st.builds(
    Clock,
    start=st.integers(0, 1 << 61),
    foreign=st.integers(-(1 << 61), 1 << 61),
    ppb=st.integers(-499_000, 499_000),
    tick=st.just(1),
)
SEEDS = st.integers(0, 1 << 32)


# --- bursts ---------------------------------------------------------------------------------


def test_64_pairs_of_a_profilers_clock() -> None:
    # The best of them take 16 ns, as on the machine the numbers are from.
    offset, at = 5 * SECOND - EPOCH, 5 * SECOND
    pairs = []
    for k in range(PAIRS):
        width = 16 if k % 4 == 0 else 300 + k
        inside = (0, 16, 8, 8)[k // 4 % 4] if width == 16 else width // 2
        pairs.append(Pair(at, at + inside - offset, at + width))
        at += width + 40
    burst = Burst.of(pairs, FIXED)
    assert burst is not None
    assert (burst.pairs, burst.refused, burst.consistent) == (PAIRS, 0, True)
    assert burst.round_trip_ns == 16
    assert (burst.spread_ns, burst.spread_pairs) == (16, PAIRS // 4)
    # One was read at the very beginning, one at the very end: no other offset fits both.
    assert (burst.offset_ns, burst.uncertainty_ns) == (offset, 0)
    # Where all were read half way, nothing is known beyond half the round trip.
    alike = Burst.of([p for p in pairs if p.before_ns + 8 - offset == p.foreign_ns], FIXED)
    assert alike is not None
    assert (alike.pairs, alike.offset_ns, alike.uncertainty_ns) == (8, offset, 8)


def test_a_single_pair_is_uncertain_by_half_its_round_trip() -> None:
    burst = Burst.of([(1_000, 7_008, 1_016)])
    assert burst is not None
    assert (burst.offset_ns, burst.uncertainty_ns, burst.spread_ns) == (1_008 - 7_008, 8, 0)
    assert burst.monotonic_ns == 1_008
    odd = Burst.of([(1_000, 7_008, 1_017)])
    assert odd is not None
    assert odd.uncertainty_ns == 9
    assert {odd.low_ns, odd.high_ns} == {1_000 - 7_008, 1_017 - 7_008}


def test_spread_is_over_the_pairs_nearly_as_short_as_the_shortest() -> None:
    middles = [(100, 0), (125, 30), (126, 900)]  # round trip, and how far the middle is off
    pairs = [(0, width // 2 - off, width) for width, off in middles]
    burst = Burst.of(pairs)
    assert burst is not None
    assert (burst.spread_ns, burst.spread_pairs) == (31, 2)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(10, 5, 9)],  # time ran backwards
        [(0, 1 << 62, 5)],
        [(-(1 << 63), 0, 1 << 63)],
        [(0, (1 << 64) - 1, 5), (1 << 200, 0, 1 << 201)],
    ],
)
def test_of_what_cannot_be_readings_there_is_no_burst(pairs: list[tuple[int, int, int]]) -> None:
    assert Burst.of(pairs) is None
    assert not ClockMap.of([Burst.of(pairs)]).to_monotonic([0]).valid.any()


def test_what_cannot_be_a_reading_is_counted_beside_those_that_can() -> None:
    burst = Burst.of([(0, 50, 100), (10, 5, 9), (0, 1 << 64, 5)])
    assert burst is not None
    assert (burst.pairs, burst.refused, burst.offset_ns) == (1, 2, 0)


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError):
        Burst.of([(0, 5.0, 10)])  # type: ignore[list-item]
    with pytest.raises(UsageError):
        ClockMap.of([]).to_monotonic(np.array([1.5]))
    with pytest.raises(UsageError):
        order(np.array([1.5]), 1, 0)


@given(
    CLOCKS,
    SEEDS,
    st.integers(1, PAIRS),
    st.sampled_from([1, 30, 400, 50_000]),
    st.sampled_from([1, 50, MS]),
)
def test_the_offset_of_a_burst_is_within_its_bounds(clock, seed, n, longest, pause) -> None:
    rng = random.Random(seed)
    pairs = clock.burst(clock.start + rng.randrange(SECOND), rng, n, longest, pause)
    burst = Burst.of(pairs)
    assert burst is not None
    assert burst.consistent
    assert burst.pairs == n
    true = clock.monotonic(Fraction(burst.foreign_ns)) - burst.foreign_ns
    slack = Limits().slack_ns
    assert burst.low_ns - slack <= true <= burst.high_ns + slack
    assert abs(true - burst.offset_ns) <= burst.uncertainty_ns + slack
    assert burst.uncertainty_ns <= (burst.round_trip_ns + 1) // 2


@given(CLOCKS, SEEDS, st.integers(100 * 1000, 1 << 60), st.sampled_from([-1, 1]))
def test_a_step_within_a_burst_is_told(clock, seed, size, sign) -> None:
    rng = random.Random(seed)
    pairs = clock.burst(clock.start, rng)
    at = rng.randrange(1, PAIRS)
    stepped = [p._replace(foreign_ns=p.foreign_ns + sign * size) for p in pairs[at:]]
    burst = Burst.of(pairs[:at] + stepped)
    assert burst is not None
    assert not burst.consistent
    assert burst.low_ns > burst.high_ns
    mapping = ClockMap.of([burst])
    assert (mapping.bursts, mapping.rejected) == ((), (burst,))
    assert single(mapping.to_monotonic(burst.foreign_ns)) == (0, UNKNOWN_NS, False)


def test_a_coarse_clock_is_consistent_only_if_its_resolution_is_known() -> None:
    clock = Clock(SECOND, EPOCH, 0, tick=MS)
    pairs = [
        clock.pair(Fraction(SECOND + k * 99_991), Fraction(50), Fraction(50)) for k in range(64)
    ]
    blind, seeing = Burst.of(pairs), Burst.of(pairs, Limits(resolution_ns=MS))
    assert blind is not None
    assert seeing is not None
    assert (blind.consistent, seeing.consistent) == (False, True)
    moments = [Fraction(SECOND + k * 77_773) for k in range(64)]
    holds(ClockMap.of([seeing], Limits(resolution_ns=MS)), clock, moments)


# --- maps -----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    CLOCKS,
    SEEDS,
    st.lists(st.integers(0, 3600 * SECOND), min_size=1, max_size=6),
    st.sampled_from([(PAIRS, 400), (PAIRS, 20), (1, 400), (3, MS)]),
)
def test_the_truth_is_within_the_uncertainty(clock, seed, after, size) -> None:
    """Before, between and after bursts of any distance, drifting in any direction."""
    rng = random.Random(seed)
    times = [clock.start + t for t in after]
    mapping = ClockMap.of(Burst.of(clock.burst(t, rng, *size)) for t in times)
    assert not mapping.steps
    assert not mapping.rejected
    low, high = min(times) - SECOND, max(times) + 100 * SECOND
    moments = [Fraction(rng.randrange(low * 8, high * 8), 8) for _ in range(40)]
    near = [Fraction(b.monotonic_ns + rng.randrange(-300, 300)) for b in mapping.bursts]
    holds(mapping, clock, moments + near)
    for drift in mapping.drifts:
        assert abs(drift.ppb - (clock.rate - 1) * SECOND) <= drift.uncertainty_ppb


@settings(max_examples=60)
@given(SEEDS, st.integers(-400_000, 400_000), st.integers(0, 900))
def test_the_truth_is_within_the_uncertainty_while_the_rate_wanders(seed, ppb, wander) -> None:
    """The rate changes every second, by less than is allowed for."""
    rng = random.Random(seed)
    clocks = [Clock(7 * SECOND, EPOCH, ppb)]
    for _ in range(40):
        last = clocks[-1]
        turn = last.start + SECOND
        rate = ppb + rng.randint(-wander // 2, wander // 2)
        clocks.append(Clock(turn, last.shown(Fraction(turn)), rate))
    bursts = [Burst.of(clock.burst(clock.start + 5000, rng)) for clock in clocks[::8]]
    mapping = ClockMap.of(bursts)
    for clock in clocks:
        holds(mapping, clock, [Fraction(clock.start + rng.randrange(SECOND)) for _ in range(4)])


@given(CLOCKS, SEEDS, st.lists(st.integers(0, 40 * SECOND), min_size=2, max_size=40))
def test_order_survives_the_mapping(clock, seed, after) -> None:
    """Of two times the later is never mapped to before the earlier."""
    rng = random.Random(seed)
    at = [clock.start + t * SECOND for t in (1, 12, 30)]
    mapping = ClockMap.of(Burst.of(clock.burst(t, rng)) for t in at)
    stamps = sorted(clock.foreign + t for t in after)
    edges = [b.foreign_ns + d for b in mapping.bursts for d in (-1, 0, 1)]
    mapped = mapping.to_monotonic(np.array(sorted(stamps + edges), np.int64))
    assert mapped.valid.all()
    assert (np.diff(mapped.ns) >= 0).all()


def test_uncertainty_grows_from_a_burst_on() -> None:
    rng = random.Random(1)
    clock = Clock(SECOND, EPOCH, 20_000)
    bursts = [Burst.of(clock.burst((1 + t) * SECOND, rng)) for t in (0, 10)]
    first, second = (burst.foreign_ns for burst in bursts if burst)
    mapping = ClockMap.of(bursts)
    at = [first - SECOND, first, (first + second) // 2, second, second + SECOND]
    before, exact, between, exact_too, beyond = mapping.to_monotonic(at).uncertainty_ns.tolist()
    assert max(exact, exact_too) < min(before, between, beyond)
    alone = ClockMap.of(bursts[1:]).to_monotonic(at).uncertainty_ns.tolist()
    assert alone[4] > beyond  # the drift is not known
    assert alone[4] >= SECOND // 2000


def test_without_drift_one_burst_is_enough() -> None:
    burst = Burst.of([(1_000, EPOCH, 1_016)], FIXED)
    assert burst is not None
    mapped = ClockMap.of([burst], FIXED).to_monotonic([EPOCH, EPOCH + 3600 * SECOND])
    assert (mapped.ns - [EPOCH, EPOCH + 3600 * SECOND]).tolist() == [1_008 - EPOCH] * 2
    assert mapped.uncertainty_ns[0] == 8 + FIXED.slack_ns
    assert mapped.uncertainty_ns[1] < 20


def test_drift_is_reported_and_its_changes_widen_the_uncertainty() -> None:
    steady = [(t * SECOND - 50, t * (SECOND - 30_000), t * SECOND + 50) for t in range(1, 5)]
    mapping = ClockMap.of(Burst.of([pair]) for pair in steady)
    assert len(mapping.drifts) == 3
    for drift in mapping.drifts:
        assert abs(drift.ppb - 30_001) <= drift.uncertainty_ppb < 300
    overall = Drift.between(mapping.bursts[0], mapping.bursts[-1])
    assert overall.uncertainty_ppb < mapping.drifts[0].uncertainty_ppb
    assert (overall.start_ns, overall.end_ns) == (SECOND, 4 * SECOND)
    faster = (5 * SECOND - 50, 5 * (SECOND - 30_000) - 100_000, 5 * SECOND + 50)
    changed = ClockMap.of(Burst.of([pair]) for pair in [*steady, faster])
    assert not changed.steps
    moment = 5 * SECOND // 2
    assert (
        changed.to_monotonic(moment).uncertainty_ns > mapping.to_monotonic(moment).uncertainty_ns
    )


@given(SEEDS, st.integers(-400_000, 400_000))
def test_the_drift_of_a_coarse_clock_is_within_its_uncertainty(seed, ppb) -> None:
    rng, limits = random.Random(seed), Limits(resolution_ns=MS)
    clock = Clock(SECOND, EPOCH, ppb, tick=MS)
    times = [rng.randrange(SECOND, 2 * SECOND), rng.randrange(5 * SECOND, 90 * SECOND)]
    first, second = (Burst.of(clock.burst(t, rng, 1), limits) for t in times)
    assert first is not None
    assert second is not None
    drift = Drift.between(first, second, limits)
    assert abs(drift.ppb - ppb) <= drift.uncertainty_ppb


@given(CLOCKS, SEEDS)
def test_a_stretch_of_weeks_is_mapped_to_few_nanoseconds(clock, seed) -> None:
    """A rate as a binary fraction is not exact over 2^50 ns."""
    rng, limits = random.Random(seed), Limits(wander_ppb=0)
    times = [clock.start, clock.start + (1 << 50)]
    mapping = ClockMap.of((Burst.of(clock.burst(t, rng, longest=1)) for t in times), limits)
    assert len(mapping.drifts) == 1
    moments = [Fraction(rng.randrange(*times)) for _ in range(20)]
    holds(mapping, clock, [*moments, Fraction(times[1] - 1)])
    end = mapping.bursts[1].foreign_ns
    before, at = mapping.to_monotonic([end - 1, end]).ns.tolist()
    assert before <= at
    assert mapping.to_monotonic(end - 1).uncertainty_ns < 2000


def test_a_drift_too_vague_to_be_believed_is_not_extrapolated() -> None:
    pairs = [(-66, 0, 66), (272_134, 272_100, 272_266)]
    mapping = ClockMap.of(Burst.of([pair]) for pair in pairs)
    assert mapping.drifts[0].ppb > 300_000
    ns, unsure, valid = single(mapping.to_monotonic(SECOND))
    assert (ns, valid) == (SECOND + 100, True)
    assert unsure >= SECOND // 2001


def test_no_drift_is_told_of_one_moment() -> None:
    burst = Burst.of([(0, 5, 10)])
    assert burst is not None
    with pytest.raises(UsageError):
        Drift.between(burst, burst)


def test_of_two_bursts_at_nearly_one_moment_the_better_one_counts() -> None:
    vague, exact = Burst.of([(0, 9_000, 10_000)]), Burst.of([(10_100, 10_108, 10_116)])
    assert vague is not None
    assert exact is not None
    for bursts in ([vague, exact], [exact, vague]):
        mapping = ClockMap.of(bursts)
        assert mapping.bursts == (vague, exact)
        assert not mapping.drifts
        assert single(mapping.to_monotonic(10_108)) == (10_108, 8 + Limits().slack_ns, True)


# --- steps ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    SEEDS,
    st.integers(-400_000, 400_000),
    st.integers(10 * MS, 20_000 * SECOND),
    st.sampled_from([-1, 1]),
)
def test_a_step_is_found_and_nothing_is_mapped_across_it(seed, ppb, size, sign) -> None:
    rng = random.Random(seed)
    start = 1000 * SECOND
    before = Clock(start, EPOCH, ppb)
    after = Clock(start, EPOCH + sign * size, ppb)
    turn = start + rng.randrange(2 * SECOND + MS, 4 * SECOND)
    times = [start + t * SECOND for t in (0, 2, 4, 6)]
    bursts = [Burst.of((before if t < turn else after).burst(t, rng)) for t in times]
    mapping = ClockMap.of(bursts)
    assert len(mapping.steps) == 1
    step = mapping.steps[0]
    assert step.after_ns <= turn <= step.before_ns
    assert abs(step.size_ns - sign * size) <= 3 * SECOND // 1000
    moments = [start + rng.randrange(6 * SECOND) for _ in range(300)]
    stamps = [(before if t < turn else after).read(Fraction(t)) for t in moments]
    mapped = mapping.to_monotonic(stamps)
    for t, ns, unsure, valid in zip(
        moments, mapped.ns.tolist(), mapped.uncertainty_ns.tolist(), mapped.valid.tolist(),
        strict=True,
    ):  # fmt: skip
        if valid:
            assert abs(t - ns) <= unsure
            assert not step.after_ns + MS < t < step.before_ns - MS
        elif not (sign < 0 or step.after_ns - MS < t < step.before_ns + MS):
            raise AssertionError("unknown, although no step is near and no time was shown twice")
        else:
            assert (ns, unsure) == (0, UNKNOWN_NS)


def test_a_clock_set_back_shows_some_times_twice_and_these_are_unknown() -> None:
    # Set back by 5 s between 10 s and 11 s: 6 s and later come again.
    def burst(t: int, offset: int) -> Burst | None:
        return Burst.of([(t * SECOND, t * SECOND - offset, t * SECOND + 20)])

    mapping = ClockMap.of(
        [burst(0, 0), burst(10, 0), burst(11, 5 * SECOND), burst(20, 5 * SECOND)]
    )
    assert len(mapping.steps) == 1
    assert mapping.steps[0].after_ns == 10 * SECOND + 10
    assert mapping.steps[0].before_ns == 11 * SECOND + 10
    assert mapping.steps[0].size_ns == -5 * SECOND
    shown = [t * SECOND // 2 for t in (2, 8, 9, 11, 13, 20, 21, 23, 26, 30)]
    assert mapping.to_monotonic(shown).valid.tolist() == [
        True, True, True, False, False, False, False, True, True, True,
    ]  # fmt: skip
    mapped = mapping.to_monotonic([4 * SECOND, 13 * SECOND])
    assert abs(mapped.ns - [4 * SECOND, 18 * SECOND]).max() <= 20


def test_a_vague_burst_does_not_hide_a_step() -> None:
    good = [Burst.of([(t, t + offset, t + 20)]) for t, offset in ((0, 0), (20 * MS, 5 * MS))]
    vague = Burst.of([(1 * MS, 11 * MS, 19 * MS)])
    assert len(ClockMap.of([good[0], vague, good[1]]).steps) == 1


def test_a_clock_of_another_unit_is_not_mapped_between_its_readings() -> None:
    pairs = [(t * SECOND, t * 2 * SECOND, t * SECOND + 20) for t in range(500)]
    mapping = ClockMap.of(Burst.of([pair]) for pair in pairs)
    assert len(mapping.steps) == 499
    assert not mapping.to_monotonic(np.arange(SECOND // 2, 998 * SECOND, SECOND)).valid.any()


def test_nothing_is_known_beyond_a_burst_that_fits_no_offset() -> None:
    def pair(t: int, offset: int = 0) -> tuple[int, int, int]:
        return (t * SECOND, t * SECOND - offset, t * SECOND + 20)

    good = [Burst.of([pair(t)]) for t in (2, 4)]
    bad = {t: Burst.of([pair(t), pair(t, MS)]) for t in (1, 3, 5)}
    asked = np.array([1, 3, 5]) * SECOND + 10
    valid = {t: ClockMap.of([*good, bad[t]]).to_monotonic(asked).valid.tolist() for t in bad}
    assert valid[1] == [False, True, True]
    assert valid[3] == [True, True, True]  # the clock was as before: a bad reading
    assert valid[5] == [True, True, False]


# --- exact integers, hostile values -----------------------------------------------------------


@given(st.integers(-(1 << 37), 1 << 37), st.integers(-(1 << 61), 1 << 61))
def test_rate_times_length_is_exact(rate: int, length: int) -> None:
    found = _times(np.array([rate], np.int64), np.array([length], np.int64))
    assert found.tolist() == [rate * length >> 40]


@pytest.mark.parametrize("sign", [-1, 1])
def test_times_near_2_to_62_are_mapped_to_the_nanosecond(sign: int) -> None:
    edge = sign * ((1 << 62) - 100 * SECOND)
    pairs = [(edge + t, edge + t - 3, edge + t) for t in (0, 10 * SECOND)]
    mapping = ClockMap.of((Burst.of([pair], FIXED) for pair in pairs), FIXED)
    asked = [edge + t for t in (-1, 0, 1, 7, SECOND + 1)]
    mapped = mapping.to_monotonic(asked)
    assert [ns - t for ns, t in zip(mapped.ns.tolist(), asked, strict=True)] == [3] * 5
    assert mapped.valid.all()
    assert mapped.uncertainty_ns.max() <= 5


def test_no_value_overflows() -> None:
    top = (1 << 62) - 1
    extremes = [-(1 << 63), -top - 1, -top, -1, 0, 1, top, top + 1, (1 << 63) - 1]
    for limits in (Limits(), Limits(100_000_000, 100_000_000, SECOND), FIXED):
        for pairs in (
            [(-top, top, top)],
            [(-top, -top, -top), (top, top, top)],
            [(-top, top, -top), (top, -top, top)],
            [(0, 0, 0), (1, top, 1), (top, -top, top)],
        ):
            mapping = ClockMap.of((Burst.of([pair], limits) for pair in pairs), limits)
            mapped = mapping.to_monotonic(np.array(extremes, np.int64))
            assert (mapped.uncertainty_ns >= 0).all()
            assert not mapped.valid[[0, 1, -2, -1]].any()


def test_a_time_too_far_from_every_burst_is_unknown() -> None:
    mapping = ClockMap.of([Burst.of([(0, 0, 0)])])
    reach = 1 << 61
    valid = mapping.to_monotonic([-reach - 1, -reach, reach, reach + 1]).valid
    assert valid.tolist() == [False, True, True, False]


def test_any_integer_type_and_shape_is_mapped() -> None:
    mapping = ClockMap.of([Burst.of([(10, 10, 10)])])
    unsigned = mapping.to_monotonic(np.array([[10, (1 << 64) - 1]], np.uint64))
    assert unsigned.valid.tolist() == [[True, False]]
    assert single(mapping.to_monotonic(10))[0] == 10
    assert mapping.to_monotonic(np.array([10], np.int8)).ns.tolist() == [10]
    assert mapping.to_monotonic([]).ns.shape == (0,)


@pytest.mark.parametrize(
    "wrong",
    [{"max_drift_ppb": -1}, {"max_drift_ppb": SECOND}, {"wander_ppb": -1}, {"resolution_ns": 0}],
)
def test_impossible_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Limits(**wrong)


# --- order, and what matters ------------------------------------------------------------------


def test_nothing_finer_than_the_uncertainty_is_ordered() -> None:
    a = np.array([100, 100, 100, 100, 100])
    b = np.array([100, 108, 109, 92, 91])
    assert order(a, b, 8).tolist() == [0, 0, -1, 0, 1]
    assert order(a, b, np.array([0, 0, 9, 0, 0])).tolist() == [0, -1, 0, 1, 1]
    assert int(order(3, 1, 0)) == 1
    assert order([], [], 0).tolist() == []
    with pytest.raises(UsageError):
        order(a, b, -1)


@given(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 2, st.integers(0, (1 << 63) - 1))
def test_order_is_that_of_unbounded_integers(a: int, b: int, unsure: int) -> None:
    expected = 0 if abs(a - b) <= unsure else 1 if a > b else -1
    assert int(order(a, b, unsure)) == expected
    assert int(order(a, b, UNKNOWN_NS)) == (0 if abs(a - b) <= UNKNOWN_NS else expected)


def test_what_cannot_be_mapped_cannot_be_ordered() -> None:
    nothing = ClockMap.of([]).to_monotonic([EPOCH])
    assert order(nothing.ns, [5 * SECOND], nothing.uncertainty_ns).tolist() == [0]


@pytest.mark.parametrize(
    ("uncertainty", "said"),
    [
        (8, "uncertainty 8 ns against a 4.80 ms step: 1 in 600,000, it does not matter"),
        (0, "uncertainty 0 against a 4.80 ms step: it does not matter"),
        (48_000, "uncertainty 48.0 us against a 4.80 ms step: 1 in 100, it matters"),
        (
            4_800_000,
            "uncertainty 4.80 ms against a 4.80 ms step: it matters,"
            " no two moments of one step can be ordered",
        ),
        (UNKNOWN_NS, "uncertainty unknown against a 4.80 ms step: it matters"),
    ],
)
def test_whether_an_uncertainty_matters_is_said_in_a_sentence(uncertainty: int, said: str) -> None:
    assert matters(uncertainty, 4_800_000) == said


def test_what_cannot_be_compared_is_refused() -> None:
    for wrong in ((-1, 5), (5, 0)):
        with pytest.raises(UsageError):
            matters(*wrong)


# --- real clocks ------------------------------------------------------------------------------


def test_a_displaced_clock_of_this_machine_is_known_within_the_bounds() -> None:
    away = EPOCH + 12_345
    pairs = read_pairs(lambda: time.monotonic_ns() + away)
    assert len(pairs) == PAIRS
    burst = Burst.of(pairs)
    assert burst is not None
    assert burst.consistent
    slack = Limits().slack_ns
    assert burst.low_ns - slack <= -away <= burst.high_ns + slack
    mapped = ClockMap.of([burst]).to_monotonic([p.foreign_ns for p in pairs])
    truth = np.array([p.foreign_ns - away for p in pairs])
    assert (np.abs(mapped.ns - truth) <= mapped.uncertainty_ns).all()


@pytest.mark.parametrize("name", ["BOOTTIME", "REALTIME", "MONOTONIC_RAW"])
def test_a_clock_of_this_machine_is_mapped_between_its_own_readings(name: str) -> None:
    """A reading of which is known when it was taken, between two bursts that do not contain it."""
    number = getattr(time, f"CLOCK_{name}")

    def read() -> int:
        return time.clock_gettime_ns(number)

    first = read_pairs(read)
    time.sleep(0.02)
    asked = read_pairs(read)
    time.sleep(0.02)
    last = read_pairs(read)
    mapping = ClockMap.of([Burst.of(first), Burst.of(last)])
    if mapping.steps or mapping.rejected:
        pytest.skip(f"CLOCK_{name} was set during the test")
    mapped = mapping.to_monotonic([pair.foreign_ns for pair in asked])
    assert mapped.valid.all()
    assert (mapped.ns + mapped.uncertainty_ns >= [pair.before_ns for pair in asked]).all()
    assert (mapped.ns - mapped.uncertainty_ns <= [pair.after_ns for pair in asked]).all()


# --- recordings -------------------------------------------------------------------------------


def test_the_maps_of_a_recording() -> None:
    r = Recording()
    clock = Clock(SECOND, EPOCH, 30_000)
    rng = random.Random(3)
    for t in (1, 5):
        for pair in clock.burst(t * SECOND, rng, 8):
            middle, width = (pair.before_ns + pair.after_ns) // 2, pair.round_trip_ns
            row = {"t_ns": middle, "width_ns": width, "other": pair.foreign_ns}
            r.add("clock_pair", 5, clock="cupti", **row)
    r.add("clock_pair", 6, t_ns=500, width_ns=11, clock="cupti", other=7)
    r.add("clock_pair", 6, t_ns=500, width_ns=(1 << 64) - 1, clock="ptp", other=(1 << 64) - 1)
    maps = from_capture(r.capture())
    assert set(maps) == {(5, "cupti"), (6, "cupti"), (6, "ptp")}
    assert [burst.pairs for burst in maps[5, "cupti"].bursts] == [8, 8]
    assert len(maps[5, "cupti"].drifts) == 1
    holds(maps[5, "cupti"], clock, [Fraction(k * SECOND, 7) for k in range(7, 42)])
    lone = maps[6, "cupti"].bursts[0]
    assert (lone.low_ns, lone.high_ns, lone.uncertainty_ns) == (494 - 7, 506 - 7, 6)
    assert not maps[6, "ptp"].bursts


def test_a_recording_without_pairs_has_no_maps() -> None:
    assert from_capture(Recording().capture()) == {}
