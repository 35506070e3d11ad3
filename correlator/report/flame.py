# SPDX-License-Identifier: Apache-2.0
"""Critical-path time as flame graphs: who held the path of requests or steps, and why.

A stack is phase, thread (or stream), its named span, category, and cause; its weight is the time
of the path in nanoseconds. Weights sum to the wall time of what was chosen, exactly.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

import gpucorrelate
from gpucorrelate.correlator.report.names import safe
from gpucorrelate.correlator.report.paths import PHASES
from gpucorrelate.correlator.report.values import PhaseName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.paths import Said, Stretches
    from gpucorrelate.correlator.report.values import Cause

    I64 = NDArray[np.int64]

Stack = tuple[str, ...]

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
# "12 minor faults" and "3 minor faults" are one frame.
_COUNTED = re.compile(r"^\d+ ")


@dataclass(frozen=True)
class FlamePath:
    """The path of one request or step in order of time: stacks, and how long each was on top."""

    name: str
    stacks: tuple[Stack, ...]
    order: tuple[int, ...]  # index into stacks
    weights_ns: tuple[int, ...]


@dataclass(frozen=True)
class Flame:
    """Critical-path time by stack.

    Attributes:
        name: What was chosen.
        weights_ns: Time by stack, in order of first occurrence.
        paths: The paths one by one, where few were chosen.
    """

    name: str
    weights_ns: tuple[tuple[Stack, int], ...]
    paths: tuple[FlamePath, ...] = ()

    @property
    def total_ns(self) -> int:
        """All of it: the wall times of what was chosen, summed."""
        return sum(weight for _, weight in self.weights_ns)


def of(
    name: str,
    found: Iterable[tuple[range, Stretches]],
    names: Sequence[str],
    *,
    one_by_one: bool = False,
    shown: Callable[[str], str] = str,
) -> Flame:
    """A flame graph of paths.

    Args:
        name: What was chosen.
        found: Their stretches, as ``PathFinder`` gives them.
        names: Of each path its name.
        one_by_one: Whether each path is wanted in order of time too.
        shown: What stands in place of a text.
    """
    sums: Counter[Stack] = Counter()
    paths: list[FlamePath] = []
    for some, stretches in found:
        key, own = _stacks(stretches)
        stacks = tuple(tuple(map(shown, stack)) for stack in own)
        lengths = stretches.end_ns - stretches.start_ns
        for stack, weight in zip(stacks, _summed(key, lengths, len(stacks)), strict=True):
            sums[stack] += weight
        if one_by_one:
            for owner in np.unique(stretches.owner).tolist():
                mine = stretches.owner == owner
                paths.append(
                    FlamePath(
                        shown(names[some[owner]]), stacks, tuple(key[mine].tolist()),
                        tuple(lengths[mine].tolist()),
                    )
                )  # fmt: skip
    return Flame(shown(name), tuple(sums.items()), tuple(paths))


def _summed(key: I64, lengths: I64, n: int) -> list[int]:
    sums = np.zeros(n, np.int64)
    np.add.at(sums, key, lengths)
    return [int(one) for one in sums.tolist()]


def _stacks(one: Stretches) -> tuple[I64, tuple[Stack, ...]]:
    """The number of each stretch's stack, and the stacks."""
    pairs = one.phase * max(1, len(one.said)) + one.which
    found, number = np.unique(pairs, return_inverse=True)
    seen: dict[Stack, int] = {}
    of = []
    for pair in found.tolist():
        phase, which = divmod(pair, max(1, len(one.said)))
        stack = (*_phase(PHASES[phase]), *_frames(one.said[which]))
        of.append(seen.setdefault(stack, len(seen)))
    return np.array(of, np.int64)[number], tuple(seen)


def _phase(phase: PhaseName) -> Stack:
    return () if phase is PhaseName.UNKNOWN else (str(phase),)


def _frames(said: Said) -> Stack:
    span = (said.span,) if said.span else ()
    return (said.actor.shown, *span, str(said.category), *_cause(said.cause))


def _cause(cause: Cause | None) -> Stack:
    """Who or what ended it, without numbers that tell one occurrence from another."""
    if cause is None:
        return ()
    verb = _COUNTED.sub("", cause.verb)
    if cause.actor is not None:
        return (f"{verb} {cause.actor.shown}",)
    return (f"{verb} {cause.detail}".strip(),)


def write_folded(flame: Flame, out: IO[str]) -> None:
    """A line for each stack: frames between semicolons, a blank, nanoseconds.

    flamegraph.pl, inferno and speedscope read it. Semicolons and line breaks within a name would
    end a frame, so they are others there.
    """
    for stack, weight in flame.weights_ns:
        frames = ";".join(safe(frame).replace(";", ",") for frame in stack)
        out.write(f"{frames} {weight}\n")


def write_speedscope(flame: Flame, out: IO[str]) -> None:
    """A speedscope document: all of it as one profile, then the paths in order of time."""
    frames: dict[str, int] = {}

    def samples(stacks: Iterable[Stack]) -> list[list[int]]:
        return [[frames.setdefault(name, len(frames)) for name in stack] for stack in stacks]

    whole = [weight for _, weight in flame.weights_ns]
    profiles = [_profile(flame.name, samples(stack for stack, _ in flame.weights_ns), whole)]
    for path in flame.paths:
        made = samples(path.stacks)
        weights = list(path.weights_ns)
        profiles.append(_profile(path.name, [made[at] for at in path.order], weights))
    document = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "name": flame.name,
        "exporter": f"gpucorrelate@{gpucorrelate.__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    json.dump(document, out, separators=(",", ":"), allow_nan=False)
    out.write("\n")


def _profile(name: str, samples: list[list[int]], weights_ns: list[int]) -> dict[str, object]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights_ns),
        "samples": samples,
        "weights": weights_ns,
    }
