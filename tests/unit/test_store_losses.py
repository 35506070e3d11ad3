# SPDX-License-Identifier: Apache-2.0
"""What was lost stays told: whatever is deleted, cannot be written, or is damaged later."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon import segment_files
from gpucorrelate.daemon.session import Session, load_session
from gpucorrelate.probes.wire.frame import StreamWriter
from tests.unit.daemon_kit import Recorded, recorded_at
from tests.unit.test_store_session import agent, opened, steps, take

if TYPE_CHECKING:
    from pathlib import Path

_SEGMENT_BYTES = 4096


def turn(session: Session, writer: StreamWriter, first: int, count: int = 20) -> None:
    """One turn of the loop in which an engine took some steps."""
    take(session, agent(session), steps(writer, first, count))
    session.tick(time.monotonic_ns())


def _as_it_is(session: Session, folder: Path) -> Recorded:
    """What a reader gets who asks now."""
    parts = [path.read_bytes() for path in sorted(session.directory.glob("*.gpcf"))]
    copy = folder / "copy.gpcf"
    copy.write_bytes(b"".join([*parts, session.tail()]))
    return recorded_at(copy)


def trimmed(session: Session) -> None:
    session.trim(5 * _SEGMENT_BYTES, 0, 1000)


def totals(found: Recorded) -> Counter[tuple[str, str]]:
    """Lost events by hop and kind."""
    names = ("hop", "what", "count")
    told: Counter[tuple[str, str]] = Counter()
    for hop, what, count in zip(*(found.values("loss", name) for name in names), strict=True):
        told[hop, what] += count
    return told


def test_what_is_left_tells_of_all_that_was_deleted_and_lost_before(tmp_path: Path) -> None:
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    lost: Counter[tuple[str, str]] = Counter()
    for first in range(1, 4001, 20):
        what = "wait" if first % 3 else "fault"
        session.notes.loss("bpf.ring", what, first, 5, 10)
        lost["bpf.ring", what] += first
        turn(session, writer, first)
        trimmed(session)
    session.close("over")
    found = recorded_at(tmp_path / "s")
    told = totals(found)
    (deleted,) = (key for key in told if key[0] == "store.retention")
    kept = found.values("step_end", "step")
    assert kept == list(range(kept[0], 4001)), "only the oldest are gone"
    assert 20 < len(kept) < 2000
    assert told[deleted] >= 4000 - len(kept), "a deleted step is a deleted row"
    assert {key: count for key, count in told.items() if key != deleted} == lost
    assert sum(told.values()) == session.lost


def test_a_loss_of_before_is_told_with_its_own_time(tmp_path: Path) -> None:
    """So that it casts no doubt on what is left."""
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    session.notes.loss("bpf.ring", "wait", 3, 5, 10)
    turn(session, writer, 1)
    session.notes.loss("bpf.ring", "wait", 4, 11, 20)
    for first in range(21, 1001, 20):
        turn(session, writer, first)
        trimmed(session)
    session.close("over")
    rows = [row for row in recorded_at(tmp_path / "s").rows("loss") if row[2] == "bpf.ring"]
    assert rows == [(20, 5, "bpf.ring", "wait", 7)]


@pytest.mark.parametrize("name", ["first", "last"])
def test_one_segment_alone_tells_what_was_lost_until_then(tmp_path: Path, name: str) -> None:
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    for first in range(1, 1001, 20):
        session.notes.loss("agent.queue", "rows", 1, 5, 10)
        turn(session, writer, first)
    session.close("over")
    one = sorted((tmp_path / "s").glob("*.gpcf"))[0 if name == "first" else -1]
    alone = totals(recorded_at(one))["agent.queue", "rows"]
    assert 0 < alone < 50 if name == "first" else alone == 50
    assert totals(recorded_at(tmp_path / "s")) == {("agent.queue", "rows"): 50}


def test_taken_up_again_it_goes_on_counting(tmp_path: Path) -> None:
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    for first in range(1, 1001, 20):
        session.notes.loss("agent.queue", "rows", 1, 5, 10)
        turn(session, writer, first)
    for _ in range(3):
        session._store.close()  # as a kill leaves it
        session = opened(tmp_path, load_session(tmp_path / "s"), segment_bytes=_SEGMENT_BYTES)
        session.read_back()
        session.notes.loss("agent.queue", "rows", 1, 5, 10)
        session.tick(time.monotonic_ns())
        trimmed(session)
    session.close("over")
    found = recorded_at(tmp_path / "s")
    assert totals(found)["agent.queue", "rows"] == 53
    assert totals(found).keys() - {("agent.queue", "rows")}, "some of it was deleted"


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Writes fail while the list has something in it; so many bytes are taken before."""
    taken: list[int] = []
    real = segment_files.write_all

    def write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
        if not taken:
            return real(fd, data)
        done, _ = real(fd, data[: taken[0]])
        return done, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(segment_files, "write_all", write_all)
    return taken


