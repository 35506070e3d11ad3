# SPDX-License-Identifier: Apache-2.0
"""Events of this machine's PCI bus, through pyudev from the kernel, with or without udevd."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.host.device_events import DeviceMonitor, Drained
from gpucorrelate.probes.host.devices import Change, Wanted, parse_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

BUS = Path("/sys/bus/pci/devices")
#: More than the socket of the monitor holds, with room it has to spare.
FLOOD = 20_000


@pytest.fixture
def some() -> Path:
    """Any PCI device: a bridge is as good as a GPU to the kernel."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    found = sorted(BUS.iterdir()) if BUS.exists() else []
    if not found:
        pytest.skip("no PCI bus here")
    return found[0]


@pytest.fixture
def monitor(some: Path) -> Iterator[DeviceMonitor]:
    numbers = [parse_hex((some / name).read_text()) for name in ("class", "vendor")]
    pci_class, vendor = (number or 0 for number in numbers)
    opened = DeviceMonitor.open(Wanted(frozenset({pci_class >> 8}), frozenset({vendor})))
    assert isinstance(opened, DeviceMonitor), opened
    with opened:
        yield opened


def readable(monitor: DeviceMonitor, timeout_s: float) -> bool:
    return bool(select.select([monitor], [], [], timeout_s)[0])


def test_an_event_of_the_kernel_arrives(some: Path, monitor: DeviceMonitor) -> None:
    assert monitor.drain() == Drained()
    before_ns = time.monotonic_ns()
    (some / "uevent").write_text("change")
    assert readable(monitor, 10)
    (event,) = monitor.drain().events
    assert (event.change, event.address) == (Change.CHANGED, some.name)
    assert event.synthetic
    assert event.sequence > 0
    assert before_ns < event.t_ns <= time.monotonic_ns()
    assert not readable(monitor, 0)


def test_events_keep_their_order(some: Path, monitor: DeviceMonitor) -> None:
    asked = [Change.UNBOUND, Change.BOUND, Change.REMOVED, Change.ADDED, Change.CHANGED]
    for change in asked:
        (some / "uevent").write_text(change.value)
    events = monitor.drain().events
    assert [event.change for event in events] == asked
    numbers = [event.sequence for event in events]
    assert numbers == sorted(set(numbers))


def test_no_more_than_asked_for_is_taken_and_the_rest_stays(
    some: Path, monitor: DeviceMonitor
) -> None:
    for _ in range(5):
        (some / "uevent").write_text("change")
    assert len(monitor.drain(most=3).events) == 3
    assert readable(monitor, 0)
    assert len(monitor.drain().events) == 2


def test_other_devices_are_seen_and_are_not_gpus(some: Path) -> None:
    with DeviceMonitor.open() as monitor:  # type: ignore[union-attr]
        (some / "uevent").write_text("change")
        assert readable(monitor, 10)
        assert monitor.drain() == Drained((), 1)


def test_a_flood_is_told_and_does_not_deafen(some: Path, monitor: DeviceMonitor) -> None:
    with (some / "uevent").open("w") as file:
        for _ in range(FLOOD):
            file.write("change")
            file.flush()
    first = monitor.drain()
    assert first.lost
    seen = 0
    while (rest := monitor.drain()).seen:
        assert not rest.lost
        seen += rest.seen
    assert 0 < seen < FLOOD
    (some / "uevent").write_text("remove")
    assert [event.change for event in monitor.drain().events] == [Change.REMOVED]


def test_a_closed_monitor_is_silent(monitor: DeviceMonitor) -> None:
    descriptor = monitor.fileno()
    monitor.close()
    monitor.close()
    assert monitor.drain() == Drained()
    with pytest.raises(ValueError, match="closed"):
        monitor.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
