# SPDX-License-Identifier: Apache-2.0
"""The text of a JSON file, plain or gzip, of any size: a window on it, and where values end."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from gpucorrelate.probes.importers.ahead import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from gpucorrelate.probes.importers.rows import Problems

GZIP_MAGIC = b"\x1f\x8b"
#: White space of JSON.
WHITE = b" \t\r\n"
_BLOCK_BYTES = 192 << 10
_GUESSES = 64
_GAP_BYTES = 128
#: A longer value is neither an event nor a fact: it is passed over, and not held.
_LONGEST_BYTES = 4 << 20
_LONGEST_KEY_BYTES = 1 << 16
#: Integers with more digits are of no use here, and Python refuses the longest.
_DIGITS = 40

_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A string without escapes is one match without a group; a quote alone begins any other.
_OUTSIDE = re.compile(rb'"[^"\\]*"|([\[{])|(")|([\]},])')
_INSIDE = re.compile(rb'"[^"\\]*"|([\[{])|([\]}])|(")')
_OPENS, _CLOSES, _BEGINS = 1, 2, 3
_IN_STRING = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_AT_BYTE = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)$")
_SYNTAX = msgspec.json.Decoder(msgspec.Raw)
#: Half a letter outside the BMP: no text by itself, but JSON.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | Ahead]:
    """The file's text, unpacked where it is gzip; to be read with ``read1``."""
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        text = Ahead(raw)
        try:
            yield text
        finally:
            text.close()


class CutOffError(Exception):
    """The text ended too early."""


class MalformedError(Exception):
    """Text that is no JSON.

    Attributes:
        place: At which byte.
        reason: What is wrong there.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def plain(value: bytes, start: int) -> Any:  # noqa: ANN401 - any JSON
    """A value without a type; of its text the first byte is at ``start``.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return json.loads(
            value.decode(),
            parse_float=str.encode,
            parse_int=_integer,
            parse_constant=_no_number,
        )
    except ValueError as exc:
        raise _malformed(value, start, exc) from exc


def _integer(digits: str) -> int | bytes:
    return int(digits) if len(digits) <= _DIGITS else digits.encode()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _malformed(value: bytes, start: int, exc: ValueError) -> MalformedError:
    found = _AT_BYTE.match(_syntax_error(value))
    if found:
        return MalformedError(start + int(found[2]), found[1])
    if isinstance(exc, json.JSONDecodeError):
        return MalformedError(start + len(exc.doc[: exc.pos].encode()), exc.msg)
    return MalformedError(start, str(exc))


def _syntax_error(value: bytes) -> str:
    """What is wrong with a text, and at which byte unless it is merely not all there."""
    try:
        _SYNTAX.decode(_SURROGATE.sub(rb"\\u0020", value))
    except (msgspec.DecodeError, RecursionError) as exc:
        return str(exc)
    return ""


