# SPDX-License-Identifier: Apache-2.0
"""Tokenising of prompts: anchors of the request, and spans of the threads that do it."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm import asgi
from gpucorrelate.probes.agents.vllm.contract import (
    PART_TOKENISE,
    RENDERER,
    TOKENISE_OLD_NEEDS,
)
from gpucorrelate.probes.agents.vllm.patch import checked, wrap
from gpucorrelate.probes.agents.vllm.serial import spanning
from gpucorrelate.probes.wire.schema import Anchor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

_START, _DONE = int(Anchor.TOKENISE_START), int(Anchor.TOKENISED)
_MAX_DEPTH = 3


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the renderer, or in releases before it the input processor."""
    part = agent.part(PART_TOKENISE)
    if module.__name__ == RENDERER:
        if checked(part, module):
            owner = module.BaseRenderer
            wrap(owner, "render_cmpl_async", partial(_rendering, agent))
            wrap(owner, "render_chat_async", partial(_rendering, agent))
            wrap(owner, "_tokenize_prompt", partial(spanning, agent, part, "tokenise"))
            part.works()
        return
    needs = [need for need in TOKENISE_OLD_NEEDS if need.module == module.__name__]
    if checked(part, module, needs):
        for need in needs:
            owner = getattr(module, need.owner)
            wrap(owner, need.name, partial(spanning, agent, part, "parse"))


def _rendering(agent: Agent, original: Callable[..., Any]) -> Callable[..., Any]:
    part, put = agent.part(PART_TOKENISE), agent.rows("request").put
    now, tid = time.monotonic_ns, threading.get_native_id

    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = asgi.EXCHANGE.get()
        if not part.on or not exchange:
            return await original(self, *args, **kwargs)
        put(("", exchange, _START, now(), tid(), 0, None))
        result = await original(self, *args, **kwargs)
        try:
            put(("", exchange, _DONE, now(), tid(), prompt_tokens(result), None))
        except Exception as error:  # noqa: BLE001
            part.fault(error)
        return result

    return render


def prompt_tokens(rendered: Any, depth: int = 0) -> int:
    """Prompt tokens in what a renderer returned: prompts as maps, in lists or tuples."""
    if isinstance(rendered, dict):
        ids = rendered.get("prompt_token_ids")
        return len(ids) if ids is not None else 0
    if isinstance(rendered, list | tuple) and depth < _MAX_DEPTH:
        return sum(prompt_tokens(item, depth + 1) for item in rendered)
    return 0
