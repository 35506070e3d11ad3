# SPDX-License-Identifier: Apache-2.0
"""A thread that answers scrapes: a few connections, each for a few seconds, and not too often.

The daemon's loop never waits for it. It takes the status that the loop last left here, and asks
for a newer one; where the loop stands still it answers all the same, and how long it has been
standing is one of the metrics.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.daemon import metrics_http
from gpucorrelate.daemon.metrics_text import ServedCounts, encode
from gpucorrelate.probes.wire.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucorrelate.daemon.metrics_address import Address
    from gpucorrelate.daemon.metrics_text import Requests
    from gpucorrelate.daemon.values import DaemonStatus

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 8
#: A connection ends after so long, whatever it waits for.
PATIENCE_S = 5.0
#: A status so old is asked for anew; what was made of it is given to all until then.
FRESH_S = 1.0
#: How long an answer waits for a newer one, which comes with the loop's next turn.
_WAIT_S = 0.6
#: Connections taken in a second: more than any scraper makes, too few to cost the loop anything.
MOST_PER_S = 20
_BACKLOG = 16
_READ_BYTES = 4096


@dataclass(eq=False)
class _Connection:
    sock: socket.socket
    until_s: float
    taken: bytearray = field(default_factory=bytearray)
    request: metrics_http.Request | None = None
    waits_until_s: float = 0.0
    left: memoryview = field(default_factory=lambda: memoryview(b""))


class MetricsServer:
    """Serves ``/metrics`` from a thread of its own.

    Args:
        address: Where to listen.
        requests: Gives what was counted of requests; None: that was not asked for.

    Attributes:
        wanted: Whether a newer status is asked for; the loop looks at it and calls ``give``.
        turned_s: When the loop last came round, CLOCK_MONOTONIC; the loop sets it.

    Raises:
        DaemonError: it cannot listen there.
    """

    def __init__(
        self, address: Address, requests: Callable[[], Requests | None] = lambda: None
    ) -> None:
        self._requests = requests
        self.wanted = False
        self.turned_s = time.monotonic()
        self._listener = _listen(address)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = False
        self._status: DaemonStatus | None = None
        self._status_s = self._rendered_s = 0.0
        self._rendered: dict[str, tuple[bytes, str]] = {}
        self._connections: set[_Connection] = set()
        self._scrapes = self._refused = 0
        self._allowed, self._allowed_s = float(MOST_PER_S), time.monotonic()
        self._listening = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin to answer. Capabilities are the thread's that calls this."""
        self._thread.start()

    def give(self, status: DaemonStatus) -> None:
        """A newer status, called in the daemon's loop."""
        self._status, self._status_s = status, time.monotonic()
        self.wanted = False
        self._wake()

    def close(self) -> None:
        """End the thread and all connections."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self._listener.close()
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._selector.close()

    def _wake(self) -> None:
        # A full pipe wakes it as well as a byte more would.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    # In the thread.

    def _run(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        while not self._stopping:
            try:
                self._turn()
            except Exception:
                # Metrics must not end the daemon, nor its thread the metrics.
                log.exception("metrics")
                time.sleep(FRESH_S)
        for connection in list(self._connections):
            self._end(connection)

    def _turn(self) -> None:
        now = time.monotonic()
        self._listen_or_rest(now)
        for key, events in self._selector.select(self._rest_s(now)):
            if key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data, events)
        now = time.monotonic()
        for connection in list(self._connections):
            if now > connection.until_s:
                self._give_up(connection)
            elif connection.request is not None and not connection.left:
                self._answer(connection, now)

    def _rest_s(self, now: float) -> float | None:
        due = [connection.until_s for connection in self._connections]
        due += [c.waits_until_s for c in self._connections if c.request and not c.left]
        if not self._listening:
            due.append(now + 1 / MOST_PER_S)
        return max(0.0, min(due) - now) if due else None

    def _listen_or_rest(self, now: float) -> None:
        """Listen while connections may be taken: a flood waits in the kernel or is refused."""
        gained = (now - self._allowed_s) * MOST_PER_S
        self._allowed, self._allowed_s = min(MOST_PER_S, self._allowed + gained), now
        if self._listening is (self._allowed >= 1):
            return
        self._listening = not self._listening
        if self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        else:
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._allowed = 0.0  # it stays ready: come back later
            return
        self._allowed -= 1
        sock.settimeout(0)
        if len(self._connections) >= MOST_CONNECTIONS and not self._make_room():
            self._refused += 1
            sock.close()
            return
        connection = _Connection(sock, time.monotonic() + PATIENCE_S)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Give up the one that has not said for the longest time what it wants."""
        silent = [one for one in self._connections if one.request is None]
        if silent:
            self._give_up(min(silent, key=lambda one: one.until_s))
        return bool(silent)

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection not in self._connections:
            return  # given up in this turn
        try:
            if events & selectors.EVENT_READ:
                self._read(connection)
            elif events & selectors.EVENT_WRITE:
                self._write(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._give_up(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(_READ_BYTES)
        if not data or connection.request is not None:
            # Gone, or it goes on talking while it is answered.
            self._give_up(connection)
            return
        connection.taken += data
        request = metrics_http.parse(bytes(connection.taken))
        if request is None:
            return
        connection.request = request
        now = time.monotonic()
        connection.waits_until_s = now + _WAIT_S
        if request.status != 200:
            self._refused += 1
            self._send(connection, metrics_http.refusal(request.status))
        elif now - self._status_s > FRESH_S:
            self.wanted = True

    def _answer(self, connection: _Connection, now: float) -> None:
        fresh = now - self._status_s <= FRESH_S
        if not fresh and now < connection.waits_until_s:
            return
        request = connection.request
        if request is None:
            return
        if self._status is None:
            self._refused += 1
            self._send(connection, metrics_http.refusal(503))
            return
        self._scrapes += 1
        body, content_type = self._render(self._status, request.accept, now)
        self._send(
            connection,
            metrics_http.answer(body, content_type, head_only=request.head_only),
        )

    def _render(self, status: DaemonStatus, accept: str, now: float) -> tuple[bytes, str]:
        if now - self._rendered_s > FRESH_S:
            self._rendered, self._rendered_s = {}, now
        form = "openmetrics" if "application/openmetrics-text" in accept else ""
        if form not in self._rendered:
            counts = ServedCounts(max(0.0, now - self.turned_s), self._scrapes, self._refused)
            accepted = "application/openmetrics-text; version=1.0.0" if form else "text/plain"
            self._rendered[form] = encode(status, counts, accepted, self._requests())
        return self._rendered[form]

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.left = memoryview(data)
        self._selector.modify(
            connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
        )

    def _write(self, connection: _Connection) -> None:
        sent = connection.sock.send(connection.left)
        connection.left = connection.left[sent:]
        if not connection.left:
            self._end(connection)

    def _give_up(self, connection: _Connection) -> None:
        self._refused += 1
        self._end(connection)

    def _end(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_WR)
        connection.sock.close()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if address.is_v6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # What is left of old connections must not keep a daemon that is started again waiting.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
        sock.settimeout(0)
    except OSError as exc:
        sock.close()
        raise DaemonError(
            f"cannot serve metrics on {address}: {exc.strerror or exc}", hint=_hint(exc, address)
        ) from exc
    return sock


def _hint(exc: OSError, address: Address) -> str:
    if exc.errno == errno.EADDRINUSE:
        return f"ss -ltnp 'sport = :{address.port}' names who has it; or take another port"
    if exc.errno in (errno.EACCES, errno.EPERM):
        return "take a port from 1024 up"
    if exc.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return ""
