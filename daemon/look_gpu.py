# SPDX-License-Identifier: Apache-2.0
"""The GPUs' own counters, as long as there are GPUs and a driver that tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.look import Found
from gpucorrelate.daemon.retry import Retry
from gpucorrelate.probes.host import gpu
from gpucorrelate.probes.host.reading import Missing, Sample, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_SLOW_NS = 5_000_000_000
#: Where there are none they are looked for so often, and at once when the bus says that one came.
_ABSENT_NS = 60_000_000_000


class Gpus:
    """Looks at them, and looks for them where there are none.

    Args:
        open_source: Finds who tells of GPUs.
    """

    def __init__(self, open_source: Callable[[], gpu.Opened] = gpu.open_source) -> None:
        self._open_source = open_source
        self._source: gpu.Source | None = None
        self._unopened: tuple[Missing, ...] = ()
        self._missing: dict[tuple[str, str], Missing] = {}
        self._tells = False
        self._retry = Retry()
        self._open_ns = self._slow_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        """Ask; numbers of processes are told for all, not only for ``pids``."""
        del pids
        opened = self._source is None and now_ns >= self._open_ns
        if opened:
            self._open(now_ns)
        if self._source is None:
            standing = Standing(works=False, missing=self._unopened)
            rest_ns = max(0, self._open_ns - now_ns)
            return Found(Sample(), standing, opened=opened, rest_ns=rest_ns)
        pace = gpu.Pace.FAST
        if now_ns >= self._slow_ns:
            pace, self._slow_ns = gpu.Pace.SLOW, now_ns + _SLOW_NS
        asked = self._source.sample(pace)
        shared = gpu.unified_memory(self._source.gpus, asked)
        found = Sample(asked.readings + shared.readings, asked.missing + shared.missing)
        self._remember(found, pace)
        standing = Standing(self._tells, tuple(self._missing.values()))
        if not self._tells:
            # The driver went, or was exchanged: whoever told of it must be asked for anew.
            self._unopened = found.missing
            self._close_source()
            self._open_ns = self._retry.failed(now_ns)
        elif found.readings:
            self._retry.worked()
        return Found(found, standing, opened=opened)

    def again(self) -> None:
        """GPUs or drivers have come or gone: whoever knows those before knows too little."""
        self._close_source()
        self._retry.worked()
        self._open_ns = 0

    def close(self) -> None:
        """Let go of the driver."""
        self.again()

    def _open(self, now_ns: int) -> None:
        opened = self._open_source()
        self._source, self._unopened = opened.source, opened.missing
        self._missing, self._slow_ns = {}, 0
        if self._source is None:
            self._open_ns = now_ns + _ABSENT_NS

    def _remember(self, found: Sample, pace: gpu.Pace) -> None:
        """Keep what is missing: not every look asks for everything."""
        if pace is gpu.Pace.SLOW:
            self._tells = bool(found.readings)
            # A better way to ask that could not be had is missing all the time.
            self._missing = {(one.what, one.subject): one for one in self._unopened}
        for reading in found.readings:
            self._missing.pop((reading.metric.name, reading.subject), None)
        for one in found.missing:
            self._missing[one.what, one.subject] = one

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None
