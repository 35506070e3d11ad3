# SPDX-License-Identifier: Apache-2.0
"""HTTP exchanges as the server sees them, and names for the event loop's work.

The server's application is wrapped as the outermost one, so that an exchange is seen before
anything reads its body and after everything has written it. Each resumption of its coroutine,
and of the tasks started on its behalf, is timed: those slices are what the event loop's thread
was doing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import PART_HTTP
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.traceparent import from_headers
from gpucorrelate.probes.wire.schema import Anchor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent, Part

#: Number of the HTTP exchange on whose behalf the current task runs; 0: none.
EXCHANGE: ContextVar[int] = ContextVar("gpucorrelate_exchange", default=0)
#: What the slices of tasks created from here are called; empty: they are not timed.
_NAME: ContextVar[str] = ContextVar("gpucorrelate_name", default="")

#: Slices shorter than this are not reported.
MIN_SLICE_NS = 20_000

#: Last parts of paths on which requests are made of the engine.
INFERENCE_PATHS = (
    "/completions",
    "/chat/completions",
    "/chat/completions/batch",
    "/responses",
    "/messages",
    "/embeddings",
    "/embed",
    "/generate",
    "/invocations",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/generative_scoring",
    "/audio/transcriptions",
    "/audio/translations",
    "/v2/chat",
)

_RECEIVED = int(Anchor.RECEIVED)
_CHUNK_START, _CHUNK_END = int(Anchor.CHUNK_START), int(Anchor.CHUNK_END)
_LAST_BYTE, _DISCONNECT = int(Anchor.LAST_BYTE), int(Anchor.HTTP_DISCONNECT)
_FAILED = int(Anchor.FAILED)
_WRAPPED = "_gpucorrelate_app"


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the server's configuration, which is where the application comes together."""
    part = agent.part(PART_HTTP)
    if not checked(part, module):
        return

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(config: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(config, *args, **kwargs)
            try:
                app = config.loaded_app
                if not isinstance(app, App):
                    config.loaded_app = App(agent, app)
            except Exception as error:  # noqa: BLE001
                part.fault(error)
            return result

        return load

    wrap(module.Config, "load", loading)


class App:
    """An ASGI application around another, which reports the exchanges that ask for inference."""

    def __init__(self, agent: Agent, app: Callable[..., Awaitable[Any]]) -> None:
        self._agent = agent
        self._app = app
        self._part = agent.part(PART_HTTP)
        self._numbers = count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[Any]:
        """The application's own coroutine, or that of an exchange around it."""
        kind = scope["type"]
        if kind == "lifespan":
            self._serving()
        if not self._part.on or kind != "http" or not wanted(scope):
            return self._app(scope, receive, send)
        try:
            exchange = _Exchange(self._agent, self._part, scope, next(self._numbers))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)
            return self._app(scope, receive, send)
        return Slices(self._part, exchange.slice, exchange.run(self._app, scope, receive, send))

    def _serving(self) -> None:
        try:
            self._agent.role("api")
            time_tasks(self._agent, asyncio.get_running_loop())
            self._part.works()
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)


def wanted(scope: Any) -> bool:
    """Whether an HTTP scope asks the engine for something."""
    path = str(scope.get("path", ""))
    return scope.get("method") == "POST" and path.endswith(INFERENCE_PATHS)


def _header(scope: Any, name: bytes) -> str:
    for key, value in scope.get("headers") or ():
        if key.lower() == name:
            return str(value.decode("latin-1"))[:200]
    return ""


