# SPDX-License-Identifier: Apache-2.0
"""JSON of any size, plain or gzip: a list's elements, decoded many at once, text not held.

The decoder takes whole documents only, so the list is cut into runs of whole elements. Where
one ends is guessed (``}, {``) and proved by the decoder: text that it accepts between brackets
is whole elements, because where a value ends depends on nothing that follows. A run that it
refuses is halved, down to one element, whose end is found by counting brackets.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from gpucorrelate.probes.wire.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from gpucorrelate.probes.importers.rows import Problems

GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 96 << 10
#: In shorter stretches ends are not guessed: brackets are counted.
_COUNTED_BYTES = 4096
_GUESSES = 64
_GAP_BYTES = 128
#: A longer value is neither an event nor a fact: it is passed over, and not held.
_LONGEST_BYTES = 4 << 20
_LONGEST_KEY_BYTES = 1 << 16
#: Integers with more digits are of no use here, and Python refuses the longest.
_DIGITS = 40

_WHITE = b" \t\r\n"
_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A string without escapes is one match without a group; a quote alone begins any other.
_OUTSIDE = re.compile(rb'"[^"\\]*"|([\[{])|(")|([\]},])')
_INSIDE = re.compile(rb'"[^"\\]*"|([\[{])|([\]}])|(")')
_OPENS, _CLOSES, _BEGINS = 1, 2, 3
_IN_STRING = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING = b"[{"
_AT_BYTE = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)$")
_SYNTAX = msgspec.json.Decoder(msgspec.Raw)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The file's text, unpacked where it is gzip."""
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.open(raw) as text:
            yield text


