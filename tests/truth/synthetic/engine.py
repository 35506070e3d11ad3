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

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.wire.schema import (
    Anchor,
    QueueOp,
    SessionEvent,
    TokenPlace,
    WorkerPhase,
)
from tests.truth.synthetic.device import Device
from tests.truth.synthetic.disturb import Disturb
from tests.truth.synthetic.machine import (
    DISK,
    EPOLL,
    FUTEX,
    MS,
    NETWORK,
    SOCKET,
    US,
    ZERO,
    Did,
    Lock,
    Machine,
    Mailbox,
    Process,
    Thread,
    World,
)
from tests.truth.synthetic.records import FIRST_AGENT, KERNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.truth.synthetic.device import Event
    from tests.truth.synthetic.machine import Body
    from tests.truth.synthetic.options import Options
    from tests.truth.synthetic.records import Recorder

READ = World(Category.DISK, DISK)
_CLIENT = World(Category.NETWORK, NETWORK)


@dataclass(eq=False)
class Asked:
    """A request, and every moment of it that the simulator knows."""

    number: int
    prompt: int
    answer: int
    computed: int = 0
    scheduled_tokens: int = 0  # output tokens planned
    produced: int = 0
    received: int = 0
    tokenise_start: int = 0
    tokenised: int = 0
    sent: int = 0
    admitted: int = 0
    first_scheduled: int = 0
    made: list[int] = field(default_factory=list)  # each token's step's update ended
    written: list[int] = field(default_factory=list)
    last_byte: int = 0
    steps: list[int] = field(default_factory=list)

    @property
    def external(self) -> str:
        """The id that the client knows."""
        return f"cmpl-{self.number:06d}-0"

    @property
    def internal(self) -> str:
        """The engine's own."""
        return f"{self.external}-{self.number * 2654435761 & 0xFFFFFFFF:08x}"


@dataclass(eq=False)
class Step:
    """A step, as the core plans it."""

    number: int
    rows: list[tuple[Asked, int, bool]]  # request, tokens, whether it yields one
    scheduled: int = 0
    updated: int = 0
    prompts: int = 0  # rows with tokens of a prompt

    @property
    def tokens(self) -> int:
        """Tokens in it."""
        return sum(tokens for _, tokens, _ in self.rows)

    @property
    def kind(self) -> str:
        """Whose tokens it holds."""
        if not self.prompts:
            return "decode"
        return "prefill" if self.prompts == len(self.rows) else "mixed"


