# SPDX-License-Identifier: Apache-2.0
"""A segment cut or changed at every one of its bytes: what is whole is read, all is counted."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.recording import read_part, scan_segment
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.probes.wire.frame import (
    HEADER,
    Batch,
    Damage,
    StreamWriter,
    columns_of,
    encode,
    read_frames,
)
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from pathlib import Path


def frames() -> list[bytes]:
    """Five, of some kinds; a text in one of them looks like the beginning of a frame."""
    writer = StreamWriter(3)
    made: list[bytes] = []
    rows: list[tuple[str, list[int | str | None]]] = [
        ("step_begin", [7, 1, 1, 2, 3, 0, 0, 1, 1, 0]),
        ("step_end", [7, 1, 9, 0, "GPCF\3\0\0\0 is no frame"]),
        ("thread", [1, "MainThread", "core.main"]),
        ("meta", [1, "model", "tiny"]),
        ("step_end", [8, 1, 10, 0, ""]),
    ]
    for name, row in rows:
        kind = BY_NAME[name]
        made += writer.frames(kind, 1, columns_of(kind, [row], writer.strings))
    return made


def read(data: bytes) -> tuple[list[int], int]:
    """Numbers of the batches in it, and the bytes that were no frame."""
    items = list(read_part(io.BytesIO(data)))
    assert list(read_frames(io.BytesIO(data))) == items, "both readers agree"
    numbers = [item.seq for item in items if isinstance(item, Batch)]
    return numbers, sum(item.size_bytes for item in items if isinstance(item, Damage))


def test_cut_at_any_byte_it_is_read_up_to_the_last_whole_frame() -> None:
    made = frames()
    whole = b"".join(made)
    ends = [sum(map(len, made[: n + 1])) for n in range(len(made))]
    for size in range(len(whole) + 1):
        before = [end for end in ends if end <= size]
        numbers, damaged = read(whole[:size])
        assert numbers == list(range(1, len(before) + 1)), size
        assert damaged == size - max(before, default=0), "every byte is one or the other"


@pytest.mark.parametrize("change", [1, 0x80, 0xFF])
def test_a_byte_changed_anywhere_costs_the_frame_that_holds_it_and_no_other(change: int) -> None:
    made = frames()
    whole = b"".join(made)
    start = 0
    for number, frame in enumerate(made, 1):
        others = [n for n in range(1, len(made) + 1) if n != number]
        for at in range(len(frame)):
            spoilt = bytearray(whole)
            spoilt[start + at] ^= change
            numbers, damaged = read(bytes(spoilt))
            if 4 <= at < 8:
                # The stream's number is outside the checksum, so that the daemon can give it.
                assert (numbers, damaged) == (list(range(1, len(made) + 1)), 0)
                continue
            assert numbers == others, (number, at)
            assert damaged == len(frame)
        start += len(frame)


def mended(folder: Path, data: bytes) -> tuple[bytes, int, list[int]]:
    """What is left of a segment, the bytes cut off it, and the batches that were found."""
    path = folder / "000001.gpcf"
    path.write_bytes(data)
    fd = open_directory(folder)
    taken: list[int] = []
    try:
        cut = scan_segment(fd, path.name, lambda batch: taken.append(batch.seq))
    finally:
        os.close(fd)
    left = path.read_bytes()
    aside = path.with_name(path.name + ".cut")
    assert (aside.read_bytes() if aside.exists() else b"") == data[len(left) :]
    aside.unlink(missing_ok=True)
    assert len(data) == len(left) + cut
    return left, cut, taken


def test_a_segment_is_mended_once_for_all_whatever_was_cut_or_changed(tmp_path: Path) -> None:
    made = frames()
    whole = b"".join(made)
    spoilt = [whole[:size] for size in range(len(whole) + 1)]
    spoilt += [
        whole[:at] + bytes([byte ^ 0x40]) + whole[at + 1 :] for at, byte in enumerate(whole)
    ]
    for data in spoilt:
        left, _, taken = mended(tmp_path, data)
        assert data.startswith(left), "nothing before the end is touched"
        assert taken == read(data)[0] == read(left)[0], "every whole frame is kept"
        again, cut, _ = mended(tmp_path, left)
        assert (again, cut) == (left, 0)


def test_a_length_that_claims_more_than_there_is_hides_nothing_behind_it(tmp_path: Path) -> None:
    """Found by fuzzing: cut off behind whole frames, they were no longer read, then cut off."""
    made = frames()
    lying = bytearray(made[0])
    lying[8:12] = (60_000).to_bytes(4, "little")
    data = bytes(lying) + made[1] + made[2] + encode(Batch(1, 0, ()))[: HEADER.size + 2]
    left, cut, taken = mended(tmp_path, data)
    assert taken == [2, 3]
    assert cut == HEADER.size + 2
    assert read(left) == ([2, 3], len(lying))
