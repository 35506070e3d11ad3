# SPDX-License-Identifier: Apache-2.0
"""Segments on disk: whole frames, new files, limits, and disks that are full."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import stat
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon import segment_files
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.saved import DETACHED, SavedSession, save
from gpucorrelate.daemon.segment_files import open_directory, replace_file
from gpucorrelate.daemon.session import Session, load_session
from gpucorrelate.daemon.store import SegmentStore
from gpucorrelate.probes.wire.errors import ControlError, StoreError
from gpucorrelate.probes.wire.frame import Batch, Damage, encode, read_frames
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent
from tests.unit.daemon_kit import Recorded, Yard, recorded_at, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.daemon_kit import DaemonProcess

KIND = BY_NAME["meta"]
EMPTY = (b"",) * len(KIND.columns)
HEAD = encode(Batch(KIND.id, 0, EMPTY, strings=((1, "head"),), stream=1))


def frame(seq: int, size: int = 100) -> bytes:
    return encode(Batch(KIND.id, 0, EMPTY, seq, strings=((2, "x" * size),), stream=3))


def made(folder: Path, segment_bytes: int = 1 << 20) -> SegmentStore:
    return SegmentStore(folder / "session", segment_bytes, lambda: [HEAD], Tally())


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond this, in the middle of a write if need be."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_every_segment_begins_with_the_head(tmp_path: Path) -> None:
    one = made(tmp_path, segment_bytes=300)
    one.begin()
    for seq in range(1, 11):
        one.append(frame(seq), 1)
        one.flush()
    one.close()
    files = sorted((tmp_path / "session").iterdir())
    assert len(files) > 2
    assert all(path.read_bytes().startswith(HEAD) for path in files)
    assert [path.name for path in files] == [segment.name for segment in one.segments]
    assert [path.stat().st_size for path in files] == [s.size_bytes for s in one.segments]
    seqs = [b.seq for b in recorded_at(tmp_path / "session").batches if b.seq]
    assert seqs == list(range(1, 11))
    assert sum(segment.rows for segment in one.segments) == 10


def test_what_the_head_takes_counts_and_a_huge_one_still_leaves_room(tmp_path: Path) -> None:
    for head_frames, most in ((3, 2000), (50, 50 * len(HEAD) + 1200)):
        folder = tmp_path / str(head_frames)
        one = SegmentStore(folder, 2000, partial(list, [HEAD] * head_frames), Tally())
        one.begin()
        for seq in range(1, 41):
            one.append(frame(seq), 1)
            one.flush()
        one.close()
        sizes = [segment.size_bytes for segment in one.segments]
        assert max(sizes) <= most + len(frame(1)), sizes
        assert len(sizes) < 20


def test_files_belong_to_root_or_whoever_runs_the_daemon_alone(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.begin()
    assert stat.S_IMODE((tmp_path / "session").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "session" / "000001.gpcf").stat().st_mode) == 0o640
    one.close()


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "session").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot open"):
        made(tmp_path)
    (tmp_path / "session").unlink()

    one = made(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "session" / "000001.gpcf").symlink_to(victim)
    with pytest.raises(StoreError, match="cannot write"):
        one.begin()
    assert victim.read_text() == "mine"
    one.close()


def test_a_write_that_breaks_off_is_cut_back_to_the_last_whole_frame(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.begin()
    one.append(frame(1), 10)
    one.flush()
    before = one.segments[-1].size_bytes
    with largest_file(before + len(frame(2)) + 20):
        for seq in (2, 3, 4):
            one.append(frame(seq), 10)
        one.flush()
        assert one.failing
        assert one.losses() == [], "nothing can be recorded now, so nobody is told yet"
    path = tmp_path / "session" / "000001.gpcf"
    assert path.stat().st_size == before + len(frame(2))
    assert not recorded_at(path).damage

    one.append(frame(5), 10)
    one.flush()
    assert one.failing, "it is not tried again at once"
    deadline = time.monotonic() + 10
    while one.failing and time.monotonic() < deadline:
        time.sleep(0.02)
        one.flush()
    one.append(frame(6), 10)
    one.flush()
    losses = one.losses()
    assert [(loss.frames, loss.rows) for loss in losses] == [(3, 30)]
    assert 0 < losses[0].since_ns < losses[0].t_ns
    assert "large" in losses[0].reason
    one.close()
    found = recorded_at(tmp_path / "session")
    assert [b.seq for b in found.batches if b.seq] == [1, 2, 6]
    assert len(one.segments) == 2, "it goes on in a new segment, with everything restated"
    assert not found.damage


def test_a_head_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    one = made(tmp_path)
    with largest_file(len(HEAD) // 2), pytest.raises(StoreError, match="cannot write"):
        one.begin()
    assert list((tmp_path / "session").iterdir()) == []
    one.close()


def test_the_oldest_goes_first_and_the_one_being_written_stays(tmp_path: Path) -> None:
    one = made(tmp_path, segment_bytes=300)
    one.begin()
    for seq in range(1, 11):
        one.append(frame(seq), 1)
        one.flush()
    numbers = [segment.number for segment in one.segments]
    while (gone := one.delete_oldest()) is not None:
        assert gone.number == numbers.pop(0)
        assert not (tmp_path / "session" / gone.name).exists()
    assert len(numbers) == 1
    one.append(frame(11), 1)
    one.flush()
    assert recorded_at(tmp_path / "session").batches[-1].seq == 11
    one.close()


def test_numbers_go_on_behind_what_is_there(tmp_path: Path) -> None:
    first = made(tmp_path)
    first.begin()
    first.append(frame(1), 1)
    first.close()
    second = made(tmp_path)
    second.begin()
    second.append(frame(2), 1)
    second.close()
    assert [s.number for s in second.segments] == [1, 2]
    assert [b.seq for b in recorded_at(tmp_path / "session").batches if b.seq] == [1, 2]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    fd = open_directory(tmp_path)
    replace_file(fd, "state", b"old")
    with largest_file(10), pytest.raises(OSError, match=r"."):
        replace_file(fd, "state", b"n" * 100)
    assert (tmp_path / "state").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    replace_file(fd, "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"
    os.close(fd)


def test_segments_keep_their_names_apart_from_other_files(tmp_path: Path) -> None:
    for name in ("000002.gpcf", "000001.gpcf", "000001.gpcf.cut", "1.gpcf", "session.json"):
        (tmp_path / name).touch()
    fd = open_directory(tmp_path)
    assert segment_files.segment_numbers(fd) == [1, 2]
    os.close(fd)


@pytest.fixture
def small_disk() -> Iterator[Yard]:
    """A yard whose recordings are on a file system of 400 kB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("not root: no file system can be mounted")
    yard = Yard()
    (yard.folder / "s").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(yard.folder / "s")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        yard.clear()
        pytest.skip("mounting is not permitted here")
    yield yard
    for daemon in yard._daemons:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
    subprocess.run(["umount", "-l", str(yard.folder / "s")], check=True)
    yard.clear()


