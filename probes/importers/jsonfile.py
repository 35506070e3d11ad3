# SPDX-License-Identifier: Apache-2.0
"""JSON of any size, plain or gzip: a list's elements, decoded many at once, text not held.

The decoder takes whole documents only, so the list is cut into runs of whole elements. Where
one ends is guessed (``}, {``) and proved by the decoder: text that it accepts between brackets
is whole elements, because where a value ends depends on nothing that follows. A run that it
refuses is halved, down to one element, whose end is found by counting brackets.

Where there is a compiled scanner it goes first, and what it does not pass is decoded one by one.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gpucorrelate.probes.importers.jsontext import (
    WHITE,
    CutOffError,
    MalformedError,
    Text,
    opened,
    plain,
)
from gpucorrelate.probes.wire.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gpucorrelate.probes.importers.native import EventScanner
    from gpucorrelate.probes.importers.rows import Problems

#: The decoder is given no more at once.
_RUN_BYTES = 192 << 10
#: In shorter stretches ends are not guessed: brackets are counted.
_COUNTED_BYTES = 4096
_OPENING = b"[{"

#: Places in the list, and an element for each.
_Found: TypeAlias = "tuple[Sequence[int], list[Any]]"


def first_byte(path: Path) -> bytes:
    """The first byte that is no white space; empty where there is none or it is unreadable."""
    try:
        with opened(path) as text:
            return text.read1(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
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
        scanner: Passes most elements by itself; what it leaves is decoded.

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
        scanner: EventScanner | None = None,
    ) -> None:
        self.values: dict[str, Any] = {}
        self._path = path
        self._name = name
        self._wanted = wanted
        self._decoder = decoder
        self._problems = problems
        self._progress = progress
        self._scanner = scanner
        self._count = 0
        self._reach = _RUN_BYTES

    def __iter__(self) -> Iterator[_Found]:
        """Elements in order, many at a time: their places in the list, and what they are.

        Those that the scanner passed are left out. So are those that could not be read, and
        ``problems`` say so, as they do of a file that is cut off.

        Raises:
            TraceError: text that is no JSON; the message says at which byte.
        """
        with opened(self._path) as file:
            text = Text(file, self._problems, self._progress)
            try:
                yield from self._document(text)
            except CutOffError:
                if not text.damaged:
                    self._problems.add("the text breaks off", f"byte {text.read_bytes:,}")
            except MalformedError as exc:
                raise TraceError(
                    f"{self._path}: malformed JSON at byte {exc.place:,}: {exc.reason}",
                    hint="export the trace again; a file that is merely cut off is read as far "
                    "as it goes",
                ) from exc

    def _document(self, text: Text) -> Iterator[_Found]:
        if text.expect(_OPENING) == b"[":
            yield from self._elements(text)
        elif text.next_byte() == b"}":
            text.at += 1
        else:
            yield from self._members(text)
        if not text.at_end():
            raise MalformedError(text.place, "text after the end")

    def _members(self, text: Text) -> Iterator[_Found]:
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

    def _member(self, text: Text, key: str) -> None:
        text.next_byte()
        start = text.place
        value = text.value()
        if key == self._name:
            self._problems.add(f"{key} is no list", f"byte {start:,}")
        elif value is None:
            self._problems.add("values too long, passed over", f"byte {start:,}")
        else:
            try:
                found = plain(value, start)
            except RecursionError:
                return  # whatever it is, nothing that is wanted is nested like that
            if key in self._wanted:
                self.values.setdefault(key, found)

    def _elements(self, text: Text) -> Iterator[_Found]:
        """The elements of a list, whose opening bracket was read, and its closing bracket."""
        if text.next_byte() == b"]":
            text.at += 1
            return
        while True:
            text.fill()
            found = self._passed(text)
            yield self._decoded(text) if found is None else found
            if text.expect(b",]") == b"]":
                return

    def _passed(self, text: Text) -> _Found | None:
        """Have the scanner pass elements; those that it left, or ``None`` if it passed none."""
        if self._scanner is None:
            return None
        passed = self._scanner.scan(text.buffer, text.at, self._count)
        if passed.starved and not passed.count and text.more():
            passed = self._scanner.scan(text.buffer, text.at, self._count)
        if not passed.count:
            self._reach = 0
            return None
        before = text.place - text.at
        values = [text.buffer[begin:end] for _, begin, end in passed.odd]
        self._count += passed.count
        text.at = passed.end
        found = self._run(b",".join(values))
        if found is not None:
            return [place for place, _, _ in passed.odd], found
        read = [
            (place, element)
            for value, (place, begin, _) in zip(values, passed.odd, strict=True)
            for element in self._one(value, before + begin, place)
        ]
        return [place for place, _ in read], [element for _, element in read]

    def _decoded(self, text: Text) -> _Found:
        """The next elements, as the decoder gives them."""
        number, start = self._count, text.place
        found: list[Any] | None = None
        while found is None:
            end = text.likely_end(self._reach) if self._reach >= _COUNTED_BYTES else -1
            if end < 0:
                found = self._counted(text, _COUNTED_BYTES)
            elif (found := self._run(text.buffer[text.at : end])) is None:
                self._reach = (end - text.at) // 2
            else:
                self._count += len(found)
                text.at = end
        self._reach = min(2 * max(text.place - start, _COUNTED_BYTES), _RUN_BYTES)
        return range(number, number + len(found)), found

    def _run(self, text: bytes) -> list[Any] | None:
        """The elements in it; ``None`` if it is not whole ones, or one of them is refused."""
        try:
            found: list[Any] = self._decoder.decode(b"[" + text + b"]")
        except (msgspec.MsgspecError, RecursionError):
            return None
        return found

    def _counted(self, text: Text, span: int) -> list[Any]:
        """The next element, and what follows within so many bytes; empty if it was unreadable."""
        text.next_byte()
        start = text.place
        value = text.value(span)
        place = f"{self._name}[{self._count}]"
        if value is None:
            self._problems.add("elements too long, passed over", place)
            self._count += 1
            return []
        try:
            found = self._elements_of(value, start)
        except RecursionError:
            if span:
                text.at -= len(value)
                return self._counted(text, 0)
            self._problems.add("elements nested too deeply", place)
            self._count += 1
            return []
        self._count += len(found)
        return found

    def _one(self, value: bytes, start: int, place: int) -> list[Any]:
        """An element; empty if it was unreadable."""
        try:
            return self._elements_of(value, start)
        except RecursionError:
            self._problems.add("elements nested too deeply", f"{self._name}[{place}]")
            return []

    def _elements_of(self, value: bytes, start: int) -> list[Any]:
        """The elements in a text, of which the first byte is at ``start``.

        Raises:
            RecursionError: one is nested too deeply.
        """
        # An empty list is not what was found but a comma with nothing beside it.
        found: list[Any] = self._run(value) or plain(
            b"[" + (value.strip(WHITE) or b",") + b"]", start - 1
        )
        return found
