# SPDX-License-Identifier: Apache-2.0
"""The tracer that kernel tests share, by way of each backend, and the marker they all carry."""

from __future__ import annotations

import functools
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


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """The same text becomes the same instructions: BCC takes a second for each of 30 tracers."""
    from gpucorrelate.probes.ebpf import bcc

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bcc, "compile_programs", functools.cache(bcc.compile_programs))
        yield


@pytest.fixture(scope="module", params=["libbpf", pytest.param("bcc", marks=pytest.mark.bcc)])
def backend(request: pytest.FixtureRequest) -> str:
    """What loads the programs: what is true of them must be true of both."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def tracer(backend: str) -> Iterator[Tracer]:
    from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig

    made = Tracer.start(TracerConfig(backend=backend))
    assert made.backend == backend
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
