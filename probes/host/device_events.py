# SPDX-License-Identifier: Apache-2.0
"""GPUs that come, go, or change drivers while somebody watches: the kernel's uevents.

Through pyudev with the kernel itself as source, so that it works where no udevd runs (in a
container); the messages are then as the kernel sent them, without what rules would add.
"""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.devices import GPUS, DeviceEvent, Wanted, parse_event
from gpucorrelate.probes.host.reading import Missing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Protocol, Self

    class _Device(Protocol):
        """What is used of pyudev's device."""

        @property
        def properties(self) -> Mapping[str, str]: ...

    class _Monitor(Protocol):
        """What is used of pyudev's monitor."""

        def fileno(self) -> int: ...
        def poll(self, timeout: float | None = None) -> _Device | None: ...


#: Room for some thousands of events; more needs a privilege, which may be missing.
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Drained:
    """What waited.

    Attributes:
        events: Of GPUs, in the kernel's order.
        seen: Events of the PCI bus in all.
        lost: The kernel had to drop some before they were taken: look at the bus again and
            compare.
    """

    events: tuple[DeviceEvent, ...] = ()
    seen: int = 0
    lost: bool = False


def _clear_error(fd: int) -> None:
    # pyudev gives up at poll's POLLERR and never gets to the read that would clear it, so after
    # one overflow every later call would fail; asking for the error clears it, too.
    watched = socket.socket(fileno=fd)
    try:
        watched.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    finally:
        watched.detach()


class DeviceMonitor:
    """Events of the PCI bus from now on; a context manager.

    Args:
        monitor: A started monitor of pyudev, from the kernel; owned from now on.
        wanted: Which devices are GPUs.
    """

    def __init__(self, monitor: _Monitor, wanted: Wanted = GPUS) -> None:
        self._monitor: _Monitor | None = monitor
        self._wanted = wanted

    @classmethod
    def open(cls, wanted: Wanted = GPUS) -> DeviceMonitor | Missing:
        """Start to listen; the reason where that cannot be done."""
        try:
            import pyudev

            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            monitor.filter_by("pci")
            monitor.start()
        except ModuleNotFoundError:
            return Missing("device.events", "host", "pyudev is not installed")
        except ImportError as error:
            # The libudev.so.1 that it loads when it is first used.
            return Missing("device.events", "host", f"pyudev cannot be used: {error}")
        except OSError as error:
            return Missing("device.events", "host", error.strerror or str(error))
        try:
            monitor.set_receive_buffer_size(_BUFFER_BYTES)
        except OSError as error:
            if error.errno != errno.EPERM:
                return Missing("device.events", "host", error.strerror or str(error))
        return cls(monitor, wanted)

    def fileno(self) -> int:
        """A descriptor that is readable when events wait; to wait on, not to read from.

        Raises:
            ValueError: it is closed.
        """
        if self._monitor is None:
            raise ValueError("the monitor is closed")
        return self._monitor.fileno()

    def drain(self, most: int = 256) -> Drained:
        """What waits, without waiting; at most so many, the rest stays for the next call."""
        monitor = self._monitor
        events: list[DeviceEvent] = []
        seen = 0
        while monitor is not None and seen < most:
            try:
                device = monitor.poll(timeout=0)
            except OSError:
                # More came than the socket holds, or it is broken: either way events were lost.
                _clear_error(monitor.fileno())
                return Drained(tuple(events), seen, lost=True)
            if device is None:
                break
            seen += 1
            event = parse_event(device.properties, time.monotonic_ns(), self._wanted)
            if event is not None:
                events.append(event)
        return Drained(tuple(events), seen)

    def close(self) -> None:
        """Stop listening; twice does no harm."""
        # pyudev closes the descriptor with the last reference.
        self._monitor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
