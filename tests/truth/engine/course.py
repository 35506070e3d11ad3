# SPDX-License-Identifier: Apache-2.0
"""When an injected delay can lie on a request's path, from what the engine itself did.

The engine of these scenarios does one step at a time, so that its dependencies are plain: from the
moment a request is handed to the engine core until the update after its last step, everything
that the core's main thread and the worker do follows one after another, and a delay of either
holds up every request that is with them, scheduled or waiting. Before and after that a request
depends on threads of the API server and on the thread that sends outputs to it. Nothing here
comes from a recording: the test plugin wrote down what was where, with clocks of its own.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Times = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """A step as the scheduler went through it.

    Attributes:
        start_ns: Scheduling began.
        end_ns: The update after it was done.
        tokens: Tokens by request.
        prompt: Prompt tokens among them, by request.
        made: Requests that got output tokens of it.
    """

    start_ns: int
    end_ns: int
    tokens: dict[str, int]
    prompt: dict[str, int]
    made: frozenset[str]


@dataclass
class Passage:
    """One request on its way; times are 0 where it did not get there.

    Attributes:
        submit_ns: Its prompt was given to the tokeniser's thread.
        tokenised_ns: Its prompt was tokens.
        handed_ns: It is about to be written to the engine's socket.
        sent_ns: Moments at which outputs of it were ready to be sent to the API server.
        steps: The steps it was in, in order.
        preempted_ns: When the scheduler threw it out.
        paused: When its response could not be written on.
    """

    submit_ns: int = 0
    tokenised_ns: int = 0
    handed_ns: int = 0
    sent_ns: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    preempted_ns: list[int] = field(default_factory=list)
    paused: list[Times] = field(default_factory=list)

    def behind(self, steps: Sequence[Step]) -> list[tuple[Times, Step]]:
        """Stretches in which it waited to be scheduled while a step of others went on."""
        if not self.steps or not self.handed_ns:
            return []
        return _beside((self.handed_ns, self.steps[0].start_ns), steps)

    def thrown_out(self, steps: Sequence[Step]) -> list[tuple[Times, Step]]:
        """Stretches in which it was thrown out, while a step of others went on."""
        found = []
        for since in self.preempted_ns:
            back = [step.start_ns for step in self.steps if step.start_ns > since]
            if back:
                found += _beside((since, min(back)), steps)
        return found

    def step_of(self, request: str, output: int) -> Step:
        """The step that made its first output (0) or its last (-1)."""
        return [step for step in self.steps if request in step.made][output]


@dataclass(frozen=True)
class Course:
    """What an engine did: its steps, its workers' calls, the passage of each request.

    Requests go by the engine's own ids.
    """

    steps: tuple[Step, ...]
    worker: tuple[Times, ...]
    passages: dict[str, Passage]

    def windows(self, request: str, end_ns: int, *, output: int = -1) -> Windows | None:
        """When a request depended on what, to its last output (-1) or its first (0).

        ``None`` where it never got through the engine.
        """
        passage = self.passages.get(request)
        if passage is None or not passage.sent_ns or not passage.handed_ns:
            return None
        made_ns = passage.step_of(request, output).end_ns
        sent_ns = passage.sent_ns[output]
        handed_ns = passage.handed_ns
        worker = self._calls((handed_ns, made_ns))
        return Windows(
            loop=(
                (0, passage.submit_ns),
                (passage.tokenised_ns, handed_ns),
                (sent_ns, end_ns),
            ),
            tokenise=((passage.submit_ns, passage.tokenised_ns),),
            engine=((handed_ns, made_ns),),
            core=tuple(without((handed_ns, made_ns), worker)),
            worker=tuple(common((handed_ns, made_ns), worker)),
            outputs=((made_ns, sent_ns),),
            client=tuple(common((sent_ns, end_ns), passage.paused)),
        )

    def _calls(self, times: Times) -> Sequence[Times]:
        """The worker's calls that may overlap an interval; they follow one another."""
        first = bisect_right(self.worker, (times[0], 0))
        return self.worker[max(0, first - 1) : bisect_right(self.worker, (times[1], 0))]


