# SPDX-License-Identifier: Apache-2.0
"""What several unit tests use."""

from __future__ import annotations

import pytest

from gpucorrelate.cli import main


@pytest.fixture
def run(capfd):
    """Runs a command line; its exit code, standard output and standard error."""

    def go(*args):
        code = main.run([str(one) for one in args])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return go
