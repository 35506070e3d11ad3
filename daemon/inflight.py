# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, and whether one takes longer than they do as a rule.

Known from the anchors that agents send anyway: a frontend says when a request came in and when
its last byte went out, an engine core when it was admitted and when it ended.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor

if TYPE_CHECKING:
    from gpucorrelate.probes.wire.frame import Batch

_MS = 1_000_000
_REQUEST = BY_NAME["request"]
_BEGINS = (Anchor.RECEIVED, Anchor.ADMITTED)
_ENDS = (
    Anchor.LAST_BYTE, Anchor.HTTP_DISCONNECT, Anchor.FINISHED, Anchor.ABORTED, Anchor.FAILED,
)  # fmt: skip
#: Anchors of an HTTP exchange; the others are of a request by its id.
_OF_HTTP = frozenset({Anchor.RECEIVED, Anchor.LAST_BYTE, Anchor.HTTP_DISCONNECT})
_MATTERS = np.zeros(256, bool)
_MATTERS[[int(anchor) for anchor in (*_BEGINS, *_ENDS)]] = True
_MOST = 8192
#: Ended requests that say how long requests take, and how many of them it takes.
_RECENT, _ENOUGH = 64, 8
#: One is slow that takes so many times the median; while there is none, so long.
_TIMES_MEDIAN = 3
_UNKNOWN_NS = 2000 * _MS
#: Shorter than this nothing is worth more looks.
_LEAST_NS = 100 * _MS
#: One that is so old ended unseen, or is somebody's connection that stays.
_FORGOTTEN_NS = 3600_000 * _MS


class Flights:
    """Requests in flight, oldest first. In a dictionary, as that is their order."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, bool, int], int] = {}
        self._took_ns: deque[int] = deque(maxlen=_RECENT)
        self._limit_ns = _UNKNOWN_NS

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def limit_ns(self) -> int:
        """From what age on one in flight is slow."""
        return self._limit_ns

    def take(self, batch: Batch) -> None:
        """Learn from anchors."""
        anchors = column(_REQUEST, batch.columns, "anchor", batch.count)
        rows = np.flatnonzero(_MATTERS[anchors])
        if not len(rows):
            return
        names = ("anchor", "t_ns", "request", "http")
        columns = (column(_REQUEST, batch.columns, name, batch.count)[rows] for name in names)
        for anchor, t_ns, request, http in zip(*(one.tolist() for one in columns), strict=True):
            by_http = anchor in _OF_HTTP
            key = batch.stream, by_http, http if by_http else request
            if anchor in _BEGINS:
                self._begun.setdefault(key, t_ns)
                if len(self._begun) > _MOST:
                    del self._begun[next(iter(self._begun))]
            else:
                self._ended(key, t_ns)

    def forget(self) -> None:
        """Rows were lost: what seems to be in flight may have ended unseen."""
        self._begun.clear()

    def forget_stream(self, stream: int) -> None:
        """An agent's process is gone, and its requests with it."""
        for key in [key for key in self._begun if key[0] == stream]:
            del self._begun[key]

    def slow(self, now_ns: int) -> bool:
        """Whether one in flight is slow."""
        while self._begun:
            key, begun_ns = next(iter(self._begun.items()))
            if now_ns - begun_ns < _FORGOTTEN_NS:
                return now_ns - begun_ns > self._limit_ns
            del self._begun[key]
        return False

    def _ended(self, key: tuple[int, bool, int], t_ns: int) -> None:
        begun_ns = self._begun.pop(key, None)
        if begun_ns is None or t_ns < begun_ns:
            return
        self._took_ns.append(t_ns - begun_ns)
        if len(self._took_ns) >= _ENOUGH:
            self._limit_ns = max(_LEAST_NS, int(_TIMES_MEDIAN * median(self._took_ns)))
