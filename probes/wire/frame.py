# SPDX-License-Identifier: Apache-2.0
"""Batches of events to bytes and back: one framing for the socket and for the disk.

A frame::

    0        4        8        12       16            16 + length
    +--------+--------+--------+--------+----- ... ---+
    | "GPCF" | stream | length | crc32  | msgpack map |
    +--------+--------+--------+--------+----- ... ---+

All integers little-endian. ``stream`` is 0 on the socket; the daemon writes the number it
gave the producer, so the payload's bytes (which the checksum covers) are the same in both
places. The map: ``v`` schema version, ``k`` kind id, ``s`` sequence number of the batch in
its stream, ``n`` rows, ``d`` rows this producer has dropped so far, ``c`` one bin per column
(little-endian fixed-width array), ``t`` strings new to the stream as ``[[id, text], ...]``.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import msgpack

from gpucorrelate.probes.wire.errors import BatchError, FrameError
from gpucorrelate.probes.wire.schema import BY_ID, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpucorrelate.probes.wire.schema import Kind

MAGIC = b"GPCF"
HEADER = struct.Struct("<4sIII")

#: Larger frames are damage. A batch of 4,096 waits is about 260 kB.
MAX_FRAME_BYTES = 1 << 20
MAX_ROWS = 1 << 16
MAX_STRING_BYTES = 1024
MAX_STRINGS_PER_BATCH = 8192
#: Most strings a stream may have alive; ids are below twice this, so that they can be reused.
MAX_STRINGS_PER_STREAM = 1 << 17
MAX_COLUMNS = 64

#: What is said of a frame whose end is not there.
CUT_OFF = "cut off in the middle of a frame"

_U64_MAX = (1 << 64) - 1
_STRINGS_PER_FRAME = 512
_ROW_BYTES_PER_FRAME = 400_000
#: So many rows of the widest possible kind stay below it.
_ROWS_IN_ANY_FRAME = _ROW_BYTES_PER_FRAME // (8 * MAX_COLUMNS)


@dataclass(frozen=True)
class Batch:
    """Rows of one kind, as columns of raw bytes.

    Attributes:
        kind: Kind id of the schema; may be one this version does not know.
        count: Rows.
        columns: One little-endian array per column of the schema, in its order. A column the
            writer did not know is ``b""`` and reads as zeros.
        seq: Sequence number in the stream, from 1, without gaps.
        drops: Rows the producer has dropped since it started, over all kinds.
        strings: ``(id, text)`` pairs that the stream's string table gains with this batch.
        stream: Stream number from the frame header; 0 on the socket.
    """

    kind: int
    count: int
    columns: tuple[bytes, ...]
    seq: int = 0
    drops: int = 0
    strings: tuple[tuple[int, str], ...] = ()
    stream: int = 0

    @property
    def known(self) -> bool:
        """Whether this version's schema has the kind."""
        return self.kind in BY_ID


@dataclass(frozen=True)
class Damage:
    """Bytes that were skipped because they were not a frame, or not a valid one."""

    reason: str
    size_bytes: int


def encode(batch: Batch) -> bytes:
    """The frame of a batch.

    Raises:
        BatchError: the frame would exceed ``MAX_FRAME_BYTES``.
    """
    return _encoded(
        batch.kind,
        batch.count,
        batch.columns,
        batch.seq,
        batch.drops,
        batch.strings,
        batch.stream,
    )


def _encoded(
    kind: int,
    count: int,
    columns: Sequence[bytes],
    seq: int,
    drops: int,
    strings: Sequence[tuple[int, str]],
    stream: int,
) -> bytes:
    # Apart from Batch, because an agent makes frames inside the engine, where each object costs.
    body: dict[str, Any] = {
        "v": SCHEMA_VERSION,
        "k": kind,
        "s": seq,
        "n": count,
        "d": drops,
        "c": columns,
    }
    if strings:
        body["t"] = strings
    payload: bytes = msgpack.packb(body, use_bin_type=True)
    if len(payload) > MAX_FRAME_BYTES:
        raise BatchError(f"batch of {count} rows makes a frame of {len(payload)} bytes")
    return HEADER.pack(MAGIC, stream, len(payload), zlib.crc32(payload)) + payload


def readdress(frame: bytes, stream: int) -> bytes:
    """The same frame under another stream number; the checksum stays valid."""
    return MAGIC + struct.pack("<I", stream) + frame[8:]


def _uint(value: object, limit: int, what: str) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise BatchError(f"{what} is {value!r:.40}, not an integer from 0 to {limit}")
    return value


def _strings(value: object) -> tuple[tuple[int, str], ...]:
    if not isinstance(value, list) or len(value) > MAX_STRINGS_PER_BATCH:
        raise BatchError("string table is not a list, or too long")
    pairs: list[tuple[int, str]] = []
    for item in value:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], str)):
            raise BatchError("string table entry is not [id, text]")
        index = _uint(item[0], 2 * MAX_STRINGS_PER_STREAM, "string id")
        if index == 0 or len(item[1].encode("utf-8", "surrogatepass")) > MAX_STRING_BYTES:
            raise BatchError("string table entry with id 0 or an overlong text")
        pairs.append((index, item[1]))
    return tuple(pairs)


