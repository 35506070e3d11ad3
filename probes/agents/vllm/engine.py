# SPDX-License-Identifier: Apache-2.0
"""Steps of the engine core: begin, end, update, and the rows they hold.

A step begins when the scheduler's output goes to the executor. It ends when its future is
done and sampling has returned; under asynchronous scheduling that future comes from
``sample_tokens``, several steps are in flight, and the end is told by the future's callback.
A step that raises is closed with its error. Its number travels to the workers as an attribute
of the scheduler's output.

The engine's instances are wrapped, not their classes: whichever scheduler or executor class a
deployment uses, it is the one that runs that is observed.
"""

from __future__ import annotations

import time
from functools import partial
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import LOST, PART_ENGINE, PART_REQUESTS
from gpucorrelate.probes.agents.vllm.facts import note_config
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.requests import hook_requests, prefix_hit
from gpucorrelate.probes.agents.vllm.rowsets import StepRowsets
from gpucorrelate.probes.agents.vllm.signature import Need, complaint, shape_of
from gpucorrelate.probes.wire.schema import StepStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent, Part

#: Attribute of a SchedulerOutput that carries the step's number to the workers.
STEP = "_gpucorrelate_step"
# The attribute of an EngineCore that says what it was attached to is spelt out where it is
# used, as is the one above: plain attributes are what the interpreter specialises.
_OK, _ERROR = int(StepStatus.OK), int(StepStatus.ERROR)


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the engine core's class, so that each instance is attached on first use."""
    part = agent.part(PART_ENGINE)
    if not checked(part, module):
        return
    core = module.EngineCore
    core._gpucorrelate_steps = None
    for name in ("step", "step_with_batch_queue"):
        wrap(core, name, partial(_stepping, agent, part))
    wrap(core, "add_request", partial(_attaching, agent, part))
    process = getattr(module, "EngineCoreProc", None)
    if process is not None:
        wrap(process, "run_busy_loop", partial(_attaching, agent, part))


def _attaching(agent: Agent, part: Part, original: Callable[..., Any]) -> Callable[..., Any]:
    def attach_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._gpucorrelate_steps is None:
            _attach(agent, part, self)
        return original(self, *args, **kwargs)

    return attach_first


def _stepping(agent: Agent, part: Part, original: Callable[..., Any]) -> Callable[..., Any]:
    now = time.monotonic_ns

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._gpucorrelate_steps is None:
            _attach(agent, part, self)
        if not part.on:
            return original(self, *args, **kwargs)
        steps = self._gpucorrelate_steps
        steps.turned = now()
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            steps.close(error)
            agent.transport.flush()
            raise

    return step


def _attach(agent: Agent, part: Part, core: Any) -> None:
    """Wrap an engine core's scheduler and executor; once, whatever comes of it."""
    core._gpucorrelate_steps = _NoSteps()
    try:
        agent.role("core")
        note_config(agent, core.vllm_config)
        problem = _instance_problem(core)
        if problem:
            part.refuse(f"{problem}; {LOST[PART_ENGINE]}")
            return
        hook_requests(agent, core.scheduler)
        core._gpucorrelate_steps = Steps(agent, part, core.scheduler, core.model_executor)
        part.works()
    except Exception as error:  # noqa: BLE001 - nothing of the agent may reach the engine
        part.fault(error)


def _instance_problem(core: Any) -> str:
    """Why the instances at hand do not serve: a deployment may bring its own classes."""
    wanted = (
        (core.scheduler, Need("", "scheduler", "schedule")),
        (
            core.scheduler,
            Need(
                "", "scheduler", "update_from_output", ("scheduler_output", "model_runner_output")
            ),
        ),
        (core.model_executor, Need("", "executor", "execute_model", ("scheduler_output",))),
    )
    for instance, need in wanted:
        method = getattr(instance, need.name, None)
        why = complaint(need, shape_of(method, bound=True) if callable(method) else None)
        if why:
            return why
    return ""


class _NoSteps:
    """Stands for an engine core that could not be attached."""

    turned = 0

    def close(self, error: BaseException) -> None:
        """There is nothing to close."""


