# SPDX-License-Identifier: Apache-2.0
"""What steps say of requests while a session is followed: who is in the newest one, and how."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucorrelate.daemon.live_requests import Known
    from gpucorrelate.probes.wire.frame import Batch

ROWS = BY_NAME["step_rows"]
BEGIN = BY_NAME["step_begin"]
UPDATE = BY_NAME["step_update"]
_MOST_ROWSETS = 1024

#: Request, tokens scheduled, computed before, of the prompt.
_Row = tuple[str, int, int, int]


class InSteps:
    """The newest step of each engine core, and the requests in it."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._rowsets: OrderedDict[tuple[int, int], list[_Row]] = OrderedDict()
        self._phases: dict[int, dict[str, PhaseName]] = {}
        self._newest: dict[int, tuple[int, int]] = {}  # thread, begin

    def rows(self, batch: Batch, strings: Mapping[int, str]) -> None:
        """Learn which requests are in a set of rows."""
        names = ("rowset", "row", "request", "scheduled", "computed", "prompt")
        columns = (column(ROWS, batch.columns, name, batch.count).tolist() for name in names)
        for number, row, rid, scheduled, computed, prompt in zip(*columns, strict=True):
            key = batch.stream, number
            rows = self._rowsets.get(key)
            if rows is None or row == 0:
                rows = self._rowsets[key] = []
            rows.append((strings.get(rid, ""), scheduled, computed, prompt))
            self._rowsets.move_to_end(key)
        while len(self._rowsets) > _MOST_ROWSETS:
            self._rowsets.popitem(last=False)

    def begin(self, batch: Batch) -> None:
        """Learn from steps that began."""
        names = ("rowset", "rowset_age", "start_ns", "tid")
        numbers, ages, starts, tids = (
            column(BEGIN, batch.columns, name, batch.count).tolist() for name in names
        )
        stream = batch.stream
        for number in dict.fromkeys(numbers):
            for name, *_ in self._rowsets.get((stream, number), ()):
                request = self._known.requests.get(name)
                if request is not None:
                    request.phase, request.stream = PhaseName.BETWEEN, stream
                    request.seen_ns = max(request.seen_ns, starts[-1])
        rows = self._rowsets.get((stream, numbers[-1]), [])
        self._phases[stream] = _phases(rows, ages[-1])
        self._newest[stream] = tids[-1], starts[-1]

    def update(self, batch: Batch) -> None:
        """Count the tokens that steps made."""
        numbers = column(UPDATE, batch.columns, "rowset", batch.count)
        found, counts = np.unique(numbers, return_counts=True)
        for number, times in zip(found.tolist(), counts.tolist(), strict=True):
            for name, tokens, *_ in self._rowsets.get((batch.stream, number), ()):
                request = self._known.requests.get(name)
                if request is not None:
                    request.tokens_out += tokens * times

    def phase(self, stream: int, name: str) -> PhaseName | None:
        """What a request is in, if it is in the newest step of an engine core."""
        return self._phases.get(stream, {}).get(name)

    def core(self, stream: int) -> tuple[int, int]:
        """Stream and thread of an engine core; the latest one's if it is not known."""
        if stream not in self._newest and self._newest:
            stream = max(self._newest, key=lambda at: self._newest[at][1])
        return stream, self._newest.get(stream, (0, 0))[0]

    def forget(self, streams: Iterable[int]) -> None:
        """The processes of these streams are gone."""
        for stream in streams:
            self._phases.pop(stream, None)
            self._newest.pop(stream, None)


def _phases(rows: list[_Row], age: int) -> dict[str, PhaseName]:
    """By request; ``age`` is how many steps the rows have been the same for."""
    prefill = [
        scheduled > 0 and computed + age * scheduled < prompt
        for _, scheduled, computed, prompt in rows
    ]
    mixed = any(prefill) and not all(prefill)
    found = {}
    for (name, *_), early in zip(rows, prefill, strict=True):
        phase = PhaseName.PREFILL if early else PhaseName.DECODE
        found[name] = PhaseName.MIXED if mixed else phase
    return found
