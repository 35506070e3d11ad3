# SPDX-License-Identifier: Apache-2.0
"""Calls of the model runner in a worker, with the rows as the runner packed them."""

from __future__ import annotations

import time
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.agent import role_of_process
from gpucorrelate.probes.agents.process import process_name
from gpucorrelate.probes.agents.vllm.contract import NEEDS, PART_WORKER, RUNNER_V2_NEEDS
from gpucorrelate.probes.agents.vllm.engine import STEP
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.rowsets import ListRowsets
from gpucorrelate.probes.wire.schema import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

_EXECUTE, _SAMPLE = int(WorkerPhase.EXECUTE), int(WorkerPhase.SAMPLE)


class _Runner:
    """What is remembered of one model runner."""

    __slots__ = ("direct", "rank", "rowset", "rowset_of", "step")

    def __init__(self, agent: Agent, runner: Any) -> None:
        agent.role("worker")
        self.rank = int(getattr(getattr(runner, "parallel_config", None), "rank", 0) or 0)
        agent.rank(self.rank)
        self.rowset_of = ListRowsets(agent).of
        self.rowset = 0
        self.step = 0
        # Whether the batch is where the first model runner keeps it.
        self.direct = hasattr(getattr(runner, "input_batch", None), "req_ids")


def install(agent: Agent, module: ModuleType) -> None:
    """Hook a module's model runner."""
    part = agent.part(PART_WORKER)
    needs = RUNNER_V2_NEEDS if ".gpu." in module.__name__ else NEEDS[PART_WORKER]
    if not checked(part, module, needs):
        return
    calls = _Calls(agent)
    module.GPUModelRunner._gpucorrelate_runner = None
    wrap(module.GPUModelRunner, "execute_model", calls.executing)
    wrap(module.GPUModelRunner, "sample_tokens", calls.sampling)
    if role_of_process(process_name()) == "worker":
        part.works()


def packed_ids(runner: Any) -> Sequence[str]:
    """Request ids in the order of the runner's batch; the runners keep it in two places."""
    ids = getattr(getattr(runner, "input_batch", None), "req_ids", None)
    if ids is None:
        state = getattr(runner, "execute_model_state", None)
        ids = getattr(getattr(state, "input_batch", None), "req_ids", None)
    return () if ids is None else ids


class _Calls:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._part = agent.part(PART_WORKER)
        self._put = agent.rows("worker_step").put

    def executing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, put, attach = self._part, time.monotonic_ns, self._put, self._attach

        def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on or (kwargs and kwargs.get("dummy_run")):
                return original(runner, *args, **kwargs)
            start = now()
            try:
                return original(runner, *args, **kwargs)
            finally:
                try:
                    end, state = now(), runner._gpucorrelate_runner or attach(runner)
                    output = args[0] if args else kwargs["scheduler_output"]
                    state.step = step = getattr(output, STEP, 0)
                    ids = runner.input_batch.req_ids if state.direct else packed_ids(runner)
                    state.rowset = rowset = state.rowset_of(ids)
                    put((step, get_native_id(), state.rank, _EXECUTE, start, end, rowset))
                except Exception as error:  # noqa: BLE001
                    part.fault(error)

        return execute_model

    def sampling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, put, attach = self._part, time.monotonic_ns, self._put, self._attach

        def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(runner, *args, **kwargs)
            start = now()
            try:
                return original(runner, *args, **kwargs)
            finally:
                try:
                    end, state = now(), runner._gpucorrelate_runner or attach(runner)
                    tid, rowset = get_native_id(), state.rowset
                    put((state.step, tid, state.rank, _SAMPLE, start, end, rowset))
                except Exception as error:  # noqa: BLE001
                    part.fault(error)

        return sample_tokens

    def _attach(self, runner: Any) -> _Runner:
        state = runner._gpucorrelate_runner = _Runner(self._agent, runner)
        self._part.works()
        return state
