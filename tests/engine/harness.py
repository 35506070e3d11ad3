# SPDX-License-Identifier: Apache-2.0
"""Everything an engine test needs, under one name."""

from __future__ import annotations

from tests.engine.client import Chunk, Load, Request, Result, load, mixed_requests, run_load
from tests.engine.processes import ManagedProcess, free_port, members, wait_until
from tests.engine.server import (
    ASYNC,
    PREEMPT,
    PROFILES,
    SYNC,
    TP2,
    EngineServer,
    Profile,
    engine_venv,
    engine_version,
    missing_engine,
    running_server,
    tiny_model,
)

__all__ = [
    "ASYNC",
    "PREEMPT",
    "PROFILES",
    "SYNC",
    "TP2",
    "Chunk",
    "EngineServer",
    "Load",
    "ManagedProcess",
    "Profile",
    "Request",
    "Result",
    "engine_venv",
    "engine_version",
    "free_port",
    "load",
    "members",
    "missing_engine",
    "mixed_requests",
    "run_load",
    "running_server",
    "tiny_model",
    "wait_until",
]
