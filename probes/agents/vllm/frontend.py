# SPDX-License-Identifier: Apache-2.0
"""Requests in the frontend: tokenised, sent, registered, and their outputs as they come back."""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.hot import accelerated
from gpucorrelate.probes.agents.vllm import asgi
from gpucorrelate.probes.agents.vllm.contract import CLIENT, OUTPUTS, PART_FRONTEND
from gpucorrelate.probes.agents.vllm.facts import note_config
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.requests import token_hash
from gpucorrelate.probes.agents.vllm.rowsets import ListRowsets
from gpucorrelate.probes.agents.vllm.serial import spanning
from gpucorrelate.probes.agents.vllm.traceparent import from_mapping
from gpucorrelate.probes.wire.schema import Anchor, TokenPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

_SENT = int(Anchor.SENT)
_REGISTERED = int(Anchor.REGISTERED)
_LINKED = int(Anchor.LINKED)
_FRONTEND = int(TokenPlace.FRONTEND)
#: Output states remembered for requests whose end has not been seen.
_MAX_STATES = 8192
#: When the current task last began to write to the engine's socket.
_SENT_AT: ContextVar[int] = ContextVar("gpucorrelate_sent_at", default=0)


def install(agent: Agent, module: ModuleType) -> None:
    """Hook what the module has of the frontend."""
    part = agent.part(PART_FRONTEND)
    if not checked(part, module):
        return
    if module.__name__ == OUTPUTS:
        _Outputs(agent).install(module)
    elif module.__name__ == CLIENT:
        _Clients(agent).install(module)
    else:
        wrap(module.AsyncLLM, "_run_output_handler", partial(_output_handler, agent))


