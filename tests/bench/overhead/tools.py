# SPDX-License-Identifier: Apache-2.0
"""The configurations that are compared: nothing, our probes, and what one would use instead."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.frame import StringTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICK_S = os.sysconf("SC_CLK_TCK")
_DRAIN_EVERY_S = 0.01

#: Length of each wait of one process, by who waited and who woke it: the nearest thing to our
#: records that bpftrace can do without printing every event.
_WAKER_HISTOGRAM = """
tracepoint:sched:sched_switch /pid == PID/ { @off[args->prev_pid] = nsecs; }
tracepoint:sched:sched_waking /@off[args->pid]/ { @waker[args->pid] = tid; }
tracepoint:sched:sched_switch /@off[args->next_pid]/ {
  @waits[args->next_pid, @waker[args->next_pid]] = hist(nsecs - @off[args->next_pid]);
  delete(@off[args->next_pid]);
}
BEGIN { printf("attached\\n"); }
"""


@dataclass
class Cost:
    """What a tool itself used while the stress ran.

    Attributes:
        cpu_s: CPU time of the tool.
        events: Events it took; 0 where it does not tell.
        lost: Events it lost.
        rss_mib: Its memory.
    """

    cpu_s: float = 0.0
    events: int = 0
    lost: int = 0
    rss_mib: float = 0.0


@dataclass(frozen=True)
class Tool:
    """A way to look at the stress program.

    Attributes:
        name: As printed.
        watch: Called with the stress's process id; what happens inside it is measured.
        wrap: Command that runs the stress program inside a tool, instead of ``watch``.
        needs: Programs that must be installed.
    """

    name: str
    watch: Callable[[int], contextlib.AbstractContextManager[Cost]] | None = None
    wrap: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())

    def missing(self) -> tuple[str, ...]:
        """What of it is not installed."""
        return tuple(name for name in self.needs if shutil.which(name) is None)


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(pid: int) -> float:
    """CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK_S


class _Drain(threading.Thread):
    """Drains a tracer on a clock, as the daemon does, and adds up what that costs."""

    def __init__(self, tracer: Tracer, cost: Cost) -> None:
        super().__init__(name="drain")
        self._tracer, self._cost = tracer, cost
        self._stopping = threading.Event()

    def run(self) -> None:
        strings = StringTable()
        while True:
            last = self._stopping.wait(_DRAIN_EVERY_S)
            for rows in self._tracer.drain(strings):
                self._cost.events += rows.count
            strings.take_fresh()
            if last:
                break
        self._cost.cpu_s = time.thread_time()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


@contextlib.contextmanager
def ours(pid: int, config: TracerConfig, *, target: bool = True) -> Iterator[Cost]:
    """Our probes; without ``target`` they watch another process, as the rest of a host sees it."""
    cost = Cost()
    tracer = Tracer.start(config)
    try:
        if target:
            tracer.add_target(pid)
        drain = _Drain(tracer, cost)
        drain.start()
        yield cost
        drain.stop()
        cost.lost = sum(loss.count for loss in tracer.losses())
        cost.rss_mib = rss_mib(os.getpid())
    finally:
        tracer.stop()


@contextlib.contextmanager
def _beside(command: list[str], ready: bytes) -> Iterator[Cost]:
    """A tool of its own process, attached when it has printed ``ready`` (or after a second)."""
    cost = Cost()
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert tool.stdout is not None
    try:
        if ready:
            while (line := tool.stdout.readline()) and ready not in line:
                pass
            # BEGIN runs before the other probes are attached.
            time.sleep(0.3)
        else:
            time.sleep(1.0)
        if tool.poll() is not None:
            raise RuntimeError(f"{command[0]} ended at once: it does not run here")
        before = cpu_s(tool.pid)
        yield cost
        cost.cpu_s = cpu_s(tool.pid) - before
        cost.rss_mib = rss_mib(tool.pid)
    finally:
        tool.send_signal(signal.SIGINT)
        try:
            tool.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.communicate()


def _bpftrace(pid: int) -> contextlib.AbstractContextManager[Cost]:
    script = _WAKER_HISTOGRAM.replace("PID", str(pid))
    return _beside(["bpftrace", "-q", "-e", script], b"attached")


def _offcputime(pid: int) -> contextlib.AbstractContextManager[Cost]:
    return _beside(["offcputime", "-p", str(pid), "60"], b"")


def _nothing(pid: int) -> contextlib.AbstractContextManager[Cost]:
    del pid
    return contextlib.nullcontext(Cost())


ALL_WAITS = TracerConfig(faults=False)
SUMMED = TracerConfig(faults=False, min_wait_ns=10_000)
WITH_FAULTS = TracerConfig()

TOOLS: tuple[Tool, ...] = (
    Tool("off", _nothing),
    Tool("off again", _nothing),
    Tool("gpucorrelate, another process", lambda pid: ours(pid, ALL_WAITS, target=False)),
    Tool("gpucorrelate, all waits", lambda pid: ours(pid, ALL_WAITS)),
    Tool("gpucorrelate, with faults", lambda pid: ours(pid, WITH_FAULTS)),
    Tool("gpucorrelate, < 10 us summed", lambda pid: ours(pid, SUMMED)),
    Tool("bpftrace waker histogram", _bpftrace, needs=("bpftrace",)),
    Tool("libbpf-tools offcputime", _offcputime, needs=("offcputime",)),
    Tool("strace -f -c", wrap=("strace", "-f", "-c", "-o", "/dev/null"), needs=("strace",)),
    Tool("perf trace -s", wrap=("perf", "trace", "-s", "-o", "/dev/null"), needs=("perf",)),
)
