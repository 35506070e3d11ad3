# SPDX-License-Identifier: Apache-2.0
"""Starting the agent in a process, once."""

from __future__ import annotations

import os
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm import (
    asgi,
    contract,
    engine,
    frontend,
    serial,
    shm_queue,
    tokenise,
    worker,
)
from gpucorrelate.probes.agents.vllm.facts import engine_version
from gpucorrelate.probes.agents.vllm.finder import PostImport

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

INSTALLERS: dict[str, tuple[str, Callable[[Agent, ModuleType], None]]] = {
    contract.CORE: (contract.PART_ENGINE, engine.install),
    contract.RUNNER: (contract.PART_WORKER, worker.install),
    contract.RUNNER_V2: (contract.PART_WORKER, worker.install),
    contract.QUEUE: (contract.PART_QUEUE, shm_queue.install),
    contract.ASYNC_LLM: (contract.PART_FRONTEND, frontend.install),
    contract.OUTPUTS: (contract.PART_FRONTEND, frontend.install),
    contract.CLIENT: (contract.PART_FRONTEND, frontend.install),
    contract.RENDERER: (contract.PART_TOKENISE, tokenise.install),
    contract.INPUTS: (contract.PART_TOKENISE, tokenise.install),
    contract.INPUTS_OLD: (contract.PART_TOKENISE, tokenise.install),
    contract.SERIAL: (contract.PART_SERIAL, serial.install),
    contract.UVICORN: (contract.PART_HTTP, asgi.install),
}

_agent: Agent | None = None


def start() -> Agent:
    """The process's agent, started and with its hooks in place."""
    global _agent
    if _agent is None:
        _agent = agent = Agent("vllm")
        agent.fact("vllm.version", engine_version())
        callbacks = {name: partial(_install, agent, name) for name in INSTALLERS}
        PostImport(callbacks).install()
        os.register_at_fork(after_in_child=agent.reborn)
        flush_at_exit(agent)
        agent.transport.run()
    return _agent


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


def _install(agent: Agent, name: str, module: ModuleType) -> None:
    """Hook a module; whatever goes wrong switches the part off, loudly, and nothing else."""
    part, install = INSTALLERS[name]
    try:
        install(agent, module)
    except Exception as error:  # noqa: BLE001 - runs inside the engine's own import
        why = f"{name}: {type(error).__name__}: {error}"
        agent.part(part).refuse(f"{why}; {contract.LOST[part]}")
