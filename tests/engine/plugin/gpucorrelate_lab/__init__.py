# SPDX-License-Identifier: Apache-2.0
"""A vLLM plugin for tests: does known things to a real engine and writes down when.

Inert unless the environment asks:

``GPUCORRELATE_LAB_ASYNC=1``
    keep async scheduling on the CPU platform, which turns it off.
``GPUCORRELATE_LAB_DIR=DIR``
    faults, switched by files in ``DIR/flags`` and logged in ``DIR/truth-<pid>.jsonl``;
    see :mod:`gpucorrelate_lab.faults`.
"""

from __future__ import annotations

import os


def register() -> None:
    """vLLM's entry point; called once in every process of the engine."""
    if os.environ.get("GPUCORRELATE_LAB_ASYNC"):
        from gpucorrelate_lab import async_on_cpu

        async_on_cpu.install()
    if os.environ.get("GPUCORRELATE_LAB_DIR"):
        from gpucorrelate_lab import faults

        faults.install()
