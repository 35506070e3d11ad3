# SPDX-License-Identifier: Apache-2.0
"""A disk that takes seconds for a write: probes, agents, callers and the watchdog do not wait."""

from __future__ import annotations

import itertools
import socket
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.wire.errors import ControlError
from tests.system.faults_kit import disk, needs_root
from tests.system.test_faults_kernel import Script
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon_kit import DaemonProcess

pytestmark = [pytest.mark.kernel, needs_root]

_NAPPER = """
import sys, threading, time
more = threading.Event()
def nap():
    while not more.is_set():
        time.sleep(2e-4)
        made[0] += 1
made = [0]
print("on", flush=True)
thread = threading.Thread(target=nap)
sys.stdin.readline()
thread.start()
sys.stdin.readline()
more.set()
thread.join()
print(made[0], flush=True)
sys.stdin.readline()
"""
_ONE_GO_S = 1.5


class Manager:
    """Hears what the daemon tells its service manager."""

    def __init__(self, daemon: DaemonProcess, place: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(place))
        self._socket.settimeout(0)
        # Fed every half of that.
        daemon.prefix = ("env", f"NOTIFY_SOCKET={place}", "WATCHDOG_USEC=200000")

    def fed(self) -> int:
        """How often the watchdog was fed since the last call."""
        fed = 0
        while True:
            try:
                fed += self._socket.recv(4096) == b"WATCHDOG=1"
            except BlockingIOError:
                return fed

    def close(self) -> None:
        self._socket.close()


def test_while_a_write_hangs_the_probes_are_drained_and_everybody_is_served(yard: Yard) -> None:
    state = yard.folder / "s"
    state.mkdir()
    with disk(state) as device, Script(_NAPPER) as napper:
        daemon = yard.daemon(
            ebpf=True,
            # So little that a loop which waits for the disk would overrun it.
            ring_bytes=512 << 10,
            segment_bytes=4 << 20,
            session_max_bytes=16 << 20,
        )
        manager = Manager(daemon, yard.folder / "manager")
        daemon.start()
        session = daemon.client.attach(napper.process.pid).session.session
        napper.tell("go")
        wait_for(lambda: daemon.client.progress(session).waits > 1000, "waits are recorded")
        manager.fed()
        device.freeze()
        drained = [daemon.client.status().kernel.drained]
        for _ in range(3):
            time.sleep(_ONE_GO_S)
            drained.append(daemon.client.status().kernel.drained)
            assert manager.fed() > 0, "the watchdog is fed"
        warned = daemon.client.progress(session).warnings
        with pytest.raises(ControlError, match="has not answered for"):
            daemon.client.attach(yard.peer(daemon).pid)
        device.thaw()
        rows = [after - before for before, after in itertools.pairwise(drained)]
        assert min(rows) > max(rows) / 10, "at about the same pace all the time"
        assert any("the disk is slow" in line for line in warned)
        napper.tell("end")
        made = int(napper.hear())
        wait_for(lambda: daemon.client.progress(session).waits >= made, "all were drained")
        daemon.client.detach(session=session)
        wait_for(lambda: daemon.client.sessions()[0].state == "detached", "it has ended")
        found = daemon.recorded(session)
        assert daemon.client.status().kernel.lost == 0
        assert found.lost("bpf.ring") == 0
        assert found.lost("store.disk") == 0
        kept = len(found.rows("wait"))
        assert kept < made, "a slow disk is given less"
        assert kept + found.lost("daemon.shed") >= made, "and what it is not given is told"
        assert not found.damage
        assert found.missing == 0
        napper.tell("bye")
        assert daemon.end() == 0
        manager.close()
