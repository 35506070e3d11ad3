# SPDX-License-Identifier: Apache-2.0
"""What an engine's process is there for, by its name; known to agents and to pollers alike."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What changes call a guess at a thread's role; their subject is the thread.
ROLE = "role"
_GUESS = re.compile(r"(?P<role>\S+) \(guessed by its (?P<basis>[a-z]+)\)", re.ASCII)

#: Parts of a process's name or title, in lower case: ``VLLM::EngineCore_DP0``,
#: ``VLLM::Worker_TP1``, ``VllmWorker-1``, ``VLLM::APIServer_0``, ``VLLM::DPCoordinator``.
#: Kernel names end after 15 bytes: ``VLLM::EngineCor``, ``VLLM::DPCoordin``.
_PROCESSES = (
    (re.compile(r"enginecor"), "core"),
    (re.compile(r"worker(?:[_-]?(?:tp|pp|dp|ep|\d)|$)|vllmworker"), "worker"),
    (re.compile(r"api_?server|vllm serve|vllm\.entrypoints"), "api"),
    (re.compile(r"dpcoordin"), "coordinator"),
)


def role_of_process(name: str) -> str:
    """Part that a process plays: ``api``, ``core``, ``worker``, ``coordinator``; or nothing.

    Args:
        name: Its name (``multiprocessing``'s or the kernel's), title or command line.
    """
    lowered = name.lower()
    for pattern, role in _PROCESSES:
        if pattern.search(lowered):
            return role
    return ""


@dataclass(frozen=True)
class GuessedRole:
    """What a thread seems to be there for, where its own process does not say.

    Attributes:
        role: ``core.zmq``, ``worker.openmp``, ``api.main``; ``zmq`` where the process's part is
            not known.
        basis: What tells it: ``name`` or ``behaviour``.
    """

    role: str
    basis: str

    @property
    def text(self) -> str:
        """``core.zmq (guessed by its name)``."""
        return f"{self.role} (guessed by its {self.basis})"

    @classmethod
    def parse(cls, text: str) -> GuessedRole | None:
        """The opposite of ``text``; None for any other."""
        found = _GUESS.fullmatch(text)
        return cls(found["role"], found["basis"]) if found else None
