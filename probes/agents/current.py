# SPDX-License-Identifier: Apache-2.0
"""The one agent of this process, whoever asks for it first: an engine's plugin or a program."""

from __future__ import annotations

import os
import threading
from multiprocessing import util

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.cupti import profilers
from gpucorrelate.probes.agents.finder import PostImport

_agent: Agent | None = None
_lock = threading.Lock()


def process_agent(producer: str) -> Agent:
    """The process's agent: made, and its sender begun, when first asked for.

    Args:
        producer: Who asks, as recordings name the source of its rows; the first one stays.
    """
    global _agent
    with _lock:
        if _agent is None:
            _agent = agent = Agent(producer)
            PostImport(profilers.callbacks(agent.gpu)).install()
            os.register_at_fork(after_in_child=_reborn)
            flush_at_exit(agent)
            agent.transport.run()
        return _agent


def _reborn() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's other threads may have held it, and are gone
    if _agent is not None:
        _agent.reborn()


def flush_at_exit(agent: Agent) -> None:
    """Have what the last tick has not sent be sent when the process ends in good order.

    That is before the interpreter takes itself apart, which stops the sender and may take as long
    as many ticks: the rows of an engine's last second tell of what it died. Children of
    ``multiprocessing`` leave ``atexit`` out and forget their parent's finalizers.
    """

    def at_exit(of: Agent) -> None:
        util.Finalize(None, lambda: of.transport.flush(), exitpriority=0)

    at_exit(agent)
    util.register_after_fork(agent, at_exit)
