# SPDX-License-Identifier: Apache-2.0
"""A request's life inside the engine core: admitted, preempted, finished, what it produced."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import zlib
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import LOST, PART_REQUESTS
from gpucorrelate.probes.agents.vllm.signature import Need, complaint, shape_of
from gpucorrelate.probes.wire.schema import Anchor, TokenPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.probes.agents.agent import Agent, Part

_ADMITTED = int(Anchor.ADMITTED)
_PREFIX_HIT = int(Anchor.PREFIX_HIT)
_PREEMPTED = int(Anchor.PREEMPTED)
_KV_BLOCKS = int(Anchor.KV_BLOCKS)
_ENGINE = int(TokenPlace.ENGINE)
#: How a request's end is told, by its finish reason.
_ENDS = {"abort": int(Anchor.ABORTED), "error": int(Anchor.FAILED)}
_FINISHED = int(Anchor.FINISHED)


def token_hash(tokens: Sequence[int]) -> int:
    """Hash of output token ids: crc32 of them as little-endian u32."""
    try:
        packed = array("I", tokens)
    except OverflowError:
        packed = array("I", [token & 0xFFFFFFFF for token in tokens])
    if sys.byteorder == "big":
        packed.byteswap()
    return zlib.crc32(packed)


def prefix_hit(part: Part, put: Callable[..., Any], new: Any, request: Any) -> None:
    """A request's first step: how much of its prompt was cached already."""
    hit = new.num_computed_tokens
    # The second model runner gets resumed requests as new ones; those are no prefix hits.
    if hit > 0 and part.on and not getattr(request, "num_preemptions", 0):
        now = time.monotonic_ns()
        put((new.req_id, 0, _PREFIX_HIT, now, threading.get_native_id(), hit, None))


def hook_requests(agent: Agent, scheduler: Any) -> None:
    """Wrap a scheduler's methods that take requests in, take their blocks and let them go."""
    part = agent.part(PART_REQUESTS)
    problem = _problem(scheduler)
    if problem:
        part.refuse(f"{problem}; {LOST[PART_REQUESTS]}")
        return
    put = agent.rows("request").put
    tokens = agent.rows("tokens").put
    scheduler.add_request = _admitting(part, put, scheduler.add_request)
    ended = partial(_ended, put, tokens, scheduler)
    scheduler._free_request = _ending(part, ended, scheduler._free_request)
    if hasattr(scheduler, "_preempt_request"):
        scheduler._preempt_request = _preempting(part, put, scheduler._preempt_request)
        part.works()
    else:
        part.lack("this release preempts inside schedule(): preemptions are not reported")


def _problem(scheduler: Any) -> str:
    for name in ("add_request", "_free_request", "_preempt_request"):
        method = getattr(scheduler, name, None)
        need = Need("", "scheduler", name, ("request",), optional=name == "_preempt_request")
        why = complaint(need, shape_of(method, bound=True) if callable(method) else None)
        if why:
            return why
    return ""


def _request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["request"]


def _admitting(
    part: Part, put: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    now, tid = time.monotonic_ns, threading.get_native_id

    def add_request(*args: Any, **kwargs: Any) -> Any:
        if not part.on:
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            request = _request_of(args, kwargs)
            row = (request.request_id, 0, _ADMITTED, now(), tid(), request.num_prompt_tokens, None)
            put(row)
        except Exception as error:  # noqa: BLE001
            part.fault(error)
        return result

    return add_request


def _preempting(
    part: Part, put: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    now, tid = time.monotonic_ns, threading.get_native_id

    def _preempt_request(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if part.on:
            try:
                request = _request_of(args, kwargs)
                count = getattr(request, "num_preemptions", 0)
                put((request.request_id, 0, _PREEMPTED, now(), tid(), count, None))
            except Exception as error:  # noqa: BLE001
                part.fault(error)
        return result

    return _preempt_request


def _ending(
    part: Part, ended: Callable[[Any], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    def _free_request(*args: Any, **kwargs: Any) -> Any:
        if part.on:
            try:
                # Before the blocks are given back, so that they can still be counted.
                ended(_request_of(args, kwargs))
            except Exception as error:  # noqa: BLE001
                part.fault(error)
        return original(*args, **kwargs)

    return _free_request


def _ended(
    put: Callable[..., Any], put_tokens: Callable[..., Any], scheduler: Any, request: Any
) -> None:
    now, tid = time.monotonic_ns(), threading.get_native_id()
    name, output = request.request_id, request._output_token_ids
    found = request.get_finished_reason()
    reason = "" if found is None else str(found)
    count = len(output)
    with contextlib.suppress(KeyError):  # never scheduled: it has no blocks to tell of
        blocks = scheduler.kv_cache_manager.get_block_ids(name)
        put((name, 0, _KV_BLOCKS, now, tid, sum(map(len, blocks or ())), None))
    put((name, 0, _ENDS.get(reason, _FINISHED), now, tid, count, reason))
    put_tokens((name, _ENGINE, count, token_hash(output), now, reason))