@dataclass(frozen=True)
class Windows:
    """Stretches in which a request depends on something.

    Attributes:
        loop: The API server's event loop.
        tokenise: The tokeniser's thread.
        engine: The engine core's main thread and the worker, one after the other.
        core: Of that, the core's main thread: no call of the worker's is in progress.
        worker: Of that, the worker.
        outputs: The core's thread that sends outputs.
        client: The client, which does not read on.
    """

    loop: tuple[Times, ...]
    tokenise: tuple[Times, ...]
    engine: tuple[Times, ...]
    core: tuple[Times, ...]
    worker: tuple[Times, ...]
    outputs: tuple[Times, ...]
    client: tuple[Times, ...]


def _beside(times: Times, steps: Sequence[Step]) -> list[tuple[Times, Step]]:
    parts = ((common(times, [(step.start_ns, step.end_ns)]), step) for step in steps)
    return [(part[0], step) for part, step in parts if part]


def common(one: Times, others: Iterable[Times]) -> list[Times]:
    """What an interval has in common with others that do not overlap."""
    found = [(max(one[0], start), min(one[1], end)) for start, end in others]
    return sorted((start, end) for start, end in found if end > start)


def without(one: Times, others: Iterable[Times]) -> list[Times]:
    """What is left of an interval without others."""
    at, left = one[0], []
    for start, end in common(one, others):
        if start > at:
            left.append((at, start))
        at = max(at, end)
    return [*left, (at, one[1])] if at < one[1] else left


def read_course(folder: Path, names: Sequence[str]) -> Course:
    """The course of an engine, as its plugin wrote it down.

    Args:
        folder: The plugin's folder.
        names: The clients' ids of requests. A prompt begins with its request's.
    """
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in folder.glob("course-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["what"]].append(row)
    steps = [
        Step(r["start_ns"], r["end_ns"], r["tokens"], r["prompt"], frozenset(r["made"]))
        for r in sorted(rows["step"], key=lambda row: row["start_ns"])
    ]
    passages: dict[str, Passage] = defaultdict(Passage)
    for step in steps:
        for name in step.tokens:
            passages[name].steps.append(step)
    for row in sorted(rows["sent"], key=lambda row: row["t_ns"]):
        for name in row["requests"]:
            passages[name].sent_ns.append(row["t_ns"])
    for row in rows["handed"]:
        passages[row["request"]].handed_ns = row["t_ns"]
    for row in sorted(rows["preempt"], key=lambda row: row["t_ns"]):
        passages[row["request"]].preempted_ns.append(row["t_ns"])
    _frontend(rows, passages, set(names))
    worker = sorted((row["start_ns"], row["end_ns"]) for row in rows["worker"])
    return Course(tuple(steps), tuple(worker), dict(passages))


def _frontend(
    rows: dict[str, list[dict[str, Any]]], passages: dict[str, Passage], names: set[str]
) -> None:
    """What was noted by the clients' ids, which are part of the engine's: ``cmpl-ID-0-xxxx``."""
    by_name = {}
    for internal, passage in passages.items():
        name = internal.removeprefix("cmpl-").rpartition("-")[0].rpartition("-")[0]
        if name in names:
            by_name[name] = passage
    for what, times in (("submit", "t_ns"), ("tokenise", "end_ns")):
        for row in rows[what]:
            found = by_name.get(row["prompt"].partition(" ")[0])
            if found is not None:
                setattr(found, "submit_ns" if what == "submit" else "tokenised_ns", row[times])
    for row in sorted(rows["paused"], key=lambda row: row["start_ns"]):
        if row["request"] in by_name:
            by_name[row["request"]].paused.append((row["start_ns"], row["end_ns"]))
