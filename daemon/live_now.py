# SPDX-License-Identifier: Apache-2.0
"""How things stand: requests in flight with what they wait for, and where paths went lately."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.current import Ask, Current, Holder, Sums
from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon.live_pace import LATE_NS
from gpucorrelate.daemon.live_requests import Exchange
from gpucorrelate.daemon.live_values import Flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import Category
    from gpucorrelate.daemon.live_flights import Flights
    from gpucorrelate.daemon.live_requests import Flying
    from gpucorrelate.daemon.live_values import LiveOptions
    from gpucorrelate.daemon.live_window import Window
    from gpucorrelate.probes.wire.frame import Batch

_S = 1_000_000_000
#: What is told of a request's last stretch: this long, up to where all is there.
_STRETCH_NS = _S
#: After a pause of the caller's no more than this is walked at once.
_LONGEST_NS = 3 * _S
#: What a look walks lies within this.
LOOK_BACK_NS = _LONGEST_NS + LATE_NS
#: Requests that are told of one by one, and whose paths are walked.
_MOST_TOLD = 512
_MOST_CULPRITS = 12
_NOTHING = Sums()
_WITH_CORE = frozenset(
    {
        PhaseName.ADMIT, PhaseName.QUEUE, PhaseName.PREFILL, PhaseName.MIXED, PhaseName.DECODE,
        PhaseName.BETWEEN,
    }
)  # fmt: skip


class Now:
    """The last seconds of a window, looked at again and again.

    Attributes:
        composition: Time of paths by category over the last seconds.
        culprits: Who held them.
    """

    def __init__(self, window: Window, options: LiveOptions) -> None:
        self._window = window
        self._recent_ns = int(options.recent_s * _S)
        self._sums: deque[tuple[int, Sums]] = deque()
        self._until_ns = 0
        self.composition: tuple[tuple[Category, int], ...] = ()
        self.culprits: tuple[Holder, ...] = ()

    def look(
        self, flights: Flights, flying: Sequence[Flying], tail: Sequence[Batch]
    ) -> tuple[Flight, ...]:
        """The requests in flight at the window's end, with what they wait for."""
        now_ns = self._window.now_ns
        until_ns = now_ns - LATE_NS
        longest_ns = _LONGEST_NS if self._until_ns else self._recent_ns
        since_ns = max(self._until_ns, until_ns - longest_ns)
        low_ns = min(since_ns, until_ns - _STRETCH_NS)
        told = list(flying[:_MOST_TOLD])
        current = Current(Capture.from_batches(self._window.items(low_ns, tail)))
        if until_ns > since_ns:
            asks = _asks(current, flights, since_ns, until_ns)
            whole = current.together(asks, until_ns, 4 * _MOST_CULPRITS)
            self._until_ns = until_ns
            self._add(until_ns, whole)
        stretch = _asks(current, flights, until_ns - _STRETCH_NS, until_ns)
        own = current.apart(stretch, until_ns, 4)
        lately = {ask.tid: _scaled(sums) for ask, sums in zip(stretch, own, strict=True)}
        tids = [current.host_tid(*_thread(flights, one)) for one in told]
        holds = {tid: current.hold(tid, now_ns) for tid in dict.fromkeys(tids)}
        return tuple(
            replace(
                _flight(one, flights.phase(one), now_ns),
                now=holds[tid],
                recent=lately.get(tid, _NOTHING).holders,
                shares=lately.get(tid, _NOTHING).categories,
            )
            for one, tid in zip(told, tids, strict=True)
        )

    def _add(self, until_ns: int, sums: Sums) -> None:
        self._sums.append((until_ns, sums))
        while self._sums and self._sums[0][0] <= until_ns - self._recent_ns:
            self._sums.popleft()
        categories: Counter[Category] = Counter()
        lengths: Counter[tuple[object, ...]] = Counter()
        latest: dict[tuple[object, ...], Holder] = {}
        for _, one in self._sums:
            categories.update(dict(one.categories))
            for holder in one.holders:
                key = holder.actor, holder.category, holder.what, holder.by
                lengths[key] += holder.length_ns
                latest[key] = holder
        self.composition = tuple(categories.most_common())
        self.culprits = tuple(
            replace(latest[key], length_ns=length)
            for key, length in lengths.most_common(_MOST_CULPRITS)
        )


def _asks(current: Current, flights: Flights, since_ns: int, until_ns: int) -> list[Ask]:
    """Threads that had requests between two moments, and when."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, more in flights.spans(since_ns, until_ns).items():
        spans[current.host_tid(*thread)] += more
    return [Ask(tid, tuple(found)) for tid, found in spans.items()]


def _scaled(sums: Sums) -> Sums:
    """Of all requests of a thread together, as parts of one second."""
    whole_ns = max(1, sum(ns for _, ns in sums.categories))
    return Sums(
        tuple((category, ns * _STRETCH_NS // whole_ns) for category, ns in sums.categories),
        tuple(
            replace(one, length_ns=one.length_ns * _STRETCH_NS // whole_ns) for one in sums.holders
        ),
    )


def _thread(flights: Flights, one: Flying) -> tuple[int, int]:
    """The thread that has a request now, and the stream that names it."""
    core = flights.core_of(one)
    if flights.phase(one) in _WITH_CORE and core[1]:
        return core
    return flights.front_of(one)


def _flight(one: Flying, phase: PhaseName, now_ns: int) -> Flight:
    age_ns = max(0, now_ns - one.arrival_ns)
    names = one.request_id, one.engine_id, one.arrival_ns, age_ns, phase
    if isinstance(one, Exchange):
        return Flight(*names, one.tokens_in)
    return Flight(*names, one.prompt_tokens, one.tokens_out, one.preemptions)
