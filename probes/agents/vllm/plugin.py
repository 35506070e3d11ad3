# SPDX-License-Identifier: Apache-2.0
"""Starting the agent in a process, once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpucorrelate.probes.agents.current import process_agent
from gpucorrelate.probes.agents.finder import PostImport
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Agent

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

_started = False


def start() -> Agent:
    """The process's agent, started and with its hooks in place."""
    global _started
    agent = process_agent("vllm")
    if not _started:
        _started = True
        agent.fact("vllm.version", engine_version())
        callbacks = {name: partial(_install, agent, name) for name in INSTALLERS}
        PostImport(callbacks).install()
    return agent


def _install(agent: Agent, name: str, module: ModuleType) -> None:
    """Hook a module; whatever goes wrong switches the part off, loudly, and nothing else."""
    part, install = INSTALLERS[name]
    try:
        install(agent, module)
    except Exception as error:  # noqa: BLE001 - runs inside the engine's own import
        why = f"{name}: {type(error).__name__}: {error}"
        agent.part(part).refuse(f"{why}; {contract.LOST[part]}")
