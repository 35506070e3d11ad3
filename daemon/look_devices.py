# SPDX-License-Identifier: Apache-2.0
"""GPUs that come and go, and the drivers bound to them, while sessions run.

The kernel's events wait in a socket until the next look, which compares the bus with what it
was: the events say that it is worth while, and what happened more than once in between. Where
they cannot be had, the bus is compared all the same, every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.look import Found
from gpucorrelate.probes.host.device_events import DeviceMonitor, Drained
from gpucorrelate.probes.host.devices import VENDORS, changes, read_gpus, read_links
from gpucorrelate.probes.host.devices import Change as Happened
from gpucorrelate.probes.host.reading import Change, Missing, Sample, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Protocol

    from gpucorrelate.probes.host.devices import Device, DeviceEvent

    class Monitor(Protocol):
        """Where events come from."""

        def drain(self) -> Drained:
            """What waits, without waiting."""

        def close(self) -> None:
            """Stop listening."""


_COMPARE_NS = 5_000_000_000
DEVICE, DRIVER = "device", "driver"


class Devices:
    """Looks at the machine's GPUs as devices.

    Args:
        on_change: Called when GPUs or drivers have come or gone.
        open_monitor: Begins to listen to the kernel.
        read: The GPUs on the bus now.
        links: What the links of those at some addresses run at.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        open_monitor: Callable[[], Monitor | Missing] = DeviceMonitor.open,
        read: Callable[[], tuple[Device, ...]] = read_gpus,
        links: Callable[[Iterable[str]], Sample] = read_links,
    ) -> None:
        self._on_change = on_change
        self._open_monitor = open_monitor
        self._read, self._links = read, links
        self._monitor: Monitor | Missing | None = None
        self._known: dict[str, Device] | None = None
        self._compared_ns = self._since_ns = 0

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        """Which GPUs there are, and what became of them since the last look."""
        del pids
        if self._monitor is None:
            self._monitor = self._open_monitor()
        deaf = isinstance(self._monitor, Missing)
        drained = Drained() if isinstance(self._monitor, Missing) else self._monitor.drain()
        found: tuple[Change, ...] = ()
        due = drained.lost or bool(drained.events)
        if self._known is None or due or now_ns - self._compared_ns >= _COMPARE_NS:
            before, self._known = self._known, {one.address: one for one in self._read()}
            if before is not None:
                found = tuple(self._compare(before, self._known, drained, now_ns))
            self._compared_ns = now_ns
        self._since_ns = self._compared_ns if deaf else now_ns
        links = self._links(self._known)
        missing = links.missing + ((self._monitor,) if isinstance(self._monitor, Missing) else ())
        present = tuple(row for one in self._known.values() for row in _rows(one, now_ns))
        return Found(Sample(links.readings), Standing(missing=missing), found, present)

    def close(self) -> None:
        """Stop listening and forget what there was."""
        if self._monitor is not None and not isinstance(self._monitor, Missing):
            self._monitor.close()
        self._monitor = self._known = None
        self._compared_ns = self._since_ns = 0

    def _compare(
        self,
        before: dict[str, Device],
        after: dict[str, Device],
        drained: Drained,
        now_ns: int,
    ) -> Iterable[Change]:
        noticed_ns = max((now_ns, *(event.t_ns for event in drained.events)))
        happened = changes(before.values(), after.values(), noticed_ns)
        # What was undone before anybody looked shows in the events alone.
        seen = {(one.change, one.address) for one in happened}
        passed = [
            one
            for one in drained.events
            if not one.synthetic
            and one.change is not Happened.CHANGED
            and (one.change, one.address) not in seen
        ]
        for event in (*passed, *happened):
            yield from _became(event, before, after, self._since_ns)
        if happened or passed:
            self._on_change()


def _rows(device: Device, now_ns: int) -> Iterable[Change]:
    subject = f"pci:{device.address}"
    yield Change(now_ns, 0, subject, DEVICE, "", _name(device.vendor, device.model))
    if device.driver:
        yield Change(now_ns, 0, subject, DRIVER, "", device.driver)


def _became(
    event: DeviceEvent, before: dict[str, Device], after: dict[str, Device], since_ns: int
) -> Iterable[Change]:
    subject = f"pci:{event.address}"
    old, new = before.get(event.address), after.get(event.address)
    was = (old.driver if old else None) or ""
    name = _name(event.vendor, event.model)
    if event.change is Happened.ADDED:
        yield Change(event.t_ns, since_ns, subject, DEVICE, "", name)
    elif event.change is Happened.BOUND:
        driver = event.driver or (new.driver if new else None) or ""
        yield Change(event.t_ns, since_ns, subject, DRIVER, was, driver)
    else:
        if was or event.change is Happened.UNBOUND:
            yield Change(event.t_ns, since_ns, subject, DRIVER, was or event.driver or "", "")
        if event.change is Happened.REMOVED:
            yield Change(event.t_ns, since_ns, subject, DEVICE, name, "")


def _name(vendor: int, model: int) -> str:
    maker = VENDORS.get(vendor, "device")
    return f"{maker} {vendor:04x}:{model:04x}"
