# SPDX-License-Identifier: Apache-2.0
"""A streaming client of the OpenAI completions API that measures and counts for itself.

Bounded: so many requests, so many at a time, to 127.0.0.1 only.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import json
import random
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.engine.model import sentences
from tests.engine.server import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A request that has no answer by then has failed.
REQUEST_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Request:
    """What to ask for.

    Attributes:
        request_id: Sent as ``X-Request-Id``; no id of one load is a part of another's.
        prompt: Text.
        max_tokens: Exactly so many tokens are made unless ``ignore_eos`` is off.
        temperature: 0 for the likeliest token.
    """

    request_id: str
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = True

    @property
    def external_id(self) -> str:
        """The id under which vLLM's frontend knows it: of a completion's first prompt."""
        return f"cmpl-{self.request_id}-0"


@dataclass(frozen=True)
class Chunk:
    """One server-sent event with tokens in it: when it came, and the ids."""

    t_ns: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """What came back for a request, as the client saw it. Times: CLOCK_MONOTONIC."""

    request: Request
    status: int
    start_ns: int
    end_ns: int
    chunks: tuple[Chunk, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended as it should, with the tokens asked for."""
        return (
            self.status == 200
            and not self.error
            and self.completion_tokens is not None
            and (not self.request.ignore_eos or self.completion_tokens == self.request.max_tokens)
        )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All output token ids, in order."""
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)

    @property
    def token_hash(self) -> int:
        """crc32 of the ids as little-endian u32: what engine and frontend state."""
        ids = array.array("I", self.token_ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return zlib.crc32(ids.tobytes())

    @property
    def ttft_ns(self) -> int | None:
        """Request sent to the first chunk with tokens."""
        return self.chunks[0].t_ns - self.start_ns if self.chunks else None

    @property
    def itl_ns(self) -> tuple[int, ...]:
        """Gaps between chunks."""
        times = [chunk.t_ns for chunk in self.chunks]
        return tuple(b - a for a, b in itertools.pairwise(times))


def mixed_requests(count: int, *, tag: str, seed: int = 7) -> list[Request]:
    """Requests of mixed prompt and output lengths, greedy and random in turn."""
    rng = random.Random(seed)
    text = " ".join(sentences(50, seed)).split()
    requests = []
    for i in range(count):
        words = rng.randint(3, 60)
        start = rng.randrange(len(text) - words)
        requests.append(
            Request(
                request_id=f"{tag}-{i:05d}",
                prompt=" ".join(text[start : start + words]),
                max_tokens=rng.randint(16, 96),
                temperature=0.0 if i % 2 else 0.8,
            )
        )
    return requests


def _body(request: Request) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "ignore_eos": request.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


class _Stream:
    """The answer of one request while it comes in."""

    def __init__(self, request: Request, start_ns: int, status: int) -> None:
        self.request = request
        self.start_ns = start_ns
        self.status = status
        self.chunks: list[Chunk] = []
        self.usage: dict[str, int] = {}
        self.finish_reason = ""
        self.error = ""

    def take(self, payload: bytes) -> None:
        """One event's data."""
        now_ns = time.monotonic_ns()
        event = json.loads(payload)
        if "error" in event:
            self.error = str(event["error"])
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids") or ()
            if ids:
                self.chunks.append(Chunk(now_ns, tuple(ids)))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.usage = event.get("usage") or self.usage

    def result(self, *, error: str = "") -> Result:
        """What came of it."""
        return Result(
            request=self.request,
            status=self.status,
            start_ns=self.start_ns,
            end_ns=time.monotonic_ns(),
            chunks=tuple(self.chunks),
            prompt_tokens=self.usage.get("prompt_tokens"),
            completion_tokens=self.usage.get("completion_tokens"),
            finish_reason=self.finish_reason,
            error=error or self.error,
        )


async def _one(http: aiohttp.ClientSession, url: str, request: Request) -> Result:
    stream = _Stream(request, time.monotonic_ns(), 0)
    try:
        async with http.post(
            f"{url}/v1/completions",
            json=_body(request),
            headers={"X-Request-Id": request.request_id},
        ) as answer:
            stream.status = answer.status
            if answer.status != 200:
                return stream.result(error=(await answer.text())[:300])
            done = False
            async for line in answer.content:
                if line.startswith(b"data: "):
                    payload = line[6:].strip()
                    if payload == b"[DONE]":
                        done = True
                    else:
                        stream.take(payload)
            return stream.result(error="" if done else "the stream ended without [DONE]")
    except (aiohttp.ClientError, TimeoutError) as exc:
        return stream.result(error=f"{type(exc).__name__}: {exc}")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
    )


async def run_load(url: str, requests: Sequence[Request], *, concurrency: int) -> list[Result]:
    """Send all requests, at most ``concurrency`` at a time; results in the order given."""
    gate = asyncio.Semaphore(concurrency)
    async with _session() as http:

        async def gated(request: Request) -> Result:
            async with gate:
                return await _one(http, url, request)

        return list(await asyncio.gather(*map(gated, requests)))


def load(url: str, requests: Sequence[Request], *, concurrency: int) -> list[Result]:
    """:func:`run_load`, for callers without an event loop."""
    return asyncio.run(run_load(url, requests, concurrency=concurrency))


class Load(threading.Thread):
    """A steady load in the background: always so many requests in flight, until told to stop.

    Args:
        url: The server.
        tag: Begins every request's id.
        streams: Requests in flight.
        limit: Most requests in all.
    """

    def __init__(self, url: str, tag: str, *, streams: int, limit: int = 5000) -> None:
        super().__init__(name=f"load-{tag}")
        self.results: list[Result] = []
        self._url = url
        self.streams = streams
        self._requests = iter(mixed_requests(limit, tag=tag))
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Send until told to stop; ``results`` grows as they come in."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with _session() as http:
            await asyncio.gather(*(self._stream(http) for _ in range(self.streams)))

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        for request in self._requests:
            if self._stop_asked.is_set():
                return
            self.results.append(await _one(http, self._url, request))

    def finish(self) -> list[Result]:
        """Let what is in flight end and return all results.

        Raises:
            TimeoutError: something is still in flight after two timeouts of a request.
        """
        self._stop_asked.set()
        self.join(2 * REQUEST_TIMEOUT_S)
        if self.is_alive():
            raise TimeoutError("the load did not end")
        return self.results
