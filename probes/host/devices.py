# SPDX-License-Identifier: Apache-2.0
"""GPUs as the PCI bus shows them: which there are, where they sit, how wide their links are.

Works without a vendor's library. ``parse_*`` functions are pure and never raise; ``read_*``
functions take the root of a sys file system. Formats: Linux kernel,
Documentation/ABI/testing/sysfs-bus-pci; classes: PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

import enum
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host.numa import (
    SYS,
    parse_ids,
    parse_node,
    read_text,
)
from gpucorrelate.probes.host.reading import Metric, Missing, Reading, Sample
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

#: VGA, 3D, other display controller; processing accelerator.
CLASSES = frozenset({0x0300, 0x0302, 0x0380, 0x1200})
#: Who makes GPUs that serve models. A server's own VGA chip (ASPEED, Matrox) is none.
VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}

_DEVICES = "bus/pci/devices"
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,4})(?:\.([0-9]))? GT/s(?: PCIe)?", re.ASCII)
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}

_IDLE = " An idle GPU lowers it to save power, so only a reading under load says what it can do."
LINK_SPEED = Metric(
    "pcie.link.speed",
    "MT/s",
    Nature.LEVEL,
    "Transfers a second and lane at which the device's PCIe link runs now." + _IDLE,
)
LINK_WIDTH = Metric(
    "pcie.link.width",
    "count",
    Nature.LEVEL,
    "Lanes that the device's PCIe link uses now. Fewer than it has: a slot, riser or cable "
    "narrows it, or it was trained down after errors." + _IDLE,
)


@dataclass(frozen=True)
class Wanted:
    """Which devices are GPUs.

    Attributes:
        classes: Class and subclass, as in ``CLASSES``.
        vendors: Who makes them.
    """

    classes: frozenset[int] = CLASSES
    vendors: frozenset[int] = frozenset(VENDORS)

    def __call__(self, pci_class: int, vendor: int) -> bool:
        """Whether a device is one; ``pci_class`` without its last byte, the interface."""
        return pci_class in self.classes and vendor in self.vendors


GPUS = Wanted()


class Change(enum.Enum):
    """What happened to a device."""

    ADDED = "add"
    REMOVED = "remove"
    BOUND = "bind"
    UNBOUND = "unbind"
    CHANGED = "change"


_CHANGES = {change.value: change for change in Change}


@dataclass(frozen=True)
class Link:
    """A PCIe link; each number is None where the device does not say.

    Attributes:
        speed_mts: Million transfers a second and lane, now: 16000 is generation 4.
        width: Lanes, now.
        max_speed_mts: Most that the device can; the slot may do less.
        max_width: Lanes that it has.
    """

    speed_mts: int | None
    width: int | None
    max_speed_mts: int | None
    max_width: int | None

    @property
    def generation(self) -> int | None:
        """PCIe generation of the speed now."""
        return None if self.speed_mts is None else _GENERATIONS.get(self.speed_mts)


@dataclass(frozen=True)
class Device:
    """A GPU on the PCI bus.

    Attributes:
        address: As in sysfs: ``0000:01:00.0``.
        vendor: Number of its maker; see ``VENDORS``.
        model: Number of its model, by its maker.
        pci_class: Class and subclass: 0x0302.
        numa_node: Its node; None where firmware does not say.
        local_cpus: CPUs near it; all of the machine's where firmware does not say.
        link: Its PCIe link as it was then.
        driver: Kernel driver bound to it; None for none.
    """

    address: str
    vendor: int
    model: int
    pci_class: int
    numa_node: int | None
    local_cpus: tuple[int, ...]
    link: Link
    driver: str | None


@dataclass(frozen=True)
class DeviceEvent:
    """Something happened to a GPU.

    Attributes:
        change: What.
        address: Its PCI address.
        vendor: Number of its maker.
        model: Number of its model.
        driver: Driver that is bound, if the kernel said.
        synthetic: Somebody asked the kernel to send it (``echo change > uevent``); nothing need
            have happened.
        sequence: Number that the kernel gave it; 0 where two looks were compared instead.
        t_ns: When it was taken from the kernel, CLOCK_MONOTONIC; it happened before that.
    """

    change: Change
    address: str
    vendor: int
    model: int
    driver: str | None
    synthetic: bool
    sequence: int
    t_ns: int


def parse_hex(text: str) -> int | None:
    """A number such as ``0x10de`` or ``10DE``; None for what is none."""
    match = _HEX.fullmatch(text.strip())
    return int(match[1], 16) if match else None


def parse_link_speed(text: str) -> int | None:
    """Million transfers a second of ``16.0 GT/s PCIe``; None for ``Unknown``."""
    match = _SPEED.fullmatch(text.strip())
    return int(match[1]) * 1000 + int(match[2] or 0) * 100 if match else None


def parse_link_width(text: str) -> int | None:
    """Lanes; None where it says none or what cannot be (a device that is asleep says 63)."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() and _is_width(word) else None


def _is_width(word: str) -> bool:
    return len(word) < 3 and int(word) in _WIDTHS


