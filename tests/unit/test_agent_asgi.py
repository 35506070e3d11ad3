# SPDX-License-Identifier: Apache-2.0
"""HTTP exchanges, seen around a real ASGI application on a real event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from array import array
from types import ModuleType

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm import asgi, contract
from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import Anchor

A = Anchor


def scope(path="/v1/completions", method="POST", **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": pairs}


class Client:
    """What a server gives an application: something to receive and somewhere to send."""

    def __init__(self, *messages):
        self.messages = list(messages) or [{"type": "http.request", "body": b"{}"}]
        self.sent = []

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits that long")

    async def send(self, message):
        await asyncio.sleep(0)
        self.sent.append(message)


async def respond(send, *chunks, status=200):
    await send({"type": "http.response.start", "status": status, "headers": []})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
def agent(tmp_path):
    agent = Agent("vllm", str(tmp_path / "nobody"))
    agent.started("s")
    for rows in agent._rows.values():
        rows.take()
    return agent


def taken(agent, name):
    """Rows of a kind as a reader gets them, its flat ones included, by time."""
    strings = StringTable()
    rows: list[tuple] = []
    for part in [part for part in agent._rows if part.partition(".")[0] == name]:
        buffer = agent.rows(part)
        _, columns = buffer.columns(buffer.take(), strings)
        values = []
        for column, data in zip(buffer.kind.columns, columns, strict=False):
            texts = {index: text for text, index in strings._ids.items()} | {0: ""}
            numbers = array(column.code, data)
            values.append([texts[n] for n in numbers] if column.ctype == "str" else numbers)
        rows += zip(*values, strict=True)
    return sorted(rows, key=lambda row: row[3])


def anchors(agent):
    return [(A(row[2]), row[1], row[5]) for row in taken(agent, "request")]


def exchange(agent, app, given=None, client=None):
    client = client or Client()
    wrapped = asgi.App(agent, app)

    async def main():
        return await wrapped(given or scope(), client.receive, client.send)

    asyncio.run(main())
    return client


def test_a_streamed_response_chunk_by_chunk(agent):
    async def app(scope, receive, send):
        await receive()
        await respond(send, b"one", b"three")

    client = exchange(agent, app)
    assert [message.get("body") for message in client.sent] == [None, b"one", b"three", b""]
    assert anchors(agent) == [
        (A.RECEIVED, 1, 0),
        (A.CHUNK_START, 1, 3),
        (A.CHUNK_END, 1, 3),
        (A.CHUNK_START, 1, 5),
        (A.CHUNK_END, 1, 5),
        (A.LAST_BYTE, 1, 200),
    ]


def test_received_tells_the_path_and_the_callers_id(agent):
    async def app(scope, receive, send):
        await respond(send, status=422)

    exchange(agent, app, scope("/prefix/v1/chat/completions", x_request_id="mine"))
    rows = taken(agent, "request")
    assert rows[0][6] == "/prefix/v1/chat/completions mine"
    assert rows[-1][5] == 422


@pytest.mark.parametrize(
    "given",
    [
        scope(method="GET"),
        scope("/metrics"),
        scope("/v1/load_lora_adapter"),
        {"type": "websocket", "path": "/v1/completions", "headers": []},
    ],
)
def test_other_exchanges_are_not_looked_at(agent, given):
    async def app(scope, receive, send):
        assert asgi.EXCHANGE.get() == 0
        await respond(send, b"x")

    exchange(agent, app, given)
    assert anchors(agent) == []


def test_dormant_it_hands_everything_through(agent):
    agent.stopped()
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))
        return "result"

    client, given = Client(), scope()
    wrapped = asgi.App(agent, app)
    assert inspect.iscoroutine(coroutine := wrapped(given, client.receive, client.send))
    assert asyncio.run(coroutine) == "result"
    assert seen == [(given, client.receive, client.send)]
    assert anchors(agent) == []


def test_exchanges_are_told_apart_in_their_tasks(agent):
    seen = {}

    async def child(name):
        await asyncio.sleep(0)
        seen[name] = asgi.EXCHANGE.get()

    async def app(scope, receive, send):
        own = asgi.EXCHANGE.get()
        name = scope["headers"][0][1]
        await asyncio.gather(*(asyncio.create_task(child((name, n))) for n in range(3)))
        assert asgi.EXCHANGE.get() == own
        await respond(send)

    wrapped = asgi.App(agent, app)

    async def main():
        client = Client()
        await asyncio.gather(
            *(wrapped(scope(name=str(n)), client.receive, client.send) for n in range(4))
        )
        assert asgi.EXCHANGE.get() == 0

    asyncio.run(main())
    by_exchange: dict[bytes, set[int]] = {}
    for (name, _), number in seen.items():
        by_exchange.setdefault(name, set()).add(number)
    assert sorted(by_exchange.values(), key=sorted) == [{1}, {2}, {3}, {4}]


def test_a_client_that_goes_away(agent):
    async def app(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    exchange(agent, app, client=Client({"type": "http.request"}, {"type": "http.disconnect"}))
    assert [anchor for anchor, _, _ in anchors(agent)] == [A.RECEIVED, A.HTTP_DISCONNECT]


def test_a_disconnect_after_the_last_byte_is_none(agent):
    async def app(scope, receive, send):
        await respond(send)
        await receive()

    exchange(agent, app, client=Client({"type": "http.disconnect"}))
    assert [anchor for anchor, _, _ in anchors(agent)] == [A.RECEIVED, A.LAST_BYTE]


def test_an_application_that_raises_raises(agent):
    async def app(scope, receive, send):
        raise LookupError("no answer to 'the prompt'")

    with pytest.raises(LookupError, match="the prompt"):
        exchange(agent, app)
    rows = taken(agent, "request")
    assert [A(row[2]) for row in rows] == [A.RECEIVED, A.FAILED]
    assert rows[1][6] == "LookupError", "what was wrong may be said in the prompt's words"


def test_cancelling_reaches_the_application(agent):
    ended = []

    async def app(scope, receive, send):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(asgi.EXCHANGE.get())

    wrapped = asgi.App(agent, app)

    async def main():
        client = Client()
        coroutine = wrapped(scope(), client.receive, client.send)
        task: asyncio.Future[None] = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == [1]


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def slices(agent):
    return [(row[1], row[3] - row[2]) for row in taken(agent, "span")]


def test_resumptions_are_slices_and_waiting_is_not(agent):
    async def app(scope, receive, send):
        busy(0.003)
        await asyncio.sleep(0.05)
        busy(0.002)
        await asyncio.sleep(0)
        await respond(send)

    start = time.monotonic_ns()
    exchange(agent, app)
    took = time.monotonic_ns() - start
    found = slices(agent)
    assert {name for name, _ in found} == {"http"}
    long = [length for _, length in found if length >= 1_900_000]
    assert len(long) == 2
    assert sum(length for _, length in found) < took - 45_000_000


def test_tasks_started_for_an_exchange_are_timed_and_others_are_not(agent):
    async def work():
        busy(0.002)

    async def app(scope, receive, send):
        await asyncio.create_task(work())
        await respond(send)

    wrapped = asgi.App(agent, app)

    async def main():
        asgi.time_tasks(agent, asyncio.get_running_loop())
        asgi.time_tasks(agent, asyncio.get_running_loop())
        await asyncio.create_task(work())
        assert slices(agent) == []
        client = Client()
        await wrapped(scope(), client.receive, client.send)

    asyncio.run(main())
    assert len([length for _, length in slices(agent) if length >= 1_900_000]) == 1


def test_a_named_task_is_timed_whenever_the_agent_is_started(agent):
    agent.stopped()
    turns = asyncio.Semaphore(0)

    async def handler() -> None:
        while True:
            await turns.acquire()
            busy(0.001)

    async def main():
        with asgi.naming(agent, "output_handler"):
            task: asyncio.Task[None] = asyncio.create_task(handler())
        assert asgi.EXCHANGE.get() == 0
        turns.release()
        await asyncio.sleep(0.02)
        assert slices(agent) == []
        agent.started("again")
        turns.release()
        await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(main())
    assert [name for name, _ in slices(agent)] == ["output_handler"]


def test_a_task_factory_that_is_there_is_kept(agent):
    made = []

    def factory(loop, coro, **kwargs):
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **kwargs)

    async def work():
        return 5

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        asgi.time_tasks(agent, loop)
        return await asyncio.create_task(work(), name="named")

    assert asyncio.run(main()) == 5
    assert made[0].__qualname__.endswith("work")


def test_a_timed_coroutine_looks_like_the_one_inside(agent):
    async def work():
        await asyncio.sleep(0.01)

    inner = work()
    timed = asgi.Slices(agent.part("x"), lambda start, end: None, inner)
    assert asyncio.iscoroutine(timed)
    assert inspect.getcoroutinestate(timed) == inspect.CORO_CREATED
    assert timed.cr_code is work.__code__
    assert timed.__qualname__ == work.__qualname__

    async def main():
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(timed)
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(timed) == inspect.CORO_SUSPENDED
        await task

    asyncio.run(main())
    assert inspect.getcoroutinestate(timed) == inspect.CORO_CLOSED


def test_the_servers_configuration_gets_the_wrapped_application_once(agent):
    class Config:
        def __init__(self, app):
            self.app = self.loaded_app = app

        def load(self):
            return "loaded"

    async def app(scope, receive, send):
        return None

    module = ModuleType(contract.UVICORN)
    module.__dict__["Config"] = Config
    asgi.install(agent, module)
    config = Config(app)
    assert config.load() == config.load() == "loaded"
    assert isinstance(config.loaded_app, asgi.App)
    assert config.loaded_app._app is app