def test_a_loss_in_the_write_that_fails_is_not_lost_itself(
    tmp_path: Path, refusing: list[int]
) -> None:
    session = opened(tmp_path, segment_bytes=1 << 20)
    session.begin()
    writer = StreamWriter()
    turn(session, writer, 1)
    session.notes.loss("bpf.ring", "wait", 7, 5, 10)
    refusing.append(10)
    turn(session, writer, 21)
    live = totals(_as_it_is(session, tmp_path))
    assert live["bpf.ring", "wait"] == 7, "told to who reads it now"
    refusing.clear()
    session._store._retry_ns = 0
    turn(session, writer, 41)
    turn(session, writer, 61)
    session.notes.loss("bpf.ring", "wait", 2, 11, 20)
    turn(session, writer, 81)
    session.close("over")
    told = totals(recorded_at(tmp_path / "s"))
    assert told["bpf.ring", "wait"] == 9
    assert sum(told.values()) == session.lost


def test_a_loss_in_the_last_write_that_fails_is_told_with_the_end(
    tmp_path: Path, refusing: list[int]
) -> None:
    session = opened(tmp_path, segment_bytes=1 << 20)
    session.begin()
    writer = StreamWriter()
    session.notes.loss("bpf.ring", "wait", 7, 5, 10)
    refusing.append(10)
    turn(session, writer, 21)
    session.notes.loss("bpf.ring", "wait", 1, 11, 12)
    session.close("over")
    assert not session.settled
    assert totals(_as_it_is(session, tmp_path))["bpf.ring", "wait"] == 8
    refusing.clear()
    session.settle(time.monotonic_ns() + 1_000_000_000)
    assert session.settled
    assert totals(recorded_at(tmp_path / "s"))["bpf.ring", "wait"] == 8  # type: ignore[unreachable]


def test_a_loss_whose_row_is_damaged_is_told_by_the_next_segment(tmp_path: Path) -> None:
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    turn(session, writer, 1)
    session.notes.loss("bpf.ring", "wait", 7, 5, 10)
    place = sorted((tmp_path / "s").glob("*.gpcf"))[-1]
    at = place.stat().st_size
    session.tick(time.monotonic_ns())
    data = bytearray(place.read_bytes())
    assert len(data) > at
    for first in range(21, 1001, 20):
        turn(session, writer, first)
    session.close("over")
    data = bytearray(place.read_bytes())
    data[at + 8] ^= 0xFF
    place.write_bytes(bytes(data))
    found = recorded_at(tmp_path / "s")
    assert found.damage
    assert totals(found) == {("bpf.ring", "wait"): 7}


def test_losses_of_more_kinds_than_anybody_can_read_are_summed_in_heads(tmp_path: Path) -> None:
    session = opened(tmp_path, segment_bytes=_SEGMENT_BYTES)
    session.begin()
    writer = StreamWriter()
    for number in range(3000):
        session.notes.loss("agent.queue", f"rows of core/{number}", 2, 5, 10)
        if number % 100 == 0:
            turn(session, writer, number + 1, 1)
            trimmed(session)
    for first in range(5000, 7000, 20):
        turn(session, writer, first)
        trimmed(session)
    session.close("over")
    found = recorded_at(tmp_path / "s")
    assert found.lost("agent.queue") == 6000
    assert len(totals(found)) < 1200
