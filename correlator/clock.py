# SPDX-License-Identifier: Apache-2.0
"""Another clock's times as times of CLOCK_MONOTONIC, and how far they may be wrong.

The other clock (a GPU profiler's, another one of the host) is read between two readings of
CLOCK_MONOTONIC: its reading was taken at some moment between them, whatever delayed any of the
three. A burst of such pairs bounds the offset, which is CLOCK_MONOTONIC minus the other clock;
bursts over time bound how it drifts (F. Cristian, "Probabilistic clock synchronization", 1989).

All in integers: nanoseconds since 1970 do not fit a float. Rates are parts per billion, or
binary fractions of ``_RATE_BITS`` bits where a product of two 64-bit numbers is needed. What is
said of the truth holds as long as the other clock keeps to ``Limits`` between its steps.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpucorrelate.correlator.report.units import duration
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from gpucorrelate.correlator.capture import Capture

    I64 = NDArray[np.int64]

#: Pairs in a burst.
PAIRS = 64
#: Uncertainty of a time that cannot be mapped: nothing can be ordered by it.
UNKNOWN_NS = (1 << 63) - 1

#: Readings are refused from here on (146 years), so that the difference of any two fits 64 bits.
_READING_LIMIT = 1 << 62
#: No time further than this (73 years) from the nearest burst before it is mapped.
_REACH_LIMIT = 1 << 61
_BILLION = 1_000_000_000
#: Ten percent: what CLOCK_MONOTONIC itself can be slewed by (``adjtimex``, ``tick``).
_PPB_LIMIT = _BILLION // 10
_RATE_BITS = 40
_LIMB_BITS = _RATE_BITS // 2
_LIMB = (1 << _LIMB_BITS) - 1
#: What two roundings down to whole nanoseconds, of offset and of uncertainty, can hide.
_ROUNDING_NS = 2
#: Pairs of one burst begin within this time; 64 take microseconds unless they are preempted.
_BURST_NS = 10_000_000
#: An uncertainty matters from one part in so many of a step on.
_NEGLIGIBLE = 100


@dataclass(frozen=True)
class Limits:
    """What is believed of the other clock.

    Attributes:
        max_drift_ppb: It gains or loses no more than this against CLOCK_MONOTONIC; what looks
            like more is a step. The default, 500 ppm, is the most by which the kernel corrects
            a frequency (``MAXFREQ`` in ``timex.h``), and ten times the error of a quartz.
        wander_ppb: How far its rate at any moment may be from that measured over the nearest
            stretch. The default, 1 ppm, is what a quartz changes with several degrees.
        resolution_ns: How far apart its readings are at least.
    """

    max_drift_ppb: int = 500_000
    wander_ppb: int = 1_000
    resolution_ns: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.max_drift_ppb <= _PPB_LIMIT or not 0 <= self.wander_ppb <= _PPB_LIMIT:
            raise UsageError(f"a clock's drift is 0 to {_PPB_LIMIT:,} parts per billion")
        if not 1 <= self.resolution_ns <= _BILLION:
            raise UsageError("a clock's resolution is 1 ns to 1 s")

    @property
    def slack_ns(self) -> int:
        """What readings hide by being whole ticks, with the drift over two such ticks."""
        return self.resolution_ns + self.drift_ns(2 * self.resolution_ns)

    def drift_ns(self, length_ns: int) -> int:
        """The most that the offset may change over a stretch, rounded up."""
        return -(-self.max_drift_ppb * abs(length_ns) // _BILLION)


_DEFAULT = Limits()


class Pair(NamedTuple):
    """A reading of the other clock between two of CLOCK_MONOTONIC."""

    before_ns: int
    foreign_ns: int
    after_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Time between the two readings of CLOCK_MONOTONIC."""
        return self.after_ns - self.before_ns

    @property
    def usable(self) -> bool:
        """Whether these can be readings at all."""
        return self.before_ns <= self.after_ns and all(abs(t) < _READING_LIMIT for t in self)


def read_pairs(read_foreign: Callable[[], int], n: int = PAIRS) -> list[Pair]:
    """Read another clock ``n`` times, at once; ``read_foreign`` returns nanoseconds."""
    monotonic = time.monotonic_ns
    return [Pair(monotonic(), read_foreign(), monotonic()) for _ in range(n)]


