# SPDX-License-Identifier: Apache-2.0
"""The host around a session: read, recorded once, restated in new files, within its share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.cli.settings import daemon_settings
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.daemon import watch
from gpucorrelate.daemon.client import open_recording
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.slow import Task
from gpucorrelate.daemon.watch import HostWatch
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.host.reading import (
    Change,
    Metric,
    Missing,
    Reading,
    Round,
    Sample,
    Standing,
)
from gpucorrelate.probes.wire.errors import UsageError
from gpucorrelate.probes.wire.roles import ROLE
from gpucorrelate.probes.wire.schema import CapabilityState, Nature
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

MS = 1_000_000
METRIC = Metric("m", "ns", Nature.TOTAL, "what m is")


def texts(capture: Capture, table: str, column: str) -> list[str]:
    return [capture.strings[one] for one in capture.table(table)[column].tolist()]


def test_a_sessions_host_is_in_its_recording(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session

    def read() -> Capture:
        return Capture.from_batches(daemon.client.open_session(session))

    wait_for(lambda: len(set(read().table("counter")["t_ns"].tolist())) > 50, "it is read again")
    wait_for(lambda: "host.devices" in texts(read(), "capability", "source"), "slow looks, too")
    found = read()
    assert set(texts(found, "counter", "metric")) == set(texts(found, "metric", "name"))
    assert len(set(texts(found, "metric", "name"))) == len(found.table("metric"))
    subjects = set(texts(found, "counter", "subject"))
    assert {"host", f"pid:{peer.pid}", f"tid:{peer.pid}"} <= subjects
    assert f"pid:{peer.pid}" in texts(found, "change", "subject"), "its cgroups"
    table = found.table("counter")
    assert (table["since_ns"] <= table["t_ns"]).all()
    working = dict(zip(texts(found, "capability", "source"), found.table("capability")["state"],
                       strict=True))  # fmt: skip
    for source in ("threads", "memory", "processes", "devices", "numa"):
        assert working[f"host.{source}"] == CapabilityState.ON


NAMES_ITSELF = """
import sys, threading
def run():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("ZMQbg/IO/0")
    print(threading.get_native_id(), flush=True)
    sys.stdin.readline()
