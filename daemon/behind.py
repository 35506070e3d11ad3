# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon keeps up: what was lost or late within the last minute, in words.

Counters since the start say that something was lost once; whoever looks at a running daemon wants
to know whether it is so now.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.daemon.health import IngestCounters, KernelCounters, StoreCounters
    from gpucorrelate.daemon.pauses import PauseWatch
    from gpucorrelate.daemon.values import SourceInfo

_S = 1_000_000_000
WINDOW_NS = 60 * _S
_EVERY_NS = _S
#: A source is late when it was looked at so many paces ago, and this long besides: a look may
#: wait for others, and a busy machine delays all of them.
_LATE_PACES, _LATE_MS = 3, 5_000


@dataclass(frozen=True)
class _Seen:
    t_ns: int
    kernel: int
    agents: int
    written: int
    shed: int
    pauses: int


class Behind:
    """Keeps what the counters were a minute ago."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque()
        self._longest: deque[tuple[int, float, str]] = deque(maxlen=64)
        self._pauses = 0

    def note(
        self,
        now_ns: int,
        kernel: KernelCounters,
        ingest: IngestCounters,
        store: StoreCounters,
        pauses: PauseWatch,
    ) -> None:
        """Take the counters as they are; called at every turn, it does so once a second."""
        if pauses.count > self._pauses and pauses.last is not None:
            self._pauses = pauses.count
            self._longest.append((now_ns, pauses.last.length_s, pauses.last.text))
        if self._seen and now_ns - self._seen[-1].t_ns < _EVERY_NS:
            return
        self._seen.append(_now(now_ns, kernel, ingest, store, pauses.count))
        # The one from just before the window is what the window began with.
        while len(self._seen) > 1 and self._seen[1].t_ns <= now_ns - WINDOW_NS:
            self._seen.popleft()

    def texts(
        self,
        now_ns: int,
        kernel: KernelCounters,
        ingest: IngestCounters,
        store: StoreCounters,
        sources: Iterable[SourceInfo] = (),
    ) -> tuple[str, ...]:
        """What is behind, one line each; none while everything keeps up."""
        found = []
        if self._seen:
            then = self._seen[0]
            now = _now(now_ns, kernel, ingest, store, self._pauses)
            found += _losses(then, now)
        late = [one for one in self._longest if one[0] > now_ns - WINDOW_NS]
        if late:
            _, _, text = max(late, key=lambda one: one[1])
            times = "once" if len(late) == 1 else f"{len(late)} times"
            found.append(f"the daemon was held up {times} in the last minute: {text}")
        return (*found, *filter(None, map(_late, sources)))


def _now(
    t_ns: int, kernel: KernelCounters, ingest: IngestCounters, store: StoreCounters, pauses: int
) -> _Seen:
    return _Seen(t_ns, kernel.lost, ingest.agent_dropped, store.lost_rows, store.shed_rows, pauses)


def _losses(then: _Seen, now: _Seen) -> list[str]:
    told = (
        (now.kernel - then.kernel, "events lost in the kernel: its rings are read too late"),
        (now.agents - then.agents, "rows dropped by agents: they are read too slowly"),
        (now.written - then.written, "rows could not be written"),
        (now.shed - then.shed, "rows left out: the disk is full or slow"),
    )
    return [f"in the last minute {count:,} {what}" for count, what in told if count > 0]


def _late(source: SourceInfo) -> str:
    if not source.every_ms or source.age_ms is None:
        return ""
    if source.age_ms < source.every_ms * _LATE_PACES + _LATE_MS:
        return ""
    return (
        f"{source.session}: {source.source} was read {source.age_ms / 1000:.0f} s ago, "
        f"not {source.every_ms / 1000:g} s"
    )
