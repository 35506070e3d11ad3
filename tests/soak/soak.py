# SPDX-License-Identifier: Apache-2.0
"""The run itself: cycles of attaching and detaching while a load goes on."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from gpucorrelate.probes.wire.errors import GpucorrelateError
from tests.engine.client import REQUEST_TIMEOUT_S
from tests.engine.processes import wait_until
from tests.engine.traced import capture_of
from tests.soak import accounts, samples
from tests.soak.cost import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpucorrelate.daemon.overhead import ProgramCost
    from tests.engine.client import Load, Result
    from tests.engine.daemon import DaemonProcess
    from tests.engine.server import EngineServer
    from tests.soak.accounts import Account
    from tests.soak.samples import Sample

#: How long sessions are, one after another: long enough for whole requests, and some so short that
#: attaching and detaching meet.
HOLD_S = (12.0, 4.0, 12.0, 1.0)
_GAP_S = 1.0
_EVERY_S = 60.0
#: So many requests of each stream end before the longest does that was in flight: their outputs
#: differ by a factor of six.
_LATER = 8
#: API server, engine core, worker.
_AGENTS = 3


@dataclass
class Soak:
    """A run and what came of it so far.

    Attributes:
        daemon: Under test.
        server: The engine that it attaches to.
        load: What the engine serves meanwhile.
        say: Takes a line of progress.
    """

    daemon: DaemonProcess
    server: EngineServer
    load: Load
    say: Callable[[str], None]
    accounts: list[Account] = field(default_factory=list)
    attached: list[Sample] = field(default_factory=list)
    idle: list[Sample] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    wrong: list[str] = field(default_factory=list)
    _told_s: float = field(default_factory=time.monotonic)
    _begun_s: float = field(default_factory=time.monotonic)

    def run(self, seconds: float) -> None:
        """Cycles until the time is over; ends at once where daemon or engine do."""
        end_s = time.monotonic() + seconds
        for hold_s in itertools.cycle(HOLD_S):
            if time.monotonic() >= end_s:
                return
            try:
                self._cycle(hold_s)
            except (GpucorrelateError, TimeoutError, psutil.Error, OSError) as exc:
                self.wrong.append(f"{type(exc).__name__}: {exc}")
            if not self.daemon.running() or not self.server.running():
                self.wrong.append("the daemon or the engine has ended")
                return
            self._progress()

    def _cycle(self, hold_s: float) -> None:
        engine = self.server.processes()
        session = self.daemon.attach(self.server.pid, agents=_AGENTS).session
        from_ns, clock = time.monotonic_ns(), _Clocks.of(self.daemon.pid, engine)
        before = self._programs()
        time.sleep(hold_s)
        self.attached.append(self._sample(engine))
        self.cost.add_programs(before, self._programs())
        daemon_s, engine_s, wall_s = clock.since(self.daemon.pid, engine)
        self.cost.attached_s += wall_s
        self.cost.attached_cpu_s += daemon_s
        self.cost.engine_cpu_s += engine_s
        clock, to_ns = _Clocks.of(self.daemon.pid, engine), time.monotonic_ns()
        client = self.daemon.client
        progress = client.progress(session)
        info = client.detach(session=session)
        time.sleep(_GAP_S)
        daemon_s, _, wall_s = clock.since(self.daemon.pid, engine)
        self.cost.idle_s += wall_s
        self.cost.idle_cpu_s += daemon_s
        self.idle.append(self._sample(engine))
        whole = _whole(self.load.results, from_ns, to_ns)
        self._wait_for_flights(to_ns)
        across = sum(r.start_ns < from_ns and r.end_ns > to_ns for r in list(self.load.results))
        capture = capture_of(client, session, whole)
        account = accounts.of_session(capture, whole, info, progress, across=across)
        self.accounts.append(account)
        for line in account.wrong:
            self.say(f"WRONG in {session}: {line}")

    def _wait_for_flights(self, moment_ns: int) -> None:
        """Return when all requests that were in flight at a moment have surely ended."""
        most = _LATER * self.load.streams

        def ended() -> bool:
            return sum(r.end_ns > moment_ns for r in list(self.load.results)) >= most

        wait_until(ended, timeout_s=REQUEST_TIMEOUT_S, what="requests end")

    def _sample(self, engine: Iterable[int]) -> Sample:
        return samples.take(self.daemon.pid, self.daemon.state_dir, engine)

    def _programs(self) -> tuple[ProgramCost, ...]:
        return self.daemon.client.status().overhead.programs

    def _progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < _EVERY_S:
            return
        self._told_s = now_s
        held = self.attached[-1]
        lost = sum(sum(one.lost.values()) for one in self.accounts)
        self.say(
            f"{(now_s - self._begun_s) / 60:5.1f} min  sessions {len(self.accounts)}  requests "
            f"{sum(one.requests for one in self.accounts):,}  steps "
            f"{sum(one.steps for one in self.accounts):,}  waits "
            f"{sum(one.waits for one in self.accounts):,}  lost {lost:,}  memory "
            f"{held.rss_bytes / (1 << 20):.1f} MiB  files {held.descriptors}  maps {held.maps}  "
            f"disk {held.disk_bytes / (1 << 20):.0f} MiB"
        )


def _whole(results: Iterable[Result], from_ns: int, to_ns: int) -> list[Result]:
    """Requests that were sent and ended within a time, as they should."""
    return [
        result
        for result in list(results)
        if result.ok and result.start_ns >= from_ns and result.end_ns <= to_ns
    ]


@dataclass(frozen=True)
class _Clocks:
    """CPU time of both sides, and the wall clock, at one moment; seconds."""

    daemon_s: float
    engine_s: float
    wall_s: float

    @classmethod
    def of(cls, daemon: int, engine: Iterable[int]) -> _Clocks:
        return cls(_cpu_s(daemon), sum(map(_cpu_s, engine)), time.monotonic())

    def since(self, daemon: int, engine: Iterable[int]) -> tuple[float, float, float]:
        """How much later now is."""
        now = _Clocks.of(daemon, engine)
        return (
            now.daemon_s - self.daemon_s,
            now.engine_s - self.engine_s,
            now.wall_s - self.wall_s,
        )


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
