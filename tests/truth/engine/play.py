# SPDX-License-Identifier: Apache-2.0
"""Scenarios played in a real engine: without the delay, then with it, traced all the while."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.daemon.client import open_recording
from gpucorrelate.verify.scenarios.quota import Throttling
from tests.engine.client import load
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import EngineServer, running_server
from tests.engine.traced import read_truth
from tests.truth.engine import course, judge, raising, waiting
from tests.truth.engine.loads import USUAL
from tests.truth.engine.scenarios import BY_NAME, Blame
from tests.truth.engine.slow_client import SlowClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.verify.score import Score
    from tests.engine.client import Result
    from tests.engine.server import Profile
    from tests.engine.traced import Truth
    from tests.truth.engine.course import Course
    from tests.truth.engine.scenarios import Scenario

#: How long an engine that is to die serves before, and what its end takes.
_ALIVE_S, _AFTER_DEATH_S = 2.0, 2.0
#: A request sent less than this before the end may never have arrived.
_ARRIVAL_NS = 100_000_000


@dataclass(frozen=True)
class Played:
    """A scenario that was played in an engine, as it is kept.

    Attributes:
        scenario: Its name.
        begun_ns: When it began.
        ended_ns: When it was over.
        plain: The client's ids of requests without the delay.
        delayed: And of those with it.
        throttled_ns: How long the engine's cgroup was out of quota while there was no delay, by
            the kernel's count.
    """

    scenario: str
    begun_ns: int
    ended_ns: int
    plain: tuple[str, ...]
    delayed: tuple[str, ...]
    throttled_ns: int = 0

    def write(self, folder: Path) -> None:
        """Keep it beside its recording."""
        (folder / f"{self.scenario}.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Played:
        """What was kept of one."""
        row = json.loads(path.read_text())
        return cls(**{**row, "plain": tuple(row["plain"]), "delayed": tuple(row["delayed"])})


@dataclass(frozen=True)
class Traced:
    """A scenario that was played, with all that is known of it.

    Attributes:
        scenario: Which.
        run: The correlator on its recording.
        plain: Reports of the requests without the delay.
        delayed: Reports of those with it.
        truth: What the plugin did.
        course: What the engine did.
        throttled_ns: See ``Played``.
    """

    scenario: Scenario
    run: Run
    plain: tuple[RequestReport, ...]
    delayed: tuple[RequestReport, ...]
    truth: tuple[Truth, ...]
    course: Course
    throttled_ns: int = 0

    @classmethod
    def of(cls, folder: Path, name: str) -> Traced:
        """A scenario from the folder of the engine in which it was played."""
        played = Played.read(folder / f"{name}.json")
        run = Run.of(Capture.from_batches(open_recording(folder / f"{name}.gpcf")))
        names = (*played.plain, *played.delayed)
        by_name = _by_name(run, names)
        truth = [
            row for row in read_truth(folder) if played.begun_ns < row.start_ns < played.ended_ns
        ]
        return cls(
            BY_NAME[name],
            run,
            tuple(by_name[one] for one in played.plain),
            tuple(by_name[one] for one in played.delayed),
            tuple(truth),
            course.read_course(folder, names),
            played.throttled_ns,
        )

    def cases(self) -> list[judge.Case]:
        """Operations without the delay, then those with it."""
        controls = judge.cases(self.plain, self.course, control=True)
        return controls + judge.cases(
            self.delayed, self.course, control=False, first=len(controls)
        )

    def delays(self) -> list[judge.Delay]:
        """The delays that were made."""
        if self.scenario.blame is Blame.CLIENT:
            return judge.paused(self.scenario, self.course)
        return judge.delays(self.scenario, self.truth)

    def score(self) -> Score:
        """How right the reports are."""
        if self.scenario.blame is Blame.STEP:
            both = (*self.plain, *self.delayed)
            return waiting.score(self.scenario, self.run, both, self.course)
        if self.scenario.blame is Blame.ERROR:
            return raising.score(
                self.scenario.name, self.run, self.delayed, self.truth, self.course
            )
        return judge.of(self.scenario, self.cases(), self.delays(), self.throttled_ns)


def _by_name(run: Run, names: Sequence[str]) -> dict[str, RequestReport]:
    """Reports by the client's ids."""
    found = {}
    wanted = set(names)
    for report in run.all_requests():
        for name in (report.request_id, *report.aliases):
            if name in wanted:
                found[name] = report
    missing = wanted - set(found)
    if missing:
        raise RuntimeError(f"{len(missing)} requests have no report, such as {min(missing)}")
    return found