class Text:
    """A window on a file's text: what was not used yet, from ``buffer[at]``.

    Attributes:
        read_bytes: How much of the text was read.
        damaged: Whether reading it ended with an error, which was reported.
    """

    def __init__(
        self,
        file: BufferedReader | Ahead,
        problems: Problems,
        progress: Callable[[int], None],
    ) -> None:
        self.buffer = b""
        self.at = 0
        self.read_bytes = 0
        self.damaged = False
        self._file = file
        self._problems = problems
        self._progress = progress
        self._before = 0
        self._rest = b""
        if self.more() and self.buffer.startswith(codecs.BOM_UTF8):
            self.at = len(codecs.BOM_UTF8)

    @property
    def place(self) -> int:
        """The byte of the text at which ``at`` is."""
        return self._before + self.at

    def fill(self) -> None:
        """See to it that there is enough for a long run, unless the end is near."""
        if len(self.buffer) - self.at < _BLOCK_BYTES // 2:
            self.more()

    def at_end(self) -> bool:
        """Whether nothing but white space is left."""
        try:
            self.next_byte()
        except CutOffError:
            return True
        return False

    def next_byte(self) -> bytes:
        """The next byte that is no white space; ``at`` is there then."""
        while True:
            space = _SPACE.match(self.buffer, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.buffer):
                return self.buffer[self.at : self.at + 1]
            if not self.more():
                raise CutOffError

    def expect(self, any_of: bytes) -> bytes:
        """Go beyond the next byte, which must be one of those."""
        found = self.next_byte()
        if found not in any_of:
            raise MalformedError(self.place, f"not one of {' '.join(any_of.decode())}")
        self.at += 1
        return found

    def key(self) -> str:
        """Go beyond a key and its colon."""
        if self.next_byte() != b'"':
            raise MalformedError(self.place, "an object's key must be a string")
        while not (found := _KEY.match(self.buffer, self.at, self.at + _LONGEST_KEY_BYTES)):
            if len(self.buffer) - self.at >= _LONGEST_KEY_BYTES:
                raise MalformedError(self.place, "an object's key has no end")
            if not self.more():
                raise CutOffError
        key = str(plain(found[0], self.place))
        self.at = found.end()
        self.expect(b":")
        return key

    def value(self, span: int = 0) -> bytes | None:
        """Go to the comma or bracket after a value; ``None`` if its text was too long to hold.

        Args:
            span: Values that follow in the buffer are added until so many bytes are passed.
        """
        scanner = _Scanner()
        held = True
        seen = 0
        while (end := scanner.end(self.buffer, self.at + seen)) < 0:
            seen = len(self.buffer) - self.at
            if seen > _LONGEST_BYTES:
                held = False
                self.at += seen
                seen = 0
            if not self.more():
                return self._last(held=held)
        while end - self.at < span and self.buffer[end] == _COMMA:
            further = _Scanner().end(self.buffer, end + 1)
            if further < 0:
                break
            end = further
        value = self.buffer[self.at : end] if held else None
        self.at = end
        return value

    def _last(self, *, held: bool) -> bytes:
        """The value before the end of the text, which may be all there."""
        value = self.buffer[self.at :]
        error = _syntax_error(value) if held else ""
        found = _AT_BYTE.match(error)
        if found and int(found[2]) < len(value):
            raise MalformedError(self.place + int(found[2]), found[1])
        # Of a number there may have been more.
        if not held or error or value.rstrip(WHITE)[-1:] not in (b"}", b"]", b'"'):
            raise CutOffError
        self.at = len(self.buffer)
        return value

    def likely_end(self, reach: int) -> int:
        """Where, at most that far away, a last element seems to end; -1 is nowhere."""
        limit = min(self.at + reach, len(self.buffer))
        for _ in range(_GUESSES):
            limit = self.buffer.rfind(b"{", self.at, limit)
            if limit < 0:
                break
            first = max(self.at, limit - _GAP_BYTES)
            before = self.buffer[first:limit].rstrip(WHITE)
            if before.endswith(b","):
                before = before[:-1].rstrip(WHITE)
                if before.endswith(b"}"):
                    return first + len(before)
        return -1

    def more(self) -> bool:
        """Have the next block in the buffer; ``False`` at the end."""
        block = b""
        while not block and (raw := self._block()):
            block = self._clean(raw)
        self._before += self.at
        self.buffer = self.buffer[self.at :] + block
        self.at = 0
        return bool(block)

    def _block(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        if self.damaged:
            return b""
        try:
            while size < _BLOCK_BYTES and (piece := self._file.read1(_BLOCK_BYTES - size)):
                pieces.append(piece)
                size += len(piece)
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            self.damaged = True
            reason = "cut off" if isinstance(exc, EOFError) else "damaged"
            place = f"byte {self.read_bytes + size:,} of text"
            self._problems.add(f"the gzip file is {reason}", place)
        self.read_bytes += size
        self._progress(self.read_bytes)
        return b"".join(pieces)

    def _clean(self, block: bytes) -> bytes:
        """Letters that are no UTF-8 replaced and counted; one that is not whole yet kept back."""
        if block.isascii() and not self._rest:
            return block
        block = self._rest + block
        decode, not_all = codecs.utf_8_decode, False
        try:
            _, used = decode(block, "strict", not_all)
        except UnicodeDecodeError as exc:
            place = self.read_bytes - len(block) + exc.start
            self._problems.add("letters that are no UTF-8, replaced", f"byte {place:,}")
            text, used = decode(block, "replace", not_all)
            self._rest = block[used:]
            return text.encode()
        self._rest = block[used:]
        return block[:used]


class _Scanner:
    """Finds where a value ends, in pieces of text, by counting brackets outside strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def end(self, text: bytes, at: int) -> int:
        """The place of the comma or closing bracket after the value; -1 if it comes later."""
        while True:
            if self._quoted:
                at = self._after_string(text, at)
                if self._quoted:
                    return -1
            if self._depth:
                at = self._outside(text, at)
            else:
                found = _OUTSIDE.search(text, at)
                at = found.end() if found else -1
                if found and found[1]:
                    self._depth = 1
                elif found and found[2]:
                    self._quoted = True
                elif found and found[3]:
                    return found.start()
            if at < 0:
                return -1

    def _outside(self, text: bytes, at: int) -> int:
        """Where no bracket is open any more, or a string begins; -1 is neither."""
        depth = self._depth
        for found in _INSIDE.finditer(text, at):
            kind = found.lastindex
            if kind == _OPENS:
                depth += 1
            elif kind == _CLOSES:
                depth -= 1
                if depth == 0:
                    break
            elif kind == _BEGINS:
                self._quoted = True
                break
        else:
            found = None
        self._depth = depth
        return found.end() if found else -1

    def _after_string(self, text: bytes, at: int) -> int:
        at += self._escaped
        self._escaped = False
        while found := _IN_STRING.search(text, at):
            at = found.end()
            if text[found.start()] == _QUOTE:
                self._quoted = False
                return at
            self._escaped = at == len(text)
            at += 1
        return at
