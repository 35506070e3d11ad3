# SPDX-License-Identifier: Apache-2.0
"""The guests that the tests share: one is up at a time, each kernel is booted once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.qemu import disk
from tests.qemu.guest import Guest
from tests.qemu.kernels import SERIES, NoKernelError, kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.qemu)
            item.add_marker(pytest.mark.slow)
            # Minutes of emulation on a machine that does other things as well.
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        kernels = [kernel(series) for series in SERIES]
    except NoKernelError as error:
        pytest.skip(str(error))
    return disk.build(tmp_path_factory.mktemp("qemu"), kernels)


@pytest.fixture(scope="session", params=SERIES)
def guest(request: pytest.FixtureRequest, image: Path) -> Iterator[Guest]:
    with Guest(kernel(request.param), image) as booted:
        yield booted
