# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.qemu.inside.watch_devices LOG``: what the reader tells of devices, as lines.

Each line is one event as JSON, with the devices of the bus as they are read after it; until
LOG.end exists.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path

from gpucorrelate.probes.host.device_events import DeviceMonitor
from gpucorrelate.probes.host.devices import Wanted, read_gpus

#: NVMe, and a display: of the emulator's makers.
WANTED = Wanted(frozenset({0x0108, 0x0380}), frozenset({0x1B36, 0x1234}))


def main() -> None:
    """Write what happens until told to end."""
    log = Path(sys.argv[1])
    opened = DeviceMonitor.open(WANTED)
    assert isinstance(opened, DeviceMonitor), opened
    with opened as monitor, log.open("w") as out:
        line: dict[str, object] = {"ready": True}
        while not Path(f"{log}.end").exists():
            there = {one.address: one.driver for one in read_gpus(wanted=WANTED)}
            if line:
                out.write(json.dumps(line | {"there": there}) + "\n")
                out.flush()
            select.select([monitor], [], [], 0.5)
            drained = monitor.drain()
            events = [
                {"change": event.change.value, "address": event.address,
                 "driver": event.driver, "vendor": event.vendor, "model": event.model,
                 "synthetic": event.synthetic}
                for event in drained.events
            ]  # fmt: skip
            line = {"events": events, "lost": drained.lost} if events or drained.lost else {}


if __name__ == "__main__":
    main()
