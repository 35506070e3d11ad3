# SPDX-License-Identifier: Apache-2.0
"""The kernel probes where there is more than they, or the daemon behind them, can take."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from gpucorrelate.probes.wire.schema import TaskEvent, WaitKind
from tests.unit.daemon_kit import Yard, wait_for

pytestmark = pytest.mark.kernel

_NAPPER = """
import sys, time
print("on", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        time.sleep(1e-4)
    print("done", flush=True)
"""

_THREADS = """
import sys, threading, time
print("on", flush=True)
total, at_once = map(int, sys.stdin.readline().split())
for _ in range(total // at_once):
    some = [threading.Thread(target=time.sleep, args=(1e-6,)) for _ in range(at_once)]
    for one in some:
        one.start()
    for one in some:
        one.join()
print("done", flush=True)
sys.stdin.readline()
"""


class Script:
    """A process that does as it is told."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.hear() == "on"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def test_waits_that_overran_the_rings_are_counted_to_the_last(yard: Yard) -> None:
    """The daemon is stopped while the rings, small ones, fill many times over."""
    daemon = yard.daemon(ebpf=True, require_ebpf=True, ring_bytes=64 << 10, tick_ms=20).start()
    naps = 20_000
    with Script(_NAPPER) as napper:
        session = daemon.client.attach(napper.process.pid).session.session
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        napper.tell(str(naps))
        assert napper.hear() == "done"
        daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: daemon.client.status().kernel.lost, "the loss is seen")
        napper.tell("100")
        assert napper.hear() == "done"
        daemon.client.detach(session)
        found = daemon.recorded(session)
        kernel = daemon.client.status().kernel
    lost = found.lost("bpf.ring")
    assert lost == kernel.lost > 0
    sleeps = [row for row in found.rows("wait") if row[5] == WaitKind.SLEEP]
    assert len(sleeps) + lost >= naps + 100, "every nap is a wait, recorded or counted"
    others = len(found.rows("wait")) + len(found.rows("fault")) - len(sleeps)
    assert len(sleeps) + lost <= naps + 100 + others + lost // 10, "and nothing is counted twice"
    (*_, latest) = (row for row in found.rows("loss") if row[2] == "bpf.ring")
    assert latest[1] < latest[0], "the loss is placed in time"
    assert "ebpf.sched" in {row[1] for row in found.rows("capability")}
    assert found.missing == 0


def test_ten_thousand_short_threads_are_born_and_die(yard: Yard) -> None:
    daemon = yard.daemon(ebpf=True, require_ebpf=True, tick_ms=20).start()
    total = 10_000
    with Script(_THREADS) as maker:
        pid = maker.process.pid
        session = daemon.client.attach(pid).session.session
        before = resident_kib(daemon.client.status().pid)
        maker.tell(f"{total} 50")
        assert maker.hear() == "done"
        daemon.client.progress(session)
        wait_for(lambda: daemon.client.progress(session).threads <= 2, "they are forgotten")
        grown = resident_kib(daemon.client.status().pid) - before
        daemon.client.detach(session)
        found = daemon.recorded(session)
    lost = sum(found.values("loss", "count"))
    events = [(row[0], row[3]) for row in found.rows("task") if row[1] == pid and row[0] != pid]
    born = sum(1 for _, event in events if event == TaskEvent.FORK)
    ended = sum(1 for _, event in events if event == TaskEvent.EXIT)
    assert born + lost >= total
    assert ended + lost >= total
    assert found.lost("bpf.ring") == 0, "rings of the usual size have room"
    # Now and then the kernel has no memory at once for the state of a new thread, and says so.
    assert lost == found.lost("bpf.storage") <= total // 1000, found.rows("loss")
    assert grown < 64 << 10, "what is kept of them does not grow with their number"


def test_more_threads_than_there_is_room_to_sum_for_are_streamed(yard: Yard) -> None:
    """The table of sums is emptied by the daemon, which is stopped: what finds no room there
    goes into the rings, and what finds none there either is counted.
    """
    least_ns = 4_000_000
    daemon = yard.daemon(ebpf=True, require_ebpf=True, min_wait_ns=least_ns, tick_ms=20).start()
    with Script(_THREADS) as maker:
        session = daemon.client.attach(maker.process.pid).session.session
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        maker.tell("20000 50")
        assert maker.hear() == "done"
        daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: daemon.client.status().kernel.drained > 20_000, "it drains")
        full = dict(daemon.client.status().kernel.detail)["sums_full"]
        daemon.client.detach(session)
        found = daemon.recorded(session)
        kernel = daemon.client.status().kernel
    assert full > 0
    short = [row for row in found.rows("wait") if row[4] - row[2] < least_ns and not row[6]]
    assert short, "streamed, though they are short"
    assert len(short) <= full <= len(found.rows("wait")) + kernel.lost
    assert sum(found.values("wait_sum", "count")) > 0, "the others are summed"
    told = sum(row[4] for row in found.rows("loss") if row[2].startswith("bpf."))
    assert told == kernel.lost, found.rows("loss")


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        return int(file.read().split("VmRSS:")[1].split()[0])


def test_two_daemons_that_share_nothing_both_see_the_same_process(yard: Yard) -> None:
    other_yard = Yard()
    try:
        daemons = [
            one.daemon(ebpf=True, require_ebpf=True, tick_ms=20).start()
            for one in (yard, other_yard)
        ]
        with Script(_NAPPER) as napper:
            pid = napper.process.pid
            sessions = [daemon.client.attach(pid).session.session for daemon in daemons]
            time.sleep(0.1)
            napper.tell("500")
            assert napper.hear() == "done"
            counts = []
            for daemon, session in zip(daemons, sessions, strict=True):
                daemon.client.detach(session)
                found = daemon.recorded(session)
                assert set(found.values("wait", "tgid")) == {pid}
                assert found.rows("loss") == []
                counts.append(sum(1 for row in found.rows("wait") if row[5] == WaitKind.SLEEP))
        assert min(counts) >= 500
    finally:
        other_yard.clear()
