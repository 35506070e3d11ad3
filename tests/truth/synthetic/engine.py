# SPDX-License-Identifier: Apache-2.0
"""A serving engine: an API server, an engine core and the workers of its ranks.

The API server's event loop receives, hands prompts to a tokeniser thread, sends requests to the
core and streams what comes back. The core has a thread for each direction of its sockets, and a
main thread that admits, schedules, broadcasts each step to the workers through shared memory,
polls for their replies and takes in results; with ``depth`` above 1 it does not wait for a step
before it hands over the next. Workers poll for steps, execute and reply, themselves or by a
thread that waits for results.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import (
    Anchor,
    SessionEvent,
    TokenPlace,
)
from tests.truth.synthetic.core import Core
from tests.truth.synthetic.disturb import Disturb
from tests.truth.synthetic.machine import (
    DISK,
    EPOLL,
    FUTEX,
    MS,
    NETWORK,
    US,
    ZERO,
    Did,
    Machine,
    Mailbox,
    Process,
    Thread,
    World,
)
from tests.truth.synthetic.queue import Queue
from tests.truth.synthetic.records import FIRST_AGENT, KERNEL
from tests.truth.synthetic.worker import Worker
from tests.truth.synthetic.workload import Asked, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.truth.synthetic.machine import Body
    from tests.truth.synthetic.options import Options
    from tests.truth.synthetic.records import Recorder

READ = World(Category.DISK, DISK)
_CLIENT = World(Category.NETWORK, NETWORK)


class Engine:
    """Builds the processes and plays a workload."""

    def __init__(self, options: Options, records: Recorder) -> None:
        self.options, self.records, self.costs = options, records, options.costs
        self.machine = machine = Machine(options, records)
        if any(vars(options.rates).values()):
            machine.disturb = Disturb(machine, options.rates)
        records.stream(KERNEL, 0, "ebpf", "")
        self.requests: list[Asked] = []
        self.steps: list[Step] = []
        self.by_id: dict[str, Asked] = {}
        self.left = options.requests + options.long
        self.api = self._process(FIRST_AGENT, 1_000, "api")
        self.core = self._process(FIRST_AGENT + 1, 2_000, "core")
        self.workers = [
            self._process(FIRST_AGENT + 2 + r, 3_000 + 100 * r, "worker")
            for r in range(options.ranks)
        ]
        self.events = Mailbox(machine, EPOLL)  # of the API server's loop
        self.prompts = Mailbox(machine, FUTEX)
        self.broadcast = Queue(machine, "psm_steps", options.ranks)
        self.replies = [Queue(machine, f"psm_reply{r}", 1) for r in range(options.ranks)]
        self._rowset = {"core": 0, "api": 0}
        self._threads()
        self._arrivals()

    def _process(self, stream: int, pid: int, role: str) -> Process:
        process = Process(pid, stream, role)
        self.records.process(process, ZERO - MS)
        return process

    def _threads(self) -> None:
        machine = self.machine
        self.loop = Thread(machine, self.api, 1_000, "MainThread", "api.main").start(self._loop())
        self.thread(self.api, 1, "tokeniser_0", "api.other", self._tokeniser)
        core = Core(self, self.core)
        self.main, self.to_core = core.thread, core.inbox
        workers = [Worker(self, process, r) for r, process in enumerate(self.workers)]
        self.devices = [worker.device for worker in workers]
        if machine.disturb is not None:
            for process in (self.api, self.core, *self.workers):
                machine.disturb.inhabit(process)

    def thread(
        self, process: Process, k: int, name: str, role: str, body: Callable[[Thread], Body]
    ) -> None:
        thread = Thread(self.machine, process, process.pid + k, name, role)
        thread.start(body(thread))

    def _arrivals(self) -> None:
        options, chance = self.options, self.machine.random
        for number in range(options.requests + options.long):
            prompt = options.prompt if number < options.requests else options.long_prompt
            asked = Asked(number, chance.randint(*prompt), chance.randint(*options.answer))
            self.requests.append(asked)
            self.by_id[asked.external] = asked
            moment = ZERO + MS + int(chance.random() * options.spread_us * US)
            self.machine.at(moment, partial(self.events.put, ("new", asked), _CLIENT))

    def play(self) -> None:
        """Until every request is answered, and everybody waits again."""
        machine = self.machine
        deadline = ZERO + 3_600 * 1_000 * MS
        while self.left and machine.heap:
            machine.run(min(machine.heap[0][0] + 50 * MS, deadline))
        if machine.disturb is not None:
            machine.disturb.over = True
        machine.run(machine.now + 50 * MS)
        for device in self.devices:
            device.settle()
        self.end = machine.now + MS
        machine.open_waits(self.end)
        self.records.session(self.end, SessionEvent.DETACHED)
        self.records.flush(self.end)

    def cost(self, mean: float) -> int:
        """A length around a mean."""
        spread = self.options.spread
        return self.machine.some(mean * (1 - spread), mean * (1 + spread))

    # --- the API server

    def anchor(self, thread: Thread, anchor: Anchor, asked: Asked, *, http=False, both=False,
               value=0, detail="") -> int:  # fmt: skip
        """A moment in a request's life, told by the thread that lives it."""
        now = self.machine.now
        name = "" if http and not both else asked.internal
        number = asked.number + 1 if http or both else 0
        self.records.put(thread.process.stream, "request", name, number, int(anchor), now,
                         thread.tid, value, detail)  # fmt: skip
        return now

    def _loop(self) -> Body:
        thread = self.loop
        handlers: dict[str, Callable[[Thread, Any], Body]]
        handlers = {"new": self._received, "tokenised": self._send, "out": self._stream}
        while True:
            what, item = yield from self.events.get(thread)
            yield from thread.work(self.machine.some(2, 8))
            yield from handlers[what](thread, item)

    def _received(self, thread: Thread, asked: Asked) -> Body:
        asked.received = self.anchor(thread, Anchor.RECEIVED, asked, http=True,
                                     detail=f"/v1/completions {asked.external}")  # fmt: skip
        thread.begin("http")
        yield from thread.work(self.cost(self.costs.parse))
        thread.finish()
        asked.tokenise_start = self.anchor(thread, Anchor.TOKENISE_START, asked)
        yield self.machine.some(1, 3)
        self.prompts.put(asked, thread)
        yield self.machine.some(1, 3)

    def _tokeniser(self, thread: Thread) -> Body:
        while True:
            asked = yield from self.prompts.get(thread)
            yield self.machine.some(2, 5)
            thread.begin("tokenise")
            if self.costs.vocabulary:
                yield from thread.world(READ, int(self.costs.vocabulary * US), Did.WORK)
            yield from thread.work(self.cost(self.costs.tokenise))
            thread.finish()
            asked.tokenised = self.anchor(thread, Anchor.TOKENISED, asked, value=asked.prompt)
            yield self.machine.some(1, 3)
            self.events.put(("tokenised", asked), thread)
            yield self.machine.some(1, 3)

    def _send(self, thread: Thread, asked: Asked) -> Body:
        self.anchor(thread, Anchor.LINKED, asked, both=True, detail=asked.external)
        thread.begin("send")
        yield from thread.work(self.cost(self.costs.send))
        self.to_core.put(asked, thread)
        yield self.machine.some(1, 3)
        thread.finish()
        asked.sent = self.anchor(thread, Anchor.SENT, asked, value=asked.prompt)
        yield self.machine.some(1, 3)

    def _stream(self, thread: Thread, item: tuple[int, list[Asked]]) -> Body:
        stamp, given = item
        thread.begin("output")
        yield from thread.work(self.cost(self.costs.output))
        start, end = thread.finish()
        rowset = self.state(thread, "api", [(asked, 1, False) for asked in given])
        self.records.put(thread.process.stream, "outputs", thread.tid, start, end, stamp, rowset,
                         len(given))  # fmt: skip
        for asked in given:
            yield self.machine.some(0.5, 2)
            self.anchor(thread, Anchor.CHUNK_START, asked, http=True, value=64)
            thread.begin("http")
            yield from thread.work(self.cost(self.costs.chunk))
            thread.finish()
            asked.written.append(self.anchor(thread, Anchor.CHUNK_END, asked, http=True, value=64))
            if len(asked.written) == asked.answer:
                yield self.machine.some(2, 8)
                asked.last_byte = self.anchor(
                    thread, Anchor.LAST_BYTE, asked, http=True, value=200
                )
                self.tokens(thread, TokenPlace.FRONTEND, asked)
                self.left -= 1
        yield self.machine.some(1, 4)

    def tokens(self, thread: Thread, place: TokenPlace, asked: Asked) -> None:
        digest = asked.number * 7919 + asked.answer
        self.records.put(thread.process.stream, "tokens", asked.internal, int(place),
                         asked.answer, digest, self.machine.now, "length")  # fmt: skip

    def state(self, thread: Thread, who: str, rows: list[tuple[Asked, int, bool]]) -> int:
        """State a rowset; returns its number."""
        self._rowset[who] += 1
        number, put, stream = self._rowset[who], self.records.put, thread.process.stream
        for k, (asked, tokens, must) in enumerate(rows):
            put(stream, "step_rows", number, k, asked.internal, tokens, asked.computed,
                asked.prompt, 0, int(must))  # fmt: skip
        return number