class Steps:
    """Steps of one engine core: numbers them and reports what happens to them.

    Its hooks run several times in every step, on the thread every request waits for, and right
    after the model has swept the caches: what they cost is the memory they touch. Hence slots,
    few calls, and no clock or thread id taken twice.

    Attributes:
        turned: When the engine's loop last turned to scheduling. ``schedule()`` is the first
            thing it does then, and handing its result to the executor the next.
    """

    __slots__ = (
        "_begin",
        "_end",
        "_number",
        "_open",
        "_part",
        "_rowset_of",
        "_rowsets",
        "_samples",
        "_scheduler",
        "_span",
        "_texts",
        "_tid",
        "_update",
        "turned",
    )

    def __init__(self, agent: Agent, part: Part, scheduler: Any, executor: Any) -> None:
        self._part = part
        self._scheduler = scheduler
        self._number = 0
        self._tid = 0
        self.turned = 0
        self._open: dict[int, None] = {}
        self._begin = agent.rows("step_begin").put
        self._end = agent.rows("step_end").put
        self._update = agent.rows("step_update").put
        self._span = agent.rows("span").put
        self._texts = agent.texts
        requests = agent.part(PART_REQUESTS)
        first_seen = partial(prefix_hit, requests, agent.rows("request").put)
        self._rowsets = StepRowsets(agent, lambda: scheduler.requests, first_seen)
        self._rowset_of = self._rowsets.of_step
        self._samples = hasattr(executor, "sample_tokens")
        scheduler.update_from_output = self._update_from_output(scheduler.update_from_output)
        executor.execute_model = self._execute_model(executor.execute_model)
        if self._samples:
            executor.sample_tokens = self._sample_tokens(executor.sample_tokens)

    def close(self, error: BaseException) -> None:
        """The engine's loop raised: what is in flight will not come back."""
        for step in tuple(self._open):
            self.end(step, time.monotonic_ns(), error)
        self._rowsets.forget()

    def end(self, step: int, when: int, error: BaseException | None = None) -> None:
        """A step ended; a second end of the same step is none."""
        if self._open.pop(step, self) is self:
            return
        status, text = (_OK, 0) if error is None else (_ERROR, self._texts.number(_text(error)))
        self._end((step, get_native_id(), when, status, text))

    def _done(self, step: int, future: Any) -> None:
        when = time.monotonic_ns()
        try:
            error = RuntimeError("cancelled") if future.cancelled() else future.exception()
            self.end(step, when, error)
        except Exception as fault:  # noqa: BLE001
            self._part.fault(fault)

    def _begin_step(self, output: Any, start: int) -> int:
        self._number = step = self._number + 1
        self._tid = tid = get_native_id()
        output._gpucorrelate_step = step
        rowset, age = self._rowset_of(step, output)
        self._open[step] = None
        turned, self.turned = self.turned, 0
        scheduled, rows = start if turned else 0, len(output.num_scheduled_tokens)
        tokens, waiting = output.total_num_scheduled_tokens, len(self._scheduler.waiting)
        self._begin((step, tid, turned, scheduled, start, rowset, age, rows, tokens, waiting))
        return step

    def _execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, span, begin = self._part, time.monotonic_ns, self._span, self._begin_step
        name, samples = self._texts.number("execute"), self._samples

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(*args, **kwargs)
            step, start = 0, now()
            try:
                step = begin(args[0] if args else kwargs["scheduler_output"], start)
            except Exception as error:  # noqa: BLE001
                part.fault(error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self.end(step, now(), error)
                raise
            span((self._tid, name, start, now(), step))
            if not samples:
                self._follow(step, result)
            return result

        return execute_model

    def _sample_tokens(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, span, put_end = self._part, time.monotonic_ns, self._span, self._end
        still_open, name = self._open, self._texts.number("sample")

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(*args, **kwargs)
            step, start = self._number, now()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self.end(step, now(), error)
                raise
            end = now()
            span((self._tid, name, start, end, step))
            if hasattr(result, "add_done_callback"):
                self._follow(step, result)
            elif step in still_open:
                del still_open[step]
                put_end((step, self._tid, end, _OK, 0))
            return result

        return sample_tokens

    def _follow(self, step: int, result: Any) -> None:
        """End the step when its result is there: now, or when its future is done."""
        when_done = getattr(result, "add_done_callback", None)
        if when_done is None:
            self.end(step, time.monotonic_ns())
            return
        try:
            when_done(partial(self._done, step))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)
            self.end(step, time.monotonic_ns())

    def _update_from_output(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, scheduler = self._part, time.monotonic_ns, self._scheduler
        still_open, updated = self._open, self._updated

        def update_from_output(*args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(*args, **kwargs)
            output = args[0] if args else kwargs.get("scheduler_output")
            step = getattr(output, STEP, 0)
            finished = _finished(scheduler)
            start = now()
            if step in still_open:
                # Futures that never call back (other executors') end here at the latest.
                self.end(step, start)
            result = original(*args, **kwargs)
            end = now()
            if step:  # else it was scheduled before the agent was started
                try:
                    updated(step, start, end, result, _finished(scheduler) - finished)
                except Exception as error:  # noqa: BLE001
                    part.fault(error)
            return result

        return update_from_output

    def _updated(self, step: int, start: int, end: int, result: Any, finished: int) -> None:
        """One row per client that gets outputs; one without outputs when none does."""
        tid, put = self._tid, self._update
        given = [item for item in result.values() if item.outputs]
        alone = len(given) == 1
        for item in given:
            rowset, tokens = self._rowsets.of_outputs(step, item.outputs, alone=alone)
            put((step, tid, start, end, int(item.timestamp * 1e9), rowset, tokens, finished))
            finished = 0
        if not given:
            put((step, tid, start, end, 0, 0, 0, finished))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _finished(scheduler: Any) -> int:
    """Requests that the scheduler counts as finished since it last told the workers."""
    return len(getattr(scheduler, "finished_req_ids", ()) or ())
