# SPDX-License-Identifier: Apache-2.0
"""JSON of any size, plain or gzip, read element by element without holding its text."""

from __future__ import annotations

import codecs
import gzip
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import ijson

from gpucorrelate.probes.wire.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpucorrelate.probes.importers.rows import Problems

_CHUNK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"


class _Sink(list[Any]):
    """Where a parser puts what it found."""

    def send(self, item: object) -> None:
        self.append(item)


class _Nowhere:
    """A sink for who wants to know only whether there is an error."""

    def send(self, item: object) -> None:
        """Forget it."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's text, unpacked where it is gzip."""
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.open(raw) as text:
            yield text  # type: ignore[misc]


def first_byte(path: Path) -> bytes:
    """The first byte that is no white space; empty where there is none or it is unreadable."""
    try:
        with opened(path) as text:
            return text.read(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


class JsonElements:
    """The elements of a list in a JSON file, and single values beside it.

    Args:
        path: The file.
        prefix: Where the elements are, in ijson's notation.
        wanted: Where the single values are.
        problems: Told what could not be read.
        progress: Called with the bytes read so far.
    """

    def __init__(
        self,
        path: Path,
        prefix: str,
        wanted: tuple[str, ...],
        problems: Problems,
        progress: Callable[[int], None],
    ) -> None:
        self.path = path
        self.values: dict[str, list[Any]] = {name: [] for name in wanted}
        self._prefix = prefix
        self._problems = problems
        self._progress = progress
        self._read_bytes = 0
        self._cut = False

    def __iter__(self) -> Iterator[Any]:
        """The elements in order. A file that is cut off ends early, and ``problems`` say so.

        Raises:
            TraceError: text that is no JSON; the message says at which byte.
        """
        found = _Sink()
        sinks = {name: _Sink() for name in self.values}
        parsers = [ijson.items_coro(found, self._prefix)]
        parsers += [ijson.items_coro(sink, name) for name, sink in sinks.items()]
        for chunk in self._chunks():
            try:
                for parser in parsers:
                    parser.send(chunk)
            except ijson.JSONError as exc:
                yield from found
                raise self._malformed(exc) from exc
            yield from found
            found.clear()
        try:
            for parser in parsers:
                parser.close()
        except ijson.IncompleteJSONError:
            if not self._cut:
                self._problems.add("the text breaks off", f"byte {self._read_bytes:,}")
        yield from found
        for name, sink in sinks.items():
            self.values[name] += sink

    def _chunks(self) -> Iterator[bytes]:
        """The text in pieces; letters that are no UTF-8 are replaced and counted."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        try:
            with opened(self.path) as text:
                while chunk := text.read(_CHUNK_BYTES):
                    clean = decoder.decode(chunk)
                    if "\ufffd" in clean:
                        self._problems.add(
                            "letters that are no UTF-8, replaced", f"byte {self._read_bytes:,}"
                        )
                    self._read_bytes += len(chunk)
                    self._progress(self._read_bytes)
                    yield clean.encode()
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            self._cut = True
            reason = "cut off" if isinstance(exc, EOFError) else "damaged"
            self._problems.add(f"the gzip file is {reason}", f"byte {self._read_bytes:,} of text")

    def _malformed(self, exc: Exception) -> TraceError:
        at = _bad_byte(self.path)
        reason = str(exc).splitlines()[0] if str(exc) else "not JSON"
        return TraceError(
            f"{self.path}: malformed JSON at byte {at:,}: {reason}",
            hint="export the trace again; a file that is merely cut off is read as far as it goes",
        )


def _bad_byte(path: Path) -> int:
    """The byte at which the text stops being JSON.

    The parser does not tell, so the file is read once more, first in pieces and then, where a
    piece is refused, byte by byte with a parser that is at its beginning.
    """
    good = _refused_from(path, 0, _CHUNK_BYTES)
    return _refused_from(path, good, 1)


def _refused_from(path: Path, whole: int, piece: int) -> int:
    parser = ijson.basic_parse_coro(_Nowhere())
    at = 0
    with opened(path) as text:
        try:
            while chunk := text.read(_CHUNK_BYTES if at < whole else piece):
                parser.send(chunk)
                at += len(chunk)
        except (ijson.JSONError, EOFError, gzip.BadGzipFile, zlib.error):
            return at
    return at
