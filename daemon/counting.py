# SPDX-License-Identifier: Apache-2.0
"""Cheap running numbers of a session, counted from batches as they pass through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.inflight import Flights
from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.wire.schema import BY_ID, BY_NAME, Anchor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.probes.wire.frame import Batch

_WAIT = BY_NAME["wait"].id
_BEGIN = BY_NAME["step_begin"]
_END = BY_NAME["step_end"]
_UPDATE = BY_NAME["step_update"]
_REQUEST = BY_NAME["request"]
#: Kinds that show the engine at work even where steps are not seen.
_WORK = frozenset({_WAIT, BY_NAME["worker_step"].id, BY_NAME["queue_msg"].id})

_SAVED = ("received", "admitted", "ended", "answered", "steps", "tokens", "waits", "rows")
#: More steps in flight than any engine keeps: the ends are not coming.
_MAX_IN_FLIGHT = 4096
_SILENT_NS = 5_000_000_000


class Counts:
    """Running numbers. Plain attributes; ``received`` and ``answered`` are the frontend's,
    ``admitted`` and ``ended`` the engine core's. ``flights`` are the requests in flight.
    """  # noqa: D205 - two halves of one thought

    def __init__(self) -> None:
        self.flights = Flights()
        self.received = self.admitted = self.ended = self.answered = 0
        self.steps = self.tokens = self.waits = self.rows = 0
        self._in_flight: dict[int, set[int]] = {}
        self._doubtful: dict[int, set[int]] = {}
        self._unseen_core = self._unseen_front = 0
        self._last_step_ns = self._last_idle_ns = self._last_work_ns = 0

    @property
    def requests_received(self) -> int:
        """Requests that came in, as far as either side saw them."""
        return max(self.received, self.admitted)

    @property
    def requests_finished(self) -> int:
        """Requests that ended, as far as either side saw it."""
        return max(self.ended, self.answered)

    @property
    def requests_in_flight(self) -> int:
        """Requests that have no end yet, without those whose end may have been lost."""
        front = self.received - self.answered - self._unseen_front
        core = self.admitted - self.ended - self._unseen_core
        return max(0, front, core)

    @property
    def steps_in_flight(self) -> int:
        """Steps begun and not ended, over all engine cores."""
        return sum(len(steps) for steps in self._in_flight.values())

    def take(self, batch: Batch, now_ns: int) -> None:
        """Count an agent's batch."""
        self.rows += batch.count
        if not batch.count:
            return
        if batch.kind in _WORK:
            self._last_work_ns = now_ns
        if batch.kind == _BEGIN.id:
            self.steps += batch.count
            self._last_step_ns = now_ns
            flying = self._in_flight.setdefault(batch.stream, set())
            flying.update(column(_BEGIN, batch.columns, "step", batch.count).tolist())
            if len(flying) > _MAX_IN_FLIGHT:
                flying.clear()
        elif batch.kind == _END.id:
            ended = column(_END, batch.columns, "step", batch.count).tolist()
            for steps in (self._in_flight, self._doubtful):
                if batch.stream in steps:
                    steps[batch.stream].difference_update(ended)
            self._last_step_ns = now_ns
        elif batch.kind == _UPDATE.id:
            self.tokens += int(column(_UPDATE, batch.columns, "tokens", batch.count).sum())
        elif batch.kind == _REQUEST.id:
            self.flights.take(batch)
            self._anchors(column(_REQUEST, batch.columns, "anchor", batch.count).tobytes())

    def take_kernel(self, kind: int, count: int, now_ns: int) -> None:
        """Count rows of the kernel probes."""
        self.rows += count
        if kind == _WAIT and count:
            self.waits += count
            self._last_work_ns = now_ns

    def resync(self) -> None:
        """Rows were lost: what seems to be in flight may have ended unseen."""
        self.flights.forget()
        self._unseen_front = self.received - self.answered
        self._unseen_core = self.admitted - self.ended
        for stream, steps in self._in_flight.items():
            self._doubtful.setdefault(stream, set()).update(steps)
        self._in_flight.clear()

    def take_steps_of(self, stream: int) -> tuple[int, ...]:
        """Forget and return the steps of a stream, its process gone, that were not seen to end."""
        self.flights.forget_stream(stream)
        doubtful = self._doubtful.pop(stream, set())
        return tuple(sorted(self._in_flight.pop(stream, set()) | doubtful))

    def silent(self, now_ns: int) -> bool:
        """Whether the engine works on requests, has no step in flight and reports none."""
        if not self.requests_in_flight or self.steps_in_flight:
            self._last_idle_ns = now_ns
            return False
        since = max(self._last_step_ns, self._last_idle_ns)
        return now_ns - since > _SILENT_NS and now_ns - self._last_work_ns < _SILENT_NS

    def save(self) -> tuple[int, ...]:
        """The totals, to be kept over a restart."""
        return tuple(getattr(self, name) for name in _SAVED)

    def restore(self, saved: Sequence[int]) -> None:
        """Go on from totals that were kept."""
        for name, value in zip(_SAVED, saved, strict=False):
            setattr(self, name, int(value))

    def recount(self, batch: Batch) -> None:
        """Count a batch read back from a recording."""
        if batch.stream == 2 and batch.kind in BY_ID:
            self.take_kernel(batch.kind, batch.count, 0)
        elif batch.stream > 2:
            self.take(batch, 0)

    def _anchors(self, anchors: bytes) -> None:
        seen = np.bincount(np.frombuffer(anchors, np.uint8), minlength=32)
        self.received += int(seen[Anchor.RECEIVED])
        self.admitted += int(seen[Anchor.ADMITTED])
        self.ended += int(seen[Anchor.FINISHED] + seen[Anchor.ABORTED] + seen[Anchor.FAILED])
        self.answered += int(seen[Anchor.LAST_BYTE] + seen[Anchor.HTTP_DISCONNECT])
