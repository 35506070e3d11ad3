# SPDX-License-Identifier: Apache-2.0
"""gpucorrelate: where every microsecond of an LLM request went, and who made it wait."""

__version__ = "0.1.0"
