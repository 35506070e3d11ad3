# SPDX-License-Identifier: Apache-2.0
"""Which requests are in flight, in what phase, and which have ended: from anchors and steps."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon import live_anchors
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.daemon.live_anchors import RANK
from gpucorrelate.daemon.live_requests import Exchange, Known, Request
from gpucorrelate.daemon.live_steps import BEGIN, ROWS, UPDATE, InSteps
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucorrelate.daemon.live_requests import Ended, Flying
    from gpucorrelate.probes.wire.frame import Batch

_STREAM = BY_NAME["stream"]
_SESSION = BY_NAME["session"]
_LOSS = BY_NAME["loss"]
#: Hops at which what agents say is lost.
_AGENT_HOPS = ("agent", "ingest", "store", "daemon")


class Flights:
    """Requests in flight, from anchors and steps."""

    def __init__(self) -> None:
        self._known = Known()
        self._steps = InSteps(self._known)
        self._owner: dict[int, int] = {}

    @property
    def lost(self) -> int:
        """Requests given up: their processes ended, or their end was lost."""
        return self._known.lost

    @property
    def pending(self) -> int:
        """How many have ended and were not taken yet."""
        return self._known.pending

    def take(self, batch: Batch, strings: Mapping[int, str]) -> list[str]:
        """Learn from a batch; returns what a user should know of it, a line each."""
        if not batch.count:
            return []
        if batch.kind == live_anchors.REQUEST.id:
            live_anchors.take(self._known, batch, strings)
        elif batch.kind == ROWS.id:
            self._steps.rows(batch, strings)
        elif batch.kind == BEGIN.id:
            self._steps.begin(batch)
        elif batch.kind == UPDATE.id:
            self._steps.update(batch)
        elif batch.kind == _STREAM.id:
            for stream, tgid, *_ in rows_of(_STREAM, batch, strings):
                self._owner[stream] = tgid
        elif batch.kind == _SESSION.id:
            return self._session(batch, strings)
        elif batch.kind == _LOSS.id:
            self._loss(batch, strings)
        return []

    # What is in flight.

    def flying(self) -> Iterator[Flying]:
        """Requests, and exchanges that are none yet, in order of arrival."""
        return self._known.flying()

    def phase(self, one: Flying) -> PhaseName:
        """What a request is in now."""
        if isinstance(one, Exchange):
            return one.phase
        if one.over_ns:
            return PhaseName.OUTPUT
        found = self._steps.phase(one.stream, one.internal_id)
        if found is not None:
            return found
        exchange = one.exchange
        if one.phase is PhaseName.BETWEEN or one.admitted_ns or exchange is None:
            return one.phase
        # An exchange of several requests may have got further with another one.
        return max(one.phase, exchange.phase, key=RANK.__getitem__)

    def oldest_ns(self, default_ns: int) -> int:
        """When the oldest came that is in flight or ended and not yet taken."""
        return self._known.oldest_ns(default_ns)

    def ended(self, before_ns: int) -> list[Ended]:
        """Requests that ended before a moment, each given once, in order of their end."""
        return self._known.ended(before_ns)

    def remaining(self) -> list[Ended]:
        """Whatever has not ended when nothing more comes."""
        return self._known.remaining()

    def give_up(self, now_ns: int) -> None:
        """Let go of what a loss has probably ended, and of too many."""
        self._known.give_up(now_ns)

    # Who has them.

    def spans(self, since_ns: int, until_ns: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """When which thread had a request, by the stream that names it and its number there.

        The engine core's from admission to its last word; before and after it the frontend's.
        """
        past = self._known.past
        while past and 0 < past[0].end_ns < since_ns:
            past.popleft()
        found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for one in {id(each): each for each in (*past, *self.flying())}.values():
            for thread, start, end in self._stretches(one, until_ns):
                start, end = max(start, since_ns), min(end, until_ns)
                if end > start:
                    found[thread].append((start, end))
        return found

    def _stretches(self, one: Flying, until_ns: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        end_ns = one.end_ns or until_ns
        front = self.front_of(one)
        if not isinstance(one, Request) or not one.admitted_ns:
            yield front, one.arrival_ns, end_ns
            return
        over_ns = one.over_ns or end_ns
        yield front, one.arrival_ns, one.admitted_ns
        yield self.core_of(one), one.admitted_ns, over_ns
        yield front, over_ns, end_ns

    def front_of(self, one: Flying) -> tuple[int, int]:
        """Stream and thread of the frontend that has a request."""
        exchange = one if isinstance(one, Exchange) else one.exchange
        if exchange is not None and exchange.tid:
            return exchange.stream, exchange.tid
        return (one.tid_stream, one.tid) if isinstance(one, Request) else (0, 0)

    def core_of(self, one: Flying) -> tuple[int, int]:
        """Stream and thread of the engine core that has a request; the latest one's if unknown."""
        return self._steps.core(one.stream if isinstance(one, Request) else 0)

    # Processes and losses.

    def _session(self, batch: Batch, strings: Mapping[int, str]) -> list[str]:
        notes = []
        for _, event, tgid, _, detail in rows_of(_SESSION, batch, strings):
            if event == SessionEvent.PROCESS_GONE:
                notes.append(f"process {tgid} is gone{self._gone(tgid)}")
            elif event == SessionEvent.PROCESS_ADDED and batch.seq:
                notes.append(f"process {tgid} is followed")
            elif event == SessionEvent.RESUMED:
                notes.append("the daemon was started again; what happened meanwhile is not known")
            elif event == SessionEvent.DETACHED:
                notes.append(f"the session ended: {detail}" if detail else "the session ended")
        return notes

    def _gone(self, tgid: int) -> str:
        streams = {stream for stream, owner in self._owner.items() if owner == tgid}
        lost: list[Flying] = [
            one
            for one in self._known.exchanges.values()
            if one.stream in streams and not one.end_ns
        ]
        lost += [
            one
            for one in self._known.requests.values()
            if one.stream in streams and one.exchange is None and not one.over_ns
        ]
        count = self._known.lose(lost)
        self._steps.forget(streams)
        return f" with {count:,} requests in flight" if count else ""

    def _loss(self, batch: Batch, strings: Mapping[int, str]) -> None:
        for t, _, hop, *_ in rows_of(_LOSS, batch, strings):
            if hop.partition(".")[0] in _AGENT_HOPS:
                self._known.doubt(t)