class _Exchange:
    """One HTTP request and its response."""

    def __init__(self, agent: Agent, part: Part, scope: Any, number: int) -> None:
        self._part = part
        self._number = number
        self._put = agent.rows("request").put
        self._flat = agent.rows("request.flat").put
        self._spans = agent.rows("span").put
        self._name = agent.texts.number("http")
        self._status = 0
        self._ended = False
        external = _header(scope, b"x-request-id")
        path = str(scope.get("path", ""))
        self._anchor(_RECEIVED, 0, f"{path} {external}" if external else path)
        trace = from_headers(scope.get("headers") or ())
        if trace is not None:
            put = agent.rows("trace_context").put
            put(("", number, time.monotonic_ns(), *trace))

    def _anchor(self, anchor: int, value: int, detail: str | None = None) -> None:
        tid, now = threading.get_native_id(), time.monotonic_ns()
        self._put(("", self._number, anchor, now, tid, value, detail))

    def slice(self, start: int, end: int) -> None:
        """The event loop ran this exchange's code from ``start`` to ``end``."""
        self._spans((threading.get_native_id(), self._name, start, end, 0))

    async def run(self, app: Callable[..., Any], scope: Any, receive: Any, send: Any) -> Any:
        number, name = EXCHANGE.set(self._number), _NAME.set("http")
        try:
            return await app(scope, self._receiving(receive), self._sending(send))
        except BaseException as error:
            if not self._ended:
                # Not its text: what is wrong with a request may be said in the request's words.
                self._anchor(_FAILED, 0, type(error).__name__)
            raise
        finally:
            EXCHANGE.reset(number)
            _NAME.reset(name)

    def _receiving(self, receive: Any) -> Any:
        async def receive_(*args: Any, **kwargs: Any) -> Any:
            message = await receive(*args, **kwargs)
            if message.get("type") == "http.disconnect" and not self._ended:
                self._ended = True
                self._anchor(_DISCONNECT, 0)
            return message

        return receive_

    def _sending(self, send: Any) -> Any:
        put, number = self._flat, self._number
        now, tid = time.monotonic_ns, threading.get_native_id

        async def send_(message: Any) -> None:
            if message["type"] != "http.response.body":
                self._status = int(message.get("status", self._status))
                await send(message)
                return
            size = len(message.get("body", b""))
            thread = tid()
            if size:
                put((0, number, _CHUNK_START, now(), thread, size, 0))
            await send(message)
            end = now()
            if size:
                put((0, number, _CHUNK_END, end, thread, size, 0))
            if not message.get("more_body", False) and not self._ended:
                self._ended = True
                put((0, number, _LAST_BYTE, end, thread, self._status, 0))

        return send_


class Slices(Coroutine[Any, Any, Any]):
    """A coroutine whose every resumption is timed.

    Everything else that is asked of a coroutine is answered by the one inside, so that tasks,
    debuggers and async libraries see no difference.
    """

    __slots__ = ("_inner", "_part", "_report")

    def __init__(
        self, part: Part, report: Callable[[int, int], None], inner: Coroutine[Any, Any, Any]
    ) -> None:
        self._part = part
        self._report = report
        self._inner = inner

    def send(self, value: Any) -> Any:
        """Resume the coroutine."""
        if not self._part.on:
            return self._inner.send(value)
        start = time.monotonic_ns()
        try:
            return self._inner.send(value)
        finally:
            end = time.monotonic_ns()
            if end - start >= MIN_SLICE_NS:
                self._report(start, end)

    def throw(self, *error: Any) -> Any:
        """Raise in the coroutine."""
        return self._inner.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> Slices:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def naming(agent: Agent, name: str) -> Iterator[None]:
    """Tasks created within belong to no exchange, and their slices carry this name."""
    try:
        time_tasks(agent, asyncio.get_running_loop())
    except Exception as error:  # noqa: BLE001 - no running loop, or one that takes no factory
        if not isinstance(error, RuntimeError):
            agent.part(PART_HTTP).fault(error)
    number, token = EXCHANGE.set(0), _NAME.set(name)
    try:
        yield
    finally:
        EXCHANGE.reset(number)
        _NAME.reset(token)


def time_tasks(agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop's tasks that are created under a name timed; once per loop."""
    before = loop.get_task_factory()
    if getattr(before, _WRAPPED, False):
        return
    part, put = agent.part(PART_HTTP), agent.rows("span").put
    reports: dict[str, Callable[[int, int], None]] = {}

    def report_as(name: str) -> Callable[[int, int], None]:
        found = reports.get(name)
        if found is None:
            tid, number = threading.get_native_id, agent.texts.number(name)

            def found(start: int, end: int) -> None:
                put((tid(), number, start, end, 0))

            reports[name] = found
        return found

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        name = _NAME.get()
        # One that is named for itself lives as long as the server, started or not.
        if name and (part.on or name != "http") and isinstance(coro, Coroutine):
            coro = Slices(part, report_as(name), coro)
        if before is not None:
            return before(loop, coro, **kwargs)
        return asyncio.Task(coro, loop=loop, **kwargs)

    setattr(factory, _WRAPPED, True)
    loop.set_task_factory(factory)