def read_gpus(root: Path = SYS, wanted: Wanted = GPUS) -> tuple[Device, ...]:
    """The machine's GPUs, by address; ``()`` as well for a machine without a PCI bus."""
    try:
        addresses = sorted(os.listdir(root / _DEVICES))  # noqa: PTH208 - names only
    except OSError:
        return ()
    found = (_read_device(address, root, wanted) for address in addresses)
    return tuple(device for device in found if device is not None)


def _read_device(address: str, root: Path, wanted: Wanted) -> Device | None:
    folder = root / _DEVICES / address
    pci_class = parse_hex(read_text(folder / "class") or "")
    # Most devices of a server are no display: nothing more is read of them.
    if pci_class is None or pci_class >> 8 not in wanted.classes:
        return None
    vendor = parse_hex(read_text(folder / "vendor") or "")
    model = parse_hex(read_text(folder / "device") or "")
    if vendor is None or model is None or not wanted(pci_class >> 8, vendor):
        return None
    return Device(
        address=address,
        vendor=vendor,
        model=model,
        pci_class=pci_class >> 8,
        numa_node=parse_node(read_text(folder / "numa_node") or ""),
        local_cpus=parse_ids(read_text(folder / "local_cpulist") or "") or (),
        link=read_link(address, root),
        driver=_driver(folder),
    )


def read_link(address: str, root: Path = SYS) -> Link:
    """A device's PCIe link; all None when it is gone, or sits on an older bus."""
    folder = root / _DEVICES / address

    def text(name: str) -> str:
        return read_text(folder / name) or ""

    return Link(
        parse_link_speed(text("current_link_speed")),
        parse_link_width(text("current_link_width")),
        parse_link_speed(text("max_link_speed")),
        parse_link_width(text("max_link_width")),
    )


def _driver(folder: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(folder / "driver"))  # noqa: PTH115, PTH119 - cheaper
    except OSError:
        return None


def read_links(addresses: Iterable[str], root: Path = SYS) -> Sample:
    """What the links of these devices run at, of ``pci:<address>``."""
    readings: list[Reading] = []
    missing: list[Missing] = []
    for address in addresses:
        subject = f"pci:{address}"
        folder = root / _DEVICES / address
        t_ns = time.monotonic_ns()
        for metric, value in (
            (LINK_SPEED, parse_link_speed(read_text(folder / "current_link_speed") or "")),
            (LINK_WIDTH, parse_link_width(read_text(folder / "current_link_width") or "")),
        ):
            if value is None:
                missing.append(Missing(metric.name, subject, "the device does not say"))
            else:
                readings.append(Reading(metric, subject, value, t_ns))
    return Sample(tuple(readings), tuple(missing))


def parse_event(
    properties: Mapping[str, str], t_ns: int, wanted: Wanted = GPUS
) -> DeviceEvent | None:
    """A uevent of a GPU; None for one of anything else, or that says nothing known."""
    change = _CHANGES.get(properties.get("ACTION", ""))
    address = properties.get("PCI_SLOT_NAME", "")
    pci_class = parse_hex(properties.get("PCI_CLASS", ""))
    maker, _, model = properties.get("PCI_ID", "").partition(":")
    vendor_id, model_id = parse_hex(maker), parse_hex(model)
    if change is None or pci_class is None or vendor_id is None or model_id is None:
        return None
    if not _ADDRESS.fullmatch(address) or not wanted(pci_class >> 8, vendor_id):
        return None
    sequence = properties.get("SEQNUM", "")
    return DeviceEvent(
        change=change,
        address=address,
        vendor=vendor_id,
        model=model_id,
        driver=properties.get("DRIVER") or None,
        synthetic="SYNTH_UUID" in properties,
        sequence=int(sequence) if sequence.isascii() and sequence.isdecimal() else 0,
        t_ns=t_ns,
    )


def changes(
    before: Iterable[Device], after: Iterable[Device], t_ns: int
) -> tuple[DeviceEvent, ...]:
    """What happened between two looks, where events were lost or cannot be had at all.

    A device that went and came back in between looks as if nothing happened.
    """
    known = {device.address: device for device in before}
    found: list[DeviceEvent] = []
    for device in after:
        old = known.pop(device.address, None)
        if old is not None and (old.vendor, old.model) != (device.vendor, device.model):
            found.append(_event(Change.REMOVED, old, t_ns))
            old = None
        if old is None:
            found.append(_event(Change.ADDED, device, t_ns))
        if device.driver != (old.driver if old else None):
            change = Change.BOUND if device.driver else Change.UNBOUND
            found.append(_event(change, device, t_ns))
    found += [_event(Change.REMOVED, old, t_ns) for old in known.values()]
    return tuple(found)


def _event(change: Change, device: Device, t_ns: int) -> DeviceEvent:
    return DeviceEvent(
        change=change,
        address=device.address,
        vendor=device.vendor,
        model=device.model,
        driver=device.driver,
        synthetic=False,
        sequence=0,
        t_ns=t_ns,
    )
