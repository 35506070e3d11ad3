# SPDX-License-Identifier: Apache-2.0
"""Fetching an engine's metrics, bounded in time and size, and as cheap as the engine allows.

The engine's API server answers in the thread that also streams tokens: all of its metrics cost
it 4 to 5 ms, the few that are wanted 0.6 to 1 ms (seen with vLLM 0.28 and 0.32). So they are
asked for by name first (``name[]`` of prometheus_client), and all of them only where that gives
nothing, as with several API servers behind one port.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpucorrelate.probes.host.engine_metrics import (
    NAMES,
    EngineMetrics,
    engine_readings,
    parse_metrics,
)
from gpucorrelate.probes.host.reading import Missing, Sample

if TYPE_CHECKING:
    from typing import Literal

TIMEOUT_S = 1.0
#: All of vLLM's metrics have 50 KB; with many models or engines, a few times that.
LIMIT_BYTES = 4 << 20

_CHUNK_BYTES = 64 * 1024
# With its slash, the path is that of prometheus_client's own application, which knows name[].
_NAMED = "/metrics/?" + "&".join(f"name%5B%5D={quote(name, safe='')}" for name in NAMES)
_ALL = "/metrics"
_OK = 200


@dataclass(frozen=True)
class Scrape:
    """What an engine said, and when.

    Attributes:
        metrics: Its numbers.
        sent_ns: When the question was sent, CLOCK_MONOTONIC.
        done_ns: When the answer was complete; the numbers are of some moment between both.
    """

    metrics: EngineMetrics
    sent_ns: int
    done_ns: int


class EngineEndpoint:
    """Where an engine's metrics are.

    Args:
        host: IP address it listens on, ``127.0.0.1`` mostly. Names are not looked up: that
            could take longer than any bound here.
        port: Its port.
        timeout_s: For a whole look.
        limit_bytes: Most of an answer that is taken.

    Raises:
        ValueError: ``host`` is no IP address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        address = ipaddress.ip_address(host)
        self._family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        self._host = str(address)
        self._shown = f"{host}:{port}" if address.version == 4 else f"[{host}]:{port}"
        self._port = port
        self._timeout_s = timeout_s
        self._limit = limit_bytes
        self._too_late = f"no answer within {timeout_s:g} s"
        self._path: str = ""

    @property
    def shown(self) -> str:
        """Address and port, as in a URL."""
        return self._shown

    def scrape(self) -> Scrape | Missing:
        """Look once; the reason where that fails."""
        paths = (self._path,) if self._path else (_NAMED, _ALL)
        deadline_s = time.monotonic() + self._timeout_s
        why = ""
        for path in paths:
            sent_ns = time.monotonic_ns()
            answer = self._fetch(path, deadline_s)
            if isinstance(answer, str):
                why = answer
                continue
            found = parse_metrics(answer.decode("utf-8", "replace"))
            if found.values:
                self._path = path
                return Scrape(found, sent_ns, time.monotonic_ns())
            why = "no metric of vLLM in its answer"
        # Whatever answers there next time may be another server.
        self._path = ""
        return Missing("engine.metrics", f"engine:{self._shown}", why)

    def sample(self, name: str) -> Sample:
        """Look once, as readings of ``engine:<name>/<number>``."""
        found = self.scrape()
        if isinstance(found, Missing):
            return Sample((), (found,))
        t_ns = (found.sent_ns + found.done_ns) // 2
        missing = tuple(
            Missing("engine.metrics", f"engine:{self._shown}", problem)
            for problem in found.metrics.problems
        )
        return Sample(engine_readings(name, found.metrics, t_ns), missing)

    def _fetch(self, path: str, deadline_s: float) -> bytes | str:
        """The answer's body, or why there is none."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return self._too_late
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {self._shown}\r\n"
            "Accept: text/plain\r\nConnection: close\r\n\r\n"
        )
        try:
            with socket.socket(self._family, socket.SOCK_STREAM) as connection:
                connection.settimeout(left_s)
                connection.connect((self._host, self._port))
                connection.sendall(request.encode())
                data = self._receive(connection, deadline_s)
        except TimeoutError:
            return self._too_late
        except OSError as error:
            return error.strerror or str(error)
        return data if isinstance(data, str) else parse_response(data)

    def _receive(self, connection: socket.socket, deadline_s: float) -> bytes | str:
        # Up to the end that "Connection: close" asks for, each read within what time is left.
        data = bytearray()
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return self._too_late
            connection.settimeout(left_s)
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > self._limit:
                return f"its answer is longer than {self._limit} bytes"


class _Received:
    """What was received, in the place of the socket it came from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: Literal["rb"]) -> io.BytesIO:
        return io.BytesIO(self._data)


def parse_response(data: bytes) -> bytes | str:
    """The body of an HTTP answer that was received whole, or why there is none."""
    response = http.client.HTTPResponse(_Received(data))  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, OSError, ValueError) as error:
        # An incomplete or foreign answer: a TLS server's alert, say.
        return f"not an answer in HTTP: {type(error).__name__}"
    if response.status != _OK:
        return f"it answers {response.status} {response.reason[:40]}"
    return body
