# SPDX-License-Identifier: Apache-2.0
"""What runs inside traced processes."""

from __future__ import annotations

import os

DISABLE_VARIABLE = "GPUCORRELATE_DISABLE"


def disabled() -> bool:
    """Whether the user wants no agent in this process."""
    return os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")
