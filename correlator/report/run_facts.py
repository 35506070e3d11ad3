# SPDX-License-Identifier: Apache-2.0
"""What a recording says of the engine and the host that other systems want to hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture

#: A model's name is a label and an attribute everywhere.
_LETTERS = 200
SEVERAL_MODELS = "several"


@dataclass(frozen=True)
class RunFacts:
    """Facts of a recording; empty texts are unknown."""

    model: str = ""  # what clients call it; "several" where the engines differ
    engine_version: str = ""
    session: str = ""
    hostname: str = ""
    kernel: str = ""
    version: str = ""  # of gpucorrelate's daemon

    @classmethod
    def of(cls, capture: Capture) -> RunFacts:
        """What the recording says."""

        def last(key: str) -> str:
            facts = capture.facts(key)
            return facts[-1].value[:_LETTERS] if facts else ""

        return cls(
            _model(capture),
            last("vllm.version"),
            last("session"),
            last("hostname"),
            last("kernel"),
            last("gpucorrelate.version"),
        )


def _model(capture: Capture) -> str:
    """The model's name as clients give it; of an older agent's recording, where it was loaded."""
    for key in ("served_model_name", "model"):
        names = {fact.value for fact in capture.facts(key)}
        if names:
            return names.pop()[:_LETTERS] if len(names) == 1 else SEVERAL_MODELS
    return ""


#: Last part of a path -> the operation, as OpenTelemetry's conventions for GenAI name it.
_OPERATIONS = {
    "/chat/completions": "chat",
    "/chat/completions/batch": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/v2/chat": "chat",
    "/completions": "text_completion",
    "/generate": "text_completion",
    "/embeddings": "embeddings",
    "/embed": "embeddings",
}


def operation(path: str) -> str:
    """What a request asks for by its path; empty where the conventions have no word for it."""
    ends = [end for end in _OPERATIONS if path.endswith(end)]
    return _OPERATIONS[max(ends, key=len)] if ends else ""


def outcome(status: str) -> str:
    """``finished``, ``aborted``, ``failed`` or ``in flight``, of a report's status."""
    return status.partition(":")[0]


def reason(status: str) -> str:
    """What follows the outcome: a finish reason, or what went wrong."""
    return status.partition(": ")[2]
