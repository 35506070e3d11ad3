# SPDX-License-Identifier: Apache-2.0
"""Golden files: what a rendering looked like when somebody last looked at it.

``GPUCORRELATE_UPDATE_GOLDEN=1`` writes them anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).parent / "renderings"


def same_as_golden(name: str, text: str) -> None:
    """Fails with a readable difference when ``text`` is not what the golden file holds."""
    path = _HERE / name
    if os.environ.get("GPUCORRELATE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
