# SPDX-License-Identifier: Apache-2.0
"""A disk that answers late: nobody waits for it, nothing is lost that has room, all is told."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon import segment_files, writer
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.session import load_session
from gpucorrelate.daemon.store import SegmentStore
from gpucorrelate.probes.wire.errors import StoreError
from gpucorrelate.probes.wire.frame import StreamWriter
from tests.unit.daemon_kit import recorded_at, wait_for
from tests.unit.test_store_losses import totals, trimmed, turn
from tests.unit.test_store_segments import HEAD, frame
from tests.unit.test_store_session import agent, opened, steps, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.daemon.session import Session


class SlowDisk:
    """Holds up writes while it is told to."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.random: random.Random | None = None
        self.real = segment_files.write_all

    def hang(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def write_all(self, fd: int, data: bytes) -> tuple[int, OSError | None]:
        self._open.wait()
        if self.random is not None:
            time.sleep(self.random.choice((0, 0, 0.001, 0.003)))
        return self.real(fd, data)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """A disk for which nobody has patience."""
    made = SlowDisk()
    monkeypatch.setattr(segment_files, "write_all", made.write_all)
    monkeypatch.setattr(writer, "PATIENCE_S", 0.0)
    yield made
    made.go_on()
    wait_for(lambda: not writer.WRITER.waits_ns, "the disk has answered")


def threads() -> set[int]:
    """Threads of this process."""
    return {int(place.name) for place in Path("/proc/self/task").iterdir()}


def ended(session: Session) -> None:
    """As the daemon does turn by turn once a session is over."""
    session.close("over")

    def settled() -> bool:
        session.settle(time.monotonic_ns() + 1_000_000_000)
        session._settle_ns = 0
        return session.settled

    wait_for(settled, "its end is written")


def begun(folder: Path, segment_bytes: int) -> Session:
    session = opened(folder, segment_bytes=segment_bytes)
    session.begin()
    return session


def test_what_comes_while_a_write_hangs_is_kept_and_written_in_order(
    tmp_path: Path, slow: SlowDisk
) -> None:
    one = SegmentStore(tmp_path / "session", 1 << 20, lambda: [HEAD], Tally())
    one.begin()
    slow.hang()
    for seq in range(1, 51):
        one.append(frame(seq), 1)
        one.flush()
    assert one.busy()
    assert one.pending_bytes
    assert one.delete_oldest() is None, "nothing else is asked of it"
    slow.go_on()
    wait_for(lambda: not one.flush() and not one.busy() and not one.pending_bytes, "written")
    one.close()
    seqs = [b.seq for b in recorded_at(tmp_path / "session").batches if b.seq]
    assert seqs == list(range(1, 51))
    assert one.losses(last=True) == []


def test_a_slow_write_is_told_when_it_is_over_and_while_it_lasts(
    tmp_path: Path, slow: SlowDisk
) -> None:
    one = SegmentStore(tmp_path / "session", 1 << 20, lambda: [HEAD], Tally())
    one.begin()
    one.took_ns()
    slow.hang()
    one.append(frame(1), 1)
    one.flush()
    assert one.took_ns() > 0
    assert one.took_ns() == 0, "not at every turn"
    slow.go_on()
    wait_for(lambda: not one.busy(), "written")
    assert one.took_ns() > 0
    assert one.took_ns() == 0
    one.close()


def test_more_than_there_is_memory_for_is_lost_and_told_and_the_rest_can_be_read(
    tmp_path: Path, slow: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_HELD_BYTES", 20_000)
    session = begun(tmp_path, 1 << 20)
    texts = StreamWriter()
    turn(session, texts, 1)
    wait_for(lambda: not session.writing, "written")
    slow.hang()
    held = 0
    for first in range(21, 4001, 20):
        turn(session, texts, first)
        held = max(held, session._store.pending_bytes)
    assert held < 25_000, "a frame more at most"
    assert "the disk is too slow" in session.failing
    slow.go_on()
    wait_for(lambda: not session.writing, "it answers")
    session._store._retry_ns = 0
    turn(session, texts, 4001)
    ended(session)
    found = recorded_at(tmp_path / "s")
    kept = found.values("step_end", "step")
    told = totals(found)
    assert kept[:20] == list(range(1, 21))
    assert kept[-20:] == list(range(4001, 4021)), "and then it goes on"
    lost = sum(count for (hop, _), count in told.items() if hop == "store.disk")
    # The rows of sessions and clocks are among what was lost.
    assert lost >= 4020 - len(kept)
    assert sum(told.values()) == session.lost
    assert all(text.startswith("error ") for text in found.values("step_end", "error")), "by name"


@pytest.mark.parametrize("seed", range(6))
def test_however_late_it_answers_every_row_is_recorded_once(
    tmp_path: Path, slow: SlowDisk, seed: int
) -> None:
    slow.random = random.Random(seed)
    session = begun(tmp_path, 4096)
    texts = StreamWriter()
    for first in range(1, 2001, 20):
        session.notes.loss("bpf.ring", "wait", 1, 5, 10)
        turn(session, texts, first)
        if slow.random.random() < 0.3:
            trimmed(session)
    ended(session)
    found = recorded_at(tmp_path / "s")
    assert not found.damage
    assert found.missing == 0
    kept = found.values("step_end", "step")
    assert kept == list(range(kept[0], 2001))
    assert totals(found)["bpf.ring", "wait"] == 100
    assert sum(totals(found).values()) == session.lost


@pytest.mark.parametrize("seed", range(6))
def test_killed_while_it_answers_late_the_session_is_taken_up_where_it_was_written(
    tmp_path: Path, slow: SlowDisk, seed: int
) -> None:
    """The session's file is as of the head of a segment, whenever that got written."""
    slow.random = random.Random(seed)
    session = begun(tmp_path, 4096)
    texts = StreamWriter()
    for first in range(1, 1001, 20):
        turn(session, texts, first)
        time.sleep(0.001)
        if slow.random.random() < 0.3:
            session.save()
    wait_for(lambda: not session.writing, "what was handed over is written")
    last = max(recorded_at(tmp_path / "s").values("step_end", "step"))
    again = opened(tmp_path, load_session(tmp_path / "s"), segment_bytes=4096)
    again.read_back()
    slow.random = None
    take(again, agent(again), steps_behind(texts, last))
    ended(again)
    found = recorded_at(tmp_path / "s")
    assert not found.damage
    kept = found.values("step_end", "step")
    assert kept == sorted(set(kept)), "none twice"
    assert set(range(1, last + 1)) <= set(kept)


def steps_behind(texts: StreamWriter, last: int) -> list[bytes]:
    """What the engine sends next; what was on its way is lost with the daemon."""
    return steps(texts, last + 1001, 20)


def test_a_new_recording_on_a_disk_that_does_not_answer_is_refused_in_a_line(
    tmp_path: Path, slow: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpucorrelate.daemon import store

    monkeypatch.setattr(store, "_BEGIN_S", 0.05)
    slow.hang()
    session = opened(tmp_path)
    with pytest.raises(StoreError, match="has not answered") as raised:
        session.begin()
    assert raised.value.hint
    session.discard()
    slow.go_on()
    wait_for(lambda: not (tmp_path / "s").exists(), "nothing is left of it")


def test_the_thread_begun_before_privileges_are_given_up_is_not_kept() -> None:
    one = writer.Writer()
    first = one.start(threading.get_native_id)
    first.wait(30)
    one.rest()
    assert first.result() not in threads()
    second = one.start(threading.get_native_id)
    second.wait(30)
    assert second.result() in threads()
    one.rest()
