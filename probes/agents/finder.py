# SPDX-License-Identifier: Apache-2.0
"""Run code right after a module's first import, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Loader(importlib.abc.Loader):
    """A module's own loader, with something to do afterwards."""

    def __init__(self, inner: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must not be able to tell: sources and resources are read through these.
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._then(module)


class PostImport(importlib.abc.MetaPathFinder):
    """Finder that lets the others find, and calls back once the module has been executed.

    Args:
        callbacks: Module name to what to run with the module. It must not raise.
    """

    def __init__(self, callbacks: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._callbacks = dict(callbacks)

    def install(self) -> None:
        """Watch imports from now on; modules imported already are called back at once."""
        sys.meta_path.insert(0, self)
        for name, then in self._callbacks.items():
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            # A module that is being imported right now calls back when it is done.
            if module is not None and not getattr(spec, "_initializing", False):
                then(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec another finder has for a watched module, with the callback attached."""
        then = self._callbacks.get(fullname)
        if then is None:
            return None
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, then)
                return spec
        return None
