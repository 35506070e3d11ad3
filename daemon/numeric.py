# SPDX-License-Identifier: Apache-2.0
"""numpy without the helper threads of its linear algebra library.

OpenBLAS starts a thread per CPU when it is loaded. The daemon never uses them, and a thread
that is there before privileges are dropped keeps them: capabilities belong to threads.
"""

from __future__ import annotations

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"

_given = os.environ.get(_VARIABLE)
os.environ.setdefault(_VARIABLE, "1")
try:
    import numpy as np
finally:
    # Only for this load: what this process starts gets the environment it was meant to have.
    if _given is None:
        del os.environ[_VARIABLE]

__all__ = ["np"]