def test_a_full_disk_loses_nothing_that_was_recorded(small_disk: Yard) -> None:
    daemon = small_disk.daemon(segment_bytes=1 << 20).start()
    peer = small_disk.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    peer.do("steps", 1, 100)
    wait_for(lambda: daemon.client.progress(session).steps == 100, "they are taken")
    daemon.recorded(session)
    filler = fill(small_disk)
    first, lost = 101, 0
    while not lost:
        peer.do("steps", first, 100)
        first += 100
        time.sleep(0.02)
        lost = daemon.client.status().store.lost_frames
    status = daemon.client.status()
    assert "No space left" in status.store.failing
    assert any("cannot be written" in text for text in status.warnings)
    found = daemon.recorded(session)
    kept = found.values("step_begin", "step")
    assert kept[:100] == list(range(1, 101))
    assert kept == list(range(1, len(kept) + 1)), "all there is is whole, and in order"
    assert not found.damage

    filler.unlink()
    wait_for(lambda: not daemon.client.status().store.failing, "there is room again")
    peer.do("steps", first, 50)
    wait_for(lambda: daemon.recorded(session).lost("store.disk"), "the loss is recorded")
    found = daemon.recorded(session)
    steps = found.values("step_begin", "step")
    assert steps[: len(kept)] == kept
    assert steps[-50:] == list(range(first, first + 50))
    assert found.lost("store.disk") > 0
    assert found.missing > 0
    assert set(found.values("step_rows", "request")) == {"request-1"}
    assert daemon.end() == 0


def fill(yard: Yard) -> Path:
    """Leave no room; the file that takes it."""
    filler = yard.folder / "s" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
        while True:
            out.write(b"x" * 4096)
    return filler


