# SPDX-License-Identifier: Apache-2.0
"""Every scenario of a real engine, and what all of them together must reach."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.verify import score as scores
from tests.truth.engine.play import running_engine
from tests.truth.engine.scenarios import CATALOGUE

if TYPE_CHECKING:
    from gpucorrelate.verify.score import Score

pytestmark = [pytest.mark.engine, pytest.mark.kernel, pytest.mark.slow]

_ENGINES = {
    profile.name: tuple(group) for profile, group in groupby(CATALOGUE, lambda one: one.profile)
}


@pytest.fixture(scope="module", params=_ENGINES)
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Score]:
    """Scores of all scenarios that are played in one engine."""
    name: str = request.param
    scenarios = _ENGINES[name]
    folder = tmp_path_factory.mktemp("truth") / name
    with running_engine(scenarios[0].profile, folder) as engine:
        return [engine.play(scenario).score() for scenario in scenarios]


def _line(score: Score) -> str:
    shares = (score.category_share, score.culprit_share, score.false_share)
    return f"{score.name}: {', '.join('-' if s is None else f'{s:.1%}' for s in shares)}"


def test_delays_are_explained_as_they_were_made(played: list[Score]) -> None:
    assert all(score.injections for score in played), [one.name for one in played]
    wrong = [_line(score) for score in played if not score.attributable]
    assert not wrong
    total = scores.total(played)
    assert total.shares_reached, _line(total)


def test_engines_are_those_of_the_catalogue() -> None:
    assert sum(map(len, _ENGINES.values())) == len(CATALOGUE), "an engine is started twice"
