# SPDX-License-Identifier: Apache-2.0
"""The one thread's event loop: file descriptors and what to call when they are ready."""

from __future__ import annotations

import copy
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpucorrelate.daemon.effort import Meter, Part

if TYPE_CHECKING:
    from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class HasFileno(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int:
        """The descriptor."""


Source = int | HasFileno


@dataclass(frozen=True)
class _Handler:
    call: Callable[[int], None]
    part: Part


class Loop:
    """Calls handlers when their descriptors are ready.

    Attributes:
        meter: Counts what the handlers use.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self._selector = selectors.DefaultSelector()
        self._part = Part.LOOP

    def of(self, part: Part) -> Loop:
        """The same loop; what is added by it counts as this part of the work."""
        other = copy.copy(self)
        other._part = part
        return other

    def add(self, source: Source, handler: Callable[[int], None], events: int = READ) -> None:
        """Call ``handler`` with the ready events (``READ``, ``WRITE``)."""
        self._selector.register(source, events, _Handler(handler, self._part))

    def change(self, source: Source, events: int) -> None:
        """Wait for other events."""
        self._selector.modify(source, events, self._selector.get_key(source).data)

    def remove(self, source: Source) -> None:
        """Stop waiting; harmless for a source that is not waited for."""
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def run_once(self, timeout_s: float) -> None:
        """Wait at most so long, then call every handler that is due once."""
        for key, events in self._selector.select(timeout_s):
            # A handler before this one may have closed its descriptor.
            if self._selector.get_map().get(key.fd) is key:
                with self.meter.part(key.data.part):
                    key.data.call(events)

    def close(self) -> None:
        """Forget everything."""
        self._selector.close()
