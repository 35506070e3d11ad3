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

from gpucorrelate.probes.agents.hot import StepsMemo, accelerated
from gpucorrelate.probes.agents.raised import told_of
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
            raised(self, error)
            raise

    def raised(self: Any, error: BaseException) -> None:
        try:
            self._gpucorrelate_steps.close(error)
            agent.transport.flush()
        except Exception as fault:  # noqa: BLE001
            part.fault(fault)

    return accelerated("step", step, original, part, agent.drops, slow=raised)


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


class Steps(StepsMemo):
    """Steps of one engine core: numbers them and reports what happens to them.

    Its hooks run several times in every step, on the thread every request waits for, and right
    after the model has swept the caches: what they cost is the memory they touch. Hence slots,
    few calls, and no clock or thread id taken twice.

    Attributes:
        number: The last step's.
        open: Steps that have not ended.
        rowsets: Their rows.
        scheduler: The engine's scheduler.
        turned: When the engine's loop last turned to scheduling. ``schedule()`` is the first
            thing it does then, and handing its result to the executor the next.
    """

    __slots__ = (
        "_agent",
        "_begin",
        "_end",
        "_part",
        "_rowset_of",
        "_samples",
        "_span",
        "_tid",
        "_update",
    )

    def __init__(self, agent: Agent, part: Part, scheduler: Any, executor: Any) -> None:
        self._agent = agent
        self._part = part
        self._tid = 0
        self.scheduler = scheduler
        self.number = 0
        self.turned = 0
        self.open = {}
        self._begin = agent.rows("step_begin").put
        self._end = agent.rows("step_end").put
        self._update = agent.rows("step_update").put
        self._span = agent.rows("span").put
        requests = agent.part(PART_REQUESTS)
        first_seen = partial(prefix_hit, requests, agent.rows("request").put)
        self.rowsets = StepRowsets(agent, lambda: scheduler.requests, first_seen)
        self._rowset_of = self.rowsets.of_step
        self._samples = hasattr(executor, "sample_tokens")
        scheduler.update_from_output = self._update_from_output(scheduler.update_from_output)
        executor.execute_model = self._execute_model(executor.execute_model)
        if self._samples:
            executor.sample_tokens = self._sample_tokens(executor.sample_tokens)

    def close(self, error: BaseException) -> None:
        """The engine's loop raised: what is in flight will not come back."""
        for step in tuple(self.open):
            self.end(step, time.monotonic_ns(), error)
        self.rowsets.forget()

    def end(self, step: int, when: int, error: BaseException | None = None) -> None:
        """A step ended; a second end of the same step is none."""
        if self.open.pop(step, self) is self:
            return
        text = self._agent.texts.number(told_of(error)) if error is not None else 0
        self._end((step, get_native_id(), when, _OK if error is None else _ERROR, text))

    def _done(self, step: int, future: Any) -> None:
        when = time.monotonic_ns()
        try:
            error = RuntimeError("cancelled") if future.cancelled() else future.exception()
            self.end(step, when, error)
        except Exception as fault:  # noqa: BLE001
            self._part.fault(fault)

    def _settle(self, step: int, when: int, result: Any, error: BaseException | None) -> None:
        """End a step: now, or when its result's future is done."""
        try:
            when_done = getattr(result, "add_done_callback", None)
            if error is None and when_done is not None:
                when_done(partial(self._done, step))
            else:
                self.end(step, when, error)
        except Exception as fault:  # noqa: BLE001
            self._part.fault(fault)
            self.end(step, when)

    def _begun(self, output: Any, start: int) -> int:
        """Begin a step; returns its number, 0 when that failed."""
        try:
            return self._begin_step(output, start)
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)
            return 0

    def _begin_step(self, output: Any, start: int) -> int:
        self.number = step = self.number + 1
        self._tid = tid = get_native_id()
        output._gpucorrelate_step = step
        rowset, age = self._rowset_of(step, output)
        self.open[step] = None
        turned, self.turned = self.turned, 0
        scheduled, rows = start if turned else 0, len(output.num_scheduled_tokens)
        tokens, waiting = output.total_num_scheduled_tokens, len(self.scheduler.waiting)
        self._begin((step, tid, turned, scheduled, start, rowset, age, rows, tokens, waiting))
        return step

    def _execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, span, begun = self._part, time.monotonic_ns, self._span, self._begun
        name, samples, settle = self._agent.texts.number("execute"), self._samples, self._settle

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(*args, **kwargs)
            start = now()
            step = begun(args[0] if args else kwargs.get("scheduler_output"), start)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                settle(step, now(), None, error)
                raise
            end = now()
            span((self._tid, name, start, end, step))
            if not samples:
                settle(step, end, result, None)
            return result

        return self._accelerated(
            "execute",
            execute_model,
            original,
            mark=name,
            follow=not samples,
            rows="step_begin",
            others="span",
            slow=begun,
        )

    def _sample_tokens(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, span, settle = self._part, time.monotonic_ns, self._span, self._settle
        name = self._agent.texts.number("sample")

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(*args, **kwargs)
            step, start = self.number, now()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                settle(step, now(), None, error)
                raise
            end = now()
            span((self._tid, name, start, end, step))
            settle(step, end, result, None)
            return result

        return self._accelerated(
            "sample", sample_tokens, original, mark=name, rows="step_end", others="span"
        )

    def _update_from_output(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, scheduler = self._part, time.monotonic_ns, self.scheduler
        still_open, updated = self.open, self._updated

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
                updated(step, start, end, result, _finished(scheduler) - finished)
            return result

        return self._accelerated(
            "update", update_from_output, original, rows="step_update", slow=updated
        )

    def _accelerated(
        self,
        kind: str,
        pure: Callable[..., Any],
        original: Callable[..., Any],
        *,
        rows: str,
        others: str | None = None,
        **rest: Any,
    ) -> Callable[..., Any]:
        agent = self._agent
        rest |= {"rows": agent.rows(rows), "others": agent.rows(others) if others else None}
        rest |= {"memo": self, "slower": self._settle}
        return accelerated(kind, pure, original, self._part, agent.drops, **rest)

    def _updated(self, step: int, start: int, end: int, result: Any, finished: int) -> None:
        """One row per client that gets outputs; one without outputs when none does."""
        try:
            self._put_updates(step, start, end, result, finished)
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _put_updates(self, step: int, start: int, end: int, result: Any, finished: int) -> None:
        tid, put = get_native_id(), self._update
        given = [item for item in result.values() if item.outputs]
        alone = len(given) == 1
        for item in given:
            rowset, tokens = self.rowsets.of_outputs(step, item.outputs, alone=alone)
            put((step, tid, start, end, int(item.timestamp * 1e9), rowset, tokens, finished))
            finished = 0
        if not given:
            put((step, tid, start, end, 0, 0, 0, finished))


def _finished(scheduler: Any) -> int:
    """Requests that the scheduler counts as finished since it last told the workers."""
    return len(getattr(scheduler, "finished_req_ids", ()) or ())