threading.Thread(target=run).start()
threading.Event().wait(60)
"""


def test_what_a_native_thread_seems_to_be_for_is_recorded_until_it_ends(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20).start()
    child = subprocess.Popen(
        [sys.executable, "-c", NAMES_ITSELF], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        try:
            assert child.stdin is not None and child.stdout is not None
            tid = int(child.stdout.readline())
            session = daemon.client.attach(child.pid).session.session

            def roles() -> list[str]:
                found = Capture.from_batches(daemon.client.open_session(session))
                rows = zip(
                    *(texts(found, "change", one) for one in ("subject", "what", "after")),
                    strict=True,
                )
                return [after for subject, what, after in rows
                        if (subject, what) == (f"tid:{tid}", ROLE)]  # fmt: skip

            wait_for(lambda: roles() == ["zmq (guessed by its name)"], "it is told")
            child.stdin.close()
            wait_for(lambda: roles()[1:] == [""], "it is taken back")
        finally:
            child.kill()


def test_every_file_of_a_recording_has_the_numbers_and_what_they_are(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20, segment_bytes=100_000, session_max_bytes=1 << 24).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    folder = daemon.session_dir(session)
    for first in range(1, 100_000, 1000):
        peer.do("steps", first, 1000)
        if len(list(folder.glob("*.gpcf"))) > 3:
            break
    files = sorted(folder.glob("*.gpcf"))
    assert len(files) > 3

    def told(place: Path) -> set[tuple[str, str]]:
        found = Capture.from_batches(open_recording(place))
        assert set(texts(found, "counter", "metric")) <= set(texts(found, "metric", "name"))
        return set(
            zip(texts(found, "counter", "metric"), texts(found, "counter", "subject"), strict=True)
        )

    whole = told(files[0])
    assert len(whole) > 50
    # Most of it never changes, and is told in the last file all the same.
    wait_for(lambda: whole <= told(max(folder.glob("*.gpcf"))), "the numbers are restated")

    def states(place: Path) -> list[tuple[str, str]]:
        found = Capture.from_batches(open_recording(place))
        rows = zip(
            *(texts(found, "change", name) for name in ("subject", "what", "after")), strict=True
        )
        return sorted((what, after) for who, what, after in rows if who == f"pid:{peer.pid}")

    held = states(folder)
    assert {what.split()[0] for what, _ in held} == {"allowed", "cgroup"}
    assert len(set(held)) == len(held), "once in the whole"
    assert states(max(folder.glob("*.gpcf"))) == held, "where it is, and is bound to"


def test_no_polling_where_it_is_switched_off(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=0).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("steps", 1, 10)
    wait_for(lambda: daemon.client.progress(session).steps == 10, "it records")
    found = Capture.from_batches(daemon.client.open_session(session))
    assert not len(found.table("counter"))


@pytest.mark.parametrize(
    "bad",
    [{"poll_ms": 5}, {"poll_ms": 60_001}, {"poll_share_ppm": 0}, {"engine_every_ms": 50}],
)
def test_settings_that_make_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DaemonConfig(**bad)


def test_the_commands_options_for_polling() -> None:
    assert daemon_settings({}).options == ()
    given = {"poll_ms": 0, "no_engine_metrics": True}
    assert dict(daemon_settings(given).options) == {"poll_ms": 0, "engine_metrics": False}


class Notes:
    """Holds what would be recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        self.said: list[tuple[str, CapabilityState, str]] = []
        self.before: dict[str, tuple[CapabilityState, str]] = {}
        self.lost: list[tuple[str, str, int]] = []

    def write(self, kind: Any, rows: list[tuple[Any, ...]]) -> None:
        self.rows += [(kind.name, row) for row in rows]

    def capability(self, source: str, state: CapabilityState, reason: str) -> None:
        self.said.append((source, state, reason))

    def stated(self, prefix: str) -> dict[str, tuple[CapabilityState, str]]:
        return {name: said for name, said in self.before.items() if name.startswith(prefix)}

    def latest_change(self, subject: str, what: str) -> tuple[int, str] | None:
        rows = [row for row in self.named("change") if row[2:4] == (subject, what)]
        return (rows[-1][0], rows[-1][5]) if rows else None

    def loss(self, hop: str, what: str, count: int) -> None:
        self.lost.append((hop, what, count))

    def of(self, source: str) -> list[tuple[CapabilityState, str]]:
        return [(state, reason) for name, state, reason in self.said if name == source]

    def named(self, kind: str) -> list[tuple[Any, ...]]:
        return [row for name, row in self.rows if name == kind]


class _Session(SimpleNamespace):
    """What the watch asks of a session."""

    def __init__(self) -> None:
        super().__init__(
            id="s", segment_number=1, notes=Notes(),
            processes=SimpleNamespace(living=lambda: [1]),
            counts=SimpleNamespace(flights=SimpleNamespace(slow=lambda _now_ns: self.slow)),
            slow=False,
        )  # fmt: skip


def a_session() -> Any:
    return _Session()


class Source:
    """A source that is played."""

    def __init__(self, look: Callable[[bool], Round]) -> None:
        self._look = look
        self.stands = Standing()
        self.closed = 0

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        assert list(pids) == [1]
        return self._look(everything)

    def standing(self) -> Standing:
        return self.stands

    def close(self) -> None:
        self.closed += 1


def playing(monkeypatch: pytest.MonkeyPatch, **sources: Source) -> HostWatch:
    """A watch of sources that are played."""
    made = {name: (lambda source=source: source) for name, source in sources.items()}
    monkeypatch.setattr(watch, "SOURCES", made)
    # The real ones bring this machine's numbers, whenever they are done.
    monkeypatch.setattr(watch, "shared_tasks", list)
    monkeypatch.setattr(watch, "session_tasks", lambda **_: [])
    return HostWatch(DaemonConfig(poll_ms=100))


