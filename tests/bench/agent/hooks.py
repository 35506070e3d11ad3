# SPDX-License-Identifier: Apache-2.0
"""What one call of a hook costs, dormant and started: ``python -m tests.bench.agent.hooks``.

Each hook is put around a method that does nothing, so that what remains is the hook. The
numbers are warm ones, the best of many rounds; in an engine, where the model sweeps the caches
between two calls, a call costs several times that (see ``in_process``).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm import asgi, contract, frontend, serial, shm_queue, worker

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 200, 200
ROWS = 50


class MessageQueue:
    """The queue's protocol, without a queue: what the hooks read and nothing else."""

    def __init__(self) -> None:
        memory = SimpleNamespace(name="psm_0")
        self.buffer = SimpleNamespace(shared_memory=memory, max_chunks=10)
        self.current_idx = 0
        self.local_reader_rank = 0

    @contextmanager
    def acquire_write(self, timeout=None):
        yield None

    @contextmanager
    def acquire_read(self, timeout=None, indefinite=False):
        yield None

    def enqueue(self, obj, timeout=None):
        with self.acquire_write(timeout):
            self.current_idx = (self.current_idx + 1) % 10

    def dequeue(self, timeout=None):
        with self.acquire_read(timeout):
            self.current_idx = (self.current_idx + 1) % 10


class GPUModelRunner:
    def __init__(self) -> None:
        self.input_batch = SimpleNamespace(req_ids=[f"request-{n}" for n in range(ROWS)])

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        return None

    def sample_tokens(self, grammar_output):
        return None


class OutputProcessor:
    def __init__(self) -> None:
        self.request_states: dict[str, object] = {}

    def add_request(self, request, prompt=None):
        return None

    def process_outputs(self, engine_core_outputs, engine_core_timestamp=None):
        return None

    def abort_requests(self, request_ids):
        return None


class MsgpackEncoder:
    def encode(self, obj):
        return None

    def encode_into(self, obj, buf):
        return None


class MsgpackDecoder:
    def decode(self, bufs):
        return None


class RequestState:
    detokenizer = None


def module(name: str, *classes: type) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update({owner.__name__: owner for owner in classes})
    return made


def best_us(agent: Agent, call: Callable[[], object]) -> float:
    """Best round's time of one call, emptying the buffers between rounds as the sender does."""
    best = float("inf")
    for _ in range(ROUNDS):
        for rows in agent._rows.values():
            rows.take()
        agent.rowsets.take()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - start) / CALLS / 1e3)
    return best


def main() -> None:
    agent = Agent("vllm", "/nonexistent/ingest.sock")
    queue, runner, processor = MessageQueue(), GPUModelRunner(), OutputProcessor()
    plan = SimpleNamespace(_gpucorrelate_step=1)
    outputs = [
        SimpleNamespace(request_id=f"request-{n}", new_token_ids=[1], finish_reason=None)
        for n in range(ROWS)
    ]

    async def nothing(scope, receive, send):
        return None

    app: Callable[..., Any] = asgi.App(agent, nothing)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    calls: dict[str, Callable[[], object]] = {
        "MessageQueue.enqueue": lambda: queue.enqueue(None),
        "MessageQueue.dequeue": lambda: queue.dequeue(),
        "runner.execute_model": lambda: runner.execute_model(plan),
        "runner.sample_tokens": lambda: runner.sample_tokens(None),
        "process_outputs": lambda: processor.process_outputs(outputs, 1.0),
        "MsgpackEncoder.encode": lambda: MsgpackEncoder().encode(None),
        "ASGI application": lambda: app(scope, None, None).close(),
    }
    plain = {name: best_us(agent, call) for name, call in calls.items()}
    plain["ASGI application"] = best_us(agent, lambda: nothing(scope, None, None).close())
    shm_queue.install(agent, module(contract.QUEUE, MessageQueue, type("ShmRingBuffer", (), {})))
    worker.install(agent, module(contract.RUNNER, GPUModelRunner))
    frontend.install(agent, module(contract.OUTPUTS, OutputProcessor, RequestState))
    serial.install(agent, module(contract.SERIAL, MsgpackEncoder, MsgpackDecoder))
    dormant = {name: best_us(agent, call) for name, call in calls.items()}
    agent.started("bench")
    started = {name: best_us(agent, call) for name, call in calls.items()}
    print(f"{'microseconds a call added':28} {'dormant':>9} {'started':>9}")
    for name, base in plain.items():
        print(f"{name:28} {dormant[name] - base:9.2f} {started[name] - base:9.2f}")


if __name__ == "__main__":
    main()
