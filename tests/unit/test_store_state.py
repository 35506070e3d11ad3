# SPDX-License-Identifier: Apache-2.0
"""A session's file that was damaged: its recording is kept, and the daemon starts all the same."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.saved import (
    FILE,
    SavedSession,
    SavedStream,
    SavedTarget,
    load,
    save,
)
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.daemon.store import Segment
from gpucorrelate.daemon.values import to_map
from gpucorrelate.probes.wire.errors import StoreError
from tests.fuzz.files import state
from tests.unit.daemon_kit import Yard
from tests.unit.test_store_damage import frames

if TYPE_CHECKING:
    from pathlib import Path

SAVED = SavedSession(
    "one",
    targets=(SavedTarget(1, 2),),
    streams=(SavedStream(1, 0, 0), SavedStream(2, 0, 0), SavedStream(3, 7, 7, agent_ns=-5)),
    segments=(Segment(1, 100, 5),),
    counts=(1, 2, 3),
)
WRONG = [-1, 0, 1 << 31, 1 << 32, 1 << 63, 1 << 70, "x" * 2000, "", None, True, 1.5, [], {}]


def test_whatever_a_number_in_it_is_nothing_breaks() -> None:
    """Each value replaced by each of many, alone; found by fuzzing, which made the start fail."""
    tail = b"".join(frames())
    for name in SavedSession.__dataclass_fields__:
        for value in (*WRONG, float("inf"), float("nan")):
            state(json.dumps({**to_map(SAVED), name: value}).encode() + b"\0\0" + tail)
    for group in ("targets", "streams", "segments"):
        for name in to_map(SAVED)[group][-1]:
            for value in WRONG:
                data = json.loads(json.dumps(to_map(SAVED)))
                data[group][-1][name] = value
                state(json.dumps(data).encode() + b"\0\0" + tail)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root_pid", -1),
        ("uid", 1 << 32),
        ("started_ns", 1 << 63),
        ("counts", [1, -2]),
        ("started_unix_s", float("inf")),
        ("streams", [{"number": 1 << 40, "pid": 1, "ticks": 1}]),
        ("targets", [{"pid": -4, "ticks": 1}]),
        ("segments", [{"number": -1}]),
    ],
)
def test_numbers_that_no_recording_can_hold_are_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    (tmp_path / FILE).write_text(json.dumps({**to_map(SAVED), name: value}))
    fd = open_directory(tmp_path)
    try:
        with pytest.raises(StoreError, match=r"session file: a (number|process|time)"):
            load(fd)
        save(fd, SAVED)
        assert load(fd) == SAVED
    finally:
        os.close(fd)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"session": ' + "9" * 5000 + "}", "\xff", "{"])
def test_what_is_no_session_file_does_not_keep_the_daemon_from_starting(text: str) -> None:
    yard = Yard()
    try:
        place = yard.folder / "s" / "sessions" / "one"
        place.mkdir(parents=True)
        (place / FILE).write_text(text, encoding="latin-1")
        (place / "000001.gpcf").write_bytes(b"".join(frames()))
        daemon = yard.daemon().start()
        (info,) = daemon.client.sessions()
        assert (info.session, info.state) == ("one", "detached")
        assert "session file" in info.reason
        assert [batch.seq for batch in daemon.recorded("one").batches] == [1, 2, 3, 4, 5]
    finally:
        yard.clear()