def one(value: int = 1, since_ns: int | None = None) -> Round:
    return Round(Sample((Reading(METRIC, "host", value, 2, since_ns),)))


ON, OFF, DEGRADED = CapabilityState.ON, CapabilityState.OFF, CapabilityState.DEGRADED


def test_a_poller_that_fails_is_a_missing_source_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works = [True, False, False, True]
    told: list[bool] = []

    def look(everything: bool) -> Round:
        told.append(everything)
        if not works.pop(0):
            raise ValueError("what the kernel wrote")
        return one()

    source = Source(look)
    watching, session = playing(monkeypatch, played=source), a_session()
    watching.tick([session], 0)
    assert session.notes.of("host.played") == [(ON, "")]
    watching.tick([session], 100 * MS)
    state, reason = session.notes.of("host.played")[-1]
    assert state is DEGRADED
    assert "ValueError: what the kernel wrote" in reason
    assert source.closed == 1
    for t_ms in range(200, 2000, 100):
        watching.tick([session], t_ms * MS)
    assert len(works) == 2, "not at once"
    watching.tick([session], 2100 * MS)
    watching.tick([session], 4200 * MS)
    assert len(works) == 1, "and more and more seldom"
    watching.tick([session], 6100 * MS)
    assert [state for state, _ in session.notes.of("host.played")] == [ON, DEGRADED, ON]
    assert told == [True, False, True, True]
    assert [row[:2] for row in session.notes.named("counter")] == [(2, 0), (2, 0)]
    assert sum("ValueError" in line for line in caplog.messages) == 1, "it is logged once"


def test_numbers_speak_since_the_look_before_or_since_they_were_read_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bool] = []

    def look(everything: bool) -> Round:
        told.append(everything)
        return Round(Sample((Reading(METRIC, "host", 1, 2), Reading(METRIC, "x", 1, 2, 7))))

    watching, session = playing(monkeypatch, played=Source(look)), a_session()
    for t_ns in (5, 5 + 100 * MS, 5 + 150 * MS, 5 + 200 * MS):
        watching.tick([session], t_ns)
    session.segment_number = 2
    watching.tick([session], 5 + 300 * MS)
    assert told == [True, False, False, True]
    since = [(row[3], row[1]) for row in session.notes.named("counter")]
    assert [t for subject, t in since if subject == "host"] == [
        0, 5, 5 + 100 * MS, 5 + 200 * MS
    ]  # fmt: skip
    assert {t for subject, t in since if subject == "x"} == {7}
    assert session.notes.named("metric") == [("m", "ns", int(Nature.TOTAL), "what m is")]


def test_single_things_that_are_missing_are_no_missing_source_and_are_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(lambda _: one())
    watching, session = playing(monkeypatch, played=source), a_session()
    a, b = Missing("x", "cgroup:/a", "not permitted"), Missing("x", "cgroup:/b", "not permitted")
    source.stands = Standing(missing=(a, b))
    watching.tick([session], 0)
    assert session.notes.said == [("host.played", ON, "")], "it may be just about to end"
    watching.tick([session], 1100 * MS)
    assert session.notes.of("host.played") == [(ON, "")]
    assert session.notes.of("host.played/x") == [(OFF, "cgroup:/a: not permitted")]
    source.stands = Standing(missing=(a,))
    watching.tick([session], 6000 * MS)
    assert len(session.notes.said) == 2, "it is so still"
    source.stands = Standing(missing=(b,))
    watching.tick([session], 12_000 * MS)
    watching.tick([session], 13_100 * MS)
    assert session.notes.of("host.played/x")[-1] == (OFF, "cgroup:/b: not permitted")
    source.stands = Standing()
    watching.tick([session], 19_000 * MS)
    assert session.notes.of("host.played/x")[-1] == (ON, "")
    assert session.notes.of("host.played") == [(ON, "")]


