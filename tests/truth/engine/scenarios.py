# SPDX-License-Identifier: Apache-2.0
"""Delays of a real engine: where they are made, under which load, and what may be said of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpucorrelate.correlator.report.values import Category, PhaseName
from tests.engine.server import SYNC, Profile
from tests.truth.engine.loads import CROWD, FATAL, LONG_PROMPTS, SHORT, SLOW, TIGHT, USUAL, Shape


class Blame(enum.Enum):
    """Who is to blame for a delay."""

    THREAD = "the thread that logged it"
    KIND = "what was logged of it"  # memory, or a file
    CLIENT = "the client"
    STEP = "the step in which tokens of others were computed"
    ERROR = "the step that raised"


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: Its name in documents.
        cause: The cause that it makes, in a user's words.
        fault: The plugin's kind of fault; empty where the load alone makes the delay.
        window: What a request must depend on for the delay to count: a field of ``Windows``.
        categories: What may be said of it.
        blame: Who is to blame.
        shape: The load.
        profile: How the engine runs.
        mean_ms: Mean length of a delay.
        own: Whether it is work of the engine's own, of which there is some without it.
        waiting: Phases of which the delay is, where it is one of scheduling.
    """

    name: str
    cause: str
    fault: str
    window: str
    categories: frozenset[Category]
    blame: Blame = Blame.THREAD
    shape: Shape = USUAL
    profile: Profile = SYNC
    mean_ms: float = 20.0
    own: bool = False
    waiting: frozenset[PhaseName] = frozenset()


_SLEEP, _GIL = frozenset({Category.SLEEP}), frozenset({Category.GIL})
_NETWORK = frozenset({Category.NETWORK})
_CPU, _FAULT = frozenset({Category.CPU}), frozenset({Category.PAGE_FAULT})

QUEUE = Profile(
    "queue",
    args=(
        "--no-async-scheduling",
        "--max-num-seqs", "4",
        "--max-model-len", "2048",
        "--enable-chunked-prefill",
        "--max-num-batched-tokens", "256",
    ),
)  # fmt: skip
#: The engine that is to die is one of its own.
DYING = Profile("dying", args=SYNC.args)
PREEMPT_SYNC = Profile(
    "preempt-sync",
    args=(
        "--no-async-scheduling",
        "--block-size", "32",
        "--num-gpu-blocks-override", "24",
        "--enable-chunked-prefill",
        "--max-num-batched-tokens", "128",
    ),
    preempts=True,
)  # fmt: skip

_BEFORE = frozenset({PhaseName.ADMIT, PhaseName.QUEUE})


def _waiting(
    name: str,
    cause: str,
    window: str,
    phases: frozenset[PhaseName],
    shape: Shape,
    profile: Profile,
) -> Scenario:
    return Scenario(
        name, cause, "", window, frozenset(), Blame.STEP, shape, profile, own=True, waiting=phases
    )


CATALOGUE: tuple[Scenario, ...] = (
    Scenario(
        "api-loop-sleep",
        "API server: event loop asleep",
        "api.outputs.sleep",
        "loop",
        _SLEEP,
        shape=SHORT,
    ),
    Scenario(
        "api-loop-lock",
        "API server: event loop at a held lock",
        "api.outputs.lock",
        "loop",
        _SLEEP,
        shape=SHORT,
    ),
    Scenario(
        "api-gil-hog",
        "API server: interpreter hog",
        "api.gil",
        "loop",
        _GIL,
        shape=SHORT,
        mean_ms=30,
    ),
    Scenario(
        "api-loop-storm",
        "API server: page-fault storm",
        "api.outputs.storm",
        "loop",
        _FAULT,
        Blame.KIND,
        SHORT,
        mean_ms=10,
    ),
    Scenario(
        "slow-tokeniser",
        "slow tokeniser, asleep",
        "api.tokenise.sleep",
        "tokenise",
        _SLEEP,
        shape=SHORT,
    ),
    Scenario(
        "busy-tokeniser",
        "slow tokeniser, computing",
        "api.tokenise.burn",
        "tokenise",
        _CPU,
        shape=SHORT,
        own=True,
    ),
    Scenario(
        "slow-client",
        "slow client of a stream",
        "api.small-buffers",
        "client",
        _NETWORK,
        Blame.CLIENT,
        SLOW,
    ),
    Scenario("core-sleep", "core: scheduler asleep", "core.schedule.sleep", "engine", _SLEEP),
    Scenario(
        "core-lock", "core: scheduler at a held lock", "core.schedule.lock", "engine", _SLEEP
    ),
    Scenario("core-gil-hog", "core: interpreter hog", "core.gil", "core", _GIL, mean_ms=30),
    Scenario(
        "core-burn", "core: scheduler computing", "core.schedule.burn", "engine", _CPU, own=True
    ),
    Scenario(
        "core-storm",
        "core: page-fault storm",
        "core.schedule.storm",
        "engine",
        _FAULT,
        Blame.KIND,
        mean_ms=10,
    ),
    Scenario(
        "core-outputs-sleep",
        "core: output thread stalled",
        "core.outputs.sleep",
        "outputs",
        _SLEEP,
        shape=SHORT,
    ),
    Scenario("worker-sleep", "worker: asleep in a step", "worker.execute.sleep", "engine", _SLEEP),
    Scenario("worker-lock", "worker: at a held lock", "worker.execute.lock", "engine", _SLEEP),
    Scenario(
        "worker-gil-hog", "worker: interpreter hog", "worker.gil", "worker", _GIL, mean_ms=30
    ),
    Scenario(
        "worker-burn",
        "worker: computing in a step",
        "worker.execute.burn",
        "engine",
        _CPU,
        own=True,
    ),
    Scenario(
        "worker-cold",
        "worker: page faults from disk",
        "worker.execute.cold",
        "engine",
        _FAULT,
        Blame.KIND,
        mean_ms=10,
    ),
    Scenario(
        "worker-storm",
        "worker: page-fault storm",
        "worker.execute.storm",
        "engine",
        _FAULT,
        Blame.KIND,
        mean_ms=10,
    ),
    _waiting(
        "behind-a-prefill",
        "behind another's long prefill",
        "behind_prefill",
        _BEFORE,
        LONG_PROMPTS,
        QUEUE,
    ),
    _waiting("no-free-slot", "waiting for a free slot", "behind_full", _BEFORE, CROWD, QUEUE),
    _waiting(
        "preempted",
        "preempted by KV pressure",
        "thrown_out",
        frozenset({PhaseName.BETWEEN}),
        TIGHT,
        PREEMPT_SYNC,
    ),
    Scenario(
        "executor-raises",
        "executor raising",
        "core.execute.raise",
        "engine",
        frozenset(),
        Blame.ERROR,
        FATAL,
        DYING,
        own=True,
    ),
)
BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}
