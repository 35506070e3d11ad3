# SPDX-License-Identifier: Apache-2.0
"""An engine of few lines with the shapes that hooks rely on, driven by a seeded script."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from gpucorrelate.probes.agents.vllm import contract, engine, frontend, serial, worker
from tests.unit.test_agent_rowsets import Batch, Request


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


class Failed(Exception):
    """Raised by the engine itself; must come through every hook as it is."""


class InputBatch:
    """Where a model runner keeps the ids of its rows."""

    def __init__(self) -> None:
        self._req_ids: list[str] = []

    @property
    def req_ids(self) -> list[str]:
        return self._req_ids


@dataclass
class Script:
    """What happens in which step, and what the hooks were seen to pass on."""

    seed: int
    steps: int = 120
    asynchronous: bool = False
    clients: int = 1
    returned: list[Any] = field(default_factory=list)


def install(agent: Any) -> SimpleNamespace:  # noqa: C901 - classes, one after another
    """Classes of a small engine, hooked."""

    class GPUModelRunner:
        parallel_config = SimpleNamespace(rank=3)

        def __init__(self) -> None:
            self.input_batch = InputBatch()
            self.fail = ""

        def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
            if not dummy_run:
                self.input_batch._req_ids = list(scheduler_output.num_scheduled_tokens)
            if self.fail == "execute":
                raise Failed("execute")
            return ("executed", dummy_run)

        def sample_tokens(self, grammar_output):
            if self.fail == "sample":
                raise Failed("sample")
            return SimpleNamespace(grammar=grammar_output)

    class OutputProcessor:
        def __init__(self) -> None:
            self.request_states: dict[str, Any] = {}

        def add_request(self, request, prompt=None):
            detokenizer = SimpleNamespace(output_token_ids=[7, 8])
            self.request_states[request.request_id] = SimpleNamespace(detokenizer=detokenizer)

        def process_outputs(self, engine_core_outputs, engine_core_timestamp=None, stats=None):
            for output in engine_core_outputs:
                if output.finish_reason:
                    self.request_states.pop(output.request_id, None)
            return SimpleNamespace(reqs_to_abort=[])

        def abort_requests(self, request_ids):
            return list(request_ids)

    class RequestState:
        detokenizer = None

    class MsgpackEncoder:
        def encode(self, obj):
            if obj is None:
                raise Failed("encode")
            return [obj]

        def encode_into(self, obj, buf):
            return [obj]

    class MsgpackDecoder:
        def decode(self, bufs):
            return bufs

    class Scheduler:
        def __init__(self, batch: Batch) -> None:
            self.batch = batch
            self.requests = batch.alive
            self.finished_req_ids: set[str] = set()
            self.waiting: list[int] = []
            self.plan: Any = None
            self.outputs: Any = None

        def schedule(self) -> Any:
            return self.plan

        def update_from_output(self, scheduler_output, model_runner_output):
            return self.outputs

        def add_request(self, request):
            return None

        def _free_request(self, request):
            return None

        def _preempt_request(self, request):
            return None

    class EngineCore:
        def __init__(self, batch: Batch, asynchronous: bool) -> None:
            runner = GPUModelRunner()
            futures: list[Future[Any]] = []

            def execute_model(scheduler_output, non_block=False):
                return runner.execute_model(scheduler_output)

            def sample_tokens(grammar_output, non_block=False):
                result = runner.sample_tokens(grammar_output)
                if not asynchronous:
                    return result
                future: Future[Any] = Future()
                futures.append(future)
                return future

            self.runner = runner
            self.futures = futures
            self.vllm_config = SimpleNamespace()
            self.scheduler = Scheduler(batch)
            self.model_executor = SimpleNamespace(
                execute_model=execute_model, sample_tokens=sample_tokens
            )

        def step(self, by_name: bool) -> Any:
            output = self.scheduler.schedule()
            if by_name:
                self.model_executor.execute_model(scheduler_output=output)
            else:
                self.model_executor.execute_model(output)
            result = self.model_executor.sample_tokens(None)
            for future in self.futures:
                future.set_result(result)
            self.futures.clear()
            return self.scheduler.update_from_output(output, result)

        def add_request(self, request):
            return None

    engine.install(agent, module(contract.CORE, EngineCore=EngineCore))
    worker.install(agent, module(contract.RUNNER, GPUModelRunner=GPUModelRunner))
    frontend.install(
        agent,
        module(contract.OUTPUTS, OutputProcessor=OutputProcessor, RequestState=RequestState),
    )
    serial.install(
        agent,
        module(contract.SERIAL, MsgpackEncoder=MsgpackEncoder, MsgpackDecoder=MsgpackDecoder),
    )
    return SimpleNamespace(
        EngineCore=EngineCore,
        OutputProcessor=OutputProcessor,
        MsgpackEncoder=MsgpackEncoder,
        MsgpackDecoder=MsgpackDecoder,
    )


def _outputs(rng: random.Random, batch: Batch, plan: Any, clients: int) -> dict[int, Any]:
    """What each client gets of a step: a token for each row that samples, at times another."""
    found: dict[int, Any] = {}
    names = [n for n, must in zip(plan.num_scheduled_tokens, batch.sampled, strict=True) if must]
    if rng.random() < 0.05:
        names = names[:-1]
    for at, name in enumerate(names):
        tokens = [1] * (2 if rng.random() < 0.02 else 1)
        item = found.setdefault(
            at % clients, SimpleNamespace(outputs=[], timestamp=rng.choice([1.5, 2.25, 3]))
        )
        reason = "" if name in batch.alive and rng.random() > 0.01 else "stop"
        item.outputs.append(
            SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason=reason or None)
        )
    if not found and rng.random() < 0.5:
        found[0] = SimpleNamespace(outputs=[], timestamp=0.0)
    return found


def run(agent: Any, made: SimpleNamespace, script: Script) -> None:
    """Drive the engine; only the seed decides what happens."""
    rng, batch = random.Random(script.seed), Batch()
    core = made.EngineCore(batch, script.asynchronous)
    processor = made.OutputProcessor()
    for number in range(script.steps):
        event = rng.random()
        if event < 0.1 or not batch.alive:
            prompt = rng.randint(1, 40)
            request = Request(f"r{number}", prompt, 0, prompt)
            batch.alive[request.request_id] = request
            processor.add_request(request)
        elif event < 0.15:
            name = rng.choice(list(batch.alive))
            batch.alive.pop(name)
            core.scheduler.finished_req_ids.add(name)
        elif event < 0.18:
            victim = batch.alive[rng.choice(list(batch.alive))]
            victim.num_computed_tokens, victim.num_preemptions = 0, victim.num_preemptions + 1
        elif event < 0.2:
            agent.drops.add(1)
        elif event < 0.22:
            agent.part(contract.PART_ENGINE).switch(not agent.part(contract.PART_ENGINE).on)
        core.runner.fail = rng.choice(["execute", "sample"]) if event > 0.97 else ""
        core.scheduler.waiting = [0] * rng.randint(0, 3)
        plan = batch.plan(chunk=16, speculative=rng.random() < 0.05)
        plan.total_num_scheduled_tokens = sum(plan.num_scheduled_tokens.values())
        core.scheduler.plan = plan
        core.scheduler.outputs = _outputs(rng, batch, plan, script.clients)
        try:
            given = core.step(rng.random() < 0.2)
        except Failed as error:
            script.returned.append(str(error))
            continue
        finally:
            for future in core.futures:
                future.cancel()
            core.futures.clear()
        assert given is core.scheduler.outputs
        for item in given.values():
            if rng.random() < 0.5:
                result = processor.process_outputs(item.outputs, item.timestamp, None)
            else:
                result = processor.process_outputs(
                    engine_core_outputs=item.outputs, engine_core_timestamp=item.timestamp
                )
            script.returned.append(result.reqs_to_abort)
        if event > 0.9:
            script.returned.append(core.runner.execute_model(plan, dummy_run=True))
            script.returned.append(made.MsgpackEncoder().encode(number))
            script.returned.append(made.MsgpackDecoder().decode(bufs=[number]))
