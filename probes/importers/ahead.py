# SPDX-License-Identifier: Apache-2.0
"""A gzip file unpacked by a thread of its own, a little ahead of who reads it.

Unpacking takes about as long as making rows of the text, and zlib lets go of the interpreter.
"""

from __future__ import annotations

import gzip
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

_PIECE_BYTES = 192 << 10
_PIECES = 4


class Ahead:
    """The unpacked text, to be read from the beginning to the end by one thread.

    Args:
        raw: The packed file; only the thread reads it until this is closed.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=raw)
        self._pieces: queue.Queue[bytes | BaseException] = queue.Queue(_PIECES)
        self._rest: memoryview = memoryview(b"")
        self._end: BaseException | None = None
        self._over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._unpack, name="gunzip", daemon=True)
        self._thread.start()

    def read1(self, size: int) -> bytes:
        """At most so many bytes; none at the end.

        Raises:
            EOFError: the file is cut off.
            BadGzipFile, zlib.error: it is damaged.
            OSError: it cannot be read.
        """
        if not self._rest and not self._over:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                self._end, self._over = piece, True
            else:
                self._rest, self._over = memoryview(piece), not piece
        if self._end is not None:
            raise self._end
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._pieces.get(timeout=0.01)
            except queue.Empty:
                continue
        self._file.close()

    def _unpack(self) -> None:
        try:
            while not self._stop.is_set():
                piece = self._file.read1(_PIECE_BYTES)
                self._pieces.put(piece)
                if not piece:
                    return
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the reader raises it
            self._pieces.put(exc)
