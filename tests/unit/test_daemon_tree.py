# SPDX-License-Identifier: Apache-2.0
"""Which processes are taken for an engine's."""

from __future__ import annotations

import pytest

from gpucorrelate.daemon.tree import looks_like_engine
from gpucorrelate.probes.host.procfs import Process, Stat


def process(comm: str, *argv: str) -> Process:
    return Process(Stat(1, comm, "S", 1, 0, 1, 1), (0, 0, 0, 0), argv)


@pytest.mark.parametrize(
    "found",
    [
        process("VLLM::EngineCor", "VLLM::EngineCore"),
        process("python", "VLLM::Worker_TP0"),
        process("vllm", "/opt/venv/bin/python3.11", "/opt/venv/bin/vllm", "serve", "model"),
        process("vllm", "/opt/venv/bin/vllm", "serve"),
        process("python3", "python3", "-m", "vllm.entrypoints.openai.api_server"),
        process("python3", "python3", "-u", "-m", "vllm"),
    ],
)
def test_engines(found: Process) -> None:
    assert looks_like_engine(found)


@pytest.mark.parametrize(
    "found",
    [
        process("bash", "bash", "-c", "vllm serve model"),
        process("timeout", "timeout", "100", "vllm", "serve"),
        process("sudo", "sudo", "vllm", "serve"),
        process("python3", "python3", "-m", "pytest", "tests/vllm"),
        process("python3", "python3", "bench.py", "--backend", "vllm"),
        process("python3", "python3"),
        process("tmux", "tmux", "new", "-s", "vllm"),
        process("kthreadd"),
    ],
)
def test_what_merely_speaks_of_one(found: Process) -> None:
    assert not looks_like_engine(found)