def engine_on_a_full_disk(yard: Yard) -> tuple[DaemonProcess, str, Path]:
    """A daemon that has lost rows of a session; the file that takes the room."""
    daemon = yard.daemon(segment_bytes=1 << 20).start()
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    peer.do("hear")
    filler = fill(yard)
    first = 1
    while daemon.client.status().store.lost_rows < 100:
        peer.do("steps", first, 100)
        first += 100
        time.sleep(0.02)
    return daemon, session, filler


def test_losses_are_told_while_the_disk_is_still_full(small_disk: Yard) -> None:
    daemon, session, _ = engine_on_a_full_disk(small_disk)
    status = daemon.client.status()
    assert status.store.failing
    assert status.sessions[0].lost >= 100
    found = daemon.recorded(session)
    assert found.lost("store.disk") >= 100
    assert "No space" in found.values("loss", "what")[-1]
    daemon.kill()


def test_a_detach_on_a_full_disk_is_recorded_with_what_was_lost(small_disk: Yard) -> None:
    """Into the room that was kept for it."""
    daemon, session, _ = engine_on_a_full_disk(small_disk)
    assert daemon.client.detach(session).lost >= 100
    daemon.kill()
    found = recorded_at(daemon.session_dir(session))
    assert found.lost("store.disk") >= 100
    assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    assert found.values("session", "detail")[-1] == "detached"
    assert not found.damage
    again = small_disk.daemon().start()
    assert [s.state for s in again.client.sessions()] == ["detached"]
    assert again.client.sessions()[0].lost >= 100


def test_an_end_that_found_no_room_is_written_when_there_is_some(small_disk: Yard) -> None:
    one = Session(
        small_disk.folder / "s" / "one",
        DaemonConfig(small_disk.folder, small_disk.folder),
        Tally(),
        SavedSession("one", started_ns=time.monotonic_ns()),
    )
    one.begin()
    one._store._give_up_reserve()  # as where the file system cannot keep any
    filler = fill(small_disk)
    while one._store.writable:
        one.notes.event(SessionEvent.PROCESS_ADDED, 1, "x" * 900, 1)
        one.flush()
    one.close("detached")
    assert not one.settled
    assert "store.disk" in {row[2] for row in Recorded(read_bytes(one.tail())).rows("loss")}
    saved = load_session(small_disk.folder / "s" / "one")
    assert saved.state == DETACHED, "not to be taken up, though that could not be written"
    filler.unlink()
    one.settle(time.monotonic_ns() + 1_000_000_000)
    assert one.settled
    found = recorded_at(small_disk.folder / "s" / "one")  # type: ignore[unreachable]
    assert found.lost("store.disk") > 0
    assert found.values("session", "event")[-1] == SessionEvent.DETACHED
    assert load_session(small_disk.folder / "s" / "one").reason == "detached"


def read_bytes(data: bytes) -> Iterator[Batch | Damage]:
    return read_frames(io.BytesIO(data))


def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("000001.gpcf", "session.json"):
        os.mkfifo(tmp_path / name)
        fd = open_directory(tmp_path)
        with pytest.raises(OSError, match="not a regular file"):
            segment_files.open_regular(fd, name)
        with pytest.raises(OSError, match="not a regular file"):
            segment_files.read_file(fd, name)
        os.close(fd)


def test_pipes_among_the_recordings_do_not_keep_the_daemon_from_starting() -> None:
    yard = Yard()
    try:
        for name, what in (("one", "session.json"), ("two", "000001.gpcf")):
            place = yard.folder / "s" / "sessions" / name
            place.mkdir(parents=True)
            os.mkfifo(place / what)
            if what.endswith("gpcf"):
                fd = open_directory(place)
                save(fd, SavedSession(name))
                os.close(fd)
        daemon = yard.daemon().start()
        assert {s.state for s in daemon.client.sessions()} == {"detached"}
        with pytest.raises(ControlError, match="not a regular file"):
            daemon.recorded("two")
    finally:
        yard.clear()


def test_a_full_disk_refuses_a_new_session_in_one_line(small_disk: Yard) -> None:
    daemon = small_disk.daemon().start()
    filler = fill(small_disk)
    child = subprocess.Popen(["/bin/sleep", "60"])

    try:
        with pytest.raises(ControlError, match=r"cannot write to .*No space left"):
            daemon.client.attach(child.pid)
        assert daemon.client.sessions() == ()
        filler.unlink()
        assert daemon.client.attach(child.pid).session.state == "attached"
    finally:
        child.kill()
        child.wait()
