# SPDX-License-Identifier: Apache-2.0
"""gpucorrelate: where every microsecond of an LLM request went, and who made it wait.

``gpucorrelate.open`` reads a recording, an imported profile or a folder of results: docs/api.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.api.runs import open_run as open

__version__ = "0.1.0"
__all__ = ["__version__", "open"]

_OPEN = ("gpucorrelate.api.runs", "open_run")


def __getattr__(name: str) -> object:
    # This package is imported inside traced processes too: what reads recordings comes when it is
    # asked for, and no layer may lean on it by way of this file.
    if name == "open":
        module, function = _OPEN
        try:
            return getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as exc:
            need = f"gpucorrelate.open needs the package {exc.name}, which is not installed"
            raise ImportError(f"{need} (pip install 'gpucorrelate[api]')") from exc
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "open"]