class Engine:
    """A running engine with the plugin's faults, and a daemon.

    Attributes:
        folder: Where everything is written that is known of it and of what was played in it.
    """

    def __init__(self, folder: Path, daemon: DaemonProcess, server: EngineServer) -> None:
        self.folder = folder
        self._daemon = daemon
        self._server = server
        self._count = 0

    def play(self, scenario: Scenario) -> Traced:
        """Trace the load without the delay and with it."""
        self._count += 1
        tag = f"s{self._count:02d}"
        session = self._daemon.attach(self._server.pid, agents=3).session
        begun_ns = time.monotonic_ns()
        throttling, throttled_ns = Throttling(), 0
        if scenario.blame is Blame.ERROR:
            plain, delayed = [], self._fatal_load(scenario, tag)
            time.sleep(_AFTER_DEATH_S)
        else:
            throttled_ns -= throttling.total_ns()
            plain = self._load(scenario, f"{tag}c", slow=False)
            throttled_ns += throttling.total_ns()
            with self._switched_on(scenario):
                delayed = self._load(scenario, f"{tag}x", slow=True)
            time.sleep(0.5)
            self._daemon.client.detach(session=session)
        throttling.close()
        with (self.folder / f"{scenario.name}.gpcf").open("wb") as out:
            self._daemon.client.copy_session(session, out)
        Played(
            scenario.name,
            begun_ns,
            time.monotonic_ns(),
            tuple(result.request.request_id for result in plain),
            tuple(result.request.request_id for result in delayed),
            throttled_ns,
        ).write(self.folder)
        return Traced.of(self.folder, scenario.name)

    @contextlib.contextmanager
    def _switched_on(self, scenario: Scenario) -> Iterator[None]:
        if not scenario.fault:
            yield
            return
        flag = self.folder / "flags" / scenario.fault
        flag.write_text(str(scenario.mean_ms))
        try:
            yield
        finally:
            flag.unlink()

    def _fatal_load(self, scenario: Scenario, tag: str) -> list[Result]:
        """A load of which the engine dies halfway; those of its requests that were sent."""
        results: list[Result] = []
        requests = scenario.shape.requests(tag, self._count)
        streams = scenario.shape.streams

        def run() -> None:
            results.extend(load(self._server.url, requests, concurrency=streams))

        loading = threading.Thread(target=run)
        loading.start()
        time.sleep(_ALIVE_S)
        (self.folder / "flags" / scenario.fault).touch()
        loading.join()
        died_ns = min((one.end_ns for one in results if not one.ok), default=0)
        if not died_ns:
            raise RuntimeError(f"{scenario.name}: the engine lives on")
        return [one for one in results if one.start_ns < died_ns - _ARRIVAL_NS]

    def _load(self, scenario: Scenario, tag: str, *, slow: bool) -> list[Result]:
        shape = scenario.shape
        long = shape.slow_requests(tag, self._count) if slow else []
        beside = SlowClient(self._server.url, long, self._count)
        beside.start()
        requests = shape.requests(tag, self._count)
        results = load(self._server.url, requests, concurrency=shape.streams)
        beside.join()
        results += beside.results
        bad = [result for result in results if not result.ok]
        if bad:
            raise RuntimeError(f"{scenario.name}: {len(bad)} requests failed: {bad[0].error}")
        return results


@contextlib.contextmanager
def running_engine(profile: Profile, folder: Path) -> Iterator[Engine]:
    """An engine with the plugin, and a daemon; both are gone afterwards."""
    (folder / "flags").mkdir(parents=True)
    (folder / "flags" / "course").touch()
    env = {**ingest_env(folder), "GPUCORRELATE_LAB_DIR": str(folder)}
    with (
        running_daemon(folder) as daemon,
        running_server(profile, folder, env=env) as server,
    ):
        warm = load(server.url, USUAL.requests("warm", 1)[:20], concurrency=4)
        if not all(result.ok for result in warm):
            raise RuntimeError(f"the engine does not serve: {warm[0].error}")
        yield Engine(folder, daemon, server)
