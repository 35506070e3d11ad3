# SPDX-License-Identifier: Apache-2.0
"""The engine's agent: what vLLM loads as a general plugin, in every one of its processes."""

from __future__ import annotations

import logging

from gpucorrelate.probes.agents import disabled


def register() -> None:
    """Prepare this process to be observed; dormant until a daemon asks. Never raises.

    Called by vLLM in each of its processes, and more than once in some. Imports nothing of
    vLLM: its modules are hooked when they are imported.
    """
    if disabled():
        return
    try:
        from gpucorrelate.probes.agents.vllm.plugin import start

        start()
    except Exception:
        logging.getLogger("gpucorrelate").exception("gpucorrelate: the agent could not start")
