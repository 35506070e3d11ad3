# SPDX-License-Identifier: Apache-2.0
"""Serialising and deserialising of messages between frontend and engine core, as spans."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.hot import accelerated
from gpucorrelate.probes.agents.vllm.contract import PART_SERIAL
from gpucorrelate.probes.agents.vllm.patch import checked, wrap

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent, Part


def install(agent: Agent, module: ModuleType) -> None:
    """Hook the message encoder and decoder."""
    part = agent.part(PART_SERIAL)
    if not checked(part, module):
        return
    for name in ("encode", "encode_into"):
        wrap(module.MsgpackEncoder, name, partial(spanning, agent, part, "serialise"))
    wrap(module.MsgpackDecoder, "decode", partial(spanning, agent, part, "deserialise"))
    part.works()


def spanning(
    agent: Agent, part: Part, name: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """A method that is a span of that name on the thread that calls it."""
    rows, number = agent.rows("span"), agent.texts.number(name)
    put = rows.put
    now, tid = time.monotonic_ns, threading.get_native_id

    def spanned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not part.on:
            return original(self, *args, **kwargs)
        start = now()
        try:
            return original(self, *args, **kwargs)
        finally:
            put((tid(), number, start, now(), 0))

    return accelerated("span", spanned, original, part, agent.drops, mark=number, rows=rows)
