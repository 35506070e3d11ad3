# SPDX-License-Identifier: Apache-2.0
"""What the daemon says to an agent: start and stop, as length-prefixed msgpack maps."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from gpucorrelate.probes.wire.errors import FrameError
from gpucorrelate.probes.wire.gpu import NO_GPU, GpuPlan, from_wire, to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A longer message is damage: a start or stop needs a few dozen bytes.
MAX_MESSAGE_BYTES = 64 * 1024
MAX_SESSION_CHARS = 256

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Start:
    """Begin to report.

    Attributes:
        session: Session id the daemon gave; for the agent's own notes only.
        gpu: What is to be recorded of the GPU's work.
    """

    session: str
    gpu: GpuPlan = NO_GPU


@dataclass(frozen=True)
class Stop:
    """Go dormant."""


def encode(message: Start | Stop) -> bytes:
    """The bytes of a message, as the daemon sends them."""
    if isinstance(message, Start):
        body: dict[str, object] = {
            "op": "start",
            "session": message.session,
            "gpu": to_wire(message.gpu),
        }
    else:
        body = {"op": "stop"}
    payload: bytes = msgpack.packb(body, use_bin_type=True)
    return _LENGTH.pack(len(payload)) + payload


class ControlDecoder:
    """Cuts the daemon's byte stream into messages; memory is bounded by one message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Start | Stop]:
        """Yield each complete message; ones with an unknown ``op`` are passed over.

        Raises:
            FrameError: the stream is not what the protocol says; the connection is no use.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_MESSAGE_BYTES:
                raise FrameError(f"control message of {length} bytes")
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            payload = bytes(buffer[_LENGTH.size : end])
            del buffer[:end]
            message = _parse(payload)
            if message is not None:
                yield message


def _parse(payload: bytes) -> Start | Stop | None:
    try:
        body = msgpack.unpackb(payload, raw=False, max_map_len=32, max_array_len=32)
    except Exception as exc:  # msgpack raises many kinds; all mean the same here
        raise FrameError(f"control message is not msgpack: {type(exc).__name__}") from exc
    if not isinstance(body, dict):
        raise FrameError("control message is not a map")
    op = body.get("op")
    if op == "start":
        session = body.get("session")
        name = session[:MAX_SESSION_CHARS] if isinstance(session, str) else ""
        return Start(name, _plan(body.get("gpu")))
    return Stop() if op == "stop" else None


def _plan(told: object) -> GpuPlan:
    """What is said of the GPU; nothing where a daemon says nothing, or what is not understood."""
    try:
        return from_wire(told)
    except ValueError:
        return NO_GPU
