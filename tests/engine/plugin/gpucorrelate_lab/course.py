# SPDX-License-Identifier: Apache-2.0
"""What the engine itself did: when each request was where, from which truth follows.

It is written by wrappers of this plugin's own, with clock readings of their own, and knows
nothing of the agent. Rows of ``course-<pid>.jsonl`` by their ``what``:

``submit``, ``tokenise``
    A prompt was given to the tokeniser's thread; it was made tokens there. By its first words.
``handed``
    A request is about to be written to the engine's socket.
``step``
    A step: scheduling, update, requests with their tokens, and prompt tokens among these.
``worker``
    The model runner's calls of a step, as one stretch.
``preempt``
    The scheduler threw a request out.
``sent``
    Outputs have been made bytes and are about to be sent to the API server.
``paused``
    A response could not be written on: the client does not read. From when to when.

While ``DIR/flags/api.small-buffers`` exists, new connections get a small send buffer. The kernel
would let it grow until a client that does not read is noticed by nobody.
"""

from __future__ import annotations

import functools
import socket
import time
from typing import Any

from gpucorrelate_lab.lab import lab

_ENDS_OF_PROMPT = 40
#: A switch, as those of faults.
_SMALL_BUFFERS = "api.small-buffers"
_SMALL_BYTES = 8192


def _now() -> int:
    return time.monotonic_ns()


def _course_of_steps() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule, update, preempt = (
        Scheduler.schedule, Scheduler.update_from_output, Scheduler._preempt_request
    )  # fmt: skip

    @functools.wraps(schedule)
    def schedule_(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = _now()
        output = schedule(self, *args, **kwargs)
        output._lab = (start, _now(), _prompt_tokens(self, output.num_scheduled_tokens))
        return output

    @functools.wraps(update)
    def update_(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = update(self, scheduler_output, *args, **kwargs)
        begun, scheduled, prompt = scheduler_output._lab
        if scheduler_output.num_scheduled_tokens:
            lab().tell(
                "step",
                start_ns=begun,
                scheduled_ns=scheduled,
                update_ns=start,
                end_ns=_now(),
                tokens=scheduler_output.num_scheduled_tokens,
                prompt=prompt,
                made=[
                    one.request_id
                    for outputs in result.values()
                    for one in outputs.outputs
                    if one.new_token_ids
                ],
            )
        return result

    @functools.wraps(preempt)
    def preempt_(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        lab().tell("preempt", t_ns=_now(), request=request.request_id)
        return preempt(self, request, *args, **kwargs)

    Scheduler.schedule = schedule_
    Scheduler.update_from_output = update_
    Scheduler._preempt_request = preempt_


def _prompt_tokens(scheduler: Any, scheduled: dict[str, int]) -> dict[str, int]:
    """Prompt tokens in a step, by request; the scheduler counts them as computed already."""
    found = {}
    for name, count in scheduled.items():
        request = scheduler.requests[name]
        left = request.num_prompt_tokens - (request.num_computed_tokens - count)
        if left > 0:
            found[name] = min(left, count)
    return found


def _course_of_workers() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute, sample = GPUModelRunner.execute_model, GPUModelRunner.sample_tokens

    @functools.wraps(execute)
    def execute_(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._lab_start = _now()
        return execute(self, *args, **kwargs)

    @functools.wraps(sample)
    def sample_(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = sample(self, *args, **kwargs)
        lab().tell("worker", start_ns=self._lab_start, end_ns=_now())
        return result

    GPUModelRunner.execute_model = execute_
    GPUModelRunner.sample_tokens = sample_


def _course_of_frontend() -> None:
    from vllm.renderers.base import BaseRenderer
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.serial_utils import MsgpackEncoder

    submit, tokenise = BaseRenderer._tokenize_singleton_prompt_async, BaseRenderer._tokenize_prompt
    add, encode = AsyncMPClient.add_request_async, MsgpackEncoder.encode_into

    @functools.wraps(submit)
    async def submit_(self: Any, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        lab().tell("submit", t_ns=_now(), prompt=prompt["prompt"][:_ENDS_OF_PROMPT])
        return await submit(self, prompt, *args, **kwargs)

    @functools.wraps(tokenise)
    def tokenise_(self: Any, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = tokenise(self, prompt, *args, **kwargs)
        text = prompt["prompt"][:_ENDS_OF_PROMPT]
        lab().tell("tokenise", start_ns=start, end_ns=_now(), prompt=text)
        return result

    @functools.wraps(add)
    async def add_(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        lab().tell("handed", t_ns=_now(), request=request.request_id)
        return await add(self, request, *args, **kwargs)

    @functools.wraps(encode)
    def encode_(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = encode(self, outputs, *args, **kwargs)
        names = [one.request_id for one in getattr(outputs, "outputs", ())]
        if names:
            lab().tell("sent", start_ns=start, t_ns=_now(), requests=names)
        return result

    BaseRenderer._tokenize_singleton_prompt_async = submit_
    BaseRenderer._tokenize_prompt = tokenise_
    AsyncMPClient.add_request_async = add_
    MsgpackEncoder.encode_into = encode_


def _course_of_responses() -> None:
    from uvicorn.protocols.http import (  # type: ignore[import-not-found]
        flow_control,
        h11_impl,
        httptools_impl,
    )

    resume = flow_control.FlowControl.resume_writing

    @functools.wraps(resume)
    def resume_(self: Any) -> None:
        self._lab_resumed = _now()
        resume(self)

    flow_control.FlowControl.resume_writing = resume_
    for module, name in ((h11_impl, "H11Protocol"), (httptools_impl, "HttpToolsProtocol")):
        _watch_sending(module.RequestResponseCycle)
        _keep_buffers_small(getattr(module, name))


def _watch_sending(cycle: Any) -> None:
    send = cycle.send

    @functools.wraps(send)
    async def send_(self: Any, message: Any) -> None:
        if not self.flow.write_paused:
            await send(self, message)
            return
        start = _now()
        await send(self, message)
        name = dict(self.scope["headers"]).get(b"x-request-id", b"").decode()
        end = min(_now(), getattr(self.flow, "_lab_resumed", 0))
        lab().tell("paused", start_ns=start, end_ns=end, request=name)

    cycle.send = send_


def _keep_buffers_small(protocol: Any) -> None:
    """Where it is asked for, connections get a send buffer that does not grow."""
    made = protocol.connection_made

    @functools.wraps(made)
    def made_(self: Any, transport: Any) -> None:
        if _SMALL_BUFFERS in lab().switched_on():
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BYTES)
        made(self, transport)

    protocol.connection_made = made_


def install() -> None:
    """Wrap whatever tells the engine's course."""
    _course_of_steps()
    _course_of_workers()
    _course_of_frontend()
    _course_of_responses()
