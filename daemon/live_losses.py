# SPDX-License-Identifier: Apache-2.0
"""What was lost while a session is followed, and which sources of evidence do not work now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import LedgerLine
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.probes.wire.frame import Damage
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.probes.wire.frame import Batch

_LOSS = BY_NAME["loss"]
_CAPABILITY = BY_NAME["capability"]
#: Kinds of loss and sources that are told apart; agents choose the words.
_MOST = 1024


class Losses:
    """Losses since following began, and the state of the sources."""

    def __init__(self) -> None:
        self._lost: Counter[tuple[str, str]] = Counter()
        self._sources: dict[str, tuple[int, str]] = {}
        self._last: dict[int, int] = {}
        self._missing = self._damaged = 0

    def take(self, item: Batch | Damage, strings: Mapping[int, str]) -> None:
        """Learn from a batch."""
        if isinstance(item, Damage):
            self._damaged += item.size_bytes
            return
        if item.seq:
            before = self._last.get(item.stream, 0)
            if before and item.seq > before + 1:
                self._missing += item.seq - before - 1
            self._last[item.stream] = max(before, item.seq)
        if item.kind == _LOSS.id and item.count:
            for _, _, hop, what, count in rows_of(_LOSS, item, strings):
                if len(self._lost) < _MOST or (hop, what) in self._lost:
                    self._lost[hop, what] += count
        elif item.kind == _CAPABILITY.id and item.count:
            for _, source, state, reason in rows_of(_CAPABILITY, item, strings):
                if len(self._sources) < _MOST or source in self._sources:
                    self._sources[source] = state, reason

    def lines(self) -> tuple[LedgerLine, ...]:
        """What was lost, the most first; empty where nothing was."""
        lines = [
            LedgerLine(f"lost at {hop}", count, what, check=True)
            for (hop, what), count in self._lost.most_common()
        ]
        if self._damaged:
            lines.append(
                LedgerLine("bytes of the recording unreadable", self._damaged, check=True)
            )
        if self._missing:
            lines.append(
                LedgerLine("batches missing from the recording", self._missing, check=True)
            )
        return tuple(lines)

    def missing(self) -> tuple[str, ...]:
        """Sources that do not work now, each with the reason."""
        return tuple(
            f"{source}: {reason}" if reason else source
            for source, (state, reason) in sorted(self._sources.items())
            if state != CapabilityState.ON
        )
