# SPDX-License-Identifier: Apache-2.0
"""The tracer that kernel tests share, and the marker they all carry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.probes.ebpf.tracer import Tracer

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    from gpucorrelate.probes.ebpf.tracer import Tracer

    made = Tracer.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _no_target_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test leaves behind must not be seen by the next."""
    yield
    if "tracer" in request.fixturenames:
        made = request.getfixturevalue("tracer")
        for tgid in made.targets():
            made.remove_target(tgid)
        made.new_targets()
