# SPDX-License-Identifier: Apache-2.0
"""Run checks inside a guest and bring back what became of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.qemu.inside.kit import BACKEND_VARIABLE
from tests.qemu.kernels import ROOT

if TYPE_CHECKING:
    from tests.qemu.guest import Guest

_INSIDE = ROOT / "tests" / "qemu" / "inside"


def passed(guest: Guest, name: str, backend: str = "auto") -> int:
    """Run a file of checks; how many there were, all of which passed.

    Args:
        guest: Where.
        name: The file.
        backend: What loads the programs in checks that use ``kit.BACKEND``.

    Raises:
        AssertionError: one failed, was skipped, or there was none.
    """
    done = guest.python(
        "-m", "pytest", "-q", "--tb=short", "-c", _INSIDE / "pytest.ini", "--rootdir", ROOT,
        "--confcutdir", _INSIDE, _INSIDE / f"{name}.py", check=False,
        env={BACKEND_VARIABLE: backend},
    )  # fmt: skip
    found = re.search(r"^(\d+) passed in ", done.text, re.MULTILINE)
    assert done.code == 0 and found, f"on {guest.kernel.release}:\n{done.text}"
    return int(found[1])


def fact(guest: Guest, name: str) -> Any:
    """What a check left with ``kit.keep``."""
    return json.loads(guest.read(f"/root/facts/{name}.json"))
