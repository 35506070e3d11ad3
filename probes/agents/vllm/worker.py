# SPDX-License-Identifier: Apache-2.0
"""Calls of the model runner in a worker, with the rows as the runner packed them."""

from __future__ import annotations

import time
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.hot import RunnerMemo, accelerated
from gpucorrelate.probes.agents.process import process_name
from gpucorrelate.probes.agents.vllm.contract import NEEDS, PART_WORKER, RUNNER_V2_NEEDS
from gpucorrelate.probes.agents.vllm.engine import STEP
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.rowsets import ListRowsets
from gpucorrelate.probes.wire.roles import role_of_process
from gpucorrelate.probes.wire.schema import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

_EXECUTE, _SAMPLE = int(WorkerPhase.EXECUTE), int(WorkerPhase.SAMPLE)


def _remember(agent: Agent, runner: Any) -> RunnerMemo:
    """What is to be remembered of one model runner."""
    agent.role("worker")
    memo = RunnerMemo()
    memo.rank = int(getattr(getattr(runner, "parallel_config", None), "rank", 0) or 0)
    agent.rank(memo.rank)
    memo.rowsets = ListRowsets(agent)
    memo.rowset = memo.step = 0
    # The first model runner keeps its batch there, behind a property that checks nothing.
    batch = getattr(runner, "input_batch", None)
    names = [name for name in ("_req_ids", "req_ids") if isinstance(getattr(batch, name, 0), list)]
    memo.ids_name = names[0] if names else None
    return memo


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
        self._rows = agent.rows("worker_step")
        self._put = self._rows.put

    def executing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, executed = self._part, time.monotonic_ns, self._executed

        def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on or (kwargs and kwargs.get("dummy_run")):
                return original(runner, *args, **kwargs)
            start = now()
            try:
                return original(runner, *args, **kwargs)
            finally:
                executed(runner, (runner, *args), kwargs, start, now())

        return self._accelerated("runner.execute", execute_model, original, _EXECUTE, executed)

    def sampling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, sampled = self._part, time.monotonic_ns, self._sampled

        def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(runner, *args, **kwargs)
            start = now()
            try:
                return original(runner, *args, **kwargs)
            finally:
                sampled(runner, args, kwargs, start, now())

        return self._accelerated("runner.sample", sample_tokens, original, _SAMPLE, sampled)

    def _accelerated(
        self,
        kind: str,
        pure: Callable[..., Any],
        original: Callable[..., Any],
        phase: int,
        slow: Callable[..., Any],
    ) -> Callable[..., Any]:
        part, drops, rows = self._part, self._agent.drops, self._rows
        return accelerated(kind, pure, original, part, drops, mark=phase, rows=rows, slow=slow)

    def _executed(self, runner: Any, args: Any, kwargs: Any, start: int, end: int) -> None:
        """A call of ``execute_model``, its arguments with the runner before them."""
        try:
            state = runner._gpucorrelate_runner or self._attach(runner)
            output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
            state.step = step = getattr(output, STEP, 0)
            ids = packed_ids(runner)
            state.rowset = rowset = state.rowsets.of(ids)
            self._put((step, get_native_id(), state.rank, _EXECUTE, start, end, rowset))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _sampled(self, runner: Any, _args: Any, _kwargs: Any, start: int, end: int) -> None:
        try:
            state = runner._gpucorrelate_runner or self._attach(runner)
            tid, rowset = get_native_id(), state.rowset
            self._put((state.step, tid, state.rank, _SAMPLE, start, end, rowset))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _attach(self, runner: Any) -> RunnerMemo:
        state = runner._gpucorrelate_runner = _remember(self._agent, runner)
        self._part.works()
        return state
