# SPDX-License-Identifier: Apache-2.0
"""The engine core: it admits, schedules, hands steps to the workers and takes their results in.

A thread takes what comes in from its socket, another sends what goes out. The main thread polls
for the replies of a step; with ``depth`` above 1 it hands over the next step before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.schema import Anchor, TokenPlace
from tests.truth.synthetic.machine import FUTEX, MS, SOCKET, US, Lock, Mailbox, Thread
from tests.truth.synthetic.workload import Asked, Step

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.truth.synthetic.engine import Engine
    from tests.truth.synthetic.machine import Body, Process


class Core:
    """Threads of the engine core's process."""

    def __init__(self, engine: Engine, process: Process) -> None:
        self.engine, self.machine, self.records = engine, engine.machine, engine.records
        self.options, self.costs = engine.options, engine.costs
        self.inbox = Mailbox(self.machine, SOCKET)
        self.admissions = Mailbox(self.machine, FUTEX)
        self.outputs = Mailbox(self.machine, FUTEX)
        self.hold = Lock(self.machine)
        self._last_rows: list[tuple[Asked, int, bool]] = []
        self._stated = self._age = 0
        self.thread = Thread(self.machine, process, process.pid, "MainThread", "core.main")
        self.thread.start(self._main())
        engine.thread(process, 1, "input", "core.input", self._input)
        engine.thread(process, 2, "output", "core.output", self._output)
        if self.options.hold_us:
            engine.thread(process, 3, "executor", "core.other", self._executor)

    def _input(self, thread: Thread) -> Body:
        while True:
            asked = yield from self.inbox.get(thread)
            yield from thread.work(self.engine.cost(self.costs.receive))
            self.admissions.put(asked, thread)
            yield self.machine.some(1, 3)

    def _output(self, thread: Thread) -> Body:
        while True:
            item = yield from self.outputs.get(thread)
            yield from thread.work(self.engine.cost(self.costs.receive))
            self.engine.events.put(("out", item), thread)
            yield self.machine.some(1, 3)

    def _executor(self, thread: Thread) -> Body:
        """Takes the lock that scheduling needs, for long."""
        yield from thread.sleep(2 * MS)
        yield self.machine.some(5, 20)
        yield from self.hold.acquire(thread)
        yield int(self.options.hold_us * US)
        self.hold.release(thread)
        yield self.machine.some(5, 20)

    def _main(self) -> Body:
        thread, flying = self.thread, deque[Step]()
        waiting: deque[Asked] = deque()
        running: list[Asked] = []
        while True:
            while self.admissions.items or not (waiting or running or flying):
                asked = yield from self.admissions.get(thread)
                yield from thread.work(self.engine.cost(self.costs.admit))
                asked.admitted = self.engine.anchor(
                    thread, Anchor.ADMITTED, asked, value=asked.prompt
                )
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
        number = len(self.engine.steps) + 1
        rows = self._plan(waiting, running)
        if not rows:
            return None
        step = Step(number, rows)
        self.engine.steps.append(step)
        thread.begin("schedule", number)
        if self.options.hold_us:
            yield from self.hold.acquire(thread)
            yield self.machine.some(5, 20)
            self.hold.release(thread)
        yield from thread.work(self.engine.cost(self.costs.schedule))
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
        yield from self.engine.broadcast.write(thread, step)
        thread.finish()
        return step

    def _rows_of(self, thread: Thread, rows: list[tuple[Asked, int, bool]]) -> int:
        """The rowset of a step: the last one, where nothing but its age has changed."""
        if rows == self._last_rows:
            self._age += 1
            return self._stated
        self._last_rows, self._age = rows, 0
        self._stated = self.engine.state(thread, "core", rows)
        return self._stated

    def _collect(self, thread: Thread, step: Step) -> Body:
        for queue in self.engine.replies:
            yield from queue.read(thread)
        put, stream = self.records.put, thread.process.stream
        put(stream, "step_end", step.number, thread.tid, self.machine.now, 0, "")
        yield self.machine.some(1, 3)
        thread.begin("update", step.number)
        yield from thread.work(self.engine.cost(self.costs.update))
        given = [asked for asked, _, must in step.rows if must]
        finished = [asked for asked in given if asked.produced + 1 == asked.answer]
        for asked in finished:
            self.engine.anchor(thread, Anchor.FINISHED, asked, value=asked.answer, detail="length")
            self.engine.tokens(thread, TokenPlace.ENGINE, asked)
        start, step.updated = thread.finish()
        for asked in given:
            asked.produced += 1
            asked.made.append(step.updated)
        stamp = step.updated - 1 if given else 0
        rowset = self.engine.state(thread, "core", [(asked, 1, False) for asked in given])
        put(stream, "step_update", step.number, thread.tid, start, step.updated, stamp,
            rowset if given else 0, len(given), len(finished))  # fmt: skip
        yield self.machine.some(1, 3)
        if given:
            self.outputs.put((stamp, given), thread)
            yield self.machine.some(1, 3)
