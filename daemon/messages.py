# SPDX-License-Identifier: Apache-2.0
"""Messages on both sockets: a little-endian u32 length, then a msgpack map of that length."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgpack

from gpucorrelate.probes.wire.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = struct.Struct("<I")
MAX_REQUEST_BYTES = 64 << 10
MAX_REPLY_BYTES = 4 << 20


class MessageError(DaemonError):
    """Bytes on a control or agent socket that are no message."""


def pack(message: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> bytes:
    """The message's bytes.

    Raises:
        MessageError: it is longer than the other side would take.
    """
    body: bytes = msgpack.packb(message, use_bin_type=True)
    if len(body) > limit:
        raise MessageError(f"message of {len(body)} bytes; the limit is {limit}")
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """The map in a message's body.

    Raises:
        MessageError: it is no msgpack map with text keys.
    """
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True, max_ext_len=0)
    except Exception as exc:
        raise MessageError(f"not msgpack: {type(exc).__name__}") from exc
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise MessageError("not a map with text keys")
    return message


class MessageReader:
    """Cuts a byte stream into messages; holds at most one message and what ``feed`` brings."""

    def __init__(self, limit: int = MAX_REQUEST_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes held back because their message is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield each complete message.

        Raises:
            MessageError: a message is too long or no msgpack map; the stream is unusable.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self._limit:
                raise MessageError(f"message of {size} bytes; the limit is {self._limit}")
            if len(self._buffer) < LENGTH.size + size:
                return
            body = bytes(self._buffer[LENGTH.size : LENGTH.size + size])
            del self._buffer[: LENGTH.size + size]
            yield unpack(body)
