# SPDX-License-Identifier: Apache-2.0
"""Marks for a program's own loop: ``from gpucorrelate import agent``, ``with agent.step(...)``.

For engines without a plugin: a plain PyTorch loop, Transformers, SGLang. See docs/marks.md.
"""

from __future__ import annotations

from gpucorrelate.probes.agents.marks import begin, request, step

__all__ = ["request", "step"]

begin()