def test_a_source_is_off_that_cannot_be_read_at_all_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(lambda _: one())
    watching, session = playing(monkeypatch, played=source), a_session()
    source.stands = Standing(works=False, missing=(Missing("/proc/x", "host", "no such file"),))
    watching.tick([session], 0)
    source.stands = Standing()
    watching.tick([session], 6000 * MS)
    assert session.notes.of("host.played") == [(OFF, "host: no such file"), (ON, "")]
    assert {name for name, *_ in session.notes.said} == {"host.played"}


def test_a_process_that_ended_is_nothing_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(lambda _: one())
    watching, session = playing(monkeypatch, played=source), a_session()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        # Not waited for yet: a zombie has no files that could be read.
        wait_for(lambda: procfs.read_stat(child.pid).state == "Z", "it ended")  # type: ignore[union-attr]
        gone = Missing("/proc/PID/cgroup", f"pid:{child.pid}", "the process is gone")
        here = Missing("/proc/PID/io", f"pid:{os.getpid()}", "not permitted")
        source.stands = Standing(works=False, missing=(gone,))
        watching.tick([session], 0)
        source.stands = Standing(missing=(gone, here))
        watching.tick([session], 6000 * MS)
        watching.tick([session], 7100 * MS)
    watching.tick([session], 12_000 * MS)
    assert [name for name, *_ in session.notes.said] == ["host.played", "host.played//proc/PID/io"]
    assert session.notes.of("host.played") == [(ON, "")]


def test_names_of_missing_things_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(lambda _: one())
    watching, session = playing(monkeypatch, played=source), a_session()
    for at in range(40):
        source.stands = Standing(
            missing=tuple(Missing(f"{at}.{n}", "host", "no") for n in range(100))
        )
        watching.tick([session], at * 6000 * MS)
        watching.tick([session], (at * 6000 + 1100) * MS)
    assert 400 < len({name for name, *_ in session.notes.said}) <= 513


def test_what_an_earlier_run_missed_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, session = playing(monkeypatch, played=Source(lambda _: one())), a_session()
    session.notes.before = {
        "host.played/x": (OFF, "host: no"), "host.played/y": (ON, ""), "host.played": (OFF, "no")
    }  # fmt: skip
    watching.tick([session], 0)
    assert session.notes.said == [("host.played", ON, ""), ("host.played/x", ON, "")]


