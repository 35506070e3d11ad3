# SPDX-License-Identifier: Apache-2.0
"""The engine's pace over the last seconds: steps, rows, tokens, requests."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.live_values import Rates
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.daemon.live_requests import Ended
    from gpucorrelate.daemon.live_values import LiveOptions
    from gpucorrelate.probes.wire.frame import Batch

_S = 1_000_000_000
_BEGIN = BY_NAME["step_begin"]
_UPDATE = BY_NAME["step_update"]
#: Agents send twice a second: what is younger is not all there.
LATE_NS = 700_000_000
#: Steps that are kept: more than an engine does in the time that is spoken of.
_MOST = 1 << 16


class Pace:
    """Counts of the last seconds."""

    def __init__(self, options: LiveOptions) -> None:
        self._recent_ns = int(options.recent_s * _S)
        self._settle_ns = int(options.settle_s * _S)
        self._begun: deque[tuple[int, int]] = deque(maxlen=_MOST)  # when, rows
        self._made: deque[tuple[int, int]] = deque(maxlen=_MOST)  # when, tokens
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self._first_ns = 0
        self._waiting: tuple[int, int] | None = None

    def take(self, batch: Batch, now_ns: int) -> None:
        """Count a batch; ``now_ns`` is how far the recording has got."""
        if not batch.count:
            return
        if now_ns and not self._first_ns:
            self._first_ns = now_ns
        if batch.kind == _BEGIN.id:
            starts, rows, waiting = (
                column(_BEGIN, batch.columns, name, batch.count).tolist()
                for name in ("start_ns", "rows", "waiting")
            )
            self._begun.extend(zip(starts, rows, strict=True))
            if self._waiting is None or starts[-1] >= self._waiting[0]:
                self._waiting = starts[-1], waiting[-1]
        elif batch.kind == _UPDATE.id:
            ends, tokens = (
                column(_UPDATE, batch.columns, name, batch.count).tolist()
                for name in ("end_ns", "tokens")
            )
            self._made.extend(zip(ends, tokens, strict=True))

    def finished(self, ended: Sequence[Ended]) -> None:
        """Count requests that ended."""
        self._ended.extend((one.end_ns, 1) for one in ended if one.end_ns)

    def rates(self, now_ns: int) -> Rates:
        """The pace of the last seconds, up to where all is there."""
        until_ns = now_ns - LATE_NS
        since_ns = max(until_ns - self._recent_ns, self._first_ns)
        over_ns = until_ns - since_ns
        if over_ns <= 0 or (not self._begun and not self._made):
            return Rates(max(0, over_ns))
        steps, rows = _within(self._begun, since_ns, until_ns)
        _, tokens = _within(self._made, since_ns, until_ns)
        # Requests are told of when they have settled.
        settled_ns = min(until_ns, now_ns - self._settle_ns)
        first_ns = max(settled_ns - self._recent_ns, self._first_ns)
        ended, _ = _within(self._ended, first_ns, settled_ns)
        over_s = over_ns / _S
        return Rates(
            over_ns=over_ns,
            steps_per_s=steps / over_s,
            tokens_per_s=tokens / over_s,
            rows_per_step=rows / steps if steps else None,
            finished_per_s=ended * _S / (settled_ns - first_ns) if settled_ns > first_ns else None,
            waiting=self._waiting[1] if self._waiting is not None else None,
        )


def _within(events: deque[tuple[int, int]], since_ns: int, until_ns: int) -> tuple[int, int]:
    """How many lie in a stretch of time, and the sum of what they count; older ones are let go.

    Events of several engine cores come in turn, so that they are in order only roughly.
    """
    while events and events[0][0] < since_ns - 5 * _S:
        events.popleft()
    found = [value for t, value in events if since_ns <= t < until_ns]
    return len(found), sum(found)
