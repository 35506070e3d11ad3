# SPDX-License-Identifier: Apache-2.0
"""A client that stops reading a streamed response for a while, over a connection of small buffers.

Small segments and a small receive buffer keep what is under way small, as a slow network does;
then the server has to wait until its client has read. The engine does not wait: its last output is
made while the response stands still, and what comes after that is the client's doing.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.engine.client import Chunk, Request, Result
from tests.engine.server import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEGMENT_BYTES = 536
_BUFFER_BYTES = 4096
_READ_BYTES = 2048
_PAUSE_S = (0.001, 0.006)
#: It stands still once, after so many bytes, for so long.
_STALL_AFTER_BYTES = (4_000, 30_000)
_STALL_S = (2.5, 4.5)
_TIMEOUT_S = 60.0
#: Makes each token's event several times as long.
_LOGPROBS = 5


class SlowClient(threading.Thread):
    """Asks for long responses, one after another, and reads them slowly.

    Args:
        url: The server.
        requests: What to ask for.
        seed: Of its pauses.
    """

    def __init__(self, url: str, requests: Sequence[Request], seed: int) -> None:
        super().__init__(name="slow-client")
        self.results: list[Result] = []
        self._address = urlsplit(url)
        self._requests = requests
        self._random = random.Random(seed)

    def run(self) -> None:
        """All requests."""
        for request in self._requests:
            start_ns = time.monotonic_ns()
            try:
                text = self._ask(request)
            except OSError as exc:
                self.results.append(Result(request, 0, start_ns, time.monotonic_ns(),
                                           error=f"{type(exc).__name__}: {exc}"))  # fmt: skip
                continue
            self.results.append(_result(request, start_ns, text))

    def _ask(self, request: Request) -> bytes:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
            connection.settimeout(_TIMEOUT_S)
            connection.connect((self._address.hostname, self._address.port))
            connection.sendall(_message(request))
            answer = bytearray()
            stall_at = self._random.randint(*_STALL_AFTER_BYTES)
            while part := connection.recv(_READ_BYTES):
                passed = len(answer) < stall_at <= len(answer) + len(part)
                answer += part
                time.sleep(self._random.uniform(*(_STALL_S if passed else _PAUSE_S)))
            return bytes(answer)


def _message(request: Request) -> bytes:
    body = json.dumps(
        {
            "model": MODEL_NAME,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "logprobs": _LOGPROBS,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\n"
        f"X-Request-Id: {request.request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _result(request: Request, start_ns: int, answer: bytes) -> Result:
    head, _, body = answer.partition(b"\r\n\r\n")
    end_ns = time.monotonic_ns()
    ids: list[int] = []
    usage: dict[str, int] = {}
    reason = ""
    # Chunked transfer puts lengths on lines of their own between the events.
    for line in body.splitlines():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            ids += choice.get("token_ids") or ()
            reason = choice.get("finish_reason") or reason
    return Result(
        request=request,
        status=int(head.split()[1]),
        start_ns=start_ns,
        end_ns=end_ns,
        chunks=(Chunk(end_ns, tuple(ids)),),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        finish_reason=reason,
        error="" if b"data: [DONE]" in body else "the stream ended without [DONE]",
    )
