# SPDX-License-Identifier: Apache-2.0
"""What a capture should say about the engine: version, model, settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucorrelate.probes.agents.agent import Agent

#: ``meta`` key to where the engine's configuration has it; the first that is there counts.
_PLACES: dict[str, tuple[str, ...]] = {
    "model": ("model_config.model",),
    # What clients call it; the first of several.
    "served_model_name": ("model_config.served_model_name",),
    "dtype": ("model_config.dtype",),
    "enforce_eager": ("model_config.enforce_eager",),
    "max_num_seqs": ("scheduler_config.max_num_seqs",),
    "async_scheduling": ("scheduler_config.async_scheduling",),
    "chunked_prefill": (
        "scheduler_config.enable_chunked_prefill",
        "scheduler_config.chunked_prefill_enabled",
    ),
    "executor": ("parallel_config.distributed_executor_backend",),
    "tensor_parallel_size": ("parallel_config.tensor_parallel_size",),
    "pipeline_parallel_size": ("parallel_config.pipeline_parallel_size",),
    "block_size": ("cache_config.block_size",),
    "prefix_caching": ("cache_config.enable_prefix_caching",),
}


def note_config(agent: Agent, config: Any) -> None:
    """Note the facts of a ``VllmConfig``; what a release does not have is left out."""
    agent.fact("vllm.version", engine_version())
    for key, places in _PLACES.items():
        for place in places:
            value = _at(config, place)
            if value is not None:
                agent.fact(key, value if isinstance(value, str | int | bool) else _plain(value))
                break


def engine_version() -> str | None:
    """Version of the engine, without importing anything."""
    for name in ("vllm.version", "vllm"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            return version
    return None


def _at(config: Any, place: str) -> Any:
    for name in place.split("."):
        config = getattr(config, name, None)
    return config


def _plain(value: Any) -> str:
    """``torch.float32`` for a dtype, the name of a class for a class."""
    return str(value.__name__) if isinstance(value, type) else str(value)
