# SPDX-License-Identifier: Apache-2.0
"""With too little room the least goes first, steps and requests never, and it is told."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.shedding import SHORT_NS, Level, Shedder, level_for
from gpucorrelate.probes.wire.frame import Batch, Decoder, StreamWriter, StringTable, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, KINDS, CapabilityState
from tests.unit.daemon_kit import Yard, recorded_at, wait_for
from tests.unit.test_store_session import agent, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
#: From first to last in being thrown away; what is in none is always recorded.
ORDER = [
    {"counter"},
    {"wait", "wait_sum", "fault", "spin", "queue_msg", "span", "cuda_api", "gpu_op", "gpu_sync"},
]


@pytest.mark.parametrize(
    ("free", "size", "level"),
    [
        (500 * GIB, 1000 * GIB, Level.NOTHING),
        (1 * GIB, 1000 * GIB, Level.NOTHING),  # a thousandth, but plenty
        (255 * MIB, 1000 * GIB, Level.CONTEXT),
        (127 * MIB, 1000 * GIB, Level.SHORT_WAITS),
        (63 * MIB, 1000 * GIB, Level.WAITS),
        (0, 1000 * GIB, Level.WAITS),
        (40 * MIB, 48 * MIB, Level.NOTHING),  # little, but nearly all there is
        (2 * MIB, 48 * MIB, Level.CONTEXT),
        (1 * MIB, 48 * MIB, Level.SHORT_WAITS),
        (MIB // 2, 48 * MIB, Level.WAITS),
        (0, 0, Level.NOTHING),  # a file system that does not say
    ],
)
def test_how_much_is_thrown_away_depends_on_what_is_free(
    free: int, size: int, level: Level
) -> None:
    assert level_for(free, size) is level


def test_each_level_throws_away_more_and_none_a_step_or_request() -> None:
    shedder = Shedder()
    dropped = []
    for level in Level:
        shedder.level = level
        dropped.append({kind.name for kind in KINDS if shedder.drops(kind.id)})
    assert dropped == [set(), ORDER[0], ORDER[0], ORDER[0] | ORDER[1]]
    kept = {kind.name for kind in KINDS} - dropped[-1]
    assert {"step_begin", "step_end", "step_update", "step_rows", "request", "tokens"} <= kept
    assert {"loss", "capability", "meta", "thread", "task", "stream", "session"} <= kept


def waits(*lengths: int) -> tuple[int, tuple[bytes, ...]]:
    kind = BY_NAME["wait"]
    rows = [[0] * len(kind.columns) for _ in lengths]
    for row, length in zip(rows, lengths, strict=True):
        row[kind.index("start_ns")], row[kind.index("end_ns")] = 1000, 1000 + length
    return len(rows), columns_of(kind, rows, StringTable())


def test_of_waits_the_short_ones_go_first() -> None:
    shedder = Shedder()
    kind = BY_NAME["wait"]
    given = waits(10, SHORT_NS - 1, SHORT_NS, 10 * SHORT_NS)
    expected = {Level.NOTHING: 4, Level.CONTEXT: 4, Level.SHORT_WAITS: 2, Level.WAITS: 0}
    for level, left in expected.items():
        shedder.level = level
        count, columns = shedder.sift(kind, *given, now_ns=7)
        assert count == left
        assert sum(shed.count for shed in shedder.take()) == 4 - left
        if left == 2:
            assert columns == waits(SHORT_NS, 10 * SHORT_NS)[1]


def test_an_agents_batch_keeps_its_number_and_strings() -> None:
    shedder = Shedder()
    writer = StreamWriter(3)
    kind = BY_NAME["span"]
    row = ["work" if column.ctype == "str" else 1 for column in kind.columns]
    (frame,) = writer.frames(kind, 1, columns_of(kind, [row], writer.strings))
    ((batch, _),) = Decoder().feed(frame)  # type: ignore[misc]
    assert shedder.of_agent(batch, frame, 1) == (frame, 1)
    shedder.level = Level.WAITS
    smaller, rows = shedder.of_agent(batch, frame, 1)
    ((found, _),) = Decoder().feed(smaller)  # type: ignore[misc]
    assert (rows, found.count) == (0, 0)
    assert (found.seq, found.strings, found.stream) == (batch.seq, batch.strings, 3)
    unknown = Batch(9999, 3, (b"abc",), 2, stream=3)
    assert shedder.of_agent(unknown, b"frame", 1) == (b"frame", 3), "who knows what it means"


def test_a_level_is_left_step_by_step_and_not_at_once(tmp_path: Path) -> None:
    shedder = Shedder()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        second = 1_000_000_000
        now = second
        for expected in (Level.CONTEXT, Level.SHORT_WAITS, Level.WAITS, Level.WAITS):
            shedder.look(now, fd, 300_000_000)
            assert shedder.level is expected
            now += second // 100
        assert "a write took 0.3 s" in shedder.text
        seen = []
        for _ in range(400):
            now += second // 10
            shedder.look(now, fd, 1_000_000)
            seen.append(shedder.level)
        assert sorted(seen, reverse=True) == seen, "never up again"
        for level in (Level.WAITS, Level.SHORT_WAITS, Level.CONTEXT):
            assert 40 <= seen.count(level) <= 60, "about five seconds each"
        assert (seen[-1], shedder.text) == (Level.NOTHING, "")
    finally:
        os.close(fd)


def test_what_was_not_recorded_is_in_the_recording_as_lost(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.begin()
    stream = agent(session)
    writer = StreamWriter()
    now = time.monotonic_ns()

    def give(name: str, rows: int) -> None:
        kind = BY_NAME[name]
        row = ["x" if column.ctype == "str" else 1 for column in kind.columns]
        columns = columns_of(kind, [row] * rows, writer.strings)
        for frame in writer.frames(kind, rows, columns):
            ((batch, _),) = Decoder().feed(frame)  # type: ignore[misc]
            session.take_agent(stream, batch, frame, now)

    counter = BY_NAME["counter"]
    some = [tuple("x" if c.ctype == "str" else 1 for c in counter.columns)] * 5
    session.take_kernel(BY_NAME["wait"], *waits(10, 10**9), now)
    session.notes.write(counter, some)
    session._shedder.level, session._shedder.reason = Level.SHORT_WAITS, "1 MiB is free"
    session.take_kernel(BY_NAME["wait"], *waits(10, 20, 10**9), now)
    session.notes.write(counter, some)
    session._shed()
    session._shedder.level = Level.WAITS
    session.take_kernel(BY_NAME["wait"], *waits(10, 10**9), now)
    give("span", 7)
    give("step_end", 3)
    give("tokens", 2)
    session._shed()
    assert any("1 MiB is free" in text for text in session.warnings())
    session._shedder.level = Level.NOTHING
    session._shed()
    session.take_kernel(BY_NAME["wait"], *waits(10), now)
    session.close("over")
    found = recorded_at(tmp_path / "s")
    assert len(found.rows("wait")) == 2 + 1 + 1
    assert len(found.rows("counter")) == 5
    assert len(found.rows("step_end")) == 3
    assert len(found.rows("tokens")) == 2
    assert found.rows("span") == []
    assert found.lost("daemon.shed") == 2 + 5 + 2 + 7
    assert found.missing == 0
    states = [row[2] for row in found.rows("capability") if row[1] == "recording"]
    assert states == [CapabilityState.DEGRADED, CapabilityState.ON]


@pytest.fixture
def small_disk() -> Iterator[Yard]:
    if os.geteuid() != 0:
        pytest.skip("not root: a file system cannot be mounted")
    yard = Yard()
    place = yard.folder / "s"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=True)
    yield yard
    yard.clear()
    subprocess.run(["umount", "-l", place], check=False)


def test_on_a_disk_that_fills_steps_are_recorded_to_the_last(small_disk: Yard) -> None:
    daemon = small_disk.daemon(segment_bytes=1 << 20).start()
    peer = small_disk.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    span = [peer.pid, "work", 1, 2, 0]
    peer.do("rows", "span", [span] * 10)
    wait_for(lambda: daemon.client.progress(session).rows >= 10, "they are taken")
    filler = small_disk.folder / "s" / "filler"
    with filler.open("wb") as out:
        left = os.statvfs(filler.parent).f_bavail * os.statvfs(filler.parent).f_frsize
        out.write(bytes(left - (900 << 10)))
    wait_for(
        lambda: any("everything but steps" in w for w in daemon.client.progress(session).warnings),
        "it says so",
    )
    first = 1
    for _ in range(10):
        peer.do("rows", "span", [span] * 100)
        peer.do("steps", first, 10)
        first += 10
    wait_for(lambda: daemon.client.progress(session).steps == 100, "they are taken")
    wait_for(lambda: daemon.recorded(session).lost("daemon.shed") == 1000, "they are told")
    found = daemon.recorded(session)
    assert found.values("step_begin", "step") == list(range(1, 101))
    assert len(found.rows("span")) == 10
    assert daemon.client.status().store.shed_rows == 1000
    assert found.missing == found.lost("store.disk") == 0