def _columns(kind_id: int, value: object, count: int) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) > MAX_COLUMNS:
        raise BatchError("columns are not a list, or too many")
    if not all(isinstance(column, bytes) for column in value):
        raise BatchError("a column is not binary")
    kind = BY_ID.get(kind_id)
    if kind is None:
        return tuple(value)
    known = value[: len(kind.columns)]
    for column, data in zip(kind.columns, known, strict=False):
        if len(data) != count * column.size_bytes:
            raise BatchError(
                f"{kind.name}.{column.name}: {len(data)} bytes for {count} rows "
                f"of {column.size_bytes}"
            )
    if len(known) == 0 and count:
        raise BatchError(f"{kind.name}: {count} rows without a column")
    return tuple(known) + (b"",) * (len(kind.columns) - len(known))


def decode_payload(payload: bytes, stream: int = 0) -> Batch:
    """The batch in a frame's payload, checked against the schema.

    Raises:
        FrameError: not msgpack, or nested or sized beyond the limits.
        BatchError: msgpack that is no batch: missing keys, wrong types, lying lengths.
    """
    try:
        body = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_bin_len=MAX_FRAME_BYTES,
            max_str_len=MAX_STRING_BYTES,
            max_array_len=MAX_STRINGS_PER_BATCH,
            max_map_len=32,
            max_ext_len=0,
        )
    except Exception as exc:  # msgpack raises many kinds; all mean the same here
        raise FrameError(f"payload is not msgpack: {type(exc).__name__}") from exc
    if not isinstance(body, dict):
        raise BatchError("payload is not a map")
    version = body.get("v")
    if type(version) is not int or version < 1:
        raise BatchError(f"schema version is {version!r:.40}")
    kind = _uint(body.get("k"), 0xFFFF, "kind")
    count = _uint(body.get("n"), MAX_ROWS, "row count")
    return Batch(
        kind=kind,
        count=count,
        columns=_columns(kind, body.get("c"), count),
        seq=_uint(body.get("s"), _U64_MAX, "sequence number"),
        drops=_uint(body.get("d"), _U64_MAX, "drop count"),
        strings=_strings(body["t"]) if "t" in body else (),
        stream=stream,
    )


class Decoder:
    """Cuts a byte stream into batches; survives anything in between.

    Damaged bytes are skipped up to the next plausible frame and reported as ``Damage``.
    Memory is bounded by one frame plus what one ``feed`` brings.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes held back because their frame is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[Batch, bytes] | Damage]:
        """Yield each complete batch with its frame's bytes, and damage as it is met."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                item, size = self._one(start)
                if item is None:
                    break
                start += size
                yield item
        finally:
            del buffer[:start]

    def finish(self) -> Iterator[tuple[Batch, bytes] | Damage]:
        """What is left when no more bytes will come.

        A damaged length may claim more than there is, so that what was waited for holds whole
        frames behind the damaged one: they are yielded, what is between them as damage.
        """
        buffer = self._buffer
        start = 0
        while start < len(buffer):
            item, size = None, 0
            if len(buffer) - start >= HEADER.size:
                item, size = self._one(start)
            if item is None:
                at = buffer.find(MAGIC, start + 1)
                size = (at if at >= 0 else len(buffer)) - start
                item = Damage(CUT_OFF, size)
            start += size
            yield item
        buffer.clear()

    def _one(self, start: int) -> tuple[tuple[Batch, bytes] | Damage | None, int]:
        buffer = self._buffer
        magic, stream, length, crc = HEADER.unpack_from(buffer, start)
        if magic != MAGIC or length > MAX_FRAME_BYTES:
            return self._skip(start, "no frame header" if magic != MAGIC else "frame too long")
        end = start + HEADER.size + length
        if len(buffer) < end:
            return None, 0
        payload = bytes(buffer[start + HEADER.size : end])
        if zlib.crc32(payload) != crc:
            return self._skip(start, "checksum differs")
        try:
            batch = decode_payload(payload, stream)
        except (FrameError, BatchError) as exc:
            return Damage(exc.message, end - start), end - start
        return (batch, bytes(buffer[start:end])), end - start

    def _skip(self, start: int, reason: str) -> tuple[Damage, int]:
        """Damage up to the next magic, or up to where one could still begin."""
        at = self._buffer.find(MAGIC, start + 1)
        end = at if at >= 0 else max(start + 1, len(self._buffer) - len(MAGIC) + 1)
        return Damage(reason, end - start), end - start


def read_frames(source: BinaryIO, chunk_bytes: int = 1 << 20) -> Iterator[Batch | Damage]:
    """Batches of a recording; what is cut off at its end is reported as ``Damage``."""
    decoder = Decoder()
    while chunk := source.read(chunk_bytes):
        for item in decoder.feed(chunk):
            yield item if isinstance(item, Damage) else item[0]
    for item in decoder.finish():
        yield item if isinstance(item, Damage) else item[0]


