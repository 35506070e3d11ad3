# SPDX-License-Identifier: Apache-2.0
"""As much of HTTP/1.1 as a scrape needs: one request on each connection, within bounds."""

from __future__ import annotations

import http.client
import io
from dataclasses import dataclass

#: Longest request, of which Prometheus needs some 300 bytes.
MOST_BYTES = 8 << 10
_PAGE = "/metrics"


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        status: 200 where it can be answered, else the code of the refusal.
        accept: Its ``Accept`` header.
        head_only: Whether only the answer's head is wanted.
    """

    status: int
    accept: str = ""
    head_only: bool = False


def parse(data: bytes) -> Request | None:
    """The request at the beginning of what came; None while it is not whole."""
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end:
        return Request(431) if len(data) > MOST_BYTES else None
    line, _, fields = head.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return Request(400)
    if words[0] not in (b"GET", b"HEAD"):
        return Request(405)
    if words[1].partition(b"?")[0].decode("latin-1") != _PAGE:
        return Request(404)
    try:
        found = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
    except http.client.HTTPException:
        return Request(431)
    return Request(200, found.get("Accept", ""), words[0] == b"HEAD")


def refusal(status: int) -> bytes:
    """The answer to what cannot be answered."""
    reason = http.client.responses.get(status, "")
    text = f"{status} {reason}. The daemon's metrics are at {_PAGE}\n".encode()
    return answer(text, "text/plain; charset=utf-8", status)


def answer(body: bytes, content_type: str, status: int = 200, *, head_only: bool = False) -> bytes:
    """An answer's bytes; the connection ends behind it."""
    head = (
        f"HTTP/1.1 {status} {http.client.responses.get(status, '')}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
    return head if head_only else head + body