def test_a_poller_that_begins_anew_tells_no_change_that_was_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first look takes for the beginning what the recording knows better."""
    rounds: list[Round | Exception] = [
        Round(changes=(Change(2, 0, "pid:1", "cgroup", "", "/a"),)),
        ValueError("broken"),
        Round(changes=(Change(9, 0, "pid:1", "cgroup", "", "/a"),)),
        ValueError("broken"),
        Round(changes=(Change(4000 * MS, 0, "pid:1", "cgroup", "", "/b"),)),
    ]

    def look(_everything: bool) -> Round:
        found = rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    watching, session = playing(monkeypatch, played=Source(look)), a_session()
    for t_ms in range(0, 6000, 100):
        if rounds:
            watching.tick([session], t_ms * MS)
    assert not rounds
    first, moved = session.notes.named("change")
    assert first[4:] == ("", "/a")
    assert moved[4:] == ("/a", "/b")
    assert 0 < moved[1] < moved[0], "since it was last seen where it was"


def costly(monkeypatch: pytest.MonkeyPatch, **costs_ns: int) -> tuple[HostWatch, dict[str, int]]:
    """A watch of sources that take so much CPU time a look, and how often each was looked at."""
    now = [0]
    monkeypatch.setattr("time.thread_time_ns", lambda: now[0])
    looks = dict.fromkeys(costs_ns, 0)

    def make(name: str, cost_ns: int) -> Source:
        def poll(_everything: bool) -> Round:
            looks[name] += 1
            now[0] += cost_ns
            return Round()

        return Source(poll)

    sources = {name: make(name, cost_ns) for name, cost_ns in costs_ns.items()}
    return playing(monkeypatch, **sources), looks


def test_what_costs_much_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, looks = costly(monkeypatch, cheap=100_000, dear=9 * MS)
    session = a_session()
    for t_ms in range(0, 100_000, 10):
        watching.tick([session], t_ms * MS)
    assert looks["cheap"] > 950
    # 1% of a CPU are 1 ms each 100 ms; the cheap one leaves 0.9 of them.
    assert 90 < looks["dear"] < 110
    assert 9 * MS * looks["dear"] + 100_000 * looks["cheap"] < 1.05 * 0.01 * 100_000 * MS
    told = watching.counters()
    assert told.limit_ppm == 10_000
    assert 8000 < told.loop_ppm < 12_000
    assert told.looks == sum(looks.values())


def test_looks_that_block_take_their_part_of_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, looks = costly(monkeypatch, dear=9 * MS)
    session = a_session()
    task = Task("gpu", 200 * MS, SimpleNamespace())
    task.cost_ns = 1 * MS  # half a per cent of a CPU
    monkeypatch.setattr(watching._slow, "_shared", (task,))
    monkeypatch.setattr(watching._slow, "want", lambda _wanted: None)
    for t_ms in range(0, 100_000, 10):
        watching._slow.spent_ns = t_ms * MS // 200
        watching.tick([session], t_ms * MS)
    assert task.every_ns == 200 * MS
    assert 45 < looks["dear"] < 60
    assert 4900 < watching.counters().thread_ppm < 5100
    task.cost_ns = 20 * MS
    for t_ms in range(100_000, 102_000, 10):
        watching.tick([session], t_ms * MS)
    assert task.every_ns == 4000 * MS, "half of all there is"


def test_while_a_request_is_slow_looks_are_more_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, looks = costly(monkeypatch, cheap=10_000)
    session = a_session()

    def made(until_ms: int, since_ms: int) -> int:
        before = looks["cheap"]
        for t_ms in range(since_ms, until_ms, 5):
            watching.tick([session], t_ms * MS)
        return looks["cheap"] - before

    assert 95 < made(10_000, 0) < 105
    session.slow = True
    assert 385 < made(20_000, 10_000) < 405
    assert watching.counters().hurried == 1
    session.slow = False
    assert 95 < made(30_000, 20_000) < 105


def test_how_sources_stand_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(lambda _: one())
    source.stands = Standing(missing=(Missing("x", "host", "no"),))
    watching, session = playing(monkeypatch, played=source), a_session()
    assert watching.sources("s") == ()
    watching.tick([session], time.monotonic_ns() - 2000 * MS)
    watching.tick([session], time.monotonic_ns())
    (told,) = watching.sources("s")
    assert (told.session, told.source, told.state, told.every_ms) == ("s", "played", "on", 100)
    assert told.missing == ("x: host: no",)
    assert told.age_ms is not None


def test_looks_that_are_not_made_are_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, session = playing(monkeypatch), a_session()
    watching._slow._skipped["s", "gpu"] = 7
    watching.tick([session], 0)
    ((hop, what, count),) = session.notes.lost
    assert (hop, count) == ("daemon.host", 7)
    assert "looks at gpu" in what
    assert watching.counters().skipped == 7


def test_a_look_that_hangs_is_no_source_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, session = playing(monkeypatch), a_session()
    hangs, waits = (Task(name, 200 * MS, SimpleNamespace()) for name in ("gpu", "numa"))
    monkeypatch.setattr(watching._slow, "_shared", (hangs, waits))
    monkeypatch.setattr(watching._slow, "want", lambda _wanted: None)
    hangs.began_ns = 1
    for t_ms in range(0, 20_000, 500):
        watching.tick([session], t_ms * MS)
    ((state, reason),) = session.notes.of("host.gpu")
    assert (state, "has not come back" in reason) == (DEGRADED, True)
    ((state, reason),) = session.notes.of("host.numa")
    assert (state, "waits for the one at gpu" in reason) == (DEGRADED, True)


def test_an_engine_is_not_asked_where_that_is_switched_off(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20, engine_metrics=False).start()
    peer = yard.peer(daemon)
    peer.join()
    daemon.client.attach(peer.pid)
    wait_for(lambda: daemon.client.status().sources, "it is told how sources stand")
    (engine,) = (one for one in daemon.client.status().sources if one.source == "engine")
    assert (engine.state, engine.every_ms) == ("off", 0)
    assert "--no-engine-metrics" in engine.reason


def test_the_status_tells_of_sources_and_their_cost(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=20).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session

    def sources() -> dict[str, Any]:
        return {one.source: one for one in daemon.client.status().sources}

    wait_for(lambda: sources() and all(s.state != "unknown" for s in sources().values()), "all")
    found = sources()
    assert found.keys() == {
        "cgroups", "devices", "engine", "gpu", "memory", "numa", "pressure", "processes",
        "threads", "triggers",
    }  # fmt: skip
    assert {one.session for one in found.values()} == {session}
    assert found["threads"].state == "on"
    assert found["threads"].every_ms >= 20
    assert found["engine"].reason
    wait_for(lambda: daemon.client.status().polling.loop_ppm > 0, "the cost is measured")
    assert daemon.client.status().polling.limit_ppm == 10_000


def test_a_stall_that_the_kernel_tells_of_has_all_looked_at_more_often_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stall = Change(350 * MS, 300 * MS, "host", "io pressure", "", "25 ms and more of 0.5 s")
    now_ms = 0
    looks: list[int] = []

    def ask(_everything: bool) -> Round:
        return Round(changes=(stall,), urgent=True) if now_ms == 350 else Round()

    def look(_everything: bool) -> Round:
        looks.append(now_ms)
        return one(now_ms)

    monkeypatch.setattr(watch, "_WATCHING_NS", 25 * MS)
    watching = playing(monkeypatch, triggers=Source(ask), played=Source(look))
    session = a_session()
    for now_ms in range(0, 6000, 25):
        watching.tick([session], now_ms * MS)
        assert watching.hurried == (350 <= now_ms < 2350)
    assert looks[:5] == [0, 100, 200, 300, 350], "at once"
    within = [b - a for a, b in pairwise(looks) if a >= 350 and b < 2350]
    assert set(within) == {25}
    after = [b - a for a, b in pairwise(looks) if a >= 2400]
    assert set(after) == {100}, "and then as before"
    (row,) = session.notes.named("change")
    assert row[:2] == (350 * MS, 300 * MS), "with the time it speaks for"


def test_a_request_that_is_slow_has_its_host_looked_at_more_often(yard: Yard) -> None:
    daemon = yard.daemon(poll_ms=200, poll_share_ppm=1_000_000).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")

    def pace() -> set[int]:
        sources = daemon.client.status().sources
        return {one.every_ms for one in sources if one.source in ("threads", "memory", "cgroups")}

    wait_for(lambda: pace() == {200}, "as configured")
    peer.do("request", "r", ["ADMITTED"])
    wait_for(lambda: pace() == {50}, "it takes longer than seconds")
    assert daemon.client.status().polling.hurried == 1

    def shortest_ns() -> int:
        rows = Capture.from_batches(daemon.client.open_session(session)).table("counter")
        return int((rows["t_ns"] - rows["since_ns"])[rows["since_ns"] > 0].min())

    wait_for(lambda: shortest_ns() < 100 * MS, "numbers speak for shorter times")
    peer.do("request", "r", ["FINISHED"])
    wait_for(lambda: pace() == {200}, "as before")