@dataclass(frozen=True)
class Burst:
    """The offset at one moment, as pairs taken about then bound it.

    Each pair bounds the offset by its two readings of CLOCK_MONOTONIC. The pair with the least
    round trip decides: its moment is the burst's, and the others can only narrow its bounds,
    after these have been widened by what the clock may drift from there to here.

    Attributes:
        foreign_ns: The other clock's reading, of the pair with the least round trip.
        offset_ns: CLOCK_MONOTONIC minus the other clock: the middle of what all pairs allow.
        uncertainty_ns: Half the width of what they allow, rounded up; at most half the least
            round trip. What whole ticks hide (``Limits.slack_ns``) comes on top.
        low_ns: The least offset that all pairs allow.
        high_ns: The greatest.
        round_trip_ns: The least.
        spread_ns: Greatest minus least of the single pairs' offsets (their middles), over the
            pairs whose round trip is at most a quarter longer than the least.
        spread_pairs: How many these are.
        pairs: How many the burst has.
        refused: How many more there were that cannot be readings.
        consistent: Whether any offset fits all pairs. If not, the clock stepped meanwhile or a
            reading is bad, and the offset is that of the shortest pair alone.
    """

    foreign_ns: int
    offset_ns: int
    uncertainty_ns: int
    low_ns: int
    high_ns: int
    round_trip_ns: int
    spread_ns: int
    spread_pairs: int
    pairs: int
    refused: int
    consistent: bool

    @property
    def monotonic_ns(self) -> int:
        """When the burst was taken."""
        return self.foreign_ns + self.offset_ns

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int, int]], limits: Limits = _DEFAULT) -> Burst | None:
        """What pairs say: (before, foreign, after) each; ``None`` if none of them is usable."""
        given = [Pair(*map(index, pair)) for pair in pairs]
        usable = [pair for pair in given if pair.usable]
        if not usable:
            return None
        best = min(usable, key=lambda pair: pair.round_trip_ns)
        low, high = _bounds(usable, best.foreign_ns, limits)
        consistent = low - high <= 2 * limits.slack_ns
        kept = (low, high) if consistent else _bounds([best], best.foreign_ns, limits)
        near = [pair for pair in usable if 4 * pair.round_trip_ns <= 5 * best.round_trip_ns]
        middles = [pair.before_ns + pair.after_ns - 2 * pair.foreign_ns for pair in near]
        return cls(
            foreign_ns=best.foreign_ns,
            offset_ns=(kept[0] + kept[1]) // 2,
            uncertainty_ns=max(0, kept[1] - kept[0] + 1) // 2,
            low_ns=low,
            high_ns=high,
            round_trip_ns=best.round_trip_ns,
            spread_ns=(max(middles) - min(middles) + 1) // 2,
            spread_pairs=len(near),
            pairs=len(usable),
            refused=len(given) - len(usable),
            consistent=consistent,
        )


def _bounds(pairs: Sequence[Pair], foreign_ns: int, limits: Limits) -> tuple[int, int]:
    """The least and greatest offset at ``foreign_ns`` that all pairs allow."""
    drift = [limits.drift_ns(pair.foreign_ns - foreign_ns) for pair in pairs]
    return (
        max(p.before_ns - p.foreign_ns - d for p, d in zip(pairs, drift, strict=True)),
        min(p.after_ns - p.foreign_ns + d for p, d in zip(pairs, drift, strict=True)),
    )


