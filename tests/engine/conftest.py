# SPDX-License-Identifier: Apache-2.0
"""A traced load per engine profile, made once and looked at by many tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.engine.client import load, mixed_requests
from tests.engine.daemon import ingest_env, running_daemon
from tests.engine.server import ASYNC, PREEMPT, SYNC, TP2, running_server
from tests.engine.traced import Traced, capture_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.server import Profile

_SLOW = pytest.mark.slow

#: Requests of the load proper: all at once.
STREAMS = 50
#: Requests one after another: CPUs to spare.
CALM = 8


def _profile_of(item: pytest.Function) -> Profile:
    chosen: Profile = item.callspec.params["profile"]  # type: ignore[assignment]
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what makes no sense in a profile; a skip would look like something missing."""
    out = [
        item
        for item in items
        if item.get_closest_marker("synchronous") is not None
        and isinstance(item, pytest.Function)
        and _profile_of(item).asynchronous
    ]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ASYNC, id="async"),
        pytest.param(PREEMPT, id="preempt"),
        pytest.param(SYNC, id="sync", marks=_SLOW),
        pytest.param(TP2, id="tp2", marks=_SLOW),
    ],
)
def profile(request: pytest.FixtureRequest) -> Profile:
    """How the engine runs."""
    chosen: Profile = request.param
    return chosen


@pytest.fixture(scope="module")
def traced(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A calm load and a full one, traced from before the first to after the last request."""
    folder = tmp_path_factory.mktemp(profile.name)
    with (
        running_daemon(folder) as daemon,
        running_server(profile, folder, env=ingest_env(folder)) as server,
    ):
        warm = load(server.url, mixed_requests(20, tag="warm"), concurrency=10)
        assert all(result.ok for result in warm)
        session = daemon.attach(server.pid, agents=2 + profile.workers)
        results = load(server.url, mixed_requests(CALM, tag="calm", seed=3), concurrency=1)
        results += load(server.url, mixed_requests(STREAMS, tag="load"), concurrency=STREAMS)
        time.sleep(1)
        daemon.client.detach(session=session.session)
        assert not [result for result in results if not result.ok]
        capture = capture_of(daemon.client, session.session, results)
        yield Traced.of(profile, server.pid, results, capture)
