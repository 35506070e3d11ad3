# SPDX-License-Identifier: Apache-2.0
"""Devices plugged in and out of a running machine, and drivers bound and unbound."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.qemu.checks import passed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.qemu.guest import Guest

_PCI = "/sys/bus/pci"
_NVME = f"{_PCI}/drivers/nvme"
_PATIENCE_S = 120.0


class Watcher:
    """``watch_devices`` inside, and what it has told."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._log = "/root/devices"
        guest.run("busybox", "rm", "-f", self._log, f"{self._log}.end")
        guest.write(self._log, "")
        guest.start(
            "/root/watcher.said", sys.executable, "-m", "tests.qemu.inside.watch_devices",
            self._log,
        )  # fmt: skip
        self.until(lambda lines: bool(lines), "it listens")

    def lines(self) -> list[dict[str, Any]]:
        text = self._guest.read(self._log)
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if line]

    def events(self) -> list[dict[str, Any]]:
        return [event for line in self.lines() for event in line.get("events", [])]

    def there(self) -> dict[str, str | None]:
        found: dict[str, str | None] = self.lines()[-1]["there"]
        return found

    def until(self, check: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if check(self.lines()):
                return
            said = self._guest.read("/root/watcher.said")
            assert not said, said
            time.sleep(0.5)
        raise AssertionError(f"never: {what}; told were {self.lines()}")

    def heard(self, change: str, address: str = "", after: int = 0) -> dict[str, Any]:
        """The event of a kind, of those after so many."""

        def found(_: object = None) -> list[dict[str, Any]]:
            return [
                event
                for event in self.events()[after:]
                if event["change"] == change and address in ("", event["address"])
            ]

        self.until(lambda _: bool(found()), f"{change} {address}")
        return found()[0]

    def end(self) -> None:
        self._guest.write(f"{self._log}.end", "")


@pytest.fixture
def watcher(guest: Guest) -> Iterator[Watcher]:
    made = Watcher(guest)
    yield made
    made.end()


def test_a_display_is_plugged_in_and_out(guest: Guest, watcher: Watcher) -> None:
    before = watcher.there()
    guest.monitor.do("device_add", driver="bochs-display", id="shown", bus="port0")
    added = watcher.heard("add")
    assert (added["vendor"], added["model"], added["synthetic"]) == (0x1234, 0x1111, False)
    assert added["address"] not in before
    watcher.until(lambda lines: added["address"] in lines[-1]["there"], "it can be read")
    told = len(watcher.events())
    guest.monitor.do("device_del", id="shown")
    removed = watcher.heard("remove", added["address"], after=told)
    assert removed["vendor"] == 0x1234
    watcher.until(lambda _: "shown" not in guest.monitor.plugged(), "the emulator lets go of it")
    watcher.until(lambda lines: lines[-1]["there"] == before, "all is as it was")


def test_a_disks_driver_comes_and_goes_with_it_and_by_hand(guest: Guest, watcher: Watcher) -> None:
    before = watcher.there()
    guest.monitor.do("blockdev-add", driver="null-co", node_name="spare", size=1 << 20)
    guest.monitor.do(
        "device_add", driver="nvme", id="plugged", bus="port2", drive="spare", serial="spare"
    )
    address = watcher.heard("add")["address"]
    bound = watcher.heard("bind", address)
    assert bound["driver"] == "nvme"
    watcher.until(lambda lines: lines[-1]["there"].get(address) == "nvme", "and is read so")

    told = len(watcher.events())
    guest.write(f"{_NVME}/unbind", address)
    watcher.heard("unbind", address, after=told)
    watcher.until(lambda lines: lines[-1]["there"].get(address, "") is None, "no driver")
    told = len(watcher.events())
    guest.write(f"{_NVME}/bind", address)
    assert watcher.heard("bind", address, after=told)["driver"] == "nvme"

    told = len(watcher.events())
    guest.monitor.do("device_del", id="plugged")
    watcher.heard("unbind", address, after=told)
    watcher.heard("remove", address, after=told)
    watcher.until(lambda _: "plugged" not in guest.monitor.plugged(), "the emulator lets go of it")
    guest.monitor.do("blockdev-del", node_name="spare")
    watcher.until(lambda lines: lines[-1]["there"] == before, "all is as it was")
    changes = [event["change"] for event in watcher.events() if event["address"] == address]
    assert changes == ["add", "bind", "unbind", "bind", "unbind", "remove"]


def test_a_gpu_that_goes_and_comes_is_in_the_recording(guest: Guest) -> None:
    assert passed(guest, "check_gpu_changes")