class StringTable:
    """Writer's side of string interning: text to id, bounded, least recently used reused.

    An id that is reused is stated again with its new text in the batch that first uses it, so
    a reader that takes the batches in order always resolves rightly.
    """

    def __init__(self, limit: int = MAX_STRINGS_PER_STREAM) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._fresh: list[tuple[int, str]] = []

    def id(self, text: str | None) -> int:
        """The id of a text; 0 for ``None`` and the empty string."""
        if not text:
            return 0
        ids = self._ids
        found = ids.get(text)
        if found is not None:
            ids.move_to_end(text)
            return found
        index = ids.popitem(last=False)[1] if len(ids) >= self._limit else len(ids) + 1
        ids[text] = index
        clean = text.encode("utf-8", "replace")[:MAX_STRING_BYTES].decode("utf-8", "ignore")
        self._fresh.append((index, clean))
        return index

    def take_fresh(self) -> tuple[tuple[int, str], ...]:
        """The strings stated since the last call, for the batch about to be sent."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    def restate(self) -> None:
        """State every living string again, for a new connection or a new segment."""
        self._fresh = [(index, text) for text, index in self._ids.items()]


@dataclass
class StreamReader:
    """Reader's side of one stream: order, repeats, gaps, drops and strings.

    Attributes:
        last_seq: Highest sequence number taken; 0 before the first.
        repeated: Batches refused because their number was already taken.
        missing: Batches that never came.
        drops: The producer's own count of dropped rows.
        strings: The stream's string table.
    """

    last_seq: int = 0
    repeated: int = 0
    missing: int = 0
    drops: int = 0
    strings: dict[int, str] = field(default_factory=dict)

    def accept(self, batch: Batch) -> tuple[bool, int, int]:
        """Take a batch in order.

        Returns:
            Whether to use it (False: repeated or late), how many batches are missing right
            before it, and how many rows the producer dropped since its last batch. A batch
            with sequence number 0 stands outside the order (written by the daemon itself).
        """
        if batch.seq == 0:
            self._learn(batch)
            return True, 0, 0
        if batch.seq <= self.last_seq:
            self.repeated += 1
            return False, 0, 0
        gap = batch.seq - self.last_seq - 1 if self.last_seq else 0
        dropped = max(0, batch.drops - self.drops)
        self.last_seq = batch.seq
        self.missing += gap
        self.drops = max(self.drops, batch.drops)
        self._learn(batch)
        return True, gap, dropped

    def _learn(self, batch: Batch) -> None:
        self.strings.update(batch.strings)
        while len(self.strings) > 2 * MAX_STRINGS_PER_STREAM:
            del self.strings[next(iter(self.strings))]


class StreamWriter:
    """Writer's side of one stream: numbers batches, states strings, keeps frames in bounds.

    Args:
        stream: Stream number for the frame headers; 0 on the socket.
    """

    def __init__(self, stream: int = 0) -> None:
        self.stream = stream
        self.strings = StringTable()
        self.seq = 0

    def frames(
        self, kind: Kind, count: int, columns: Sequence[bytes], *, drops: int = 0
    ) -> Iterator[bytes]:
        """Frames for the rows, preceded by frames that state the strings they refer to.

        Rows beyond what fits in one frame are split over several.
        """
        fresh = self.strings.take_fresh()
        while len(fresh) > _STRINGS_PER_FRAME:
            head, fresh = fresh[:_STRINGS_PER_FRAME], fresh[_STRINGS_PER_FRAME:]
            yield self._frame(kind, 0, (b"",) * len(kind.columns), head, drops)
        if count <= _ROWS_IN_ANY_FRAME:
            yield self._frame(kind, count, columns, fresh, drops)
            return
        widths = [column.size_bytes for column in kind.columns]
        step = min(MAX_ROWS, _ROW_BYTES_PER_FRAME // max(1, sum(widths)))
        for at in range(0, count, step):
            rows = min(step, count - at)
            part = tuple(
                bytes(column[at * width : (at + rows) * width])
                for column, width in zip(columns, widths, strict=True)
            )
            yield self._frame(kind, rows, part, fresh, drops)
            fresh = ()

    def _frame(
        self,
        kind: Kind,
        count: int,
        columns: Sequence[bytes],
        strings: Sequence[tuple[int, str]],
        drops: int,
    ) -> bytes:
        self.seq += 1
        return _encoded(kind.id, count, columns, self.seq, drops, strings, self.stream)


def packed(code: str, values: Iterable[int]) -> bytes:
    """Values as a little-endian array of an ``array`` type code.

    Raises:
        OverflowError: a value does not fit.
    """
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def columns_of(
    kind: Kind, rows: Sequence[Sequence[int | str | None]], strings: StringTable
) -> tuple[bytes, ...]:
    """Rows of Python values as columns; values of ``str`` columns are texts, interned here.

    Raises:
        OverflowError: a value does not fit its column.
    """
    columns: list[bytes] = []
    for column, values in zip(kind.columns, zip(*rows, strict=True), strict=True):
        texts = column.ctype == "str"
        numbers: Any = [strings.id(value) for value in values] if texts else values
        columns.append(packed(column.code, numbers))
    return tuple(columns)