def _output_handler(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    """Name the work of the task that takes outputs in."""
    part = agent.part(PART_FRONTEND)

    def _run_output_handler(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "output_handler", None) is not None:
            return original(self, *args, **kwargs)
        try:
            agent.role("api")
            note_config(agent, self.vllm_config)
            part.works()
        except Exception as error:  # noqa: BLE001
            part.fault(error)
        with asgi.naming(agent, "output_handler"):
            return original(self, *args, **kwargs)

    return _run_output_handler


class _Clients:
    """Hooks of the clients that send requests to the engine core.

    A request's time of sending is taken before the socket is written to: the engine may have
    it before this thread gets to look at a clock again.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._part = agent.part(PART_FRONTEND)
        self._put = agent.rows("request").put

    def install(self, module: ModuleType) -> None:
        """Hook each client class that defines its own way of adding requests."""
        for name in ("AsyncMPClient", "DPAsyncMPClient"):
            wrap(getattr(module, name), "add_request_async", self._waiting)
            wrap(getattr(module, name), "_send_input_message", self._sending)
        for name in ("SyncMPClient", "InprocClient"):
            wrap(getattr(module, name), "add_request", self._direct)
        send = partial(spanning, self._agent, self._part, "send")
        wrap(module.SyncMPClient, "_send_input", send)

    def _sent(self, request: Any, when: int) -> None:
        try:
            name, prompt = request.request_id, len(request.prompt_token_ids or ())
            self._put((name, asgi.EXCHANGE.get(), _SENT, when, get_native_id(), prompt, None))
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, sent = self._part, time.monotonic_ns, self._sent

        async def add_request_async(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return await original(client, request, *args, **kwargs)
            _SENT_AT.set(0)
            result = await original(client, request, *args, **kwargs)
            sent(request, _SENT_AT.get() or now())
            return result

        return add_request_async

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, span = self._part, time.monotonic_ns, self._agent.rows("span").put
        name = self._agent.texts.number("send")

        def send(client: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(client, *args, **kwargs)
            start = now()
            _SENT_AT.set(start)
            try:
                return original(client, *args, **kwargs)
            finally:
                span((get_native_id(), name, start, now(), 0))

        return send

    def _direct(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, sent = self._part, time.monotonic_ns, self._sent

        def add_request(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(client, request, *args, **kwargs)
            start = now()
            result = original(client, request, *args, **kwargs)
            sent(request, start)
            return result

        return add_request


class _Outputs:
    """Hooks of the output processor."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._part = agent.part(PART_FRONTEND)
        self._put = agent.rows("request").put
        self._rows = agent.rows("outputs")
        self._tokens = agent.rows("tokens").put
        self._traces = agent.rows("trace_context").put
        self._rowsets = ListRowsets(agent)
        self._states: dict[str, Any] = {}
        agent.at_stop.append(self._states.clear)

    def install(self, module: ModuleType) -> None:
        owner = module.OutputProcessor
        wrap(owner, "add_request", self._adding)
        wrap(owner, "process_outputs", self._processing)
        wrap(owner, "abort_requests", self._aborting)

    def _adding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, tid = self._part, time.monotonic_ns, get_native_id

        def add_request(processor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(processor, *args, **kwargs)
            if part.on:
                try:
                    request = args[0] if args else kwargs["request"]
                    self._registered(processor, request, now(), tid())
                except Exception as error:  # noqa: BLE001
                    part.fault(error)
            return result

        return add_request

    def _registered(self, processor: Any, request: Any, now: int, tid: int) -> None:
        name, exchange = request.request_id, asgi.EXCHANGE.get()
        external = getattr(request, "external_req_id", None) or name
        if not exchange:
            self._agent.role("api")
            self._part.works()
        self._put((name, exchange, _REGISTERED, now, tid, 0, external))
        if exchange:
            self._put((name, exchange, _LINKED, now, tid, 0, external))
        else:
            # With an exchange, its header has told already; without one a caller in this process.
            trace = from_mapping(getattr(request, "trace_headers", None))
            if trace is not None:
                self._traces((name, 0, now, *trace))
        state = processor.request_states.get(name)
        if state is not None:
            self._remember(name, state)

    def _remember(self, name: str, state: Any) -> None:
        states = self._states
        states[name] = state
        while len(states) > _MAX_STATES:
            states.pop(next(iter(states)), None)

    def _aborting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def abort_requests(processor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(processor, *args, **kwargs)
            try:
                for name in result or ():
                    self._states.pop(name, None)
            except Exception as error:  # noqa: BLE001
                self._part.fault(error)
            return result

        return abort_requests

    def _processing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        part, now, put = self._part, time.monotonic_ns, self._rows.put
        rowset_of, ended = self._rowsets.of_outputs, self._ended

        def process_outputs(processor: Any, *args: Any, **kwargs: Any) -> Any:
            if not part.on:
                return original(processor, *args, **kwargs)
            alive = -1
            try:
                # Before the call, because it may trim the outputs it is given.
                outputs = args[0] if args else kwargs["engine_core_outputs"]
                stamp = args[1] if len(args) > 1 else kwargs.get("engine_core_timestamp")
                rowset, tokens = rowset_of(outputs)
                alive = len(processor.request_states)
            except Exception as error:  # noqa: BLE001
                part.fault(error)
            start = now()
            result = original(processor, *args, **kwargs)
            if alive >= 0:
                end = now()
                try:
                    put((get_native_id(), start, end, int((stamp or 0) * 1e9), rowset, tokens))
                    if len(processor.request_states) != alive:
                        ended(outputs, result, end)
                except Exception as error:  # noqa: BLE001
                    part.fault(error)
            return result

        return accelerated(
            "outputs",
            process_outputs,
            original,
            part,
            self._agent.drops,
            rows=self._rows,
            memo=self._rowsets,
            slow=rowset_of,
            slower=ended,
        )

    def _ended(self, outputs: Sequence[Any], result: Any, now: int) -> None:
        """Requests ended with these outputs: tell what each has produced."""
        try:
            for out in outputs:
                if out.finish_reason is not None:
                    self._finished(out.request_id, str(out.finish_reason), now)
            # Ended here by a stop string; the engine is told to abort them.
            for name in getattr(result, "reqs_to_abort", None) or ():
                self._finished(name, "stop", now)
        except Exception as error:  # noqa: BLE001
            self._part.fault(error)

    def _finished(self, name: str, reason: str, now: int) -> None:
        state = self._states.pop(name, None)
        detokenizer = getattr(state, "detokenizer", None)
        output = getattr(detokenizer, "output_token_ids", None)
        if output is not None:
            self._tokens((name, _FRONTEND, len(output), token_hash(output), now, reason))