def first_byte(path: Path) -> bytes:
    """The first byte that is no white space; empty where there is none or it is unreadable."""
    try:
        with opened(path) as text:
            return text.read(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


class JsonElements:
    """The elements of a list in a JSON file, and single values beside it.

    The list is the whole document, or what its object has under ``name``.

    Args:
        path: The file.
        name: The list's key.
        wanted: Keys whose values are kept.
        decoder: Decodes a list of elements. An element that it refuses is given as ``json``
            gives it, with numbers that are no integers, or absurdly long, as ``bytes``.
        problems: Told what could not be read.
        progress: Called with the bytes read so far.

    Attributes:
        values: The first value of each wanted key that was met so far.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        wanted: tuple[str, ...],
        decoder: msgspec.json.Decoder[Any],
        problems: Problems,
        progress: Callable[[int], None],
    ) -> None:
        self.values: dict[str, Any] = {}
        self._path = path
        self._name = name
        self._wanted = wanted
        self._decoder = decoder
        self._problems = problems
        self._progress = progress
        self._count = 0

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """Elements in order, many at a time, with the place of the first in the list.

        Those that could not be read are left out, and ``problems`` say so, as they do of a
        file that is cut off.

        Raises:
            TraceError: text that is no JSON; the message says at which byte.
        """
        with opened(self._path) as file:
            text = _Text(file, self._problems, self._progress)
            try:
                yield from self._document(text)
            except _CutOffError:
                if not text.damaged:
                    self._problems.add("the text breaks off", f"byte {text.read_bytes:,}")
            except _MalformedError as exc:
                raise TraceError(
                    f"{self._path}: malformed JSON at byte {exc.place:,}: {exc.reason}",
                    hint="export the trace again; a file that is merely cut off is read as far "
                    "as it goes",
                ) from exc

    def _document(self, text: _Text) -> Iterator[tuple[int, list[Any]]]:
        if text.expect(_OPENING) == b"[":
            yield from self._elements(text)
        elif text.next_byte() == b"}":
            text.at += 1
        else:
            yield from self._members(text)
        if not text.at_end():
            raise _MalformedError(text.place, "text after the end")

    def _members(self, text: _Text) -> Iterator[tuple[int, list[Any]]]:
        """An object's members, of which there is at least one, and its closing bracket."""
        while True:
            key = text.key()
            if key == self._name and text.next_byte() == b"[":
                text.at += 1
                yield from self._elements(text)
            else:
                self._member(text, key)
            if text.expect(b",}") == b"}":
                return

    def _member(self, text: _Text, key: str) -> None:
        text.next_byte()
        start = text.place
        value = text.value()
        if key == self._name:
            self._problems.add(f"{key} is no list", f"byte {start:,}")
        elif value is None:
            self._problems.add("values too long, passed over", f"byte {start:,}")
        else:
            try:
                found = _plain(value, start)
            except RecursionError:
                return  # whatever it is, nothing that is wanted is nested like that
            if key in self._wanted:
                self.values.setdefault(key, found)

    def _elements(self, text: _Text) -> Iterator[tuple[int, list[Any]]]:
        """The elements of a list, whose opening bracket was read, and its closing bracket."""
        if text.next_byte() == b"]":
            text.at += 1
            return
        reach = 2 * _BLOCK_BYTES
        while True:
            text.fill()
            number, start = self._count, text.place
            end = text.likely_end(reach) if reach >= _COUNTED_BYTES else -1
            if end < 0:
                found: list[Any] | None = self._counted(text, _COUNTED_BYTES)
            else:
                found = self._run(text.buffer[text.at : end])
                if found is None:
                    reach = (end - text.at) // 2
                    continue
                self._count += len(found)
                text.at = end
            if found:
                yield number, found
            if text.expect(b",]") == b"]":
                return
            reach = min(2 * max(text.place - start, _COUNTED_BYTES), 2 * _BLOCK_BYTES)

    def _run(self, text: bytes) -> list[Any] | None:
        """The elements in it; ``None`` if it is not whole ones, or one of them is refused."""
        try:
            found: list[Any] = self._decoder.decode(b"[" + text + b"]")
        except (msgspec.MsgspecError, RecursionError):
            return None
        return found

    def _counted(self, text: _Text, span: int) -> list[Any]:
        """The next element, and what follows within so many bytes; empty if it was unreadable."""
        text.next_byte()
        start = text.place
        value = text.value(span)
        place = f"{self._name}[{self._count}]"
        if value is None:
            self._problems.add("elements too long, passed over", place)
            self._count += 1
            return []
        found = self._run(value)
        try:
            # An empty list is not what was found but a comma with nothing beside it.
            found = found or _plain(b"[" + (value.strip(_WHITE) or b",") + b"]", start - 1)
        except RecursionError:
            if span:
                text.at -= len(value)
                return self._counted(text, 0)
            self._problems.add("elements nested too deeply", place)
            self._count += 1
            return []
        self._count += len(found)
        return found


class _CutOffError(Exception):
    """The text ended too early."""


class _MalformedError(Exception):
    """Text that is no JSON."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def _plain(value: bytes, start: int) -> Any:  # noqa: ANN401 - any JSON
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


def _malformed(value: bytes, start: int, exc: ValueError) -> _MalformedError:
    found = _AT_BYTE.match(_syntax_error(value))
    if found:
        return _MalformedError(start + int(found[2]), found[1])
    if isinstance(exc, json.JSONDecodeError):
        return _MalformedError(start + len(exc.doc[: exc.pos].encode()), exc.msg)
    return _MalformedError(start, str(exc))


def _syntax_error(value: bytes) -> str:
    """What is wrong with a text, and at which byte unless it is merely not all there."""
    try:
        _SYNTAX.decode(value)
    except (msgspec.DecodeError, RecursionError) as exc:
        return str(exc)
    return ""


class _Text:
    """A window on a file's text: what was not used yet, from ``buffer[at]``.

    Attributes:
        read_bytes: How much of the text was read.
        damaged: Whether reading it ended with an error, which was reported.
    """

    def __init__(
        self,
        file: BufferedReader | gzip.GzipFile,
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
        if self._more() and self.buffer.startswith(codecs.BOM_UTF8):
            self.at = len(codecs.BOM_UTF8)

    @property
    def place(self) -> int:
        """The byte of the text at which ``at`` is."""
        return self._before + self.at

    def fill(self) -> None:
        """See to it that there is enough for a long run, unless the end is near."""
        if len(self.buffer) - self.at < _BLOCK_BYTES // 2:
            self._more()

    def at_end(self) -> bool:
        """Whether nothing but white space is left."""
        try:
            self.next_byte()
        except _CutOffError:
            return True
        return False

    def next_byte(self) -> bytes:
        """The next byte that is no white space; ``at`` is there then."""
        while True:
            space = _SPACE.match(self.buffer, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.buffer):
                return self.buffer[self.at : self.at + 1]
            if not self._more():
                raise _CutOffError

    def expect(self, any_of: bytes) -> bytes:
        """Go beyond the next byte, which must be one of those."""
        found = self.next_byte()
        if found not in any_of:
            raise _MalformedError(self.place, f"not one of {' '.join(any_of.decode())}")
        self.at += 1
        return found

    def key(self) -> str:
        """Go beyond a key and its colon."""
        if self.next_byte() != b'"':
            raise _MalformedError(self.place, "an object's key must be a string")
        while not (found := _KEY.match(self.buffer, self.at, self.at + _LONGEST_KEY_BYTES)):
            if len(self.buffer) - self.at >= _LONGEST_KEY_BYTES:
                raise _MalformedError(self.place, "an object's key has no end")
            if not self._more():
                raise _CutOffError
        key = str(_plain(found[0], self.place))
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
            if not self._more():
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
            raise _MalformedError(self.place + int(found[2]), found[1])
        # Of a number there may have been more.
        if not held or error or value.rstrip(_WHITE)[-1:] not in (b"}", b"]", b'"'):
            raise _CutOffError
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
            before = self.buffer[first:limit].rstrip(_WHITE)
            if before.endswith(b","):
                before = before[:-1].rstrip(_WHITE)
                if before.endswith(b"}"):
                    return first + len(before)
        return -1

    def _more(self) -> bool:
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
