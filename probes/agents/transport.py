# SPDX-License-Identifier: Apache-2.0
"""The way from a traced process to the daemon, and the daemon's word back.

One daemon thread per process does everything that could take time: it connects, turns rows
into frames and sends them on a non-blocking socket. The threads of the host program only
append to lists. When the daemon is slow, hung or gone, rows wait in bounded buffers, then are
refused and counted; the count travels in every frame.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from gpucorrelate.probes.agents.control import ControlDecoder, Start
from gpucorrelate.probes.agents.owned import Owned, Wake
from gpucorrelate.probes.wire.errors import WireError
from gpucorrelate.probes.wire.frame import (
    Batch,
    StreamWriter,
    StringTable,
    columns_of,
    encode,
)
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.probes.agents.buffers import Drops
    from gpucorrelate.probes.wire.gpu import GpuPlan
    from gpucorrelate.probes.wire.schema import Kind

DEFAULT_SOCKET = "/run/gpucorrelate/ingest.sock"
SOCKET_VARIABLE = "GPUCORRELATE_INGEST"

_RECV_BYTES = 65_536
_SEND_BUFFER_BYTES = 1 << 20
_FRAMES_PER_SEND = 32
_STRINGS_PER_FRAME = 512
#: Living strings of an agent's stream; all are stated again after a reconnect. Far more than
#: the requests of one tick, so an id is never reused while a frame that means it waits.
_STRINGS = 1 << 15
_REFRESH_S = 1.0

STREAM = BY_NAME["stream"]


class Source(Protocol):
    """A buffer whose rows the transport sends."""

    @property
    def kind(self) -> Kind:
        """Kind of its rows."""

    def __len__(self) -> int:
        """Rows that wait in it."""

    def take(self) -> list[Any]:
        """Remove and return what is there."""

    def columns(self, rows: list[Any], strings: StringTable) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of what ``take`` returned."""


class Owner(Protocol):
    """Whose rows travel; called from the transport's thread only, and may raise."""

    def describe(self) -> tuple[str, str]:
        """Producer and role, for the ``stream`` row."""

    def started(self, session: str, gpu: GpuPlan) -> None:
        """The daemon wants events, and so much of the GPU."""

    def stopped(self) -> None:
        """The daemon wants none, or has been away too long."""

    def tick(self) -> None:
        """In every turn while started, before rows are collected."""

    def refresh(self) -> None:
        """About once a second while started."""


@dataclass(frozen=True)
class Pace:
    """Times of the transport, in seconds.

    Attributes:
        tick_s: Between sends while started. What the sender costs is its waking up, into cold
            caches, far more than its rows; and a process that is killed loses one tick's rows.
        connect_s: Between attempts to connect.
        orphan_s: Without a daemon for this long, a started agent goes dormant.
    """

    tick_s: float = 0.5
    connect_s: float = 1.0
    orphan_s: float = 120.0


