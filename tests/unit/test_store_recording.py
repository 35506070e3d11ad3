# SPDX-License-Identifier: Apache-2.0
"""Recordings as files: whole, cut off anywhere, damaged, or no recordings at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.columns import frames_of_strings, frames_outside
from gpucorrelate.daemon.recording import open_recording, scan_segment
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.probes.wire.errors import RecordingError
from gpucorrelate.probes.wire.frame import MAGIC, Batch, Damage, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME
from tests.unit.daemon_kit import Recorded, recorded_at

if TYPE_CHECKING:
    from pathlib import Path


def frames(count: int) -> list[bytes]:
    writer = StreamWriter(3)
    kind = BY_NAME["step_end"]
    made: list[bytes] = []
    for step in range(1, count + 1):
        columns = columns_of(kind, [(step, 1, 1, 0, f"error {step}")], writer.strings)
        made += writer.frames(kind, 1, columns)
    return made


def test_a_recording_cut_off_anywhere_in_its_last_frame_is_read_up_to_it(tmp_path: Path) -> None:
    made = frames(4)
    whole, last = b"".join(made[:-1]), made[-1]
    path = tmp_path / "cut.gpcf"
    for size in range(len(last) + 1):
        path.write_bytes(whole + last[:size])
        found = recorded_at(path)
        expected = [1, 2, 3, 4] if size == len(last) else [1, 2, 3]
        assert found.values("step_end", "step") == expected, size
        assert found.values("step_end", "error") == [f"error {n}" for n in expected]
        if size in (0, len(last)):
            assert found.damage == []
        else:
            assert [item.size_bytes for item in found.damage] == [size]


def test_a_segment_cut_off_anywhere_is_mended_and_nothing_before_is_touched(
    tmp_path: Path,
) -> None:
    made = frames(4)
    whole, last = b"".join(made[:-1]), made[-1]
    for size in range(len(last) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = folder / "000001.gpcf"
        path.write_bytes(whole + last[:size])
        taken: list[Batch] = []
        fd = open_directory(folder)
        cut = scan_segment(fd, path.name, taken.append)
        os.close(fd)
        good = size == len(last)
        assert cut == (0 if good else size)
        assert path.read_bytes() == whole + (last if good else b"")
        assert [batch.seq for batch in taken] == [1, 2, 3, 4][: 4 if good else 3]
        aside = folder / "000001.gpcf.cut"
        assert aside.exists() == bool(cut)
        if cut:
            assert aside.read_bytes() == last[:size]


def test_damage_inside_a_segment_stays_where_it_is(tmp_path: Path) -> None:
    made = frames(4)
    made[1] = made[1][:-1] + bytes([made[1][-1] ^ 1])
    path = tmp_path / "000001.gpcf"
    path.write_bytes(b"".join(made) + b"GPC")
    taken: list[Batch] = []
    fd = open_directory(tmp_path)
    assert scan_segment(fd, path.name, taken.append) == 3
    os.close(fd)
    assert path.read_bytes() == b"".join(made)
    assert [batch.seq for batch in taken] == [1, 3, 4]


def test_damage_in_the_middle_is_one_note_and_costs_one_frame(tmp_path: Path) -> None:
    made = frames(5)
    made[2] = b"\0" * 7 + MAGIC + b"\xff" * (len(made[2]) - 11)
    path = tmp_path / "damaged.gpcf"
    path.write_bytes(b"".join(made))
    found = recorded_at(path)
    assert found.values("step_end", "step") == [1, 2, 4, 5]
    assert [item.size_bytes for item in found.damage] == [len(made[2])]
    assert found.missing == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"hello, world\n" * 100, "not a gpucorrelate recording"),
        (MAGIC * 1000, "not a gpucorrelate recording"),
        (frames(1)[0][:-1], "not a gpucorrelate recording"),
    ],
)
def test_what_is_no_recording_is_refused_before_anything_is_read(
    tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=text) as caught:
        open_recording(path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 7


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        open_recording(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="no recording in this directory"):
        open_recording(tmp_path)


def test_a_directory_of_segments_is_a_recording(tmp_path: Path) -> None:
    made = frames(4)
    (tmp_path / "000002.gpcf").write_bytes(b"".join(made[2:]))
    (tmp_path / "000001.gpcf").write_bytes(b"".join(made[:2]))
    (tmp_path / "session.json").write_text("{}")
    assert recorded_at(tmp_path).values("step_end", "step") == [1, 2, 3, 4]


def restated() -> list[bytes]:
    strings = {1: "MainThread", 2: "core.main"}
    kind = BY_NAME["thread"]
    return [*frames_outside(kind, [(7, "MainThread", "core.main")], 3),
            *frames_of_strings(strings, 3)]  # fmt: skip


def test_what_a_head_restates_is_told_once_but_its_strings_always(tmp_path: Path) -> None:
    made = frames(4)
    path = tmp_path / "two.gpcf"
    path.write_bytes(b"".join([*made[:2], *restated(), *made[2:]]))
    found = recorded_at(path)
    assert found.rows("thread") == []
    assert found.readers[3].strings[2] == "core.main"
    path.write_bytes(b"".join([*restated(), *made]))
    assert recorded_at(path).rows("thread") == [(7, "MainThread", "core.main")]


def test_after_damage_a_head_is_believed(tmp_path: Path) -> None:
    made = frames(4)
    path = tmp_path / "damaged.gpcf"
    path.write_bytes(b"".join([made[0], b"\0" * 50, *restated(), *made[2:]]))
    found = recorded_at(path)
    assert found.rows("thread") == [(7, "MainThread", "core.main")]
    assert [type(item) for item in found.damage] == [Damage]


def test_what_is_restated_after_damage_is_not_restated_for_ever(tmp_path: Path) -> None:
    made = frames(6)
    path = tmp_path / "damaged.gpcf"
    parts = [made[0], b"\0" * 50, made[1], *restated(), made[2], *restated(), *made[3:]]
    path.write_bytes(b"".join(parts))
    assert len(recorded_at(path).rows("thread")) == 1


def test_reading_is_lazy(tmp_path: Path) -> None:
    """A report may stop early; nobody reads gigabytes for it."""
    path = tmp_path / "one.gpcf"
    path.write_bytes(b"".join(frames(50)))
    first = next(iter(open_recording(path)))
    assert isinstance(first, Batch)
    assert Recorded([first]).values("step_end", "step") == [1]
