# SPDX-License-Identifier: Apache-2.0
"""What peers send: frames, batches, control messages."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import struct
import tempfile
import time
import zlib
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from gpucorrelate.daemon import messages, values
from gpucorrelate.daemon.columns import frames_of_strings
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.control import Caller, Control, Reply
from gpucorrelate.daemon.counting import Counts
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.loop import Loop
from gpucorrelate.daemon.saved import DETACHED, SavedSession, save
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.daemon.sessions import Sessions
from gpucorrelate.daemon.sockets import Peer
from gpucorrelate.daemon.streams import AgentStream
from gpucorrelate.daemon.tracing import Tracing
from gpucorrelate.probes.agents import control as agent_control
from gpucorrelate.probes.wire.errors import FrameError
from gpucorrelate.probes.wire.frame import (
    HEADER,
    MAGIC,
    MAX_STRINGS_PER_STREAM,
    Batch,
    Damage,
    Decoder,
    StreamWriter,
    columns_of,
    encode,
)
from gpucorrelate.probes.wire.gpu import GpuMode, GpuPlan, to_wire
from gpucorrelate.probes.wire.schema import KINDS
from tests.fuzz.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct("<H")
_OTHERS_UID = 12_345


def _batches() -> Iterator[bytes]:
    """One frame of every kind, numbered on."""
    writer = StreamWriter()
    for kind in KINDS:
        row = [f"text {c.name}" if c.ctype == "str" else 3 for c in kind.columns]
        yield from writer.frames(kind, 2, columns_of(kind, [row, row], writer.strings), drops=1)


# Frames as they come: any bytes, cut anywhere.


def frames(data: bytes) -> None:
    """However bytes come they give the same batches, and every byte is accounted for."""
    whole, sizes = _decode([data])
    step = 1 + (data[0] if data else 0) % 64
    parts, again = _decode([data[at : at + step] for at in range(0, len(data), step)])
    assert whole == parts, "cutting changes what is read"
    assert sizes == again == len(data), "bytes are not accounted for"
    for batch, frame in whole:
        assert encode(batch)[: len(MAGIC)] == MAGIC
        assert len(frame) <= len(data)


def _decode(chunks: list[bytes]) -> tuple[list[tuple[Batch, bytes]], int]:
    decoder = Decoder()
    found, size = [], 0
    for chunk in chunks:
        for item in decoder.feed(chunk):
            if isinstance(item, Damage):
                assert item.size_bytes > 0
                size += item.size_bytes
            else:
                found.append(item)
                size += len(item[1])
    pending = decoder.pending_bytes
    left = list(decoder.finish())
    assert decoder.pending_bytes == 0
    sizes = (item.size_bytes if isinstance(item, Damage) else len(item[1]) for item in left)
    assert sum(sizes) == pending, "what is left is told to the last byte"
    return found + [item for item in left if not isinstance(item, Damage)], size + pending


def frame_seeds() -> Iterator[bytes]:
    """Single frames and a run of them."""
    made = list(_batches())
    yield from made
    yield b"".join(made[:4])
    yield b"noise" + made[0] + MAGIC + made[1][:-3]


# Payloads under a right checksum, into what the daemon keeps of an agent.


def agent(data: bytes) -> None:
    """Whatever an agent claims, its stream stays bounded and its numbers can be told."""
    stream, counts = AgentStream(3, 1, 1), Counts()
    decoder = Decoder()
    for now, payload in enumerate(_payloads(data), 1):
        frame = HEADER.pack(MAGIC, 0, len(payload), zlib.crc32(payload)) + payload
        for item in decoder.feed(frame):
            if isinstance(item, Damage):
                continue
            taken = stream.take(*item, now)
            if taken.batch is not None:
                counts.take(taken.batch, now)
                assert taken.frame, "what is taken is recorded"
            assert min(taken.missing, taken.dropped) >= 0
    assert decoder.pending_bytes == 0
    assert len(stream.reader.strings) <= 2 * MAX_STRINGS_PER_STREAM
    measured = stream.string_bytes
    stream.measure()
    assert measured == stream.string_bytes, "the size that is kept is the size that is"
    head = Decoder().feed(b"".join(stream.head()))
    assert not [item for item in head if isinstance(item, Damage)]
    again = Decoder().feed(b"".join(frames_of_strings(stream.reader.strings, 3)))
    assert not [item for item in again if isinstance(item, Damage)]
    counts.resync()
    told = (counts.requests_in_flight, counts.steps_in_flight, counts.silent(1), *counts.save())
    msgpack.packb([min(value, 1 << 63) for value in told])


def _payloads(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield data[at : at + size]
        at += size


def agent_seeds() -> Iterator[bytes]:
    """Payloads one by one, a run of all, and the same numbers twice."""
    made = [frame[HEADER.size :] for frame in _batches()]
    cut = [_LENGTH.pack(len(payload)) + payload for payload in made]
    yield from cut
    yield b"".join(cut)
    yield from (one + two + one for one, two in itertools.pairwise(cut))


# Messages.


@cache
def _control() -> Control:
    folder = Path(tempfile.mkdtemp(prefix="gpcf"))
    config = DaemonConfig(folder / "r", folder / "s", ebpf=False)
    place = folder / "s" / "sessions" / "20200101T000000-1"
    place.mkdir(parents=True)
    fd = open_directory(place)
    save(fd, SavedSession(place.name, state=DETACHED, uid=_OTHERS_UID, ended_unix_s=time.time()))
    (place / "000001.gpcf").write_bytes(next(_batches()))
    tally = Tally()
    sessions = Sessions(config, Loop(), tally, Tracing(config, tally))
    sessions.load()
    made = Control(config, Loop(), sessions, lambda _uid: values.DaemonStatus("0"))
    shutil.rmtree(folder / "r", ignore_errors=True)
    return made


def control(data: bytes) -> None:
    """Every message is answered or refused, on both sides of both sockets."""
    reader = messages.MessageReader()
    caller = Caller(None, Peer(1, _OTHERS_UID, _OTHERS_UID))  # type: ignore[arg-type]
    made = _control()
    try:
        for message in reader.feed(data):
            answer = made._guard(partial(made._dispatch, caller, message))
            assert isinstance(answer, Reply), "who may attach nothing waits for nothing"
            for fd in answer.fds:
                open(fd, "rb").close()  # noqa: PTH123 - a descriptor
            messages.pack(answer.body)
            assert answer.body["ok"] is True or answer.body["error"]
    except messages.MessageError:
        pass
    with contextlib.suppress(FrameError):
        list(agent_control.ControlDecoder().feed(data))
    _values(data)


def _values(data: bytes) -> None:
    try:
        found: Any = msgpack.unpackb(data[messages.LENGTH.size :])
    except Exception:  # noqa: BLE001 - whatever it raises, it is no message
        return
    for cls in (values.DaemonStatus, values.AttachAnswer, values.Progress, SavedSession):
        try:
            values.to_map(values.from_map(cls, found))
        except values.ValueFormatError:
            continue


def control_seeds() -> Iterator[bytes]:
    """Every operation, and what the daemon answers."""
    for message in (
        {"op": "status"},
        {"op": "sessions"},
        {"op": "progress", "session": "2020"},
        {"op": "open", "session": ""},
        {"op": "detach", "session": "20200101T000000-1", "pid": None},
        {"op": "detach", "pid": 7},
        {"op": "attach", "pid": 2, "for_s": 1.5, "hold": True},
        {"op": "attach", "pid": 2, "hold": True, "gpu": to_wire(GpuPlan(GpuMode.NODES))},
        {"op": "start", "session": "one"},
        {"op": "start", "session": "one", "gpu": to_wire(GpuPlan())},
        {"op": "stop"},
        values.to_map(values.DaemonStatus("1", sessions=(values.SessionInfo("a"),))),
        values.to_map(values.Progress("one", warnings=("a",))),
        values.to_map(SavedSession("one")),
    ):
        yield messages.pack(message)


_KEYS = tuple(b"\xa1" + letter for letter in (b"v", b"k", b"s", b"n", b"d", b"c", b"t"))

TARGETS = (
    Target("frames", frames, frame_seeds, (MAGIC, *_KEYS)),
    Target("agent", agent, agent_seeds, _KEYS, 8192),
    Target(
        "control",
        control,
        control_seeds,
        tuple(f'"{word}"'.encode().replace(b'"', b"") for word in
              ("op", "status", "sessions", "progress", "open", "detach", "attach", "session",
               "pid", "for_s", "hold", "\xa2op", "\xc0")),
    ),
)  # fmt: skip
