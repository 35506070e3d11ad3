# SPDX-License-Identifier: Apache-2.0
"""A daemon's end of an agent's socket, driven step by step by a test."""

from __future__ import annotations

import socket
import time
from array import array
from typing import TYPE_CHECKING

from gpucorrelate.probes.agents import control
from gpucorrelate.probes.wire.frame import Batch, Damage, Decoder, StreamReader
from gpucorrelate.probes.wire.schema import BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpucorrelate.probes.agents.control import Start, Stop

Row = tuple[object, ...]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return when the condition holds; fail when it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)


class Listener:
    """A listening ingest socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._socket.settimeout(10)

    def accept(self, reader: StreamReader | None = None) -> Peer:
        """The next agent to connect."""
        return Peer(self._socket.accept()[0], reader)

    def accept_within(self, timeout_s: float) -> bool:
        """Whether anything connects within the time."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.accept()[0].close()
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(10)
        return True

    def close(self) -> None:
        self._socket.close()


class Peer:
    """One accepted connection: reads frames, takes them in order, keeps decoded rows."""

    def __init__(self, connection: socket.socket, reader: StreamReader | None = None) -> None:
        self.socket = connection
        self.socket.settimeout(10)
        self.reader = reader or StreamReader()
        self.batches: list[Batch] = []
        self.numbers: list[int] = []
        self.rows: dict[str, list[Row]] = {}
        self.raw = b""
        self._decoder = Decoder()

    def tell(self, message: Start | Stop) -> None:
        self.socket.sendall(control.encode(message))

    def read(self, until: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Take frames until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, f"only got {self.counts()}"
            self.read_some(0.05)

    def read_for(self, time_s: float) -> None:
        """Take whatever comes within the time."""
        deadline = time.monotonic() + time_s
        while time.monotonic() < deadline and self.read_some(0.02):
            pass

    def read_some(self, timeout_s: float) -> bool:
        """Take what is there; False at the end of the connection."""
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return True
        self.raw += data
        for item in self._decoder.feed(data):
            assert not isinstance(item, Damage), item
            self._take(item[0])
        return bool(data)

    def _take(self, batch: Batch) -> None:
        self.numbers.append(batch.seq)
        used, _, _ = self.reader.accept(batch)
        if not used:
            return
        self.batches.append(batch)
        kind = BY_ID[batch.kind]
        columns: list[list[object]] = []
        for column, data in zip(kind.columns, batch.columns, strict=True):
            values = array(column.code, data)
            text = column.ctype == "str"
            columns.append(
                [self.reader.strings[v] if v else "" for v in values] if text else list(values)
            )
        self.rows.setdefault(kind.name, []).extend(zip(*columns, strict=True))

    def counts(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in self.rows.items()}

    def close(self) -> None:
        self.socket.close()