class Transport:
    """Sender of one process's rows.

    Args:
        path: The daemon's ingest socket.
        sources: Buffers in the order their rows are sent: what others refer to comes first.
        owner: Told about start, stop and the passing of time.
        drops: The process's count of refused rows.
        pace: Its times.
    """

    def __init__(
        self,
        path: str,
        sources: Sequence[Source],
        owner: Owner,
        drops: Drops,
        pace: Pace | None = None,
    ) -> None:
        self._path = path
        self._sources = tuple(sources)
        self._owner = owner
        self._drops = drops
        self._pace = pace or Pace()
        self._writer = StreamWriter()
        self._writer.strings = StringTable(_STRINGS)
        self._control = ControlDecoder()
        self._socket: socket.socket | None = None
        # Wakes the thread for the two things that cannot wait: a flush and the end.
        self._wake = Wake()
        self._owned: Owned | None = None  # the socket's descriptor
        self._poll = select.poll()
        self._poll.register(self._wake.fd, select.POLLIN)
        self._frames: deque[bytes] = deque()
        self._sent = 0
        self._backlog = 0
        self._role = ""
        self._on = False
        self._last_seen = 0.0
        self._last_refresh = 0.0
        self._last_look = 0.0
        self._told = False
        self._flush_wanted = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._start_ns = time.monotonic_ns()

    @property
    def connected(self) -> bool:
        """Whether a daemon is at the other end."""
        return self._socket is not None

    @property
    def backlog_bytes(self) -> int:
        """Bytes of frames the socket has not taken yet."""
        return self._backlog

    def run(self) -> None:
        """Start the sending thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop, name="gpucorrelate-sender", daemon=True
            )
            self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread and the connection; for tests and orderly exits."""
        self._closing = True
        self._wake.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        self._wake.close()

    def abandon(self) -> None:
        """After a fork, in the child: connection and thread are the parent's; forget them."""
        self._closing = True
        sock, self._socket = self._socket, None
        if sock is not None:
            self._give_back(sock)
        self._wake.close()

    def flush(self, limit_s: float = 0.1) -> None:
        """Wait for rows to reach the socket, at most ``limit_s``; only for a dying process."""
        if not self._on or self._socket is None:
            return
        self._flush_wanted = True
        self._wake.ring()
        deadline = time.monotonic() + limit_s
        while self._flush_wanted and time.monotonic() < deadline:
            time.sleep(0.001)

    # The thread. Nothing below runs anywhere else.

    def _loop(self) -> None:
        while not self._closing:
            try:
                self._wait(self._turn())
            except Exception:  # noqa: BLE001 - the one place where the thread must survive
                self._disconnect()
                time.sleep(self._pace.connect_s)
        self._disconnect()

    def _wait(self, pause_s: float) -> None:
        """Sleep; the daemon's word, a flush and the end wake it."""
        for fd, _ in self._poll.poll(pause_s * 1000):
            if fd != self._wake.fd:
                self._told = True
            elif self._wake.ours:
                self._wake.heard()
            else:
                self._renew()

    def _recover(self) -> None:
        """Let go of descriptors that the process closed under us, and get others.

        The socket's is looked at in every turn, because it is about to be written to; the
        pipe's when it speaks, and now and then. Each look is a system call.
        """
        now = time.monotonic()
        lost = self._owned is not None and not self._owned.ours
        if not lost and now - self._last_look >= _REFRESH_S:
            self._last_look = now
            lost = not self._wake.ours
        if lost:
            self._renew()

    def _renew(self) -> None:
        """Another pipe, and in the next turn another socket."""
        self._disconnect()
        self._wake.renew()
        self._poll = select.poll()
        self._poll.register(self._wake.fd, select.POLLIN)

    def _give_back(self, sock: socket.socket) -> None:
        """Close the socket, unless its number is somebody else's by now."""
        owned, self._owned = self._owned, None
        if owned is None or owned.ours:
            sock.close()
        else:
            sock.detach()

    def _turn(self) -> float:
        """One round; returns how long to wait for the next."""
        now, flushing = time.monotonic(), self._flush_wanted
        self._recover()
        if self._socket is None and not self._connect():
            self._flush_wanted = False
            if self._on and now - self._last_seen > self._pace.orphan_s:
                self._stop()
            return self._pace.connect_s
        self._last_seen = now
        if self._told:
            self._told = False
            self._receive()
        self._send()
        if self._on:
            if now - self._last_refresh >= _REFRESH_S:
                self._last_refresh = now
                self._owner.refresh()
            self._owner.tick()
            self._collect()
        self._announce()
        self._send()
        if flushing and not self._frames:
            self._flush_wanted = False
        if self._socket is None:
            return self._pace.connect_s
        return self._pace.tick_s if self._on or self._frames else 1.0

    def _connect(self) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            sock.connect(self._path)
        except OSError:
            sock.close()
            return False
        self._socket, self._owned = sock, Owned(sock.fileno())
        self._poll.register(sock, select.POLLIN)
        self._control = ControlDecoder()
        self._told = True
        self._greet()
        return True

    def _greet(self) -> None:
        """Say who this is before anything else, and state the strings again.

        A frame that the last connection took only in part is still here: the other end cannot
        have it. It goes out again, whole and under its own number, right after the greeting,
        which therefore stands outside the order of the stream (number 0).
        """
        held, self._frames = self._frames, deque()
        self._sent = self._backlog = 0
        row = self._stream_row()
        strings = self._writer.strings
        columns = columns_of(STREAM, (row,), strings)
        own = tuple((strings.id(text), text) for text in (row[3], row[4]) if text)
        self._queue(encode(Batch(STREAM.id, 1, columns, 0, self._drops.count, own)))
        strings.restate()
        known = [pair for pair in strings.take_fresh() if pair not in own]
        nothing = (b"",) * len(STREAM.columns)
        for at in range(0, len(known), _STRINGS_PER_FRAME):
            part = tuple(known[at : at + _STRINGS_PER_FRAME])
            self._queue(encode(Batch(STREAM.id, 0, nothing, 0, self._drops.count, part)))
        for frame in held:
            self._queue(frame)

    def _stream_row(self) -> tuple[int, int, int, str, str]:
        producer, self._role = self._owner.describe()
        return 0, os.getpid(), self._start_ns, producer, self._role

    def _announce(self) -> None:
        """Say it again when the role became known or changed."""
        if self._owner.describe()[1] == self._role:
            return
        columns = columns_of(STREAM, (self._stream_row(),), self._writer.strings)
        for frame in self._writer.frames(STREAM, 1, columns, drops=self._drops.count):
            self._queue(frame)

    def _queue(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._backlog += len(frame)

    def _receive(self) -> None:
        sock = self._socket
        if sock is None:
            return
        while True:
            try:
                data = sock.recv(_RECV_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._disconnect()
                return
            try:
                for message in self._control.feed(data):
                    if isinstance(message, Start):
                        self._start(message)
                    else:
                        self._stop()
            except WireError:
                self._disconnect()
                return

    def _start(self, start: Start) -> None:
        if not self._on:
            self._discard()
        self._on = True
        self._last_refresh = time.monotonic()
        self._owner.started(start.session, start.gpu)

    def _stop(self) -> None:
        if self._on:
            self._on = False
            self._owner.stopped()
            self._collect()
            self._give_up()

    def _discard(self) -> None:
        for source in self._sources:
            source.take()

    def _give_up(self) -> None:
        """Throw away what a daemon that is behind, or gone, was not given before the stop.

        It is counted, and told at once: the next session must not be charged with it.
        """
        left = sum(map(len, self._sources))
        self._discard()
        if left:
            self._drops.add(left)
            nothing = (b"",) * len(STREAM.columns)
            for frame in self._writer.frames(STREAM, 0, nothing, drops=self._drops.count):
                self._queue(frame)

    def _collect(self) -> None:
        """Rows to frames, unless the socket has not even taken the last ones yet."""
        if self._socket is None or self._frames:
            return
        # Taken last to first, sent first to last: what a row refers to is in the buffer before
        # the row is, so it is never sent later than the row.
        taken = [(source, source.take()) for source in reversed(self._sources)]
        writer = self._writer
        for source, rows in reversed(taken):
            count, columns = source.columns(rows, writer.strings)
            if not count:
                continue
            for frame in writer.frames(source.kind, count, columns, drops=self._drops.count):
                self._queue(frame)

    def _send(self) -> None:
        frames = self._frames
        while frames and self._socket is not None:
            parts: list[bytes | memoryview] = list(islice(frames, _FRAMES_PER_SEND))
            parts[0] = memoryview(frames[0])[self._sent :]
            try:
                size = self._socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._disconnect()
                return
            self._taken(size)

    def _taken(self, size: int) -> None:
        """The socket took this many bytes, counted from where it was in the first frame."""
        size += self._sent
        while self._frames and size >= len(self._frames[0]):
            frame = self._frames.popleft()
            size -= len(frame)
            self._backlog -= len(frame)
        self._sent = size

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._poll.unregister(sock)
            self._give_back(sock)
            # What the other end had not read is lost, statements of rowsets among it.
            self._drops.renew()