class Queue:
    """A shared-memory queue: one writer at a time, every reader reads every message."""

    def __init__(self, machine: Machine, name: str, readers: int) -> None:
        self.machine, self.name = machine, name
        self.messages: deque[tuple[int, Thread, Any]] = deque()  # visible since, by whom
        self.first = 1
        self.next = [1] * readers
        self.polling: list[Thread | None] = [None] * readers
        self.seq = 0

    def write(self, thread: Thread, item: Any, cost: float = 8) -> Body:
        """Make a message visible to all readers."""
        machine = self.machine
        thread.begin("serialise")
        yield from thread.work(machine.some(cost / 2, cost))
        thread.finish()
        start = machine.now
        yield machine.some(0.1, 0.8)
        ready = machine.now
        yield machine.some(0.5, 3)
        self.seq += 1
        self.messages.append((machine.now, thread, item))
        put, stream = machine.records.put, thread.process.stream
        put(stream, "queue_msg", thread.tid, self.name, int(QueueOp.WRITE), 0, self.seq, start,
            ready, machine.now)  # fmt: skip
        for k, reader in enumerate(self.polling):
            if reader is not None:
                self.polling[k] = None
                machine.at(machine.now, reader.resume)

    def read(self, thread: Thread, k: int = 0) -> Generator[int | None, None, Any]:
        """Poll until the next message is there, and take it."""
        machine = self.machine
        start, seq = machine.now, self.next[k]
        if seq - self.first < len(self.messages):
            yield machine.some(0.1, 0.9)
        else:
            self.polling[k] = thread
            yield None
            yield from self._noticed(thread, start)
        ready = machine.now
        item = self.messages[seq - self.first][2]
        self.next[k] = seq + 1
        while self.messages and min(self.next) > self.first:
            self.messages.popleft()
            self.first += 1
        span, thread.span = thread.span, "deserialise"
        yield machine.some(2, 9)
        thread.span = span
        machine.records.put(thread.process.stream, "queue_msg", thread.tid, self.name,
                            int(QueueOp.READ), k, seq, start, ready, machine.now)  # fmt: skip
        return item

    def _noticed(self, thread: Thread, start: int) -> Body:
        machine = self.machine
        sent, writer, _ = self.messages[-1]
        thread.add(Did.POLL, start, sent, moment=sent, source=writer)
        for lose in (False, True):
            if lose:
                if machine.disturb is None:
                    break
                yield from machine.disturb.while_polling(thread)
            since = machine.now
            yield -machine.some(1.1, 4)
            thread.add(Did.HANDOFF, since, machine.now, category=Category.SPIN_HANDOFF,
                       source=writer)  # fmt: skip


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
        self.to_core = Mailbox(machine, SOCKET)
        self.admissions = Mailbox(machine, FUTEX)
        self.outputs = Mailbox(machine, FUTEX)
        self.broadcast = Queue(machine, "psm_steps", options.ranks)
        self.replies = [Queue(machine, f"psm_reply{r}", 1) for r in range(options.ranks)]
        self.hold = Lock(machine)
        self.devices: list[Device] = []
        self._rowset = {"core": 0, "api": 0}
        self._last_rows: list[tuple[Asked, int, bool]] = []
        self._stated = self._age = 0
        self._threads()
        self._arrivals()

    def _process(self, stream: int, pid: int, role: str) -> Process:
        process = Process(pid, stream, role)
        self.records.process(process, ZERO - MS)
        return process

    def _threads(self) -> None:
        machine = self.machine
        self.loop = Thread(machine, self.api, 1_000, "MainThread", "api.main").start(self._loop())
        self._thread(self.api, 1, "tokeniser_0", "api.other", self._tokeniser)
        self.main = Thread(machine, self.core, 2_000, "MainThread", "core.main")
        self.main.start(self._core())
        self._thread(self.core, 1, "input", "core.input", self._input)
        self._thread(self.core, 2, "output", "core.output", self._output)
        if self.options.hold_us:
            self._thread(self.core, 3, "executor", "core.other", self._executor)
        for r, process in enumerate(self.workers):
            worker = Thread(machine, process, process.pid, "MainThread", f"worker{r}.main")
            results = Mailbox(machine, FUTEX)
            device = Device(machine, process, r, self.options.device)
            self.devices.append(device)
            worker.start(self._worker(r, worker, results, device))
            if self.options.copier:
                copier = Thread(machine, process, process.pid + 1, "copier", f"worker{r}.copy")
                copier.start(self._copier(r, copier, results, device))
        if machine.disturb is not None:
            for process in (self.api, self.core, *self.workers):
                machine.disturb.inhabit(process)

    def _thread(
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
        rowset = self._state(thread, "api", [(asked, 1, False) for asked in given])
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
                self._tokens(thread, TokenPlace.FRONTEND, asked)
                self.left -= 1
        yield self.machine.some(1, 4)

    def _tokens(self, thread: Thread, place: TokenPlace, asked: Asked) -> None:
        digest = asked.number * 7919 + asked.answer
        self.records.put(thread.process.stream, "tokens", asked.internal, int(place),
                         asked.answer, digest, self.machine.now, "length")  # fmt: skip

    def _state(self, thread: Thread, who: str, rows: list[tuple[Asked, int, bool]]) -> int:
        """State a rowset; returns its number."""
        self._rowset[who] += 1
        number, put, stream = self._rowset[who], self.records.put, thread.process.stream
        for k, (asked, tokens, must) in enumerate(rows):
            put(stream, "step_rows", number, k, asked.internal, tokens, asked.computed,
                asked.prompt, 0, int(must))  # fmt: skip
        return number

    # --- the engine core

    def _input(self, thread: Thread) -> Body:
        while True:
            asked = yield from self.to_core.get(thread)
            yield from thread.work(self.cost(self.costs.receive))
            self.admissions.put(asked, thread)
            yield self.machine.some(1, 3)

    def _output(self, thread: Thread) -> Body:
        while True:
            item = yield from self.outputs.get(thread)
            yield from thread.work(self.cost(self.costs.receive))
            self.events.put(("out", item), thread)
            yield self.machine.some(1, 3)

    def _executor(self, thread: Thread) -> Body:
        """Takes the lock that scheduling needs, for long."""
        yield from thread.sleep(2 * MS)
        yield self.machine.some(5, 20)
        yield from self.hold.acquire(thread)
        yield int(self.options.hold_us * US)
        self.hold.release(thread)
        yield self.machine.some(5, 20)

    def _core(self) -> Body:
        thread, flying = self.main, deque[Step]()
        waiting: deque[Asked] = deque()
        running: list[Asked] = []
        while True:
            while self.admissions.items or not (waiting or running or flying):
                asked = yield from self.admissions.get(thread)
                yield from thread.work(self.cost(self.costs.admit))
                asked.admitted = self.anchor(thread, Anchor.ADMITTED, asked, value=asked.prompt)
                yield self.machine.some(1, 3)
                waiting.append(asked)
            if len(flying) < self.options.depth and (waiting or running):
                step = yield from self._schedule(thread, waiting, running)
                if step is not None:
                    flying.append(step)
                    if len(flying) < self.options.depth:
                        continue
            if flying:
                yield from self._collect(thread, flying.popleft())
            yield self.machine.some(1, 3)

    def _plan(self, waiting: deque[Asked], running: list[Asked]) -> list[tuple[Asked, int, bool]]:
        """Decode first, then prompts in order of admission, within the budgets."""
        budget = self.options.budget
        while waiting and len(running) < self.options.batch:
            running.append(waiting.popleft())
        rows = []
        decoding = any(asked.computed >= asked.prompt for asked in running)
        for asked in running:
            left = asked.prompt - asked.computed
            if left <= 0:
                tokens, must = 1, True
            else:
                cap = self.options.cap
                tokens = min(left, budget, cap if cap and decoding else budget)
                must = tokens == left
            if budget < tokens or not tokens:
                continue
            budget -= tokens
            rows.append((asked, tokens, must))
        return rows

    def _schedule(
        self, thread: Thread, waiting: deque[Asked], running: list[Asked]
    ) -> Generator[int | None, None, Step | None]:
        number = len(self.steps) + 1
        rows = self._plan(waiting, running)
        if not rows:
            return None
        step = Step(number, rows)
        self.steps.append(step)
        thread.begin("schedule", number)
        if self.options.hold_us:
            yield from self.hold.acquire(thread)
            yield self.machine.some(5, 20)
            self.hold.release(thread)
        yield from thread.work(self.cost(self.costs.schedule))
        step.scheduled, end = thread.finish()
        yield self.machine.some(0.5, 2)
        handed = self.machine.now
        rowset = self._rows_of(thread, rows)
        self.records.put(thread.process.stream, "step_begin", number, thread.tid, step.scheduled,
                         end, handed, rowset, self._age, len(rows), step.tokens,
                         len(waiting))  # fmt: skip
        for asked, tokens, must in rows:
            asked.first_scheduled = asked.first_scheduled or step.scheduled
            asked.steps.append(number)
            step.prompts += asked.computed < asked.prompt
            asked.computed += tokens
            asked.scheduled_tokens += must
            if asked.scheduled_tokens == asked.answer:
                running.remove(asked)
        thread.begin("execute", number)
        yield from self.broadcast.write(thread, step)
        thread.finish()
        return step

    def _rows_of(self, thread: Thread, rows: list[tuple[Asked, int, bool]]) -> int:
        """The rowset of a step: the last one, where nothing but its age has changed."""
        if rows == self._last_rows:
            self._age += 1
            return self._stated
        self._last_rows, self._age = rows, 0
        self._stated = self._state(thread, "core", rows)
        return self._stated

    def _collect(self, thread: Thread, step: Step) -> Body:
        for queue in self.replies:
            yield from queue.read(thread)
        put, stream = self.records.put, thread.process.stream
        put(stream, "step_end", step.number, thread.tid, self.machine.now, 0, "")
        yield self.machine.some(1, 3)
        thread.begin("update", step.number)
        yield from thread.work(self.cost(self.costs.update))
        given = [asked for asked, _, must in step.rows if must]
        finished = [asked for asked in given if asked.produced + 1 == asked.answer]
        for asked in finished:
            self.anchor(thread, Anchor.FINISHED, asked, value=asked.answer, detail="length")
            self._tokens(thread, TokenPlace.ENGINE, asked)
        start, step.updated = thread.finish()
        for asked in given:
            asked.produced += 1
            asked.made.append(step.updated)
        stamp = step.updated - 1 if given else 0
        rowset = self._state(thread, "core", [(asked, 1, False) for asked in given])
        put(stream, "step_update", step.number, thread.tid, start, step.updated, stamp,
            rowset if given else 0, len(given), len(finished))  # fmt: skip
        yield self.machine.some(1, 3)
        if given:
            self.outputs.put((stamp, given), thread)
            yield self.machine.some(1, 3)

    # --- the workers

    def _worker(self, r: int, thread: Thread, results: Mailbox, device: Device) -> Body:
        costs, put = self.costs, self.records.put
        # A process of which no wait is recorded counts as not traced.
        yield from thread.sleep(self.machine.some(5, 10))
        yield self.machine.some(1, 3)
        while True:
            step = yield from self.broadcast.read(thread, r)
            thread.begin("execute", step.number)
            yield from thread.work(self.cost(costs.prepare))
            if device:
                yield from device.forward(thread, step.number, step.tokens)
            else:
                tokens = costs.per_token * step.tokens
                yield from thread.work(self.cost(costs.execute + tokens))
            start, end = thread.finish()
            put(thread.process.stream, "worker_step", step.number, thread.tid, r,
                int(WorkerPhase.EXECUTE), start, end, 0)  # fmt: skip
            yield self.machine.some(1, 4)
            thread.begin("sample", step.number)
            yield from thread.work(self.cost(costs.sample))
            event: Event | None = None
            if device:
                event = yield from device.results(thread)
            if not self.options.copier and event is not None:
                yield from device.wait(thread, event)
            start, end = thread.finish()
            put(thread.process.stream, "worker_step", step.number, thread.tid, r,
                int(WorkerPhase.SAMPLE), start, end, 0)  # fmt: skip
            yield self.machine.some(1, 4)
            if self.options.copier:
                results.put((step, event), thread)
            else:
                yield from thread.work(self.cost(costs.reply))
                yield from self.replies[r].write(thread, step)
            yield self.machine.some(1, 3)

    def _copier(self, r: int, thread: Thread, results: Mailbox, device: Device) -> Body:
        while True:
            step, event = yield from results.get(thread)
            yield self.machine.some(1, 4)
            if event is not None:
                yield from device.wait(thread, event)
            yield from thread.work(self.cost(self.costs.reply))
            yield from self.replies[r].write(thread, step)
            yield self.machine.some(1, 3)
