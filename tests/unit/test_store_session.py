# SPDX-License-Identifier: Apache-2.0
"""A session's recording whatever its agents claim, and taken up again at any moment."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.saved import SavedSession
from gpucorrelate.daemon.session import Session, load_session
from gpucorrelate.daemon.values import to_map
from gpucorrelate.probes.wire.frame import (
    MAX_ROWS,
    Batch,
    Decoder,
    StreamWriter,
    columns_of,
    encode,
)
from gpucorrelate.probes.wire.schema import BY_NAME, KINDS
from tests.unit.daemon_kit import recorded_at

if TYPE_CHECKING:
    from gpucorrelate.daemon.streams import AgentStream

U64 = (1 << 64) - 1


def opened(
    folder: Path, saved: SavedSession | None = None, segment_bytes: int = 1 << 20
) -> Session:
    config = DaemonConfig(folder, folder, segment_bytes=segment_bytes, session_max_bytes=1 << 30)
    saved = saved or SavedSession("s", started_ns=time.monotonic_ns())
    return Session(folder / "s", config, Tally(), saved)


def agent(session: Session) -> AgentStream:
    stream = session.stream_of(100, 1, 5, "vllm", "core")
    assert stream is not None
    return stream


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Any batch that the decoder lets through."""
    kind = draw(st.sampled_from(KINDS))
    count = draw(st.integers(0, 4))
    known = draw(st.integers(1, len(kind.columns)))
    columns = tuple(
        draw(st.binary(min_size=count * c.size_bytes, max_size=count * c.size_bytes))
        for c in kind.columns[:known]
    )
    strings = draw(
        st.lists(st.tuples(st.integers(1, 50), st.text(max_size=20)), max_size=3).map(tuple)
    )
    seq = draw(st.one_of(st.integers(0, 20), st.just(U64)))
    drops = draw(st.one_of(st.integers(0, 20), st.just(U64)))
    return Batch(kind.id, count, columns, seq, drops, strings)


@settings(max_examples=150, deadline=None)
@given(sent=st.lists(batches(), max_size=8))
def test_whatever_an_agent_claims_the_recording_stays_whole(sent: list[Batch]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session = opened(folder, segment_bytes=4096)
        session.begin()
        stream = agent(session)
        decoder = Decoder()
        now = time.monotonic_ns()
        for batch in sent:
            # A claim that is no text at all is refused before it gets here.
            for item in decoder.feed(encode(batch)):
                if isinstance(item, tuple):
                    session.take_agent(stream, *item, now)
            session.tick(now)
        msgpack.packb(to_map(session.progress()))
        msgpack.packb(to_map(session.info()))
        session.close("over")
        found = recorded_at(folder / "s")
        assert not found.damage
        assert found.rows("session")[-1][4] == "over"
        for path in (folder / "s").glob("*.gpcf"):
            assert not recorded_at(path).damage


def steps(writer: StreamWriter, first: int, count: int) -> list[bytes]:
    kind = BY_NAME["step_end"]
    rows = [(step, 1, 1, 0, f"error {step % 7}") for step in range(first, first + count)]
    return list(writer.frames(kind, count, columns_of(kind, rows, writer.strings)))


def take(session: Session, stream: AgentStream, frames: list[bytes]) -> None:
    decoder = Decoder()
    for frame in frames:
        for item in decoder.feed(frame):
            assert isinstance(item, tuple)
            session.take_agent(stream, *item, time.monotonic_ns())


def test_a_session_cut_off_at_any_byte_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    """As a kill leaves it: the session file as it was, the last segment cut anywhere."""
    session = opened(tmp_path, segment_bytes=4096)
    session.begin()
    stream = agent(session)
    writer = StreamWriter()
    for first in range(1, 200, 10):
        take(session, stream, steps(writer, first, 10))
        session.tick(time.monotonic_ns())
    session.flush()
    last = sorted((tmp_path / "s").glob("*.gpcf"))[-1]
    whole = last.read_bytes()
    more = b"".join(steps(writer, 201, 3))
    tail = b"".join(frame[:4] + b"\3\0\0\0" + frame[8:] for frame in [more])
    saved_text = (tmp_path / "s" / "session.json").read_bytes()
    before = {path: path.read_bytes() for path in (tmp_path / "s").glob("*.gpcf")}
    for size in range(0, len(tail) + 1, 7):
        for path in (tmp_path / "s").iterdir():
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
        last.write_bytes(whole + tail[:size])
        (tmp_path / "s" / "session.json").write_bytes(saved_text)

        again = opened(tmp_path, load_session(tmp_path / "s"), segment_bytes=4096)
        again.read_back()
        stream = agent(again)
        expected = 200 if size < len(tail) else 203
        assert stream.number == 3
        assert stream.reader.last_seq == (20 if size < len(tail) else 21)
        assert again.counts.rows >= expected
        take(again, stream, steps(resumed(stream.reader.last_seq), 900, 2))
        again.close("over")
        found = recorded_at(tmp_path / "s")
        assert found.values("step_end", "step") == [*range(1, expected + 1), 900, 901]
        assert found.values("step_end", "error")[:10] == [f"error {n % 7}" for n in range(1, 11)]
        assert not found.damage
        assert found.missing == 0
        assert all(path.read_bytes().startswith(content) for path, content in before.items())


def resumed(seq: int) -> StreamWriter:
    writer = StreamWriter()
    writer.seq = seq
    return writer


def test_a_frame_as_large_as_frames_get_is_recorded(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.begin()
    stream = agent(session)
    kind = BY_NAME["tokens"]
    count = min(MAX_ROWS, 30_000)
    columns = tuple(bytes(count * c.size_bytes) for c in kind.columns)
    batch = Batch(kind.id, count, columns, 1)
    session.take_agent(stream, batch, encode(batch), time.monotonic_ns())
    session.close("over")
    assert len(recorded_at(tmp_path / "s").rows("tokens")) == count


def test_losses_are_recorded_when_there_is_room_again_and_not_before(tmp_path: Path) -> None:
    session = opened(tmp_path)
    session.begin()
    session.notes.loss("hop", "things", 3, 10, 20)
    session.notes.loss("hop", "things", 4, 5, 30)
    session.notes.loss("hop", "others", 1, 7, 8)
    session.close("over")
    found = recorded_at(tmp_path / "s")
    assert found.rows("loss") == [(30, 5, "hop", "things", 7), (8, 7, "hop", "others", 1)]