@dataclass(frozen=True)
class Drift:
    """How fast the offset changed between two bursts.

    Attributes:
        start_ns: CLOCK_MONOTONIC at the first.
        end_ns: And at the second.
        ppb: Nanoseconds that CLOCK_MONOTONIC gained in a second of the other clock.
        uncertainty_ppb: The mean rate is within this of ``ppb``.
    """

    start_ns: int
    end_ns: int
    ppb: int
    uncertainty_ppb: int

    @classmethod
    def between(cls, first: Burst, second: Burst, limits: Limits = _DEFAULT) -> Drift:
        """The mean drift. Raises ``UsageError`` unless the other clock had moved on."""
        elapsed = second.foreign_ns - first.foreign_ns
        if elapsed <= 0:
            raise UsageError("no drift between two bursts without time between them")
        change = second.offset_ns - first.offset_ns
        unsure = first.uncertainty_ns + second.uncertainty_ns + 2 * limits.slack_ns
        return cls(
            first.monotonic_ns,
            second.monotonic_ns,
            (2 * change * _BILLION + elapsed) // (2 * elapsed),
            -(-unsure * _BILLION // elapsed) + 1,
        )


@dataclass(frozen=True)
class Step:
    """The other clock was set, between two bursts.

    Attributes:
        after_ns: CLOCK_MONOTONIC at the last burst before it.
        before_ns: And at the first one after.
        size_ns: How far it was set forward; negative: back. It may include some drift.
    """

    after_ns: int
    before_ns: int
    size_ns: int


@dataclass(frozen=True)
class Mapped:
    """Times of CLOCK_MONOTONIC.

    Attributes:
        ns: The times; 0 where unknown.
        uncertainty_ns: How far each may be wrong; ``UNKNOWN_NS`` where unknown.
        valid: Where they are known.
    """

    ns: I64
    uncertainty_ns: I64
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class _Piece:
    """The mapping between two steps: bursts, and what is known between and beyond them.

    ``slope`` and ``growth`` (of the offset, of its uncertainty) are binary fractions; item ``k``
    is for the stretch that ends at burst ``k``, the last one for what comes after all.
    """

    foreign: I64
    monotonic: I64
    uncertainty: I64
    slope: I64
    growth: I64

    def map(self, foreign: I64) -> Mapped:
        """Times within ``_READING_LIMIT``."""
        last = len(self.foreign) - 1
        after = np.searchsorted(self.foreign, foreign, side="right")
        left, right = np.maximum(after - 1, 0), np.minimum(after, last)
        along = foreign - self.foreign[left]
        valid = np.abs(along) <= _REACH_LIMIT
        along = np.where(valid, along, 0)
        # Beyond the bursts, left and right are the same one.
        far = np.minimum(np.abs(along), np.abs(foreign - self.foreign[right]))
        ns = self.monotonic[left] + along + _times(self.slope[after], along)
        # The slope is cut to a binary fraction: hence the shift.
        grown = _times(self.growth[after], far) + (np.abs(along) >> _RATE_BITS)
        uncertainty = np.maximum(self.uncertainty[left], self.uncertainty[right]) + grown
        return Mapped(ns, uncertainty + _ROUNDING_NS * (far > 0), valid)


def _times(rate: I64, length: I64) -> I64:
    """Rate (a binary fraction) times length, rounded down, with no overflow on the way.

    Exact while the rate is below a quarter and the length at most ``_REACH_LIMIT``: the length
    is multiplied in three limbs, and shifts of negative numbers round down as well.
    """
    low = rate * (length & _LIMB) >> _LIMB_BITS
    middle = (rate * (length >> _LIMB_BITS & _LIMB) + low) >> _LIMB_BITS
    product: I64 = rate * (length >> _RATE_BITS) + middle
    return product


@dataclass(frozen=True)
class _Pieces:
    """All pieces with the times of the other clock that each may have.

    ``low`` and ``high``: mapped by the piece. ``first`` and ``last``: it may have shown these
    times up to its steps, which happened at some moment between two bursts.
    """

    pieces: tuple[_Piece, ...]
    low: I64
    high: I64
    first: I64
    last: I64

    def find(self, foreign: I64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The piece of each time, and whether only that one can have shown it."""
        opening, closing = np.argsort(self.first), np.argsort(self.last)
        opened = np.searchsorted(self.first[opening], foreign, side="right")
        closed = np.searchsorted(self.last[closing], foreign, side="left")
        # Where one piece alone is open, the sum of the open ones' numbers is its number.
        number = _running(opening)[opened] - _running(closing)[closed]
        alone = opened - closed == 1
        number = np.where(alone, number, 0)
        if not self.pieces:
            return number, alone
        return number, alone & (self.low[number] <= foreign) & (foreign <= self.high[number])


def _running(values: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.concatenate((np.zeros(1, np.intp), np.cumsum(values)))


@dataclass(frozen=True)
class ClockMap:
    """Another clock's times as CLOCK_MONOTONIC.

    Attributes:
        bursts: What was measured, in order of time: offset, spread and uncertainty of each.
        rejected: Bursts in which no offset fits all pairs. They are not used; what lies beyond
            one that comes first or last is unknown.
        steps: Where the clock was set, as far as it shows.
        drifts: Its drift from burst to burst. Of two bursts so near each other that their
            drift is lost in their uncertainty, the more certain one is used.
    """

    bursts: tuple[Burst, ...]
    rejected: tuple[Burst, ...]
    steps: tuple[Step, ...]
    drifts: tuple[Drift, ...]
    _pieces: _Pieces = field(repr=False, compare=False)

    @classmethod
    def of(cls, bursts: Iterable[Burst | None], limits: Limits = _DEFAULT) -> ClockMap:
        """The mapping that bursts give, in any order; ``None``: one with no usable pair.

        Between two bursts the offset is interpolated, beyond the outermost it goes on as it
        drifted last; the uncertainty grows with the distance from the nearest. With one burst
        alone the drift is unknown, and it grows by ``max_drift_ppb``. A change of offset beyond
        that, and beyond both uncertainties, is a step: of the times around it, those that the
        clock can have shown on one side only, and before or after a burst of that side, are
        mapped.
        """
        found = [burst for burst in bursts if burst is not None]
        found.sort(key=lambda burst: burst.monotonic_ns)
        good = [burst for burst in found if burst.consistent]
        bad = [burst for burst in found if not burst.consistent]
        chains: list[list[Burst]] = []
        for burst in good:
            _place(burst, chains, limits)
        joints = list(itertools.pairwise(chains))
        return cls(
            tuple(good),
            tuple(bad),
            tuple(_step(before[-1], after[0]) for before, after in joints),
            tuple(drift for chain in chains for drift in _drifts(chain, limits)),
            _pieces(chains, bad, limits),
        )

    def to_monotonic(self, foreign: ArrayLike) -> Mapped:
        """Times of the other clock, of any integer type. Raises ``UsageError`` for floats."""
        given = np.asarray(foreign)
        times, possible = _readings(given.ravel())
        number, alone = self._pieces.find(times)
        ns = np.zeros(len(times), np.int64)
        uncertainty = np.full(len(times), UNKNOWN_NS)
        valid = np.zeros(len(times), np.bool_)
        rows = np.flatnonzero(possible & alone)
        rows = rows[np.argsort(number[rows], kind="stable")]
        for part in np.split(rows, np.flatnonzero(np.diff(number[rows])) + 1):
            if len(part):
                mapped = self._pieces.pieces[number[part[0]]].map(times[part])
                known = part[mapped.valid]
                ns[known] = mapped.ns[mapped.valid]
                uncertainty[known] = mapped.uncertainty_ns[mapped.valid]
                valid[known] = True
        shape = given.shape
        return Mapped(ns.reshape(shape), uncertainty.reshape(shape), valid.reshape(shape))


def _readings(times: NDArray[np.generic]) -> tuple[I64, NDArray[np.bool_]]:
    """Times as signed integers, and which of them can be readings."""
    if not len(times):
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    if times.dtype.kind not in "iu":
        raise UsageError("a clock's times are integers", hint="a float cannot hold nanoseconds")
    # Compared in the type they have: what does not fit 64 signed bits must not wrap around.
    possible = times < _READING_LIMIT  # type: ignore[operator]
    if times.dtype.kind == "i":
        possible &= times > -_READING_LIMIT  # type: ignore[operator]
    return np.where(possible, times, 0).astype(np.int64), possible


def _unsure(burst: Burst, limits: Limits) -> int:
    return burst.uncertainty_ns + limits.slack_ns


def _place(burst: Burst, chains: list[list[Burst]], limits: Limits) -> None:
    """Add a burst, later than all others, to the last chain, or to a new one after a step.

    Of two that are as good as simultaneous the more certain one stays, which is then compared
    with the one before: a vague burst must not hide a step between two good ones.
    """
    while chains:
        last = chains[-1][-1]
        unsure = _unsure(last, limits) + _unsure(burst, limits)
        elapsed = burst.foreign_ns - last.foreign_ns
        drift = limits.drift_ns(elapsed)
        if abs(burst.offset_ns - last.offset_ns) > drift + unsure:
            break
        if elapsed > 0 and limits.max_drift_ppb * elapsed > unsure * _BILLION:
            chains[-1].append(burst)
            return
        if last.uncertainty_ns <= burst.uncertainty_ns:
            return
        chains[-1].pop()
        if not chains[-1]:
            chains.pop()
    chains.append([burst])


def _step(before: Burst, after: Burst) -> Step:
    size = before.offset_ns - after.offset_ns
    return Step(before.monotonic_ns, after.monotonic_ns, size)


def _drifts(chain: list[Burst], limits: Limits) -> list[Drift]:
    return [Drift.between(a, b, limits) for a, b in itertools.pairwise(chain)]


def _pieces(chains: list[list[Burst]], bad: list[Burst], limits: Limits) -> _Pieces:
    """The pieces, and what each may have shown."""
    rows = []
    edge = _READING_LIMIT - 1
    for at, chain in enumerate(chains):
        first, last = chain[0], chain[-1]
        low = first.foreign_ns if at or _any_before(bad, first) else -edge
        high = last.foreign_ns if at + 1 < len(chains) or _any_after(bad, last) else edge
        since = first.foreign_ns - _between(chains[at - 1][-1], first, limits) if at else -edge
        until = edge
        if at + 1 < len(chains):
            until = last.foreign_ns + _between(last, chains[at + 1][0], limits)
        rows.append((low, high, max(since, -edge), min(until, edge)))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return _Pieces(tuple(_piece(chain, limits) for chain in chains), *columns)


def _any_before(bad: list[Burst], first: Burst) -> bool:
    return any(burst.monotonic_ns < first.monotonic_ns for burst in bad)


def _any_after(bad: list[Burst], last: Burst) -> bool:
    return any(burst.monotonic_ns > last.monotonic_ns for burst in bad)


def _between(before: Burst, after: Burst, limits: Limits) -> int:
    """The most that the other clock can have gone on between two bursts, a step aside."""
    unsure = _unsure(before, limits) + _unsure(after, limits)
    elapsed = after.monotonic_ns - before.monotonic_ns + unsure
    # Drift is counted in the other clock's time, which is up to a ninth more.
    return elapsed + 2 * limits.drift_ns(elapsed)


def _piece(chain: list[Burst], limits: Limits) -> _Piece:
    drifts = _drifts(chain, limits)
    wander = _wander(drifts, limits)
    slope = [_slope(a, b) for a, b in itertools.pairwise(chain)]
    growth = [wander] * len(slope)
    if drifts:
        ends = [_beyond(drifts[at], slope[at], wander, limits) for at in (0, -1)]
    else:
        ends = [(0, limits.max_drift_ppb)] * 2
    slope = [ends[0][0], *slope, ends[1][0]]
    growth = [ends[0][1], *growth, ends[1][1]]
    return _Piece(
        np.array([burst.foreign_ns for burst in chain], np.int64),
        np.array([burst.monotonic_ns for burst in chain], np.int64),
        np.array([_unsure(burst, limits) for burst in chain], np.int64),
        np.array(slope, np.int64),
        np.array([-(-(ppb << _RATE_BITS) // _BILLION) for ppb in growth], np.int64),
    )


def _slope(first: Burst, second: Burst) -> int:
    """Rounded down, so that a later time is never mapped to before an earlier one."""
    change = second.offset_ns - first.offset_ns
    return (change << _RATE_BITS) // (second.foreign_ns - first.foreign_ns)


def _wander(drifts: list[Drift], limits: Limits) -> int:
    """The assumed wander, or more where the measured rates differ by more than it explains."""
    seen = [
        abs(a.ppb - b.ppb) - a.uncertainty_ppb - b.uncertainty_ppb
        for a, b in itertools.pairwise(drifts)
    ]
    return min(max([limits.wander_ppb, *seen]), 2 * limits.max_drift_ppb)


def _beyond(drift: Drift, slope: int, wander: int, limits: Limits) -> tuple[int, int]:
    """Slope beyond the outermost burst, and how fast the uncertainty grows there."""
    growth = drift.uncertainty_ppb + wander
    if growth < limits.max_drift_ppb:
        return slope, growth
    return 0, limits.max_drift_ppb


def order(a_ns: ArrayLike, b_ns: ArrayLike, uncertainty_ns: ArrayLike) -> NDArray[np.int8]:
    """-1 where ``a`` is before ``b``, 1 where after; 0: they are closer than can be told.

    Args:
        a_ns: Times.
        b_ns: Times to compare them with.
        uncertainty_ns: How far ``a`` and ``b`` together may be wrong: the sum of both, where
            both were mapped. Raises ``UsageError`` for a negative one.
    """
    shaped = np.broadcast_arrays(*(_whole(values) for values in (a_ns, b_ns, uncertainty_ns)))
    a, b, unsure = (values.ravel() for values in shaped)
    if (unsure < 0).any():
        raise UsageError("an uncertainty is not negative")
    # The difference of two signed numbers fits as many bits unsigned; wrapping is intended.
    apart = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
    told = apart > unsure.astype(np.uint64)
    sign = np.where(told, np.where(a < b, -1, 1), 0).astype(np.int8)
    return sign.reshape(shaped[0].shape)


def _whole(values: ArrayLike) -> I64:
    """Signed integers, or a refusal."""
    given = np.asarray(values)
    if given.size and (given.dtype.kind not in "iu" or given.dtype == np.uint64):
        raise UsageError("times are signed integers", hint="a float cannot hold nanoseconds")
    return given.astype(np.int64)


def matters(uncertainty_ns: int, step_ns: int) -> str:
    """Whether an uncertainty matters against a step's length, in a sentence.

    It does from a hundredth on. Raises ``UsageError`` for what cannot be compared.
    """
    if uncertainty_ns < 0 or step_ns <= 0:
        raise UsageError("an uncertainty is not negative, and a step takes time")
    if uncertainty_ns >= UNKNOWN_NS:
        return f"uncertainty unknown against a {duration(step_ns)} step: it matters"
    said = f"uncertainty {duration(uncertainty_ns)} against a {duration(step_ns)} step"
    if uncertainty_ns == 0:
        return f"{said}: it does not matter"
    if uncertainty_ns >= step_ns:
        return f"{said}: it matters, no two moments of one step can be ordered"
    parts = step_ns // uncertainty_ns
    verdict = "does not matter" if parts > _NEGLIGIBLE else "matters"
    return f"{said}: 1 in {parts:,}, it {verdict}"


def from_capture(capture: Capture, limits: Limits = _DEFAULT) -> dict[tuple[int, str], ClockMap]:
    """The maps of all clocks of a recording, by stream and the clock's name.

    By stream, because a profiler's clock may be its process's own. Readings are taken as
    nanoseconds; a clock with another unit shows as one that steps between any two bursts.
    """
    rows = capture.table("clock_pair")
    columns = [rows[name].tolist() for name in ("stream", "clock", "t_ns", "width_ns", "other")]
    pairs: dict[tuple[int, str], list[Pair]] = {}
    for stream, clock, middle, width, other in zip(*columns, strict=True):
        # The middle of an odd width was rounded, in a direction that is not recorded.
        half = (width + 1) // 2
        pair = Pair(middle - half, other, middle + half)
        pairs.setdefault((stream, capture.strings[clock]), []).append(pair)
    return {
        key: ClockMap.of((Burst.of(burst, limits) for burst in _bursts(found)), limits)
        for key, found in pairs.items()
    }


def _bursts(pairs: list[Pair]) -> list[list[Pair]]:
    """Pairs in order of time, parted into bursts."""
    parted: list[list[Pair]] = []
    for pair in sorted(pairs):
        if not parted or pair.before_ns - parted[-1][0].before_ns > _BURST_NS:
            parted.append([])
        parted[-1].append(pair)
    return parted
