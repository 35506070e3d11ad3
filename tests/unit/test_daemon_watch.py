# SPDX-License-Identifier: Apache-2.0
"""The host around a session: read, recorded once, restated in new files, within its share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.daemon import slow, watch
from gpucorrelate.daemon.client import open_recording
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.slow import Round
from gpucorrelate.daemon.watch import HostWatch
from gpucorrelate.probes.host.reading import Metric, Missing, Reading, Sample
from gpucorrelate.probes.wire.errors import UsageError
from gpucorrelate.probes.wire.schema import CapabilityState, Nature
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

MS = 1_000_000
METRIC = Metric("m", "ns", Nature.TOTAL, "what m is")


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.clear()


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
    assert working["host.threads"] == working["host.machine"] == CapabilityState.ON


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


@pytest.mark.parametrize("bad", [{"poll_ms": 5}, {"poll_ms": 60_001}, {"poll_share_ppm": 0}])
def test_settings_that_make_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DaemonConfig(**bad)


class Notes:
    """Holds what would be recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        self.states: dict[str, tuple[CapabilityState, str]] = {}

    def write(self, kind: Any, rows: list[tuple[Any, ...]]) -> None:
        self.rows += [(kind.name, row) for row in rows]

    def capability(self, source: str, state: CapabilityState, reason: str) -> None:
        self.states[source] = state, reason

    def counters(self) -> list[tuple[Any, ...]]:
        return [row for name, row in self.rows if name == "counter"]


class _Session(SimpleNamespace):
    """What the watch asks of a session."""

    def __init__(self) -> None:
        super().__init__(id="s", segment_number=1, notes=Notes(),
                         processes=SimpleNamespace(living=lambda: [1]))  # fmt: skip


def a_session() -> Any:
    return _Session()


def playing(monkeypatch: pytest.MonkeyPatch, look: Callable[[bool], Round]) -> HostWatch:
    """A watch of one source, which is played."""

    def make() -> Any:
        def poll(pids: Collection[int], *, everything: bool) -> Round:
            assert list(pids) == [1]
            return look(everything)

        return poll, lambda: None

    monkeypatch.setattr(watch, "_SOURCES", {"played": make})
    # The real ones bring this machine's numbers, whenever they are done.
    monkeypatch.setattr(slow, "_tasks", list)
    return HostWatch(DaemonConfig(poll_ms=100))


def test_a_poller_that_fails_is_a_missing_source_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works = [True, False, True]

    def look(everything: bool) -> Round:
        assert everything is (len(works) != 2)
        if not works.pop(0):
            raise ValueError("what the kernel wrote")
        return Round(Sample((Reading(METRIC, "host", 1, 2),)))

    watching, session = playing(monkeypatch, look), a_session()
    watching.tick([session], 0)
    assert session.notes.states["host.played"] == (CapabilityState.ON, "")
    watching.tick([session], 100 * MS)
    state, reason = session.notes.states["host.played"]
    assert state is CapabilityState.DEGRADED
    assert "ValueError: what the kernel wrote" in reason
    watching.tick([session], 1000 * MS)
    assert len(works) == 1, "not at once"
    watching.tick([session], 61_000 * MS)
    assert session.notes.states["host.played"] == (CapabilityState.ON, "")
    assert [row[:2] for row in session.notes.counters()] == [(2, 0), (2, 0)]


def test_numbers_speak_since_the_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def look(everything: bool) -> Round:
        told.append(everything)
        return Round(Sample((Reading(METRIC, "host", 1, 2),), (Missing("x", "pid:1", "gone"),)))

    watching, session = playing(monkeypatch, look), a_session()
    for t_ns in (5, 5 + 100 * MS, 5 + 150 * MS, 5 + 200 * MS):
        watching.tick([session], t_ns)
    session.segment_number = 2
    watching.tick([session], 5 + 300 * MS)
    assert told == [True, False, False, True]
    assert [row[1] for row in session.notes.counters()] == [
        0, 5, 5 + 100 * MS, 5 + 200 * MS
    ]  # fmt: skip
    assert [row for name, row in session.notes.rows if name == "metric"] == [
        ("m", "ns", int(Nature.TOTAL), "what m is")
    ]
    assert session.notes.states["host.x"] == (CapabilityState.OFF, "pid:1: gone")


def test_what_costs_much_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.thread_time_ns", lambda: now[0])
    looks: dict[str, int] = {"cheap": 0, "dear": 0}

    def make(name: str, cost_ns: int) -> Any:
        def poll(_pids: Collection[int], *, everything: bool) -> Round:
            del everything
            looks[name] += 1
            now[0] += cost_ns
            return Round(Sample())

        return lambda: (poll, lambda: None)

    monkeypatch.setattr(
        watch, "_SOURCES", {"cheap": make("cheap", 100_000), "dear": make("dear", 9 * MS)}
    )
    monkeypatch.setattr(slow, "_tasks", list)
    watching, session = HostWatch(DaemonConfig(poll_ms=100)), a_session()
    for t_ms in range(0, 100_000, 10):
        watching.tick([session], t_ms * MS)
    assert looks["cheap"] > 950
    # 1% of a CPU are 1 ms each 100 ms; the cheap one leaves 0.9 of them.
    assert 90 < looks["dear"] < 110
    assert now[0] < 1.05 * 0.01 * 100_000 * MS
