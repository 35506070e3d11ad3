# SPDX-License-Identifier: Apache-2.0
"""A run over scenarios, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.verify import score
from gpucorrelate.verify.observe import PlayError, play, tracer
from gpucorrelate.verify.scenarios import CATALOGUE
from gpucorrelate.verify.scenarios.quota import remove_left_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpucorrelate.probes.ebpf.tracer import Tracer
    from gpucorrelate.probes.ebpf.values import Capability
    from gpucorrelate.verify.scenarios import Scenario

#: Operations with delays in each scenario; there are as many controls.
ROUNDS, QUICK_ROUNDS = 40, 10


@dataclass(frozen=True)
class Result:
    """What came of one scenario.

    Attributes:
        name: Its name.
        cause: The cause that it makes.
        score: How well it was explained; None where it was not played.
        impossible: Why this host cannot play it; empty otherwise.
        failed: Why it broke off; empty otherwise.
    """

    name: str
    cause: str
    score: score.Score | None = None
    impossible: str = ""
    failed: str = ""

    @property
    def attributable(self) -> bool | None:
        """Whether this host's probes can attribute the cause; None where nothing was tried."""
        if self.impossible or (self.score is not None and not self.score.injections):
            return None
        return self.score is not None and self.score.attributable


@dataclass(frozen=True)
class Report:
    """What came of all.

    Attributes:
        results: The scenarios, in order.
        total: All that were played as one.
        capabilities: Which sources of evidence work here, and what is lost without the others.
    """

    results: tuple[Result, ...]
    total: score.Score
    capabilities: tuple[Capability, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every cause that was tried can be attributed, and all together well enough."""
        tried = all(result.attributable is not False for result in self.results)
        return tried and self.total.shares_reached


def chosen(names: Sequence[str] = (), *, everything: bool = False) -> tuple[Scenario, ...]:
    """The scenarios of those names; without names all, or those that may run on any host.

    Raises:
        KeyError: there is no such scenario.
    """
    known = {scenario.name: scenario for scenario in CATALOGUE}
    if names:
        return tuple(known[name] for name in names)
    return tuple(scenario for scenario in CATALOGUE if everything or scenario.quick)


def run(
    scenarios: Sequence[Scenario],
    *,
    rounds: int,
    seed: int = 1,
    backend: str = "auto",
    progress: Callable[[str], object] = lambda name: None,
) -> Report:
    """Play scenarios one after another.

    Args:
        scenarios: Which.
        rounds: Operations with delays in each.
        seed: Of the random numbers that lengths and moments are drawn with.
        backend: What loads the kernel probes, see ``TracerConfig``.
        progress: Called with the name of each as it begins.

    Raises:
        ProbeError: the kernel probes do not work here.
    """
    remove_left_behind()
    with tracer(backend) as probes:
        results = tuple(_results(probes, scenarios, rounds, seed, progress))
        capabilities = probes.capabilities()
    scores = [result.score for result in results if result.score is not None]
    return Report(results, score.total(scores), capabilities)


def _results(
    probes: Tracer,
    scenarios: Sequence[Scenario],
    rounds: int,
    seed: int,
    progress: Callable[[str], object],
) -> Iterator[Result]:
    for scenario in scenarios:
        progress(scenario.name)
        try:
            played = play(probes, scenario, seed=seed, rounds=rounds)
        except PlayError as exc:
            yield Result(scenario.name, scenario.cause, failed=exc.message)
            continue
        if played.impossible:
            yield Result(scenario.name, scenario.cause, impossible=played.impossible)
            continue
        yield Result(scenario.name, scenario.cause, score.of(played))
